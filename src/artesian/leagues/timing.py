"""How long a league will take: what runs took so far, put to those that are left."""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from artesian.leagues.plan import Pair, PlannedRun
from artesian.leagues.results import Results
from artesian.simulator.folder import read_json
from artesian.simulator.saved_runs import progress_in
from artesian.storage.files import write_file

FILE = "timings.json"


@dataclass(frozen=True)
class Timing:
    """How long a run of a pair takes: seconds until its first upload, then seconds for each upload or round."""

    starting: float
    each: float

    def seconds(self, left: int) -> float:
        """For a run of which so much is left."""
        return self.starting + left * self.each if left else 0.0


@dataclass
class RunTimer:
    """What is seen of one run while it lasts, by the clock of whoever calls."""

    began: float
    first: tuple[float, int] | None = None  # when something was done first, and how much
    last: tuple[float, int] | None = None

    def see(self, now: float, done: int) -> None:
        """So much is done now."""
        self.first = self.first or (now, done)
        self.last = now, done

    @property
    def seconds(self) -> float:
        """How long something was seen to be done."""
        return self.last[0] - self.first[0] if self.first and self.last else 0.0

    @property
    def timing(self) -> Timing | None:
        """None until two moments were seen between which something was done."""
        if self.first is None or self.last is None or self.last[1] <= self.first[1]:
            return None
        return Timing(self.first[0] - self.began, self.seconds / (self.last[1] - self.first[1]))


@dataclass(frozen=True)
class Estimate:
    """How long what is left of a league takes."""

    finished: int
    begun: int
    waiting: int
    jobs: int
    seconds: float  # of the runs whose pair was timed, or follows from others
    untimed: tuple[Pair, ...] = field(default=())  # pairs with something left of which nothing is known

    @property
    def runs(self) -> int:
        """All of them."""
        return self.finished + self.begun + self.waiting

    def __str__(self) -> str:
        parts = {"finished": self.finished, "begun": self.begun, "to begin": self.waiting}
        told = ", ".join(f"{count} {name}" for name, count in parts.items() if count)
        runs = f"{self.runs} run{'s' if self.runs > 1 else ''} ({told})"
        if not self.begun and not self.waiting:
            return f"{runs}: nothing is left"
        untimed = f"{len(self.untimed)} of the methods in a world are not timed yet"
        if self.untimed and not self.seconds:
            return f"{runs}: how long is not known yet; {untimed}"
        least, unknown = ("at least ", f"; {untimed}") if self.untimed else ("about ", "")
        return f"{runs}: {least}{duration(self.seconds)} with {self.jobs} at once{unknown}"


def estimate(
    left: Mapping[PlannedRun, int], timings: Mapping[Pair, Timing], jobs: int, begun: int = 0, finished: int = 0
) -> Estimate:
    """How long runs take of which so much is left, as many at once as there are jobs."""
    timings = with_guesses(timings, {run.pair for run in left})
    seconds = [timings[run.pair].seconds(count) for run, count in left.items() if run.pair in timings]
    untimed = tuple(dict.fromkeys(run.pair for run in left if run.pair not in timings))
    return Estimate(finished, begun, len(left) - begun, jobs, makespan(seconds, jobs), untimed)


def makespan(seconds: Iterable[float], jobs: int) -> float:
    """When the last one ends, where each begins as soon as one of so many places is free.

    >>> makespan([3.0, 1.0, 1.0, 4.0], 2)
    6.0
    """
    free = [0.0] * jobs
    for one in seconds:
        heapq.heapreplace(free, free[0] + one)
    return max(free)


def to_time(pairs: Iterable[Pair], timings: Mapping[Pair, Timing]) -> list[Pair]:
    """The pairs to time, so that every world and every method is timed once at least: the others follow from these."""
    worlds, methods = {pair.world for pair in timings}, {pair.method for pair in timings}
    chosen = []
    for pair in pairs:
        if pair.world not in worlds or pair.method not in methods:
            chosen.append(pair)
            worlds.add(pair.world)
            methods.add(pair.method)
    return chosen


def with_guesses(timings: Mapping[Pair, Timing], pairs: Iterable[Pair]) -> dict[Pair, Timing]:
    """The timings, and for pairs that were not timed what the others make likely, where they tell."""
    guesses = {pair: _guess(pair, timings) for pair in pairs if pair not in timings}
    return {**timings, **{pair: guess for pair, guess in guesses.items() if guess is not None}}


def _guess(pair: Pair, timings: Mapping[Pair, Timing]) -> Timing | None:
    """What another method takes in this world, times how much longer this method takes than that one elsewhere.

    The median over all such methods and worlds.
    """
    work = {(known.world, known.method): timing.each * known.length for known, timing in timings.items()}
    here = {method: seconds for (world, method), seconds in work.items() if world == pair.world}
    like = [
        here[method] * work[world, pair.method] / seconds
        for (world, method), seconds in work.items()
        if method in here and seconds and (world, pair.method) in work
    ]
    if not like:
        return None
    starting = max(timing.starting for known, timing in timings.items() if known.world == pair.world)
    return Timing(starting, median(like) / pair.length)


def left_of(runs: Sequence[PlannedRun], results: Results) -> dict[PlannedRun, int]:
    """How much is left of every run that has not finished: uploads, rounds or turns."""
    return {run: max(1, run.pair.length - _done(run, results.folder)) for run in runs if run not in results}


def _done(run: PlannedRun, folder: Path) -> int:
    return progress_in(folder / run.folder)[run.pair.unit]


def duration(seconds: float) -> str:
    """Seconds in words: `40 s`, `3 min`, `2 h 5 min`."""
    minutes = round(seconds / 60)
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"


# on disk


def read_timings(folder: Path, pairs: Iterable[Pair]) -> dict[Pair, Timing]:
    """What earlier sessions found, of these pairs."""
    path = folder / FILE
    found = read_json(path) if path.exists() else {}
    told = {pair: found.get(str(pair.folder)) for pair in pairs}
    return {pair: Timing(*seconds) for pair, seconds in told.items() if seconds is not None}


def write_timings(folder: Path, timings: Mapping[Pair, Timing]) -> None:
    """Keep what was found for the next session."""
    told = {
        str(pair.folder): [round(timing.starting, 3), round(timing.each, 6)] for pair, timing in dict(timings).items()
    }
    write_file(folder / FILE, json.dumps(told, indent=2).encode(), sync=False)
