"""Mixtures: how a client's samples divide over clusters, and where they are drawn from."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, Self

import numpy as np

from artesian.core import ClientId, ClusterId, generator
from artesian.data.datasets import Samples, as_floats
from artesian.simulator.worlds.imaging import ImageWorld
from artesian.simulator.worlds.standardising import Training
from artesian.simulator.worlds.visit import Visit

Partition = Literal["main", "10:90", "30:70", "linear", "random"]
Redraw = bool | Literal["samples"]  # new data every cycle: all, none, or new samples of the same mixture
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


@dataclass(frozen=True)
class Clusters:
    """All clusters of a world."""

    parts: Sequence[ClusterSamples]

    def proxies(self) -> dict[ClusterId, Samples]:
        return {f"k{i}": part.samples(part.proxy) for i, part in enumerate(self.parts)}

    def tests(self) -> dict[ClusterId, Samples]:
        return {f"k{i}": part.samples(part.test) for i, part in enumerate(self.parts)}

    def training(self) -> list[Training]:
        return [(part.x, part.train) for part in self.parts]


class MixedWorld(ImageWorld):
    """A world whose clients draw images of several clusters, in every cycle or once."""

    samples_min: int
    samples_max: int
    main_share_min: float
    main_share_max: float
    redraw: Redraw
    client_test_samples: int

    @abstractmethod
    def division(self, seed: int) -> Clusters:
        """The images of every cluster, and which of them are for what."""

    @abstractmethod
    def counts(self, rng: np.random.Generator, place: int, samples: int) -> np.ndarray:
        """How many of so many samples the client in this place draws of each cluster."""

    @property
    def held(self) -> bool:
        return self.redraw is False

    def redrawn(self) -> Self:
        return replace(self, redraw=self.redraw or True)  # type: ignore[type-var]

    def visit_of(self, seed: int, place: ClientId, cycle: int) -> Visit:
        rng = generator(seed, "visit", place, cycle if self.redraw is True and not self.held else 0)
        samples = int(rng.integers(self.samples_min, self.samples_max, endpoint=True))
        counts = self.counts(rng, int(place[1:]), samples)
        if self.redraw == "samples" and cycle:
            rng = generator(seed, "samples", place, cycle)
        return drawn(rng, self.division(seed).parts, counts, self.client_test_samples)

    def rules(self) -> dict[str, bool]:
        """What every such world demands."""
        least, most = self.main_share_min, self.main_share_max
        return {
            **self.image_rules(),
            "redraw is true, false or samples": isinstance(self.redraw, bool) or self.redraw == "samples",
            "samples_min is at least 1 and at most samples_max": 1 <= self.samples_min <= self.samples_max,
            "main_share_min and main_share_max are from 0 to 1, in this order": 0 <= least <= most <= 1,
            "client_test_samples is from 1 to test_images": 1 <= self.client_test_samples <= self.test_images,
        }


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
    return np.array([*rest[:main], share, *rest[main:]])


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
    total = int(counts.sum())
    return {f"k{i}": count / total for i, count in enumerate(counts.tolist())}


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
