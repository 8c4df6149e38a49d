"""New data in every cycle: everything, only the samples, or nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from artesian.config.experiments import build, load
from artesian.errors import SettingError
from artesian.simulator.shifts import Shift, Shifted
from artesian.simulator.worlds import DigitWorld, Rotated
from artesian.simulator.worlds.mixing import MixedWorld

SIZES: dict[str, Any] = {
    "samples_min": 20, "samples_max": 40, "proxy_images": 20, "test_images": 20, "client_test_samples": 10
}  # fmt: skip
WORLDS: dict[str, MixedWorld] = {
    "rotated": Rotated(clients=8, redraw="samples", **SIZES),
    "10:90": Rotated(clients=8, clusters=2, partition="10:90", redraw="samples", **SIZES),
    "sources": DigitWorld(("digits", "inverted:digits"), size=8, channels=1, clients=8, redraw="samples", **SIZES),
}
EVERY = pytest.mark.parametrize("world", WORLDS.values(), ids=list(WORLDS))


def with_redraw(world: MixedWorld, redraw: Any) -> MixedWorld:
    found: MixedWorld = replace(world, redraw=redraw)  # type: ignore[type-var]
    return found


@EVERY
def test_a_mixture_stays_and_its_samples_are_new(world: MixedWorld) -> None:
    assert not world.held and world.turns == "client"
    for client in world.names:
        visits = [world.visit(0, client, cycle) for cycle in range(4)]
        assert len({str(visit.mixture) for visit in visits}) == 1
        assert {len(visit.train) for visit in visits} == {len(visits[0].train)}
        assert len({visit.train.x.tobytes() for visit in visits}) == 4
        assert len({visit.test.x.tobytes() for visit in visits}) == 4
        assert world.changed(0, client, 0, 3)


@EVERY
def test_the_first_cycle_is_that_of_data_which_are_held(world: MixedWorld) -> None:
    for redraw in (True, False):
        other = with_redraw(world, redraw)
        one, two = world.visit(0, "c001", 0), other.visit(0, "c001", 0)
        assert np.array_equal(one.train.x, two.train.x) and np.array_equal(one.test.y, two.test.y)
    assert with_redraw(world, False).held


def test_a_shift_redraws_what_is_held_and_leaves_the_rest() -> None:
    samples = Shifted(WORLDS["rotated"], Shift("redraw"))
    everything = Shifted(with_redraw(WORLDS["rotated"], False), Shift("redraw"))
    assert samples.visit(0, "c001", 3).mixture == samples.visit(0, "c001", 0).mixture
    assert everything.visit(0, "c001", 3).mixture != everything.visit(0, "c001", 0).mixture


def test_the_setting_is_in_files_and_changes() -> None:
    assert load("digits-2", ["world.redraw=samples"]).describe()["world"]["redraw"] == "samples"
    assert build({"world": {"name": "rotated", "redraw": "samples"}}).world == Rotated(redraw="samples")
    for wrong in ("sample", 1):
        with pytest.raises(SettingError, match=rf"world\.redraw must be true or false or 'samples', not {wrong!r}"):
            build({"world": {"redraw": wrong}})
        with pytest.raises(ValueError, match=f"redraw must be true, false or samples, not {wrong!r}"):
            Rotated(redraw=wrong)  # type: ignore[arg-type]
