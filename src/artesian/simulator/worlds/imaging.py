"""What all worlds of images share: data by name, one division into parts, and inputs that may be standardised."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Protocol, get_args

from artesian.core import ClientId, ClusterId
from artesian.data.datasets import Samples, classes_of, files_of, images
from artesian.data.image_arrays import shape_of
from artesian.execution.shared_memory import once
from artesian.simulator.worlds.standardising import Scale, Standardise, Training, scale_of
from artesian.simulator.worlds.visit import Numbered, Visit


class Division(Protocol):
    """The images of a world, divided for good by the seed: the server's, those for tests, those to train on."""

    def proxies(self) -> Mapping[ClusterId, Samples]: ...
    def tests(self) -> Mapping[ClusterId, Samples]: ...
    def training(self) -> Sequence[Training]: ...


class ImageWorld(Numbered):
    """A world of images. All its samples are standardised alike, by the images that clients train on."""

    data: str  # a world of several sets has files, shape and classes of its own
    proxy_images: int
    test_images: int
    standardise: Standardise

    @abstractmethod
    def division(self, seed: int) -> Division:
        """Which images are for what, as they are."""

    @abstractmethod
    def visit_of(self, seed: int, place: ClientId, cycle: int) -> Visit:
        """The images of one place in one cycle, as they are."""

    def proxies(self, seed: int) -> Mapping[ClusterId, Samples]:
        return {k: self._standardised(seed, samples) for k, samples in self.division(seed).proxies().items()}

    def tests(self, seed: int) -> Mapping[ClusterId, Samples]:
        return {k: self._standardised(seed, samples) for k, samples in self.division(seed).tests().items()}

    def visit(self, seed: int, client: ClientId, cycle: int) -> Visit:
        drawn = self.visit_of(seed, self.place(seed, client), cycle)
        return Visit(self._standardised(seed, drawn.train), self._standardised(seed, drawn.test), drawn.mixture)

    def _standardised(self, seed: int, samples: Samples) -> Samples:
        return samples if self.standardise == "none" else _scale(self, seed).standardised(samples)

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

    def image_rules(self) -> dict[str, bool]:
        """What every world of images demands."""
        return {
            "clients is at least 1": self.clients >= 1,
            "proxy_images and test_images are at least 1": min(self.proxy_images, self.test_images) >= 1,
            "standardise is none, pixel or channel": self.standardise in get_args(Standardise),
        }


@once(4)
def _scale(world: ImageWorld, seed: int) -> Scale:
    """How a world's samples are standardised; workers are given it."""
    return scale_of(world.division(seed).training(), world.shape[0] if world.standardise == "channel" else None)
