"""The result of a league as values: a table for every world, and one over all worlds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from artesian.leagues.plan import LeaguePlan, Pair
from artesian.leagues.statistics import Paired, Spread, best, holm, interval, name_of_test, near, paired, ranks, spread

FIGURES = (
    "client_after", "client_accepted", "clients", "cluster", "kl", "kl_uniform", "worse_drawn", "worse_accepted",
    "bytes_up", "bytes_down", "virtual_time", "wall_seconds",
)  # fmt: skip
PER_UPLOAD = ("bytes_up", "bytes_down")
LOWER = ("kl", "worse_drawn", "worse_accepted", "bytes_up", "bytes_down", "virtual_time")  # less is better
UNJUDGED = ("kl_uniform", "wall_seconds")  # figures that make no method better than another
Summary = Mapping[str, Any]
Summaries = Mapping[Pair, Mapping[int, Summary]]  # of finished runs, by seed


@dataclass(frozen=True)
class WorldTable:
    """The methods in one world: every figure as mean and standard deviation over the seeds that are compared."""

    world: str
    length: str
    classifies: bool  # whether scores are accuracies
    planned: tuple[int, ...]  # seeds
    seeds: Mapping[str, tuple[int, ...]]  # by method: those that finished
    compared: tuple[int, ...]  # those that finished with every method that has any; where there is none, all
    rows: Mapping[str, Mapping[str, Spread]]  # by method and figure
    scores: Mapping[str, Spread]  # by method: what clients end up with
    won: Mapping[str, Mapping[str, float]]  # by method: which share of their choices each candidate won, if they choose

    @property
    def uneven(self) -> bool:
        """Are methods compared by different seeds, because there is none with which all of them finished?"""
        return any(seeds and not set(self.compared) <= set(seeds) for seeds in self.seeds.values())

    @property
    def ranks(self) -> dict[str, float]:
        """By the mean of what clients end up with, 1 for the best; only of methods with a finished run."""
        return ranks({method: score.mean for method, score in self.scores.items()})

    @property
    def leading(self) -> set[str]:
        """The first, and all within one standard deviation of it."""
        return near(self.scores)

    def figures(self, name: str) -> dict[str, Spread]:
        """One figure of all methods that have it."""
        return {method: row[name] for method, row in self.rows.items() if name in row}

    def best(self, name: str) -> set[str]:
        """Who has the best of a figure, where it makes a method better."""
        return set() if name in UNJUDGED else best(self.figures(name), _sign(name))

    def near(self, name: str) -> set[str]:
        """Who is within one standard deviation of the best of a figure."""
        return set() if name in UNJUDGED else near(self.figures(name), _sign(name))


@dataclass(frozen=True)
class OverallRow:
    """One method over all worlds."""

    ranks: Mapping[str, float]  # by world, where it has one
    mean: float | None  # of its ranks
    interval: tuple[float, float] | None  # 95% of that mean, over worlds
    leading: int  # worlds in which it is first or within one standard deviation of the first
    against: Paired | None = None  # the first method of the file against this one
    p: float | None = None  # of that test, with Holm's correction


@dataclass(frozen=True)
class Standings:
    """The result of a league, as far as it has run."""

    worlds: Mapping[str, WorldTable]
    """A table for every world."""
    overall: Mapping[str, OverallRow]
    """A row for every method, in the order of the file."""
    test: str
    """The paired test: Wilcoxon signed-rank, or sign."""
    runs: int
    """How many runs the league has."""
    finished: int
    """How many have finished."""
    failed: Mapping[str, str] = field(default_factory=dict)
    """The message of every run that failed in this session."""
    versions: tuple[str, ...] = ()
    """Version and commit of the code that the runs began with."""

    @property
    def first(self) -> str:
        """The method that the others are compared with."""
        return next(iter(self.overall))

    def describe(self) -> dict[str, Any]:
        """Everything, as JSON values: a figure is [mean, standard deviation, number of seeds]."""
        return {
            "runs": self.runs,
            "finished": self.finished,
            "failed": dict(self.failed),
            "versions": list(self.versions),
            "test": self.test,
            "first": self.first,
            "worlds": {name: _described(table) for name, table in self.worlds.items()},
            "overall": {method: asdict(row) for method, row in self.overall.items()},
        }


def _described(table: WorldTable) -> dict[str, Any]:
    rows = {
        method: {
            "seeds": list(table.seeds[method]),
            "rank": table.ranks.get(method),
            "leading": method in table.leading,
            "score": _triple(table.scores.get(method)),
            **{name: _triple(row.get(name)) for name in FIGURES},
            "won": dict(table.won.get(method, {})) or None,
        }
        for method, row in table.rows.items()
    }
    told = {"length": table.length, "score": "accuracy" if table.classifies else "minus squared error"}
    return {**told, "seeds": list(table.planned), "methods": rows}


def _triple(figure: Spread | None) -> list[float] | None:
    return None if figure is None else [figure.mean, figure.deviation, figure.count]


def _sign(name: str) -> int:
    return -1 if name in LOWER else 1


# from the summaries of runs


def standings(plan: LeaguePlan, found: Summaries, failed: Mapping[str, str], versions: Sequence[str] = ()) -> Standings:
    """The tables of a league, from the summaries of its finished runs."""
    names = dict.fromkeys(pair.world for pair in plan.pairs)
    worlds = {name: _world(name, [pair for pair in plan.pairs if pair.world == name], found) for name in names}
    methods = [method.name for method in plan.league.methods if any(p.method == method.name for p in plan.pairs)]
    finished = sum(len(summaries) for summaries in found.values())
    overall = _overall(methods, worlds, found)
    return Standings(worlds, overall, name_of_test(), len(plan.runs), finished, failed, tuple(versions))


def _world(name: str, pairs: Sequence[Pair], found: Summaries) -> WorldTable:
    finished = {pair.method: found.get(pair, {}) for pair in pairs}
    compared = _compared([set(runs) for runs in finished.values() if runs])
    here = {method: {seed: runs[seed] for seed in compared if seed in runs} for method, runs in finished.items()}
    known = {m: [s for one in runs.values() if (s := score_of(one)) is not None] for m, runs in here.items()}
    scores = {method: spread(values) for method, values in known.items()}
    return WorldTable(
        world=name,
        length=" or ".join(dict.fromkeys(f"{pair.length} {pair.unit}" for pair in pairs)),
        classifies=all(pair.classifies for pair in pairs),
        planned=pairs[0].seeds,
        seeds={method: tuple(sorted(runs)) for method, runs in finished.items()},
        compared=compared,
        rows={method: _row(list(runs.values())) for method, runs in here.items()},
        scores={method: score for method, score in scores.items() if score is not None},
        won={method: shares for method, runs in here.items() if (shares := _won(list(runs.values())))},
    )


def _compared(finished: Sequence[set[int]]) -> tuple[int, ...]:
    """The seeds with which every method finished, or if there is none, all with which any did."""
    return tuple(sorted(set.intersection(*finished) or set.union(*finished))) if finished else ()


def _row(summaries: Sequence[Summary]) -> dict[str, Spread]:
    known = {name: [v for one in summaries if (v := figure(one, name)) is not None] for name in FIGURES}
    spreads = {name: spread(values) for name, values in known.items()}
    return {name: one for name, one in spreads.items() if one is not None}


def _won(summaries: Sequence[Summary]) -> dict[str, float]:
    """Which share of their choices each candidate won: the mean over the seeds that tell."""
    told = [one["won"] for one in summaries if one.get("won")]
    names = dict.fromkeys(name for shares in told for name in shares)
    return {name: sum(shares.get(name, 0.0) for shares in told) / len(told) for name in names}


def figure(summary: Summary, name: str) -> float | None:
    """A figure of a run's summary; of bytes, those of one upload."""
    value = summary.get(name)
    if value is None or name not in PER_UPLOAD:
        return value
    return value / summary["uploads"] if summary["uploads"] else None


def score_of(summary: Summary) -> float | None:
    """What clients end up with: what they accepted, or where there is no choice, what they drew."""
    accepted = summary.get("client_accepted")
    return summary.get("client_after") if accepted is None else accepted


def _overall(methods: Sequence[str], worlds: Mapping[str, WorldTable], found: Summaries) -> dict[str, OverallRow]:
    ranked = {name: table.ranks for name, table in worlds.items()}
    leading = [method for table in worlds.values() for method in table.leading]
    tests = {other: test for other in methods[1:] if (test := _against(methods[0], other, found))}
    corrected = holm({other: test.p for other, test in tests.items()})
    rows = {}
    for method in methods:
        own = {name: place[method] for name, place in ranked.items() if method in place}
        mean = spread(list(own.values()))
        rows[method] = OverallRow(
            own,
            None if mean is None else mean.mean,
            interval(list(own.values())),
            leading.count(method),
            tests.get(method),
            corrected.get(method),
        )
    return rows


def _against(first: str, other: str, found: Summaries) -> Paired | None:
    """The test of two methods over every world and seed with which both have finished."""
    one, two = _scores(first, found), _scores(other, found)
    differences = [score - two[key] for key, score in one.items() if key in two]
    return paired(differences) if differences else None


def _scores(method: str, found: Summaries) -> dict[tuple[str, int], float]:
    """What clients end up with, by world and seed."""
    every = {
        (pair.world, seed): score_of(one)
        for pair, runs in found.items()
        if pair.method == method
        for seed, one in runs.items()
    }
    return {key: score for key, score in every.items() if score is not None}
