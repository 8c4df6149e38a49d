"""The statistics of a league: means and spreads, ranks, intervals, paired tests. Pure functions of numbers."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import comb
from typing import TypeVar

import numpy as np

from artesian.core import generator

DRAWS = 10_000  # of a bootstrap
Name = TypeVar("Name")


@dataclass(frozen=True)
class Spread:
    """A figure over seeds: mean and standard deviation, which is 0 for one seed."""

    mean: float
    deviation: float
    count: int


@dataclass(frozen=True)
class Paired:
    """The first method against another one over the runs that both have."""

    better: int  # pairs in which the first was better
    worse: int
    even: int
    p: float  # two-sided, before any correction


def spread(values: Sequence[float]) -> Spread | None:
    """Mean and standard deviation of some numbers; None where there are none."""
    if not values:
        return None
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    return Spread(statistics.fmean(values), deviation, len(values))


def best(figures: Mapping[Name, Spread], sign: int = 1) -> set[Name]:
    """Whose mean is the highest, or with the sign -1 the lowest: several where they are equal."""
    first = max((sign * figure.mean for figure in figures.values()), default=0.0)
    return {name for name, figure in figures.items() if sign * figure.mean == first}


def near(figures: Mapping[Name, Spread], sign: int = 1) -> set[Name]:
    """The best, and all whose mean is within one standard deviation of the best's: of equals, the larger one."""
    first = [figures[name] for name in best(figures, sign)]
    bar = min((sign * figure.mean - figure.deviation for figure in first), default=0.0)
    return {name for name, figure in figures.items() if sign * figure.mean >= bar}


def ranks(scores: Mapping[Name, float]) -> dict[Name, float]:
    """1 for the highest score; equal scores share the mean of their ranks.

    >>> ranks({"a": 0.9, "b": 0.7, "c": 0.9})
    {'a': 1.5, 'b': 3.0, 'c': 1.5}
    """
    every = list(scores.values())
    return {name: sum(v > s for v in every) + (every.count(s) + 1) / 2 for name, s in scores.items()}


def interval(values: Sequence[float], share: float = 0.95) -> tuple[float, float] | None:
    """Where the mean lies in this share of all bootstraps of the values; None of fewer than two."""
    if len(values) < 2:
        return None
    rows = generator(0, "league").integers(0, len(values), (DRAWS, len(values)))
    low, high = np.quantile(np.asarray(values)[rows].mean(axis=1), [(1 - share) / 2, (1 + share) / 2])
    return float(low), float(high)


def paired(differences: Sequence[float]) -> Paired:
    """A paired test of whether differences lean to one side: Wilcoxon's, or without scipy the sign test."""
    better, worse = sum(d > 0 for d in differences), sum(d < 0 for d in differences)
    p = wilcoxon([d for d in differences if d]) if has_scipy() else sign_test(better, worse)
    return Paired(better, worse, len(differences) - better - worse, p)


def name_of_test() -> str:
    """Which paired test is made here."""
    return "Wilcoxon signed-rank" if has_scipy() else "sign"


def has_scipy() -> bool:
    """Whether scipy is installed."""
    try:
        import scipy  # noqa: F401
    except ModuleNotFoundError:
        return False
    return True


def wilcoxon(differences: Sequence[float]) -> float:
    """The two-sided p-value of Wilcoxon's signed-rank test of differences other than 0."""
    from scipy.stats import wilcoxon as test

    return float(test(differences).pvalue) if differences else 1.0


def sign_test(better: int, worse: int) -> float:
    """The two-sided p-value of the exact sign test: twice the smaller tail of a fair coin, at most 1.

    >>> sign_test(5, 0)
    0.0625
    """
    count = better + worse
    tail = sum(comb(count, i) for i in range(min(better, worse) + 1))
    return min(1.0, 2 * tail / 2**count)


def holm(values: Mapping[Name, float]) -> dict[Name, float]:
    """Holm's correction of p-values for several comparisons: the smallest times their number, the next times one less.

    >>> holm({"a": 0.03, "b": 0.01, "c": 0.04})
    {'a': 0.06, 'b': 0.03, 'c': 0.06}
    """
    corrected, highest = dict(values), 0.0
    for i, name in enumerate(sorted(values, key=lambda name: values[name])):
        highest = max(highest, min(1.0, (len(values) - i) * values[name]))
        corrected[name] = highest
    return corrected
