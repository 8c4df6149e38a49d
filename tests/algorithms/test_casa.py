"""Hand-worked numbers for every branch of CASA and CASA+."""

from dataclasses import replace
from math import e

import numpy as np
import pytest
from hand import layout, vector

from artesian.algorithms import CASA, CASAPlus
from artesian.algorithms.peers import Peers
from artesian.core import Cluster, Measured, Member, Receipt, Snapshot, State, Upload
from artesian.engine.coordinator import Coordinator
from artesian.errors import SettingError
from artesian.params import Layout, seal
from artesian.storage.codec import decode, encode


def receipt(updates, base: int = 0, **memo) -> Receipt:
    counts = updates if isinstance(updates, dict) else {"k0": updates}
    return Receipt(1, base, "train", tuple(counts), memo={"updates": counts, **memo})


def crowd(count: int, clusters=None, began=0, width: int = 2, **more) -> State:
    """c0, c1, ... in one cluster of zeros, each with an open task that began at the same version."""
    clusters = clusters or {"k0": Cluster(vector(*[0] * width))}
    members = {f"c{i}": Member(1, receipt=receipt(began)) for i in range(count)}
    known = {"version": 0, "memory": Peers.nothing(), "named": len(clusters), **more}
    return State(layout(width), clusters, members, count, **known)


def sent(client: str, params, updates=0, base: int = 0, given=None, **memo) -> Measured:
    models = {} if given is None else {"k0": given}
    return Measured(Upload(client, 1, 1, {"k0": params}), receipt(updates, base, **memo), given=models)


def after(state: State, step, client: str, began: int = 0) -> State:
    """The state a step leads to, and the client at its next task."""
    clusters = {**state.clusters, **{child: state.clusters[parent] for child, parent in step.born.items()}}
    clusters = {
        k: Cluster(step.clusters.get(k, c.params), updates=c.updates + (k in step.clusters))
        for k, c in clusters.items()
        if k not in step.gone
    }
    members = {c: replace(m, mixture=step.mixtures.get(c, m.mixture)) for c, m in state.members.items()}
    members[client] = replace(members[client], receipt=receipt(began))
    moved = {"version": state.version + 1, "rounds": state.rounds + 1, "named": state.named + len(step.born)}
    return replace(state, clusters=clusters, members=members, memory={**state.memory, **step.memory}, **moved)


def known(similarity, **more) -> dict:
    """A memory of c0, c1, ... whose similarities are these."""
    count = len(similarity)
    empty = {**Peers.nothing(), "clients": [f"c{i}" for i in range(count)], "rates": np.zeros((count, 2))}
    table = np.array(similarity, np.float32)
    return {**empty, "similarity": table, "entries": np.zeros((count, count), np.int32), **more}


def blocks(size: int, inside: float, across: float, parts: int = 2) -> np.ndarray:
    group = np.repeat(np.arange(parts), size)
    found = np.where(group[:, None] == group[None, :], inside, across)
    np.fill_diagonal(found, 1)
    return found


def buffers(memory) -> dict:
    """Whose buffer holds which model of whom."""
    peers = Peers.of(memory, memory["clients"])
    return {c: {k: v.tolist() for k, v in peers.buffer(c).items()} for c in peers.clients if peers.buffer(c)}


# the rates


@pytest.mark.parametrize(
    ("size", "rounds", "omega", "top", "patience", "rates"),
    [
        (100, 1, 0.999970, 0.299101, 100.003, {50: 0.299101, 150: 0.024422}),
        (25, 10_000, 0.743643, 0.309377, 31.4089, {20: 0.309377, 95: 0.031741}),
    ],
)
def test_the_published_rates(size, rounds, omega, top, patience, rates) -> None:
    casa = CASA()
    assert casa.omega(rounds) == pytest.approx(omega, abs=1e-6)
    assert casa.cluster_rate(rounds, size) == pytest.approx(top, abs=1e-6)
    assert casa.patience_of(rounds, size) == pytest.approx(patience, rel=1e-5)
    for late, rate in rates.items():
        assert casa.rates(rounds, size, late) == (pytest.approx(top, abs=1e-6), pytest.approx(rate, abs=1e-6))


def test_a_rate_never_passes_one() -> None:
    assert CASA().cluster_rate(0, 1) == 1  # 2 / log2(4)
    assert CASA(log_base=e).cluster_rate(0, 1) == 1  # 1.44 is cut
    assert CASA(decay=False).rates(0, 1, 10**6) == (0.3, 0.3)  # CASA-D


def test_an_upload_moves_its_cluster_by_the_rate() -> None:
    """13 members: a = 2 / log2(16) = 1/2. 16 versions late, beyond r_c = 13: a / 4."""
    state = crowd(13, {"k0": Cluster(vector(0, 8), updates=16)})
    fresh = CASA().fold(state, [sent("c0", vector(4, 8), updates=16)])
    assert fresh.clusters["k0"].tolist() == [2, 8]
    assert fresh.mixtures == {"c0": {"k0": 1.0}}
    assert (fresh.notes["staleness"], fresh.notes["rate"]) == (0, 0.5)
    on_time = CASA().fold(state, [sent("c0", vector(4, 8), updates=3)])
    assert on_time.clusters["k0"].tolist() == [2, 8]  # 13 is not beyond 13
    late = CASA().fold(state, [sent("c0", vector(4, 8), updates=0)])
    assert (late.clusters["k0"].tolist(), late.notes["staleness"]) == ([0.5, 8], 16)
    flat = CASA(decay=False, alpha=0.25).fold(state, [sent("c0", vector(4, 8), updates=0)])
    assert flat.clusters["k0"].tolist() == [1, 8]


def test_lateness_may_count_all_folds() -> None:
    state = crowd(13, {"k0": Cluster(vector(0, 8), updates=16)}, version=116)
    step = CASA(staleness_unit="global").fold(state, [sent("c0", vector(4, 8), updates=16, base=100)])
    assert (step.clusters["k0"].tolist(), step.notes["staleness"]) == ([0.5, 8], 16)


def test_one_upload_at_a_time() -> None:
    with pytest.raises(SettingError, match="uploads at once"):
        CASA().fold(crowd(3), [sent("c0", vector(1, 0))] * 2)


# the buffers


def test_an_upload_goes_into_the_buffers_of_peers_and_is_compared_when_they_upload() -> None:
    first = crowd(3)
    second = after(first, CASA().fold(first, [sent("c0", vector(1, 0))]), "c0")
    assert buffers(second.memory) == {"c1": {"c0": [1, 0]}, "c2": {"c0": [1, 0]}}
    assert len(second.memory["models"]) == 1  # one tensor, two entries
    third = after(second, CASA().fold(second, [sent("c1", vector(3, 4))]), "c1")
    assert third.memory["similarity"][0, 1] == third.memory["similarity"][1, 0] == pytest.approx(0.6)
    assert np.isnan(third.memory["similarity"][2, :2]).all()
    assert buffers(third.memory) == {"c0": {"c1": [3, 4]}, "c2": {"c0": [1, 0], "c1": [3, 4]}}


def test_a_large_gap_and_a_recurring_peer_are_not_taken() -> None:
    """r_c = 3: who began 3 versions apart is too far; c0's second model finds its first in every buffer."""
    state = crowd(3, {"k0": Cluster(vector(0, 0), updates=5)}, began=2)
    state.members["c2"] = Member(1, receipt=receipt(3))
    step = CASA().fold(state, [sent("c0", vector(1, 0), updates=5)])
    assert buffers(step.memory) == {"c2": {"c0": [1, 0]}}  # 5 - 3 < 3, 5 - 2 = 3
    again = replace(after(state, step, "c0", began=5), rounds=0)
    step = CASA().fold(again, [sent("c0", vector(0, 1), updates=5)])
    assert buffers(step.memory) == {"c2": {"c0": [1, 0]}}
    folds = CASA(staleness_unit="global").fold(state, [sent("c0", vector(1, 0), updates=5, base=0)])
    assert list(buffers(folds.memory)) == ["c1", "c2"]  # all bases are 0


def test_a_similarity_that_is_undefined_stays_unknown_and_is_noted() -> None:
    first = crowd(3)
    second = after(first, CASA().fold(first, [sent("c0", vector(0, 0))]), "c0")
    step = CASA().fold(second, [sent("c1", vector(3, 4))])
    assert step.notes["undefined"] == 1
    assert np.isnan(step.memory["similarity"][0, 1])
    assert "c1" not in buffers(step.memory)


def test_delta_compares_changes() -> None:
    casa = CASA(similarity="delta")
    assert (casa.needs_given, CASA().needs_given) == (True, False)
    first, given = crowd(3), vector(1, 1)
    second = after(first, casa.fold(first, [sent("c0", vector(2, 1), given=given)]), "c0")
    step = casa.fold(second, [sent("c1", vector(0, 1), given=given)])
    assert step.memory["similarity"][0, 1] == -1
    assert buffers(step.memory)["c2"] == {"c0": [1, 0], "c1": [-1, 0]}


def test_the_budget_is_the_number_of_clients_unless_set() -> None:
    state = crowd(3)
    step = CASA(buffer_budget=0).fold(state, [sent("c0", vector(1, 0))])
    assert (step.memory["models"], step.memory["entries"].any(), step.notes["stored"]) == ({}, False, 0)
    for client in ("c0", "c1", "c0", "c1", "c0"):
        state = after(state, CASA().fold(state, [sent(client, vector(1, 2))]), client)
        assert len(state.memory["models"]) <= 3


# the split


def test_a_cluster_splits_at_its_eigengap() -> None:
    """Two blocks of 10, 0.9 and 0.5: gap 0.283688 from R = 2; 0.283688^0.15 = 0.828 > a_c = 2 / log2(23) = 0.442."""
    state = crowd(20, {"k0": Cluster(vector(4, 0), updates=7)}, memory=known(blocks(10, 0.9, 0.5)))
    step = CASA().fold(state, [sent("c12", vector(0, 2), updates=7)])
    assert step.notes["gap"] == pytest.approx(0.283688, abs=1e-5)
    assert (step.born, step.gone, step.notes["parts"]) == ({"k1": "k0", "k2": "k0"}, ("k0",), 2)
    assert step.mixtures == {f"c{i}": {"k1" if i < 10 else "k2": 1.0} for i in range(20)}
    assert list(step.clusters) == ["k2"]  # a = 2 / log2(13) of the child's size
    np.testing.assert_allclose(step.clusters["k2"], [4 - 4 * 0.540476, 2 * 0.540476], rtol=1e-5)
    assert set(buffers(step.memory)) == {f"c{i}" for i in range(10, 20) if i != 12}  # nothing across children
    np.testing.assert_array_equal(step.memory["similarity"], np.where(np.eye(20) == 1, 1, np.nan))  # A is forgotten


def test_a_split_forgets_the_pairs_of_its_members_and_no_others() -> None:
    """k2 has the odd clients and splits: their pairs become unknown, those of k1 and across stay."""
    state = _every_other_in_k2()
    odd = np.arange(12) % 2 == 1
    inside = odd[:, None] & odd[None, :] & ~np.eye(12, dtype=bool)
    table = state.memory["similarity"]
    forgetting = CASA().fold(state, [sent("c3", vector(1, 0), {"k2": 9})])
    np.testing.assert_array_equal(forgetting.memory["similarity"], np.where(inside, np.nan, table))
    keeping = CASA(forget_at_split=False).fold(state, [sent("c3", vector(1, 0), {"k2": 9})])
    assert (keeping.born, keeping.mixtures) == (forgetting.born, forgetting.mixtures)
    np.testing.assert_array_equal(keeping.memory["similarity"], table)


def test_a_child_is_not_split_by_similarities_from_before_its_birth() -> None:
    """Two groups of six, in each of which fast and slow clients differ: after the first split nothing is known."""
    group, fast = np.arange(12) // 6, np.arange(12) % 2
    alike, as_fast = group[:, None] == group[None, :], fast[:, None] == fast[None, :]
    table = np.where(alike, np.where(as_fast, 0.9, 0.6), 0.1)
    np.fill_diagonal(table, 1)
    for forget, clusters in ((True, ["k1", "k2"]), (False, ["k2", "k3", "k4"])):
        casa, state = CASA(forget_at_split=forget), crowd(12, memory=known(table))
        for client in ("c0", "c1"):
            state = after(state, casa.fold(state, [sent(client, vector(1, 0))]), client)
        assert list(state.clusters) == clusters


def test_three_blocks_are_three_clusters_at_once() -> None:
    state = crowd(15, memory=known(blocks(5, 0.9, 0.3, parts=3)))
    step = CASA().fold(state, [sent("c14", vector(1, 0))])
    assert (step.notes["parts"], step.mixtures["c0"], step.mixtures["c14"]) == (3, {"k1": 1.0}, {"k3": 1.0})


def test_positions_in_a_cluster_are_mapped_back_to_clients() -> None:
    step = CASA().fold(_every_other_in_k2(), [sent("c3", vector(1, 0), {"k2": 9})])
    assert (step.born, step.gone) == ({"k3": "k2", "k4": "k2"}, ("k2",))
    groups = {c: next(iter(mixture)) for c, mixture in step.mixtures.items()}
    assert groups == {"c1": "k3", "c5": "k3", "c9": "k3", "c3": "k4", "c7": "k4", "c11": "k4"}
    assert set(buffers(step.memory)) == {"c7", "c11"}


def _every_other_in_k2() -> State:
    """Only every other client is in k2: c1, c3, ... c11; of these, c1, c5 and c9 are alike."""
    table = np.full((12, 12), 0.9)
    odd = np.arange(1, 12, 2)
    table[np.ix_(odd, odd)] = np.where((odd[:, None] - odd[None, :]) % 4 == 0, 0.9, 0.1)
    np.fill_diagonal(table, 1)
    state = crowd(12, dict(TWO), memory=known(table), named=3)
    for i in range(12):
        home = "k2" if i % 2 else "k1"
        state.members[f"c{i}"] = Member(1, {home: 1.0}, receipt({home: TWO[home].updates}))
    return state


def test_entries_across_children_are_dropped_and_others_stay() -> None:
    entries = np.zeros((6, 6), np.int32)
    entries[1, 0], entries[4, 0] = 1, 1
    stored = {"models": {"1": vector(9, 9)}, "born": np.array([0, 0]), "norms": np.ones(2), "held": np.array([0, 2])}
    state = crowd(6, memory=known(blocks(3, 0.9, 0.1), entries=entries, **stored))
    step = CASA().fold(state, [sent("c5", vector(1, 0))])
    assert step.notes["parts"] == 2
    assert buffers(step.memory) == {"c1": {"c0": [9, 9]}, "c3": {"c5": [1, 0]}, "c4": {"c5": [1, 0]}}


@pytest.mark.parametrize(
    ("casa", "table", "why"),
    [
        (CASA(split=False), blocks(3, 0.9, 0.1), "CASA-C never splits"),
        (CASA(gamma=50), blocks(3, 0.9, 0.1), "the guard: gap^50 is below a_c"),
        (CASA(margin=0.36), blocks(3, 0.9, 0.1), "the margin: a_c + 0.36 is above gap^gamma"),
        (CASA(min_cluster_size=4), blocks(3, 0.9, 0.1), "parts of 3 are too small"),
        (CASA(test_every=2), blocks(3, 0.9, 0.1), "not this time: 7 updates"),
        (CASA(), blocks(1, 1, 0.1), "two members"),
        (CASA(first_gap=9), blocks(3, 0.9, 0.1), "no gap is left"),
        (CASA(), np.where(np.eye(6)[::-1] == 1, np.nan, blocks(3, 0.9, 0.1)), "a pair is not known"),
        (CASA(), np.ones((6, 6)), "all alike"),
        (CASA(similarity="delta"), blocks(3, 0.9, 0.5), "R = 1 when searched from 1"),
    ],
    ids=lambda value: value.replace(":", "") if isinstance(value, str) else "",
)
def test_a_cluster_stays_whole(casa, table, why) -> None:
    state = crowd(len(table), {"k0": Cluster(vector(0, 0), updates=7)}, memory=known(table))
    step = casa.fold(state, [sent("c0", vector(1, 0), updates=7, given=vector(0, 0))])
    assert (step.born, step.gone, step.notes["parts"]) == ({}, (), 0), why
    assert step.mixtures == {"c0": {"k0": 1.0}}


def test_delta_takes_opposites_for_strangers_and_splits() -> None:
    table = blocks(3, 0.9, -0.5)
    step = CASA(similarity="delta").fold(crowd(6, memory=known(table)), [sent("c0", vector(1, 0), given=vector(0, 0))])
    assert step.notes["parts"] == 2


def test_the_guard_is_that_of_the_whole_cluster() -> None:
    """Six members, gap 0.0005: 0.0005^0.15 = 0.32 is below a_c = 0.63 at the start, above it once Omega is small."""
    table = blocks(3, 0.9, 0.8982)
    early = CASA().fold(crowd(6, memory=known(table)), [sent("c0", vector(1, 0))])
    late = CASA().fold(crowd(6, memory=known(table), rounds=50_000), [sent("c0", vector(1, 0))])
    assert 0.0003 < early.notes["gap"] < 0.001
    assert (early.notes["parts"], late.notes["parts"]) == (0, 2)


# who belongs where


TWO = {"k1": Cluster(vector(1, 0), updates=4), "k2": Cluster(vector(0, 1), updates=9)}


def pair(**more) -> State:
    """c0 and c1 in k1, c2 in k2, and c3, who is new."""
    state = crowd(4, TWO, named=3, **more)
    for i, cluster in enumerate(("k1", "k1", "k2")):
        held = receipt({cluster: TWO[cluster].updates})
        state.members[f"c{i}"] = Member(i + 1, {cluster: 1.0}, held)
    state.members["c3"] = Member(5, receipt=receipt({"k1": 4, "k2": 9}))
    return state


def test_a_newcomer_is_sent_the_mean_by_samples() -> None:
    state = pair()
    task = CASA().task(state, "c3")
    assert {k: v.tolist() for k, v in task.models.items()} == {"mean": [0.5, 0.5]}  # 1 + 2 against 3 samples
    assert task.memo == {"updates": {"k1": 4, "k2": 9}}
    own = CASA().task(state, "c2")
    assert ({k: v.tolist() for k, v in own.models.items()}, own.memo) == ({"k2": [0, 1]}, {"updates": {"k2": 9}})
    idle = replace(state, members={c: replace(m, samples=0) for c, m in state.members.items()})
    assert CASA().task(idle, "c3").models["mean"].tolist() == [0.5, 0.5]
    away = replace(state, members={c: replace(m, present=c != "c2") for c, m in state.members.items()})
    assert CASA().task(away, "c3").models["mean"].tolist() == [1, 0]  # nobody is left in k2; it stays listed


def test_a_newcomers_buffer_is_filled_from_all_clusters() -> None:
    state = pair()
    step = CASA().fold(state, [sent("c2", vector(0, 3), {"k2": 9})])
    assert buffers(step.memory) == {"c3": {"c2": [0, 3]}}
    state = after(state, step, "c2")
    step = CASA().fold(state, [sent("c0", vector(1, 1), {"k1": 4})])
    assert buffers(step.memory) == {"c1": {"c0": [1, 1]}, "c3": {"c0": [1, 1], "c2": [0, 3]}}


def arrived(buffer, upload, samples=(1, 2, 3)) -> str:
    """Where c3 goes whose buffer holds these models of c0, c1, c2."""
    entries = np.zeros((4, 4), np.int32)
    for number, i in enumerate(buffer, 1):
        entries[3, i] = number
    norms = np.array([0, *(np.linalg.norm(v) for v in buffer.values())])
    stored = {str(n): vector(*v) for n, v in enumerate(buffer.values(), 1)}
    held = np.array([0] + [1] * len(buffer))
    memory = known(np.eye(4), entries=entries, models=stored, norms=norms, held=held, born=np.zeros(len(held), int))
    state = pair(memory=memory)
    for i, count in enumerate(samples):
        state.members[f"c{i}"] = replace(state.members[f"c{i}"], samples=count)
    step = CASA(split=False).fold(state, [sent("c3", vector(*upload), {"k1": 4, "k2": 9})])
    (home,) = step.mixtures["c3"]
    assert list(step.clusters) == [home]
    return home


def test_a_newcomer_goes_where_the_members_in_its_buffer_are_like_it() -> None:
    """rep_1 = (1 (1, 0) + 2 (0, 1)) / 3 is nearer to (1, 2) than rep_2 = (1, -1), whatever the cluster models say."""
    assert arrived({0: (1, 0), 1: (0, 1), 2: (1, -1)}, (1, 2)) == "k1"
    assert arrived({0: (1, 0), 1: (0, 1), 2: (1, 9)}, (0, 1), samples=(9, 1, 1)) == "k2"
    assert arrived({0: (1, 0), 1: (0, 1), 2: (1, 9)}, (1, 1), samples=(0, 0, 0)) == "k1"  # evenly
    assert arrived({2: (-1, 0)}, (1, 0)) == "k2"  # only clusters in the buffer are asked


def test_a_newcomer_without_peers_goes_by_the_models_and_at_last_by_size() -> None:
    assert arrived({}, (0.2, 1)) == "k2"
    assert arrived({2: (0, 0)}, (1, 0.2)) == "k1"  # the buffer says nothing
    assert arrived({}, (0, 0)) == "k1"  # neither do the models: k1 has two members


def test_a_newcomers_lateness_is_that_of_its_cluster() -> None:
    state = pair()
    step = CASA().fold(replace(state, version=99), [sent("c3", vector(0, 2), {"k1": 4, "k2": 2})])
    assert (step.mixtures["c3"], step.notes["staleness"]) == ({"k2": 1.0}, 7)
    born_since = CASA().fold(replace(state, version=99), [sent("c3", vector(0, 2), {"k1": 4, "k8": 2}, base=90)])
    assert born_since.notes["staleness"] == 9  # all folds: never too few
    assert not buffers(born_since.memory)


def test_an_upload_is_folded_into_the_cluster_its_client_is_in_now() -> None:
    """c2's task names k0, which was split since; a child goes on counting where its parent was."""
    step = CASA().fold(pair(), [sent("c2", vector(0, 3), {"k0": 8})])
    assert (list(step.clusters), step.notes["staleness"], step.mixtures) == (["k2"], 1, {"c2": {"k2": 1.0}})


def test_who_left_is_forgotten_and_comes_back_as_a_member_or_a_newcomer() -> None:
    state = pair()
    state = after(state, CASA().fold(state, [sent("c0", vector(1, 1), {"k1": 4})]), "c0")
    assert buffers(state.memory) == {"c1": {"c0": [1, 1]}, "c3": {"c0": [1, 1]}}
    state.members["c1"] = replace(state.members["c1"], present=False, receipt=None)
    step = CASA().fold(state, [sent("c2", vector(0, 2), {"k2": 9})])
    assert step.memory["clients"] == ["c0", "c2", "c3"]
    assert step.memory["similarity"].shape == step.memory["entries"].shape == (3, 3)
    state = after(state, step, "c2")
    state.members["c1"] = replace(state.members["c1"], present=True)
    assert list(CASA().task(state, "c1").models) == ["k1"]
    state.members["c1"] = replace(state.members["c1"], mixture={"k0": 1.0})  # split while it was away
    assert list(CASA().task(state, "c1").models) == ["mean"]
    state.members["c1"] = replace(state.members["c1"], receipt=receipt({"k1": 4, "k2": 9}))
    back = CASA().fold(state, [sent("c1", vector(0, 2), {"k1": 4, "k2": 9})])
    assert back.memory["clients"] == ["c0", "c2", "c3", "c1"]
    assert len(back.memory["models"]) <= 4


def test_a_client_whose_task_expired_blocks_no_split() -> None:
    """c6 never answered: with an open task its pairs are unknown; without, the other six are split."""
    table = np.full((7, 7), np.nan)
    table[:6, :6] = blocks(3, 0.9, 0.1)
    state = crowd(7, memory=known(table))
    assert CASA().fold(state, [sent("c0", vector(1, 0))]).notes["parts"] == 0
    state.members["c6"] = replace(state.members["c6"], receipt=None)
    assert CASA().fold(state, [sent("c0", vector(1, 0))]).notes["parts"] == 2
    assert CASA(patience=60).pace().patience == 60


def test_an_emptied_cluster_stays_listed_and_frozen() -> None:
    """All of k2 leave; the rest go on, a newcomer may still land there."""
    state = pair()
    state.members["c2"] = replace(state.members["c2"], present=False, receipt=None)
    step = CASA().fold(state, [sent("c0", vector(1, 1), {"k1": 4})])
    assert (step.gone, list(step.clusters)) == ((), ["k1"])
    landed = CASA().fold(state, [sent("c3", vector(0, 1), {"k1": 4, "k2": 9})])
    assert (list(landed.clusters), landed.clusters["k2"].tolist()) == (["k2"], [0, 1])


# a whole federation


def federation(casa, clients: int, width: int = 4) -> Coordinator:
    coordinator = Coordinator.start(casa, layout(width), [vector(*range(1, width + 1))], 3)
    for i in range(clients):
        coordinator.join(f"c{i:03}", 1 + i % 3)
    return coordinator


def answer(coordinator: Coordinator, client: str, change) -> Upload:
    (reply,) = coordinator.recorded(client)
    ((name, given),) = reply.task.models.items()
    upload = Upload(client, reply.task.number, 2, {name: seal((given + change).astype(np.float32))})
    coordinator.receive(upload)
    return upload


def restored(coordinator: Coordinator) -> Coordinator:
    data = encode("snapshot", coordinator.snapshot())
    return Coordinator.restore(coordinator.algorithm, decode("snapshot", data, Snapshot))


def test_clients_that_pull_apart_end_in_two_clusters_whose_counters_go_on() -> None:
    coordinator = federation(CASA(similarity="delta"), 6)
    while len(coordinator.state.clusters) == 1 and coordinator.state.version < 60:
        turn = coordinator.state.version
        side = 1 if turn % 6 < 3 else -1
        answer(coordinator, f"c{turn % 6:03}", side * np.array([1, 0, 0, 0.1 * (turn % 2)]))
    state = coordinator.state
    assert list(state.clusters) == ["k1", "k2"]
    assert sorted(c.updates for c in state.clusters.values()) == [state.version - 1, state.version]
    homes = [next(iter(state.members[f"c{i:03}"].mixture)) for i in range(6)]
    assert homes == ["k1"] * 3 + ["k2"] * 3
    coordinator.join("late", 4)
    (reply,) = coordinator.recorded("late")
    assert list(reply.task.models) == ["mean"]
    coordinator.receive(Upload("late", 1, 4, {"mean": seal(reply.task.models["mean"] - np.float32([1, 0, 0, 0]))}))
    assert coordinator.state.members["late"].mixture == {"k2": 1.0}
    assert restored(coordinator).digest() == coordinator.digest()


@pytest.mark.heavy
@pytest.mark.parametrize("unit", ["models", "entries"])
def test_a_thousand_clients_never_hold_more_models_than_the_budget(unit) -> None:
    """Checked after every upload, before and after a restart from bytes, which stores no tensor twice."""
    budget, rng = 20, np.random.default_rng(0)
    coordinator = federation(CASA(buffer_budget=budget, budget_unit=unit), 1000)

    def go(turns: range) -> None:
        for turn in turns:
            answer(coordinator, f"c{turn * 7 % 1000:03}", rng.normal(size=4))
            memory = coordinator.state.memory
            used = set(np.unique(memory["entries"]).tolist()) - {0}
            assert {int(number) for number in memory["models"]} == used
            assert len(used) <= budget
            assert unit == "models" or np.count_nonzero(memory["entries"]) <= budget
            assert len(memory["held"]) <= budget + 2

    go(range(30))
    again = restored(coordinator)
    assert again.digest() == coordinator.digest()
    assert list(again.state.memory["models"]) == list(coordinator.state.memory["models"])
    tensors = {id(model) for model in again.state.memory["models"].values()}
    assert len(tensors) == len(again.state.memory["models"])
    assert np.count_nonzero(again.state.memory["entries"]) == budget if unit == "entries" else len(tensors) == budget
    coordinator = again
    go(range(30, 45))
    assert coordinator.state.memory["similarity"].dtype == np.float32


# CASA+


def test_the_published_sparsity() -> None:
    plus = CASAPlus(s0=0.3, total_rounds=1000)
    assert plus.sparsity(0.299, 0.0244, 1) == pytest.approx(0.08238, abs=1e-6)
    assert plus.sparsity(0.299, 0.299, 1) == 0  # in time
    assert plus.sparsity(0.299, 0.0244, 501) == pytest.approx(0.04119, abs=1e-6)  # half of it at half time
    assert plus.sparsity(0.299, 0.0244, 0) == plus.sparsity(0.299, 0.0244, 1)
    assert plus.sparsity(0.299, 0.0244, 1001) == plus.sparsity(0.299, 0.0244, 5000) == pytest.approx(0, abs=1e-12)
    assert CASAPlus(s0=1).sparsity(1, 0, 1) == 0.99  # cut
    assert CASAPlus(s0=0.3, horizon=1000).sparsity(0.299, 0.0244, 501) == pytest.approx(0.04119, abs=1e-6)
    assert CASAPlus(s0=0.3).sparsity(0.299, 0.0244, 25_001) == pytest.approx(0.04119, abs=1e-6)  # of 50,000


def test_a_late_client_is_asked_to_leave_its_smallest_weights_alone() -> None:
    memory = known(np.eye(3), rates=np.array([[0.5, 0.5], [0.5, 0.1], [0, 0]]))
    state = replace(crowd(3, memory=memory), rounds=1)
    plus = CASAPlus(s0=0.5)
    assert (plus.task(state, "c0").settings, plus.task(state, "c0").memo["sparsity"]) == ({}, 0)
    late = plus.task(state, "c1")
    assert late.settings == {"sparsity": pytest.approx(0.2), "work": pytest.approx(0.8)}
    assert late.memo == {"updates": {"k0": 0}, "sparsity": late.settings["sparsity"]}
    assert plus.task(state, "c2").settings == {} == plus.task(state, "nobody").settings
    assert CASAPlus(s0=0).task(state, "c1").settings == {}


def test_casa_plus_touches_only_what_was_trained() -> None:
    """Weights (1, -4, 3, 2) and bias 0.5 were given; half of the weights, 1 and 2, are hidden. a = 2/3 of 5 members."""
    both = Layout.of({"w": np.zeros((2, 2), np.float32), "b": np.zeros(1, np.float32)})
    given = vector(1, -4, 3, 2, 0.5)
    cluster = Cluster(vector(7, 0, 0, 7, 0))
    state = replace(crowd(5, {"k0": cluster}, width=5), layout=both)
    plus = CASAPlus()
    assert plus.needs_given
    step = plus.fold(state, [sent("c0", vector(1, 3, 6, 2, 9), given=given, sparsity=0.5)])
    np.testing.assert_allclose(step.clusters["k0"], [7, 2, 4, 7, 6], rtol=1e-6)
    whole = plus.fold(state, [sent("c0", vector(1, 3, 6, 2, 9), given=given, sparsity=0.0)])
    np.testing.assert_allclose(whole.clusters["k0"], [3, 2, 4, 11 / 3, 6], rtol=1e-6)


def test_wrong_settings_are_refused() -> None:
    wrong = [
        {"alpha0": 0}, {"omega_base": 1.5}, {"omega_rate": -1}, {"size_offset": 0}, {"log_base": 1}, {"gamma": 0},
        {"eigenvalues": 1}, {"first_gap": 0}, {"min_cluster_size": 0}, {"test_every": 0}, {"buffer_budget": -1},
        {"alpha": 0}, {"patience": 0},
    ]  # fmt: skip
    for settings in wrong:
        with pytest.raises(ValueError, match=r", (not|but) \S"):
            CASA(**settings)
    for settings in ({"s0": 2}, {"total_rounds": 0}, {"alpha0": 0}):
        with pytest.raises(ValueError, match=r", (not|but) \S"):
            CASAPlus(**settings)
