"""Hand-worked numbers for every branch of FeSEM and FeSEM-MIG."""

import numpy as np
import pytest
from hand import layout, vector
from written import Written

from artesian.algorithms import FeSEM
from artesian.errors import SettingError

FOUR = {"c0": 1, "c1": 9, "c2": 1, "c3": 1}
TWO = [vector(4), vector(8)]


def rounds(clients=FOUR, start=TWO, **settings) -> Written:
    return Written(FeSEM(first_round=len(clients), **settings), start, clients)


def begun(**settings) -> Written:
    """c0 and c2 at centre 1, c1 and c3 at centre 11."""
    now = rounds(**settings)
    now.answers({"c0": [0], "c1": [10], "c2": [2], "c3": [12]})
    return now


def test_everybody_trains_once_before_the_first_centres() -> None:
    """Weights 0, 10, 2, 12 after one training of the common start 6: centres 1 and 11, plain means, not by samples."""
    now = rounds()
    assert {client: now.given(client) for client in FOUR} == dict.fromkeys(FOUR, ("all", [6]))
    now.answers({"c0": [0], "c1": [10], "c2": [2], "c3": [12]})
    assert now.models == {"k0": [1], "k1": [11]}
    assert now.homes == {"c0": "k0", "c1": "k1", "c2": "k0", "c3": "k1"}
    assert now.given("c1") == ("k1", [11])  # its centre only
    assert now.coordinator.notes == {"moved": 4}


def test_nearest_centre_then_plain_mean() -> None:
    """c2 at 7 is nearer to 11 than to 1: centres 2 and (10 + 7 + 13) / 3 = 10."""
    now = begun()
    now.answers({"c0": [2], "c1": [10], "c2": [7], "c3": [13]})
    assert now.models == {"k0": [2], "k1": [10]}
    assert now.homes == {"c0": "k0", "c1": "k1", "c2": "k1", "c3": "k1"}
    assert now.coordinator.notes == {"moved": 1}


def test_a_tie_goes_to_the_first_centre() -> None:
    now = begun()
    now.answers({"c0": [6], "c1": [6], "c2": [6], "c3": [12]})
    assert now.homes == {"c0": "k0", "c1": "k0", "c2": "k0", "c3": "k1"}


def test_an_empty_centre_is_unchanged_and_may_be_found_again() -> None:
    now = begun()
    now.answers({client: [2] for client in FOUR})
    assert now.models == {"k0": [2], "k1": [11]}
    now.answers({"c0": [2], "c1": [9], "c2": [2], "c3": [2]})
    assert (now.homes["c1"], now.models["k1"]) == ("k1", [9])


def test_whoever_sits_out_counts_with_its_last_weights() -> None:
    """c1 expires: its 10 stays in centre k1, (10 + 16) / 2 = 13."""
    now = begun(patience=9.0)
    now.answers({"c0": [1], "c2": [1], "c3": [16]})
    now.expire("c1")
    assert now.models == {"k0": [1], "k1": [13]}


def test_whoever_left_counts_no_more() -> None:
    now = begun()
    now.leave("c1")
    now.answers({"c0": [1], "c2": [1], "c3": [16]})
    assert now.models == {"k0": [1], "k1": [16]}
    assert sorted(now.coordinator.state.memory["weights"]) == ["c0", "c2", "c3"]
    now.leave("c3")
    now.answers({"c0": [1], "c2": [3]})
    assert now.models == {"k0": [2], "k1": [16]}  # everybody left it: it stays
    now.join("c3")
    now.answers({"c0": [2], "c2": [2]})
    assert now.given("c3") == ("k1", [16])


def test_an_upload_counts_although_its_client_left_before_the_round_closed() -> None:
    now = begun()
    now.answer("c1", 14)
    now.leave("c1")
    now.answers({"c0": [1], "c2": [1], "c3": [16]})
    assert now.models == {"k0": [1], "k1": [15]}


def test_a_newcomer_trains_the_mean_by_samples_and_goes_to_the_nearest_centre() -> None:
    """Samples 1 + 1 and 9 + 1: the mean of 1 and 11 is (2 + 110) / 12."""
    now = begun()
    now.join("new", 4)
    now.answers({"c0": [1], "c1": [11], "c2": [1], "c3": [11]})
    name, params = now.given("new")
    assert name == "all"
    np.testing.assert_allclose(params, [112 / 12], rtol=1e-6)
    now.answers({"c0": [1], "c1": [11], "c2": [1], "c3": [11], "new": [4]})
    assert (now.homes["new"], now.models) == ("k0", {"k0": [2], "k1": [11]})


def test_cohorts_begin_once_everybody_has_trained() -> None:
    now = begun(clients_per_round=2)
    drawn = set()
    for _ in range(12):
        assert len(now.tasks) == 2
        drawn.add(tuple(sorted(now.tasks)))
        now.answers({client: [1] if now.homes[client] == "k0" else [11] for client in sorted(now.tasks)})
    assert len(drawn) > 2
    assert now.models == {"k0": [1], "k1": [11]}


def test_random_centres_reproduce_the_collapse() -> None:
    """Start models 4, 9 and 60, of which two are centres: everybody is sent 9, the nearest to the common start 73/3."""
    now = rounds(start=[vector(4), vector(9), vector(60)], clusters=2, centres="random")
    assert {now.given(client)[0] for client in FOUR} == {"k1"}
    now.answers({client: [9 + i] for i, client in enumerate(FOUR)})
    assert now.homes == dict.fromkeys(FOUR, "k1")
    assert now.models == {"k0": [4], "k1": [10.5]}
    now.join("late")
    now.answers({client: [11] for client in FOUR})
    assert now.given("late") == ("k1", [11])


def test_random_centres_must_differ() -> None:
    for start, clusters in (([vector(1), vector(1)], None), ([vector(1), vector(2)], 3)):
        with pytest.raises(SettingError, match="different start models"):
            FeSEM(centres="random", clusters=clusters).init(layout(), start, 0)
    assert len(FeSEM(centres="random").init(layout(), [vector(1)], 0).clusters) == 1


def test_more_centres_than_clients_are_refused_as_soon_as_that_is_known() -> None:
    with pytest.raises(SettingError, match="3 centres for 2 clients"):
        FeSEM(clusters=3, first_round=2).init(layout(), TWO, 0)
    assert len(FeSEM(clusters=3, first_round=3).init(layout(), TWO, 0).clusters) == 3


def test_until_there_are_as_many_clients_as_centres_all_centres_are_one_mean() -> None:
    now = Written(FeSEM(), TWO, {"c0": 1})
    now.answer("c0", 3)
    assert (now.models, now.homes) == ({"k0": [3], "k1": [3]}, {"c0": None})
    now.join("c1")
    now.answer("c0", 4)
    now.answers({"c0": [4], "c1": [8]})
    assert (now.models, now.homes) == ({"k0": [4], "k1": [8]}, {"c0": "k0", "c1": "k1"})


def test_one_client_and_one_centre() -> None:
    now = rounds({"c0": 1}, [vector(4)])
    assert now.given("c0") == ("k0", [4])
    for number in (3, 5):
        now.answer("c0", number)
        assert (now.models, now.homes) == ({"k0": [number]}, {"c0": "k0"})


def test_identical_clients_fall_together_and_nothing_is_divided_by_zero() -> None:
    now = rounds()
    now.answers({client: [5] for client in FOUR})
    assert now.models == {"k0": [5], "k1": [5]}
    now.answers({client: [7] for client in FOUR})
    assert (now.models, set(now.homes.values())) == ({"k0": [7], "k1": [5]}, {"k0"})


def test_a_client_whose_data_changed_finds_its_centre_at_once() -> None:
    """FeSEM-MIG: c2 waits while c0 trains, trains centre 1 alone to 9, and is at 11 from then on; centres stand."""
    now = begun(migrate=True, clients_per_round=1, quorum=1)
    (busy,) = now.tasks
    mover = next(client for client in ("c0", "c2") if client != busy)
    now.join(mover, changed=True)
    assert now.given(mover) == ("k0", [1])
    assert now.tasks[mover].solo
    now.answer(mover, 9)
    assert (now.homes[mover], now.models) == ("k1", {"k0": [1], "k1": [11]})
    assert (now.coordinator.state.rounds, now.coordinator.notes) == (1, {"moved": 1})
    assert mover in now.coordinator.desk.waiting


def test_without_migration_a_change_is_told_in_vain() -> None:
    algorithm = FeSEM()
    now = begun()
    assert algorithm.moved(now.coordinator.state, "c0") is None
    fresh = rounds(migrate=True)
    assert FeSEM(migrate=True).moved(fresh.coordinator.state, "c0") is None  # it has no centre yet


@pytest.mark.parametrize(
    "make",
    [
        lambda: FeSEM(clusters=0),
        lambda: FeSEM(centres="first"),  # type: ignore[arg-type]
        lambda: FeSEM(clients_per_round=0),
    ],
)
def test_wrong_settings_are_refused(make) -> None:
    with pytest.raises(ValueError, match=r", (not|but) \S"):
        make()
