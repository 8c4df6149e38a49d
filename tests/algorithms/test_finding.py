"""Clusters that nobody named: sketches, directions, groups, and a federation that finds its kinds of clients."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hand import layout, vector

from artesian.algorithms import Confluence
from artesian.algorithms.confluence import _divided
from artesian.algorithms.finding import MOST, SIZE, Sketches, directions, grouped, named, shares_near, sketch
from artesian.core import Measured, Member, Receipt, State, Step, Upload


def sketches(rows: np.ndarray, began: np.ndarray | None = None) -> Sketches:
    wide = np.zeros((len(rows), SIZE), np.float32)
    wide[:, : rows.shape[1]] = rows
    times = np.zeros(len(rows)) if began is None else began
    return Sketches(tuple(f"c{i}" for i in range(len(rows))), times, times, np.ones(len(rows)), wide)


def noise(count: int, size: float = 1.0, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, size / np.sqrt(SIZE), (count, SIZE))


def test_a_sketch_keeps_angles() -> None:
    rng = np.random.default_rng(0)
    one, two = rng.normal(size=(2, 5000)).astype(np.float32)
    two = (0.6 * one + 0.8 * two).astype(np.float32)
    a, b = (sketch(layout(5000), v).astype(float) for v in (one, two))
    cosine = float(one @ two / np.linalg.norm(one) / np.linalg.norm(two))
    assert a @ b / np.linalg.norm(a) / np.linalg.norm(b) == pytest.approx(cosine, abs=0.06)
    assert np.linalg.norm(a) == pytest.approx(float(np.linalg.norm(one)), rel=0.1)


def test_a_short_model_is_its_own_sketch_but_for_signs() -> None:
    found = sketch(layout(3), vector(1, -2, 3))
    assert np.abs(found[:3]).tolist() == [1, 2, 3]
    assert not found[3:].any()


def sent(client: str, base: int, samples: int = 5) -> Measured:
    return Measured(Upload(client, 1, samples), Receipt(1, base, "train", ("blend",)))


def test_sketches_are_the_newest_of_clients_who_are_here() -> None:
    known, everybody = Sketches(), [f"c{i}" for i in range(MOST + 5)]
    for i, client in enumerate(everybody):
        known = known.then(sent(client, i), i + 1, np.full(SIZE, i, np.float32), everybody)
    assert known.clients == tuple(everybody[5:])
    again = known.then(sent("c9", 900, samples=7), 901, np.zeros(SIZE, np.float32), ["c9", "c7"])
    assert (again.clients, again.began.tolist(), again.folded.tolist()) == (("c7", "c9"), [7, 900], [8, 901])
    assert again.samples.tolist() == [5, 7]
    assert Sketches.of(again.tree).rows.tolist() == again.rows.tolist()


def test_a_divided_cluster_counts_as_its_heirs() -> None:
    known = replace(Sketches(), heirs={"k0": ["k1", "k2"], "k2": ["k3", "k4"]})
    assert known.inherited({"k0": 0.8, "k3": 0.2}, ["k1", "k3", "k4"]) == pytest.approx(
        {"k1": 0.4, "k3": 0.4, "k4": 0.2}
    )
    assert known.inherited({"k9": 1.0}, ["k1", "k3"]) == {"k1": 0.5, "k3": 0.5}  # of nobody known


def test_four_kinds_span_three_directions_and_are_told_apart() -> None:
    corners = np.eye(4, SIZE)
    kinds = np.arange(40) % 4
    seen = directions(sketches(corners[kinds] + noise(40, 0.5)), clear=2.0)
    assert seen.count == 3
    assert seen.clearness > 5
    labels = grouped(seen.places, 4)
    assert len({(kind, label) for kind, label in zip(kinds.tolist(), labels.tolist(), strict=True)}) == 4


def test_clients_who_differ_each_in_its_own_way_are_of_one_kind() -> None:
    assert directions(sketches(noise(60)), clear=2.0).count == 0


def test_going_further_the_common_way_is_no_kind() -> None:
    further = np.where(np.arange(60) % 2, 1.0, 0.4)[:, None] * np.eye(1, SIZE)
    assert directions(sketches(further + noise(60, 0.7)), clear=2.0).count == 0


def test_being_late_is_no_kind() -> None:
    began = np.where(np.arange(60) % 3 == 0, 0.0, 50.0)
    ways = np.where(began[:, None] > 0, np.eye(2, SIZE)[0], np.eye(2, SIZE)[1])
    assert directions(sketches(ways + noise(60)), clear=2.0).count == 1  # the same without times
    assert directions(sketches(ways + noise(60), began), clear=2.0).count == 0


def test_having_more_samples_is_no_kind() -> None:
    samples = np.where(np.arange(60) % 2, 100.0, 10.0)
    ways = np.where(samples[:, None] > 50, np.eye(2, SIZE)[0], np.eye(2, SIZE)[1])
    assert directions(replace(sketches(ways + noise(60)), samples=samples), clear=2.0).count == 0


def test_a_group_that_is_alone_goes_on_under_its_parents_name() -> None:
    labels = np.array([0, 0, 1, 1, 1, 2])
    shares = np.array([[0, 1], [0, 1], [1, 0], [1, 0], [1, 0], [0.6, 0.4]])
    assert named(labels, shares, ["k0", "k1"], ["k2", "k3", "k4"]) == [("k1", "k1"), ("k2", "k0"), ("k3", "k0")]


def test_a_mixture_is_how_far_a_position_lies_towards_each_middle() -> None:
    known = sketches(np.array([[1.0, 0.0], [1.0, 0.0], [-1.0, 0.0]]))
    shares = np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    position = np.zeros(SIZE)
    position[0] = 2.0
    assert shares_near(position, known, shares).tolist() == [1, 0]
    position[0] = -0.1
    assert shares_near(position, known, shares).tolist() == [0, 1]
    assert shares_near(np.zeros(SIZE), known, shares).tolist() == [0.5, 0.5]  # nothing is known


def test_nobody_known_leaves_even_shares() -> None:
    assert shares_near(np.ones(SIZE), Sketches(), np.zeros((0, 2))).tolist() == [0.5, 0.5]
    state = federation(Confluence(), targets_of(np.arange(24) % 2), rounds=8)
    assert len(state.clusters) == 2
    alone = replace(state, memory={**state.memory, "sketches": Sketches().tree})
    step = Confluence().fold(alone, [uploaded(alone, "c0", np.ones(60, np.float32))])
    assert list(step.mixtures["c0"].values()) == [0.5, 0.5]


# a federation


def uploaded(state: State, client: str, new: np.ndarray) -> Measured:
    """An upload of a client whose task is what it would be given now."""
    task = Confluence().task(state, client)
    receipt = Receipt(1, state.version, "train", ("blend",), memo=task.memo)
    return Measured(Upload(client, 1, 5, {"blend": new}), receipt, given=task.models)


def applied(state: State, algorithm: Confluence, m: Measured) -> tuple[State, dict[str, float]]:
    """The state after a fold, as the engine would make it."""
    step = algorithm.fold(state, [m])
    clusters = {**state.clusters, **{child: state.clusters[parent] for child, parent in step.born.items()}}
    clusters = {k: replace(c, params=step.clusters.get(k, c.params)) for k, c in clusters.items() if k not in step.gone}
    members = {c: replace(one, mixture=step.mixtures.get(c, one.mixture)) for c, one in state.members.items()}
    new = replace(
        state, clusters=clusters, members=members, version=state.version + 1, named=state.named + len(step.born),
        memory={**state.memory, **step.memory},
    )  # fmt: skip
    return new, dict(step.notes)


def federation(algorithm: Confluence, targets: np.ndarray, rounds: int) -> State:
    """Clients who go most of the way to a target of their own, in turn, again and again."""
    rng = np.random.default_rng(0)
    wide = layout(targets.shape[1])
    start = [np.zeros(targets.shape[1], np.float32)]
    state = algorithm.init(wide, start, seed=0)
    members = {f"c{i}": Member(5) for i in range(len(targets))}
    state = replace(state, members=members, present=len(members), named=1)
    for _ in range(rounds):
        for i, target in enumerate(targets):
            (base,) = algorithm.task(state, f"c{i}").models.values()
            near = base + 0.7 * (target - base) + rng.normal(0, 0.02, len(target))
            state, _ = applied(state, algorithm, uploaded(state, f"c{i}", near.astype(np.float32)))
    return state


def targets_of(kinds: np.ndarray, size: int = 60) -> np.ndarray:
    """A target for every client, near that of its kind."""
    rng = np.random.default_rng(1)
    return rng.normal(size=(kinds.max() + 1, size))[kinds] + rng.normal(0, 0.1, (len(kinds), size))


def test_a_federation_finds_its_kinds_without_proxies_and_without_their_number() -> None:
    kinds = np.arange(24) % 3
    targets = targets_of(kinds)
    state = federation(Confluence(), targets, rounds=12)
    assert len(state.clusters) == 3
    homes = [
        max(state.members[f"c{i}"].mixture or {}, key=(state.members[f"c{i}"].mixture or {}).get) for i in range(24)
    ]  # type: ignore[arg-type]
    assert len({(int(kind), home) for kind, home in zip(kinds, homes, strict=True)}) == 3
    for i in range(24):
        (drawn,) = Confluence().task(state, f"c{i}").models.values()
        assert np.linalg.norm(drawn - targets[i]) < 0.5 * np.linalg.norm(targets[i])


def test_clients_of_one_kind_stay_one_model() -> None:
    state = federation(Confluence(), targets_of(np.zeros(24, int)), rounds=12)
    assert list(state.clusters) == ["k0"]


def test_nothing_is_looked_for_among_few_clients() -> None:
    state = federation(Confluence(), targets_of(np.arange(18) % 3), rounds=6)
    assert list(state.clusters) == ["k0"]
    assert Sketches.of(state.memory["sketches"]).tested == 0


def test_a_kind_of_two_clients_is_too_small() -> None:
    state = federation(Confluence(), targets_of(np.zeros(6, int)), rounds=1)
    clients = [f"c{i}" for i in range(6)]
    step = Step({"k0": state.clusters["k0"].params}, memory={"sketches": state.memory["sketches"]})
    assert _divided(state, step, clients, np.array([0, 0, 0, 0, 1, 1])) == step
    divided = _divided(state, step, clients, np.array([0, 0, 0, 1, 1, 1]))
    assert (divided.born, divided.gone) == ({"k1": "k0", "k2": "k0"}, ("k0",))
    assert divided.mixtures["c0"] == {"k1": 1.0}
    assert divided.memory["sketches"]["heirs"] == {"k0": ["k1", "k2"]}


def test_one_test_is_not_enough() -> None:
    kinds = np.arange(24) % 3
    state = federation(Confluence(), targets_of(kinds), rounds=4)
    assert Sketches.of(state.memory["sketches"]).found == 2
    assert len(state.clusters) == 1
    assert len(federation(Confluence(), targets_of(kinds), rounds=6).clusters) == 3


def test_the_similarity_of_clients_can_be_exported() -> None:
    state = federation(Confluence(), targets_of(np.arange(20) % 2), rounds=1)
    found = Confluence().matrices(state)["similarity"]
    assert found.rows == tuple(f"c{i}" for i in range(20))
    assert found.values[0, 2] > 0.9 > found.values[0, 1]


@pytest.mark.parametrize(
    ("clusters", "start", "found"), [(None, 1, True), (None, 2, False), ("found", 2, True), ("start", 1, False)]
)
def test_clusters_are_found_where_the_start_is_one_model_or_it_is_asked_for(clusters, start, found) -> None:
    algorithm = Confluence(clusters=clusters)
    state = algorithm.init(layout(2), [vector(i, 0) for i in range(start)], seed=0)
    assert ("sketches" in state.memory) == found
    assert len(state.clusters) == (1 if found else start)
    assert algorithm.needs_proxies(start) == (not found and start > 1)


def test_found_clusters_leave_the_estimator_alone() -> None:
    with pytest.raises(ValueError, match="estimator must be left out where clusters are found"):
        Confluence(clusters="found", estimator="paper")
