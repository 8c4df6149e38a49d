"""Where trainings run. A training is a pure function of its job, so any executor may compute it in any order."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from artesian.core import ClientId, Mixture, Model, Notebook, Task
from artesian.errors import MissingExtra, WorkerLost
from artesian.params import Params
from artesian.recipes import Fit, recipe
from artesian.simulator.world import World

Key = tuple[ClientId, int]  # client and task number: what is in flight, once at a time
SURROUNDINGS = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30),  # glibc keeps the memory of a batch for the next one
    "MALLOC_TRIM_THRESHOLD_": str(4 << 30),
    "MALLOC_TOP_PAD_": str(1 << 28),
}  # of a worker; they count only when a process starts


@dataclass(frozen=True)
class Job:
    """One training: all it depends on besides the place it runs at."""

    client: ClientId
    cycle: int
    task: Task
    notebook: Notebook

    @property
    def key(self) -> Key:
        return self.client, self.task.number


@dataclass(frozen=True)
class Done:
    """What a training gave."""

    fit: Fit
    before: float | None  # score of what the client trained, on its own test data; None: it only estimated
    mixture: Mixture  # the true one of its data


@dataclass(frozen=True)
class Place:
    """What every worker knows: where data come from, and what learns from them."""

    world: World
    model: Model
    seed: int

    def perform(self, job: Job) -> Done:
        """Follow the task's recipe on the client's data."""
        visit = self.world.visit(self.seed, job.client, job.cycle)
        learner = self.model.learner(visit.train.x, visit.train.y)
        fit = recipe(job.task.recipe).fit(self.model.layout, job.client, job.task, learner, job.notebook)
        if not fit.trained:
            return Done(fit, None, visit.mixture)
        test = self.model.learner(visit.test.x, visit.test.y)
        return Done(fit, test.score(fit.trained), visit.mixture)


class Executor(Protocol):
    """Begins trainings ahead of time, and hands over what they gave."""

    ahead: int  # how many trainings are worth beginning early

    def begin(self, job: Job) -> None: ...
    def result(self, job: Job) -> Done: ...
    def forget(self, job: Job) -> None: ...
    def close(self) -> None: ...


class Inline:
    """In this process, when the result is wanted."""

    ahead = 0

    def __init__(self, place: Place) -> None:
        self.place = place

    def begin(self, job: Job) -> None:
        pass

    def result(self, job: Job) -> Done:
        return self.place.perform(job)

    def forget(self, job: Job) -> None:
        pass

    def close(self) -> None:
        pass


class Processes:
    """In warm worker processes, one thread each."""

    def __init__(self, place: Place, workers: int) -> None:
        self.ahead = 2 * workers
        self._begun: dict[Key, Future[Done]] = {}
        with _surroundings():
            self._pool = ProcessPoolExecutor(
                workers, multiprocessing.get_context("spawn"), initializer=_settle_in, initargs=(place,)
            )
            for _ in range(workers):
                self._pool.submit(os.getpid)  # spawned now, while the environment is theirs

    def begin(self, job: Job) -> None:
        if job.key not in self._begun:
            self._begun[job.key] = self._submit(job)

    def result(self, job: Job) -> Done:
        self.begin(job)
        try:
            return _reunited(job, self._begun.pop(job.key).result())
        except BrokenProcessPool:
            raise _lost() from None

    def forget(self, job: Job) -> None:
        begun = self._begun.pop(job.key, None)
        if begun is not None:
            begun.cancel()

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _submit(self, job: Job) -> Future[Done]:
        try:
            return self._pool.submit(_perform, job)
        except BrokenProcessPool:
            raise _lost() from None


def executor(place: Place, workers: int) -> Executor:
    """Inline for 0 workers, processes otherwise."""
    return Processes(place, workers) if workers else Inline(place)


@contextmanager
def single_threaded(model: Model | None = None) -> Iterator[None]:
    """Linear algebra on one thread in this process, and the model's own too: the same bits as in a worker."""
    with threads_limited(), getattr(model, "one_thread", nullcontext)():
        yield


def threads_limited() -> Any:
    """Linear algebra on one thread from here on, until the result is left as a context."""
    try:
        from threadpoolctl import threadpool_limits
    except ModuleNotFoundError:
        raise MissingExtra("threadpoolctl", "sim") from None
    return threadpool_limits(1)


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


def _reunited(job: Job, done: Done) -> Done:
    """What the notebook got back as it was sent is the array we have: clients who keep the same share one copy."""
    before, book = job.notebook, done.fit.notebook
    kept = [array for array in (before.own, before.origin) if array is not None]
    known = [*job.task.models.values(), *before.directions.values(), *kept]

    def ours(array: Params) -> Params:
        return next((one for one in known if _same(one, array)), array)

    ways = {k: ours(way) for k, way in book.directions.items()}
    own = None if book.own is None else ours(book.own)
    origin = None if book.origin is None else ours(book.origin)
    shared = replace(book, own=own, origin=origin, directions=ways)
    return replace(done, fit=replace(done.fit, notebook=shared))


def _same(one: Params, other: Params) -> bool:
    """The same bits: 0 and -0 differ, and a NaN is like itself."""
    return one.shape == other.shape and np.array_equal(one.view(np.uint32), other.view(np.uint32))


def _lost() -> WorkerLost:
    return WorkerLost(
        "workers live as long as the run", "one that died", "check memory, use fewer --workers, then --resume"
    )


_place: Place | None = None  # of this worker process
_limits = ExitStack()  # held for its life


def _settle_in(place: Place) -> None:
    global _place
    _place = place
    _limits.enter_context(single_threaded(place.model))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the main process's business


def _perform(job: Job) -> Done:
    assert _place is not None
    return _place.perform(job)
