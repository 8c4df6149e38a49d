"""People as clients: data that say whose they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import ClassVar

import numpy as np

from artesian.core import ClientId, ClusterId, generator
from artesian.data.datasets import Samples
from artesian.data.image_arrays import flattened, shape_of
from artesian.data.people import People, people, people_files
from artesian.errors import SettingError, check
from artesian.execution.shared_memory import once
from artesian.simulator.worlds.dealing import Deal, Rows, held_rules, train_and_test
from artesian.simulator.worlds.visit import Visit, World


@dataclass(frozen=True)
class Natural(World):
    """Every user of a data set is a client; the largest first. The true group is the file's, or one for all.

    Of every client's samples `proxy_share` goes to the server's proxy set, `test_share` of the rest is for tests.
    With a share of 0 the server has no data at all. A group is tested on the test samples of all its clients. Nothing
    changes with the cycle.
    """

    name: ClassVar[str] = "natural"
    held: ClassVar[bool] = True
    personal: ClassVar[bool] = True  # people differ, also within a group
    data: str = "har"  # human activities below ARTESIAN_DATA, or an .npz file with x, y and user
    clients: int | None = None  # the largest so many; None: all
    test_share: float = 0.25
    proxy_share: float = 0.05  # of every client's samples, the server's; 0: it has no proxy sets
    samples_min: int = 4  # users with fewer are left out
    samples_per_client: int | None = None

    def __post_init__(self) -> None:
        check(
            self,
            {
                "clients is at least 1": self.clients is None or self.clients >= 1,
                "proxy_share is from 0 to 0.5": 0 <= self.proxy_share <= 0.5,
                **held_rules(self.test_share, self.samples_min, self.samples_per_client),
                "samples_min is at least 3, for proxy, training and tests": self.samples_min >= 3
                or not self.proxy_share,
            },
        )

    def files(self) -> Sequence[Path]:
        return people_files(self.data)

    @property
    def names(self) -> Sequence[ClientId]:
        return list(_users(self))

    @property
    def features(self) -> int:
        return int(np.prod(people(self.data).x.shape[1:]))

    @property
    def shape(self) -> tuple[int, int, int] | None:
        x = people(self.data).x
        return None if x.ndim == 2 else shape_of(x)

    @property
    def classes(self) -> int:
        y = people(self.data).y
        if len(np.unique(y)) < 2:
            raise SettingError(f"{self.data} has one class only, so there is nothing to learn", "Choose other data")
        return int(y.max()) + 1

    def proxies(self, seed: int) -> Mapping[ClusterId, Samples]:
        return _deal(self, seed).proxies()

    def tests(self, seed: int) -> Mapping[ClusterId, Samples]:
        return _deal(self, seed).tests()

    def visit(self, seed: int, client: ClientId, cycle: int) -> Visit:
        return _deal(self, seed).visit(client)


@lru_cache(maxsize=4)
def _users(world: Natural) -> dict[ClientId, Rows]:
    """The rows of every client, those with most first."""
    found = people(world.data)
    order = np.argsort(found.user, kind="stable")
    users, starts = np.unique(found.user[order], return_index=True)
    rows = dict(zip(users.tolist(), np.split(order, starts[1:]), strict=True))
    large = [user for user in rows if len(rows[user]) >= world.samples_min]
    if len(large) < (world.clients or 1):
        raise SettingError(
            f"clients is {world.clients or 1}, but only {len(large)} users of the data have enough samples",
            "Lower clients or samples_min",
        )
    return {user: rows[user] for user in sorted(large, key=lambda user: (-len(rows[user]), user))[: world.clients]}


@lru_cache(maxsize=4)
def _deal(world: Natural, seed: int) -> Deal:
    found, users = people(world.data), _users(world)
    groups = _groups(found, users, world.data)
    count = max(groups.values()) + 1
    train, test = {}, {}
    proxies: list[list[Rows]] = [[] for _ in range(count)]
    tests: list[list[Rows]] = [[] for _ in range(count)]
    for user, rows in users.items():
        shuffled = generator(seed, "natural", user).permutation(rows)[: world.samples_per_client]
        kept = max(1, int(len(shuffled) * world.proxy_share)) if world.proxy_share else 0
        train[user], test[user] = train_and_test(seed, user, shuffled[kept:], world.test_share)
        proxies[groups[user]].append(shuffled[:kept])
        tests[groups[user]].append(test[user])
    x = flattened(found.x) if found.x.ndim < 4 else _flat_colours(world.data)
    kept_rows = [np.concatenate(rows) for rows in proxies] if world.proxy_share else []
    return Deal(x, found.y, train, test, groups, kept_rows, [np.concatenate(rows) for rows in tests])


@once(2)
def _flat_colours(data: str) -> np.ndarray:
    return flattened(people(data).x)


def _groups(found: People, users: Mapping[ClientId, Rows], data: str) -> dict[ClientId, int]:
    """The true groups of the clients, counted from 0 without gaps."""
    own = {user: np.unique(found.group[rows]) for user, rows in users.items()}
    mixed = next((user for user, groups in own.items() if len(groups) > 1), None)
    if mixed is not None:
        raise SettingError(
            f"The user {mixed} is in {len(own[mixed])} groups in {data}", "Fix the array group: one group a user"
        )
    present = sorted({int(groups[0]) for groups in own.values()})
    return {user: present.index(int(groups[0])) for user, groups in own.items()}
