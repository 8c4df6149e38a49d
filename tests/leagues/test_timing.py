"""How long a league takes: from what was seen of its runs, by hand."""

import doctest
from pathlib import Path

import pytest
from leagues.made import line, pair, plan

from artesian.config.experiments import simulate
from artesian.leagues import timing
from artesian.leagues.plan import PlannedRun
from artesian.leagues.results import FILE, Results
from artesian.leagues.timing import (
    RunTimer,
    Timing,
    duration,
    estimate,
    left_of,
    makespan,
    read_timings,
    to_time,
    with_guesses,
    write_timings,
)

ONE, TWO = pair("w", "a"), pair("w", "b")


def test_the_examples_in_docstrings_hold() -> None:
    ran = doctest.testmod(timing)
    assert ran.attempted == 1 and not ran.failed


def test_a_run_is_timed_from_its_first_upload_on() -> None:
    watch = RunTimer(100.0)
    assert (watch.timing, watch.seconds) == (None, 0.0)
    watch.see(104.0, 20)
    assert watch.timing is None  # a resumed run did these before
    watch.see(110.0, 32)
    assert watch.timing == Timing(4.0, 0.5)
    assert (Timing(4.0, 0.5).seconds(8), Timing(4.0, 0.5).seconds(0)) == (8.0, 0.0)


def test_runs_fill_the_places_one_after_the_other() -> None:
    assert makespan([], 3) == 0.0
    assert makespan([2.0, 2.0, 2.0], 1) == 6.0
    assert makespan([5.0, 1.0, 1.0, 1.0], 2) == 5.0


def test_an_estimate_says_what_it_does_not_know() -> None:
    left = {PlannedRun(ONE, 0): 10, PlannedRun(ONE, 1): 4, PlannedRun(TWO, 0): 10}
    found = estimate(left, {ONE: Timing(1.0, 0.5)}, jobs=2, begun=1, finished=3)
    assert (found.seconds, found.untimed, found.runs) == (6.0, (TWO,), 6)
    counts, unknown = "3 finished, 1 begun, 2 to begin", "1 of the methods in a world are not timed yet"
    assert str(found) == f"6 runs ({counts}): at least 6 s with 2 at once; {unknown}"
    nothing = str(estimate({PlannedRun(ONE, 0): 10}, {}, jobs=1))
    assert nothing == f"1 run (1 to begin): how long is not known yet; {unknown}"
    assert str(estimate({}, {}, jobs=2, finished=3)) == "3 runs (3 finished): nothing is left"
    timed = {ONE: Timing(1.0, 0.5), TWO: Timing(0.0, 60.0)}
    assert str(estimate(left, timed, jobs=1)) == "3 runs (3 to begin): about 10 min with 1 at once"


def test_a_pair_that_was_not_timed_follows_from_others() -> None:
    near, far, slow = pair("near", "a"), pair("far", "a"), pair("near", "b")
    asked = pair("far", "b", length=20, unit="rounds")
    timed = {near: Timing(1.0, 0.5), far: Timing(7.0, 1.5), slow: Timing(2.0, 2.0)}
    # 15 s of a in the far world, and b takes 20 s in the near one where a takes 5: 60 s for 20 rounds
    assert with_guesses(timed, [near, asked]) == {**timed, asked: Timing(7.0, 3.0)}
    assert estimate({PlannedRun(asked, 0): 20}, timed, jobs=1).seconds == 67.0
    assert asked not in with_guesses({near: Timing(1.0, 0.5), far: Timing(7.0, 1.5)}, [asked])  # b was never seen
    assert asked not in with_guesses({near: Timing(1.0, 0.5), slow: Timing(2.0, 2.0)}, [asked])  # nor was the world


def test_of_several_guesses_the_middle_one_counts() -> None:
    timed = {
        pair("far", "a"): Timing(0.0, 1.0),
        pair("far", "c"): Timing(0.0, 1.0),
        pair("near", "c"): Timing(0.0, 2.0),
    }
    timed |= {pair("near", "a"): Timing(0.0, 1.0), pair("near", "b"): Timing(0.0, 4.0)}
    assert with_guesses(timed, [pair("far", "b")])[pair("far", "b")] == Timing(0.0, 3.0)  # of 4 by a, and 2 by c


def test_every_world_and_every_method_is_timed_once() -> None:
    pairs = [pair(world, method) for world in ("v", "w") for method in ("a", "b", "c")]
    assert to_time(pairs, {}) == [*pairs[:3], pairs[3]]  # a, b and c in v; the first in w
    assert to_time(pairs, {pairs[1]: Timing(0.0, 1.0)}) == [pairs[0], pairs[2], pairs[3]]
    assert to_time(pairs, {pairs[0]: Timing(0.0, 1.0), pairs[4]: Timing(0.0, 1.0)}) == [pairs[2]]


@pytest.mark.parametrize(
    ("seconds", "words"), [(0.2, "0 s"), (99, "99 s"), (119, "2 min"), (7140, "119 min"), (7500, "2 h 5 min")]
)
def test_durations_in_words(seconds, words) -> None:
    assert duration(seconds) == words


def test_timings_are_kept_by_pair(tmp_path) -> None:
    assert read_timings(tmp_path, [ONE, TWO]) == {}
    write_timings(tmp_path, {ONE: Timing(1.25, 0.5)})
    assert read_timings(tmp_path, [ONE, TWO]) == {ONE: Timing(1.25, 0.5)}


def test_what_is_left_of_a_run_is_counted_from_its_snapshot(tmp_path) -> None:
    def interrupt(progress) -> None:
        if progress.uploads == 7:
            raise KeyboardInterrupt

    quick = ("world.clients=4", "start.trunk_epochs=0", "uploads=10", "snapshot_every=3")
    one = pair("w", "a", changes=quick)
    runs = [PlannedRun(one, 0), PlannedRun(one, 1), PlannedRun(TWO, 0)]
    with pytest.raises(KeyboardInterrupt):
        simulate("digits-2", changes=one.changes, out=tmp_path / runs[0].folder, progress=interrupt)
    (tmp_path / FILE).write_text(line(runs[1]))
    assert left_of(runs, Results(plan(one, TWO), tmp_path)) == {runs[0]: 4, runs[2]: 10}
    in_rounds = PlannedRun(pair("w", "a", changes=quick, unit="rounds", length=8), 0)  # an upload of CDFL is a fold
    assert left_of([in_rounds], Results(plan(in_rounds.pair), tmp_path)) == {in_rounds: 2}
    assert left_of(runs, Results(plan(one, TWO), Path("nowhere")))[runs[1]] == 10
