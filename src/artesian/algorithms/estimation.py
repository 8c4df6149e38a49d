"""How much of each cluster a client is: CDFL's rule, and what every estimator shares.

Estimators by name: `paper` is CDFL's rule; `calibrated` is that of `artesian.algorithms.calibration`; with `client` the
client estimates itself, for which all clusters travel; `oracle` is the true mixture, which only a simulation knows.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Literal

import numpy as np

from artesian.core import ClusterId, Evidence, Mixture
from artesian.errors import SettingError

TINY = 1e-12


def estimate(
    metrics: np.ndarray,
    bars: Sequence[float | np.ndarray | Literal["min"]],
    c1: float,
    c2: float,
    amplifiers: Sequence[float],
    clamp: bool = True,
) -> tuple[np.ndarray, np.ndarray, int]:
    """The raw shares, the estimated mixture (alpha-hat), and how many metrics were below their bar."""
    count = metrics.shape[1]
    if count == 1:
        return np.ones(1), np.ones(1), 0
    clamped = 0
    raw = np.zeros(count)
    for row, bar, weight in zip(metrics, bars, (c1, c2, 1 - c1 - c2), strict=True):
        x = row - (row.min() if isinstance(bar, str) else bar)
        if clamp:
            clamped += int((x < 0).sum())
            x = np.maximum(x, 0.0)
        raw += weight * _ratios(x, float(np.abs(row).max())) / (count - 1)
    shares = raw
    for amplifier in amplifiers:
        shares = softmax(amplifier * shares)
    return raw, shares, clamped


def _ratios(x: np.ndarray, largest: float) -> np.ndarray:
    """r_k = 1 - x_k / sum x; where the sum vanishes nobody is nearer than the others."""
    total = float(x.sum())
    if abs(total) <= TINY * max(1.0, largest):
        return np.full(len(x), (len(x) - 1) / len(x))
    return 1 - x / total


def softmax(x: np.ndarray) -> np.ndarray:
    """Positive shares that sum to 1 along the last axis, in proportion to exp(x)."""
    powers = np.exp(x - x.max(axis=-1, keepdims=True))
    shares: np.ndarray = powers / powers.sum(axis=-1, keepdims=True)
    return shares


def truth_in(truth: Mixture | None) -> dict[str, float]:
    """The true mixture as evidence; refused where nobody knows it."""
    if truth is None:
        raise SettingError(
            'The estimator "oracle" needs the true mixture: only a simulation without HTTP knows it, '
            "and only of uploads that no defence shortened",
            "Choose another algorithm.estimator, or leave the defence out",
        )
    return {f"share/{k}": share for k, share in truth.items()}


def told_shares(evidence: Evidence, clusters: Collection[ClusterId]) -> np.ndarray:
    """The shares of these clusters that evidence holds, which sum to 1; even ones where it holds none."""
    shares = np.array([evidence.get(f"share/{k}", 0.0) for k in clusters])
    return normalised(shares)


def normalised(shares: np.ndarray) -> np.ndarray:
    """Shares that sum to 1; even ones where all are 0."""
    total = float(shares.sum())
    return shares / total if total > 0 else np.full(len(shares), 1 / len(shares))
