"""P6: one client that sends far more than the server can answer does not stop it: an honest one is still served."""

import os
import signal
import socket
import threading
import time

import pytest
from promises.federation import SECRET, Process, answer, clients

pytestmark = pytest.mark.heavy

AT_ONCE = 10  # requests on one connection before the first answer is read
THREADS = 8
GROWTH = 64  # MB
ELSEWHERE = ("127.0.0.2", 0)  # the hostile client's own address


class Hostile(threading.Thread):
    """Sends many requests at once, again and again: some as a member, most as a stranger."""

    def __init__(self, port: int, requests: int, lines: list[bytes]) -> None:
        super().__init__()
        self.port, self.left, self.lines = port, requests, lines
        self.answers: dict[bytes, int] = {}

    def run(self) -> None:
        while self.left > 0:
            self.left -= AT_ONCE
            try:
                with socket.create_connection(("127.0.0.1", self.port), 30, ELSEWHERE) as link:
                    link.sendall(b"".join(self.lines[i % len(self.lines)] for i in range(AT_ONCE)))
                    link.shutdown(socket.SHUT_WR)
                    self.read(link)
            except OSError:
                self.answers[b"cut off"] = self.answers.get(b"cut off", 0) + 1

    def read(self, link: socket.socket) -> None:
        told = b""
        while chunk := link.recv(1 << 16):
            told += chunk
        for piece in told.split(b"HTTP/1.1 ")[1:]:
            self.answers[piece[:3]] = self.answers.get(piece[:3], 0) + 1


def request(method: str, path: str, credential: str, body: bytes = b"") -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "host: x", f"authorization: Bearer {credential}"]
    return "\r\n".join([*lines, f"content-length: {len(body)}", "", ""]).encode() + body


def hostile_requests(task: bytes) -> list[bytes]:
    """What costs a server most for what it costs the sender."""
    return [
        request("GET", "/v1/clients/c0/task", "a wrong guess"),  # a slow check, for a client that was not checked yet
        request("PUT", "/v1/clients/h1/uploads/1", SECRET, answer("h1", task)),  # a retry of an upload
        request("PUT", "/v1/clients/h1/uploads/2", SECRET, os.urandom(500)),
        request("GET", "/v1/federation", "artesian_enrol_guessed"),
        request("GET", "/nothing/here", ""),
    ]


def test_a_flood_leaves_an_honest_client_served_and_memory_bounded(tmp_path, promise, figure) -> None:
    wanted = promise("flood")
    server = Process(tmp_path, "--set", "log=off", "--set", "refusals_per_minute=300")
    task = server.join("h1")
    server.upload("h1", task)
    before = most = server.resident()
    floods = [Hostile(server.port, wanted // THREADS, hostile_requests(task)) for _ in range(THREADS)]
    longest = 0.0
    with clients(server, 1) as (honest,):
        for flood in floods:
            flood.start()
        while any(flood.is_alive() for flood in floods):
            began = time.monotonic()
            assert server.request("GET", "/healthz")[0] == 200
            longest = max(longest, time.monotonic() - began)
            most = max(most, server.resident())
            time.sleep(0.05)
        during = len(honest.acknowledged)
    for flood in floods:
        flood.join()
    answers = {key: sum(flood.answers.get(key, 0) for flood in floods) for flood in floods for key in flood.answers}
    assert during >= 3, "the honest client was kept out"
    assert longest < 10
    assert most - before < GROWTH, f"{most - before:.0f} MB more"
    assert answers[b"429"] > answers.get(b"401", 0), answers  # strangers are no longer answered one by one
    assert server.stop(signal.SIGTERM) == 0
    assert "Traceback" not in (tmp_path / "log").read_text()
    figure(
        f"an honest client uploaded {during} times; a probe took {longest:.1f} s at the most; {most - before:+.0f} MB"
    )
