"""Histograms of labels, compared by hand."""

import numpy as np
import pytest

from artesian.drift.detector import Batch
from artesian.drift.label_shift import DISTANCES, FlexcflLabels, Labels, label_test
from artesian.drift.windows import TwoSamples
from artesian.errors import BadData


def rows(*shares: float) -> np.ndarray:
    return np.array([shares])


@pytest.mark.parametrize(
    ("distance", "expected"),
    [
        ("total_variation", 0.5),
        ("hellinger", np.sqrt(1 - np.sqrt(0.5))),  # root of 1 - sum sqrt(p q)
        ("jensen_shannon", np.sqrt(0.75 * np.log2(4 / 3) + 0.25 * np.log2(4 / 1) - 0.5)),  # entropy of the middle
        ("chi_square", 1 / 3),  # middle (3/4, 1/4): (1/16) / (3/4) + (1/16) / (1/4), for both halves the same
        ("g", 0.75 * np.log2(4 / 3) + 0.25 * np.log2(4 / 1) - 0.5),
    ],
)
def test_distances_by_hand(distance, expected) -> None:
    before, now = rows(1.0, 0.0), rows(0.5, 0.5)
    assert DISTANCES[distance](before, now, 0.5)[0] == pytest.approx(expected)
    assert DISTANCES[distance](before, before, 0.3)[0] == pytest.approx(0.0)


@pytest.mark.parametrize("distance", ["chi_square", "g"])
def test_the_classical_statistics_are_those_of_the_table(distance) -> None:
    """30 and 10 of one label, 10 and 30 of the other: chi-square 20, G 2 sum O ln(O / E) with E = 20."""
    found = DISTANCES[distance](rows(0.75, 0.25), rows(0.25, 0.75), 0.5)[0]
    ratio = 2 * (60 * np.log(1.5) + 20 * np.log(0.5))
    assert found * {"chi_square": 80, "g": 2 * np.log(2) * 80}[distance] == pytest.approx(
        {"chi_square": 20.0, "g": ratio}[distance]
    )


def test_p_is_the_share_of_windows_that_are_as_far_away() -> None:
    """Of 4 samples 0 0 1 1, the window 1 1 is one of 6 pairs, and 0 0 is as far away: p = 1/3."""
    full = TwoSamples(np.array([0, 0]), np.array([1, 1]), 1, 4)
    found, p = label_test(full, "total_variation", 20_000, seed=0)
    assert (found, p) == (1.0, pytest.approx(1 / 3, abs=0.01))


def test_a_smaller_distance_than_least_is_no_drift() -> None:
    first, then = Batch(labels=np.arange(500) % 2), Batch(labels=np.arange(100) % 3 % 2)  # 1/2, then 1/3 ones
    for least, found in ((0.0, True), (0.15, True), (0.2, False)):
        made = Labels(distance="total_variation", level=0.05, least=least)
        made.observe(first)
        assert (made.observe(then) is not None) == found, least


def test_labels_it_never_saw_before_are_drift() -> None:
    made = Labels()
    made.observe(Batch(labels=np.zeros(500, np.int64)))
    assert made.observe(Batch(labels=np.full(100, 10**12))).statistic == 0.001


def test_labels_must_be_whole_numbers() -> None:
    with pytest.raises(BadData, match="labels are not whole numbers"):
        Labels().observe(Batch(labels=np.array([0.5, 1.0])))
    with pytest.raises(BadData, match="The labels go from -1 to 3"):
        FlexcflLabels().observe(Batch(labels=np.array([-1, 3])))


def test_flexcfl_counts_changed_samples() -> None:
    """Of 10 samples 2 have another label: exactly a fifth, which counts. With the sorted counts nothing changed."""
    before, now = Batch(labels=np.array([0] * 6 + [1] * 4)), Batch(labels=np.array([0] * 4 + [1] * 6))
    for distance, share in (("changed", 0.2), ("mean_abs", 0.4), ("sorted_w1", None)):
        made = FlexcflLabels(distance=distance)
        assert made.observe(before) is None
        drift = made.observe(now)
        assert (drift and drift.statistic) == share
    assert FlexcflLabels(fraction=0.21).observe(before) is None


def test_without_drift_alarms_are_as_rare_as_the_level_says() -> None:
    """At level 0.2 of 400 windows about 80 raise one: within four standard errors of 8."""
    rng, alarms = np.random.default_rng(7), 0
    for seed in range(400):
        made = Labels(level=0.2, reference=60, window=30, permutations=99, seed=seed)
        made.observe(Batch(labels=rng.integers(0, 4, 60)))
        alarms += made.observe(Batch(labels=rng.integers(0, 4, 30))) is not None
    assert 48 <= alarms <= 112
