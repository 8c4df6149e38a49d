"""Detectors of a rise in losses or errors, sample by sample: ADWIN, Page-Hinkley and KSWIN of the package river."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, ClassVar, Literal, Protocol

import numpy as np

from artesian.core import Tree
from artesian.drift.detector import Batch, Drift, Part, part_of
from artesian.errors import MissingExtra, check

Direction = Literal["up", "both"]  # a model that does better is no reason to refresh, unless one wants to know


class Replay:
    """A test, and all it was fed since it began: fed the same again, a new one is in the same state.

    When that grows beyond `most` samples, the test begins anew with the last `after` of them, at the same sample
    whether or not the process was restarted. So later answers are the same, and what is kept stays small.
    """

    def __init__(self, most: int, after: int | None = None) -> None:
        self._most, self._after = most, most // 2 if after is None else after
        self.reset()

    def reset(self) -> None:
        """Nothing was seen."""
        self.test: Any = None
        self.kept: list[float] = []
        self.seen = 0

    def feed(self, number: float, begin: Callable[[], Any]) -> bool:
        """One sample more; whether the test, which `begin` makes, found drift in it."""
        if self.test is None or len(self.kept) >= self._most:
            self.kept = self.kept[-self._after :] if len(self.kept) >= self._most else self.kept
            self.test = self._fed(begin)
        self.test.update(number)
        self.kept.append(number)
        self.seen += 1
        return bool(self.test.drift_detected)

    def begin_anew(self) -> None:
        """After a drift, as river's tests do themselves."""
        self.test, self.kept = None, []

    def state(self) -> Tree:
        """What it was fed."""
        return {"kept": np.array(self.kept, np.float64), "seen": self.seen}

    def restore(self, state: Tree) -> None:
        """Go on from what `state` gave; the test is made when it is needed."""
        self.test, self.kept, self.seen = None, np.asarray(state["kept"]).tolist(), int(state["seen"])

    def _fed(self, begin: Callable[[], Any]) -> Any:
        test = begin()
        for number in self.kept:
            test.update(number)
        return test


class FeedsTest(Protocol):
    """A detector that feeds a test of river with one number after the other."""

    name: ClassVar[str]
    part: Part
    direction: Direction
    _replay: Replay

    def begin(self) -> Any:
        """A test that has seen nothing."""
        ...

    def recent(self, test: Any) -> int:
        """How many of the last samples are the new kind, after the test found drift."""
        ...

    def threshold(self) -> float:
        """What a drift says that it was compared with."""
        ...

    def observe(self, batch: Batch) -> Drift | None:
        """Feed a whole batch; the first drift in it that goes the way the detector looks."""
        first: Drift | None = None
        for number in part_of(batch, self.part, self.name).astype(np.float64).tolist():
            if self._replay.feed(number, self.begin):
                found = _drift(self, self._replay)
                self._replay.begin_anew()
                first = first or found
        return first

    def reset(self) -> None:
        self._replay.reset()

    def state(self) -> Tree:
        return self._replay.state()

    def restore(self, state: Tree) -> None:
        self._replay.restore(state)


@dataclass
class Adwin(FeedsTest):
    """ADWIN (Bifet and Gavalda 2007): do the older and the newer part of what was seen differ in their mean?"""

    name: ClassVar[str] = "adwin"
    part: Part = "errors"  # or losses, to which its guarantee applies only where they lie in [0, 1]
    level: float = 0.002  # delta of the paper
    direction: Direction = "up"
    memory: int = 2000  # samples it looks back, at most

    def __post_init__(self) -> None:
        rules = {
            "level is in (0, 1)": 0 < self.level < 1,
            "memory is at least 100": self.memory >= 100,
            **_stream_rules(self.part, self.direction),
        }
        check(self, rules)
        _check_river()
        self._replay = Replay(self.memory)

    def begin(self) -> Any:
        return _river("ADWIN")(delta=self.level)

    def recent(self, test: Any) -> int:
        return int(test.width)

    def threshold(self) -> float:
        return self.level


@dataclass
class PageHinkley(FeedsTest):
    """Page-Hinkley (Page 1954): has the sum of what exceeds the mean, less a tolerance, grown too large?"""

    name: ClassVar[str] = "page-hinkley"
    part: Part = "losses"  # or errors
    limit: float = 50.0  # lambda: how far the sum may rise above its lowest value
    tolerance: float = 0.005  # delta: how much above the mean is nothing
    fading: float = 0.9999  # alpha: how much of the sum stays from sample to sample
    direction: Direction = "up"
    memory: int = 2000  # samples it looks back, at most

    def __post_init__(self) -> None:
        rules = {
            "limit is above 0": self.limit > 0,
            "tolerance is at least 0": self.tolerance >= 0,
            "fading is in (0, 1]": 0 < self.fading <= 1,
            "memory is at least 100": self.memory >= 100,
            **_stream_rules(self.part, self.direction),
        }
        check(self, rules)
        _check_river()
        self._replay = Replay(self.memory)

    def begin(self) -> Any:
        settings = {"delta": self.tolerance, "threshold": self.limit, "alpha": self.fading, "mode": self.direction}
        return _river("PageHinkley")(min_instances=30, **settings)

    def recent(self, test: Any) -> int:
        """How many samples came since the sum was lowest."""
        kept = np.array(self._replay.kept)
        above = kept - np.cumsum(kept) / np.arange(1, len(kept) + 1) - self.tolerance
        total, sums = 0.0, []
        for excess in above.tolist():
            total = self.fading * total + excess
            sums.append(total)
        return int(np.argmin(sums[::-1]))

    def threshold(self) -> float:
        return self.limit


@dataclass
class Kswin(FeedsTest):
    """KSWIN (Raab et al. 2020): do the last samples differ from earlier ones, by a Kolmogorov-Smirnov test?"""

    name: ClassVar[str] = "kswin"
    part: Part = "losses"  # or errors
    level: float = 0.0001  # alpha: of the test that is made at every sample
    window: int = 100  # samples it looks back
    newest: int = 30  # of them are compared with as many of the others
    direction: Direction = "up"
    seed: int = 0

    def __post_init__(self) -> None:
        rules = {
            "level is in (0, 1)": 0 < self.level < 1,
            "newest is at least 5": self.newest >= 5,
            "window is at least twice newest": self.window >= 2 * self.newest,
            **_stream_rules(self.part, self.direction),
        }
        check(self, rules)
        _check_river()
        self._replay = Replay(3 * self.window, self.window - 1)

    def begin(self) -> Any:
        return _river("KSWIN")(alpha=self.level, window_size=self.window, stat_size=self.newest, seed=self.seed)

    def recent(self, test: Any) -> int:
        return self.newest

    def threshold(self) -> float:
        return self.level


def _drift(detector: FeedsTest, replay: Replay) -> Drift | None:
    """What changed: the mean before and since; None where it fell and only rises count."""
    recent = min(max(detector.recent(replay.test), 1), len(replay.kept) - 1)
    before, now = float(np.mean(replay.kept[:-recent])), float(np.mean(replay.kept[-recent:]))
    if detector.direction == "up" and now <= before:
        return None
    what = "share of errors" if detector.part == "errors" else "mean loss"
    why = f"the {what} went from {before:.3g} to {now:.3g}"
    return Drift(detector.name, now - before, detector.threshold(), replay.seen, why)


def _stream_rules(part: str, direction: str) -> dict[str, bool]:
    return {
        "part is losses or errors": part in ("losses", "errors"),
        "direction is up or both": direction in ("up", "both"),
    }


def _check_river() -> None:
    """Refuse a detector at once where its package is missing; importing that takes long, and comes with the data."""
    if find_spec("river") is None:
        raise MissingExtra("river", "drift")


def _river(name: str) -> Any:
    import river.drift

    return vars(river.drift)[name]
