"""The clients of `service.py`: they replay prepared uploads over kept connections, and say what they saw as JSON.

Run by `service.py`, in a process of its own. A body is encoded once. For every upload its number is written anew into
the padded header, and one parameter is changed with it: a store writes an array it has already seen only once.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import struct
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from service_server import ROOM, model_of, uploaded

from artesian.core import Task
from artesian.storage.codec import decode, encode

SLACK = 1 << 16  # bytes of an answer besides its tensor
NUMBER = b'\\"number\\":%d,'  # JSON inside JSON


@dataclass(frozen=True)
class Order:
    """What to measure."""

    size: str
    kind: str  # "service" or "echo"
    port: int
    token: str  # of enrolment; empty where nobody asks
    clients: int
    seconds: float  # of measuring, at least
    least: int  # refreshes of every client, at least
    most: float  # seconds, in any case


class Body:
    """An encoded upload whose number can be changed in place."""

    def __init__(self, size: str, index: int) -> None:
        message = encode("upload", uploaded(size, index, 1))
        (length,) = struct.unpack("<Q", message[:8])
        before, found, after = message[8 : 8 + length].rstrip().partition(NUMBER % 1)
        assert found, "an upload's header holds its number"
        self.index, self.before, self.after = index, before, after
        self.width = (length + 16) // 8 * 8
        self.data = bytearray(struct.pack("<Q", self.width) + bytes(self.width) + message[8 + length :])

    def turn(self, number: int) -> bytearray:
        """The body with this number, and with a first parameter that no other upload has."""
        assert number < 1 << 16
        self.data[8 : 8 + self.width] = (self.before + NUMBER % number + self.after).ljust(self.width)
        struct.pack_into("<I", self.data, 8 + self.width, 0x3C000000 + (self.index << 16) + number)  # about 0.01
        return self.data


class Client:
    """One client with a connection of its own."""

    def __init__(self, order: Order, index: int) -> None:
        self.order, self.name, self.number = order, f"c{index}", 1
        self.body = Body(order.size, index)
        self.tensor = model_of(order.size).layout.size * 4
        self.answer = bytearray(len(self.body.data) + SLACK)
        self.connection = http.client.HTTPConnection("127.0.0.1", order.port, timeout=120)
        self.seen: list[tuple[float, float]] = []  # when an answer was there, and how long it took
        self.length, self.tag, self.failure = 0, "", ""
        self.secret = f"{self.name}-{'s' * 32}"

    def join(self) -> None:
        """Become a member; the first task has number 1."""
        told = {"samples": 100} | ({"secret": self.secret} if self.order.token else {})
        self._exchange(f"/v1/clients/{self.name}", json.dumps(told).encode(), self.order.token)
        self._check_task(1)

    def replay(self, stop: threading.Event) -> None:
        """Upload, wait for the answer, and upload again."""
        try:
            while not stop.is_set():
                self._refresh()
            self._check()
        except Exception as error:
            self.failure = f"{self.name}: {type(error).__name__}: {error}"

    def _refresh(self) -> None:
        body = self.body.turn(self.number)
        began = time.perf_counter()
        self._exchange(f"/v1/clients/{self.name}/uploads/{self.number}", body, self.secret)
        ended = time.perf_counter()
        self.seen.append((ended, ended - began))
        self.number += 1

    def _exchange(self, path: str, body: bytes | bytearray, credential: str) -> None:
        self.connection.request("PUT", path, body, {"authorization": f"Bearer {credential}"})
        answer = self.connection.getresponse()
        self.length, self.tag = int(answer.headers["content-length"]), answer.headers.get("etag", "").strip('"')
        if answer.status != 200:
            raise ValueError(f"status {answer.status}: {answer.read(1000).decode(errors='replace')}")
        exact = self.order.kind == "echo"
        if not (len(body) if exact else self.tensor) <= self.length <= (len(body) if exact else len(self.answer)):
            raise ValueError(f"an answer of {self.length} bytes")
        view = memoryview(self.answer)[: self.length]
        while view:
            if not (count := answer.readinto(view)):
                raise ValueError("an answer that ends early")
            view = view[count:]
        answer.close()

    def _check(self) -> None:
        """The last answer is whole, and what was asked for."""
        if self.order.kind == "echo":
            assert self.answer[: self.length] == self.body.data, "an echo gives back what it got"
        else:
            self._check_task(self.number)

    def _check_task(self, number: int) -> None:
        data = bytes(self.answer[: self.length])
        assert hashlib.sha256(data).hexdigest() == self.tag, "an answer matches its tag"
        assert decode("task", data, Task).number == number, "an answer is the next task"


def measure(order: Order) -> dict[str, Any]:
    """All clients at once: warmed up first, then watched for a while."""
    clients = [Client(order, i) for i in range(order.clients)]
    if order.kind == "service":
        for client in clients:
            client.join()
    stop = threading.Event()
    threads = [threading.Thread(target=client.replay, args=(stop,)) for client in clients]
    for thread in threads:
        thread.start()
    try:
        _until(lambda passed: passed >= order.seconds / 5 and _least(clients, 1, [0] * len(clients)), clients, order)
        skip = [len(client.seen) for client in clients]
        _until(lambda passed: passed >= order.seconds and _least(clients, order.least, skip), clients, order)
        counts = [len(client.seen) for client in clients]
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    if failures := [client.failure for client in clients if client.failure]:
        raise SystemExit(f"{len(failures)} clients failed, the first {failures[0]}")
    return _summary(clients, skip, counts)


def _until(holds: Callable[[float], bool], clients: list[Client], order: Order) -> None:
    began = time.perf_counter()
    while (passed := time.perf_counter() - began) < order.most and not holds(passed):
        if any(client.failure for client in clients):
            return
        time.sleep(0.02)


def _least(clients: list[Client], least: int, skip: list[int]) -> bool:
    return all(len(client.seen) - before >= least for client, before in zip(clients, skip, strict=True))


def _summary(clients: list[Client], skip: list[int], counts: list[int]) -> dict[str, Any]:
    """Latencies of the time watched; each client's rate runs from answer to answer, and they add up."""
    latencies, rate = [], 0.0
    for client, first, last in zip(clients, skip, counts, strict=True):
        latencies += [latency for _, latency in client.seen[first:last]]
        if last > first > 0:
            rate += (last - first) / (client.seen[last - 1][0] - client.seen[first - 1][0])
    if not latencies:
        raise SystemExit("no refresh was finished in the time given")
    p50, p99 = np.percentile(latencies, (50, 99)) * 1000
    return {"rate": rate, "p50": float(p50), "p99": float(p99), "count": len(latencies)}


if __name__ == "__main__":
    order = Order(**json.loads(sys.argv[1]))
    assert order.clients * model_of(order.size).layout.size * 8 < ROOM, "bodies and answers fit into the server's room"
    print(json.dumps(measure(order)))
