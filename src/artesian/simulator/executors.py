"""Where trainings and scores are worked out: both are pure functions, so any executor may do it in any order."""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from artesian.core import (
    Algorithm,
    ClientId,
    ClusterId,
    Ensemble,
    Evidence,
    Given,
    Learner,
    Mixture,
    Model,
    Notebook,
    Receipt,
    Task,
    Upload,
)
from artesian.errors import MissingExtra, SettingError, WorkerLost, nearest
from artesian.params import Params
from artesian.recipes import Fit, recipe
from artesian.simulator.parcel import Parcel
from artesian.simulator.spill import Spill
from artesian.simulator.start import measuring_learners
from artesian.simulator.stopwatch import Seconds, Stopwatch
from artesian.simulator.world import World

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

EXECUTORS = ("inline", "processes", "ray")
Key = tuple[ClientId, int]  # client and task number: what is in flight, once at a time
SURROUNDINGS = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
}  # of a worker; they count only when a process starts


@dataclass(frozen=True)
class Job:
    """One training: all it depends on besides the place it runs at."""

    client: ClientId
    cycle: int
    task: Task
    notebook: Notebook
    receipt: Receipt | None = None  # with it, the upload is measured where it was made

    @property
    def key(self) -> Key:
        return self.client, self.task.number


@dataclass(frozen=True)
class Done:
    """What a training gave."""

    fit: Fit
    before: float | None  # score of what the client trained, on its own test data; None: it only estimated
    mixture: Mixture  # the true one of its data
    evidence: Evidence | None = None  # of the upload; None: not measured yet


@dataclass(frozen=True)
class Look:
    """One score: models, and whose test data they meet."""

    ensemble: Ensemble
    cluster: ClusterId = ""
    client: ClientId = ""  # a client's data of one cycle, instead of a cluster's
    cycle: int = 0


Work = Job | Look


@dataclass(frozen=True)
class Place:
    """What every worker knows: where data come from, what learns from them, and how uploads are measured."""

    world: World
    model: Model
    seed: int
    algorithm: Algorithm | None = None
    proxy_sample: int | None = None

    @cached_property
    def proxies(self) -> dict[ClusterId, Learner]:
        """What the server measures on."""
        return measuring_learners(self.model, self.world.proxies(self.seed), self.proxy_sample, self.seed)

    @cached_property
    def tests(self) -> dict[ClusterId, Learner]:
        """The test data of every cluster."""
        return {k: self.model.learner(s.x, s.y) for k, s in self.world.tests(self.seed).items()}

    def perform(self, job: Job, spent: Stopwatch | None = None) -> Done:
        """Follow the task's recipe on the client's data; measure and score what came out."""
        spent = spent or Stopwatch()
        with spent.part("training"):
            visit = self.world.visit(self.seed, job.client, job.cycle)
            learner = self.model.learner(visit.train.x, visit.train.y)
            fit = recipe(job.task.recipe).fit(self.model.layout, job.client, job.task, learner, job.notebook)
        if not fit.trained:
            return Done(fit, None, visit.mixture)
        with spent.part("evaluating"):
            before = self.model.learner(visit.test.x, visit.test.y).score(fit.trained)
        with spent.part("measuring"):
            evidence = self._measured(fit.upload, job.receipt)
        return Done(fit, before, visit.mixture, evidence)

    def score(self, look: Look, spent: Stopwatch) -> float:
        """How well models do on test data."""
        with spent.part("evaluating"):
            if not look.client:
                return self.tests[look.cluster].score(look.ensemble)
            test = self.world.visit(self.seed, look.client, look.cycle).test
            return self.model.learner(test.x, test.y).score(look.ensemble)

    def _measured(self, upload: Upload, receipt: Receipt | None) -> Evidence | None:
        if self.algorithm is None or receipt is None:
            return None
        try:
            return self.algorithm.measure(upload, Given(receipt, self.proxies))
        except Exception:  # an unsound upload, perhaps: whoever admits it measures again, and says what is wrong
            return None


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
        """Peak memory of all workers together, once they have ended."""
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


@dataclass(frozen=True)
class Answer(Generic[T]):
    """What a worker sends back."""

    found: T
    spent: Seconds  # where its time went
    packing: float  # what it took to pack the question, as the parcel said
    peak: float  # its largest memory so far, in MB


class Errand(Promise[T_co], Protocol):
    """What a worker was asked for, and may no longer be wanted."""

    def cancel(self) -> object: ...


class Crew(ABC):
    """Workers elsewhere: trainings are begun ahead, and what they gave is fetched when it is wanted."""

    def __init__(self, workers: int, spent: Stopwatch, theirs: dict[str, float]) -> None:
        """`spent` counts the time of this process, `theirs` that of the workers."""
        self.workers, self.ahead, self.spent, self.theirs = workers, 2 * workers, spent, theirs
        self._begun: dict[Key, Errand[Done]] = {}

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

    @abstractmethod
    def _send(self, work: Work) -> Errand[Any]:
        """Ask a worker for something."""

    def _count(self, parcel: Parcel[Answer[Any]]) -> None:
        """Where the worker's time went."""
        for part, seconds in parcel.content.spent.items():
            self.theirs[part] += seconds
        self.theirs["moving"] += parcel.packing


class Processes(Crew):
    """In warm worker processes, one thread each."""

    def __init__(self, place: Place, workers: int, spent: Stopwatch, theirs: dict[str, float]) -> None:
        super().__init__(workers, spent, theirs)
        with _surroundings():
            self._pool = ProcessPoolExecutor(
                workers, multiprocessing.get_context("spawn"), initializer=settle_in, initargs=(replace(place),)
            )  # a copy of the place, without the data that were already read here
            for _ in range(workers):
                self._pool.submit(os.getpid)  # spawned now, while the environment is theirs

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    def peak_mb(self) -> float:
        return self.workers * peak_mb(resource.RUSAGE_CHILDREN)

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


def settle_in(place: Place) -> None:
    """Make this process a worker at that place."""
    global _place
    _place = place
    _limits.enter_context(single_threaded(place.model))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the main process's business


def do(parcel: Parcel[Work]) -> Parcel[Answer[Done | float]]:
    """What a worker does with what it is sent."""
    assert _place is not None
    spent, work = Stopwatch(), parcel.content
    found = _place.perform(work, spent) if isinstance(work, Job) else _place.score(work, spent)
    seconds = spent.seconds
    seconds["moving"] += parcel.unpacking
    return Parcel(Answer(found, seconds, parcel.packing, peak_mb(resource.RUSAGE_SELF)))


def peak_mb(who: int) -> float:
    """Peak memory of this process, or of the largest of its children that have ended."""
    unit = 1024 * 1024 if sys.platform == "darwin" else 1024  # macOS counts bytes
    return resource.getrusage(who).ru_maxrss / unit
