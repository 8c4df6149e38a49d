"""Standardised inputs: from every number of a sample its mean is taken away, and the rest divided by its spread."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from artesian.data.datasets import Samples, as_floats

Standardise = Literal["none", "pixel", "channel"]
Training = tuple[np.ndarray, np.ndarray]  # samples x numbers, and the rows of them that clients train on
LEAST = 0.001  # added to every standard deviation: a pixel that never changes has none
PIECE = 2000  # rows that are floats at a time


@dataclass(frozen=True)
class Scale:
    """What is taken away from each number of a sample, and what it is then divided by."""

    mean: np.ndarray
    spread: np.ndarray

    def standardised(self, samples: Samples) -> Samples:
        return Samples((samples.x - self.mean) / self.spread, samples.y)


def scale_of(training: Iterable[Training], channels: int | None = None) -> Scale:
    """The mean and standard deviation (+ 0.001) of every number, or with `channels` of all numbers of each channel.

    Samples of several arrays are taken as one set, so that all of them are standardised alike.
    """
    parts = list(training)
    samples = sum(len(rows) for _, rows in parts)
    mean = sum(piece.sum(axis=0) for piece in _pieces(parts)) / samples
    variance = sum(np.square(piece - mean).sum(axis=0) for piece in _pieces(parts)) / samples
    if channels is not None:
        mean, variance = _pooled(mean, variance, channels)
    return Scale(mean.astype(np.float32), (np.sqrt(variance) + LEAST).astype(np.float32))


def _pieces(parts: Iterable[Training]) -> Iterator[np.ndarray]:
    """The rows of all arrays in float64, a few at a time, so that they take little room."""
    for x, rows in parts:
        for first in range(0, len(rows), PIECE):
            yield as_floats(x[rows[first : first + PIECE]]).astype(np.float64)


def _pooled(mean: np.ndarray, variance: np.ndarray, channels: int) -> tuple[np.ndarray, np.ndarray]:
    """Means and variances of channels, each as often as the channel has pixels."""
    means, variances = mean.reshape(channels, -1), variance.reshape(channels, -1)
    centre = means.mean(axis=1, keepdims=True)
    pooled = (variances + np.square(means - centre)).mean(axis=1, keepdims=True)
    return np.broadcast_to(centre, means.shape).ravel(), np.broadcast_to(pooled, means.shape).ravel()
