"""Kolmogorov-Smirnov and the mean discrepancy, against numbers worked out otherwise."""

import numpy as np
import pytest

from artesian.drift.detector import Batch
from artesian.drift.row_shift import (
    KolmogorovSmirnov,
    MeanDiscrepancy,
    holm,
    kolmogorov,
    largest_gaps,
    mmd_test,
    projected,
)
from artesian.drift.windows import TwoSamples
from artesian.errors import BadData


def test_the_largest_gap_by_hand() -> None:
    """Before 1 2 3 4, now 3 4 5 6: below 3 lies half of the first and nothing of the second. The same twice: 0."""
    before, now = np.array([[1, 7], [2, 7], [3, 8], [4, 8.0]]), np.array([[3, 7], [4, 8], [5, 7], [6, 8.0]])
    assert largest_gaps(before, now).tolist() == [0.5, 0.0]


def test_the_chance_of_a_gap_is_that_of_the_tables() -> None:
    """Kolmogorov's 5 % point is 1.358, his 1 % point 1.628; Stephens' correction vanishes for many samples."""
    for point, chance in ((1.358, 0.05), (1.628, 0.01)):
        assert kolmogorov(point / np.sqrt(500_000), 10**6, 10**6) == pytest.approx(chance, rel=0.01)
    assert (kolmogorov(0.0, 50, 50), kolmogorov(1.0, 500, 500)) == (1.0, pytest.approx(0.0, abs=1e-12))


def test_holm_by_hand() -> None:
    assert holm(np.array([0.01, 0.04, 0.03])).tolist() == pytest.approx([0.03, 0.06, 0.06])
    assert holm(np.array([0.9, 0.8])).tolist() == [1.0, 1.0]


def test_the_mean_discrepancy_by_hand() -> None:
    """Before 0 0, now 1 1: the median squared distance is 1, so k is 1 or 1/e, and the square is 2 - 2/e.

    Of the 6 ways to choose a window two are as far apart: p = 1/3.
    """
    full = TwoSamples(np.zeros((2, 1)), np.ones((2, 1)), 1, 4)
    squared, p = mmd_test(full, 9999, seed=0)
    assert (squared, p) == (pytest.approx(2 - 2 / np.e), pytest.approx(1 / 3, abs=0.02))


def test_long_rows_become_a_few_numbers_and_short_ones_stay() -> None:
    rows = np.random.default_rng(0).normal(size=(5, 4, 4))
    assert projected(rows, 16, 0).tolist() == rows.reshape(5, 16).astype(np.float32).tolist()
    few = projected(rows, 3, 0)
    assert few.shape == (5, 3) and few.dtype == np.float32
    assert np.array_equal(few, projected(rows, 3, 0)) and not np.array_equal(few, projected(rows, 3, 1))
    length = np.linalg.norm(rows.reshape(5, 16), axis=1, keepdims=True)
    assert (np.abs(few) <= length).all()  # directions have length 1


def test_the_order_within_a_batch_has_no_meaning() -> None:
    """A client's data set, sorted by label, is one batch: its end does not differ from its beginning."""
    rows = np.sort(np.random.default_rng(0).normal(size=(2000, 1)), axis=0)
    made = KolmogorovSmirnov()
    assert [made.observe(Batch(features=rows)) for _ in range(5)] == [None] * 5


def test_rows_of_another_length_are_refused() -> None:
    made = MeanDiscrepancy()
    made.observe(Batch(features=np.zeros((3, 2))))
    with pytest.raises(BadData, match="A sample has 5 numbers, and those before had 2"):
        made.observe(Batch(features=np.zeros((3, 5))))


def test_losses_can_be_compared_as_well() -> None:
    rng = np.random.default_rng(0)
    made = KolmogorovSmirnov(part="losses")
    made.observe(Batch(losses=rng.exponential(1, 500)))
    assert made.observe(Batch(losses=rng.exponential(1, 100))) is None
    assert made.observe(Batch(losses=rng.exponential(3, 100))).why.startswith("the losses changed (smallest corrected")


@pytest.mark.parametrize(("kind", "rounds"), [(KolmogorovSmirnov, 400), (MeanDiscrepancy, 200)])
def test_without_drift_alarms_are_as_rare_as_the_level_says(kind, rounds) -> None:
    """At level 0.2; within four standard errors. Bonferroni's bound makes the first a little rarer."""
    rng, alarms = np.random.default_rng(3), 0
    few = {} if kind is KolmogorovSmirnov else {"permutations": 49}
    for seed in range(rounds):
        made = kind(level=0.2, reference=40, window=20, seed=seed, **few)
        made.observe(Batch(features=rng.normal(size=(40, 3))))
        alarms += made.observe(Batch(features=rng.normal(size=(20, 3)))) is not None
    error = np.sqrt(0.2 * 0.8 / rounds)
    assert 0.2 - 4 * error - (0.06 if kind is KolmogorovSmirnov else 0) < alarms / rounds < 0.2 + 4 * error
