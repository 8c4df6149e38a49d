"""P7: slow and silent clients cannot hold the server: they are cut off, and an honest one is served all the while."""

import json
import resource
import select
import signal
import socket
import threading
import time

import pytest
from promises.federation import SECRET, Process, until

from artesian.core import Upload
from artesian.params import seal
from artesian.server.messages import decode_task
from artesian.storage.codec import encode

pytestmark = pytest.mark.heavy
APP = """
import numpy as np
from artesian.algorithms import FedAsync
from artesian.core import Model
from artesian.params import Layout
from artesian.server.federation import Federation

class Large(Model):
    layout = Layout.of({"weight": np.zeros(1 << 20, np.float32)}, trainable=["weight"])
    def start(self, seed):
        return self.layout.pack({"weight": np.zeros(1 << 20, np.float32)})

federation = Federation(Large(), FedAsync(), name="large")
"""
ROOM = 64  # MB of bodies and answers under way
GROWTH = 4 * ROOM  # MB of memory: what is under way, as models, as bytes, and on its way to a socket
LIMITS = ("grace=1", "slowest=4000000", f"bytes_in_flight={ROOM << 20}", "connections_per_address=2000", "log=off")
NAMES = [f"slow{i}" for i in range(20)]


class Slow:
    """A client that keeps a connection and the server waiting."""

    def __init__(self, server: Process, turn: int) -> None:
        name = NAMES[turn % len(NAMES)]
        self.link = socket.socket()
        self.link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self.link.settimeout(20)
        self.link.connect(("127.0.0.1", server.port))
        bearer = f"host: x\r\nauthorization: Bearer {SECRET}\r\n"
        put = f"PUT /v1/clients/{name}/uploads/1 HTTP/1.1\r\n{bearer}content-length: 2000000\r\n\r\n"
        get = f"GET /v1/clients/{name}/task HTTP/1.1\r\n{bearer}\r\n"
        now, later = [("", ""), ("GET /v1/fed", ""), ("", get), (put, "x" * 100), (get, ""), (put, "")][turn % 6]
        self.later, self.gone = later.encode(), False
        self.say(now.encode())

    def say(self, data: bytes) -> None:
        try:
            self.link.sendall(data)
        except OSError:
            self.gone = True

    def drip(self) -> None:
        if self.later and not self.gone:
            self.say(self.later[:1])
            self.later = self.later[1:]

    def is_cut_off(self) -> bool:
        """Closed from the other side, although we never read."""
        watch = select.poll()
        watch.register(self.link, select.POLLRDHUP)
        return self.gone or bool(watch.poll(0))


class Honest(threading.Thread):
    """Uploads and downloads a large model again and again; comes back when told to."""

    def __init__(self, server: Process, stop: threading.Event) -> None:
        super().__init__()
        self.server, self.stopped, self.served, self.longest = server, stop, 0, 0.0
        self.task = self.insist("PUT", "/v1/clients/honest", server.token("enrol"), joining())
        self.failed: BaseException | None = None

    def run(self) -> None:
        try:
            while not self.stopped.is_set():
                began, task = time.monotonic(), decode_task(self.task)
                models = {k: seal(params + 1) for k, params in task.models.items()}
                body = encode("upload", Upload("honest", task.number, 5, models))
                self.task = self.insist("PUT", f"/v1/clients/honest/uploads/{task.number}", SECRET, body)
                self.served, self.longest = self.served + 1, max(self.longest, time.monotonic() - began)
        except BaseException as error:
            self.failed = error

    def insist(self, *words) -> bytes:
        end = time.monotonic() + 60
        while time.monotonic() < end:
            try:
                status, told = self.server.request(*words)
            except OSError:
                status = 0
            if status == 200:
                return told
            assert status in (0, 408, 429, 503), (status, told)
            time.sleep(0.05)
        raise AssertionError("an honest client waits for a minute")


def joining() -> bytes:
    return json.dumps({"samples": 5, "secret": SECRET}).encode()


def test_slow_clients_are_cut_off_and_an_honest_one_is_served(tmp_path, promise, figure) -> None:
    wanted = promise("slow")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, wanted + 500)), hard))
    server = Process(tmp_path, *(word for limit in LIMITS for word in ("--set", limit)), app=APP)
    for name in NAMES:
        assert server.request("PUT", f"/v1/clients/{name}", server.token("enrol"), joining())[0] == 200
    stop, slow, most = threading.Event(), [], server.resident()
    before, files = most, server.files()
    honest = Honest(server, stop)
    honest.start()
    try:
        while len(slow) < wanted:
            slow += [Slow(server, len(slow)) for _ in range(wanted // 20)]
            for client in slow:
                client.drip()
            most = max(most, server.resident())
            time.sleep(0.25)
        served = honest.served
        until(lambda: all(client.is_cut_off() for client in slow), 120)
        until(lambda: honest.served > served or honest.failed, 120)
    finally:
        stop.set()
        honest.join()
    until(lambda: server.files() <= files + 2)  # ours are still open: it was the server who let go
    for client in slow:
        client.link.close()
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert honest.failed is None
    assert served >= 1
    assert server.stop(signal.SIGTERM) == 0
    assert most - before < GROWTH, f"{most - before:.0f} MB more"
    figure(f"an honest client was served {honest.served} times, in {honest.longest:.1f} s at the most")
    figure(f"{most - before:+.0f} MB")
