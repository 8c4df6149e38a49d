"""P22: no single member wrecks a federation with default settings."""

from statistics import fmean

import pytest
from promises.hostile import ALGORITHMS, ATTACKS, accuracy, peaceful
from promises.table import FULL
from tiers import some_thorough

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


@pytest.mark.heavy
def test_one_of_twenty_costs_fedasync_two_points_at_most(promise) -> None:
    """The quickest of them."""
    promise("hostile")
    check_attack("fedasync", "x1e6", Defence())
