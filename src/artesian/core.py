"""The words everything else is written in: values, and the five seams. No I/O, no clock, no threads.

A client receives a `Task` and answers with an `Upload`. The server measures it (`Measured`), folds it
into its `State` (`Step`) and answers (`Reply`). *What* a fold does is the `Algorithm`; *when* to fold and
*whom* to answer is the `Pace`; a `Learner` is one body of data and the ability to learn from it; a `Recipe` is what a
client does with a task; a `Model` says how models are laid out and meet data.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from math import cos, pi
from typing import Any, ClassVar, Literal, Protocol, Self, runtime_checkable

import numpy as np

from artesian.errors import SettingError, check
from artesian.params import Layout, Params

ClientId = str
ClusterId = str
Mixture = Mapping[ClusterId, float]  # {"k2": 1.0} is hard, {"k0": 0.3, "k1": 0.7} soft
Evidence = Mapping[str, float]  # small named numbers that measuring found
Tree = Any  # arrays and JSON values, nested in dicts and lists
Notebook = Mapping[str, Tree]  # what a client keeps between tasks: its recipes write in it and read from it
OptimizerState = Mapping[str, Tree]  # what an optimiser remembers between steps, by name: arrays and numbers
Ensemble = Sequence[tuple[float, Params]]  # models whose predictions are averaged with these weights
Pull = tuple[float, Params]  # (c, anchor): adds c/2 ||w - anchor||^2 to the loss
Buffers = Literal["average", "server"]  # what a fold does with BatchNorm statistics

OWN = "own"  # what a client calls the one model it trained from several
CONTROL = "control"  # what the shared control variate is called in a task, and its change in an upload
BEFORE = "before"  # in the metadata of a field: what settings from before there was this field stand for
ESTIMATE_ONLY = "estimate_only"  # the setting of a task that asks for a mixture and no training


def derive(*key: int | str) -> int:
    """A seed that depends on every part of `key` and on nothing else."""
    text = "\x1f".join(f"{type(part).__name__}:{part}" for part in key)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def generator(*key: int | str) -> np.random.Generator:
    """A random generator for exactly this key, such as (seed, client, number)."""
    return np.random.default_rng(derive(*key))


@dataclass(frozen=True)
class Task:
    """Server to client: models, and the name of the recipe to follow."""

    models: Mapping[ClusterId, Params]
    recipe: str = "train"
    settings: Mapping[str, Any] = field(default_factory=dict)
    mixture: Mixture | None = None
    solo: bool = False  # fold its answer alone, at once, even inside a round, and answer that at once
    pause: bool = False  # of a solo task: its answer is not answered; the client waits for a round like all others
    memo: Tree = None  # what the algorithm wants back at the upload; stays on the server
    number: int = 0  # per client, counted from 1, never reused; the engine sets it
    base: int = 0  # the version it was made from; the engine sets it
    returns: tuple[str, ...] | None = None  # the models that come back, None: those of the task; stays on the server
    estimates: bool = False  # whether a mixture comes back too; stays on the server


@dataclass(frozen=True)
class Upload:
    """Client to server: the answer to one task. (client, number) is its identity."""

    client: ClientId
    number: int
    samples: int
    models: Mapping[ClusterId, Params] = field(default_factory=dict)
    mixture: Mixture | None = None  # set when the client does the estimating
    metrics: Mapping[str, float] = field(default_factory=dict)

    @property
    def params(self) -> Params:
        """The only model of an upload that carries one."""
        (only,) = self.models.values()
        return only


@dataclass(frozen=True)
class Receipt:
    """What the server remembers of a task it handed out: everything but the models."""

    number: int
    base: int
    recipe: str
    models: tuple[ClusterId, ...]
    mixture: Mixture | None = None
    digest: str = ""
    solo: bool = False
    pause: bool = False
    memo: Tree = None
    wanted: tuple[str, ...] = ()  # the models its answer holds
    estimates: bool = False  # whether its answer holds a mixture


@dataclass(frozen=True)
class Measured:
    """An upload with its receipt and what measuring found."""

    upload: Upload
    receipt: Receipt
    evidence: Evidence = field(default_factory=dict)
    digest: str = ""  # of the upload as it was sent, where it was clipped since
    given: Mapping[ClusterId, Params] = field(default_factory=dict)  # the task's models, where the algorithm needs them
    length: float = 0.0  # of its longest change as it is folded, where a defence measures it
    spent: float = 0.0  # that length over the usual one: what it takes from its member's budget
    aside: str = ""  # why it is answered and not folded, where it is not
    shortened: float = 1.0  # how many times as long its change would be had its member not brought long ones before


@dataclass(frozen=True)
class Reply:
    """One answer of the server: this client now has this task."""

    client: ClientId
    task: Task


@dataclass(frozen=True)
class Cluster:
    """One model of the repository."""

    params: Params
    updated: int = 0  # the version of its last change
    updates: int = 0  # how many folds changed it
    loss: float | None = None  # on its own proxy set, where the algorithm appraises clusters


@dataclass(frozen=True)
class Member:
    """What the server knows of a client."""

    samples: int
    mixture: Mixture | None = None  # None: a newcomer
    receipt: Receipt | None = None  # the open task, if there is one
    number: int = 0  # of the last task given
    answered: int = 0  # number of the last upload accepted
    digest: str = ""  # of that upload: a retry has the same one
    present: bool = True
    spent: float = 0.0  # of its budget, in usual changes, at its last upload
    spent_at: float = 0.0  # how many uploads the ledger counted then
    since: int | None = None  # the version that the first of its newest uploads set aside was made from
    stride: float | None = None  # what an upload of it spends in the mean, the newest most; None: not known
    set_aside: int = 0  # uploads of it that were answered and not folded
    quarantined: bool = False  # its uploads are recorded and answered, and not folded
    revoked: bool = False  # it may not act or join any more
    reset: bool = False  # its next join brings a new secret


@dataclass(frozen=True)
class State:
    """All an algorithm may know. A value: `fold` describes a `Step`, and the engine applies it."""

    layout: Layout
    clusters: Mapping[ClusterId, Cluster]
    members: Mapping[ClientId, Member] = field(default_factory=dict)
    present: int = 0  # members who joined and have not left
    version: int = 0  # how many folds so far
    rounds: int = 0  # how many of them were the pace's: not those of solo tasks
    named: int = 0  # how many clusters ever had a name: no name is used twice
    seed: int = 0
    memory: Mapping[str, Tree] = field(default_factory=dict)  # the algorithm's own

    def fresh_names(self, count: int) -> list[ClusterId]:
        """Names no cluster ever had."""
        return [f"k{self.named + i}" for i in range(count)]

    def rng(self, purpose: str, *more: int) -> np.random.Generator:
        """Randomness of this version, for one purpose."""
        return generator(self.seed, "version", self.version, purpose, *more)


@dataclass(frozen=True)
class Step:
    """What a fold changes, and nothing else."""

    clusters: Mapping[ClusterId, Params] = field(default_factory=dict)
    mixtures: Mapping[ClientId, Mixture] = field(default_factory=dict)
    memory: Mapping[str, Tree] = field(default_factory=dict)
    notes: Mapping[str, float] = field(default_factory=dict)  # small named numbers for the log
    born: Mapping[ClusterId, ClusterId] = field(default_factory=dict)  # child: parent, all of which it copies
    gone: tuple[ClusterId, ...] = ()  # clusters that are no more, such as a parent after a split


@dataclass(frozen=True)
class Event:
    """One thing that happened to a federation: enough, with the state before it, to get the state after."""

    kind: Literal[
        "join", "upload", "leave", "expiry", "flush", "settings",
        "revoke", "reset", "quarantine", "release", "rollback", "forget",
    ]  # fmt: skip
    client: ClientId = ""
    samples: int = 0  # of a join
    changed: bool = False  # of a join: the client's data changed since it last joined
    number: int = 0  # of the task that expired
    measured: Measured | None = None
    appraisals: Mapping[ClusterId, float] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)  # hyper-parameters from here on
    compared: Mapping[ClientId, Evidence] = field(default_factory=dict)  # what comparing replies found, by client
    found: Mapping[str, Tree] = field(default_factory=dict)  # what a study found that came into force here
    outcome: Mapping[str, str] = field(default_factory=dict)  # digests of what it gave and changed, to compare a replay
    judged: Mapping[str, float] = field(default_factory=dict)  # by client/number: the rise of a held-back loss
    set_aside: Mapping[str, str] = field(default_factory=dict)  # by client/number: why an upload was not folded
    act: Act | None = None  # of an operator's act: who, why, and what the federation goes on from


@dataclass(frozen=True)
class Act:
    """An operator's act: who did it, why, and what comes of it."""

    by: str = ""  # the name of the token
    why: str = ""
    to: int = 0  # of a rollback: the event whose state comes back
    snapshot: Snapshot | None = None  # of a rollback or a forgetting: what the federation goes on from


@dataclass(frozen=True)
class Plan:
    """How a training runs. A task proposes it; a client's own choice overrides."""

    optimizer: Literal["sgd", "adam"] = "sgd"
    rate: float = 0.1  # learning rate
    epochs: int = 1
    batch: int = 32
    momentum: float = 0.0  # sgd only
    decay: float = 0.0  # weight decay, added to the gradient
    schedule: Literal["constant", "linear", "cosine"] = "constant"  # of the rate, epoch by epoch, down towards 0
    cooling: float = 1.0  # what the rate is multiplied by from one training of a client to the next
    keep_optimizer_state: bool = False  # does an optimiser go on from where the client's last training left it?

    def __post_init__(self) -> None:
        rules = {
            "rate is above 0": self.rate > 0,
            "epochs is at least 1": self.epochs >= 1,
            "batch is at least 1": self.batch >= 1,
            "momentum is in [0, 1)": 0 <= self.momentum < 1,
            "decay is at least 0": self.decay >= 0,
            "schedule is constant, linear or cosine": self.schedule in ("constant", "linear", "cosine"),
            "cooling is in (0, 1]": 0 < self.cooling <= 1,
            "keep_optimizer_state is true or false": isinstance(self.keep_optimizer_state, bool),
        }
        check(self, rules)

    def check_plain(self, method: str) -> None:
        """Refuse anything but plain stochastic gradient descent."""
        if self.optimizer != "sgd" or self.momentum:
            name = f"momentum {self.momentum:g}" if self.optimizer == "sgd" else self.optimizer
            raise SettingError(
                f"{method} corrects the steps of plain SGD, and the training has {name}",
                'Set training.optimizer = "sgd" and training.momentum = 0',
            )

    def rate_in(self, epoch: int) -> float:
        """The learning rate in this epoch, counted from 0."""
        passed = epoch / self.epochs
        return self.rate * {"constant": 1.0, "linear": 1 - passed, "cosine": (1 + cos(pi * passed)) / 2}[self.schedule]

    @property
    def settings(self) -> dict[str, Any]:
        """Its fields by name. A flag that is not set is left out: plans from before there was one read the same."""
        told = asdict(self)
        return told if self.keep_optimizer_state else {k: v for k, v in told.items() if k != "keep_optimizer_state"}

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Self:
        """The plan among a task's settings."""
        return cls(**{f.name: settings[f.name] for f in fields(cls) if f.name in settings})


@runtime_checkable
class Learner(Protocol):
    """One body of data: a client's own, or a proxy set on the server."""

    @property
    def samples(self) -> int: ...

    def losses(self, params: Params) -> np.ndarray:
        """The loss of every sample."""
        ...

    def score(self, ensemble: Ensemble) -> float:
        """How well these models do on the data: accuracy, or minus the mean squared error."""
        ...

    def train(
        self,
        params: Params,
        *,
        seed: int,
        plan: Plan,
        pulls: Sequence[Pull] = (),
        weights: np.ndarray | None = None,
        mask: np.ndarray | None = None,
        correction: Params | None = None,
    ) -> Params:
        """Minimise mean loss + sum of c/2 ||w - anchor||^2 from `params`; frozen where `mask` is False.

        `weights` holds one number per sample; `correction` is added to every gradient. A recipe passes only what it
        needs, so a learner that lacks an argument serves all algorithms that do not ask for it.
        """
        ...


@runtime_checkable
class Labelled(Protocol):
    """A learner whose samples have labels; a method that watches them asks for this, and no other needs it."""

    @property
    def histogram(self) -> tuple[int, ...] | None:
        """How many samples have the label 0, 1, ...; None where there are no labels."""
        ...


def described(value: Any, name: str = "") -> dict[str, Any]:
    """A value by its name (its class, where it has none) and its settings: the fields of a dataclass."""
    kind = type(value)
    settings = {f.name: getattr(value, f.name) for f in fields(value)} if is_dataclass(value) else {}
    return {"name": name or f"{kind.__module__}:{kind.__qualname__}", **settings}


@runtime_checkable
class Batched(Protocol):
    """A learner that says how it cuts its samples into batches; of any other, every batch but the last is full."""

    def batches(self, size: int) -> int:
        """How many steps an epoch takes whose batches have this size."""
        ...


@runtime_checkable
class Resumable(Protocol):
    """A learner whose optimiser can go on from an earlier training; `keep_optimizer_state` asks for this."""

    def train_on(self, params: Params, kept: OptimizerState, **how: Any) -> tuple[Params, OptimizerState]:
        """`train`, with the same options, by an optimiser in this state; what it trained, and the state afterwards.

        An empty state is a fresh optimiser. One of another optimiser or another model is not used, with a warning.
        """
        ...


@runtime_checkable
class Divisible(Protocol):
    """A learner whose samples can be taken apart and put together; whoever holds data back asks for this."""

    def part(self, rows: np.ndarray) -> Learner:
        """The same with these samples alone, in this order."""
        ...

    def joined(self, others: Sequence[Any]) -> Learner:
        """The same with the samples of these learners after its own; they are of its kind, with its model."""
        ...


@runtime_checkable
class Stackable(Protocol):
    """A learner that tries a model on the samples of several at once; whoever measures on many asks for this."""

    def stacked(self, others: Sequence[Any]) -> Callable[[Params], Sequence[np.ndarray]] | None:
        """What `losses` of this learner and of others of its kind give, to the same bits; None where that cannot be."""
        ...


@runtime_checkable
class Readable(Protocol):
    """A learner that hands out its samples to a computation beside it: a gate, which sees inputs and targets."""

    def arrays(self) -> tuple[np.ndarray, np.ndarray]:
        """The inputs, a row of numbers each, and the targets."""
        ...


@runtime_checkable
class Predicting(Protocol):
    """A learner that says what models make of its samples; whoever watches errors or outputs asks for this."""

    def outputs(self, ensemble: Ensemble) -> np.ndarray:
        """Of every sample, the weighted mean of what the models say: a row of probabilities, or a number."""
        ...


@dataclass(frozen=True)
class Fit:
    """What following a recipe gave."""

    upload: Upload
    notebook: Notebook  # what the client keeps once the server has the upload
    trained: Ensemble  # what the client would predict with if no answer came


@dataclass(frozen=True)
class Recipe:
    """What a client does with a task that names it: the client half of an algorithm, two pure functions."""

    name: str
    fit: Callable[[Layout, ClientId, Task, Learner, Notebook], Fit]  # answer the task
    use: Callable[[Layout, Task, Notebook], Ensemble]  # what to predict with, given the newest task

    def __getstate__(self) -> dict[str, Any]:
        """Its fields, whose functions workers must find by their names."""
        for part in (self.fit, self.use):
            name = getattr(part, "__qualname__", "")  # a partial has none, and is found by what it is made of
            if "<" in name:
                raise SettingError(
                    f"Workers cannot find {name} of the recipe {self.name!r} by its name",
                    "Define it at the top of a module, or use no workers",
                )
        return dict(vars(self))


class Model(Protocol):
    """A kind of model: how it is laid out, where it starts, and how it meets data."""

    @property
    def layout(self) -> Layout: ...

    def start(self, seed: int) -> Params:
        """A fresh model."""
        ...

    def learner(self, x: np.ndarray, y: np.ndarray) -> Learner:
        """This model with these data."""
        ...

    def describe(self) -> dict[str, Any]:
        """Name and settings, for the record of a run."""
        return described(self)

    def one_thread(self) -> AbstractContextManager[None]:
        """Keep the model's own library on one thread while this lasts; nothing to do where there is none."""
        return nullcontext()


@dataclass(frozen=True)
class Seen:
    """What the defence remembers of a member: its newest upload, or that it joined."""

    client: ClientId
    samples: int
    length: float = 0.0  # of its change as it was folded; 0: not known
    rise: float | None = None  # how much it raised a held-back loss, without its sign; None: not known
    habit: float | None = None  # how much its uploads raise that loss in the mean, the newest most; None: not known


@dataclass(frozen=True)
class Ledger:
    """What the defence remembers of all members: one entry each, the newest last. Empty without a defence."""

    uploads: float = 0.0  # folded or pending, so far; one of less than a usual change counts as its part
    seen: tuple[Seen, ...] = ()
    turn: float = 0.0  # how many they were when this turn began: a turn is a few uploads by each
    came: int = 0  # members who uploaded in it
    active: int = 0  # members who did in the turn before; 0: this one is the first


@dataclass(frozen=True)
class Desk:
    """What lies on the server's desk between folds."""

    open: int = 0  # tasks given and not answered
    pending: tuple[Measured, ...] = ()  # received, not folded
    waiting: tuple[ClientId, ...] = ()  # ready for a task
    issued: int = 0  # tasks issued so far: it moves on even where the version stands still
    published: Mapping[ClusterId, Cluster] = field(default_factory=dict)  # what tasks show, where that lags behind
    changed_by: Mapping[ClusterId, tuple[ClientId, ...]] = field(default_factory=dict)  # whose folds it hides
    ledger: Ledger = field(default_factory=Ledger)  # what changes are usual
    retired: Mapping[ClientId, Member] = field(default_factory=dict)  # of forgotten members: where their numbers go on


@dataclass(frozen=True)
class Snapshot:
    """Everything a coordinator knows at one moment: it goes on from here as if never stopped."""

    state: State
    desk: Desk
    open_tasks: Mapping[ClientId, Task]
    settings: Mapping[str, Any] = field(default_factory=dict)  # the hyper-parameters in force


@dataclass(frozen=True)
class Forecast:
    """What is known of a run before it begins."""

    clients: int  # how many clients are there from the start
    uploads: int | None = None  # planned length, where the run is measured in uploads
    rounds: int | None = None  # planned length, where it is measured in rounds


class Pace(Protocol):
    """WHEN: two questions, asked after every event. Subclass it to inherit the defaults."""

    @property
    def patience(self) -> float | None:
        """How long a task may stay open before the driver lets it expire; None: for ever."""
        ...

    @property
    def in_rounds(self) -> bool:
        """Does a fold close a round of chosen clients?"""
        return False

    @property
    def batch(self) -> int:
        """How many uploads a fold waits for, at the least."""
        return 1

    @property
    def clients_needed(self) -> int:
        """How many clients must be ready before any of them gets a task."""
        return 1

    def rounds_in(self, forecast: Forecast) -> int | None:
        """How many folds a run of this plan has: what `State.rounds` comes to; None where no length is planned."""
        if forecast.rounds is not None or forecast.uploads is None:
            return forecast.rounds
        return max(1, forecast.uploads // self.batch)

    def folds(self, desk: Desk) -> bool:
        """Is all that is pending folded now?"""
        ...

    def answers(self, desk: Desk, state: State) -> Sequence[ClientId]:
        """Who of the waiting gets a task now?"""
        ...


@dataclass(frozen=True)
class MeasureContext:
    """What measuring may use besides the upload itself: the receipt of its task, and the proxy sets."""

    receipt: Receipt
    proxies: Mapping[ClusterId, Learner]
    truth: Mixture | None = None  # the client's true mixture, which only a simulation knows


@dataclass(frozen=True)
class Study:
    """Work of an algorithm beside the uploads: begun with this state, and in force from the version `needed` on."""

    state: State  # what it begins with; without members
    needed: int


@dataclass(frozen=True)
class Matrix:
    """Numbers with names for rows and columns, such as how alike every pair of clients is."""

    rows: tuple[str, ...]
    columns: tuple[str, ...]
    values: np.ndarray

    def __post_init__(self) -> None:
        if self.values.shape != (len(self.rows), len(self.columns)):
            shape = f"{len(self.rows)} rows and {len(self.columns)} columns"
            raise ValueError(f"A matrix with names for {shape} has values of shape {self.values.shape}")


class Algorithm(Protocol):
    """WHAT: pure. No I/O, no clock, no threads, no framework. Subclass it to inherit the defaults."""

    name: ClassVar[str]
    buffers: Buffers
    recipes: ClassVar[tuple[str, ...]] = ("train",)  # the recipes its tasks name: what clients must be able to follow
    needs_given: bool = False  # does a fold need the models a client was given? They are journaled then
    stands_for: ClassVar[bool] = False  # does cluster k0 stand for the world's k0, and so on?
    flush_on_stop: bool = False  # fold a part-filled buffer at the end of a run?
    no_draw: ClassVar[str] = ""  # why clients have nothing to draw between their uploads; empty: they have

    def planned(self, forecast: Forecast) -> Self:
        """The same algorithm, for a run of which this much is known beforehand."""
        return self

    def resumed(self, recorded: Mapping[str, Any]) -> Self:
        """The same algorithm, for a run that goes on: a setting that follows from the run stays as it was recorded."""
        return self

    def finds_clusters(self, start: int) -> bool:
        """Does it look for clusters itself, where it begins with so many?"""
        return False

    def describe(self) -> dict[str, Any]:
        """Name and settings, for the record of a run."""
        return described(self, self.name)

    def check_plan(self, plan: Plan) -> None:
        """Refuse a training plan that this method cannot work with, before anybody trains by it."""
        return

    def init(self, layout: Layout, start: Sequence[Params], seed: int) -> State:
        """The state before anybody came; `start` holds one model per cluster of the world."""
        ...

    def task(self, state: State, client: ClientId) -> Task:
        """What this client is asked to do next."""
        ...

    def draw(self, state: State, client: ClientId) -> Task:
        """What a client would predict with now, as a task whose recipe says how; nothing is asked of it."""
        return self.task(state, client)

    def fresh(self, state: State, client: ClientId) -> Task:
        """What a client draws between its uploads, and uses: cheap, and the same until a fold changes its model."""
        return self.draw(state, client)

    def compare(self, state: State, client: ClientId, proxies: Mapping[ClusterId, Learner]) -> Evidence:
        """How the replies do that a client might be given; the engine asks before it answers, and journals it."""
        return {}

    def reply(self, state: State, client: ClientId, compared: Evidence) -> Task:
        """The task a client is given, when comparing found this."""
        return self.task(state, client)

    def moved(self, state: State, client: ClientId) -> Task | None:
        """What a waiting client does at once when its data changed: a solo task, or nothing."""
        return None

    def measure(self, upload: Upload, context: MeasureContext) -> Evidence:
        """State-free and perhaps expensive: it may run in parallel, elsewhere, ahead."""
        return {}

    def models_sent(self, state: State) -> int:
        """How many models an upload holds at most: the server reads no larger ones."""
        return max(1, len(state.clusters))

    def appraise(self, params: Params, proxy: Learner) -> float | None:
        """A cluster's own number on its proxy set; the engine asks after a step that changed it."""
        return None

    def needs_proxies(self, clusters: int) -> bool:
        """Must every one of so many clusters have a proxy set?"""
        return type(self).appraise is not Algorithm.appraise

    def study(self, state: State) -> Study | None:
        """What is to be found out beside the uploads, if anything is; the same answer until its result is in force."""
        return None

    def find(self, state: State, proxies: Mapping[ClusterId, Learner], plan: Plan) -> Mapping[str, Tree]:
        """The result of a study: what it changes in the algorithm's memory. Expensive, and run beside the uploads."""
        return {}

    def matrices(self, state: State) -> Mapping[str, Matrix]:
        """What a method knows of pairs: similarities of clients, importances of clusters. For `export` alone."""
        return {}

    def fold(self, state: State, measured: Sequence[Measured]) -> Step:
        """What one or many uploads change."""
        ...

    def pace(self) -> Pace:
        """The pace its paper prescribes."""
        ...
