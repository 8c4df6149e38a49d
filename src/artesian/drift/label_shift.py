"""Detectors that count labels: a two-sample test of the histograms, and the rule of FlexCFL."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from artesian.core import Tree, generator
from artesian.drift.detector import Batch, Drift, Part, part_of
from artesian.drift.windows import ComparesWindows, TwoSamples, Windows
from artesian.errors import BadData, check
from artesian.recipes.labels import shifted

TINY = 1e-12  # two statistics that are no further apart are equal
Distance = Literal["hellinger", "total_variation", "jensen_shannon", "chi_square", "g"]


@dataclass
class Labels(ComparesWindows):
    """Do the labels of a window come from the distribution of the reference? A permutation test of the histograms."""

    name: ClassVar[str] = "labels"
    part: ClassVar[Part] = "labels"
    level: float = 0.01  # how often a window without drift raises a false alarm
    distance: Distance = "hellinger"
    least: float = 0.0  # a smaller distance is no drift, however sure it is
    reference: int = 500  # samples to compare with
    window: int = 100  # samples that are compared, again and again
    permutations: int = 999
    seed: int = 0

    def __post_init__(self) -> None:
        rules = permutation_rules(self.level, self.reference, self.window, self.permutations)
        rules[f"distance is {', '.join(DISTANCES)}"] = self.distance in DISTANCES
        check(self, rules | {"least is at least 0": self.least >= 0})
        self._windows = Windows(self.reference, self.window, self.seed)

    def rows(self, batch: Batch) -> np.ndarray:
        return whole_labels(batch, self.name)

    def judge(self, full: TwoSamples) -> Drift | None:
        found, p = label_test(full, self.distance, self.permutations, self.seed)
        if p > self.level or found < self.least:
            return None
        why = f"the labels are distributed otherwise ({self.distance.replace('_', ' ')} {found:.3g}, p = {p:.3g})"
        return Drift(self.name, p, self.level, full.samples, why)


@dataclass
class FlexcflLabels:
    """FlexCFL's rule: have so many of a client's labels changed since the reference, the first batch?

    A batch is all the data that the client has now. The rule counts samples, so more or fewer of them count as well.
    """

    name: ClassVar[str] = "flexcfl"
    part: ClassVar[Part] = "labels"
    fraction: float = 0.2  # of the samples: that many changed ones are a drift
    distance: Literal["changed", "mean_abs", "sorted_w1"] = "changed"

    def __post_init__(self) -> None:
        rules = {
            "fraction is in (0, 1]": 0 < self.fraction <= 1,
            "distance is changed, mean_abs or sorted_w1": self.distance in ("changed", "mean_abs", "sorted_w1"),
        }
        check(self, rules)
        self._before: list[int] = []
        self._samples = 0

    def observe(self, batch: Batch) -> Drift | None:
        labels = whole_labels(batch, self.name)
        if not len(labels):
            return None
        if labels.min() < 0 or labels.max() >= LARGEST:
            raise BadData(
                f"The labels go from {labels.min()} to {labels.max()}", f"Give labels from 0 to {LARGEST - 1}"
            )
        counts = np.bincount(labels).tolist()
        self._samples += len(labels)
        if not self._before:
            self._before = counts
            return None
        share = shifted(counts, self._before, self.distance, len(labels))
        if share < self.fraction:
            return None
        why = f"{share:.0%} of the samples have other labels, or are new or gone"
        return Drift(self.name, share, self.fraction, self._samples, why)

    def reset(self) -> None:
        self._before, self._samples = [], 0

    def state(self) -> Tree:
        return {"before": list(self._before), "samples": self._samples}

    def restore(self, state: Tree) -> None:
        self._before, self._samples = [int(count) for count in state["before"]], int(state["samples"])


LARGEST = 1 << 16  # labels that FlexCFL's rule counts


def whole_labels(batch: Batch, detector: str) -> np.ndarray:
    """The labels as whole numbers; others are refused."""
    labels = part_of(batch, "labels", detector)
    if labels.dtype.kind == "f" and (labels != np.floor(labels)).any():
        raise BadData("The labels are not whole numbers", "Give classes; for a regression watch losses or features")
    return labels.astype(np.int64)


def label_test(full: TwoSamples, distance: str, permutations: int, seed: int) -> tuple[float, float]:
    """How far the histograms are apart, and how probable that is if reference and window are one distribution.

    Windows of the same size, drawn from both together, show what is usual: counts of a multivariate hypergeometric.
    """
    _, places = np.unique(np.concatenate([full.reference, full.window]), return_inverse=True)
    before = len(full.reference)
    pooled, own = np.bincount(places), np.bincount(places[before:], minlength=places.max() + 1)
    rng = generator(seed, "labels", full.test)
    drawn = rng.multivariate_hypergeometric(pooled, len(full.window), size=permutations)
    windows = np.concatenate([own[None], drawn])
    share = before / len(places)
    found = DISTANCES[distance]((pooled - windows) / before, windows / len(full.window), share)
    return float(found[0]), float(np.mean(found >= found[0] - TINY))


def window_rules(level: float, reference: int, window: int) -> dict[str, bool]:
    """What the settings of a test of full windows obey."""
    return {
        "level is in (0, 1)": 0 < level < 1,
        "reference is at least 10": reference >= 10,
        "window is at least 10": window >= 10,
    }


def permutation_rules(level: float, reference: int, window: int, permutations: int) -> dict[str, bool]:
    """The same with permutations: fewer than 1 / level could never raise an alarm."""
    enough = (permutations + 1) * level >= 1 - TINY
    return window_rules(level, reference, window) | {"permutations is at least 1 / level - 1": enough}


def _hellinger(before: np.ndarray, now: np.ndarray, share: float) -> np.ndarray:
    return np.sqrt(np.square(np.sqrt(before) - np.sqrt(now)).sum(axis=1) / 2)


def _total_variation(before: np.ndarray, now: np.ndarray, share: float) -> np.ndarray:
    return np.abs(before - now).sum(axis=1) / 2


def _jensen_shannon(before: np.ndarray, now: np.ndarray, share: float) -> np.ndarray:
    """The distance: the root of the divergence in bits."""
    return np.sqrt(np.maximum(_g(before, now, 0.5), 0))


def _chi_square(before: np.ndarray, now: np.ndarray, share: float) -> np.ndarray:
    """Pearson's statistic, for each of the samples."""
    both = share * before + (1 - share) * now
    squares = share * np.square(before - both) + (1 - share) * np.square(now - both)
    return np.divide(squares, both, out=np.zeros_like(both), where=both > 0).sum(axis=1)


def _g(before: np.ndarray, now: np.ndarray, share: float) -> np.ndarray:
    """The logarithm of the likelihood ratio in bits, for each of the samples."""
    both = share * before + (1 - share) * now
    return share * _divergence(before, both) + (1 - share) * _divergence(now, both)


def _divergence(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Kullback-Leibler, in bits; where `one` is 0 nothing is added."""
    ratio = np.divide(one, other, out=np.ones_like(one), where=one > 0)
    return (one * np.log2(ratio)).sum(axis=1)


Compare = Callable[[np.ndarray, np.ndarray, float], np.ndarray]
DISTANCES: dict[str, Compare] = {
    "hellinger": _hellinger,
    "total_variation": _total_variation,
    "jensen_shannon": _jensen_shannon,
    "chi_square": _chi_square,
    "g": _g,
}  # of the labels' shares before and now, in rows, where the reference is this share of all samples
