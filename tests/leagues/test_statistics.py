"""The statistics of a league, against numbers worked out by hand."""

import doctest

import pytest

from artesian.leagues import statistics
from artesian.leagues.statistics import (
    Paired,
    Spread,
    best,
    holm,
    interval,
    near,
    paired,
    ranks,
    sign_test,
    spread,
    wilcoxon,
)


def test_the_examples_in_docstrings_hold() -> None:
    ran = doctest.testmod(statistics)
    assert ran.attempted == 3 and not ran.failed


def test_mean_and_standard_deviation() -> None:
    found = spread([1.0, 2.0, 6.0])
    assert found is not None
    assert (found.mean, found.count) == (3.0, 3)
    assert found.deviation == pytest.approx(7**0.5)  # (4 + 1 + 9) / 2
    assert spread([0.5]) == Spread(0.5, 0.0, 1)
    assert spread([]) is None


def test_the_best_and_all_within_its_standard_deviation() -> None:
    figures = {"a": Spread(0.90, 0.02, 3), "b": Spread(0.88, 0.09, 3), "c": Spread(0.85, 0.09, 3)}
    assert best(figures) == {"a"} and near(figures) == {"a", "b"}
    assert best(figures, -1) == {"c"} and near(figures, -1) == {"a", "b", "c"}
    assert best({}) == set() and near({}) == set()
    alone = {"a": Spread(0.9, 0.0, 1), "b": Spread(0.9, 0.0, 1), "c": Spread(0.8, 0.0, 1)}
    assert best(alone) == near(alone) == {"a", "b"}


def test_ties_share_the_mean_rank() -> None:
    assert ranks({"a": -1.0, "b": -2.0, "c": -3.0}) == {"a": 1.0, "b": 2.0, "c": 3.0}
    assert ranks({"a": 1.0, "b": 2.0, "c": 1.0, "d": 1.0}) == {"a": 3.0, "b": 1.0, "c": 3.0, "d": 3.0}
    assert ranks({"a": 0.5}) == {"a": 1.0}
    assert ranks({}) == {}


def test_an_interval_of_a_mean() -> None:
    assert interval([1.0]) is None
    assert interval([2.0, 2.0, 2.0]) == (2.0, 2.0)
    low, high = interval([1.0, 3.0]) or (0.0, 0.0)  # a quarter of all bootstraps is 1, 1 and a quarter 3, 3
    assert (low, high) == (1.0, 3.0)
    assert interval([1.0, 3.0], 0.4) == (2.0, 2.0)  # and half of them is 1, 3 in some order
    assert interval([1.0, 2.0, 4.0, 2.0]) == interval([1.0, 2.0, 4.0, 2.0])


@pytest.mark.parametrize(
    ("better", "worse", "p"),
    [(0, 0, 1.0), (1, 0, 1.0), (3, 3, 1.0), (4, 1, 0.375), (1, 4, 0.375), (7, 1, 18 / 256)],
)
def test_the_sign_test_is_exact(better, worse, p) -> None:
    assert sign_test(better, worse) == p  # 4 of 5: 2 (1 + 5) / 32


def test_wilcoxon_is_exact_for_few_pairs() -> None:
    pytest.importorskip("scipy", reason="scipy is not installed")
    assert wilcoxon([]) == 1.0
    assert wilcoxon([0.1, 0.2, 0.3, 0.4, 0.5]) == pytest.approx(2 / 32)  # the largest sum of ranks, one of 2^5
    assert wilcoxon([-0.1, 0.2, 0.3, 0.4, 0.5]) == pytest.approx(4 / 32)  # the sums 15 and 14


def test_a_paired_test_counts_and_leaves_ties_out(monkeypatch) -> None:
    pytest.importorskip("scipy", reason="scipy is not installed")
    differences = [0.1, 0.2, 0.0, 0.3, 0.4, -0.5]
    assert paired(differences) == Paired(4, 1, 1, pytest.approx(0.625))  # a sum of 5: 10 of 32 sums are at most 5
    assert statistics.name_of_test() == "Wilcoxon signed-rank"
    monkeypatch.setattr(statistics, "has_scipy", lambda: False)
    assert paired(differences) == Paired(4, 1, 1, 0.375)
    assert statistics.name_of_test() == "sign"


def test_holm_never_lets_a_larger_p_become_smaller() -> None:
    assert holm({"a": 0.01, "b": 0.011, "c": 0.5}) == pytest.approx({"a": 0.03, "b": 0.03, "c": 0.5})
    assert holm({"a": 0.4, "b": 0.5}) == pytest.approx({"a": 0.8, "b": 0.8})
    assert holm({"a": 0.9, "b": 0.6}) == {"a": 1.0, "b": 1.0}
    assert holm({}) == {}
