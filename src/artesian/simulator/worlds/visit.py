"""What a world is, and what it hands out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self, runtime_checkable

import numpy as np

from artesian.core import ClientId, ClusterId, Mixture, described, generator
from artesian.data.datasets import Samples
from artesian.errors import SettingError


@dataclass(frozen=True)
class Visit:
    """What one client has in one cycle: data to train on, data of the same mixture to be tested on."""

    train: Samples
    test: Samples
    mixture: Mixture  # the true one


@dataclass(frozen=True)
class Concept:
    """How far a client's data have drifted: two turns with equal concepts have the same distribution."""

    drifts: int = 0  # begun so far
    share: float = 1.0  # of the newest in its samples: less than 1 while a gradual drift lasts


@runtime_checkable
class World(Protocol):
    """A pure function from (seed, client, cycle) to data: any process may compute it.

    Subclass it to inherit what is optional: `name`, `shape`, `turns`, `held`, `personal` and the methods with a body.
    `features` and `classes` may be properties, class variables, or fields with a default.
    """

    name: ClassVar[str] = ""  # in TOML; without one, module:name

    @property
    def names(self) -> Sequence[ClientId]:
        """The ids of the clients."""
        ...

    @property
    def features(self) -> int:
        """How many numbers a sample has."""
        ...

    @property
    def classes(self) -> int:
        """How many labels there are; 1 where they are numbers to predict."""
        ...

    @property
    def shape(self) -> tuple[int, int, int] | None:
        """Channels, height and width of a sample; None where samples are no images."""
        return None

    @property
    def turns(self) -> str:
        """What the third argument of `visit` counts: "client", the client's own cycles, or "round", all rounds."""
        return "client"

    @property
    def held(self) -> bool:
        """Whether a client's data never change, whatever that argument is."""
        return False

    @property
    def personal(self) -> bool:
        """Whether every client has a distribution of its own, so that only its own test data can judge its models."""
        return False

    def visit(self, seed: int, client: ClientId, cycle: int) -> Visit:
        """The data of one client in one cycle."""
        ...

    def proxies(self, seed: int) -> Mapping[ClusterId, Samples]:
        """The server's proxy set of every cluster; none where the server has no data."""
        ...

    def tests(self, seed: int) -> Mapping[ClusterId, Samples]:
        """The test data of every cluster."""
        ...

    def changed(self, seed: int, client: ClientId, before: int, after: int) -> bool:
        """Whether a client's data differ between two cycles; by default both are drawn and compared."""
        if before == after or self.held:
            return False
        one, two = (self.visit(seed, client, cycle) for cycle in (before, after))
        pairs = ((one.train, two.train), (one.test, two.test))
        return not all(np.array_equal(a.x, b.x) and np.array_equal(a.y, b.y) for a, b in pairs)

    def concept(self, seed: int, client: ClientId, turn: int) -> Concept:
        """How far a client's data have drifted at one of its turns; by default never."""
        return Concept()

    def redrawn(self) -> Self:
        """The same world with new data in every cycle; itself where it cannot, or does so anyway."""
        return self

    def files(self) -> Sequence[Path]:
        """The files its data are read from, for the record of a run."""
        return ()

    def describe(self) -> dict[str, Any]:
        """Name and settings, for the record of a run."""
        return described(self, self.name)


class Numbered(World):
    """A world whose clients are c000, c001 and so on, where the place of a client decides its group.

    The first places have one group, the next another, or groups take turns. Were places those of the clients' numbers,
    clients that finish at the same moment would upload group by group: so `shuffled` draws them by the seed.
    """

    clients: int
    shuffled: bool

    @property
    def names(self) -> Sequence[ClientId]:
        return numbered(self.clients)

    def place(self, seed: int, client: ClientId) -> ClientId:
        """Whose data this client has in a world that is not shuffled: its own, or another's, drawn by the seed."""
        return _shuffled(self.clients, seed)[client] if self.shuffled else client


@lru_cache(maxsize=8)
def _shuffled(clients: int, seed: int) -> dict[ClientId, ClientId]:
    """Everybody's place: a permutation of the clients."""
    names = numbered(clients)
    order = generator(seed, "places").permutation(clients).tolist()
    return {client: names[place] for client, place in zip(names, order, strict=True)}


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
