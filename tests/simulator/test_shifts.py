"""Shifts: who holds what at which turn, from small worlds whose samples say whose they are."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from typing import Any, ClassVar

import numpy as np
import pytest

from artesian.algorithms import FedAsync
from artesian.config.experiments import build, simulate
from artesian.data.datasets import Samples
from artesian.errors import SettingError
from artesian.simulator.experiment import Experiment
from artesian.simulator.shifts import Shift, Shifted
from artesian.simulator.worlds import LabelGroups, Linear, Rotated, Visit, World
from artesian.testing import ToyModel, ToyWorld


@dataclass(frozen=True)
class Owned(World):
    """Client i has eight samples of each of its labels to train on, two for tests; x is (i, sample)."""

    name: ClassVar[str] = "owned"
    held: ClassVar[bool] = True
    labels: tuple[tuple[int, ...], ...] = ((0, 1), (2, 3), (0, 2), (4,))
    features: int = 2
    classes: int = 5
    shape: tuple[int, int, int] = (1, 1, 2)

    @property
    def names(self) -> list[str]:
        return [f"c{i:03d}" for i in range(len(self.labels))]

    def visit(self, seed: int, client: str, cycle: int) -> Visit:
        own = int(client[1:])
        mixture = {f"k{i}": float(i == own % 2) for i in range(2)}
        return Visit(self._samples(own, 8), self._samples(own, 2), mixture)

    def proxies(self, seed: int) -> Mapping[str, Samples]:
        return {f"k{i}": self._samples(i, 2) for i in range(2)}

    def tests(self, seed: int) -> Mapping[str, Samples]:
        return {f"k{i}": self._samples(i, 3) for i in range(2)}

    def _samples(self, own: int, each: int) -> Samples:
        y = np.repeat(self.labels[own], each)
        return Samples(np.stack([np.full(len(y), own), np.arange(len(y))], axis=1).astype(np.float32), y)


def owners(visit: Visit) -> set[int]:
    return set(visit.train.x[:, 0].astype(int).tolist())


def pieces(world: World, seed: int, turn: int) -> dict[str, set[tuple[int, int]]]:
    """For every client, whose samples of which labels it has; train and test agree."""
    held = {}
    for client in world.names:
        visit = world.visit(seed, client, turn)
        both = [set(zip(p.x[:, 0].astype(int).tolist(), p.y.tolist(), strict=True)) for p in (visit.train, visit.test)]
        assert both[0] == both[1]
        held[client] = both[0]
    return held


def bits(visit: Visit) -> bytes:
    parts = (visit.train.x, visit.train.y, visit.test.x, visit.test.y)
    return b"".join(part.tobytes() for part in parts) + str(visit.mixture).encode()


# plain kinds


def test_own_is_the_world_itself_and_none_holds_it() -> None:
    here = Rotated(clusters=2, clients=4)
    own, none = Shifted(here), Shifted(here, Shift("none"))
    for turn in (0, 3):
        assert bits(own.visit(0, "c001", turn)) == bits(here.visit(0, "c001", turn))
        assert bits(none.visit(0, "c001", turn)) == bits(here.visit(0, "c001", 0))
    assert (own.turns, none.turns, own.held, none.held) == ("client", "client", False, True)
    assert own.changed(0, "c001", 0, 1) and not none.changed(0, "c001", 0, 1)


def test_redraw_draws_anew_every_so_often() -> None:
    held = Rotated(clusters=2, clients=4, redraw=False)
    here = Shifted(held, Shift("redraw", every=3))
    drawing = replace(held, redraw=True)
    for turn, cycle in ((0, 0), (2, 0), (3, 1), (8, 2)):
        assert bits(here.visit(0, "c001", turn)) == bits(drawing.visit(0, "c001", cycle))
    assert not here.changed(0, "c001", 0, 2) and here.changed(0, "c001", 2, 3)
    assert here.turns == "client"


def test_everything_else_is_the_worlds() -> None:
    plain = Owned()
    here = Shifted(plain, Shift("swap-all"))
    assert (here.names, here.features, here.classes, here.shape) == (plain.names, 2, 5, (1, 1, 2))
    assert list(here.proxies(0)) == list(here.tests(0)) == ["k0", "k1"]
    assert Shifted(ToyWorld(2)).shape is None
    assert here.turns == "round" and here.describe() == {
        "name": "owned", "labels": plain.labels, "features": 2, "classes": 5, "shape": (1, 1, 2)
    }  # fmt: skip
    assert pickle.loads(pickle.dumps(here)) == here


# swaps


def test_a_certain_swap_of_all_exchanges_pairs() -> None:
    here = Shifted(Owned(), Shift("swap-all", p=1.0))
    before = pieces(here, 0, 0)
    assert [before[c] for c in here.names] == [{(0, 0), (0, 1)}, {(1, 2), (1, 3)}, {(2, 0), (2, 2)}, {(3, 4)}]
    for turn in range(1, 6):
        after = pieces(here, 0, turn)
        partner = {c: next(d for d in here.names if before[d] == after[c]) for c in here.names}
        assert all(partner[c] != c and partner[partner[c]] == c for c in here.names)
        before = after


def test_a_swap_takes_the_mixture_along() -> None:
    here = Shifted(Owned(), Shift("swap-all", p=1.0))
    for client in here.names:
        visit = here.visit(0, client, 1)
        (owner,) = owners(visit)
        assert visit.mixture == Owned().visit(0, f"c{owner:03d}", 0).mixture


def test_swaps_happen_as_often_as_p_says() -> None:
    here = Shifted(Owned(tuple((i % 5,) for i in range(40))), Shift("swap-all", p=0.05))
    swapped = sum(here.changed(3, client, turn, turn + 1) for client in here.names for turn in range(200))
    assert swapped / (40 * 200) == pytest.approx(0.05, abs=0.01)
    never = Shifted(here.world, Shift("swap-all", p=0.0))
    assert not any(never.changed(3, client, 0, 50) for client in never.names)


def test_of_an_odd_number_one_stays_alone() -> None:
    here = Shifted(Owned(((0,), (1,), (2,))), Shift("swap-all", p=1.0))
    for turn in range(1, 8):
        assert sum(not here.changed(0, c, turn - 1, turn) for c in here.names) == 1


def test_parts_are_exchanged_of_labels_that_the_other_lacks() -> None:
    here = Shifted(Owned(), Shift("swap-part", p=1.0))
    before = pieces(here, 1, 0)
    for turn in range(1, 12):
        after = pieces(here, 1, turn)
        assert sorted(p for held in after.values() for p in held) == sorted(p for held in before.values() for p in held)
        for client in here.names:
            labels = [label for _, label in after[client]]
            assert len(labels) == len(set(labels)) == len(before[client])
            gone = before[client] - after[client]
            assert len(gone) <= 1
            for _, label in gone:  # whoever took it had none of it
                taker = next(c for c in here.names if gone <= after[c])
                assert label not in {other for _, other in before[taker]}
            assert here.changed(1, client, turn - 1, turn) == (before[client] != after[client])
        before = after


def test_a_pair_without_a_label_to_give_is_skipped() -> None:
    same = Shifted(Owned(((0, 1), (0, 1))), Shift("swap-part", p=1.0))
    inside = Shifted(Owned(((0, 1), (0,))), Shift("swap-part", p=1.0))  # one has something to give, the other not
    for here in (same, inside):
        assert pieces(here, 0, 9) == pieces(here, 0, 0)
        assert bits(here.visit(0, "c000", 9)) == bits(here.world.visit(0, "c000", 0))


def test_the_mixture_of_parts_is_weighed_by_samples() -> None:
    here = Shifted(Owned(((0, 1), (2, 3))), Shift("swap-part", p=1.0))
    visit = here.visit(0, "c000", 1)
    assert len(visit.train) == 16 and visit.mixture == {"k0": 0.5, "k1": 0.5}


def test_a_label_with_nothing_to_train_on_is_not_given() -> None:
    @dataclass(frozen=True)
    class Thin(Owned):
        def visit(self, seed: int, client: str, cycle: int) -> Visit:
            full = super().visit(seed, client, cycle)
            keep = full.train.y % 2 == 0  # odd labels are in the tests only
            return Visit(Samples(full.train.x[keep], full.train.y[keep]), full.test, full.mixture)

    here = Shifted(Thin(((0, 1), (2, 3))), Shift("swap-part", p=1.0))
    for turn in range(6):
        for client in here.names:
            visit = here.visit(0, client, turn)
            assert len(visit.train) == 8 and len(visit.test) == 4


def test_swaps_happen_every_so_many_turns() -> None:
    here = Shifted(Owned(), Shift("swap-all", p=1.0, every=3))
    assert not here.changed(0, "c000", 0, 2) and here.changed(0, "c000", 2, 3)
    assert not here.changed(0, "c000", 3, 5) and here.changed(0, "c000", 5, 6)


def test_there_and_back_is_no_change() -> None:
    here = Shifted(Owned(((0,), (1,))), Shift("swap-all", p=1.0))
    assert here.changed(0, "c000", 0, 1) and not here.changed(0, "c000", 0, 2)


def fingerprint(world: Shifted, seed: int, turns: list[int]) -> list[bytes]:
    return [bits(world.visit(seed, client, turn)) for turn in turns for client in world.names]


@pytest.mark.heavy
def test_any_process_finds_the_same_in_any_order() -> None:
    for kind in ("swap-all", "swap-part"):
        here = Shifted(LabelGroups(clients=12), Shift(kind, p=0.5))
        own = fingerprint(here, 4, [0, 1, 7, 20])
        with ProcessPoolExecutor(1, get_context("spawn")) as pool:
            other = pool.submit(fingerprint, here, 4, [20, 7, 1, 0]).result()
        n = len(here.names)
        assert other == [part for i in reversed(range(4)) for part in own[i * n : (i + 1) * n]]
        assert own != fingerprint(here, 5, [0, 1, 7, 20])


# incremental


def test_data_come_in_quarters() -> None:
    here = Shifted(Owned(((0, 1, 2, 3), (0,))), Shift("incremental"))  # 32 and 8 samples
    shown = {turn: len(here.visit(0, "c000", turn).train) for turn in (0, 49, 50, 99, 100, 149, 150, 900)}
    assert shown == {0: 8, 49: 8, 50: 16, 99: 16, 100: 24, 149: 24, 150: 32, 900: 32}
    assert [len(here.visit(0, "c001", turn).train) for turn in (0, 50, 100, 150)] == [2, 4, 6, 8]
    assert len(here.visit(0, "c000", 0).test) == 8  # tests are whole
    first, second = (here.visit(0, "c000", turn).train.x[:, 1].tolist() for turn in (0, 50))
    assert second[:8] == first and len(set(second)) == 16
    assert len(set(here.visit(0, "c000", 50).train.y.tolist())) > 1  # in a mixed order
    assert not here.changed(0, "c000", 0, 49) and here.changed(0, "c000", 49, 50)
    assert not here.changed(0, "c000", 150, 900)


def test_the_legacy_rule_shrinks_what_is_already_reduced() -> None:
    shift = Shift("incremental-legacy")
    assert [shift.share(turn) for turn in (0, 50, 100, 150)] == [0.25, 0.125, 0.09375, 0.09375]
    here = Shifted(Owned(((0, 1, 2, 3), (0,))), shift)
    assert [len(here.visit(0, "c000", turn).train) for turn in (0, 50, 100, 150)] == [8, 4, 3, 3]
    assert len(here.visit(0, "c001", 100).train) == 1  # one at least
    assert not here.changed(0, "c000", 100, 150)


def test_steps_and_every_are_settings() -> None:
    shift = Shift("incremental", steps=2, every=5)
    assert [shift.share(turn) for turn in (0, 4, 5, 50)] == [0.5, 0.5, 1.0, 1.0]


# plain worlds


def test_a_world_that_says_nothing_is_compared_by_its_arrays() -> None:
    @dataclass(frozen=True)
    class Plain(Owned):
        held: ClassVar[bool] = False

    assert not Plain().changed(0, "c000", 0, 4)
    assert Rotated(clusters=2, clients=4).changed(0, "c000", 0, 4)
    assert not Rotated(clusters=2, clients=4).changed(0, "c000", 4, 4)
    assert not LabelGroups().changed(0, "c000", 0, 4)


# settings


@pytest.mark.parametrize("wrong", [{"p": -0.1}, {"p": 1.1}, {"p": float("nan")}, {"steps": 0}, {"every": 0}])
def test_shifts_out_of_range_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r", (not|but) \S"):
        Shift("swap-all", **wrong)


@pytest.mark.parametrize(
    ("kind", "unused"),
    [("own", {"p": 0.5}), ("incremental", {"p": 0.5}), ("swap-all", {"steps": 3}), ("none", {"every": 2})],
)
def test_what_a_kind_of_shift_does_not_use_is_refused(kind: Any, unused: dict[str, Any]) -> None:
    ((name, value),) = unused.items()
    told = f"{name} has an effect only with .* kind.*, but {name} = {value} and kind = '{kind}'"
    with pytest.raises(ValueError, match=told):
        Shift(kind, **unused)


@pytest.mark.parametrize(
    ("world", "shift", "words"),
    [
        ({"name": "label-groups"}, {"kind": "redraw"}, "those of label-groups never change"),
        ({"clusters": 2, "partition": "linear"}, {"kind": "redraw"}, "those of rotated never change"),
        ({"name": "linear"}, {"kind": "swap-part"}, "exchanges labels, and linear has none"),
        ({"clusters": 1, "clients": 1}, {"kind": "swap-all"}, "at least two clients"),
        ({}, {"kind": "swap"}, "shift.kind"),
        ({}, {"pp": 0.5}, "Did you mean 'p'"),
        ({}, {"kind": "swap-all", "p": 2.0}, "p must be between 0 and 1"),
    ],
)
def test_shifts_that_do_not_fit_are_named(world: dict[str, Any], shift: dict[str, Any], words: str) -> None:
    model = {"name": "linear"} if world.get("name") == "linear" else {}
    with pytest.raises(SettingError, match=words):
        build({"world": world, "shift": shift, "model": model})


def test_a_world_is_shifted_once_and_can_be_hashed() -> None:
    with pytest.raises(ValueError, match="shifted already"):
        Shifted(Shifted(Owned()), Shift("none"))

    @dataclass
    class Open(World):
        features: int = 2

    with pytest.raises(ValueError, match="frozen dataclass"):
        Shifted(Open())  # type: ignore[arg-type]


def test_what_does_not_inherit_world_is_refused() -> None:
    class Stranger:
        names = ("c000",)

    with pytest.raises(ValueError, match=r"Stranger is not a world: .*artesian\.World"):
        Experiment(Stranger(), ToyModel(), FedAsync())  # type: ignore[arg-type]


def test_an_experiment_carries_its_shift() -> None:
    experiment = build({"world": {"clusters": 2, "clients": 4}, "shift": {"kind": "swap-all", "p": 0.5}})
    assert experiment.world == Shifted(Rotated(clusters=2, clients=4), Shift("swap-all", p=0.5))
    told = experiment.describe()
    assert told["shift"] == {"kind": "swap-all", "p": 0.5, "steps": 4, "every": None}
    assert told["world"]["name"] == "rotated" and told["world"]["clients"] == 4
    assert build({"world": told["world"], "shift": {"kind": "swap-all", "p": 0.5}}).digest == experiment.digest
    plain = build({"world": {"clusters": 2, "clients": 4}})
    assert plain.world == Rotated(clusters=2, clients=4) and plain.digest != experiment.digest
    other = replace(experiment, world=Rotated(clusters=2, clients=6))
    assert other.world == Shifted(Rotated(clusters=2, clients=6), Shift("swap-all", p=0.5))
    again = replace(experiment, shift=Shift("none"))
    assert again.world == Shifted(Rotated(clusters=2, clients=4), Shift("none"))
    ready = Experiment(Shifted(ToyWorld(3), Shift("none")), ToyModel(), experiment.algorithm)
    assert ready.shift == Shift("none")


def test_a_shifted_experiment_runs_the_same_with_and_without_workers() -> None:
    tables = {
        "world": {"name": "label-groups", "clients": 8},
        "shift": {"kind": "swap-part", "p": 0.5},
        "algorithm": {"name": "fedasync"},
        "uploads": 24,
    }
    runs = [simulate(build(tables), workers=workers) for workers in (0, 1)]
    assert runs[0].summary["uploads"] == 24
    assert all(np.array_equal(runs[0].params[k], runs[1].params[k]) for k in runs[0].params)
    run = simulate("digits-2", shift=Shift("none"), world=Rotated(clusters=2, clients=3), uploads=4)
    assert run.summary["uploads"] == 4


def test_a_world_without_clients_is_refused() -> None:
    with pytest.raises(ValueError, match="has no clients"):
        Experiment(Owned(()), ToyModel(), build({}).algorithm)


def test_regressions_can_be_swapped_whole() -> None:
    here = Shifted(Linear(clients=4), Shift("swap-all", p=1.0))
    assert bits(here.visit(0, "c000", 1)) in {bits(here.visit(0, c, 0)) for c in here.names[1:]}
