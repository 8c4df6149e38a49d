"""P25: nobody without a credential can keep others out: silent sockets, pollers and one member's long polls."""

import resource
import signal
import socket
import threading
import time
from contextlib import nullcontext

import pytest
import uvicorn
from promises.federation import SECRET, Process, Server, Web, answer, until

from artesian.server.app import create_app
from artesian.server.crowding import SPARE, Crowd
from artesian.server.limits import Limits
from artesian.server.messages import decode_task
from artesian.server.settings import Settings
from artesian.server.timeouts import connections

ADDRESSES = [f"127.0.0.{i}" for i in range(2, 10)]
POLLERS, POLLS = 40, 40
SOON = 10  # seconds for a probe on a busy machine


def connected(port: int, address: str, data: bytes = b"") -> socket.socket:
    """A connection from this address that has sent this, and is not read from."""
    link = socket.create_connection(("127.0.0.1", port), 30, (address, 0))
    try:
        link.sendall(data)
    except OSError:
        link.close()
    return link


def get(path: str, credential: str = "nobody") -> bytes:
    return f"GET {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {credential}\r\n\r\n".encode()


def answered(link: socket.socket) -> bytes:
    """What comes back, up to the end of a refusal; two seconds without a byte end it, too."""
    link.settimeout(2)
    told = b""
    try:
        while b"}" not in told and (chunk := link.recv(1 << 16)):
            told += chunk
    except OSError:
        pass
    return told


POLL = get("/v1/clients/p1/task?wait=50", SECRET)


def polling(links: list[socket.socket], stop: threading.Event) -> None:
    """Ask again and again on connections that stay open."""
    for link in links:
        link.setblocking(False)
    while not stop.is_set():
        for turn, link in enumerate(links):
            try:
                link.send(get(["/healthz", "/v1/federation"][turn % 2]))
                link.recv(1 << 16)
            except OSError:
                pass
        time.sleep(0.05)


def check_served(web: Web, enrol: str, silent: int, polls: int, links: list[socket.socket]) -> None:
    """Fill the server with those who want nothing; then probes answer, and an honest client joins and uploads."""
    links += [connected(web.port, ADDRESSES[i % len(ADDRESSES)]) for i in range(silent)]
    leaver = f'{{"samples": 5, "secret": "{SECRET}"}}'.encode()
    assert web.request("PUT", "/v1/clients/p1", enrol, leaver)[0] == 200
    assert web.request("DELETE", "/v1/clients/p1", SECRET)[0] == 204
    links += [connected(web.port, ADDRESSES[0], POLL) for _ in range(polls)]
    pollers = [connected(web.port, ADDRESSES[1]) for _ in range(min(POLLERS, silent))]
    links += pollers
    stop = threading.Event()
    poller = threading.Thread(target=polling, args=(pollers, stop))
    poller.start()
    try:
        for path in ("/healthz", "/readyz"):
            began = time.monotonic()
            assert web.request("GET", path)[0] == 200, "a probe is kept out"
            assert time.monotonic() - began < SOON
        status, task = web.request("PUT", "/v1/clients/c1", enrol, leaver)
        for _ in range(3):
            assert status == 200, "an honest client is kept out"
            path = f"/v1/clients/c1/uploads/{decode_task(task).number}"
            status, task = web.request("PUT", path, SECRET, answer("c1", task))
        assert status == 200
    finally:
        stop.set()
        poller.join()


@pytest.mark.heavy
def test_nobody_is_kept_out(tmp_path, promise, figure) -> None:
    wanted = promise("silent")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, wanted + 500)), hard))
    server = Process(tmp_path, "--set", "grace=60", "--set", "log=off")
    files = server.files()
    links: list[socket.socket] = []
    try:
        check_served(server, server.token("enrol"), wanted, POLLS, links)
        most = server.files() - files
    finally:
        for link in links:
            link.close()
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert most <= Settings().connections + SPARE + 8, f"{most} connections"
    assert server.stop(signal.SIGTERM) == 0
    figure(f"{most} connections were open")


class Small:
    """A server with room for few, in a thread."""

    def __init__(self, folder) -> None:
        settings = Settings(connections=24, connections_per_address=8, requests_per_client=4, grace=30)
        self.inside, self.crowd = Server(folder, settings=settings), Crowd(settings)
        app = create_app(self.inside.service, self.inside.auth, settings, crowd=self.crowd)
        config = uvicorn.Config(app, http=connections(settings, self.crowd), ws="none", log_config=None)
        config.timeout_graceful_shutdown = 1
        self.server = uvicorn.Server(config)
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.web = Web(self.socket.getsockname()[1])
        self.thread = threading.Thread(target=self.server.run, kwargs={"sockets": [self.socket]})
        self.thread.start()
        until(lambda: self.server.started)

    def check(self) -> None:
        """Silent connections give way, and one client has few places."""
        links: list[socket.socket] = []
        try:
            check_served(self.web, self.inside.enrol, 60, 20, links)
            assert len(self.server.server_state.connections) <= 24 + SPARE, "silent connections stay"
            polls = [connected(self.web.port, ADDRESSES[2], POLL) for _ in range(6)]
            links += polls
            assert any(b"of this client" in answered(link) for link in polls), "one member holds more than its places"
        finally:
            for link in links:
                link.close()

    def stop(self) -> None:
        self.server.should_exit = True
        self.thread.join(timeout=20)
        assert not self.thread.is_alive()


@pytest.fixture
def small(tmp_path):
    made = Small(tmp_path / "store")
    yield made
    made.stop()


def test_few_places_are_enough(small) -> None:
    small.check()


def without_eviction(self, address: str) -> None:
    """Nobody has to go."""


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("place", "name", "without", "words"),
    [
        (Crowd, "_evict", without_eviction, "silent connections stay|an honest client is kept out"),
        (Limits, "request", lambda *_: nullcontext(), "one member holds more than its places"),
    ],
)
def test_without_a_safeguard_somebody_is_kept_out(small, promise, monkeypatch, place, name, without, words) -> None:
    promise("meta")
    monkeypatch.setattr(place, name, without)
    with pytest.raises(AssertionError, match=words):
        small.check()
