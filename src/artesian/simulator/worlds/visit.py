"""What a world is, and what it hands out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

from artesian.core import ClientId, ClusterId, Mixture
from artesian.data.datasets import Samples
from artesian.errors import SettingError


@dataclass(frozen=True)
class Visit:
    """What one client has in one cycle: data to train on, data of the same mixture to be tested on."""

    train: Samples
    test: Samples
    mixture: Mixture  # the true one


class World(Protocol):
    """A pure function from (seed, client, cycle) to data: any process may work it out.

    A world of images may have a `shape` too, (channels, height, width), for networks that look at them as such. `turns`
    says what the third argument of `visit` counts: "client", the default, the client's own cycles; "round", the rounds
    of the whole federation. `held` is true where it makes no difference.
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


def check_room(what: str, wanted: int, found: int, unit: str = "images") -> None:
    """Refuse to take more than the data have."""
    if wanted > found:
        raise SettingError(f"The data have {found} {unit}, too few for {what} ({wanted})", "Lower one of them")


def numbered(clients: int) -> list[ClientId]:
    """Clients by number: c000, c001, ..."""
    return [f"c{i:03d}" for i in range(clients)]


def hard(group: int, groups: int) -> Mixture:
    """All of one group."""
    return {f"k{i}": float(i == group) for i in range(groups)}
