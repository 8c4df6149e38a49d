"""Worlds of one data set whose clusters are versions of the same images: turned, or labelled anew."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from artesian.core import generator
from artesian.data.datasets import classes_of, images
from artesian.simulator.worlds.mixing import Clusters, ClusterSamples, MixedWorld, main_shares, nearest_counts
from artesian.simulator.worlds.visit import check_room

Version = tuple[np.ndarray, np.ndarray]  # all images as one cluster has them, and their labels there


class VersionedWorld(MixedWorld):
    """A world whose clusters all hold the same images, each in its own version, and all divided the same way."""

    clusters: int

    @abstractmethod
    def versions(self, seed: int) -> Sequence[Version]:
        """All images and labels, as each cluster has them."""

    def counts(self, rng: np.random.Generator, place: int, samples: int) -> np.ndarray:
        least, most = self.main_share_min, self.main_share_max
        return nearest_counts(main_shares(rng, place % self.clusters, self.clusters, least, most), samples)

    def division(self, seed: int) -> Clusters:
        """Three parts that share no image: proxy, evaluation, training."""
        found, held_out = images(self.data), self.proxy_images + self.test_images
        if found.tests:
            check_room("proxy_images and test_images", held_out, found.tests)
            check_room("samples_max", self.samples_max, len(found) - found.tests)
        else:
            together = held_out + self.samples_max
            check_room("proxy_images, test_images and samples_max together", together, len(found))
        order = _permutation(self.data, seed)
        proxy, test = order[: self.proxy_images], order[self.proxy_images : held_out]
        train = order[found.tests or held_out :]
        return Clusters([ClusterSamples(x, y, proxy, test, train) for x, y in self.versions(seed)])

    def version_rules(self) -> dict[str, bool]:
        """What every such world demands."""
        return {
            "clusters and clients are at least 1": self.clusters >= 1 and self.clients >= 1,
            "there are no more clusters than clients": self.clusters <= self.clients,
            **self.rules(),
        }


@lru_cache(maxsize=8)
def _permutation(data: str, seed: int) -> np.ndarray:
    """The order of images; a test set of their own stays in front."""
    found = images(data)
    classes_of(data)  # refuses a single one
    if not found.tests:
        return generator(seed, "split").permutation(len(found))
    return np.concatenate([generator(seed, "split").permutation(found.tests), np.arange(found.tests, len(found))])
