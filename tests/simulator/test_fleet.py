"""Fleets: when clients come, how long they train, when they leave."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from artesian.simulator.fleet import BLOCK, Fleet, Habits

NAMES = [f"c{i:03d}" for i in range(20)]


def habits(seed: int = 0, names: list[str] = NAMES, **options: Any) -> Habits:
    return Habits(Fleet(**options), names, seed)


def turns_until(fleet: Habits, client: str, end: float) -> list[float]:
    """All the times a client finishes who always begins again at once."""
    times = [fleet.finishes_at(client, 1, 0.0)]
    while times[-1] <= end:
        times.append(fleet.finishes_at(client, len(times) + 1, times[-1]))
        assert times[-1] > times[-2]
    return times[:-1]


# the uniform schedule


def test_in_every_unit_of_time_exactly_one_client_finishes() -> None:
    end = 2 * BLOCK + 100
    fleet = habits()
    found = sorted(time for name in NAMES for time in turns_until(fleet, name, end))
    assert found == list(range(1, end + 1))


def test_turns_are_drawn_uniformly() -> None:
    fleet, end = habits(3), 20_000
    counts = np.array([len(turns_until(fleet, name, end)) for name in NAMES])
    assert counts.sum() == end
    # chi-square with 19 degrees of freedom: beyond 60 once in a few million
    assert ((counts - 1000) ** 2 / 1000).sum() < 60


def test_turns_are_drawn_with_replacement() -> None:
    fleet = habits(0, NAMES[:3])
    order = sorted((time, name) for name in NAMES[:3] for time in turns_until(fleet, name, 300))
    repeated = sum(one == other for (_, one), (_, other) in pairwise(order))
    assert 50 < repeated < 150  # a third of 299


@pytest.mark.parametrize("schedule", ["uniform", "latency"])
def test_finishing_is_a_pure_function(schedule: Any) -> None:
    times: dict[str, Any] = {"latency_max": 3.0, "slow_share": 0.3} if schedule == "latency" else {}
    options: dict[str, Any] = {"schedule": schedule, **times}
    questions = [(name, number, now) for name in NAMES for number, now in ((1, 0.0), (2, 7.0), (3, 5000.5))]
    kept = habits(**options)
    forwards = [kept.finishes_at(*question) for question in questions]
    backwards = [kept.finishes_at(*question) for question in reversed(questions)][::-1]
    fresh = [habits(**options).finishes_at(*question) for question in questions]
    assert forwards == backwards == fresh
    assert [habits(1, **options).finishes_at(*question) for question in questions] != fresh


@pytest.mark.parametrize("now", [0.0, 0.5, 1.0, 99.0, 4095.0, 4096.0, 4097.0, 10_000.0])
def test_a_training_finishes_strictly_later(now: float) -> None:
    uniform, timed = habits(), habits(schedule="latency", latency=1e-3)
    for name in NAMES:
        finish = uniform.finishes_at(name, 1, now)
        assert finish > now and finish == int(finish)
        assert timed.finishes_at(name, 1, now) > now


def test_a_turn_is_the_next_one_after_now() -> None:
    fleet = habits()
    turns = turns_until(fleet, "c004", 500)
    for now in np.arange(0, turns[-1], 0.5):
        assert fleet.finishes_at("c004", 1, float(now)) == min(turn for turn in turns if turn > now)


# durations


def test_a_fixed_latency_is_the_same_for_all() -> None:
    fleet = habits(schedule="latency", latency=2.5)
    assert {fleet.finishes_at(name, number, 10.0) for name in NAMES for number in (1, 2)} == {12.5}


def durations(fleet: Habits, client: str) -> list[float]:
    return [fleet.finishes_at(client, number, 0.0) for number in range(1, 40)]


def test_a_random_latency_fills_its_bounds() -> None:
    fleet = habits(schedule="latency", latency=2, latency_max=4)
    found = [time for name in NAMES for time in durations(fleet, name)]
    assert 2 <= min(found) < 2.05 and 3.95 < max(found) <= 4
    assert np.mean(found) == pytest.approx(3, abs=0.1)
    assert len(set(durations(fleet, "c000"))) == 39


def test_without_redraw_a_client_keeps_its_duration() -> None:
    fleet = habits(schedule="latency", latency=2, latency_max=4, redraw=False)
    per_client = [set(durations(fleet, name)) for name in NAMES]
    assert all(len(found) == 1 for found in per_client)
    assert len(set.union(*per_client)) == len(NAMES)


@pytest.mark.parametrize(("share", "count"), [(0.0, 0), (0.25, 5), (0.5, 10), (1.0, 20)])
def test_a_share_of_clients_is_slower_by_the_factor(share: float, count: int) -> None:
    fleet = habits(schedule="latency", latency=2, slow_share=share, slow_factor=3)
    found = [fleet.finishes_at(name, number, 0.0) for name in NAMES for number in (1, 2)]
    assert found.count(6.0) == 2 * count and found.count(2.0) == 2 * (20 - count)


HUNDRED = [f"c{i:03d}" for i in range(100)]


@pytest.mark.parametrize(("factor", "each"), [(5.0, 76), (10.0, 73)])
def test_three_in_ten_of_casas_clients_are_slow(factor: float, each: int) -> None:
    """70 uploads of quick clients in a unit, and 30/factor of slow ones."""
    fleet = habits(names=HUNDRED, schedule="latency", slow_share=0.3, slow_factor=factor)
    durations = [fleet.finishes_at(client, 1, 0.0) for client in HUNDRED]
    assert sorted(durations) == [1.0] * 70 + [factor] * 30
    assert sum(len(turns_until(fleet, client, 10.0)) for client in HUNDRED) == 10 * each


def test_casas_other_clients_have_a_duration_of_their_own() -> None:
    fleet = habits(names=HUNDRED, schedule="latency", latency_max=5.0, redraw=False)
    durations = [fleet.finishes_at(client, 1, 0.0) for client in HUNDRED]
    assert 1 <= min(durations) < 1.3 and 4.7 < max(durations) <= 5 and np.mean(durations) == pytest.approx(3, abs=0.3)
    assert durations == [fleet.finishes_at(client, 7, 0.0) for client in HUNDRED]


def test_slowness_multiplies_a_random_duration() -> None:
    plain = habits(schedule="latency", latency=1, latency_max=2)
    slow = habits(schedule="latency", latency=1, latency_max=2, slow_share=1.0, slow_factor=5)
    for name in NAMES:
        assert slow.finishes_at(name, 3, 0.0) == pytest.approx(5 * plain.finishes_at(name, 3, 0.0))


# coming and going


def test_everybody_is_there_from_the_start_unless_told_otherwise() -> None:
    assert {habits().joins_at(name) for name in NAMES} == {0.0}
    assert {habits().leaves_at(name) for name in NAMES} == {None}


def test_a_share_of_clients_comes_late() -> None:
    fleet = habits(late_share=0.4, late_by=50)
    late = [time for name in NAMES if (time := fleet.joins_at(name))]
    assert len(late) == 8 and len(set(late)) == 8
    assert all(0 < time < 50 for time in late) and max(late) > 10


def test_a_share_of_clients_leaves() -> None:
    fleet = habits(leave_share=0.3, leave_by=50)
    gone = [time for name in NAMES if (time := fleet.leaves_at(name)) is not None]
    assert len(gone) == 6 and len(set(gone)) == 6
    assert all(0 <= time < 50 for time in gone) and max(gone) > 10


def test_who_is_slow_late_or_leaving_is_drawn_apart_and_by_seed() -> None:
    def chosen(seed: int) -> tuple[frozenset[str], ...]:
        fleet = habits(seed, schedule="latency", slow_share=0.5, leave_share=0.5, leave_by=9, late_share=0.5, late_by=9)
        return (
            frozenset(name for name in NAMES if fleet.finishes_at(name, 1, 0.0) > 2),
            frozenset(name for name in NAMES if fleet.leaves_at(name) is not None),
            frozenset(name for name in NAMES if fleet.joins_at(name) > 0),
        )

    assert len(set(chosen(0))) == 3
    assert chosen(0) == chosen(0) != chosen(1)


# settings


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"slow_share": -0.1}, "slow_share"),
        ({"leave_share": 1.1, "leave_by": 1}, "leave_share"),
        ({"late_share": float("nan"), "late_by": 1}, "late_share"),
        ({"latency": 0}, "latency must be positive"),
        ({"latency": -1}, "latency must be positive"),
        ({"latency": 2, "latency_max": 1}, "latency_max must be at least latency"),
        ({"slow_factor": 0.5}, "slow_factor must be at least 1"),
        ({"leave_share": 0.1}, "leave_by"),
        ({"late_share": 0.1, "late_by": -3}, "late_by"),
        ({"return_after": 0}, "return_after must be positive"),
        ({"return_after": -1.0}, "return_after must be positive"),
    ],
)
def test_settings_out_of_range_are_refused(wrong: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        Fleet(**wrong)


def test_settings_at_the_edge_are_taken() -> None:
    times: dict[str, Any] = {"slow_share": 1.0, "slow_factor": 1, "latency": 1, "latency_max": 1}
    Fleet("latency", **times, leave_share=1, leave_by=0.1, return_after=0.1)


@pytest.mark.parametrize(
    "unused", [{"latency": 2.0}, {"latency_max": 3.0}, {"redraw": False}, {"slow_share": 0.3}, {"slow_factor": 9.0}]
)
def test_what_makes_durations_is_refused_where_nothing_has_one(unused: dict[str, Any]) -> None:
    ((name, value),) = unused.items()
    told = f"{name} has an effect only with schedule = latency, but {name} = {value} and schedule = 'uniform'"
    with pytest.raises(ValueError, match=told):
        Fleet(**unused)
    Fleet("latency", **unused)
