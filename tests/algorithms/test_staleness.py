"""What a late upload is worth: the papers' numbers."""

from __future__ import annotations

import pytest

from artesian.algorithms.staleness import casa, cdfl, constant, hinge, polynomial, weigh


@pytest.mark.parametrize("staleness", [0, 1, 1000])
def test_constant_is_always_one(staleness: int) -> None:
    assert constant(staleness) == 1


@pytest.mark.parametrize(
    ("staleness", "a", "weight"), [(0, 0.5, 1.0), (3, 0.5, 0.5), (8, 0.5, 1 / 3), (4, 1.0, 0.2), (9, 0.0, 1.0)]
)
def test_polynomial(staleness: int, a: float, weight: float) -> None:
    assert polynomial(staleness, a) == pytest.approx(weight, abs=1e-15)


def test_polynomial_is_fedbuffs_root_by_default() -> None:
    assert polynomial(3) == 0.5


@pytest.mark.parametrize(
    ("a", "staleness", "weight"),
    [
        (10, 0, 1.0),
        (10, 4, 1.0),
        (10, 5, 0.090909),
        (10, 6, 0.047619),
        (10, 14, 0.009901),
        (1, 4, 1.0),
        (1, 5, 0.5),
        (1, 6, 0.333333),
        (1, 14, 0.090909),
    ],
)
def test_hinge_falls_after_four(a: float, staleness: int, weight: float) -> None:
    assert hinge(staleness, a, 4) == pytest.approx(weight, abs=5e-7)


def test_hinge_defaults_are_fedasyncs() -> None:
    assert hinge(4) == 1 and hinge(5) == pytest.approx(1 / 11)


@pytest.mark.parametrize(("staleness", "weight"), [(0, 1.0), (4, 1.0), (5, 0.019608), (14, 0.007092)])
def test_cdfl_falls_at_five(staleness: int, weight: float) -> None:
    assert cdfl(staleness, 10, 5) == pytest.approx(weight, abs=5e-7)
    assert cdfl(staleness) == pytest.approx(weight, abs=5e-7)


@pytest.mark.parametrize(
    ("staleness", "patience", "weight"), [(0, 3, 1.0), (3, 3, 1.0), (4, 3, 0.5), (16, 3, 0.25), (2, 0, 0.70710678)]
)
def test_casa_falls_after_its_patience(staleness: int, patience: int, weight: float) -> None:
    assert casa(staleness, patience) == pytest.approx(weight, abs=1e-8)


def test_the_rules_differ_at_their_boundary() -> None:
    assert hinge(5, 10, 5) == 1 and cdfl(5, 10, 5) == pytest.approx(1 / 51)


@pytest.mark.parametrize(
    ("rule", "weight"), [("constant", 1.0), ("polynomial", 7**-2.0), ("hinge", 1 / 7), ("cdfl", 1 / 13)]
)
def test_weigh_follows_the_rule_named(rule: str, weight: float) -> None:
    assert weigh(rule, 6, 2, 3) == pytest.approx(weight, abs=1e-15)  # type: ignore[arg-type]
