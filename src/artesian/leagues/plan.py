"""What a league runs: every method in every world with every seed, each checked before anything runs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations
from pathlib import Path
from typing import Any

from artesian.algorithms import ALGORITHMS
from artesian.config.experiments import load
from artesian.config.tables import parse_change
from artesian.errors import ArtesianError, SettingError
from artesian.leagues.file import League, Venue
from artesian.simulator.experiment import Experiment
from artesian.simulator.folder import changed_setting, check_same, read_json


@dataclass(frozen=True)
class Pair:
    """A method in a world: an experiment, and the seeds it runs with."""

    world: str
    method: str
    source: str
    changes: tuple[str, ...]
    seeds: tuple[int, ...]
    algorithm: str
    length: int
    unit: str  # of the length: uploads or rounds
    classifies: bool  # whether scores are accuracies
    settings: str  # the digest of the experiment
    experiment: Mapping[str, Any] = field(compare=False, repr=False)  # its settings, as its runs record them

    @cached_property
    def unplanned(self) -> Experiment:
        """The experiment as the files have it: a run that goes on is planned with what it recorded."""
        return load(self.source, self.changes)

    @property
    def folder(self) -> Path:
        """Where its runs are, below the league's folder."""
        return Path(safe(self.world), safe(self.method))


@dataclass(frozen=True)
class PlannedRun:
    """One run of a league."""

    pair: Pair
    seed: int

    @property
    def folder(self) -> Path:
        """Where it is, below the league's folder."""
        return self.pair.folder / f"seed-{self.seed}"

    def __str__(self) -> str:
        return f"{self.pair.world}, {self.pair.method}, seed {self.seed}"


@dataclass(frozen=True)
class LeaguePlan:
    """All pairs of a league."""

    league: League
    pairs: tuple[Pair, ...]
    missing: tuple[str, ...] = ()  # why worlds are left out of what is only shown

    @property
    def runs(self) -> list[PlannedRun]:
        """In the order they are run: every pair with its first seed, then with its second, and so on."""
        most = max((len(pair.seeds) for pair in self.pairs), default=0)
        return [PlannedRun(pair, pair.seeds[i]) for i in range(most) for pair in self.pairs if i < len(pair.seeds)]


def planned(league: League, *, to_run: bool = True) -> LeaguePlan:
    """The plan of a league. All combinations that cannot run are refused together.

    Where none is `to_run`, those that cannot are left out: whoever lacks a dataset can still read results.
    """
    _check_folders(world.name for world in league.worlds)
    _check_folders(method.name for method in league.methods)
    pairs: list[Pair] = []
    refused: dict[tuple[str, str], list[str]] = {}  # methods by world and reason
    entered = [(world, method) for world in league.worlds for method in world.methods]
    for venue, method in entered:
        try:
            experiment = load(venue.source, changes_of(league, venue, method)).planned()
            if to_run:
                experiment.check_run(venue.seeds[0])  # builds its world, which takes time
        except ArtesianError as error:
            refused.setdefault((venue.name, str(error)), []).append(method)
            continue
        pairs.append(_pair(league, venue, method, experiment))
    if refused and to_run:
        told = [f"{', '.join(methods)} in {world}: {words}" for (world, words), methods in refused.items()]
        problem = "\n  ".join(["Some methods cannot run:", *told])
        raise SettingError(problem, 'Change their settings, or leave them out: except = ["..."]')
    missing = tuple(f"{world} is not shown: {words}" for world, words in refused)
    if not pairs:
        raise SettingError("The league has no method in any world", missing[0] if missing else "Leave fewer out")
    _check_algorithms(pairs)
    return LeaguePlan(league, tuple(pairs), missing)


def changes_of(league: League, world: Venue, method: str) -> tuple[str, ...]:
    """What a method in a world changes, the last counts: league, world, method, method in this world."""
    (its,) = (one.changes for one in league.methods if one.name == method)
    return (f"name={json.dumps(world.name)}", *league.changes, *world.changes, *its, *world.own.get(method, ()))


def safe(name: str) -> str:
    """A name as that of a folder."""
    return re.sub(r"[^A-Za-z0-9_.+-]+", "-", name).strip("-.")


def _pair(league: League, world: Venue, method: str, experiment: Experiment) -> Pair:
    return Pair(
        world=world.name,
        method=method,
        source=world.source,
        changes=changes_of(league, world, method),
        seeds=world.seeds,
        algorithm=experiment.algorithm.name,
        length=experiment.turns or experiment.rounds or experiment.uploads,
        unit="turns" if experiment.turns else "rounds" if experiment.rounds else "uploads",
        classifies=experiment.world.classes > 1,
        settings=experiment.digest,
        experiment=experiment.describe(),
    )


def _check_folders(names: Iterable[str]) -> None:
    """Every name makes a folder of its own."""
    known = list(names)
    for name in known:
        if not safe(name):
            raise SettingError(f"{name!r} cannot be the name of a folder", "Use letters or digits")
    for one, other in combinations(known, 2):
        if safe(one).casefold() == safe(other).casefold():
            raise SettingError(f"{one!r} and {other!r} would share the folder {safe(one)}", "Rename one of the two")


def _check_algorithms(pairs: Iterable[Pair]) -> None:
    """A method that sets no algorithm has that of the world's file: refused where it hardly meant it."""
    silent = [pair for pair in pairs if not any(parse_change(one)[0] == "algorithm.name" for one in pair.changes)]
    known: dict[str, Pair] = {}
    for pair in silent:
        first, named = known.setdefault(pair.method, pair), pair.method.casefold()
        if named in ALGORITHMS and named != pair.algorithm:
            problem = f"The method {pair.method!r} would run {pair.algorithm} in {pair.world}: it sets no algorithm"
            raise SettingError(problem, f'Write set = ["algorithm.name={named}"] in its table')
        if pair.algorithm != first.algorithm:
            both = f"{first.algorithm} in {first.world} and {pair.algorithm} in {pair.world}"
            problem = f"The method {pair.method!r} would run {both}: it sets no algorithm"
            raise SettingError(problem, 'Write set = ["algorithm.name=..."] in its table')


def check_begun(runs: Iterable[PlannedRun], folder: Path) -> None:
    """Those of these runs that the folder holds have the settings they have now."""
    for path, run in ((folder / run.folder, run) for run in runs):
        if (path / "config.json").exists():
            check_same(path, changed_since(run, read_json(path / "config.json")))


def changed_since(run: PlannedRun, recorded: Mapping[str, Any]) -> str | None:
    """The first of seed and settings that differs from what a run recorded: `seed = 0, and now it is 1`."""
    here: dict[str, Any] = {"seed": run.seed, "experiment": run.pair.experiment}
    if all(recorded.get(key) == value for key, value in here.items()):
        return None  # the usual case: nothing is loaded
    now = run.pair.unplanned.resumed(recorded.get("experiment", {})).planned()
    return changed_setting(recorded, here | {"experiment": now.describe()}, now.defaults())
