"""Places: which client is in which group is drawn by the seed, and nothing else about a world is."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from artesian.config.experiments import build, load, simulate
from artesian.errors import ResumeMismatch
from artesian.simulator.fleet import Fleet
from artesian.simulator.worlds import DigitWorld, FewClasses, LabelGroups, Linear, Numbered, Rotated, Visit

SIZES = {"samples_min": 20, "samples_max": 40, "proxy_images": 20, "test_images": 20, "client_test_samples": 10}
WORLDS: dict[str, Numbered] = {
    "main": Rotated(clients=12, **SIZES),
    "10:90": Rotated(clients=12, clusters=2, partition="10:90", **SIZES),
    "line": Rotated(clients=12, clusters=2, partition="linear", **SIZES),
    "groups": LabelGroups(clients=20),
    "few": FewClasses("digits", clients=20),
    "regressions": Linear(clients=12),
    "sources": DigitWorld(("digits", "inverted:digits"), size=8, channels=1, clients=12, **SIZES),
}
EVERY = pytest.mark.parametrize("world", WORLDS.values(), ids=list(WORLDS))


def bits(visit: Visit) -> bytes:
    parts = (visit.train.x, visit.train.y, visit.test.x, visit.test.y)
    return b"".join(part.tobytes() for part in parts) + str(visit.mixture).encode()


def groups(world: Numbered, seed: int) -> list[int]:
    """The largest cluster of every client, in the order of their numbers."""
    return [int(np.argmax(list(world.visit(seed, client, 0).mixture.values()))) for client in world.names]


@EVERY
def test_clients_have_the_same_data_in_other_places(world: Numbered) -> None:
    ordered = replace(world, shuffled=False)  # type: ignore[type-var]
    names = list(world.names)
    assert names == list(ordered.names) and [ordered.place(0, client) for client in names] == names
    assert sorted(world.place(0, client) for client in names) == names
    for client in names:
        assert bits(world.visit(0, client, 0)) == bits(ordered.visit(0, world.place(0, client), 0))
    for sets in ("proxies", "tests"):
        one, two = (getattr(each, sets)(0) for each in (world, ordered))
        assert all(np.array_equal(one[k].x, two[k].x) and np.array_equal(one[k].y, two[k].y) for k in one)


@EVERY
def test_every_seed_puts_clients_into_other_groups_of_the_same_sizes(world: Numbered) -> None:
    ordered = replace(world, shuffled=False)  # type: ignore[type-var]
    one, two = groups(world, 0), groups(world, 1)
    assert one != two and one != groups(ordered, 0)
    assert sorted(one) == sorted(groups(ordered, 0)) and Counter(one).keys() == Counter(two).keys()


def test_clients_that_take_equally_long_do_not_come_group_by_group() -> None:
    world = LabelGroups(clients=20)
    fleet = Fleet(schedule="latency")
    run = simulate(world=world, fleet=fleet, algorithm="fedasync", uploads=20)
    own = dict(zip(world.names, groups(world, 0), strict=True))
    came = [own[client] for client in run.metrics["client"].tolist()]
    changes = sum(a != b for a, b in pairwise(came))
    assert sorted(Counter(came).values()) == [4, 4, 6, 6] and changes > 8  # in order they were 3


def test_the_setting_is_in_files_and_changes() -> None:
    assert build({"world": {"clients": 8}}).describe()["world"]["shuffled"] is True
    assert load("digits-2", ["world.shuffled=false"]).world == replace(load("digits-2").world, shuffled=False)


# runs of before


SHORT = ["world.clients=8", "uploads=40", "snapshot_every=20", "algorithm.name=fedasync"]


def half(folder: Path, *changes: str) -> None:
    def stop(progress: Any) -> None:
        if progress.uploads == 25:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        simulate(load("digits-2", [*SHORT, *changes]), out=folder, progress=stop)


@pytest.mark.heavy
def test_a_run_recorded_before_places_were_drawn_goes_on_in_order(tmp_path: Path) -> None:
    half(tmp_path / "run", "world.shuffled=false")
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    del config["experiment"]["world"]["shuffled"]
    (tmp_path / "run" / "config.json").write_text(json.dumps(config))
    resumed = simulate(load("digits-2", SHORT), out=tmp_path / "run", resume=True)
    whole = simulate(load("digits-2", [*SHORT, "world.shuffled=false"]))
    assert resumed.metrics["after"].tolist() == whole.metrics["after"].tolist()
    assert whole.metrics["after"].tolist() != simulate(load("digits-2", SHORT)).metrics["after"].tolist()


def test_a_run_recorded_since_must_be_given_the_same_setting(tmp_path: Path) -> None:
    half(tmp_path / "run", "world.shuffled=false")
    with pytest.raises(ResumeMismatch, match=r"begun with experiment\.world\.shuffled = False, and now it is True"):
        simulate(load("digits-2", SHORT), out=tmp_path / "run", resume=True)
