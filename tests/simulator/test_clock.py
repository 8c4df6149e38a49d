"""Virtual time: moments in order, ties by who was entered first."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from artesian.simulator.clock import Clock, Moment

unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


def test_moments_come_in_order_and_time_moves_with_them() -> None:
    clock = Clock()
    clock.at(3.0, "finish", "b", 2)
    clock.at(1.5, "join", "a")
    assert clock.now == 0
    assert clock.pop() == Moment(1.5, 1, "join", "a", 0)
    assert clock.now == 1.5
    assert clock.pop() == Moment(3.0, 0, "finish", "b", 2)
    assert clock.pop() is None and clock.now == 3


def test_a_tie_goes_to_whoever_was_entered_first() -> None:
    clock = Clock()
    for client in ("z", "a", "m", "b"):
        clock.at(1.0, "join" if client == "z" else "finish", client)
    clock.at(0.5, "leave", "q")
    popped = [moment.client for _ in range(5) if (moment := clock.pop())]
    assert popped == ["q", "z", "a", "m", "b"]


def test_the_same_moment_twice_is_no_tie() -> None:
    clock = Clock()
    clock.at(1.0, "finish", "a", 1)
    clock.at(1.0, "finish", "a", 1)
    assert [moment.sequence for moment in clock.moments()] == [0, 1]


def test_looking_ahead_changes_nothing() -> None:
    clock = Clock()
    for time in (5.0, 2.0, 9.0):
        clock.at(time, "finish", "a")
    assert [moment.time for moment in clock.upcoming(2)] == [2, 5]
    assert [moment.time for moment in clock.upcoming(7)] == [2, 5, 9]
    assert clock.upcoming(0) == []
    assert clock.now == 0 and len(clock.moments()) == 3


TIMES = st.lists(st.integers(0, 5).map(float), max_size=12)


@unhurried
@given(TIMES, TIMES, st.integers(0, 12))
def test_a_clock_restored_from_its_moments_goes_on_as_if_never_stopped(
    before: list[float], after: list[float], popped: int
) -> None:
    clock = Clock()
    for i, time in enumerate(before):
        clock.at(time, "finish", f"c{i}")
    for _ in range(popped):
        clock.pop()
    again = Clock(clock.now, clock.sequence, reversed(clock.moments()))
    for one in (clock, again):
        for i, time in enumerate(after):
            one.at(one.now + time, "join", f"d{i}")
    assert again.moments() == clock.moments()
    found = [clock.pop() for _ in range(25)]
    assert found == [again.pop() for _ in range(25)]
    times = [moment.time for moment in found if moment]
    assert times == sorted(times) and again.now == clock.now
