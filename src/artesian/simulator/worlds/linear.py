"""FedSoft's mixtures of linear regressions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from artesian.core import ClientId, ClusterId, generator
from artesian.data.datasets import Samples
from artesian.errors import check
from artesian.simulator.worlds.mixing import fixed_shares, floor_counts, mixture_of, nearest_counts, partition_rule
from artesian.simulator.worlds.visit import Numbered, Visit


@dataclass(frozen=True)
class Linear(Numbered):
    """y = <x, theta_s> + noise, x and noise standard normal, theta_s normal with a variance for each cluster s.

    A client's samples divide over the clusters by its partition: floors, and the rest to the last cluster. Nothing
    changes with the cycle. Labels are numbers: use a model of regression.
    """

    name: ClassVar[str] = "linear"
    held: ClassVar[bool] = True
    classes: ClassVar[int] = 1
    clusters: int = 2  # S
    clients: int = 100
    partition: Literal["10:90", "30:70", "linear", "random"] = "10:90"
    features: int = 10
    variance: float = 10.0  # of every number of a theta
    distance2: float | None = None  # of two thetas, which are scaled to it; the paper's tables have 165
    noise: float = 1.0  # standard deviation
    samples_min: int = 100
    samples_max: int = 200
    client_test_samples: int = 100
    proxy_samples: int = 200  # per cluster, the server's
    test_samples: int = 1000  # per cluster, for evaluation
    shuffled: bool = True  # which client is in which group is drawn by the seed; False: in the order of their numbers

    def __post_init__(self) -> None:
        check(
            self,
            {
                "clusters, clients and features are at least 1": min(self.clusters, self.clients, self.features) >= 1,
                "there are no more clusters than clients": self.clusters <= self.clients,
                **partition_rule(self.partition, self.clusters),
                "variance is positive, noise not below 0": 0 < self.variance < 1e9 and 0 <= self.noise < 1e9,
                "distance2 is positive, and clusters 2 with it": (
                    self.distance2 is None or (self.distance2 > 0 and self.clusters == 2)
                ),
                "samples_min is at least 1 and at most samples_max": 1 <= self.samples_min <= self.samples_max,
                "client_test_samples, proxy_samples and test_samples are at least 1": (
                    min(self.client_test_samples, self.proxy_samples, self.test_samples) >= 1
                ),
            },
        )

    def thetas(self, seed: int) -> np.ndarray:
        """The true models, clusters x features."""
        found = generator(seed, "thetas").normal(0, self.variance**0.5, (self.clusters, self.features))
        if self.distance2 is not None:
            found *= (self.distance2 / np.square(found[0] - found[1]).sum()) ** 0.5
        return found

    def proxies(self, seed: int) -> Mapping[ClusterId, Samples]:
        return self._sets(seed, "proxy", self.proxy_samples)

    def tests(self, seed: int) -> Mapping[ClusterId, Samples]:
        return self._sets(seed, "test", self.test_samples)

    def visit(self, seed: int, client: ClientId, cycle: int) -> Visit:
        place = self.place(seed, client)
        rng = generator(seed, "visit", place)
        samples = int(rng.integers(self.samples_min, self.samples_max, endpoint=True))
        shares = fixed_shares(self.partition, rng, int(place[1:]), self.clients, self.clusters)
        counts = floor_counts(shares, samples)
        tested = nearest_counts(counts / samples, self.client_test_samples)
        return Visit(self._draw(seed, rng, counts), self._draw(seed, rng, tested), mixture_of(counts))

    def _sets(self, seed: int, purpose: str, count: int) -> dict[ClusterId, Samples]:
        alone = np.eye(self.clusters, dtype=int) * count
        return {f"k{i}": self._draw(seed, generator(seed, purpose, i), alone[i]) for i in range(self.clusters)}

    def _draw(self, seed: int, rng: np.random.Generator, counts: np.ndarray) -> Samples:
        """So many samples of each cluster."""
        thetas = np.repeat(self.thetas(seed), counts, axis=0)
        x = rng.normal(0, 1, thetas.shape).astype(np.float32)
        y = (x * thetas).sum(axis=1) + rng.normal(0, self.noise, len(x))
        return Samples(x, y.astype(np.float32))
