"""Worlds that drift: every client's data change for good at moments of its own, suddenly, little by little, or back."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from functools import lru_cache
from math import inf
from typing import Any, ClassVar, Literal

import numpy as np

from artesian.core import ClientId, ClusterId, Mixture, generator
from artesian.data.datasets import Samples
from artesian.data.image_arrays import flattened, rotate
from artesian.errors import check
from artesian.simulator.worlds import Concept, Visit, World
from artesian.simulator.worlds.mixing import MixedWorld, nearest_counts
from artesian.simulator.worlds.wrapped import WrappedWorld

DriftKind = Literal["none", "sudden", "gradual", "recurring"]
What = Literal["mixture", "covariate", "labels"]
OWN = 0  # the concept that a client begins with


@dataclass(frozen=True)
class Drifts:
    """How clients' data drift. A turn is a client's own; when it drifts is drawn by the seed, for every client apart.

    sudden: to a new concept within one turn. gradual: over several turns, in which a growing share of the samples is
    new. recurring: suddenly, to a second concept and back. none: never, which is what the others are compared with.
    """

    kind: DriftKind = "sudden"
    what: What = "mixture"  # data of another client; or covariate: other inputs; or labels: other shares of classes
    every: int = 20  # turns of a client from one drift to the next, on average: half of it to one and a half
    over: int = 5  # turns that a gradual drift takes
    angle: float = 90.0  # by which a covariate drift turns images, in degrees
    strength: float = 0.5  # of a covariate drift of other data: the spread of scales and offsets of features
    concentration: float = 0.3  # of new shares of classes: the smaller, the fewer classes have most samples

    def __post_init__(self) -> None:
        check(
            self,
            {
                "every is at least 2": self.every >= 2,
                "over is at least 1, and at most half of every": 1 <= self.over <= self.every // 2
                or self.kind != "gradual",
                "over has an effect only with kind = gradual": self.over == Drifts.over or self.kind == "gradual",
                "angle is above 0 and below 360": 0 < self.angle < 360,
                "strength is above 0, and finite": 0 < self.strength < inf,
                "concentration is above 0, and finite": 0 < self.concentration < inf,
                "angle has an effect only with what = covariate": self.angle == Drifts.angle
                or self.what == "covariate",
                "strength has an effect only with what = covariate": self.strength == Drifts.strength
                or self.what == "covariate",
                "concentration has an effect only with what = labels": self.concentration == Drifts.concentration
                or self.what == "labels",
            },
        )

    @property
    def settings(self) -> dict[str, Any]:
        """Its fields by name."""
        return asdict(self)

    def concept(self, seed: int, client: ClientId, turn: int) -> Concept:
        """How far a client's data have drifted at a turn."""
        began = self._moments(seed, client, turn)
        if not began:
            return Concept()
        passed = turn - began[-1] + 1
        return Concept(len(began), min(1.0, passed / self.over) if self.kind == "gradual" else 1.0)

    def _moments(self, seed: int, client: ClientId, turn: int) -> list[int]:
        """The turns up to this one at which a drift of the client began."""
        if self.kind == "none":
            return []
        rng, moments, now = generator(seed, "drift", client), [], 0
        while (now := now + int(rng.integers(self.every - self.every // 2, self.every + self.every // 2 + 1))) <= turn:
            moments.append(now)
        return moments

    def number(self, drifts: int) -> int:
        """The concept after so many drifts: a new one each, or the first and the second in turn."""
        return drifts % 2 if self.kind == "recurring" else drifts


@dataclass(frozen=True)
class DriftingWorld(WrappedWorld):
    """A world whose clients' data drift; everything else is the world's own, also what the server has."""

    name: ClassVar[str] = "drifting"
    world: World
    drifts: Drifts = field(default_factory=Drifts)

    def __post_init__(self) -> None:
        called = str(self.world.describe()["name"])
        if isinstance(self.world, DriftingWorld):
            raise ValueError("This world drifts already: give the plain one")
        if isinstance(self.world, MixedWorld) and self.world.redraw is True and not self.world.held:
            raise ValueError(
                f'{called} draws a new mixture at every turn, which leaves nothing to drift: set redraw = "samples"'
            )
        if self.world.turns != "client":
            raise ValueError(f"{called} changes with the rounds of the federation, and drifts come with clients' turns")
        if self.drifts.what == "labels" and self.world.classes < 2:
            raise ValueError(f"Shares of classes cannot drift: {called} has no classes")
        if self.drifts.what == "mixture" and len(self.world.names) < 2:
            raise ValueError("A mixture drifts to that of another client, and there is one")
        if type(self.world).__hash__ is None:
            raise ValueError(f"{called} cannot drift, because it cannot be hashed: make it a frozen dataclass")

    @property
    def held(self) -> bool:
        return self.world.held and self.drifts.kind == "none"

    @property
    def personal(self) -> bool:
        return self.world.personal or self.drifts.what != "mixture"  # the pools of clusters do not drift

    def concept(self, seed: int, client: ClientId, turn: int) -> Concept:
        return self.drifts.concept(seed, client, turn)

    def changed(self, seed: int, client: ClientId, before: int, after: int) -> bool:
        moved = self.concept(seed, client, before) != self.concept(seed, client, after)
        return moved or self.world.changed(seed, client, before, after)

    def visit(self, seed: int, client: ClientId, cycle: int) -> Visit:
        concept = self.concept(seed, client, cycle)
        new = self._of(seed, client, cycle, self.drifts.number(concept.drifts))
        if concept.share == 1:
            return new
        old = self._of(seed, client, cycle, self.drifts.number(concept.drifts - 1))
        return _blended(old, new, concept.share, generator(seed, "drift samples", client, cycle))

    def _of(self, seed: int, client: ClientId, cycle: int, number: int) -> Visit:
        """What a client would have at a cycle if all of it were of this concept."""
        if number == OWN:
            return self.world.visit(seed, client, cycle)
        if self.drifts.what == "mixture":
            return self.world.visit(seed, _model_client(self, seed, client, number), cycle)
        visit = self.world.visit(seed, client, cycle)
        if self.drifts.what == "labels":
            return _relabelled(visit, self.drifts.concentration, seed, client, cycle, number)
        return Visit(self._moved(visit.train, seed, number), self._moved(visit.test, seed, number), visit.mixture)

    def _moved(self, samples: Samples, seed: int, number: int) -> Samples:
        """The same samples with other inputs: images turned, or features scaled and moved, for all clients alike."""
        shape = self.world.shape
        if shape is not None:
            return Samples(_turned(samples.x, shape, number * self.drifts.angle), samples.y)
        rng, spread = generator(seed, "drift features", number), self.drifts.strength
        scale, offset = np.exp(rng.normal(0, spread, self.features)), rng.normal(0, spread, self.features)
        return Samples((samples.x * scale + offset).astype(samples.x.dtype), samples.y)


def _model_client(drifting: DriftingWorld, seed: int, client: ClientId, number: int) -> ClientId:
    """Whose data a client has after so many drifts: of another kind than before, where there are several kinds."""
    before = client if number == 1 else _model_client(drifting, seed, client, number - 1)
    kinds = _kinds(drifting, seed)
    others = [name for name in kinds if name != before]
    others = [name for name in others if kinds[name] != kinds[before]] or others
    return others[int(generator(seed, "drift to", client, number).integers(len(others)))]


@lru_cache(maxsize=8)
def _kinds(drifting: DriftingWorld, seed: int) -> dict[ClientId, ClusterId]:
    """The largest cluster of every client's mixture."""
    mixtures = {client: drifting.world.visit(seed, client, 0).mixture for client in drifting.names}
    return {client: max(mixture, key=lambda k: mixture[k]) for client, mixture in mixtures.items()}


def _turned(x: np.ndarray, shape: tuple[int, int, int], degrees: float) -> np.ndarray:
    """Images as rows of numbers, channels first, turned."""
    images = np.moveaxis(x.reshape(len(x), *shape), 1, 3)
    return flattened(rotate(images, degrees % 360))


def _relabelled(visit: Visit, concentration: float, seed: int, client: ClientId, cycle: int, number: int) -> Visit:
    """As many samples with other shares of the classes that a client has for training and for tests."""
    classes = np.intersect1d(visit.train.y, visit.test.y)
    shares = generator(seed, "drift labels", client, number).dirichlet(np.full(len(classes), concentration))
    rng = generator(seed, "drift samples", client, cycle)
    train, test = (_with_shares(part, classes, shares, rng) for part in (visit.train, visit.test))
    return Visit(train, test, visit.mixture)


def _with_shares(samples: Samples, classes: np.ndarray, shares: np.ndarray, rng: np.random.Generator) -> Samples:
    """Samples drawn by shares of classes; those of a class that is wanted more often than it is there come again."""
    rows = []
    for label, count in zip(classes.tolist(), nearest_counts(shares, len(samples)).tolist(), strict=True):
        own = np.flatnonzero(samples.y == label)
        rows.append(rng.choice(own, count, replace=count > len(own)))
    chosen = rng.permutation(np.concatenate(rows))
    return Samples(samples.x[chosen], samples.y[chosen])


def _blended(old: Visit, new: Visit, share: float, rng: np.random.Generator) -> Visit:
    """Samples of two visits, so large a share of the new one."""
    train, test = (_joined(*parts, share, rng) for parts in ((old.train, new.train), (old.test, new.test)))
    return Visit(train, test, _between(old.mixture, new.mixture, share))


def _joined(old: Samples, new: Samples, share: float, rng: np.random.Generator) -> Samples:
    count = round(share * len(new)), round((1 - share) * len(old))
    rows = [np.sort(rng.permutation(len(part))[:many]) for part, many in zip((new, old), count, strict=True)]
    x, y = (np.concatenate([a[rows[0]], b[rows[1]]]) for a, b in ((new.x, old.x), (new.y, old.y)))
    mixed = rng.permutation(len(x))
    return Samples(x[mixed], y[mixed])


def _between(old: Mixture, new: Mixture, share: float) -> Mixture:
    return {k: (1 - share) * old.get(k, 0.0) + share * new.get(k, 0.0) for k in dict.fromkeys([*old, *new])}
