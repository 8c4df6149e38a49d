"""A world around another: what does not change is that one's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from artesian.core import ClientId, ClusterId
from artesian.data.datasets import Samples
from artesian.simulator.worlds.visit import World


class WrappedWorld(World):
    """Changes when clients have which data, and nothing else: clients, kinds of samples and the server's data stay."""

    world: World

    @property
    def names(self) -> Sequence[ClientId]:
        return self.world.names

    @property
    def shape(self) -> tuple[int, int, int] | None:
        return self.world.shape

    @property
    def features(self) -> int:
        return self.world.features

    @property
    def classes(self) -> int:
        return self.world.classes

    def proxies(self, seed: int) -> Mapping[ClusterId, Samples]:
        return self.world.proxies(seed)

    def tests(self, seed: int) -> Mapping[ClusterId, Samples]:
        return self.world.tests(seed)

    def files(self) -> Sequence[Path]:
        return self.world.files()

    def describe(self) -> dict[str, Any]:
        """The plain world's settings; what was changed about it is described beside them."""
        return self.world.describe()
