"""The simulator's jobs: trainings, scores of models, refreshes to judge. Pure functions, so any worker may do them."""

from __future__ import annotations

from collections import OrderedDict
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
    generator,
)
from artesian.data.datasets import Samples
from artesian.drift.detector import Batch, Part
from artesian.drift.observing import batch_of
from artesian.execution.shared_memory import Made, arrays_of, laid_out, made, take_over
from artesian.execution.threads import stay_single_threaded
from artesian.execution.worker import Perform, Setup, peak_mb, shared_mb
from artesian.params import seal
from artesian.recipes import recipe
from artesian.recipes.accepting import Candidate, Split, candidates, choose, divided, undivided, with_continued
from artesian.recipes.kept_optimizers import follow
from artesian.recipes.tuning import tuned
from artesian.simulator.attacks import Attack, forged, poisoned
from artesian.simulator.pretraining import measuring_learners
from artesian.simulator.profiling import Parcel, Seconds, Stopwatch
from artesian.simulator.worlds import Visit, World

T = TypeVar("T")
Key = tuple[ClientId, int]  # client and task number: what is in flight, once at a time
Sets = Mapping[ClusterId, Samples]
MADE: tuple[Candidate, ...] = ("midpoint", "tuned", "continued")  # where a refresh is judged; the others came with it


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


@dataclass(frozen=True)
class Judging:
    """What a client trained and drew, to be scored, and judged as the client itself does."""

    client: ClientId
    cycle: int
    drawn: Ensemble
    trained: Ensemble
    previous: Ensemble = ()  # what it used before
    pool: Mixture = field(default_factory=dict)  # its true mixture, where models are scored on the whole pool, too


@dataclass(frozen=True)
class Judged:
    """The scores of a refresh on the client's test data and on the pool, and what the client uses from now on."""

    after: float  # of what was drawn, tuned where clients do that
    accepted: float | None = None  # of what the client uses; None: that was not judged
    won: Candidate | None = None
    made: Ensemble = ()  # what won, where it is not among the models that came
    pool: tuple[float, ...] = ()  # of what was trained, drawn, and used


@dataclass(frozen=True)
class Look:
    """A client's turn: what it uses, and how many new samples it sees."""

    client: ClientId
    cycle: int
    used: Ensemble
    batch: int
    part: Part = "losses"  # of them, what is watched


@dataclass(frozen=True)
class Observed:
    """What a client saw at its turn, and how well what it used does on test data of that turn."""

    batch: Batch
    score: float


Work = Job | Score | Judging | Look
Outcome = Done | float | Judged | Observed


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


class NewestVisits:
    """What clients had last: a training, its scores and its judgement see the same data, which are drawn once."""

    def __init__(self, room: int = 32_000_000) -> None:
        self.room = room  # in bytes
        self._kept: OrderedDict[tuple[ClientId, int], Visit] = OrderedDict()  # the newest last

    def of(self, client: ClientId, cycle: int, draw: Callable[[ClientId, int], Visit]) -> Visit:
        """What a client has in a cycle; the oldest go where there is no room left."""
        key = client, cycle
        if key in self._kept:
            self._kept.move_to_end(key)
            return self._kept[key]
        visit = self._kept[key] = _read_only(draw(client, cycle))
        self.room -= _size(visit)
        while self.room < 0:
            self.room += _size(self._kept.popitem(last=False)[1])
        return visit


def _read_only(visit: Visit) -> Visit:
    """The same data for several readers, none of which may write into them."""
    return replace(visit, train=_sealed(visit.train), test=_sealed(visit.test))


def _sealed(samples: Samples) -> Samples:
    return Samples(seal(samples.x.view()), seal(samples.y.view()))


def _size(visit: Visit) -> int:
    return sum(array.nbytes for part in (visit.train, visit.test) for array in (part.x, part.y))


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
    hold_back: float | None = None  # the share of their data by which clients judge what they use; None: they do not
    keep_training: Plan | None = None  # how clients train on what is better than all that a refresh brought; None: not
    hostile: frozenset[ClientId] = frozenset()  # clients that attack
    attack: Attack = "sign-flip"  # what these do

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
        made = self.made_proxies  # perhaps none: some servers have no data
        return laid_out(self.world.proxies(self.seed), own=True) if made is None else made

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

    def visit(self, client: ClientId, cycle: int) -> Visit:
        """What a client has in a cycle."""
        return self._visits.of(client, 0 if self.world.held else cycle, partial(self.world.visit, self.seed))

    def perform(self, job: Job, spent: Stopwatch | None = None) -> Done:
        """Follow the task's recipe on the client's data; measure and score what came out."""
        spent = spent or Stopwatch()
        with spent.part("training"):
            visit = self.visit(job.client, job.cycle)
            learner = self._split(job.client, self._learnt(job.client, visit.train)).train
            known = recipe(job.task.recipe, self.recipes)
            fit = follow(known, self.model.layout, job.client, job.task, learner, job.notebook)
            fit = self._sent(job, fit)
        if not fit.trained:
            return Done(fit, None, visit.mixture)
        with spent.part("evaluating"):
            before = self.model.learner(visit.test.x, visit.test.y).score(fit.trained)
        with spent.part("measuring"):
            evidence = self._measured(fit.upload, job.receipt, visit.mixture)
        return Done(fit, before, visit.mixture, evidence)

    def _learnt(self, client: ClientId, train: Samples) -> Samples:
        """What a client trains on: its data, unless it is hostile and poisons them."""
        return poisoned(self.attack, train, self.world.classes) if client in self.hostile else train

    def _sent(self, job: Job, fit: Fit) -> Fit:
        """What following the recipe gave, with the upload that leaves the client: a hostile one forges it."""
        if job.client not in self.hostile:
            return fit
        return replace(fit, upload=forged(self.attack, self.model.layout, fit.upload, job.task, self.seed))

    def score(self, score: Score, spent: Stopwatch) -> float:
        """How well models do on test data."""
        with spent.part("evaluating"):
            if not score.client:
                return self.tests[score.cluster].score(score.ensemble)
            if score.again and not self.tune:
                return self._kept_tests.of(score.client, score.cycle, self._test).score(score.ensemble)
            visit = self.visit(score.client, score.cycle)
            tuned_here = self._tuned(score.ensemble, score.client, score.cycle, visit.train)
            return self.model.learner(visit.test.x, visit.test.y).score(tuned_here or score.ensemble)

    def judge(self, judging: Judging, spent: Stopwatch) -> Judged:
        """Score what a client trained and drew; where clients hold data back, choose what it uses, and score that."""
        with spent.part("evaluating"):
            client, cycle, drawn = judging.client, judging.cycle, judging.drawn
            visit = self.visit(client, cycle)
            test = self.model.learner(visit.test.x, visit.test.y)
            tuned_here = self._tuned(drawn, client, cycle, visit.train)
            shown = tuned_here or drawn
            after = test.score(shown)
            if self.hold_back is None:
                return Judged(after, pool=self._pool(judging, test, shown))
            among = candidates(self.model.layout, drawn, judging.trained, judging.previous, tuned_here)
            split = self._split(client, visit.train)
            if self.keep_training is not None:
                among = with_continued(among, split, partial(self._continued, client, cycle, split.train))
            won = choose(among, split).won
            used = among[won]
            accepted = after if used is shown else test.score(used)
            made = used if won in MADE else ()
            return Judged(after, accepted, won, made, self._pool(judging, test, shown, used))

    def _pool(self, judging: Judging, test: Learner, *after: Ensemble) -> tuple[float, ...]:
        """Scores on the whole pool: on the test data of every cluster, by the client's true share of it.

        Where every client has a distribution of its own, the pool is its own test data.
        """
        if not judging.pool:
            return ()
        shared = [(share, self.tests[k]) for k, share in judging.pool.items() if share]
        pool = [(1.0, test)] if self.world.personal else shared
        everything = (judging.trained, *after)
        return tuple(float(sum(share * part.score(models) for share, part in pool)) for models in everything)

    def trains_on(self, client: ClientId, train: Samples) -> int:
        """How many of its samples a client trains on: all that it does not hold back."""
        return len(train) if self.hold_back is None else self._split(client, train).train.samples

    def observe(self, look: Look, spent: Stopwatch) -> Observed:
        """New samples of a client's data of one cycle, with what the models in use make of them."""
        with spent.part("evaluating"):
            visit = self.visit(look.client, look.cycle)
            order = generator(self.seed, "watch", look.client, look.cycle).permutation(len(visit.train))
            new = self.model.learner(*(array[order[: look.batch]] for array in (visit.train.x, visit.train.y)))
            score = self.model.learner(visit.test.x, visit.test.y).score(look.used)
            return Observed(batch_of(new, look.used, (look.part,)), score)

    def do(self, work: Work, spent: Stopwatch) -> Outcome:
        """Whatever is asked for."""
        if isinstance(work, Job):
            return self.perform(work, spent)
        if isinstance(work, Look):
            return self.observe(work, spent)
        return self.score(work, spent) if isinstance(work, Score) else self.judge(work, spent)

    def _split(self, client: ClientId, train: Samples) -> Split:
        """A client's data in two, where it holds some back."""
        learner = self.model.learner(train.x, train.y)
        return undivided(learner, "") if self.hold_back is None else divided(learner, self.hold_back, client)

    @cached_property
    def _visits(self) -> NewestVisits:
        return NewestVisits()

    @cached_property
    def _kept_tests(self) -> KeptTests:
        return KeptTests()

    def _test(self, client: ClientId, cycle: int) -> tuple[Learner, int]:
        """A client's test data, and their size in bytes."""
        test = self.visit(client, cycle).test
        return self.model.learner(test.x, test.y), test.x.nbytes + test.y.nbytes

    def _tuned(self, drawn: Ensemble, client: ClientId, cycle: int, train: Samples) -> Ensemble:
        """What a client makes of what it drew, by training it on its own data; nothing where clients do not."""
        if self.tune is None:
            return ()
        learner, seed = self._split(client, train).train, derive(self.seed, "tune", client, cycle)
        return tuned(drawn, learner, seed=seed, plan=self.tune)

    def _continued(self, client: ClientId, cycle: int, learner: Learner, used: Ensemble) -> Ensemble:
        """What a client makes of what it used before, by training it on."""
        assert self.keep_training is not None
        return tuned(used, learner, seed=derive(self.seed, "continue", client, cycle), plan=self.keep_training)

    def _measured(self, upload: Upload, receipt: Receipt | None, truth: Mixture) -> Evidence | None:
        if self.algorithm is None or receipt is None:
            return None
        try:
            return self.algorithm.measure(upload, MeasureContext(receipt, self.proxies, truth))
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


def _do(place: Place, parcel: Parcel[Work]) -> Parcel[Answer[Outcome]]:
    spent = Stopwatch()
    found = place.do(parcel.content, spent)
    seconds = spent.seconds
    seconds["moving"] += parcel.unpacking
    return Parcel(Answer(found, seconds, parcel.packing, peak_mb() - shared_mb()))
