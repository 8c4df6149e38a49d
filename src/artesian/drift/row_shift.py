"""Detectors for rows of numbers, features or a model's outputs: they need no labels."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np

from artesian.core import generator
from artesian.drift.detector import Batch, Drift, Part, part_of
from artesian.drift.label_shift import TINY, permutation_rules, window_rules
from artesian.drift.windows import ComparesWindows, TwoSamples, Windows
from artesian.errors import check
from artesian.params import seal

TERMS = 100  # of Kolmogorov's series, which converges long before


@dataclass
class KolmogorovSmirnov(ComparesWindows):
    """A Kolmogorov-Smirnov test in every direction, corrected for their number by Holm's method."""

    name: ClassVar[str] = "ks"
    part: Part = "features"  # or logits, or losses
    level: float = 0.01  # how often a window without drift raises a false alarm
    directions: int = 8  # longer rows are projected on so many random directions
    reference: int = 500  # samples to compare with
    window: int = 100  # samples that are compared, again and again
    seed: int = 0

    def __post_init__(self) -> None:
        check(self, row_rules(self.part, self.directions) | window_rules(self.level, self.reference, self.window))
        self._windows = Windows(self.reference, self.window, self.seed)

    def rows(self, batch: Batch) -> np.ndarray:
        return projected(part_of(batch, self.part, self.name), self.directions, self.seed)

    def judge(self, full: TwoSamples) -> Drift | None:
        gaps = largest_gaps(full.reference, full.window)
        chances = np.array([kolmogorov(gap, len(full.reference), len(full.window)) for gap in gaps])
        corrected = holm(chances)
        if corrected.min() > self.level:
            return None
        changed, width = int((corrected <= self.level).sum()), len(gaps)
        where = "" if width == 1 else f" in {changed} of {width} directions"
        why = f"the {self.part} changed{where} (smallest corrected p = {corrected.min():.3g})"
        return Drift(self.name, float(corrected.min()), self.level, full.samples, why)


@dataclass
class MeanDiscrepancy(ComparesWindows):
    """Maximum mean discrepancy with a Gaussian kernel, judged by a permutation test."""

    name: ClassVar[str] = "mmd"
    part: Part = "features"  # or logits, or losses
    level: float = 0.01  # how often a window without drift raises a false alarm
    directions: int = 16  # longer rows are projected on so many random directions
    reference: int = 200  # samples to compare with
    window: int = 100  # samples that are compared, again and again
    permutations: int = 199
    seed: int = 0

    def __post_init__(self) -> None:
        known = permutation_rules(self.level, self.reference, self.window, self.permutations)
        check(self, row_rules(self.part, self.directions) | known)
        self._windows = Windows(self.reference, self.window, self.seed)

    def rows(self, batch: Batch) -> np.ndarray:
        return projected(part_of(batch, self.part, self.name), self.directions, self.seed)

    def judge(self, full: TwoSamples) -> Drift | None:
        squared, p = mmd_test(full, self.permutations, self.seed)
        if p > self.level:
            return None
        why = f"the {self.part} are distributed otherwise (squared mean discrepancy {squared:.3g}, p = {p:.3g})"
        return Drift(self.name, p, self.level, full.samples, why)


def row_rules(part: str, directions: int) -> dict[str, bool]:
    """What the settings of a detector of rows obey."""
    known = ("features", "logits", "losses")
    return {"part is features, logits or losses": part in known, "directions is at least 1": directions >= 1}


def projected(rows: np.ndarray, directions: int, seed: int) -> np.ndarray:
    """A few numbers for every sample, so that little has to be kept: rows that are short, or random projections."""
    flat = rows.reshape(len(rows), -1).astype(np.float64) if len(rows) else np.zeros((0, 1))
    if flat.shape[1] > directions:
        flat = np.einsum("nd,dk->nk", flat, _directions(flat.shape[1], directions, seed))  # the same on any machine
    return flat.astype(np.float32)


@lru_cache(maxsize=16)
def _directions(width: int, count: int, seed: int) -> np.ndarray:
    """Random directions of length 1, in columns."""
    drawn = generator(seed, "directions", width).standard_normal((width, count))
    return seal(drawn / np.linalg.norm(drawn, axis=0))


def largest_gaps(reference: np.ndarray, window: np.ndarray) -> np.ndarray:
    """In every column, the largest difference of the two empirical distribution functions."""
    gaps = []
    for before, now in zip(reference.T, window.T, strict=True):
        before, now = np.sort(before), np.sort(now)
        at = np.concatenate([before, now])
        below = np.searchsorted(before, at, "right") / len(before) - np.searchsorted(now, at, "right") / len(now)
        gaps.append(float(np.abs(below).max()))
    return np.array(gaps)


def kolmogorov(gap: float, before: int, now: int) -> float:
    """How probable such a gap is between two samples of one distribution: Stephens' form of Kolmogorov's limit.

    Exact enough from about ten samples on; with ties it is an upper bound.
    """
    root = np.sqrt(before * now / (before + now))
    scaled = (root + 0.12 + 0.11 / root) * gap
    if scaled < 0.2:  # the series converges slowly there, to 1
        return 1.0
    terms = np.arange(1, TERMS + 1)
    total = 2 * np.sum((-1.0) ** (terms - 1) * np.exp(-2 * np.square(terms * scaled)))
    return float(min(1.0, max(0.0, total)))


def holm(chances: np.ndarray) -> np.ndarray:
    """Probabilities corrected for testing so many: the smallest times their number, the next times one less, ..."""
    order = np.argsort(chances, kind="stable")
    steps = np.maximum.accumulate(chances[order] * np.arange(len(chances), 0, -1))
    corrected = np.empty_like(steps)
    corrected[order] = np.minimum(steps, 1.0)
    return corrected


def mmd_test(full: TwoSamples, permutations: int, seed: int) -> tuple[float, float]:
    """The squared mean discrepancy, and how probable it is if reference and window are one distribution."""
    before, now = len(full.reference), len(full.window)
    kernel = _kernel(np.concatenate([full.reference, full.window]).astype(np.float64))
    rng = generator(seed, "mmd", full.test)
    windows = [np.arange(before, before + now), *(rng.permutation(before + now)[:now] for _ in range(permutations))]
    whole, sums = kernel.sum(), kernel.sum(axis=1)
    one, two = 1 / before, 1 / before + 1 / now  # a sample of the reference weighs one, of the window one - two
    found = np.array([one**2 * whole - 2 * one * two * sums[w].sum() + two**2 * _within(kernel, w) for w in windows])
    return float(found[0]), float(np.mean(found >= found[0] - TINY))


def _within(kernel: np.ndarray, rows: np.ndarray) -> float:
    return float(np.take(kernel, rows, axis=0).sum(axis=0)[rows].sum())


def _kernel(rows: np.ndarray) -> np.ndarray:
    """exp(-||a - b||^2 / median): Gaussian, as wide as two samples usually are apart."""
    lengths = np.square(rows).sum(axis=1)
    products = np.einsum("id,jd->ij", rows, rows)
    squared = np.maximum(lengths[:, None] + lengths[None] - 2 * products, 0)
    usual = float(np.median(squared[np.triu_indices(len(rows), 1)]))
    return np.exp(-squared / usual) if usual > 0 else (squared == 0).astype(np.float64)
