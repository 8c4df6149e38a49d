"""Relabelled images: the groups of clients see the same images, and give them different answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import factorial
from typing import ClassVar

import numpy as np

from artesian.core import generator
from artesian.data.datasets import classes_of, images
from artesian.errors import SettingError, check
from artesian.simulator.worlds.dealing import flat_images
from artesian.simulator.worlds.mixing import Redraw
from artesian.simulator.worlds.standardising import Standardise
from artesian.simulator.worlds.versions import Version, VersionedWorld


@dataclass(frozen=True)
class Relabelled(VersionedWorld):
    """Images as they are, labelled anew in every group: nothing about an image says which group it is of.

    Group 0 has the labels of the data, every other group a permutation of them that the seed draws; no two groups have
    the same. Images are divided as in `rotated`. A client is of one group, unless its main share is below 1, and has
    new samples in every cycle.
    """

    name: ClassVar[str] = "relabelled"
    data: str = "digits"  # or "fashion-mnist", "mnist", an .npz file, a folder of images, module:name
    clusters: int = 4  # groups
    clients: int = 80
    samples_min: int = 60
    samples_max: int = 200
    main_share_min: float = 1.0
    main_share_max: float = 1.0
    redraw: Redraw = True  # new data and a new mixture every cycle; "samples": one mixture; False: data are held
    proxy_images: int = 300  # per group, the server's
    test_images: int = 500  # per group, for evaluation
    client_test_samples: int = 200  # drawn from those with the client's mixture
    shuffled: bool = True  # which client is in which group is drawn by the seed; False: in the order of their numbers
    standardise: Standardise = "none"  # or "pixel", "channel": mean 0 and spread 1, by the training images

    def __post_init__(self) -> None:
        check(self, self.version_rules())

    def versions(self, seed: int) -> Sequence[Version]:
        x = flat_images(self.data)
        return [(x, labels) for labels in _labels(self.data, self.clusters, seed)]


@lru_cache(maxsize=4)
def _labels(data: str, clusters: int, seed: int) -> list[np.ndarray]:
    """The labels of all images in every group."""
    y = images(data).y
    return [names[y] for names in label_permutations(classes_of(data), clusters, seed)]


def label_permutations(classes: int, clusters: int, seed: int) -> list[np.ndarray]:
    """What each label is called in every group: itself in the first, and in no two groups all the same."""
    if factorial(classes) < clusters:
        raise SettingError(
            f"{classes} labels have {factorial(classes)} orders, too few for {clusters} groups", "Lower clusters"
        )
    rng, found = generator(seed, "relabel"), [np.arange(classes)]
    while len(found) < clusters:
        drawn = rng.permutation(classes)
        if not any(np.array_equal(drawn, one) for one in found):
            found.append(drawn)
    return found
