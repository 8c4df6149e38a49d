"""A parcel knows how long it took to pack and to unpack."""

from multiprocessing.reduction import ForkingPickler

import numpy as np

from artesian.simulator.parcel import Parcel


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
    monkeypatch.setattr("artesian.simulator.parcel.time.perf_counter", lambda: next(ticks))
    arrived = ForkingPickler.loads(bytes(ForkingPickler.dumps(parcel)))
    assert (arrived.packing, arrived.unpacking) == (1.0, 2.0)
