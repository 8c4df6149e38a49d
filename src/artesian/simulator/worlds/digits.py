"""Digits from three sources, one cluster for each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from artesian.core import described, generator
from artesian.data.datasets import Images, files_of, images
from artesian.data.image_arrays import flattened, resized, with_channels
from artesian.errors import MissingData, check
from artesian.execution.shared_memory import once
from artesian.simulator.worlds.mixing import Clusters, ClusterSamples, MixedWorld, Redraw, main_shares, nearest_counts
from artesian.simulator.worlds.standardising import Standardise
from artesian.simulator.worlds.visit import check_room

PAPER = ("mnist", "usps", "svhn")  # the paper's third source, CCPD, has a licence of its own: any other is a surrogate
INVERTED = "inverted:"


@dataclass(frozen=True)
class DigitWorld(MixedWorld):
    """Digits of three kinds with CDFL's clients: cluster i holds the images of source i, in one size and colouring.

    A source is a data set, several joined by +, or `inverted:` and a set, whose images are made negative. Images are
    made `size` x `size` bilinearly; grey is repeated over three channels, colours become their mean in one.
    """

    name: ClassVar[str] = "digit-world"
    sources: tuple[str, ...] = ("mnist+usps", "svhn", "plates")
    size: int = 32
    channels: Literal[1, 3] = 3
    source_images: int = 10_000  # of each source at most, chosen by the seed
    clients: int = 100
    samples_min: int = 500
    samples_max: int = 2000
    main_share_min: float = 0.4
    main_share_max: float = 0.9
    redraw: Redraw = True
    proxy_images: int = 500  # per source, the server's
    test_images: int = 1000  # per source, for evaluation
    client_test_samples: int = 500
    shuffled: bool = True  # which client is in which group is drawn by the seed; False: in the order of their numbers
    standardise: Standardise = "none"  # or "pixel", "channel": mean 0 and spread 1, by the training images

    def __post_init__(self) -> None:
        object.__setattr__(self, "sources", tuple(self.sources))
        check(
            self,
            {
                "every source must have a name of its own in sources": 0 < len(self.sources) == len(set(self.sources)),
                "sources must name at least one source, and no more than there are clients": 1
                <= len(self.sources)
                <= self.clients,
                "size is from 4 to 512": 4 <= self.size <= 512,
                "channels are 1 or 3": self.channels in (1, 3),
                **self.rules(),
            },
        )

    def files(self) -> Sequence[Path]:
        names = [name for source in self.sources for name in source.removeprefix(INVERTED).split("+")]
        return [path for name in dict.fromkeys(names) for path in files_of(name)]

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.channels, self.size, self.size

    @property
    def classes(self) -> int:
        return 10

    @property
    def surrogates(self) -> list[str]:
        """The sources that stand in for one of the paper's."""
        return [source for source in self.sources if not set(source.split("+")) <= set(PAPER)]

    def describe(self) -> dict[str, Any]:
        """The settings, and which sources are surrogates."""
        return {**described(self, self.name), "surrogates": self.surrogates}

    def counts(self, rng: np.random.Generator, place: int, samples: int) -> np.ndarray:
        kinds = len(self.sources)
        shares = main_shares(rng, place % kinds, kinds, self.main_share_min, self.main_share_max)
        return nearest_counts(shares, samples)

    def division(self, seed: int) -> Clusters:
        return _clusters(self, seed)


@once(2)
def _clusters(world: DigitWorld, seed: int) -> Clusters:
    """Every source: chosen, resized, and divided into proxy, evaluation and training."""
    parts = []
    held_out = world.proxy_images + world.test_images
    for source in world.sources:
        sets = _sets(source)
        rows = generator(seed, "source", source).permutation(sum(map(len, sets)))[: world.source_images]
        together = held_out + world.samples_max
        check_room(f"proxy_images, test_images and samples_max of {source} together", together, len(rows))
        x, y = _prepared(sets, rows, world)
        order = np.arange(len(rows))
        chosen = order[: world.proxy_images], order[world.proxy_images : held_out], order[held_out:]
        parts.append(ClusterSamples(255 - x if source.startswith(INVERTED) else x, y, *chosen))
    return Clusters(parts)


def _sets(source: str) -> list[Images]:
    """The data sets of one source."""
    try:
        sets = [images(name) for name in source.removeprefix(INVERTED).split("+")]
    except MissingData as error:
        raise MissingData(
            f"The source {source} of digit-world is missing. {error.problem}",
            f"{error.remedy}. Or name other sources in world.sources, such as 'mnist' alone, or the surrogates "
            "'inverted:mnist' and 'digits'",
        ) from None
    if any(found.y.max() > 9 for found in sets):
        raise MissingData(f"{source} has more labels than the digits 0 to 9", "Name another source")
    return sets


def _prepared(sets: Sequence[Images], rows: np.ndarray, world: DigitWorld) -> tuple[np.ndarray, np.ndarray]:
    """These rows of the sets joined, as bytes in the world's size and channels."""
    x, y = np.empty((len(rows), world.features), np.uint8), np.empty(len(rows), np.int64)
    first = 0
    for found in sets:
        here = (rows >= first) & (rows < first + len(found))
        chosen = _bytes(found.x[rows[here] - first])
        x[here] = flattened(with_channels(resized(chosen, world.size), world.channels))
        y[here] = found.y[rows[here] - first]
        first += len(found)
    return x, y


def _bytes(x: np.ndarray) -> np.ndarray:
    return x if x.dtype == np.uint8 else np.rint(np.clip(x, 0, 1) * 255).astype(np.uint8)
