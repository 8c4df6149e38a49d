"""Curves: what the tables of run folders hold, as means over seeds."""

from __future__ import annotations

import csv
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from artesian.errors import StorageError
from artesian.storage.files import storage

POINTS = 40  # of a curve over uploads: each is the mean of what came since the one before


@dataclass(frozen=True)
class Curve:
    """One method over uploads: the mean over its seeds, and one standard deviation to each side."""

    x: np.ndarray
    mean: np.ndarray
    deviation: np.ndarray

    @property
    def band(self) -> tuple[np.ndarray, np.ndarray]:
        """One standard deviation to each side; nothing that is never below zero is shown there."""
        low, high = self.mean - self.deviation, self.mean + self.deviation
        return (low if np.nanmin(self.mean) < 0 else np.maximum(low, 0)), high

    @property
    def empty(self) -> bool:
        return not np.isfinite(self.mean).any()


def of_uploads(runs: Mapping[Path, int], column: str) -> Curve:
    """A column of `metrics.csv`, smoothed: clients differ more among each other than a method does in time.

    The seeds of one method, each as its folder and the uploads it lasted.
    """
    most = max(runs.values())
    edges = np.unique(np.linspace(0, most, min(POINTS, most) + 1).round())
    lines = []
    for folder, uploads in runs.items():
        at, values = read(folder / "metrics.csv", column, uploads)
        place = np.searchsorted(edges, at, side="left") - 1  # in (edge, next edge]
        kept = np.isfinite(values) & (place >= 0) & (place < len(edges) - 1)
        counts = np.bincount(place[kept], minlength=len(edges) - 1)
        sums = np.bincount(place[kept], values[kept], minlength=len(edges) - 1)
        lines.append(np.where(counts, sums / np.maximum(counts, 1), np.nan))
    return _over_seeds(edges[1:], lines)


def of_clusters(runs: Mapping[Path, int]) -> Curve:
    """The mean accuracy of the clusters at every evaluation; the last is at the end."""
    evaluations = [read(folder / "clusters.csv", "accuracy", uploads) for folder, uploads in runs.items()]
    x = np.unique(np.concatenate([at for at, _ in evaluations]))
    return _over_seeds(x, [_at(x, *one) for one in evaluations])


def _at(x: np.ndarray, at: np.ndarray, values: np.ndarray) -> np.ndarray:
    return np.array([values[at == one].mean() if (at == one).any() else np.nan for one in x])


def _over_seeds(x: np.ndarray, lines: Sequence[np.ndarray]) -> Curve:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # where no seed has a value there is none
        mean = np.nanmean(lines, axis=0)
        deviation = np.nanstd(lines, axis=0, ddof=1) if len(lines) > 1 else np.zeros_like(mean)
    return Curve(x, mean, np.nan_to_num(deviation))


def read(path: Path, column: str, uploads: int) -> tuple[np.ndarray, np.ndarray]:
    """The uploads of a table, and one column of it; an empty cell is NaN. It goes to the last upload of its run."""
    with storage(path), open(path, encoding="utf-8", newline="") as file:
        try:
            cells = [(row["upload"], row[column]) for row in csv.DictReader(file)]
            rows = np.array([(float(at), float("nan" if value == "" else value)) for at, value in cells])
        except (KeyError, TypeError, ValueError, csv.Error) as error:
            raise StorageError(
                f"{path} does not hold numbers under 'upload' and {column!r} ({error})", "Restore the file"
            ) from None
    rows = rows.reshape(-1, 2)
    last = rows[-1, 0] if len(rows) else 0
    if last != uploads:
        raise StorageError(f"{path} ends at upload {last:.0f}, but its run had {uploads}", "Restore the file")
    return rows[:, 0], rows[:, 1]
