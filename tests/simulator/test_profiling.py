"""A stopwatch counts every moment once; a parcel knows how long it took to pack and to unpack."""

from contextlib import suppress
from multiprocessing.reduction import ForkingPickler

import numpy as np
import pytest

from artesian.simulator import profiling
from artesian.simulator.profiling import PARTS, Parcel, Stopwatch


@pytest.fixture
def clock(monkeypatch):
    """A clock that only moves when it is told to."""
    hands = [0.0]
    monkeypatch.setattr(profiling.time, "perf_counter", lambda: hands[0])

    def go(seconds: float) -> None:
        hands[0] += seconds

    return go


def told(watch: Stopwatch) -> dict[str, float]:
    return {part: spent for part, spent in watch.seconds.items() if spent}


def test_the_innermost_part_counts(clock) -> None:
    watch = Stopwatch("starting")
    clock(1)
    assert watch.turn("other") == "starting"
    with watch.part("folding"):
        clock(2)
        with watch.part("appraising"):
            clock(4)
        clock(8)
    clock(16)
    assert told(watch) == {"starting": 1, "folding": 10, "appraising": 4, "other": 16}
    assert list(watch.seconds) == list(PARTS)


def test_what_fails_is_counted_and_left(clock) -> None:
    watch = Stopwatch()
    with suppress(ZeroDivisionError), watch.part("training"):
        clock(3)
        raise ZeroDivisionError
    clock(1)
    assert told(watch) == {"training": 3, "other": 1}


def test_what_went_on_beside_a_part_is_taken_out_of_it_and_no_more(clock) -> None:
    watch = Stopwatch("waiting")
    clock(3)
    watch.turn("other")
    watch.shift("waiting", "moving", 1)
    assert told(watch) == {"waiting": 2, "moving": 1}
    watch.shift("waiting", "moving", 5)
    assert told(watch) == {"moving": 3}


def test_a_parcel_arrives_with_its_content_and_its_times() -> None:
    sent = Parcel({"model": np.arange(1e6)})
    assert sent.packing == 0
    data = bytes(ForkingPickler.dumps(sent))
    arrived = ForkingPickler.loads(data)
    assert np.array_equal(arrived.content["model"], sent.content["model"])
    assert arrived.packing > 0
    assert arrived.unpacking > 0


def test_marks_stand_around_the_content(monkeypatch) -> None:
    """Packed at 1 and 2, unpacked at 3 and 4: a clock that ticks whenever it is read."""
    parcel = Parcel("content")
    ticks = iter([1.0, 2.0, 3.0, 5.0])
    monkeypatch.setattr("artesian.simulator.profiling.time.perf_counter", lambda: next(ticks))
    arrived = ForkingPickler.loads(bytes(ForkingPickler.dumps(parcel)))
    assert (arrived.packing, arrived.unpacking) == (1.0, 2.0)
