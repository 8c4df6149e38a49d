"""Worlds: where clients' data come from, and how they change. A world hands out arrays, never models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import ClassVar, Protocol

import numpy as np

from artesian.core import ClientId, ClusterId, Mixture, generator
from artesian.errors import SettingError
from artesian.simulator.data import Samples, as_floats, images, rotate


@dataclass(frozen=True)
class Visit:
    """What one client has in one cycle: data to train on, data of the same mixture to be tested on."""

    train: Samples
    test: Samples
    mixture: Mixture  # the true one


class World(Protocol):
    """A pure function from (seed, client, cycle) to data: any process may work it out.

    A world of images may have a `shape` too, (channels, height, width), for networks that look at them as such.
    """

    name: ClassVar[str]

    @property
    def names(self) -> Sequence[ClientId]: ...
    @property
    def features(self) -> int: ...
    @property
    def classes(self) -> int: ...

    def visit(self, seed: int, client: ClientId, cycle: int) -> Visit: ...
    def proxies(self, seed: int) -> Mapping[ClusterId, Samples]: ...
    def tests(self, seed: int) -> Mapping[ClusterId, Samples]: ...


@dataclass(frozen=True)
class Rotated:
    """Rotated images with CDFL's clients: cluster i holds all images turned by i * 360/K degrees.

    Images are split once into three disjoint parts: proxy (the server's), evaluation, and training. Of a set with a
    test set of its own, proxy and evaluation come from that, and clients train on the training set. In every cycle a
    client draws its number of samples, the share of its main cluster, and how the rest divides.
    """

    name: ClassVar[str] = "rotated"
    data: str = "digits"  # or "fashion-mnist", "mnist", an .npz file, module:name
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

    def __post_init__(self) -> None:
        checks = {
            "clusters and clients are at least 1": self.clusters >= 1 and self.clients >= 1,
            "1 <= samples_min <= samples_max": 1 <= self.samples_min <= self.samples_max,
            "0 <= main_share_min <= main_share_max <= 1": 0 <= self.main_share_min <= self.main_share_max <= 1,
            "proxy_images and test_images are at least 1": min(self.proxy_images, self.test_images) >= 1,
            "client_test_samples is from 1 to test_images": 1 <= self.client_test_samples <= self.test_images,
        }
        for rule, holds in checks.items():
            if not holds:
                raise ValueError(f"{rule}, and it is not so here")

    @property
    def names(self) -> Sequence[ClientId]:
        return [f"c{i:03d}" for i in range(self.clients)]

    @property
    def features(self) -> int:
        return prod(self.shape)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Of one image: channels, height, width."""
        height, width, *channels = images(self.data).x.shape[1:]
        return int(channels[0]) if channels else 1, int(height), int(width)

    @property
    def classes(self) -> int:
        return int(images(self.data).y.max()) + 1

    def proxies(self, seed: int) -> Mapping[ClusterId, Samples]:
        return self._parts(seed, 0, self.proxy_images)

    def tests(self, seed: int) -> Mapping[ClusterId, Samples]:
        return self._parts(seed, self.proxy_images, self.proxy_images + self.test_images)

    def visit(self, seed: int, client: ClientId, cycle: int) -> Visit:
        turn = cycle if self.redraw else 0
        rng = generator(seed, "visit", client, turn)
        samples = int(rng.integers(self.samples_min, self.samples_max, endpoint=True))
        shares = self._shares(rng, int(client[1:]) % self.clusters)
        reserved = self.proxy_images + self.test_images
        own = images(self.data).tests or reserved  # where training images begin
        counts = _counts(shares, samples)
        train = self._draw(seed, rng, counts, own, len(images(self.data)))
        tested = _counts(counts / samples, self.client_test_samples)
        test = self._draw(seed, rng, tested, self.proxy_images, reserved)
        return Visit(train, test, {f"k{i}": count / samples for i, count in enumerate(counts.tolist())})

    def _shares(self, rng: np.random.Generator, main: int) -> np.ndarray:
        """The main cluster's share, and a flat Dirichlet over the others for the rest."""
        if self.clusters == 1:
            return np.ones(1)
        share = rng.uniform(self.main_share_min, self.main_share_max)
        rest = rng.dirichlet(np.ones(self.clusters - 1)) * (1 - share)
        return np.insert(rest, main, share)

    def _draw(self, seed: int, rng: np.random.Generator, counts: np.ndarray, low: int, high: int) -> Samples:
        """So many samples of each cluster, without replacement, from one part of the images."""
        x, y = _rotated(self.data, self.clusters)
        order = self._order(seed)[low:high]
        rows = [rng.choice(order, count, replace=False) for count in counts.tolist()]
        drawn = np.concatenate([x[i][chosen] for i, chosen in enumerate(rows)])
        return Samples(as_floats(drawn), y[np.concatenate(rows)])

    def _order(self, seed: int) -> np.ndarray:
        """The images in the order they are divided in: proxy, evaluation, training."""
        found = images(self.data)
        held_out = self.proxy_images + self.test_images
        if found.tests:
            _check_room("proxy_images and test_images", held_out, found.tests)
            _check_room("samples_max", self.samples_max, len(found) - found.tests)
        else:
            together = held_out + self.samples_max
            _check_room("proxy_images, test_images and samples_max together", together, len(found))
        return _permutation(self.data, seed)

    def _parts(self, seed: int, low: int, high: int) -> dict[ClusterId, Samples]:
        x, y = _rotated(self.data, self.clusters)
        rows = self._order(seed)[low:high]
        return {f"k{i}": Samples(as_floats(x[i][rows]), y[rows]) for i in range(self.clusters)}


def _check_room(what: str, wanted: int, found: int) -> None:
    if wanted > found:
        raise SettingError(f"{what} fit into the data", f"{wanted} of {found} images", "lower one of them")


def _counts(shares: np.ndarray, samples: int) -> np.ndarray:
    """Whole numbers that sum to `samples`: floors, and the rest to the largest remainders."""
    exact = shares * samples
    counts = np.floor(exact + 1e-9).astype(int)
    short = samples - int(counts.sum())
    counts[np.argsort(counts - exact, kind="stable")[:short]] += 1
    return counts


@lru_cache(maxsize=4)
def _rotated(data: str, clusters: int) -> tuple[np.ndarray, np.ndarray]:
    """All images in every rotation (clusters x images x pixels, channels first), and their labels."""
    base = images(data)
    height, width = base.x.shape[1:3]
    if height != width and clusters not in (1, 2):
        raise SettingError(
            "images are square to be turned", f"{height} x {width} with {clusters} clusters", "crop them"
        )
    turned = np.empty((clusters, len(base), base.x[0].size), base.x.dtype)
    for i in range(clusters):
        view = rotate(base.x, i * 360 / clusters)
        turned[i] = (np.moveaxis(view, 3, 1) if view.ndim == 4 else view).reshape(len(base), -1)
    return turned, base.y


@lru_cache(maxsize=8)
def _permutation(data: str, seed: int) -> np.ndarray:
    """The order of images; a test set of their own stays in front."""
    found = images(data)
    if not found.tests:
        return generator(seed, "split").permutation(len(found))
    return np.concatenate([generator(seed, "split").permutation(found.tests), np.arange(found.tests, len(found))])


WORLDS: dict[str, type[World]] = {Rotated.name: Rotated}
