"""Metrics, by hand numbers."""

import numpy as np
import pytest

from artesian.simulator.metrics import (
    adjusted_rand,
    converged_at,
    purity,
    time_to_target,
)


def test_purity_is_the_largest_overlaps() -> None:
    found = ["a", "a", "a", "b", "b", "c"]
    true = [0, 0, 1, 1, 1, 2]
    assert purity(found, true) == pytest.approx((2 + 2 + 1) / 6)
    assert purity(["x"] * 6, true) == pytest.approx(3 / 6)
    assert purity(list(range(6)), true) == 1.0  # everybody alone is pure
    assert purity([], []) == 1.0


def test_the_adjusted_rand_index_by_hand() -> None:
    assert adjusted_rand(["b", "b", "a", "a"], [0, 0, 1, 1]) == 1.0
    # pairs together in both 1, in found 2, in true 3, of 6: (1 - 2*3/6) / ((2+3)/2 - 2*3/6) = 0
    assert adjusted_rand(["a", "a", "b", "b"], [0, 0, 0, 1]) == pytest.approx(0.0)
    # together in both 2, in found 4, in true 7, of 15: (2 - 4*7/15) / ((4+7)/2 - 4*7/15)
    assert adjusted_rand([0, 0, 0, 1, 1, 2], [0, 0, 1, 1, 1, 1]) == pytest.approx((2 - 28 / 15) / (5.5 - 28 / 15))
    assert adjusted_rand([], []) == adjusted_rand(["alone"], [3]) == 1.0


def test_the_adjusted_rand_index_has_the_bits_of_scikit_learn() -> None:
    metrics = pytest.importorskip("sklearn.metrics", reason="scikit-learn is not installed")
    rng = np.random.default_rng(0)
    for size in range(1, 60):
        found, true = (rng.integers(0, rng.integers(1, 8), size).tolist() for _ in range(2))
        assert adjusted_rand(found, true) == float(metrics.adjusted_rand_score(true, found))


def test_one_for_each_is_demanded() -> None:
    for metric in (purity, adjusted_rand, converged_at):
        with pytest.raises(ValueError, match="not 2 and 1"):
            metric([1, 2], [1])


def test_the_time_to_a_target_is_the_first() -> None:
    times, accuracies = [1.0, 2.0, 3.0, 4.0], [0.2, 0.8, 0.7, 0.9]
    assert time_to_target(times, accuracies, 0.75) == 2.0
    assert time_to_target(times, accuracies, 0.8) == 2.0
    assert time_to_target(times, accuracies, 0.95) is None
    assert time_to_target([], [], 0.5) is None


def test_convergence_is_the_last_rise_of_the_moving_mean() -> None:
    assert converged_at([], []) is None
    assert converged_at([5.0], [0.3]) == 5.0
    # means of two: 0.1, 0.2, 0.4, 0.5, 0.5, 0.5005, 0.5005
    times = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]
    assert converged_at(times, [0.1, 0.3, 0.5, 0.5, 0.5, 0.501, 0.5], window=2) == 4.0
    # a step at evaluation 5, a window of 20: the mean rises by 0.1/20 each time until the step fills it
    accuracies = [0.5] * 5 + [0.6] * 95
    assert converged_at(list(range(100)), accuracies) == pytest.approx(24)


def test_slow_gains_add_up() -> None:
    rising = [0.5 + 0.0002 * i for i in range(100)]  # never 0.1 point from one look to the next
    assert converged_at(list(range(100)), rising) > 90
