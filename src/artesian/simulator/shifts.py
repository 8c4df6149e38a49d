"""Shifts: how clients' data change while a federation learns, whatever world they are from."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import prod
from typing import ClassVar, Literal

import numpy as np

from artesian.core import ClientId, generator
from artesian.data.datasets import Samples
from artesian.errors import check
from artesian.simulator.worlds import Visit, World
from artesian.simulator.worlds.wrapped import WrappedWorld

Kind = Literal["own", "none", "redraw", "swap-all", "swap-part", "incremental", "incremental-legacy"]
Holding = Mapping[int, ClientId]  # of whom the samples of each label are; under ALL: all of them
ALL = -1


@dataclass(frozen=True)
class Shift:
    """What happens to clients' data from turn to turn; turn 0 is the data as they were dealt.

    own: what the world does by itself. none: nothing. redraw: new data, in worlds that can draw anew. swap-all: random
    pairs of clients, each pair exchanges all data with probability p. swap-part: such pairs exchange all samples of one
    label each that the other lacks; where there is none, nothing. incremental: a growing share of the training data;
    incremental-legacy multiplies the share that is already reduced.
    """

    kind: Kind = "own"
    p: float = 0.05  # of a pair to swap, at every turn
    steps: int = 4  # of an incremental shift: shares 1/steps, 2/steps, ... 1
    every: int | None = None  # turns between two changes; None: 50 for incremental shifts, 1 for the others

    def __post_init__(self) -> None:
        rules = {
            "p is between 0 and 1": 0 <= self.p <= 1,
            "steps is at least 1": self.steps >= 1,
            "every is at least 1": self.every is None or self.every >= 1,
            "p has an effect only with a kind that swaps": self.p == Shift.p or self.kind.startswith("swap"),
            "steps has an effect only with an incremental kind": self.steps == Shift.steps
            or self.kind.startswith("incremental"),
            "every has an effect only with a kind other than own and none": self.every is None
            or self.kind not in ("own", "none"),
        }
        check(self, rules)

    @property
    def period(self) -> int:
        """Turns between two changes."""
        return self.every or (50 if self.kind.startswith("incremental") else 1)

    def share(self, turn: int) -> float:
        """The share of the training data that an incremental shift shows at this turn."""
        step = min(turn // self.period, self.steps - 1)
        if self.kind == "incremental-legacy":
            return prod((i + 1) / self.steps for i in range(step + 1))
        return (step + 1) / self.steps if self.kind == "incremental" else 1.0


@dataclass(frozen=True)
class Shifted(WrappedWorld):
    """A world whose data change by a shift; everything else is the world's own.

    All kinds but own and redraw hold the world's data of cycle 0. A client's mixture goes with its samples; a part of
    the training data keeps the mixture of the whole.
    """

    name: ClassVar[str] = "shifted"
    world: World
    shift: Shift = field(default_factory=Shift)

    def __post_init__(self) -> None:
        if isinstance(self.world, Shifted):
            raise ValueError("This world is shifted already: shift the plain one")
        if type(self.world).__hash__ is None:
            raise ValueError(
                f"{self._called} cannot be shifted, because it cannot be hashed: make it a frozen dataclass"
            )
        if self.shift.kind == "redraw" and self.world.redrawn().held:
            raise ValueError(
                f"The shift redraw needs a world that draws new data, and those of {self._called} never change"
            )
        if self.shift.kind == "swap-part" and self.world.classes < 2:
            raise ValueError(f"The shift swap-part exchanges labels, and {self._called} has none")
        if self.shift.kind.startswith("swap") and len(self.world.names) < 2:
            raise ValueError("Swapping needs at least two clients, and there is one")

    @property
    def _called(self) -> str:
        return str(self.world.describe()["name"])

    @property
    def turns(self) -> str:
        """What a turn is: a round of the federation, or a cycle of the client."""
        return self.world.turns if self.shift.kind in ("own", "none", "redraw") else "round"

    @property
    def held(self) -> bool:
        kind = self.shift.kind
        return kind == "none" or (kind == "own" and self.world.held)

    @property
    def personal(self) -> bool:
        return self.world.personal

    def visit(self, seed: int, client: ClientId, cycle: int) -> Visit:
        match self.shift.kind:
            case "own":
                return self.world.visit(seed, client, cycle)
            case "none":
                return self.world.visit(seed, client, 0)
            case "redraw":
                return self.world.redrawn().visit(seed, client, cycle // self.shift.period)
            case "swap-all" | "swap-part":
                return _gathered(self.world, seed, client, _history(self, seed).at(client, cycle))
        return _reduced(self.world.visit(seed, client, 0), seed, client, self.shift.share(cycle))

    def changed(self, seed: int, client: ClientId, before: int, after: int) -> bool:
        """Whether this client's data differ between two turns."""
        match self.shift.kind:
            case "own":
                return self.world.changed(seed, client, before, after)
            case "none":
                return False
            case "redraw":
                return before // self.shift.period != after // self.shift.period
            case "swap-all" | "swap-part":
                history = _history(self, seed)
                return history.at(client, before) != history.at(client, after)
        return self.shift.share(before) != self.shift.share(after)


# swaps


class History:
    """Who held what at which turn, worked out from turn 0 as far as it was asked for."""

    def __init__(self, shifted: Shifted, seed: int) -> None:
        self.shift, self.seed, self.names = shifted.shift, seed, list(shifted.world.names)
        self.turn = 0
        labels: dict[ClientId, tuple[int, ...]] = dict.fromkeys(self.names, (ALL,))
        self._whole: set[tuple[ClientId, int]] = set()  # labels of which an owner has samples to train on and for tests
        if self.shift.kind == "swap-part":
            for client in self.names:
                visit = shifted.world.visit(seed, client, 0)
                labels[client] = _labels(visit)
                both = np.intersect1d(visit.train.y, visit.test.y).tolist()
                self._whole |= {(client, label) for label in both}
        self._turns: dict[ClientId, list[int]] = {c: [0] for c in self.names}
        self._holdings: dict[ClientId, list[Holding]] = {c: [dict.fromkeys(labels[c], c)] for c in self.names}

    def at(self, client: ClientId, turn: int) -> Holding:
        """Whose samples this client holds at a turn."""
        while self.turn < turn:
            self._advance()
        return self._holdings[client][bisect_right(self._turns[client], turn) - 1]

    def _advance(self) -> None:
        """One more turn: pairs of clients, of which some swap."""
        self.turn += 1
        if self.turn % self.shift.period:
            return
        rng = generator(self.seed, "swap", self.turn)
        order = rng.permutation(len(self.names)).tolist()
        pairs = list(zip(order[::2], order[1::2], strict=False))  # of an odd number, one stays alone
        for (one, two), draw in zip(pairs, rng.uniform(size=len(pairs)).tolist(), strict=True):
            if draw < self.shift.p:
                self._swap(self.names[one], self.names[two], rng)

    def _swap(self, one: ClientId, two: ClientId, rng: np.random.Generator) -> None:
        first, second = self._holdings[one][-1], self._holdings[two][-1]
        if self.shift.kind == "swap-all":
            self._note(one, second)
            self._note(two, first)
            return
        gives = [self._spare(first, second), self._spare(second, first)]
        if all(gives):
            given, taken = (labels[int(rng.integers(len(labels)))] for labels in gives)
            self._note(one, _exchanged(first, given, taken, second[taken]))
            self._note(two, _exchanged(second, taken, given, first[given]))

    def _spare(self, mine: Holding, others: Holding) -> list[int]:
        """Labels to give: the other has none of them, and gets samples to train on and for tests."""
        return sorted(label for label in set(mine) - set(others) if (mine[label], label) in self._whole)

    def _note(self, client: ClientId, holding: Holding) -> None:
        self._turns[client].append(self.turn)
        self._holdings[client].append(holding)


@lru_cache(maxsize=8)
def _history(shifted: Shifted, seed: int) -> History:
    return History(shifted, seed)


def _exchanged(holding: Holding, given: int, taken: int, owner: ClientId) -> Holding:
    kept = {label: own for label, own in holding.items() if label != given}
    return dict(sorted({**kept, taken: owner}.items()))


def _labels(visit: Visit) -> tuple[int, ...]:
    return tuple(np.union1d(visit.train.y, visit.test.y).tolist())


def _gathered(world: World, seed: int, client: ClientId, holding: Holding) -> Visit:
    """The samples a holding stands for; those of one owner as they are, where none was given away."""
    visits = {owner: world.visit(seed, owner, 0) for owner in set(holding.values())}
    if len(visits) == 1:
        (whole,) = visits.values()
        if ALL in holding or set(holding) == set(_labels(whole)):
            return whole
    parts = [(label, visits[owner]) for label, owner in holding.items()]
    trains = [_of_label(visit.train, label) for label, visit in parts]
    total = sum(map(len, trains)) or 1
    weights = [(len(train) / total, visit.mixture) for train, (_, visit) in zip(trains, parts, strict=True)]
    mixture = {k: sum(weight * m[k] for weight, m in weights) for k in weights[0][1]}
    return Visit(_joined(trains), _joined([_of_label(visit.test, label) for label, visit in parts]), mixture)


def _of_label(samples: Samples, label: int) -> Samples:
    return Samples(samples.x[samples.y == label], samples.y[samples.y == label])


def _joined(parts: Sequence[Samples]) -> Samples:
    return Samples(np.concatenate([part.x for part in parts]), np.concatenate([part.y for part in parts]))


# the other kinds


def _reduced(visit: Visit, seed: int, client: ClientId, share: float) -> Visit:
    """The first floor(share * samples) training samples, one at least, in an order of the client's."""
    if share == 1:
        return visit
    count = max(1, int(len(visit.train) * share + 1e-9))
    rows = generator(seed, "increment", client).permutation(len(visit.train))[:count]
    return Visit(Samples(visit.train.x[rows], visit.train.y[rows]), visit.test, visit.mixture)
