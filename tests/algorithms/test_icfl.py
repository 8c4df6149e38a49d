"""Hand-worked numbers for every branch of ICFL (reconstructed), synchronous and asynchronous."""

import numpy as np
import pytest
from hand import measured, state, vector
from written import Written

from artesian.algorithms import ICFL, ICFLAsync
from artesian.errors import SettingError

START = [vector(1, 1)]


def rounds(clients, **settings) -> Written:
    return Written(ICFL(first_round=len(clients), **settings), START, clients)


def stream(clients, **settings) -> Written:
    return Written(ICFLAsync(**{"alpha": 0.5, **settings}), START, clients)


def test_the_threshold_rises_from_alpha_start_towards_one() -> None:
    """th(0) = 0.85, th(T/2) = 1 - 0.15 e^-2 = 0.979700, th(T) = 1 - 0.15 e^-4 = 0.997253."""
    for algorithm, usual in ((ICFL(), 500), (ICFLAsync(), 50_000)):
        found = [algorithm.threshold(t) for t in (0, usual // 2, usual)]
        np.testing.assert_allclose(found, [0.85, 0.979700, 0.997253], atol=1e-6)
    assert ICFL(horizon=10).threshold(10) == ICFL().threshold(500)
    assert ICFL(growth=0).threshold(99) == 0.85


def test_first_uploads_join_the_best_connected_cluster_or_open_one() -> None:
    """c0 is the first of all: k0. c1 at cosine 0.8 with it opens k1. c2 is at 0.98995 with c0 and 0.88 with c1: k0."""
    now = rounds({"c0": 1, "c1": 1, "c2": 3})
    now.answers({"c0": [1, 0], "c1": [0.8, 0.6], "c2": [7, 1]})
    assert now.homes == {"c0": "k0", "c1": "k1", "c2": "k0"}
    np.testing.assert_allclose(now.models["k0"], [5.5, 0.75])  # by samples: (1 + 21) / 4, 3 / 4
    np.testing.assert_allclose(now.models["k1"], [0.8, 0.6], rtol=1e-6)
    assert now.coordinator.notes == {"splits": 0, "opened": 1}
    assert now.given("c1")[0] == "k1"


def test_exactly_at_the_threshold_one_joins_and_nothing_splits() -> None:
    now = rounds({"c0": 1, "c1": 1}, alpha_start=0.6)
    now.answers({"c0": [1, 0], "c1": [3, 4]})  # cosine 0.6 exactly
    assert now.homes == {"c0": "k0", "c1": "k0"}
    assert now.models == {"k0": [2, 2]}


def test_a_cluster_of_low_connectivity_is_halved_and_clients_are_mapped_back() -> None:
    """k1 = {c1, c2, c3, c4}: pairs 1, 0, 0, 0, 0, 1 have the mean 1/3 < 0.85: {c1, c2} | {c3, c4}; k0 stays."""
    now = rounds({f"c{i}": 1 for i in range(5)})
    now.answers({"c0": [1, 0], **{f"c{i}": [0, 1] for i in range(1, 5)}})
    assert now.homes == {"c0": "k0", "c1": "k1", "c2": "k1", "c3": "k1", "c4": "k1"}
    now.answers({"c0": [1, 0], "c1": [0, 2], "c2": [0, 4], "c3": [2, 0], "c4": [4, 0]})
    assert now.homes == {"c0": "k0", "c1": "k2", "c2": "k2", "c3": "k3", "c4": "k3"}
    assert now.models == {"k0": [1, 0], "k2": [0, 3], "k3": [3, 0]}
    assert now.coordinator.notes == {"splits": 1, "opened": 0}
    now.answers({"c0": [1, 0], "c1": [0, 2], "c2": [0, 4], "c3": [2, 0], "c4": [0, 4]})
    assert now.homes == {"c0": "k0", "c1": "k2", "c2": "k2", "c3": "k4", "c4": "k5"}  # also a cluster of two


def test_later_newcomers_of_a_round_see_the_clusters_opened_in_it() -> None:
    """th = 0.75. c2 is at 0.8 with c1: joins. c3: mean(0.8, 0.28) = 0.54 opens. c4: 0.78 there, 0.936 with c3."""
    now = rounds({f"c{i}": 1 for i in range(5)}, alpha_start=0.75)
    now.answers({"c0": [-1, 0], "c1": [1, 0], "c2": [0.8, 0.6], "c3": [0.8, -0.6], "c4": [0.96, -0.28]})
    assert now.homes == {"c0": "k0", "c1": "k1", "c2": "k1", "c3": "k2", "c4": "k2"}
    assert (sorted(now.models), now.coordinator.state.named) == (["k0", "k1", "k2"], 3)


def test_negative_cosines_count_as_none_and_two_are_parted() -> None:
    now = rounds({"c0": 1, "c1": 1})
    now.answers({"c0": [1, 0], "c1": [1, 0]})
    now.answers({"c0": [1, 0], "c1": [-1, 0]})
    assert now.homes == {"c0": "k1", "c1": "k2"}
    assert now.models == {"k1": [1, 0], "k2": [-1, 0]}


def test_a_child_without_uploads_copies_its_parent() -> None:
    now = rounds({"c0": 1, "c1": 1}, patience=9.0)
    now.answers({"c0": [1, 0], "c1": [1, 0]})
    now.answer("c0", 0, 2)
    now.expire("c1")
    assert now.models == {"k1": [0, 2], "k2": [1, 0]}


def test_a_newcomer_is_sent_the_mean_by_samples_and_placed_by_connectivity() -> None:
    now = rounds({"c0": 1, "c1": 3})
    now.answers({"c0": [4, 0], "c1": [0, 4]})
    assert now.models == {"k0": [4, 0], "k1": [0, 4]}
    now.join("new", 5)
    now.answers({"c0": [4, 0], "c1": [0, 4]})
    assert now.given("new") == ("all", [1, 3])
    now.answers({"c0": [4, 0], "c1": [0, 4], "new": [0.0, 12]})
    assert now.homes["new"] == "k1"
    np.testing.assert_allclose(now.models["k1"], [0, 9])  # (3 x 4 + 5 x 12) / 8


def test_who_left_keeps_its_row_and_its_cluster() -> None:
    now = rounds({"c0": 1, "c1": 1})
    now.answers({"c0": [1, 0], "c1": [0, 1]})
    now.leave("c1")
    now.join("new")
    now.answer("c0", 1, 0)
    now.answers({"c0": [1, 0], "new": [0, 5]})
    assert (now.homes["new"], now.models["k1"]) == ("k1", [0, 5])
    now.join("c1")
    assert now.coordinator.preview("c1").models.keys() == {"k1"}


def test_nobody_has_samples() -> None:
    now = rounds({"c0": 0, "c1": 0})
    now.answers({"c0": [5, 0], "c1": [0, 5]})
    assert now.models == {"k0": [1, 1], "k1": [0, 5]}  # an old model stands; a new one is its upload


def test_all_alike_stay_together_also_at_the_end() -> None:
    now = rounds({f"c{i}": 1 for i in range(4)}, horizon=1)
    for _ in range(3):
        now.answers({f"c{i}": [2, 2] for i in range(4)})
    assert now.models == {"k0": [2, 2]}


def test_similarity_of_changes_needs_what_was_given() -> None:
    """From (1, 1): (2, 1) and (1, 2) have the cosine 0.8 as weights and 0 as changes."""
    clients = {"c0": 1, "c1": 1}
    together = rounds(clients, alpha_start=0.75)
    apart = rounds(clients, alpha_start=0.75, similarity="delta")
    for now in (together, apart):
        now.answers({"c0": [2, 1], "c1": [1, 2]})
    assert (len(together.models), len(apart.models)) == (1, 2)
    assert (ICFL().needs_given, ICFL(similarity="delta").needs_given) == (False, True)


def test_async_places_moves_and_opens() -> None:
    """k0 at (1, 1): (3, 1) moves it to (2, 1); (1, 3), at cosine 0.6 with (3, 1), opens k1 as it is."""
    now = stream({"c0": 1, "c1": 1, "c2": 1})
    now.answer("c0", 3, 1)
    assert (now.homes["c0"], now.models) == ("k0", {"k0": [2, 1]})
    now.answer("c1", 1, 3)
    assert (now.homes["c1"], now.models) == ("k1", {"k0": [2, 1], "k1": [1, 3]})
    now.answer("c2", 6, 2)
    assert (now.homes["c2"], now.models["k0"]) == ("k0", [4, 1.5])


def test_async_halves_then_moves_the_uploaders_child_only() -> None:
    now = stream({"c0": 1, "c1": 1})
    now.answers({"c0": [1, 1], "c1": [1, 1]})
    under_way = now.tasks["c1"]
    now.answer("c0", 3, -3)
    assert now.homes == {"c0": "k1", "c1": "k2"}
    assert now.models == {"k1": [2, -1], "k2": [1, 1]}
    assert list(under_way.models) == ["k0"]  # gone; its answer goes to the present cluster of c1
    now.answer("c1", 3, 3)
    assert now.models == {"k1": [2, -1], "k2": [2, 2]}


def test_async_tests_every_cluster_as_the_threshold_rises() -> None:
    """T = 4: th = 0.85, 0.9448, 0.9797, 0.9925. {c0, c1} at cosine 0.9487 is halved at t = 2, on an upload of c2."""
    now = stream({"c0": 1, "c1": 1, "c2": 1}, horizon=4)
    now.answers({"c0": [1, 0], "c1": [3, 1]})
    assert now.homes == {"c0": "k0", "c1": "k0", "c2": None}
    now.answer("c2", 0, 1)
    assert now.homes == {"c0": "k1", "c1": "k2", "c2": "k3"}
    assert now.coordinator.state.named == 4
    assert now.coordinator.notes == {"splits": 1, "opened": 1}


def test_async_staleness_is_a_setting() -> None:
    """alpha 0.5, hinge(1, 0) at s = 1: a quarter of the way from (1, 1) to (5, 5) is (2, 2); s = 2 is dropped."""
    now = stream({"c0": 1, "c1": 1, "c2": 1}, staleness="hinge", a=1.0, b=0.0, max_staleness=1)
    now.answer("c0", 1, 1)
    now.answer("c1", 5, 5)
    assert now.models == {"k0": [2, 2]}
    now.answer("c2", 9, 9)
    assert (now.models, now.coordinator.notes) == ({"k0": [2, 2]}, {"dropped": 1})
    assert now.homes["c2"] is None


def test_async_with_changes_and_a_late_joiner() -> None:
    now = stream({"c0": 1, "c1": 1}, similarity="delta", alpha_start=0.5)
    now.answer("c0", 3, 1)
    now.answer("c1", 1, 5)
    assert now.models == {"k0": [2, 1], "k1": [1, 5]}
    now.join("new", 4)
    assert now.given("new") == ("all", [1.5, 3])
    now.answer("new", 0, 4, change=True)
    assert now.homes["new"] == "k1"


def test_async_folds_one_at_a_time() -> None:
    algorithm = ICFLAsync()
    with pytest.raises(SettingError, match="uploads at once"):
        algorithm.fold(state(algorithm, [vector(0)]), [measured("c0", vector(1))] * 2)


@pytest.mark.parametrize(
    "make",
    [
        lambda: ICFL(alpha_start=1.5),
        lambda: ICFL(growth=-1),
        lambda: ICFL(similarity="models"),  # type: ignore[arg-type]
        lambda: ICFL(horizon=0),
        lambda: ICFL(clients_per_round=0),
        lambda: ICFLAsync(alpha=2),
        lambda: ICFLAsync(b=-1),
    ],
)
def test_wrong_settings_are_refused(make) -> None:
    with pytest.raises(ValueError, match=r", (not|but) \S"):
        make()
