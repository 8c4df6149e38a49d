"""Worlds of label skew: CASA's groups of clients with labels of their own, and FlexCFL's few classes a client."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np

from artesian.core import ClientId, generator
from artesian.errors import SettingError, check
from artesian.simulator.worlds.dealing import Deal, DealtWorld, Rows, Stock, dealt, stock, topped_up
from artesian.simulator.worlds.mixing import nearest_counts
from artesian.simulator.worlds.standardising import Standardise


@dataclass(frozen=True)
class LabelGroups(DealtWorld):
    """Clients in groups, each group with labels of its own, divided inside by a Dirichlet draw for each label.

    The true group of a client is that of its labels. Nothing changes with the cycle. A client that was dealt fewer
    than `samples_min` samples takes from the largest of its group until it has them. Labels in no group are unused.
    """

    name: ClassVar[str] = "label-groups"
    data: str = "digits"
    clients: int = 100
    groups: tuple[tuple[int, ...], ...] = ((0, 1), (2, 3), (4, 5, 6), (7, 8, 9))
    shares: tuple[float, ...] = (0.2, 0.2, 0.3, 0.3)  # of the clients, for each group; (): even
    dirichlet: float = 1.0  # over the clients of a group, for each label
    iid: bool = False  # all samples dealt evenly at random, one group; groups and shares do not count
    test_share: float = 0.25  # of a client's samples
    samples_min: int = 4  # of a client
    samples_per_client: int | None = None  # at most, to keep runs short
    proxy_images: int = 10  # of each label, the server's
    test_images: int = 30  # of each label, for evaluation
    shuffled: bool = True  # which client is in which group is drawn by the seed; False: in the order of their numbers
    standardise: Standardise = "none"  # or "pixel", "channel": mean 0 and spread 1, by the training images

    def __post_init__(self) -> None:
        object.__setattr__(self, "groups", tuple(tuple(group) for group in self.groups))
        object.__setattr__(self, "shares", tuple(self.shares))
        labels = [label for group in self.groups for label in group]
        check(
            self,
            {
                **self.rules(),
                "groups must hold at least one group, each with labels from 0 on": (
                    len(self.groups) > 0 and all(self.groups) and min(labels, default=0) >= 0
                ),
                "groups must not share labels": len(set(labels)) == len(labels),
                "there are no more groups than clients": self.iid or len(self.groups) <= self.clients,
                "shares are positive, and as many as groups or none": (
                    not self.shares or (len(self.shares) == len(self.groups) and min(self.shares) > 0)
                ),
                "dirichlet is positive": 0 < self.dirichlet < float("inf"),
            },
        )
        if not self.iid and min(self._sizes) < 1:
            raise ValueError(f"shares must leave every group a client, not {self._sizes.tolist()} of {self.clients}")

    def division(self, seed: int) -> Deal:
        return _by_groups(self, seed)

    @property
    def _sizes(self) -> np.ndarray:
        """How many clients each group has."""
        shares = np.array(self.shares or [1.0] * len(self.groups))
        return nearest_counts(shares / shares.sum(), self.clients)


@dataclass(frozen=True)
class FewClasses(DealtWorld):
    """Every client has a few labels, and sizes follow a power law.

    The client in place i has the labels i, i+1, ... (modulo all labels), so that label sets repeat: those with the same
    set are one true group. Every client first has `samples_min` samples, spread evenly over its labels; the rest of a
    label is divided over its clients in proportion to a lognormal draw for each client. Nothing changes with the cycle.
    """

    name: ClassVar[str] = "few-classes"
    data: str = "mnist"
    clients: int = 1000
    classes_per_client: int = 2
    spread: float = 2.0  # of the lognormal draw; 0: all clients alike
    test_share: float = 0.25
    samples_min: int = 10
    samples_per_client: int | None = None
    proxy_images: int = 10  # of each label, the server's
    test_images: int = 30  # of each label, for evaluation
    shuffled: bool = True  # which client is in which group is drawn by the seed; False: in the order of their numbers
    standardise: Standardise = "none"  # or "pixel", "channel": mean 0 and spread 1, by the training images

    def __post_init__(self) -> None:
        check(
            self,
            {
                **self.rules(),
                "classes_per_client is at least 1": self.classes_per_client >= 1,
                "samples_min is at least classes_per_client": self.samples_min >= self.classes_per_client,
                "spread is from 0 to 10": 0 <= self.spread <= 10,
            },
        )

    def division(self, seed: int) -> Deal:
        return _by_few_classes(self, seed)


@lru_cache(maxsize=4)
def _by_groups(world: LabelGroups, seed: int) -> Deal:
    held = stock(world.data, seed, world.proxy_images, world.test_images)
    groups = (tuple(held.labels),) if world.iid else world.groups
    if unknown := {label for group in groups for label in group} - set(held.labels):
        raise SettingError(f"groups names the label {min(unknown)}, but the data have {held.labels}", "Change groups")
    sizes = [world.clients] if world.iid else world._sizes.tolist()
    hands: dict[ClientId, Rows] = {}
    group_of: dict[ClientId, int] = {}
    names = iter(world.names)
    for number, (labels, size) in enumerate(zip(groups, sizes, strict=True)):
        rng = generator(seed, "deal", number)
        dealt_out = _evenly(held, size, rng) if world.iid else _dirichlet(held, labels, size, world.dirichlet, rng)
        for rows in topped_up(dealt_out, world.samples_min):
            client = next(names)
            hands[client], group_of[client] = rows, number
    kept = [held.kept(labels) for labels in groups]
    return dealt(world.data, seed, hands, group_of, kept, world.test_share, world.samples_per_client)


def _evenly(held: Stock, clients: int, rng: np.random.Generator) -> list[Rows]:
    everything = np.concatenate([held.left[label] for label in held.labels])
    return np.array_split(rng.permutation(everything), clients)


def _dirichlet(held: Stock, labels: Sequence[int], clients: int, alpha: float, rng: np.random.Generator) -> list[Rows]:
    """For each label, how its rows divide over the clients."""
    hands: list[list[Rows]] = [[] for _ in range(clients)]
    for label in labels:
        shares = rng.dirichlet(np.full(clients, alpha))
        cuts = np.cumsum(nearest_counts(shares, len(held.left[label])))[:-1]
        for hand, rows in zip(hands, np.split(held.left[label], cuts), strict=True):
            hand.append(rows)
    return [np.concatenate(hand) for hand in hands]


@lru_cache(maxsize=4)
def _by_few_classes(world: FewClasses, seed: int) -> Deal:
    held = stock(world.data, seed, world.proxy_images, world.test_images)
    labels, per_client = held.labels, world.classes_per_client
    if per_client > len(labels):
        raise SettingError(f"classes_per_client is {per_client}, but the data have {len(labels)} classes", "Lower it")
    sets = [[labels[(i + j) % len(labels)] for j in range(per_client)] for i in range(len(labels))]
    sets = sets[:1] if per_client == len(labels) else sets[: world.clients]
    group_of = {client: i % len(sets) for i, client in enumerate(world.names)}
    hands: dict[ClientId, list[Rows]] = {client: [] for client in world.names}
    drawn = generator(seed, "sizes").normal(0, world.spread, world.clients)
    weights = dict(zip(world.names, np.exp(drawn - drawn.max()).tolist(), strict=True))
    for label in labels:
        holders = [client for client in world.names if label in sets[group_of[client]]]
        counts = _power_law(
            len(held.left[label]),
            [_floor(world, sets[group_of[c]], label) for c in holders],
            [weights[c] for c in holders],
            label,
        )
        for client, rows in zip(holders, np.split(held.left[label], np.cumsum(counts)[:-1]), strict=False):
            hands[client].append(rows)
    kept = [held.kept(chosen) for chosen in sets]
    joined = {client: np.concatenate(rows) for client, rows in hands.items()}
    return dealt(world.data, seed, joined, group_of, kept, world.test_share, world.samples_per_client)


def _floor(world: FewClasses, labels: Sequence[int], label: int) -> int:
    """How many of this label a client has in any case: samples_min spread over its labels, the first ones before."""
    each, more = divmod(world.samples_min, len(labels))
    return each + (labels.index(label) < more)


def _power_law(rows: int, floors: Sequence[int], weights: Sequence[float], label: int) -> np.ndarray:
    """Everybody's floor, and the rest in proportion to the weights."""
    if not floors:
        return np.zeros(0, int)
    spare = rows - sum(floors)
    if spare < 0:
        raise SettingError(
            f"samples_min needs {sum(floors)} images of the label {label}, but there are {rows}",
            "Use fewer clients, or lower samples_min",
        )
    shares = np.array(weights) / sum(weights)
    return np.array(floors) + nearest_counts(shares, spare)
