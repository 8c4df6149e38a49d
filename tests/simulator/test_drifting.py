"""Worlds that drift: when, how far and to what, from small worlds whose samples say whose they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest

from artesian.config.experiments import build
from artesian.data.datasets import Samples
from artesian.errors import SettingError
from artesian.simulator.drifting import DriftingWorld, Drifts
from artesian.simulator.shifts import Shift, Shifted
from artesian.simulator.worlds import Concept, Rotated, Visit, World
from artesian.testing import ToyWorld

PLAIN = {"name": "rotated", "redraw": "samples"}


@dataclass(frozen=True)
class Signed(World):
    """Client i has 20 samples to train on and 10 for tests, all with x = (i, cycle); half have the label 0, half 1."""

    name: ClassVar[str] = "signed"
    clients: int = 4
    features: int = 2
    classes: int = 2
    shape: tuple[int, int, int] | None = None

    @property
    def names(self) -> list[str]:
        return [f"c{i}" for i in range(self.clients)]

    def visit(self, seed: int, client: str, cycle: int) -> Visit:
        own = int(client[1:])
        train, test = (self._samples(own, cycle, count) for count in (20, 10))
        return Visit(train, test, {f"k{i}": float(i == own % 2) for i in range(2)})

    def proxies(self, seed: int) -> Mapping[str, Samples]:
        return {"k0": self._samples(0, 0, 4), "k1": self._samples(1, 0, 4)}

    def tests(self, seed: int) -> Mapping[str, Samples]:
        return self.proxies(seed)

    def _samples(self, own: int, cycle: int, count: int) -> Samples:
        return Samples(np.tile(np.array([own, cycle], np.float32), (count, 1)), np.arange(count) % 2)


def moments(drifts: Drifts, client: str, turns: int = 200) -> list[int]:
    """The turns at which a drift began."""
    begun = [drifts.concept(0, client, turn).drifts for turn in range(turns)]
    return [turn for turn in range(1, turns) if begun[turn] > begun[turn - 1]]


def owners(samples: Samples) -> list[int]:
    return samples.x[:, 0].astype(int).tolist()


def test_drifts_come_half_to_one_and_a_half_periods_apart_and_to_each_client_at_times_of_its_own() -> None:
    found = {client: moments(Drifts(every=10), client) for client in ("c0", "c1", "c2")}
    gaps = [gap for turns in found.values() for gap in np.diff([0, *turns]).tolist()]
    assert min(gaps) >= 5 and max(gaps) <= 15
    assert np.mean(gaps) == pytest.approx(10, abs=1)
    assert len({tuple(turns) for turns in found.values()}) == 3
    assert moments(Drifts(kind="recurring", every=10), "c1") == found["c1"]


def test_a_gradual_drift_grows_by_the_same_share_at_every_turn() -> None:
    drifts = Drifts(kind="gradual", every=10, over=4)
    first = moments(drifts, "c0")[0]
    told = [drifts.concept(0, "c0", turn) for turn in range(first - 1, first + 5)]
    assert told == [Concept(), *(Concept(1, share) for share in (0.25, 0.5, 0.75, 1.0, 1.0))]


def test_without_drift_the_world_is_as_it_is() -> None:
    world = DriftingWorld(Signed(), Drifts(kind="none"))
    assert all(world.concept(0, "c1", turn) == Concept() for turn in range(100))
    assert owners(world.visit(0, "c1", 99).train) == [1] * 20


def test_a_mixture_drifts_to_that_of_a_client_of_another_kind() -> None:
    world = DriftingWorld(Signed(), Drifts(every=6))
    first, second = moments(world.drifts, "c0")[:2]
    before, after, later = (world.visit(0, "c0", turn) for turn in (first - 1, first, second))
    assert set(owners(before.train)) == {0}
    assert set(owners(after.train)) < {1, 3} and set(owners(later.train)) < {0, 2}
    assert owners(after.test) == owners(after.train)[:10]
    assert after.mixture == {"k0": 0.0, "k1": 1.0}
    assert set(after.train.x[:, 1]) == {first}  # time goes on


def test_a_recurring_drift_comes_back() -> None:
    world = DriftingWorld(Signed(), Drifts(kind="recurring", every=6))
    turns = moments(world.drifts, "c0")[:4]
    held = [set(owners(world.visit(0, "c0", turn).train)) for turn in turns]
    assert held[0] == held[2] != {0} and held[1] == held[3] == {0}


def test_a_gradual_drift_mixes_samples_and_mixtures() -> None:
    world = DriftingWorld(Signed(), Drifts(kind="gradual", every=10, over=4))
    visit = world.visit(0, "c0", moments(world.drifts, "c0")[0])
    assert sorted(owners(visit.train))[:15] == [0] * 15 and min(sorted(owners(visit.train))[15:]) > 0
    assert (len(visit.train), len(visit.test)) == (20, 10)
    assert visit.mixture == {"k0": 0.75, "k1": 0.25}


def test_a_covariate_drift_turns_images() -> None:
    plain = Rotated(clusters=1, clients=2, redraw="samples")
    world = DriftingWorld(plain, Drifts(what="covariate", every=6))
    first, second = moments(world.drifts, "c000")[:2]
    for turn, quarters in ((first, 1), (second, 2)):
        upright, turned = plain.visit(0, "c000", turn), world.visit(0, "c000", turn)
        expected = np.rot90(upright.train.x.reshape(-1, 8, 8), quarters, axes=(1, 2)).reshape(-1, 64)
        assert np.array_equal(turned.train.x, expected)
        assert np.array_equal(turned.train.y, upright.train.y)


def test_a_covariate_drift_scales_and_moves_features_for_all_clients_alike() -> None:
    world = DriftingWorld(Signed(), Drifts(what="covariate", every=6, strength=1.0))
    turns = {client: moments(world.drifts, client)[0] for client in ("c0", "c1", "c2")}
    moved = {client: world.visit(0, client, turn).train.x[0, 0] for client, turn in turns.items()}
    assert moved["c2"] - moved["c1"] == pytest.approx(moved["c1"] - moved["c0"])
    assert moved["c0"] != 0  # it was 0 in all samples of c0
    assert world.personal and not DriftingWorld(Signed()).personal


def test_a_drift_of_labels_draws_other_shares_of_the_classes() -> None:
    world = DriftingWorld(Signed(), Drifts(what="labels", every=6))
    first = moments(world.drifts, "c0")[0]
    visits = [world.visit(0, "c0", turn) for turn in (first - 1, first, first + 1)]
    shares = [np.bincount(visit.train.y, minlength=2).tolist() for visit in visits]
    assert shares[0] == [10, 10] != shares[1] == shares[2]
    assert sum(shares[1]) == 20 and owners(visits[1].train) == [0] * 20
    assert np.bincount(visits[1].test.y, minlength=2)[0] == pytest.approx(shares[1][0] / 2, abs=1)


def test_data_change_with_the_concept() -> None:
    world = DriftingWorld(Shifted(Signed(), Shift("none")), Drifts(every=6))
    first = moments(world.drifts, "c0")[0]
    assert world.changed(0, "c0", first - 1, first)
    assert not world.changed(0, "c0", first - 2, first - 1)
    assert not world.held and DriftingWorld(Shifted(Signed(), Shift("none")), Drifts(kind="none")).held


def test_the_rest_is_the_worlds_own() -> None:
    plain = Rotated(redraw="samples")
    world = DriftingWorld(plain)
    assert (world.features, world.classes, world.shape, world.files()) == (64, 10, (1, 8, 8), plain.files())
    assert world.describe() == plain.describe()
    assert np.array_equal(world.tests(0)["k2"].x, plain.tests(0)["k2"].x)


@pytest.mark.parametrize(
    ("tables", "problem"),
    [
        ({"drift": {"every": 1}}, "every must be at least 2, not 1"),
        ({"drift": {"kind": "gradual", "every": 8, "over": 5}}, "over must be at least 1, and at most half of every"),
        ({"drift": {"over": 3}}, "over has an effect only with kind = gradual"),
        ({"drift": {"angle": 45.0}}, "angle has an effect only with what = covariate"),
        ({"drift": {"strength": 1.0}}, "strength has an effect only with what = covariate"),
        ({"drift": {"concentration": 1.0}}, "concentration has an effect only with what = labels"),
        ({"drift": {"what": "covariate", "angle": 0.0}}, "angle must be above 0 and below 360"),
        ({"drift": {"kind": "slow"}}, "drift.kind must be 'none', 'sudden', 'gradual' or 'recurring', not 'slow'"),
        ({"drift": {}, "shift": {"kind": "none"}}, "A drift and a shift cannot go together"),
        ({"drift": {}, "world": {"name": "rotated"}}, 'draws a new mixture at every turn.*set redraw = "samples"'),
        ({"drift": {"what": "labels"}, "world": {"name": "linear"}}, "Shares of classes cannot drift"),
        ({"drift": {}, "world": {**PLAIN, "clients": 1, "clusters": 1}}, "that of another client, and there is one"),
    ],
)
def test_settings_are_checked(tables, problem) -> None:
    with pytest.raises(SettingError, match=problem):
        build({"world": PLAIN, **tables})


def test_a_world_that_turns_with_rounds_does_not_drift() -> None:
    with pytest.raises(ValueError, match="changes with the rounds of the federation"):
        DriftingWorld(Shifted(Signed(), Shift("swap-all")))
    with pytest.raises(ValueError, match="This world drifts already"):
        DriftingWorld(DriftingWorld(ToyWorld()))
