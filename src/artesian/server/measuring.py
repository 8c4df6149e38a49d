"""Measuring uploads elsewhere: by workers that built the same federation, each one upload at a time.

Measuring is a pure function of an upload and its receipt, so doing it twice finds the same bits: a worker that is lost
is replaced, and what it was at is measured again. Only text and flat vectors travel; nothing is unpickled.
"""

from __future__ import annotations

import json
import logging
import socket
import struct
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from math import prod
from queue import SimpleQueue
from typing import Any, Protocol

import numpy as np

from artesian import errors
from artesian.core import Evidence, Receipt, Tree, Upload, derive
from artesian.engine.coordinator import Look
from artesian.errors import ArtesianError, SettingError, WorkerLost
from artesian.params import seal
from artesian.server.federation import Federation
from artesian.storage.codec import contiguous, digest, fingerprint, from_tree, gather, scatter, to_tree

LOG = logging.getLogger("artesian.measuring")
TRIES = 3  # how many workers an upload may lose before it is refused
END_WITHIN = 5.0  # seconds a worker has to end by itself
Packed = tuple[str, list[np.ndarray]]


class Lost(Exception):
    """A worker is gone, or of no use."""


class Worker(Protocol):
    """Somebody who measures one upload at a time."""

    def greet(self) -> str:
        """The proof that it serves the same federation, once it is ready; Lost where it does not come up."""
        ...

    def ask(self, question: Packed) -> Tree:
        """The answer to a packed question; Lost where none comes."""
        ...

    def close(self) -> None: ...


class Crew:
    """So many workers; whoever measures takes an idle one, and brings it back or a fresh one in its place."""

    def __init__(self, hire: Callable[[], Worker], count: int, proof: str) -> None:
        self._hire, self._proof, self._closed = hire, proof, False
        self._workers = [hire() for _ in range(count)]
        self._idle: SimpleQueue[Worker] = SimpleQueue()
        self._ready: set[Worker] = set()

    def wait(self) -> None:
        """Until every worker is ready; one that is not, or serves something else, is the operator's business."""
        for worker in self._workers:
            try:
                proof = worker.greet()
            except Lost as error:
                raise WorkerLost("a measurer comes up", str(error), "read what it said before") from None
            if proof != self._proof:
                raise SettingError(
                    "measurers build the federation that is served, and find the same bits",
                    "other settings, proxies or losses in one",
                    "give every random draw a seed, and machines the same files, packages and kind of processor",
                )
            self._ready.add(worker)
            self._idle.put(worker)

    def look(self, upload: Upload, receipt: Receipt) -> Evidence:
        """What measuring finds, by another worker where one is lost over it."""
        question = packed({"upload": upload, "receipt": receipt})
        for _ in range(TRIES):
            worker = self._idle.get()
            try:
                return found(self._checked(worker).ask(question))
            except Lost as error:
                worker = self._replaced(worker, f"{upload.client}, upload {upload.number}: {error}")
            finally:
                self._idle.put(worker)
        LOG.error("gave up measuring", extra={"fields": {"client": upload.client, "number": upload.number}})
        raise WorkerLost("an upload is measured", f"{TRIES} measurers lost over it", "come back later")

    def close(self) -> None:
        """End the workers; what they were at fails."""
        self._closed = True
        for worker in list(self._workers):
            worker.close()

    def _checked(self, worker: Worker) -> Worker:
        """A worker that proved itself; a fresh one does so when it is first needed."""
        if worker not in self._ready:
            if worker.greet() != self._proof:
                raise Lost("one that builds another federation than the server did at its start")
            self._ready.add(worker)
        return worker

    def _replaced(self, worker: Worker, why: str) -> Worker:
        if self._closed:
            raise WorkerLost("an upload is measured", "a server that is stopping", "come back later")
        LOG.warning("a measurer was lost: %s", why)
        worker.close()
        try:
            fresh = self._hire()
        except OSError as error:  # it stays lost: whoever takes it next tries again
            LOG.warning("no other measurer: %s", error)
            return worker
        self._workers[self._workers.index(worker)] = fresh
        self._ready.discard(worker)
        if self._closed:
            fresh.close()
        return fresh


class Process:
    """A worker process of this machine. Its standard input is our socket: when that ends, so does the worker."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._channel, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                command, stdin=theirs.fileno(), stdout=2, env=dict(environment), start_new_session=True
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def greet(self) -> str:
        return str(self._receive()["proof"])

    def ask(self, question: Packed) -> Tree:
        try:
            send(self._channel, question)
        except OSError:
            raise self._lost() from None
        return self._receive()

    def close(self) -> None:
        with suppress(OSError):
            self._channel.shutdown(socket.SHUT_RDWR)  # wakes whoever waits here, and tells the worker
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(END_WITHIN)
        self._process.kill()
        self._process.wait()
        self._channel.close()

    def _receive(self) -> Tree:
        try:
            return unpacked(receive(self._channel))
        except (OSError, EOFError):
            raise self._lost() from None

    def _lost(self) -> Lost:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(END_WITHIN)
        return Lost(f"process {self.pid} ended with {self._process.poll()}")


# what a worker does


def proof(federation: Federation) -> str:
    """What two processes agree on that measure alike: settings, and the losses of one model on every proxy set."""
    probe = federation.model.start(derive(federation.seed, "probe"))
    losses = {k: fingerprint(np.asarray(proxy.losses(probe))) for k, proxy in federation.proxies.items()}
    return digest({"identity": federation.identity, "settings": to_tree(federation.settings), "losses": losses})


def answered(look: Look, question: Packed) -> Tree:
    """The answer to a question: evidence, or what went wrong."""
    try:
        tree = unpacked(question)
        upload, receipt = from_tree(Upload, tree["upload"]), from_tree(Receipt, tree["receipt"])
        return {"evidence": dict(look(upload, receipt))}
    except ArtesianError as error:
        return {"error": type(error).__name__, "words": [error.problem, error.remedy]}
    except Exception as error:
        LOG.exception("measuring failed")
        return {"error": "", "words": [f"{type(error).__name__}: {error}"[:300]]}


def found(answer: Tree) -> Evidence:
    """The evidence of an answer; what went wrong there goes wrong here in the same way."""
    if "evidence" in answer:
        evidence: Evidence = answer["evidence"]
        return evidence
    kind = getattr(errors, answer["error"], None) if answer["error"] else None
    if isinstance(kind, type) and issubclass(kind, ArtesianError) and kind.__init__ is ArtesianError.__init__:
        raise kind(*answer["words"])
    raise RuntimeError(f"measuring failed in a worker: {answer['words'][0]}")


# how it travels


def packed(value: Any) -> Packed:
    """A value as one JSON text and its arrays."""
    arrays: list[np.ndarray] = []

    def put(path: str, array: np.ndarray) -> Tree:
        arrays.append(contiguous(array))
        return {"$array": len(arrays) - 1}

    body = scatter(to_tree(value), put)
    return json.dumps({"body": body, "arrays": [(a.dtype.str, a.shape) for a in arrays]}), arrays


def unpacked(given: Packed) -> Tree:
    """The tree of a packed value."""
    head, arrays = given
    return gather(json.loads(head)["body"], "$array", lambda at: arrays[int(at)])


def send(channel: socket.socket, given: Packed) -> None:
    """Write a packed value; the arrays straight from where they are."""
    text = given[0].encode()
    channel.sendall(struct.pack("<Q", len(text)) + text)
    for array in given[1]:
        if array.nbytes:
            channel.sendall(array.reshape(-1).view(np.uint8).data)


def receive(channel: socket.socket) -> Packed:
    """Read a packed value; EOFError where the other side is gone."""
    (length,) = struct.unpack("<Q", _exactly(channel, 8).data)
    head = _exactly(channel, length).tobytes().decode()
    arrays = []
    for dtype, shape in json.loads(head)["arrays"]:
        kind = np.dtype(dtype)
        arrays.append(seal(_exactly(channel, prod(shape) * kind.itemsize).view(kind).reshape(shape)))
    return head, arrays


def _exactly(channel: socket.socket, count: int) -> np.ndarray:
    """The next so many bytes."""
    data = np.empty(count, np.uint8)
    left = data.data
    while left:
        if not (got := channel.recv_into(left)):
            raise EOFError
        left = left[got:]
    return data
