"""Where trainings and scores are worked out: both are pure functions, so any executor may do it in any order."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from artesian.errors import SettingError, WorkerLost, nearest
from artesian.execution.shared_memory import made
from artesian.params import Params
from artesian.simulator.jobs import Done, Job, Key, Look, Place, Work
from artesian.simulator.parcel import Parcel
from artesian.simulator.spill import Spill
from artesian.simulator.stopwatch import Stopwatch
from artesian.simulator.worker import ENDINGS, Answer, do, settle_in_process
from artesian.storage.nested import swapped

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

EXECUTORS = ("inline", "processes", "ray")
SURROUNDINGS = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
}  # of a worker; they count only when a process starts


class Promise(Protocol[T_co]):
    """A result that is there, or will be."""

    @property
    def ready(self) -> bool: ...
    @property
    def value(self) -> T_co: ...


class Executor(Protocol):
    """Begins trainings ahead of time, and hands over what they gave; scores models, now or later."""

    ahead: int  # how many trainings are worth beginning early

    def has_begun(self, key: Key) -> bool: ...
    def begin(self, job: Job) -> None: ...
    def result(self, job: Job) -> Done: ...
    def forget(self, key: Key) -> None: ...
    def score(self, look: Look) -> Promise[float]: ...
    def close(self) -> None: ...
    def peak_mb(self) -> float:
        """Peak memory of all workers together; what they share with this process is counted there."""
        ...


@dataclass(frozen=True)
class Kept(Generic[T]):
    """A promise kept at once."""

    value: T
    ready: bool = True


class Inline:
    """In this process, when the result is wanted."""

    ahead = 0

    def __init__(self, place: Place, spent: Stopwatch) -> None:
        self.place, self.spent = place, spent

    def has_begun(self, key: Key) -> bool:
        return False

    def begin(self, job: Job) -> None:
        pass

    def result(self, job: Job) -> Done:
        return self.place.perform(job, self.spent)

    def forget(self, key: Key) -> None:
        pass

    def score(self, look: Look) -> Promise[float]:
        return Kept(self.place.score(look, self.spent))

    def close(self) -> None:
        pass

    def peak_mb(self) -> float:
        return 0.0


class Errand(Promise[T_co], Protocol):
    """What a worker was asked for, and may no longer be wanted."""

    def cancel(self) -> object: ...


class Crew(ABC):
    """Workers elsewhere: trainings are begun ahead, and what they gave is fetched when it is wanted."""

    def __init__(self, workers: int, spent: Stopwatch, theirs: dict[str, float]) -> None:
        """`spent` counts the time of this process, `theirs` that of the workers."""
        self.workers, self.ahead, self.spent, self.theirs = workers, 2 * workers, spent, theirs
        self._begun: dict[Key, Errand[Done]] = {}
        self._peak = 0.0  # of the largest worker

    def has_begun(self, key: Key) -> bool:
        return key in self._begun

    def begin(self, job: Job) -> None:
        if job.key not in self._begun:
            self._begun[job.key] = self._send(job)

    def result(self, job: Job) -> Done:
        self.begin(job)
        return _reunited(job, self._begun.pop(job.key).value)

    def forget(self, key: Key) -> None:
        begun = self._begun.pop(key, None)
        if begun is not None:
            begun.cancel()

    def score(self, look: Look) -> Promise[float]:
        return self._send(look)

    def peak_mb(self) -> float:
        return self.workers * self._peak

    @abstractmethod
    def _send(self, work: Work) -> Errand[Any]:
        """Ask a worker for something."""

    @abstractmethod
    def close(self) -> None:
        """Dismiss the workers."""

    def _count(self, parcel: Parcel[Answer[Any]]) -> None:
        """Where the worker's time went, and how large it is."""
        self._peak = max(self._peak, parcel.content.peak)
        for part, seconds in parcel.content.spent.items():
            self.theirs[part] += seconds
        self.theirs["moving"] += parcel.packing


class Processes(Crew):
    """In warm worker processes, one thread each."""

    def __init__(self, place: Place, workers: int, spent: Stopwatch, theirs: dict[str, float]) -> None:
        super().__init__(workers, spent, theirs)
        baggage = place.shared(), made()
        with _surroundings(), _deaf():
            self._pool = ProcessPoolExecutor(
                workers, multiprocessing.get_context("spawn"), initializer=settle_in_process, initargs=baggage
            )
            for _ in range(workers):
                self._pool.submit(os.getpid)  # spawned now, while environment and signals are theirs

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _send(self, work: Work) -> Awaited[Any]:
        try:
            return Awaited(self._pool.submit(do, Parcel(work)), self)
        except BrokenProcessPool:
            raise _lost() from None

    def receive(self, future: Future[Parcel[Answer[T]]]) -> T:
        """Wait for an answer; threads beside this one pack and unpack meanwhile."""
        try:
            with self.spent.part("waiting"):
                parcel = future.result()
        except BrokenProcessPool:
            raise _lost() from None
        answer = parcel.content
        self.spent.shift("waiting", "moving", answer.packing + parcel.unpacking)
        self._count(parcel)
        return answer.found


@dataclass(frozen=True)
class Awaited(Generic[T]):
    """What a worker promised."""

    future: Future[Parcel[Answer[T]]]
    crew: Processes

    @property
    def ready(self) -> bool:
        return self.future.done()

    @cached_property
    def value(self) -> T:
        return self.crew.receive(self.future)

    def cancel(self) -> object:
        return self.future.cancel()


@dataclass(frozen=True)
class Means:
    """With what a run is worked out; whatever is chosen, it finds the same bits."""

    workers: int = 0
    executor: str | None = None  # None: processes, or inline where there are no workers
    ray_address: str | None = None  # of a cluster; None: as RAY_ADDRESS says, or one of the run's own
    memory_limit: float = 1024  # MB that vectors kept for clients may take in this process; more go into a file

    def __post_init__(self) -> None:
        if self.name not in EXECUTORS:
            raise SettingError("an executor is one of ours", repr(self.executor), nearest(str(self.name), EXECUTORS))
        if self.name == "inline" and self.workers:
            raise SettingError("inline has no workers", str(self.workers), "leave one of the two out")
        if self.name != "inline" and not self.workers:
            raise SettingError(f"{self.name} has a worker at least", "0", "give --workers N")
        if self.ray_address is not None and self.name != "ray":
            raise SettingError("a Ray address is for the executor ray", self.name, "give --executor ray too")
        if not self.memory_limit >= 0:
            raise SettingError("memory_limit is a number of MB from 0 on", repr(self.memory_limit), "mend it")

    @property
    def name(self) -> str:
        """The executor's name."""
        return self.executor or ("processes" if self.workers else "inline")

    def spill(self, folder: Path | None) -> Spill:
        """Where the run keeps what clients have."""
        return Spill(self.memory_limit, folder)

    def executor_for(self, place: Place, spent: Stopwatch, theirs: dict[str, float]) -> Executor:
        """The executor of a run."""
        if self.name == "inline":
            return Inline(place, spent)
        if self.name == "processes":
            return Processes(place, self.workers, spent, theirs)
        from artesian.simulator.ray import Actors

        return Actors(place, self.workers, spent, theirs, self.ray_address)


def travels(value: Any) -> bool:
    """Does a worker find its class by name?"""
    kind = type(value)
    return getattr(sys.modules.get(kind.__module__), kind.__qualname__, None) is kind


@contextmanager
def _surroundings() -> Iterator[None]:
    before = {name: os.environ.get(name) for name in SURROUNDINGS}
    os.environ.update(SURROUNDINGS)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextmanager
def _deaf() -> Iterator[None]:
    """Ctrl-C and SIGTERM wait here, and never reach a process that is started meanwhile."""
    resource_tracker.ensure_running()  # whose own start would let them in again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDINGS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _reunited(job: Job, done: Done) -> Done:
    """What the notebook got back as it was sent is the array we have: clients who keep the same share one copy."""
    known: list[Params] = list(job.task.models.values())
    swapped(job.notebook, np.ndarray, known.append)

    def ours(array: Params) -> Params:
        return next((one for one in known if _same(one, array)), array)

    return replace(done, fit=replace(done.fit, notebook=swapped(done.fit.notebook, np.ndarray, ours)))


def _same(one: Params, other: Params) -> bool:
    """The same bits: 0 and -0 differ, and a NaN is like itself."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return np.array_equal(one.reshape(-1).view(np.uint8), other.reshape(-1).view(np.uint8))


def _lost() -> WorkerLost:
    return WorkerLost(
        "workers live as long as the run", "one that died", "check memory, use fewer --workers, then --resume"
    )
