"""P22: no single member wrecks a federation with default settings."""

from dataclasses import replace
from statistics import fmean

import pytest
from promises.hostile import ALGORITHMS, ATTACKS, accuracy, peaceful
from promises.table import FULL
from tiers import some_thorough

from artesian.config.experiments import load, simulate
from artesian.engine.defence import Defence

POINTS = 0.02  # of accuracy that honest clients may lose
QUICK = ("flip x10", "constant", "flood")  # what does most harm to the undefended
SEEDS = (0, 1, 2) if FULL else (0,)


def check_attack(algorithm: str, attack: str, defence: Defence | None) -> float:
    """What honest clients lose by one hostile one, in accuracy: the mean over the seeds."""
    lost = fmean(peaceful(algorithm, seed) - accuracy(algorithm, attack, defence, seed) for seed in SEEDS)
    assert lost <= POINTS, f"{attack} costs {algorithm} {lost:.3f} of accuracy"
    return lost


@pytest.mark.heavy
@pytest.mark.parametrize("algorithm", some_thorough(ALGORITHMS, "fedavg"))
def test_one_of_twenty_costs_the_others_two_points_at_most(promise, figure, algorithm) -> None:
    promise("hostile")
    attacks = ATTACKS if FULL else QUICK
    lost = {attack: check_attack(algorithm, attack, Defence()) for attack in attacks}
    worst = max(lost, key=lambda attack: lost[attack])
    figure(f"{algorithm}: at the most {100 * lost[worst]:.1f} points, by {worst}")


def check_flood(algorithm: str, defence: Defence) -> float:
    """What two of forty cost the others that reverse their changes and upload a hundred times as often, all along."""

    def drawn(seed: int, *attack: str) -> float:
        chosen = load("digits-2", [f"algorithm.name={algorithm}", "world.clients=40", "uploads=400", *attack])
        return simulate(replace(chosen, defence=defence), seed=seed).summary["client_after"]

    attack = "fleet.hostile_share=0.05", "fleet.attack=flood"
    lost = fmean(drawn(seed) - drawn(seed, *attack) for seed in SEEDS)
    assert lost <= POINTS, f"a flood costs {algorithm} {lost:.3f} of accuracy"
    return lost


@pytest.mark.heavy
@pytest.mark.parametrize("algorithm", some_thorough(("confluence", "cdfl", "fedbuff", "fedasync"), "fedasync", "cdfl"))
def test_members_who_flood_all_the_time_cost_the_others_two_points_at_most(promise, figure, algorithm) -> None:
    promise("floods")
    figure(f"{algorithm}: {100 * check_flood(algorithm, Defence()):.1f} points")


@pytest.mark.heavy
def test_one_of_twenty_costs_fedasync_two_points_at_most(promise) -> None:
    """The quickest of them."""
    promise("hostile")
    check_attack("fedasync", "x1e6", Defence())
