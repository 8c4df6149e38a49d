"""P19: told to stop under load, a server ends in good order and soon, and nothing acknowledged is lost."""

import os
import resource
import signal
import socket
import threading
import time

import pytest
from promises.checks import history, lost_or_twice
from promises.federation import SECRET, Process, clients, draws, restored, until

from artesian.server.messages import decode_task

pytestmark = pytest.mark.heavy

SOON = 10  # seconds


class Waiter(threading.Thread):
    """A client that left, and asks again and again for a task that does not come: a long poll for ever."""

    def __init__(self, server: Process, name: str, stop: threading.Event) -> None:
        super().__init__()
        self.server, self.client, self.stopped, self.secret = server, name, stop, f"secret of {name} is long"
        server.join(name, self.secret)
        assert server.request("DELETE", f"/v1/clients/{name}", self.secret)[0] == 204

    def run(self) -> None:
        while not self.stopped.is_set():
            try:
                assert self.server.request("GET", f"/v1/clients/{self.client}/task?wait=20", self.secret)[0] in (
                    204,
                    503,
                )
            except OSError:
                time.sleep(0.02)


def test_a_server_that_is_stopped_as_soon_as_it_serves_ends_well(tmp_path, promise) -> None:
    turns = promise("stops")
    server = Process(tmp_path)
    assert server.stop(signal.SIGTERM) == 0
    for _ in range(turns):
        (tmp_path / "log").write_text("")
        words = ["serve", "served:federation", "--store", "store", "--port", str(server.port)]
        pid = server.source.start(words, tmp_path, tmp_path / "log")
        until(lambda: "serving toy at" in (tmp_path / "log").read_text())
        os.kill(pid, signal.SIGTERM)
        assert server.source.wait(pid) == 0, (tmp_path / "log").read_text()
        assert "Traceback" not in (tmp_path / "log").read_text()


def test_a_server_that_cannot_write_its_last_snapshot_says_so_by_its_exit_code(tmp_path) -> None:
    server = Process(tmp_path, "--set", "log=off")
    task = server.upload("c0", server.join("c0"))
    resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))  # as on a full disk
    assert server.stop(signal.SIGTERM) == 1
    server.start()
    assert server.upload("c0", task)  # nothing was lost
    assert server.stop(signal.SIGTERM) == 0


def test_who_is_still_sending_when_a_server_has_waited_enough_is_told_so(tmp_path) -> None:
    """A refusal as of any server that has too much to do, and no traceback: its body is half there."""
    server = Process(tmp_path)
    number = decode_task(server.join("c0")).number
    with socket.create_connection(("127.0.0.1", server.port)) as slow:
        lines = [
            f"PUT /v1/clients/c0/uploads/{number} HTTP/1.1", "Host: here", "Content-Length: 5000",
            f"Authorization: Bearer {SECRET}", "", "half",
        ]  # fmt: skip
        slow.sendall("\r\n".join(lines).encode())
        until(lambda: b"bytes_in_flight 0.0" not in server.request("GET", "/metrics", server.token("admin"))[1])
        assert server.stop(signal.SIGTERM) == 0
        told = slow.makefile("rb").read()
    assert told.startswith(b"HTTP/1.1 429") and b"The server is stopping" in told and b"retry-after: 5" in told
    log = (tmp_path / "log").read_text()
    assert "Traceback" not in log and '"status": 429' in log


def test_stopped_under_load_a_server_ends_soon_and_loses_nothing(tmp_path, promise, figure) -> None:
    shutdowns, moments, longest = promise("shutdowns"), draws("shutdowns"), 0.0
    server = Process(tmp_path, "--set", "keep_uploads=true", "--set", "log=off")
    stop = threading.Event()
    waiters = [Waiter(server, f"w{i}", stop) for i in range(2)]
    for waiter in waiters:
        waiter.start()
    with clients(server, 4) as made:
        for _ in range(shutdowns):
            time.sleep(moments.uniform(0.05, 0.4))
            began = time.monotonic()
            code = server.stop(signal.SIGTERM)
            longest = max(longest, time.monotonic() - began)
            assert code == 0, (tmp_path / "log").read_text()[-2000:]
            server.start()
        stop.set()
    assert server.stop(signal.SIGTERM) == 0
    for waiter in waiters:
        waiter.join()
    sent, acknowledged = history(made)
    _, journal = restored(tmp_path / "store")
    assert lost_or_twice(sent, acknowledged, journal) == []
    assert longest < SOON
    assert "Traceback" not in (tmp_path / "log").read_text()
    figure(f"the longest took {longest:.1f} s; {len(acknowledged)} uploads acknowledged")
