"""What runs exported, as it is drawn: clusters on every distribution, and mixtures, true and estimated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from artesian.report.curves import Curve, smoothed
from artesian.simulator.export import DISTRIBUTIONS, SHARES
from artesian.simulator.table import read_table

PAIR = ("true", "estimated")


@dataclass(frozen=True)
class Scores:
    """How every cluster does on every distribution at one evaluation."""

    upload: int
    clusters: tuple[str, ...]
    distributions: tuple[str, ...]
    values: np.ndarray  # clusters by distributions


@dataclass(frozen=True)
class Mixtures:
    """Estimated shares against true ones."""

    true: np.ndarray  # of every client and cluster, at the client's last upload
    estimated: np.ndarray
    largest: tuple[Curve, Curve]  # of the distribution that a client has most of, over uploads: true and estimated


def first_and_last(folder: Path) -> list[Scores]:
    """The first and the last evaluation; nothing where none was exported."""
    table = _table(folder, "distributions", DISTRIBUTIONS)
    if not table or not len(table["upload"]):
        return []
    ends = dict.fromkeys(table["upload"][[0, -1]].tolist())
    return [_scores(table, int(upload)) for upload in ends]


def mixtures(folders: Sequence[Path]) -> Mixtures | None:
    """Of all seeds together; None where none was exported or estimated."""
    tables = [table for folder in folders if (table := _table(folder, "shares", SHARES))]
    known = [table for table in tables if np.isfinite(table["estimated"]).any()]
    if not known:
        return None
    rows = [_last(table) for table in known]
    true, estimated = (np.concatenate([table[name][i] for table, i in zip(known, rows, strict=True)]) for name in PAIR)
    largest = [_largest(table) for table in known]
    uploads = max(int(table["upload"].max()) for table in known)
    lines = [smoothed([(at, values[i]) for at, *values in largest], uploads) for i in range(2)]
    return Mixtures(true, estimated, (lines[0], lines[1]))


def _table(folder: Path, name: str, columns: Sequence[str]) -> dict[str, np.ndarray] | None:
    path = folder / f"{name}.csv"
    return read_table(path, columns) if path.exists() else None


def _scores(table: dict[str, np.ndarray], upload: int) -> Scores:
    here = table["upload"] == upload
    clusters, distributions = (tuple(dict.fromkeys(table[name][here])) for name in ("cluster", "distribution"))
    values = table["accuracy"][here][-len(clusters) * len(distributions) :]
    return Scores(upload, clusters, distributions, values.reshape(len(clusters), len(distributions)))


def _last(table: dict[str, np.ndarray]) -> np.ndarray:
    """The rows of every client's last upload that have an estimate."""
    newest = dict(zip(table["client"], table["upload"], strict=True))
    last = table["upload"] == np.array([newest[client] for client in table["client"]])
    return np.flatnonzero(last & np.isfinite(table["estimated"]) & np.isfinite(table["true"]))


def _largest(table: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Upload, true and estimated share of the distribution that the client has most of."""
    order = np.lexsort((-np.nan_to_num(table["true"]), table["upload"]))
    _, first = np.unique(table["upload"][order], return_index=True)
    rows = order[first]
    return table["upload"][rows].astype(float), table["true"][rows], table["estimated"][rows]
