"""Rotated images: one cluster for every angle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import ClassVar, Self

import numpy as np

from artesian.core import ClientId, ClusterId, generator
from artesian.data.datasets import Samples, classes_of, files_of, images
from artesian.data.image_arrays import flattened, rotate, shape_of
from artesian.errors import SettingError, check
from artesian.execution.shared_memory import laid_out, once
from artesian.simulator.worlds.dealing import flat_images
from artesian.simulator.worlds.mixing import (
    ClusterSamples,
    Partition,
    drawn,
    fixed_shares,
    floor_counts,
    main_shares,
    nearest_counts,
    partition_rule,
)
from artesian.simulator.worlds.visit import Numbered, Visit, check_room


@dataclass(frozen=True)
class Rotated(Numbered):
    """Rotated images with CDFL's clients: cluster i holds all images turned by i * 360/K degrees.

    Images are split once into three disjoint parts: proxy (the server's), evaluation, and training. Of a set with a
    test set of its own, proxy and evaluation come from that, and clients train on the training set. In every cycle a
    client draws its number of samples, the share of its main cluster, and how the rest divides. The other partitions
    are FedSoft's, and held.
    """

    name: ClassVar[str] = "rotated"
    data: str = "digits"  # or "fashion-mnist", "mnist", an .npz file, a folder of images, module:name
    clusters: int = 4  # K
    clients: int = 80  # n, 20 per cluster
    samples_min: int = 60
    samples_max: int = 200
    main_share_min: float = 0.4
    main_share_max: float = 0.9
    redraw: bool = True  # new data and a new mixture every cycle; False: one mixture, held
    proxy_images: int = 300  # per cluster, the server's
    test_images: int = 500  # per cluster, for evaluation
    client_test_samples: int = 200  # drawn from those with the client's mixture
    partition: Partition = "main"  # or FedSoft's "10:90", "30:70", "linear", "random"
    shuffled: bool = True  # which client is in which group is drawn by the seed; False: in the order of their numbers

    def __post_init__(self) -> None:
        check(
            self,
            {
                "clusters and clients are at least 1": self.clusters >= 1 and self.clients >= 1,
                "there are no more clusters than clients": self.clusters <= self.clients,
                "samples_min is at least 1 and at most samples_max": 1 <= self.samples_min <= self.samples_max,
                "main_share_min and main_share_max are from 0 to 1, in this order": 0
                <= self.main_share_min
                <= self.main_share_max
                <= 1,
                "proxy_images and test_images are at least 1": min(self.proxy_images, self.test_images) >= 1,
                "client_test_samples is from 1 to test_images": 1 <= self.client_test_samples <= self.test_images,
                **partition_rule(self.partition, self.clusters),
            },
        )

    @property
    def held(self) -> bool:
        return not self.redraw or self.partition != "main"

    def redrawn(self) -> Self:
        return replace(self, redraw=True)

    def files(self) -> Sequence[Path]:
        return files_of(self.data)

    @property
    def features(self) -> int:
        return prod(self.shape)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Of one image: channels, height, width."""
        return shape_of(images(self.data).x)

    @property
    def classes(self) -> int:
        return classes_of(self.data)

    def proxies(self, seed: int) -> Mapping[ClusterId, Samples]:
        return {f"k{i}": part.samples(part.proxy) for i, part in enumerate(self._parts(seed))}

    def tests(self, seed: int) -> Mapping[ClusterId, Samples]:
        return {f"k{i}": part.samples(part.test) for i, part in enumerate(self._parts(seed))}

    def visit(self, seed: int, client: ClientId, cycle: int) -> Visit:
        place = self.place(seed, client)
        rng = generator(seed, "visit", place, 0 if self.held else cycle)
        samples = int(rng.integers(self.samples_min, self.samples_max, endpoint=True))
        return drawn(rng, self._parts(seed), self._counts(rng, int(place[1:]), samples), self.client_test_samples)

    def _counts(self, rng: np.random.Generator, number: int, samples: int) -> np.ndarray:
        if self.partition == "main":
            least, most = self.main_share_min, self.main_share_max
            return nearest_counts(main_shares(rng, number % self.clusters, self.clusters, least, most), samples)
        return floor_counts(fixed_shares(self.partition, rng, number, self.clients, self.clusters), samples)

    def _parts(self, seed: int) -> list[ClusterSamples]:
        """Every rotation of the images, divided the same way: proxy, evaluation, training."""
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
        return [ClusterSamples(x, found.y, proxy, test, train) for x in _rotated(self.data, self.clusters)]


def _rotated(data: str, clusters: int) -> list[np.ndarray]:
    """All images in every rotation: images x pixels, channels first."""
    height, width = images(data).x.shape[1:3]
    if height != width and clusters not in (1, 2):
        raise SettingError(
            f"Images of {height} x {width} cannot be rotated into {clusters} clusters", "Crop them square"
        )
    return [flat_images(data), *_turned(data, clusters)]


@once(4)
def _turned(data: str, clusters: int) -> list[np.ndarray]:
    """Every rotation but the first; each is laid out before the next is made."""
    x = images(data).x
    return [laid_out(flattened(rotate(x, i * 360 / clusters))) for i in range(1, clusters)]


@lru_cache(maxsize=8)
def _permutation(data: str, seed: int) -> np.ndarray:
    """The order of images; a test set of their own stays in front."""
    found = images(data)
    classes_of(data)  # refuses a single one
    if not found.tests:
        return generator(seed, "split").permutation(len(found))
    return np.concatenate([generator(seed, "split").permutation(found.tests), np.arange(found.tests, len(found))])
