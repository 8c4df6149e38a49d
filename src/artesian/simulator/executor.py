"""Where a run's trainings and scores are worked out, and with what; whatever is chosen, the bits are the same."""

from __future__ import annotations

import sys
from concurrent.futures import Future
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from artesian.errors import SettingError, WorkerLost
from artesian.execution.pool import EXECUTORS, WorkerPool, open_pool, unknown_executor
from artesian.params import Params
from artesian.simulator.jobs import (
    Answer,
    Done,
    Job,
    Judged,
    Judging,
    Key,
    Look,
    Observed,
    Place,
    Score,
    Work,
    inline_setup,
    worker_setup,
)
from artesian.simulator.profiling import Parcel, Stopwatch
from artesian.simulator.spill import Spill
from artesian.storage.nested import swapped

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Promise(Protocol[T_co]):
    """A result that is there, or will be."""

    @property
    def ready(self) -> bool: ...
    @property
    def value(self) -> T_co: ...


class Executor:
    """Begins trainings ahead of time in a pool, and hands over their results; scores models, now or later."""

    def __init__(self, pool: WorkerPool, spent: Stopwatch, theirs: dict[str, float]) -> None:
        """`spent` counts the time of this process, `theirs` that of the workers."""
        self.pool, self.spent, self.theirs = pool, spent, theirs
        self.ahead = 2 * pool.workers  # how many trainings are worth beginning early
        self._begun: dict[Key, Awaited[Done]] = {}
        self._peak = 0.0  # of the largest worker

    def has_begun(self, key: Key) -> bool:
        return key in self._begun

    def begin(self, job: Job) -> None:
        if job.key not in self._begun:
            self._begun[job.key] = self._send(job)

    def result(self, job: Job) -> Done:
        self.begin(job)
        done = self._begun.pop(job.key).value
        return _reunited(job, done) if self.pool.workers else done

    def forget(self, key: Key) -> None:
        """Nobody wants this training any more; one that has begun ends unheard."""
        begun = self._begun.pop(key, None)
        if begun is not None:
            begun.future.cancel()

    def score(self, score: Score) -> Promise[float]:
        return self._send(score)

    def judge(self, refresh: Judging) -> Promise[Judged]:
        return self._send(refresh)

    def observe(self, look: Look) -> Promise[Observed]:
        return self._send(look)

    def close(self) -> None:
        self.pool.close()

    def peak_mb(self) -> float:
        """The peak memory of all workers together; what they share with this process is counted there."""
        return self.pool.workers * self._peak

    def _send(self, work: Work) -> Awaited[Any]:
        return Awaited(self.pool.submit(Parcel(work)), self)

    def receive(self, future: Future[Parcel[Answer[T]]]) -> T:
        """Wait for an answer; packing and unpacking meanwhile count as moving."""
        try:
            with nullcontext() if future.done() else self.spent.part("waiting"):
                parcel = future.result()
        except WorkerLost as lost:
            raise WorkerLost(lost.problem, "Check memory, use fewer --workers, then go on with --resume") from None
        answer = parcel.content
        self.spent.shift("waiting", "moving", answer.packing + parcel.unpacking)
        self._count(answer)
        self.theirs["moving"] += parcel.packing
        return answer.found

    def _count(self, answer: Answer[Any]) -> None:
        self._peak = max(self._peak, answer.peak)
        for part, seconds in answer.spent.items():
            self.theirs[part] += seconds


@dataclass(frozen=True)
class Awaited(Generic[T]):
    """What the pool was asked for."""

    future: Future[Parcel[Answer[T]]]
    executor: Executor

    @property
    def ready(self) -> bool:
        return self.future.done()

    @cached_property
    def value(self) -> T:
        return self.executor.receive(self.future)


@dataclass(frozen=True)
class Means:
    """With what a run is worked out."""

    workers: int = 0
    executor: str | None = None  # None: processes, or inline where there are no workers
    ray_address: str | None = None  # of a cluster; None: as RAY_ADDRESS says, or one of the run's own
    memory_limit: float = 1024  # MB that vectors kept for clients may take in this process; more go into a file

    def __post_init__(self) -> None:
        if self.name not in EXECUTORS:
            raise unknown_executor(self.name)
        if self.name == "inline" and self.workers:
            raise SettingError("The executor inline has no workers", "Leave out --workers, or --executor inline")
        if self.name != "inline" and not self.workers:
            raise SettingError(f"The executor {self.name} needs at least one worker", "Give --workers N")
        if self.ray_address is not None and self.name != "ray":
            raise SettingError(f"The executor {self.name} has no Ray address", "Give --executor ray too")
        if not self.memory_limit >= 0:
            raise SettingError(f"memory_limit cannot be {self.memory_limit!r}", "Give a number of MB, 0 or more")

    @property
    def name(self) -> str:
        """The executor's name."""
        return self.executor or ("processes" if self.workers else "inline")

    def spill(self, folder: Path | None) -> Spill:
        """Where the run keeps what clients have."""
        return Spill(self.memory_limit, folder)

    def executor_for(self, place: Place, spent: Stopwatch, theirs: dict[str, float]) -> Executor:
        """The executor of a run."""
        setup = inline_setup(place, spent) if self.name == "inline" else worker_setup(place)
        return Executor(open_pool(self.name, setup, self.workers, self.ray_address), spent, theirs)


def travels(value: Any) -> bool:
    """Can a worker find the value's class by its name?"""
    kind = type(value)
    return getattr(sys.modules.get(kind.__module__), kind.__qualname__, None) is kind


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
