"""How clusters start: a trunk for all, then each on its own proxy set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from artesian.core import Ensemble, Params, Plan, Pull
from artesian.params import Layout, seal
from artesian.simulator.pretraining import Start

Trainings = list[tuple[str, float, int, Plan]]  # of whom, from where, with which seed and plan


@dataclass
class Adder:
    """A learner that adds a number of its own per epoch, and tells what it was asked."""

    name: str
    amount: float
    told: Trainings
    samples: int = 1

    def losses(self, params: Params) -> np.ndarray:
        return np.zeros(1)

    def score(self, ensemble: Ensemble) -> float:
        return 0.0

    def train(
        self,
        params: Params,
        *,
        seed: int,
        plan: Plan,
        pulls: Sequence[Pull] = (),
        weights: np.ndarray | None = None,
        mask: np.ndarray | None = None,
    ) -> Params:
        self.told.append((self.name, float(params[0]), seed, plan))
        return seal(np.array(params + np.float32(plan.epochs * self.amount), np.float32))


@dataclass
class Beginner:
    """A model whose start is 100, whatever the seed; it tells the seed."""

    layout: Layout = field(default_factory=lambda: Layout.of({"w": np.zeros(1, np.float32)}))
    seeds: list[int] = field(default_factory=list)

    def start(self, seed: int) -> Params:
        self.seeds.append(seed)
        return seal(np.array([100], np.float32))

    def learner(self, x: np.ndarray, y: np.ndarray) -> Any:
        raise AssertionError("the start has its learners already")


def begun(start: Start, seed: int = 0) -> tuple[list[float], Trainings, list[int]]:
    told: Trainings = []
    model = Beginner()
    proxies = {"k0": Adder("k0", 1, told), "k1": Adder("k1", 2, told)}
    models = start.models(model, proxies, Adder("all", 1000, told), seed)
    return [float(params[0]) for params in models], told, model.seeds


def test_clusters_share_a_trunk_and_then_go_their_own_way() -> None:
    models, told, _ = begun(Start("shared", trunk_epochs=3, epochs=4))
    assert models == [3104, 3108]
    assert [(name, start) for name, start, _, _ in told] == [("all", 100), ("k0", 3100), ("k1", 3100)]


def test_apart_there_is_no_trunk() -> None:
    models, told, _ = begun(Start("apart", trunk_epochs=3, epochs=4))
    assert models == [104, 108]
    assert [(name, start) for name, start, _, _ in told] == [("k0", 100), ("k1", 100)]


def test_a_trunk_of_no_epochs_is_no_trunk() -> None:
    assert begun(Start("shared", trunk_epochs=0, epochs=1))[0] == [101, 102]


def test_without_epochs_of_their_own_all_clusters_are_the_trunk() -> None:
    models, told, _ = begun(Start("shared", trunk_epochs=2, epochs=0))
    assert models == [2100, 2100] and len(told) == 1


def test_without_any_training_all_clusters_are_the_initial_model() -> None:
    models, told, _ = begun(Start("apart", epochs=0))
    assert models == [100, 100] and not told


def test_the_plan_is_the_starts_own() -> None:
    start = Start(trunk_epochs=3, epochs=4, optimizer="sgd", rate=0.5, batch=7)
    _, told, _ = begun(start)
    trunk, own = Plan("sgd", 0.5, 3, 7), Plan("sgd", 0.5, 4, 7)
    assert [plan for _, _, _, plan in told] == [trunk, own, own]


def test_every_training_has_a_seed_of_its_own() -> None:
    def seeds(seed: int) -> list[int]:
        _, told, initial = begun(Start(), seed)
        return [*initial, *(each for _, _, each, _ in told)]

    assert len(set(seeds(0) + seeds(1))) == 8
    assert seeds(0) == seeds(0)


@pytest.mark.parametrize("wrong", [{"trunk_epochs": -1}, {"epochs": -1}, {"rate": 0}, {"rate": -0.1}, {"batch": 0}])
def test_settings_out_of_range_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"epochs|rate|batch"):
        Start(**wrong)
