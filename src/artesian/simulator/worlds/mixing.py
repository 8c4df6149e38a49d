"""Mixtures: how a client's samples divide over clusters, and where they are drawn from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from artesian.core import ClusterId
from artesian.data.datasets import Samples, as_floats
from artesian.simulator.worlds.visit import Visit

Partition = Literal["main", "10:90", "30:70", "linear", "random"]
PAIRS = {"10:90": 0.1, "30:70": 0.3}  # the share of the first cluster, for the first half of the clients


@dataclass(frozen=True)
class ClusterSamples:
    """One cluster: its samples, and which rows are the server's, for tests, or for training."""

    x: np.ndarray
    y: np.ndarray
    proxy: np.ndarray
    test: np.ndarray
    train: np.ndarray

    def samples(self, rows: np.ndarray) -> Samples:
        return Samples(as_floats(self.x[rows]), self.y[rows])


def partition_rule(partition: Partition, clusters: int) -> dict[str, bool]:
    """What a partition demands, as a rule to check."""
    pairs = partition in PAIRS or partition == "linear"
    return {f"clusters is 2 for the partition {partition}": clusters == 2 or not pairs}


def main_shares(
    rng: np.random.Generator, main: int, clusters: int, least: float = 0.4, most: float = 0.9
) -> np.ndarray:
    """CDFL's: a uniform share of the main cluster, and a flat Dirichlet over the others for the rest."""
    if clusters == 1:
        return np.ones(1)
    share = rng.uniform(least, most)
    rest = rng.dirichlet(np.ones(clusters - 1)) * (1 - share)
    return np.insert(rest, main, share)


def fixed_shares(
    partition: Partition, rng: np.random.Generator, number: int, clients: int, clusters: int
) -> np.ndarray:
    """FedSoft's: pairs by halves of the clients, a line from one cluster to the other, or random cuts of [0, 1]."""
    if partition == "random":
        cuts = np.sort(rng.uniform(0, 1, clusters - 1))
        return np.diff(cuts, prepend=0, append=1)
    if partition == "linear":
        first = (number + 0.5) / clients
    else:
        first = PAIRS[partition] if number < clients / 2 else 1 - PAIRS[partition]
    return np.array([first, 1 - first])


def nearest_counts(shares: np.ndarray, samples: int) -> np.ndarray:
    """Whole numbers that sum to `samples`: floors, and the rest to the largest remainders."""
    exact = shares * samples
    counts = np.floor(exact + 1e-9).astype(int)
    short = samples - int(counts.sum())
    counts[np.argsort(counts - exact, kind="stable")[:short]] += 1
    return counts


def floor_counts(shares: np.ndarray, samples: int) -> np.ndarray:
    """FedSoft's: floors, and the rest to the last cluster."""
    counts = np.floor(shares * samples + 1e-9).astype(int)
    counts[-1] = samples - int(counts[:-1].sum())
    return counts


def mixture_of(counts: np.ndarray) -> dict[ClusterId, float]:
    return {f"k{i}": count / int(counts.sum()) for i, count in enumerate(counts.tolist())}


def drawn(rng: np.random.Generator, parts: Sequence[ClusterSamples], counts: np.ndarray, tested: int) -> Visit:
    """So many training samples of each cluster, and test samples of the same mixture, without replacement."""
    train = _draw(rng, parts, [part.train for part in parts], counts)
    test = _draw(rng, parts, [part.test for part in parts], nearest_counts(counts / counts.sum(), tested))
    return Visit(train, test, mixture_of(counts))


def _draw(
    rng: np.random.Generator, parts: Sequence[ClusterSamples], rows: Sequence[np.ndarray], counts: np.ndarray
) -> Samples:
    chosen = [rng.choice(own, count, replace=False) for own, count in zip(rows, counts.tolist(), strict=True)]
    x = np.concatenate([part.x[own] for part, own in zip(parts, chosen, strict=True)])
    y = np.concatenate([part.y[own] for part, own in zip(parts, chosen, strict=True)])
    return Samples(as_floats(x), y)
