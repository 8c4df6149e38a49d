"""Dealing rows of a data set out: some to the server, the others to clients, for good."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from artesian.core import ClientId, ClusterId, generator
from artesian.data.datasets import Samples, as_floats, classes_of, images
from artesian.data.image_arrays import flattened
from artesian.errors import SettingError
from artesian.execution.shared_memory import once
from artesian.simulator.worlds.imaging import ImageWorld
from artesian.simulator.worlds.standardising import Training
from artesian.simulator.worlds.visit import Visit, check_room, hard

Rows = np.ndarray


@dataclass(frozen=True)
class Deal:
    """Who holds which rows: every client's for training and for tests, its true group, and the server's by group."""

    x: np.ndarray
    y: np.ndarray
    train: Mapping[ClientId, Rows]
    test: Mapping[ClientId, Rows]
    group: Mapping[ClientId, int]
    proxy_rows: Sequence[Rows]  # none where the server has no data
    test_rows: Sequence[Rows]

    def visit(self, client: ClientId) -> Visit:
        mixture = hard(self.group[client], len(self.test_rows))
        return Visit(self._samples(self.train[client]), self._samples(self.test[client]), mixture)

    def proxies(self) -> dict[ClusterId, Samples]:
        return {f"k{i}": self._samples(rows) for i, rows in enumerate(self.proxy_rows)}

    def tests(self) -> dict[ClusterId, Samples]:
        return {f"k{i}": self._samples(rows) for i, rows in enumerate(self.test_rows)}

    def training(self) -> list[Training]:
        """The rows of all clients."""
        return [(self.x, np.sort(np.concatenate(list(self.train.values()))))]

    def _samples(self, rows: Rows) -> Samples:
        return Samples(as_floats(self.x[rows]), self.y[rows])


class DealtWorld(ImageWorld):
    """A world that deals every image once, to the server or to a client, which keeps it."""

    test_share: float
    samples_min: int
    samples_per_client: int | None

    @property
    def held(self) -> bool:
        return True

    @abstractmethod
    def division(self, seed: int) -> Deal:
        """Who holds which images."""

    def visit_of(self, seed: int, place: ClientId, cycle: int) -> Visit:
        return self.division(seed).visit(place)

    def rules(self) -> dict[str, bool]:
        """What every such world demands."""
        return {**self.image_rules(), **held_rules(self.test_share, self.samples_min, self.samples_per_client)}


def held_rules(test_share: float, samples_min: int, samples_per_client: int | None) -> dict[str, bool]:
    """What every world demands that divides a client's samples into training and tests."""
    return {
        "test_share is between 0 and 1": 0 < test_share < 1,
        "samples_min is at least 2": samples_min >= 2,
        "samples_per_client is at least samples_min": samples_per_client is None or samples_per_client >= samples_min,
    }


@dataclass(frozen=True)
class Stock:
    """The rows of each label: the server's proxy and test images, and what is left for clients."""

    proxy: Mapping[int, Rows]
    test: Mapping[int, Rows]
    left: Mapping[int, Rows]

    @property
    def labels(self) -> list[int]:
        return sorted(self.left)

    def kept(self, labels: Sequence[int]) -> tuple[Rows, Rows]:
        """The server's rows of these labels."""
        proxy, test = (np.concatenate([part[label] for label in labels]) for part in (self.proxy, self.test))
        return proxy, test


def stock(data: str, seed: int, proxy: int, test: int) -> Stock:
    """So many images of each label for the server, the others for clients, in an order of the seed.

    Of a set with a test set of its own, the server's are from that, and clients have the training set.
    """
    found = images(data)
    classes_of(data)  # refuses a single one
    order = generator(seed, "stock").permutation(len(found))
    parts: tuple[dict[int, Rows], dict[int, Rows], dict[int, Rows]] = ({}, {}, {})
    for label in np.unique(found.y).tolist():
        rows = order[found.y[order] == label]
        own = rows[rows < found.tests] if found.tests else rows
        check_room(f"proxy_images and test_images of the label {label}", proxy + test, len(own))
        left = rows[rows >= found.tests] if found.tests else rows[proxy + test :]
        for part, chosen in zip(parts, (own[:proxy], own[proxy : proxy + test], left), strict=True):
            part[label] = chosen
    return Stock(*parts)


def flat_images(data: str) -> np.ndarray:
    """All images as rows of numbers: grey ones as they lie there, of colours a copy."""
    x = images(data).x
    return flattened(x) if x.ndim == 3 else _flat_colours(data)


@once(4)
def _flat_colours(data: str) -> np.ndarray:
    return flattened(images(data).x)


def topped_up(hands: list[Rows], least: int) -> list[Rows]:
    """No hand below `least`: it takes from the end of whichever is the largest, until it has them."""
    if sum(map(len, hands)) < least * len(hands):
        raise SettingError(
            f"{len(hands)} clients need {least} samples each, but there are {sum(map(len, hands))} in all",
            "Use fewer clients, or lower samples_min, proxy_images or test_images",
        )
    for i in range(len(hands)):
        while len(hands[i]) < least:
            largest = max(range(len(hands)), key=lambda j: len(hands[j]))
            taken = min(least - len(hands[i]), len(hands[largest]) - least)
            hands[i] = np.concatenate([hands[i], hands[largest][-taken:]])
            hands[largest] = hands[largest][:-taken]
    return hands


def train_and_test(
    seed: int, client: ClientId, rows: Rows, test_share: float, most: int | None = None
) -> tuple[Rows, Rows]:
    """A client's rows, shuffled, cut to `most`, and divided: floor(share * rows) for tests, one or more each."""
    shuffled = generator(seed, "divide", client).permutation(rows)[:most]
    tests = min(max(1, int(len(shuffled) * test_share + 1e-9)), len(shuffled) - 1)
    return shuffled[tests:], shuffled[:tests]


def dealt(
    data: str,
    seed: int,
    hands: Mapping[ClientId, Rows],
    group: Mapping[ClientId, int],
    kept: Sequence[tuple[Rows, Rows]],
    test_share: float,
    most: int | None,
) -> Deal:
    """Clients' hands, divided into training and tests."""
    divided = {client: train_and_test(seed, client, rows, test_share, most) for client, rows in hands.items()}
    return Deal(
        flat_images(data),
        images(data).y,
        {client: train for client, (train, _) in divided.items()},
        {client: test for client, (_, test) in divided.items()},
        group,
        [proxy for proxy, _ in kept],
        [test for _, test in kept],
    )
