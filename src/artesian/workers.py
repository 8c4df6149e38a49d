"""Who measures uploads for a server: processes of its machine, or Ray actors, each with the federation built once.

A worker is told by name what the server serves, and builds it itself. `python -m artesian.workers` is such a process:
its standard input is a socket of the server's, and when that ends, the worker ends, whatever it is at.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from artesian.core import Given, Tree
from artesian.engine.coordinator import Look
from artesian.errors import ArtesianError
from artesian.server.federation import Federation
from artesian.server.measuring import Crew, Lost, Packed, Process, Worker, answered, packed, proof, receive, send
from artesian.server.settings import Settings
from artesian.simulator.ray import brief, cluster, surroundings
from artesian.simulator.worker import single_threaded

START_WITHIN = 300.0  # seconds until a cluster has started an actor


@contextmanager
def measuring(federation: Federation, settings: Settings, source: str, changes: Sequence[str]) -> Iterator[Crew | None]:
    """The workers that the settings ask for, begun and not yet waited for; None: the server's own threads."""
    if settings.measure == "threads":
        yield None
        return
    with ExitStack() as end:
        words = [str(Path(source).resolve()) if Path(source).is_file() else source, *changes]
        if settings.measure == "processes":
            command = [sys.executable, "-m", "artesian.workers", *words]
            hire: Callable[[], Worker] = partial(Process, command, _environment())
        else:
            hire = end.enter_context(_actors(words, settings))
        crew = Crew(hire, settings.measurers, proof(federation))
        end.callback(crew.close)
        yield crew


def _environment() -> dict[str, str]:
    """That of a worker process: one thread, memory kept, and modules found where this process finds them."""
    return {**os.environ, **surroundings()}


# a process


def main() -> None:
    """Measure what comes, until the server is gone."""
    for number in (signal.SIGINT, signal.SIGTERM):  # when to end is the server's business
        signal.signal(number, signal.SIG_IGN)
    channel = socket.socket(fileno=os.dup(0))
    questions: SimpleQueue[Packed] = SimpleQueue()
    threading.Thread(target=_listen, args=(channel, questions), daemon=True).start()
    try:
        federation = _federation(sys.argv[1:])
    except ArtesianError as error:
        print(f"error: a measurer cannot start: {error}", file=sys.stderr, flush=True)
        os._exit(error.exit_code)
    with single_threaded(federation.model):
        look = _look(federation)
        send(channel, packed({"proof": proof(federation)}))
        while True:
            send(channel, packed(answered(look, questions.get())))


def _listen(channel: socket.socket, questions: SimpleQueue[Packed]) -> None:
    """Read questions; where there are no more, the server is gone, and so is the reason to live."""
    try:
        while True:
            questions.put(receive(channel))
    except (OSError, EOFError):
        os._exit(0)


def _federation(words: Sequence[str]) -> Federation:
    from artesian.config.federations import load

    source, *changes = words
    return load(source, changes)[0]


def _look(federation: Federation) -> Look:
    """How this federation's uploads are measured here."""
    return lambda upload, receipt: federation.algorithm.measure(upload, Given(receipt, federation.proxies))


# a Ray actor


class Measurer:
    """What lives in an actor."""

    def __init__(self, words: Sequence[str]) -> None:
        federation = _federation(words)
        self._held = ExitStack()
        self._held.enter_context(single_threaded(federation.model))
        self._look, self._proof = _look(federation), proof(federation)

    def greet(self) -> str:
        return self._proof

    def ask(self, question: Packed) -> Tree:
        return answered(self._look, question)


class Actor:
    """A worker that is a Ray actor, here or on another machine."""

    def __init__(self, ray: Any, kind: Any, words: Sequence[str]) -> None:
        self._ray, self._actor = ray, kind.remote(words)
        self._greeting = self._actor.greet.remote()

    def greet(self) -> str:
        return str(self._get(self._greeting, START_WITHIN))

    def ask(self, question: Packed) -> Tree:
        return self._get(self._actor.ask.remote(question))

    def close(self) -> None:
        with suppress(Exception):  # it is gone already, or the whole cluster
            self._ray.kill(self._actor)

    def _get(self, ref: Any, within: float | None = None) -> Any:
        try:
            return self._ray.get(ref, timeout=within)
        except self._ray.exceptions.RayError as error:
            raise Lost(f"an actor: {brief(error)}") from None


@contextmanager
def _actors(words: Sequence[str], settings: Settings) -> Iterator[Callable[[], Worker]]:
    with cluster(settings.measurers, settings.ray_address) as ray:
        kind = ray.remote(num_cpus=1, max_restarts=0, runtime_env={"env_vars": surroundings()})(Measurer)
        yield partial(Actor, ray, kind, words)


if __name__ == "__main__":
    main()
