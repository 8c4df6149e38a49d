"""An experiment as one value: everything that, with a seed, decides a run."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields, is_dataclass, replace
from typing import Any, Self

from artesian.core import Algorithm, Forecast, Model, Plan, Recipe
from artesian.engine.defence import Defence
from artesian.engine.hyper_parameters import check_proxies
from artesian.errors import SettingError, check
from artesian.recipes.accepting import SHARE, Accept
from artesian.simulator.drifting import DriftingWorld, Drifts
from artesian.simulator.evaluation import Evaluate
from artesian.simulator.fleet import Fleet
from artesian.simulator.pretraining import Start, check_size
from artesian.simulator.shifts import Shift, Shifted
from artesian.simulator.watching import ORACLE, Watches
from artesian.simulator.worlds import Numbered, World
from artesian.storage.older import settings_before

NUMBERS = ("name", "uploads", "rounds", "evaluate_every", "evaluate", "target", "snapshot_every", "proxy_sample")
COUNTS = ("uploads", "rounds", "turns", "evaluate_every", "snapshot_every", "proxy_sample")


@dataclass(frozen=True)
class Experiment:
    """Everything that decides a run, except the seed: data, clients, model, algorithm and length.

    An experiment with a `shift` wraps its world in it; a world that is `Shifted` already sets the experiment's shift.
    """

    world: World  # where clients' data come from
    model: Model  # what is trained
    algorithm: Algorithm  # how the server learns from uploads
    fleet: Fleet = field(default_factory=Fleet)  # when clients come, how long they train, when they leave
    training: Plan = field(default_factory=Plan)  # optimiser, learning rate, epochs and batch size
    start: Start = field(default_factory=Start)  # how the first models are trained
    shift: Shift = field(default_factory=Shift)  # how clients' data change during the run
    uploads: int = 1000  # how long the run lasts
    rounds: int | None = None  # how long it lasts, counted in rounds instead of uploads
    name: str = "own"  # the title under which runs are compared
    evaluate_every: int = 20  # uploads between two evaluations
    evaluate_every_rounds: int | None = None  # rounds between two evaluations, instead of uploads
    evaluate: Evaluate = "clusters"  # or "clients": evaluate every client on its own test data, too
    export: bool = False  # write more for later study: clusters on every distribution, mixtures, matrices
    target: float | None = None  # an accuracy: the summary says when clients reached it
    snapshot_every: int = 200  # uploads between two snapshots of a run that is kept in a folder
    proxy_sample: int | None = None  # samples of every proxy set that an upload is measured on; None: all
    recipes: tuple[Recipe | str, ...] = ()  # clients' own, besides those that are built in: values, or module:name
    tune: int = 0  # epochs for which clients train what they drew on their own data before they use it
    accept: Accept = "always"  # what clients use: always what they drew, or the "better" of that and what they trained
    hold_back: float = SHARE  # of their data, by which clients judge what is better; they train on the rest
    keep_training: bool = False  # do clients train on what they used before, where it beats all a refresh brought?
    pool_every: int = 0  # uploads from one that is scored on the whole evaluation pool to the next; 0: none is
    defence: Defence | None = None  # what one client may do to the others; None: anything
    drift: Drifts | None = None  # how clients' data drift; None: as the world and its shift say
    watch: Watches | None = None  # how clients decide when to refresh; None: they refresh all the time
    turns: int | None = None  # how long a run with a watch lasts: moments at which clients see new data, of all clients

    def __post_init__(self) -> None:
        rules = {
            **{f"{name} is at least 1": vars(self)[name] is None or vars(self)[name] >= 1 for name in COUNTS},
            "evaluate_every_rounds is at least 1": self.evaluate_every_rounds is None
            or self.evaluate_every_rounds >= 1,
            "tune is at least 0": self.tune >= 0,
            "accept is always or better": self.accept in ("always", "better"),
            "hold_back is above 0 and at most 0.5": 0 < self.hold_back <= 0.5,
            "pool_every is at least 0": self.pool_every >= 0,
            "export is true or false": isinstance(self.export, bool),
            "keep_training is true or false": isinstance(self.keep_training, bool),
            "name must not be empty": bool(self.name.strip()),
            "evaluate is clusters or clients": self.evaluate in ("clusters", "clients"),
        }
        check(self, rules)
        self._check_turns()
        better = self.accept == "better"
        rules = {
            "hold_back has an effect only with accept = better": better or self.hold_back == SHARE,
            "keep_training has an effect only with accept = better": better or not self.keep_training,
        }
        check(self, rules)
        plan = self.training  # not its own rule: a client may choose another optimizer than the one proposed
        remembers = plan.optimizer == "adam" or plan.momentum > 0
        rules = {
            "momentum has an effect only with optimizer = sgd": not plan.momentum or plan.optimizer == "sgd",
            "keep_optimizer_state has an effect only with optimizer = adam or momentum": remembers
            or not plan.keep_optimizer_state,
        }
        check(plan, rules)
        if not isinstance(self.world, World):
            raise ValueError(f"{type(self.world).__name__} is not a world: let its class inherit artesian.World")
        if Model not in type(self.model).__mro__:
            raise ValueError(f"{type(self.model).__name__} is not a model: let its class inherit artesian.Model")
        if not len(self.world.names):
            raise ValueError("The world has no clients")
        if self.drift is not None:
            object.__setattr__(self, "world", DriftingWorld(self.plain_world, self.drift))
        elif self.shift.kind != "own":
            object.__setattr__(self, "world", Shifted(self.plain_world, self.shift))
        elif isinstance(self.world, Shifted):
            object.__setattr__(self, "shift", self.world.shift)

    def _check_turns(self) -> None:
        """Refuse settings that a drift or a watch cannot go with."""
        watched = self.watch is not None
        refused = {
            "A drift and a shift cannot go together: leave one of the two out": self.drift is not None
            and self.shift.kind != "own",
            "turns has an effect only with [watch]": not watched and self.turns is not None,
            "A run with [watch] lasts a number of turns: set turns": watched and self.turns is None,
            "A run with [watch] lasts turns, not rounds: leave rounds out": watched and self.rounds is not None,
            "A run with [watch] is evaluated by turns: leave evaluate_every_rounds out": watched
            and self.evaluate_every_rounds is not None,
            'In a run with [watch], tune needs accept = "better"': watched
            and self.tune > 0
            and self.accept != "better",
        }
        for sentence, holds in refused.items():
            if holds:
                raise ValueError(sentence)

    @property
    def plain_world(self) -> World:
        """The world without its shift and drift."""
        return self.world.world if isinstance(self.world, (Shifted, DriftingWorld)) else self.world

    @property
    def length(self) -> str:
        """How long the run lasts, in words: `1000 uploads`."""
        if self.turns:
            return f"{self.turns} turns"
        return f"{self.rounds} rounds" if self.rounds else f"{self.uploads} uploads"

    @property
    def _most_uploads(self) -> int | None:
        """How many uploads there may be, where the run is not measured in rounds."""
        return None if self.rounds else self.turns or self.uploads

    def planned(self) -> Self:
        """The same experiment, its algorithm told how long the run is and how many clients it begins with."""
        self._check_cohort()
        self._check_honest()
        self._check_watch()
        forecast = Forecast(self._early(), self._most_uploads, self.rounds)
        return replace(self, algorithm=self.algorithm.planned(forecast))

    def resumed(self, recorded: Mapping[str, Any]) -> Self:
        """The same experiment, for a run that began with these settings and goes on."""
        settings, world = recorded.get("algorithm", {}), self.plain_world
        parts: dict[str, Any] = {}
        if settings.get("name") == self.algorithm.name:
            parts["algorithm"] = self.algorithm.resumed(settings)
        if isinstance(world, Numbered) and (before := settings_before(recorded)):
            parts["world"] = replace(world, **before)  # type: ignore[type-var]
        return replace(self, **parts)

    def _early(self) -> int:
        """How many clients are there from the start."""
        clients = len(self.world.names)
        return max(1, clients - round(self.fleet.late_share * clients))

    def _check_cohort(self) -> None:
        """There are as many clients as a round waits for."""
        clients, wanted = len(self.world.names), self.algorithm.pace().clients_needed
        if wanted > clients:
            raise SettingError(f"A round needs {wanted} clients, but there are {clients}", "Lower clients_per_round")

    def _check_honest(self) -> None:
        """There is an honest client: only these are evaluated."""
        clients = len(self.world.names)
        if round(self.fleet.hostile_share * clients) == clients:
            raise SettingError(f"All clients would be hostile: there are {clients}", "Lower hostile_share")

    def _check_watch(self) -> None:
        """Clients can decide, and an oracle has something to know."""
        if self.watch is None:
            return
        if self.algorithm.pace().in_rounds:
            raise SettingError(
                f"{self.algorithm.name} works in rounds, whose clients the server chooses, so none can decide",
                "Choose an algorithm that is a stream, or leave [watch] out",
            )
        if self.watch.when == ORACLE and type(self.world).concept is World.concept:
            raise SettingError("An oracle knows the drifts of a world, and this world has none", "Add a table [drift]")

    def check_run(self, seed: int) -> None:
        """Refuse a run that would never fold, cannot train, or lacks proxy sets that its settings need."""
        self.algorithm.check_plan(self.training)
        batch, flushed = self.algorithm.pace().batch, self.algorithm.flush_on_stop
        most = self._most_uploads
        if most is not None and batch > most and not flushed:
            problem = f"A fold needs {batch} uploads, but the run has {most} in all"
            raise SettingError(problem, f"Raise {'turns' if self.turns else 'uploads'}, or lower buffer_size")
        proxies = self.world.proxies(seed)
        check_size(proxies, self.proxy_sample)
        self.start.check_data(proxies)
        if not proxies:
            check_proxies(self.algorithm, ("k0",), {})

    def describe(self) -> dict[str, Any]:
        """Every setting, as JSON values."""
        try:
            settings: dict[str, Any] = json.loads(json.dumps(self._describe(), allow_nan=False))
        except (TypeError, ValueError) as error:
            raise SettingError(
                f"A setting is neither a number nor a text nor a list of them ({error})", "Change it"
            ) from None
        return settings

    def _describe(self) -> dict[str, Any]:
        parts = {
            "algorithm": self.algorithm.describe(),
            "world": self.world.describe(),
            "model": self.model.describe(),
        }
        tables = {
            "fleet": self.fleet.settings,
            "training": self.training.settings,
            "start": asdict(self.start),
            "shift": asdict(self.shift),
        }
        return self._numbers | parts | tables | self._described_if_set()

    @property
    def _numbers(self) -> dict[str, Any]:
        """What stands in no table."""
        return {name: vars(self)[name] for name in NUMBERS}

    def _described_if_set(self) -> dict[str, Any]:
        """Left out where they are not set: so the digest of settings from before there were these is still the same."""
        names = [entry if isinstance(entry, str) else entry.name for entry in self.recipes]
        found = {"recipes": names, "tune": self.tune, "evaluate_every_rounds": self.evaluate_every_rounds}
        found |= {"export": self.export, "pool_every": self.pool_every, "keep_training": self.keep_training}
        found |= {"defence": self.defence and self.defence.tree, "drift": self.drift and self.drift.settings}
        found |= {"watch": self.watch and self.watch.tree, "turns": self.turns}
        if self.accept == "better":
            found |= {"accept": self.accept, "hold_back": self.hold_back}
        return {name: value for name, value in found.items() if value}

    def opening(self, seed: int) -> list[str]:
        """What a run begins with, in words: who learns what, and what is pre-trained on which data."""
        sizes = [len(samples) for samples in self.world.proxies(seed).values()]
        name, clients, world = self.algorithm.name, len(self.world.names), self.world.describe()["name"]
        lines = [f"{self.name}: {name}, {clients} clients of the world {world}, {self.length}", self.start.words(sizes)]
        if self.watch is not None:
            lines.append(f"clients decide at every turn whether to refresh: {self.watch.words}")
        finds = self.algorithm.finds_clusters(max(1, len(sizes)))
        if finds or (self.algorithm.stands_for and len(sizes) <= 1):
            found = "until it finds kinds of clients" if finds else "and no mixture to estimate"
            lines.append(f"{name} begins with one cluster here: a single model for all clients, {found}")
        return lines

    def defaults(self) -> dict[str, Any]:
        """What `describe` would say of settings that nobody changed, as far as they have a default."""
        values = {"algorithm": self.algorithm, "world": self.plain_world, "model": self.model, "fleet": self.fleet}
        values |= {"training": self.training, "start": self.start, "shift": self.shift}
        numbers = {name: value for name, value in _defaults(self).items() if name in NUMBERS}
        return numbers | {name: _defaults(value) for name, value in values.items()}

    @property
    def digest(self) -> str:
        """A SHA-256 of the settings: the same for equal experiments, whatever their names."""
        settings = {key: value for key, value in self.describe().items() if key not in ("name", "snapshot_every")}
        return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()


def _defaults(value: Any) -> dict[str, Any]:
    """The defaults of a dataclass's fields that are plain values."""
    known = fields(value) if is_dataclass(value) else ()
    return {f.name: f.default for f in known if f.default is not MISSING}
