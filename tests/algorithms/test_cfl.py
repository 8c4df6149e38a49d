"""Hand-worked numbers for every branch of CFL and CFL-Async."""

import numpy as np
import pytest
from hand import measured, state, vector
from written import Written

from artesian.algorithms import CFL, CFLAsync
from artesian.errors import SettingError

FOUR = {"c0": 1, "c1": 1, "c2": 1, "c3": 1}


def rounds(clients, start=(0.0,), **settings) -> Written:
    return Written(CFL(first_round=len(clients), **settings), [vector(*start)], clients)


def test_a_cluster_takes_the_mean_change_by_samples() -> None:
    """5 + (1 x 2 + 3 x 6) / 4 = 10; evenly (2 + 6) / 2 = 4, so 9."""
    for weighting, expected in (("samples", 10), ("uniform", 9)):
        now = rounds({"c0": 1, "c1": 3}, (5,), weighting=weighting)
        now.answers({"c0": [2], "c1": [6]})
        assert now.models == {"k0": [expected]}
        assert now.homes == {"c0": "k0", "c1": "k0"}
        assert now.given("c0") == ("k0", [expected])
    assert now.tasks["c0"].settings["delta"] is True


@pytest.mark.parametrize(
    ("settings", "splits"),
    [
        ({}, True),  # mean change (3 - 2) / 4 = 0.25 < 0.4, largest 3 > 0.7
        ({"eps1": 0.25}, False),  # strictly below
        ({"eps1": 0.26}, True),
        ({"eps2": 3.0}, False),  # strictly above
        ({"eps2": 2.99}, True),
        ({"min_size": 4}, True),
        ({"min_size": 5}, False),
        ({"warmup_rounds": 1}, False),  # round 1 is not after round 1
        ({"gamma_max": 0.70}, True),  # across at most cosine 0: sqrt((1 - 0) / 2) = 0.7071
        ({"gamma_max": 0.71}, False),
    ],
)
def test_when_a_cluster_splits(settings, splits) -> None:
    """Changes 3, -2, 0, 0: zero is at cosine 0 with everything, so complete linkage leaves 3 or -2 alone."""
    now = rounds(FOUR, **settings)
    now.answers({"c0": [3], "c1": [-2], "c2": [0], "c3": [0]})
    assert (len(now.models) == 2) is splits
    if not splits:
        assert now.models == {"k0": [0.25]}


def test_the_warm_up_is_over_after_its_rounds() -> None:
    now = rounds(FOUR, warmup_rounds=1)
    for _ in range(2):
        now.answers({"c0": [3], "c1": [-3], "c2": [3], "c3": [-3]})
    assert now.models == {"k1": [3], "k2": [-3]}


def test_two_members_never_split() -> None:
    now = rounds({"c0": 1, "c1": 1})
    now.answers({"c0": [3], "c1": [-3]})
    assert now.models == {"k0": [0]}


def test_children_take_the_mean_change_of_their_own_members() -> None:
    """From 1: {c0, c2} by (2, 4), {c1, c3} by (-2, -4)."""
    now = rounds(FOUR, (1,))
    now.answers({"c0": [2], "c1": [-2], "c2": [4], "c3": [-4]})
    assert now.models == {"k1": [4], "k2": [-2]}
    assert now.homes == {"c0": "k1", "c1": "k2", "c2": "k1", "c3": "k2"}
    assert now.coordinator.notes == {"splits": 1, "placed": 0}
    assert now.given("c3") == ("k2", [-2])


def test_a_second_split_moves_the_right_clients() -> None:
    """Positions 0 | 1, 2 of cluster {c1, c3, c5} are clients c1 | c3, c5, not c0 | c1, c2; a child may be alone."""
    now = rounds({f"c{i}": 1 for i in range(6)}, (0, 0))
    now.answers({f"c{i}": [10 * (-1) ** i, 0] for i in range(6)})
    assert now.models == {"k1": [10, 0], "k2": [-10, 0]}
    calm = {"c0": [0.5, 0], "c2": [0.5, 0], "c4": [0.5, 0]}
    now.answers({**calm, "c1": [0, 10], "c3": [0, -5], "c5": [0, -5]})
    assert now.models == {"k1": [10.5, 0], "k3": [-10, 10], "k4": [-10, -5]}
    assert now.homes == {"c0": "k1", "c1": "k3", "c2": "k1", "c3": "k4", "c4": "k1", "c5": "k4"}


def test_two_clusters_may_split_in_one_round() -> None:
    now = rounds({f"c{i}": 1 for i in range(8)}, (0, 0))
    now.answers({f"c{i}": [10 * (-1) ** i, 0] for i in range(8)})
    now.answers({f"c{i}": [0, 4 if i < 4 else -4] for i in range(8)})
    assert now.models == {"k3": [10, 4], "k4": [10, -4], "k5": [-10, 4], "k6": [-10, -4]}
    assert now.coordinator.state.named == 7


def test_an_update_of_one_child_leaves_the_other() -> None:
    now = rounds({"c0": 1, "c1": 1, "c2": 1})
    now.answers({"c0": [3], "c1": [-3], "c2": [0]})
    before = now.models
    for client in ("c0", "c1", "c2"):
        own = now.homes[client]
        now.answer(client, 0.25 if own == "k1" else 0)
    assert now.models["k1"] == [before["k1"][0] + 0.25]
    assert now.models["k2"] == before["k2"]


def test_a_member_that_missed_a_round_counts_with_a_change_one_round_old() -> None:
    """Round 2 without c3: its 0.5 of round 1 is in the norms, (3 - 3 + 0.5 + 0.5) / 4 = 0.25, but not added again."""
    now = rounds(FOUR, eps1=0.4, patience=9.0)
    now.answers({"c0": [0.5], "c1": [0.5], "c2": [0.5], "c3": [0.5]})
    assert now.models == {"k0": [0.5]}
    now.answers({"c0": [3], "c1": [-3], "c2": [0.5]})
    now.expire("c3")
    assert now.models == {"k1": [2.25], "k2": [-2.5]}  # 0.5 + (3 + 0.5) / 2 and 0.5 - 3
    assert now.homes == {"c0": "k1", "c1": "k2", "c2": "k1", "c3": "k1"}


def test_a_member_without_a_recent_change_forbids_the_split() -> None:
    now = rounds(FOUR, patience=9.0)
    now.answers({"c0": [0.5], "c1": [0.5], "c2": [0.5], "c3": [0.5]})
    for _ in range(2):
        now.answers({"c0": [0.5], "c1": [-0.5], "c2": [0]})
        if "c3" in now.tasks:
            now.expire("c3")
    now.answers({"c0": [3], "c1": [-3], "c2": [0]})
    assert len(now.models) == 1
    now.join("c3")  # it waits for the next round
    now.answers({"c0": [3], "c1": [-3], "c2": [0]})
    assert len(now.models) == 1
    now.answers({"c0": [3], "c1": [-3], "c2": [0], "c3": [0]})
    assert len(now.models) == 2


def test_a_newcomer_is_sent_the_mean_by_samples_and_placed_where_it_set_out_for() -> None:
    """Clusters 3 and -3 hold 10 and 30 samples: the mean is (30 - 90) / 40 = -1.5."""
    now = rounds({"c0": 5, "c1": 15, "c2": 5, "c3": 15}, eps1=9)
    now.answers({"c0": [3], "c1": [-3], "c2": [3], "c3": [-3]})
    assert now.models == {"k1": [3], "k2": [-3]}
    now.join("new", 7)
    now.answers({"c0": [0], "c1": [0], "c2": [0], "c3": [0]})
    assert now.given("new") == ("all", [-1.5])
    now.answers({"c0": [0.25], "c1": [0], "c2": [0.25], "c3": [0], "new": [4]})
    assert now.models == {"k1": [3.25], "k2": [-3]}  # its 4 began elsewhere and is not added
    assert now.homes["new"] == "k1"
    assert now.coordinator.notes == {"splits": 0, "placed": 1}
    assert now.given("new") == ("k1", [3.25])
    now.answers({"c0": [0], "c1": [0], "c2": [0], "c3": [0], "new": [0.34]})
    np.testing.assert_allclose(now.models["k1"], [3.25 + 0.34 * 7 / 17], rtol=1e-6)


def test_who_left_follows_the_larger_child_and_who_never_trained_stays_a_newcomer() -> None:
    now = rounds({**FOUR, "c4": 1, "idle": 1}, patience=9.0)
    now.leave("idle")
    now.answers({"c0": [0.1], "c1": [0.1], "c2": [0.1], "c3": [0.1], "c4": [0.1]})
    now.leave("c4")
    for _ in range(2):
        now.answers({"c0": [0.1], "c1": [0.1], "c2": [0.1], "c3": [0.1]})
    now.answers({"c0": [3], "c1": [-9], "c2": [3], "c3": [3]})
    assert now.homes == {"c0": "k1", "c1": "k2", "c2": "k1", "c3": "k1", "c4": "k1", "idle": None}


def test_who_uploaded_and_left_inside_the_round_is_split_like_the_others() -> None:
    now = rounds(FOUR)
    now.answer("c1", -3)
    now.leave("c1")
    now.answers({"c0": [3], "c2": [3], "c3": [-3]})
    assert now.homes == {"c0": "k1", "c1": "k2", "c2": "k1", "c3": "k2"}
    now.leave("c3")
    now.answers({"c0": [0.5], "c2": [0.5]})
    assert now.models == {"k1": [3.5], "k2": [-3]}  # the cluster everybody left stays
    now.join("new")
    now.answers({"c0": [0], "c2": [0]})
    assert now.given("new") == ("all", [0.25])


def test_without_any_samples_all_count_alike() -> None:
    now = rounds({"c0": 0, "c1": 0})
    now.answers({"c0": [1], "c1": [3]})
    assert now.models == {"k0": [2]}


def stream(clients, start=0.0, **settings) -> Written:
    return Written(CFLAsync(**{"alpha": 0.5, **settings}), [vector(start)], clients)


def test_async_merges_splits_and_routes_by_present_membership() -> None:
    """4 -> 2, -4 -> -1, 1 -> 0; then mean change (4 - 4 + 1) / 3 < 0.4 and largest 4 > 1: {c0, c2} | {c1}, at 0."""
    now = stream({"c0": 1, "c1": 1, "c2": 1})
    now.answer("c0", 4)
    assert (now.models, now.given("c0")) == ({"k0": [2]}, ("k0", [2]))
    now.answer("c1", -4)
    assert now.models == {"k0": [-1]}  # c2 has no change yet: no test
    now.answer("c2", 1)
    assert now.models == {"k1": [0], "k2": [0]}
    assert now.homes == {"c0": "k1", "c1": "k2", "c2": "k1"}
    assert now.tasks["c1"].models.keys() == {"k0"}  # under way during the split
    now.answer("c1", -3)
    assert now.models == {"k1": [0], "k2": [-1.5]}
    assert now.given("c1") == ("k2", [-1.5])
    now.answer("c0", 6)
    assert now.models == {"k1": [3], "k2": [-1.5]}


def test_async_defaults_are_casas() -> None:
    algorithm = CFLAsync()
    assert (algorithm.alpha, algorithm.staleness, algorithm.eps1, algorithm.eps2) == (0.3, "constant", 0.4, 1.0)
    assert (CFL().eps1, CFL().eps2, CFL().min_size, CFL().warmup_rounds) == (0.4, 0.7, 3, 0)


@pytest.mark.parametrize(
    ("settings", "splits"),
    [
        ({}, True),
        ({"eps1": 0.3}, False),  # |4 - 4 + 1| / 3 = 0.333
        ({"eps2": 4.0}, False),
        ({"warmup_rounds": 3}, False),
        ({"warmup_rounds": 2}, True),
        ({"gamma_max": 0.99}, True),  # across: cosine -1, sqrt(2 / 2) = 1
    ],
)
def test_when_async_splits(settings, splits) -> None:
    now = stream({"c0": 1, "c1": 1, "c2": 1}, **settings)
    now.answers({"c0": [4], "c1": [-4], "c2": [1]})
    assert (len(now.models) == 2) is splits


def test_async_weighs_the_mean_change_by_samples() -> None:
    """(1 x 6 - 3 x 2) / 4 = 0 by samples, (6 - 2 + 0) / 3 = 1.33 evenly."""
    for weighting, splits in (("samples", True), ("uniform", False)):
        now = stream({"c0": 1, "c1": 3, "c2": 0}, weighting=weighting)
        now.answers({"c0": [6], "c1": [-2], "c2": [0]})
        assert (len(now.models) == 2) is splits


def test_async_keeps_one_row_of_cosines_for_every_client() -> None:
    now = Written(CFLAsync(), [vector(0, 0)], {"c0": 1, "c1": 1, "c2": 1})
    now.answer("c0", 1, 0)
    now.answer("c1", 0, 2)
    table = now.coordinator.state.memory
    assert (table["clients"], table["norms"].tolist()) == (["c0", "c1"], [1, 2])
    assert table["cosines"].tolist() == [[1, 0], [0, 1]]
    now.answer("c2", 0, 0)  # no change at all: cosine 0
    now.answer("c0", 3, 3, change=True)
    table = now.coordinator.state.memory
    half = 0.5**0.5
    np.testing.assert_allclose(table["cosines"], [[1, half, 0], [half, 1, 0], [0, 0, 1]], atol=1e-6)
    np.testing.assert_allclose(table["norms"], [18**0.5, 2, 0], rtol=1e-6)
    assert now.coordinator.algorithm.needs_given


def test_async_staleness_is_a_setting() -> None:
    """alpha 0.5, hinge(a = 1, b = 0): s = 1 weighs 1/2, so 0 + 0.25 (8 - 0) = 2; beyond max_staleness nothing."""
    now = stream({"c0": 1, "c1": 1, "c2": 1}, staleness="hinge", a=1.0, b=0.0, max_staleness=1)
    now.answer("c0", 0)
    now.answer("c1", 8)
    assert now.models == {"k0": [2]}
    now.answer("c2", 9)
    assert now.models == {"k0": [2]}
    assert now.coordinator.notes == {"dropped": 1, "staleness": 2}
    assert (now.homes["c2"], now.coordinator.state.memory["clients"]) == (None, ["c0", "c1"])
    assert now.given("c2") == ("k0", [2])


def test_async_places_a_newcomer_where_it_set_out_for() -> None:
    """Right after the split both models are 0: its way is told by the members' changes, 2.5 and -4."""
    now = stream({"c0": 1, "c1": 1, "c2": 1})
    now.answers({"c0": [4], "c1": [-4], "c2": [1]})
    now.join("new", 5)
    assert now.given("new") == ("all", [0])
    now.answer("new", -6)
    assert now.models == {"k1": [0], "k2": [-3]}
    assert (now.homes["new"], now.coordinator.notes["placed"]) == ("k2", 1)
    assert "new" not in now.coordinator.state.memory["clients"]  # its change began elsewhere
    now.answer("new", -4)
    assert now.coordinator.state.memory["clients"][-1] == "new"


def test_async_who_left_follows_whom_it_resembles() -> None:
    now = stream({**FOUR, "idle": 1})
    now.answers({"c0": [4], "c1": [-4], "c2": [-2]})
    now.leave("c2")
    now.leave("idle")
    assert len(now.models) == 1  # c3 has no change yet
    now.answer("c3", 0.5)
    assert now.homes == {"c0": "k1", "c1": "k2", "c2": "k2", "c3": "k1", "idle": None}


def test_async_goes_on_when_everybody_left_a_cluster() -> None:
    now = stream({"c0": 1, "c1": 1, "c2": 1})
    now.answers({"c0": [4], "c1": [-4], "c2": [1]})
    now.leave("c1")
    now.join("new")
    now.answer("new", 1)
    now.answers({"c0": [2], "c2": [2]})
    assert now.models["k2"] == [0]
    now.join("c1")
    assert now.given("c1") == ("k2", [0])


def test_async_folds_one_at_a_time() -> None:
    algorithm = CFLAsync()
    with pytest.raises(SettingError, match="uploads at once"):
        algorithm.fold(state(algorithm, [vector(0)]), [measured("c0", vector(1))] * 2)


@pytest.mark.parametrize(
    "make",
    [
        lambda: CFL(eps1=-1),
        lambda: CFL(eps2=-1),
        lambda: CFL(min_size=1),
        lambda: CFL(warmup_rounds=-1),
        lambda: CFL(gamma_max=1.0),
        lambda: CFL(weighting="size"),  # type: ignore[arg-type]
        lambda: CFL(clients_per_round=0),
        lambda: CFLAsync(alpha=0),
        lambda: CFLAsync(a=-1),
    ],
)
def test_wrong_settings_are_refused(make) -> None:
    with pytest.raises(ValueError, match=r", (not|but) \S"):
        make()
