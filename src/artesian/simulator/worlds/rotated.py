"""Rotated images: one cluster for every angle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from artesian.data.datasets import images
from artesian.data.image_arrays import flattened, rotate
from artesian.errors import SettingError, check
from artesian.execution.shared_memory import laid_out, once
from artesian.simulator.worlds.dealing import flat_images
from artesian.simulator.worlds.mixing import Partition, Redraw, fixed_shares, floor_counts, partition_rule
from artesian.simulator.worlds.standardising import Standardise
from artesian.simulator.worlds.versions import Version, VersionedWorld


@dataclass(frozen=True)
class Rotated(VersionedWorld):
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
    redraw: Redraw = True  # new data and a new mixture every cycle; "samples": one mixture; False: data are held
    proxy_images: int = 300  # per cluster, the server's
    test_images: int = 500  # per cluster, for evaluation
    client_test_samples: int = 200  # drawn from those with the client's mixture
    partition: Partition = "main"  # or FedSoft's "10:90", "30:70", "linear", "random"
    shuffled: bool = True  # which client is in which group is drawn by the seed; False: in the order of their numbers
    standardise: Standardise = "none"  # or "pixel", "channel": mean 0 and spread 1, by the training images

    def __post_init__(self) -> None:
        check(self, {**self.version_rules(), **partition_rule(self.partition, self.clusters)})

    @property
    def held(self) -> bool:
        return self.redraw is False or (self.redraw is True and self.partition != "main")

    def counts(self, rng: np.random.Generator, place: int, samples: int) -> np.ndarray:
        if self.partition == "main":
            return super().counts(rng, place, samples)
        return floor_counts(fixed_shares(self.partition, rng, place, self.clients, self.clusters), samples)

    def versions(self, seed: int) -> Sequence[Version]:
        labels = images(self.data).y
        return [(x, labels) for x in _rotated(self.data, self.clusters)]


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
