"""The simulator's jobs: a training, or the score of a model. Both are pure functions, so any worker may do them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Generic, TypeVar

from artesian.core import (
    Algorithm,
    ClientId,
    ClusterId,
    Ensemble,
    Evidence,
    Fit,
    Learner,
    MeasureContext,
    Mixture,
    Model,
    Notebook,
    Plan,
    Receipt,
    Recipe,
    Task,
    Upload,
    derive,
)
from artesian.data.datasets import Samples
from artesian.execution.shared_memory import Made, arrays_of, laid_out, made, take_over
from artesian.execution.threads import stay_single_threaded
from artesian.execution.worker import Perform, Setup, peak_mb, shared_mb
from artesian.recipes import recipe
from artesian.recipes.kept_optimizers import follow
from artesian.recipes.tuning import tuned
from artesian.simulator.pretraining import measuring_learners
from artesian.simulator.profiling import Parcel, Seconds, Stopwatch
from artesian.simulator.worlds import World

T = TypeVar("T")
Key = tuple[ClientId, int]  # client and task number: what is in flight, once at a time
Sets = Mapping[ClusterId, Samples]


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
class Score:
    """One evaluation: models, and the test data they are scored on."""

    ensemble: Ensemble
    cluster: ClusterId = ""
    client: ClientId = ""  # a client's data of one cycle, instead of a cluster's
    cycle: int = 0
    again: bool = False  # whether other models will be scored on the same data


Work = Job | Score


@dataclass(frozen=True)
class Answer(Generic[T]):
    """What a worker sends back."""

    found: T
    spent: Seconds = field(default_factory=dict)  # where the worker's time went
    packing: float = 0.0  # seconds it took to pickle the job
    peak: float = 0.0  # the worker's peak memory in MB, without what it shares with others


class KeptTests:
    """Clients' test data that are scored again and again: those of the newest cycle, as many as have room."""

    def __init__(self, room: int = 64_000_000) -> None:
        self.room = room  # in bytes
        self._kept: dict[ClientId, tuple[int, Learner, int]] = {}  # cycle, data, bytes

    def of(self, client: ClientId, cycle: int, make: Callable[[ClientId, int], tuple[Learner, int]]) -> Learner:
        """A client's test data; whoever comes when there is no room left has them made each time."""
        kept = self._kept.get(client)
        if kept is not None and kept[0] == cycle:
            return kept[1]
        self.room += self._kept.pop(client)[2] if kept is not None else 0
        learner, size = make(client, cycle)
        if size <= self.room:
            self._kept[client] = cycle, learner, size
            self.room -= size
        return learner


@dataclass(frozen=True)
class Place:
    """What every worker knows: where data come from, what learns from them, and how uploads are measured."""

    world: World
    model: Model
    seed: int
    algorithm: Algorithm | None = None
    proxy_sample: int | None = None
    made_proxies: Sets | None = None  # by the main process, for its workers
    made_tests: Sets | None = None
    recipes: Mapping[str, Recipe] = field(default_factory=dict)  # those that are not built in
    tune: Plan | None = None  # how clients train what they drew before they use it; None: not at all

    @cached_property
    def proxies(self) -> dict[ClusterId, Learner]:
        """What the server measures on."""
        return measuring_learners(self.model, self.proxy_samples, self.proxy_sample, self.seed)

    @cached_property
    def tests(self) -> dict[ClusterId, Learner]:
        """The test data of every cluster."""
        return {k: self.model.learner(s.x, s.y) for k, s in arrays_of(self._tests).items()}

    @property
    def proxy_samples(self) -> Sets:
        """What the proxy sets hold."""
        return arrays_of(self._proxies)

    @cached_property
    def _proxies(self) -> Sets:
        return self.made_proxies or laid_out(self.world.proxies(self.seed), own=True)

    @cached_property
    def _tests(self) -> Sets:
        return self.made_tests or laid_out(self.world.tests(self.seed), own=True)

    def unmeasured(self) -> Place:
        """The same without the algorithm: uploads are measured elsewhere."""
        return replace(self, algorithm=None, made_proxies=self._proxies)

    def shared(self) -> Place:
        """The same for workers, with all samples made: they map them."""
        self.world.visit(self.seed, self.world.names[0], 0)  # whatever the world makes for its clients
        return replace(self, made_proxies=self._proxies, made_tests=self._tests)

    def perform(self, job: Job, spent: Stopwatch | None = None) -> Done:
        """Follow the task's recipe on the client's data; measure and score what came out."""
        spent = spent or Stopwatch()
        with spent.part("training"):
            visit = self.world.visit(self.seed, job.client, job.cycle)
            learner = self.model.learner(visit.train.x, visit.train.y)
            known = recipe(job.task.recipe, self.recipes)
            fit = follow(known, self.model.layout, job.client, job.task, learner, job.notebook)
        if not fit.trained:
            return Done(fit, None, visit.mixture)
        with spent.part("evaluating"):
            before = self.model.learner(visit.test.x, visit.test.y).score(fit.trained)
        with spent.part("measuring"):
            evidence = self._measured(fit.upload, job.receipt)
        return Done(fit, before, visit.mixture, evidence)

    def score(self, score: Score, spent: Stopwatch) -> float:
        """How well models do on test data."""
        with spent.part("evaluating"):
            if not score.client:
                return self.tests[score.cluster].score(score.ensemble)
            if score.again and not self.tune:
                return self._kept_tests.of(score.client, score.cycle, self._test).score(score.ensemble)
            visit = self.world.visit(self.seed, score.client, score.cycle)
            ensemble = self._tuned(score, visit.train) if self.tune else score.ensemble
            return self.model.learner(visit.test.x, visit.test.y).score(ensemble)

    def do(self, work: Work, spent: Stopwatch) -> Done | float:
        """Whatever is asked for."""
        return self.perform(work, spent) if isinstance(work, Job) else self.score(work, spent)

    @cached_property
    def _kept_tests(self) -> KeptTests:
        return KeptTests()

    def _test(self, client: ClientId, cycle: int) -> tuple[Learner, int]:
        """A client's test data, and their size in bytes."""
        test = self.world.visit(self.seed, client, cycle).test
        return self.model.learner(test.x, test.y), test.x.nbytes + test.y.nbytes

    def _tuned(self, score: Score, train: Samples) -> Ensemble:
        """What a client uses that tunes what it drew on its own data."""
        assert self.tune is not None
        seed = derive(self.seed, "tune", score.client, score.cycle)
        return tuned(score.ensemble, self.model.learner(train.x, train.y), seed=seed, plan=self.tune)

    def _measured(self, upload: Upload, receipt: Receipt | None) -> Evidence | None:
        if self.algorithm is None or receipt is None:
            return None
        try:
            return self.algorithm.measure(upload, MeasureContext(receipt, self.proxies))
        except Exception:  # an unsound upload, perhaps: whoever admits it measures again, and says what is wrong
            return None


def inline_setup(place: Place, spent: Stopwatch) -> Setup:
    """How this process does its jobs itself, timed by its own stopwatch."""
    return lambda: lambda parcel: Parcel(Answer(place.do(parcel.content, spent)))


def worker_setup(place: Place) -> Setup:
    """What makes another process a worker at this place, with all data that were made here."""
    return partial(_settle_in, place.shared(), made())


def _settle_in(place: Place, data: Made) -> Perform:
    take_over(data)
    stay_single_threaded(place.model)
    return partial(_do, place)


def _do(place: Place, parcel: Parcel[Work]) -> Parcel[Answer[Done | float]]:
    spent = Stopwatch()
    found = place.do(parcel.content, spent)
    seconds = spent.seconds
    seconds["moving"] += parcel.unpacking
    return Parcel(Answer(found, seconds, parcel.packing, peak_mb() - shared_mb()))
