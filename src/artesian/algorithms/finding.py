"""Clusters of an unknown number, found from uploads alone: no proxy sets, no K.

The server keeps a sketch of every client's newest upload: 1,024 random sums of the place its training went to, seen
from the mean of all clusters. Sketches keep angles, up to about .03. Clients of one kind go the same way, so their
sketches lie around a few points. K points span K - 1 directions: those in which sketches spread clearly more than in
all others. Clients who train alone in their own way spread in all directions alike, and nothing is found.

Clients that began at an older version train as everybody did then, and those with more samples go further the way that
all go. These are no kinds of clients, so time, samples and the common way are taken out of the sketches first.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Self

import numpy as np

from artesian.algorithms.estimation import normalised
from artesian.core import ClientId, ClusterId, Matrix, Measured, Tree, generator
from artesian.params import Layout, Params

SIZE = 1024  # numbers of a sketch
MOST = 256  # clients whose sketches are kept, the newest
MOST_DIRECTIONS = 15
SURE = 3.0  # how many times a common way must be as long as the mean of random ones
SMALLEST = 3  # clients of a kind, at least
ITERATIONS = 50
TINY = 1e-12


@dataclass(frozen=True)
class Sketches:
    """The newest sketch of every client, oldest first, and what the tests of them gave."""

    clients: tuple[ClientId, ...] = ()
    began: np.ndarray = field(default_factory=lambda: np.zeros(0))  # versions that uploads were trained from
    folded: np.ndarray = field(default_factory=lambda: np.zeros(0))  # versions that they were folded into
    samples: np.ndarray = field(default_factory=lambda: np.zeros(0))  # that they were trained on
    rows: np.ndarray = field(default_factory=lambda: np.zeros((0, SIZE), np.float32))
    tested: int = 0  # the version of the last test
    found: int = 0  # directions that it found
    heirs: Mapping[ClusterId, Sequence[ClusterId]] = field(default_factory=dict)  # of clusters that were divided

    @classmethod
    def of(cls, tree: Mapping[str, Tree]) -> Self:
        return cls(**{**tree, "clients": tuple(tree["clients"])})

    @property
    def tree(self) -> dict[str, Tree]:
        return {**vars(self), "clients": list(self.clients)}

    def then(self, m: Measured, version: int, row: np.ndarray, here: Collection[ClientId]) -> Self:
        """With the sketch of a client's new upload, and without those of clients who are not here any more."""
        client = m.upload.client
        stay = [i for i, other in enumerate(self.clients) if other != client and other in here][1 - MOST :]
        return replace(
            self,
            clients=(*(self.clients[i] for i in stay), client),
            began=np.append(self.began[stay], m.receipt.base),
            folded=np.append(self.folded[stay], version),
            samples=np.append(self.samples[stay], m.upload.samples),
            rows=np.vstack([self.rows[stay], row]),
        )

    def inherited(self, shares: Mapping[ClusterId, float], clusters: Collection[ClusterId]) -> dict[ClusterId, float]:
        """Shares of clusters there were, as shares of those there are: a divided cluster counts as all its heirs."""
        found, left = dict.fromkeys(clusters, 0.0), list(shares.items())
        while left:
            k, share = left.pop()
            if k in found:
                found[k] += share
            else:
                heirs = self.heirs.get(k) or list(found)
                left += [(heir, share / len(heirs)) for heir in heirs]
        return found

    @property
    def likeness(self) -> Matrix:
        """The cosines of all pairs."""
        flat = _unit(self.rows.astype(np.float64))
        return Matrix(self.clients, self.clients, flat @ flat.T)


def sketch(layout: Layout, vector: Params) -> np.ndarray:
    """Random sums of the trainable part: every number goes into one of them, with a random sign."""
    count = layout.trainable
    whole = count // SIZE * SIZE
    signed = vector[:count] * _signs(count)
    found = signed[:whole].reshape(-1, SIZE).sum(axis=0, dtype=np.float64)
    found[: count - whole] += signed[whole:]
    return found.astype(np.float32)


@lru_cache(maxsize=4)
def _signs(count: int) -> np.ndarray:
    return generator("sketch", count).choice(np.array([-1, 1], np.int8), count)


@dataclass(frozen=True)
class Directions:
    """How many directions stand out, how clearly, and where every client lies along them."""

    count: int  # 0: none does
    clearness: float  # the spread along the last of them over that along the next
    places: np.ndarray  # clients x directions


def directions(sketches: Sketches, clear: float) -> Directions:
    """The directions in which clients spread more than in all others: the last `clear` times as much as the next."""
    flat = _told_apart(sketches)
    spread, axes = np.linalg.eigh(flat @ flat.T)
    spread, axes = np.maximum(spread[::-1], TINY), axes[:, ::-1]
    steps = spread[:-1] / spread[1:]
    most = max(1, min(MOST_DIRECTIONS, len(flat) // SMALLEST))
    best = int(np.argmax(steps[:most]))
    count = best + 1 if steps[best] >= clear else 0
    return Directions(count, float(steps[best]), axes[:, :count] * np.sqrt(spread[:count]))


def _told_apart(sketches: Sketches) -> np.ndarray:
    """Sketches without what explains them though it makes no kind: time, the number of samples, and the way all go."""
    rows = sketches.rows.astype(np.float64)
    known = np.stack([sketches.began, sketches.folded, np.log1p(sketches.samples)], axis=1)
    trend = np.column_stack([np.ones(len(rows)), known - known.mean(axis=0)])
    flat = _unit(rows)
    flat = flat - trend @ np.linalg.lstsq(trend, flat, rcond=None)[0]
    common, size = rows.mean(axis=0), float(np.sqrt(np.square(rows).sum(axis=1).mean()))
    if np.linalg.norm(common) > size * SURE / np.sqrt(len(rows)):  # of random ways, the mean is 1 / sqrt(n) as long
        way = _unit(common)
        flat = flat - np.outer(flat @ way, way)  # some only go it further than others
    return _unit(flat)


def grouped(places: np.ndarray, parts: int) -> np.ndarray:
    """A label for every place, by k-means from places far apart; no randomness, and nothing to install on a server."""
    centres = places[_far_apart(places, parts)]
    labels = np.zeros(len(places), int)
    for _ in range(ITERATIONS):
        distances = np.square(places[:, None] - centres[None]).sum(axis=2)
        new = np.argmin(distances, axis=1)
        if (new == labels).all():
            break
        labels = new
        centres = np.array(
            [places[labels == i].mean(axis=0) if (labels == i).any() else c for i, c in enumerate(centres)]
        )
    return labels


def _far_apart(places: np.ndarray, count: int) -> list[int]:
    """The place farthest from the middle, then each time the one farthest from all chosen."""
    distances = np.square(places - places.mean(axis=0)).sum(axis=1)
    chosen = [int(np.argmax(distances))]
    while len(chosen) < count:
        near = np.square(places[:, None] - places[chosen][None]).sum(axis=2).min(axis=1)
        chosen.append(int(np.argmax(near)))
    return chosen


def named(
    labels: np.ndarray, shares: np.ndarray, names: Sequence[ClusterId], fresh: Iterable[ClusterId]
) -> list[tuple[ClusterId, ClusterId]]:
    """For every group the name of its cluster, and the parent: the cluster that most of its clients were of.

    A group that is the only one of its parent goes on under its name; others have fresh ones.
    """
    groups = range(int(labels.max()) + 1)
    parents = [names[int(np.argmax(shares[labels == group].sum(axis=0)))] for group in groups]
    new = iter(fresh)
    return [(parent if parents.count(parent) == 1 else next(new), parent) for parent in parents]


def shares_near(position: np.ndarray, sketches: Sketches, shares: np.ndarray) -> np.ndarray:
    """A mixture from a position: how far it lies towards the middle of each cluster, seen from all of them."""
    flat = _unit(sketches.rows.astype(np.float64))
    middles = _unit(shares.T @ flat)
    toward = _unit(middles - middles.mean(axis=0)) @ _unit(position.astype(np.float64))
    return normalised(np.maximum(toward, 0.0))


def _unit(rows: np.ndarray) -> np.ndarray:
    """Rows of length 1; those of length 0 stay."""
    length = np.linalg.norm(rows, axis=-1, keepdims=True)
    return np.asarray(rows / np.where(length > TINY, length, 1.0))
