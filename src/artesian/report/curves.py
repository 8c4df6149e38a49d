"""Curves: what the tables of run folders hold, over uploads, time or clients' cycles, as means over seeds."""

from __future__ import annotations

import csv
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast, get_args

import numpy as np

from artesian.errors import SettingError, StorageError
from artesian.storage.files import storage

POINTS = 40  # of a curve over uploads or time: each is the mean of what came since the one before
Axis = Literal["uploads", "time", "cycle"]
AXES: Mapping[str, str] = {"uploads": "uploads", "time": "virtual time", "cycle": "cycle of each client"}
Points = tuple[np.ndarray, np.ndarray]  # places on the axis, and values there


def chosen_axis(name: str) -> Axis:
    """The axis of this name."""
    for axis in get_args(Axis):
        if axis == name:
            return cast(Axis, axis)
    raise SettingError(f"There is no axis {name!r}", f"Name one of {', '.join(AXES)}")


@dataclass(frozen=True)
class Curve:
    """One method along an axis: the mean over its seeds, and one standard deviation to each side."""

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


def of_uploads(runs: Mapping[Path, int], column: str, axis: Axis = "uploads") -> Curve:
    """A column of `metrics.csv`, smoothed: clients differ more among each other than a method does in time.

    The seeds of one method, each as its folder and the uploads it lasted.
    """
    if axis == "cycle":
        return _of_cycles([_cycles(folder / "metrics.csv", column, uploads) for folder, uploads in runs.items()])
    along = "upload" if axis == "uploads" else axis
    found = [read(folder / "metrics.csv", column, uploads, along) for folder, uploads in runs.items()]
    return smoothed(found, max(runs.values()) if axis == "uploads" else None)


def of_clusters(runs: Mapping[Path, int], axis: Axis = "uploads") -> Curve:
    """The mean accuracy of the clusters at every evaluation; the last is at the end.

    Clusters have no cycles: along these, an evaluation is at the mean number of uploads of a client so far.
    """
    along = "time" if axis == "time" else "upload"
    found = [read(folder / "clusters.csv", "accuracy", uploads, along) for folder, uploads in runs.items()]
    if axis == "time":
        return smoothed(found)
    x = np.unique(np.concatenate([at for at, _ in found]))
    clients = max(len(set(_clients(folder / "metrics.csv"))) for folder in runs) if axis == "cycle" else 1
    return _over_seeds(x / clients, [_at(x, *one) for one in found])


def smoothed(found: Sequence[Points], uploads: int | None = None) -> Curve:
    """At most so many points, each the mean since the one before; along time, only where something is."""
    most = float(uploads or max((at.max(initial=0) for at, _ in found), default=0))
    edges = np.linspace(0, most, (min(POINTS, uploads) if uploads else POINTS) + 1)
    edges = np.unique(edges.round() if uploads else edges)
    edges = edges if len(edges) > 1 else np.array([0.0, 1.0])
    lines = [_binned(edges, *one) for one in found]
    met = np.ones(len(edges) - 1, bool) if uploads else np.isfinite(lines).any(axis=0)
    return _over_seeds(edges[1:][met], [line[met] for line in lines])


def _binned(edges: np.ndarray, at: np.ndarray, values: np.ndarray) -> np.ndarray:
    """The mean of the values in every (edge, next edge]; the first has what lies on its lower edge, too."""
    place = np.maximum(np.searchsorted(edges, at, side="left") - 1, 0)
    kept = np.isfinite(values) & (place < len(edges) - 1)
    counts = np.bincount(place[kept], minlength=len(edges) - 1)
    sums = np.bincount(place[kept], values[kept], minlength=len(edges) - 1)
    return np.where(counts, sums / np.maximum(counts, 1), np.nan)


def _of_cycles(found: Sequence[Points]) -> Curve:
    """The mean over clients in their first cycle, their second and so on, as far as half of them came in some seed."""
    last = max(_reached_by_half(at) for at, _ in found)
    x = np.arange(1.0, last + 1)
    return _over_seeds(x, [_at(x, *one) for one in found])


def _reached_by_half(cycles: np.ndarray) -> int:
    counts = np.bincount(cycles.astype(int), minlength=2)[1:]
    return int(np.count_nonzero(2 * counts >= counts[0]))


def _cycles(path: Path, column: str, uploads: int) -> Points:
    """For every upload, its number among those of its client, and its value."""
    _, values = read(path, column, uploads)
    seen: Counter[str] = Counter()
    numbers = []
    for client in _clients(path):
        seen[client] += 1
        numbers.append(seen[client])
    return np.array(numbers, float), values


def _at(x: np.ndarray, at: np.ndarray, values: np.ndarray) -> np.ndarray:
    here = [values[(at == one) & np.isfinite(values)] for one in x]
    return np.array([found.mean() if len(found) else np.nan for found in here])


def _over_seeds(x: np.ndarray, lines: Sequence[np.ndarray]) -> Curve:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # where no seed has a value there is none
        mean = np.nanmean(lines, axis=0)
        deviation = np.nanstd(lines, axis=0, ddof=1) if len(lines) > 1 else np.zeros_like(mean)
    return Curve(x, mean, np.nan_to_num(deviation))


def read(path: Path, column: str, uploads: int, along: str = "upload") -> Points:
    """Two columns of a table: uploads or time, and values; an empty cell is NaN. It goes to the run's last upload."""
    try:
        cells = [(row["upload"], row[along], row[column]) for row in _rows(path)]
        rows = np.array([[float("nan" if cell == "" else cell) for cell in row] for row in cells])
    except (KeyError, TypeError, ValueError, csv.Error) as error:
        raise StorageError(
            f"{path} does not hold numbers under 'upload' and {column!r} ({error})", "Restore the file"
        ) from None
    rows = rows.reshape(-1, 3)
    last = rows[-1, 0] if len(rows) else 0
    if last != uploads:
        raise StorageError(f"{path} ends at upload {last:.0f}, but its run had {uploads}", "Restore the file")
    return rows[:, 1], rows[:, 2]


def _clients(path: Path) -> list[str]:
    """Who uploaded, upload by upload."""
    return [row["client"] for row in _rows(path)]


def _rows(path: Path) -> list[dict[str, str]]:
    with storage(path), open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))
