"""A client of FlexCFL and FedGroup over HTTP: it looks for its group, then trains, all in one refresh."""

import runpy

import numpy as np
import pytest
from homes import MODEL, WORLD, Home
from servers import Process

from artesian import connect
from artesian.algorithms import FedGroup, FlexCFL
from artesian.algorithms.directions import ORIGIN
from artesian.errors import SettingError
from artesian.learners.arrays import LinearRegression, SoftmaxRegression

FLEX = FlexCFL(groups=2, clients_per_round=2)
SERVED = "__import__('artesian').FlexCFL(groups=2, clients_per_round=4, first_round=4)"


@pytest.fixture
def flex(tmp_path):
    made = Home(tmp_path, FLEX)
    yield made
    made.close()


def cold_start(home: Home):
    """Two sessions, after both trained from the common model: the groups are there, and a round has begun."""
    sessions = [home.session("c0"), home.session("c1")]
    for session in sessions:
        assert session.task(5, wait=0) is None or session is sessions[1]
    for session in sessions:
        session.refresh(home.learner(session.client), wait=0, accept="always")
    assert len(home.state.memory["directions"]) == 2
    return sessions


def finish_round(home: Home, sessions, **data) -> None:
    for session in sessions:
        session.refresh(data.get(session.client, home.learner(session.client)), wait=0, accept="always")


def test_one_refresh_looks_for_the_group_and_trains(flex) -> None:
    sessions = cold_start(flex)
    before = flex.state.members["c0"].answered
    finish_round(flex, sessions)
    assert flex.state.rounds == 2
    assert flex.state.members["c0"].answered == before + 2  # the look, and the training
    assert sessions[0].kept().recipe == "train"  # the next round's look was not fetched yet


def test_while_a_client_looks_it_predicts_with_its_last_model(flex) -> None:
    session, other = cold_start(flex)
    origin = flex.state.memory["origin"]
    looking = session.task(5, wait=0)
    assert (looking.recipe, ORIGIN in looking.models) == ("match", True)
    assert np.array_equal(session.draw(), origin)  # what it trained in the cold start
    finish_round(flex, [session, other])
    given = session.kept()
    (group,) = given.models
    looking = session.task(5, wait=0)
    assert (looking.recipe, looking.models) == ("match", {})
    assert np.array_equal(session.draw(), given.models[group])
    assert np.array_equal(flex.session("c0").held()[0][1], given.models[group])  # also after a restart


def test_a_lost_notebook_is_filled_again_within_one_refresh(flex) -> None:
    sessions = cold_start(flex)
    finish_round(flex, sessions)
    (flex.folder / "c0" / "notebook").unlink()
    before = flex.state.members["c0"].answered
    finish_round(flex, sessions)
    assert flex.state.members["c0"].answered == before + 3  # it asked, looked, and trained
    assert flex.state.members["c1"].answered == before + 2
    book = flex.session("c0")._notebook()
    assert set(book["directions"]) == {"k0", "k1"}
    assert book["histogram"] == list(flex.learner("c0").histogram)
    assert set(flex.state.memory["holds"]) == {"c0", "c1"}


class Dies(Exception):
    pass


@pytest.mark.parametrize("place", ["_send", "_taken"])
def test_killed_between_look_and_training_it_goes_on(flex, monkeypatch, place) -> None:
    sessions = cold_start(flex)

    def die(*_, **__):
        raise Dies

    with monkeypatch.context() as patch:
        patch.setattr(f"artesian.client.session.Session.{place}", die)
        with pytest.raises(Dies):
            sessions[0].refresh(flex.learner("c0"), wait=0)
    again = flex.session("c0")
    assert again.pending().mixture is not None
    finish_round(flex, [again, sessions[1]])
    assert flex.state.rounds == 2
    assert set(again._notebook()["directions"]) == {"k0", "k1"}
    assert again._notebook()["histogram"]


def test_a_client_whose_data_changed_moves_while_it_waits(tmp_path) -> None:
    home = Home(tmp_path, FLEX)
    sessions = cold_start(home)
    sessions[0].refresh(home.learner("c0"), wait=0, accept="always")  # trained: it waits for c1 to close the round
    mine, others = home.state.members["c0"].mixture, home.state.members["c1"].mixture
    assert mine != others
    moved = np.concatenate([WORLD.visit(0, "c1", 0).train.x] * 5)
    learner = MODEL.learner(moved, np.zeros(len(moved), np.int64))
    given = sessions[0].held()[0][1]
    held = sessions[0].refresh(learner, wait=0, changed=True, accept="always")
    assert home.state.members["c0"].mixture == others
    assert home.state.rounds == 1
    assert np.array_equal(held[0][1], given)  # until it is given its new group's
    sessions[1].refresh(home.learner("c1"), wait=0, accept="always")
    sessions[0].refresh(learner, wait=0, accept="always")
    assert list(sessions[0].kept().models) == list(others)
    home.close()


def test_a_newcomer_draws_before_it_has_a_group(tmp_path) -> None:
    home = Home(tmp_path, FedGroup(groups=2, clients_per_round=2))
    sessions = cold_start(home)
    late = home.session("c2")
    assert late.task(5, wait=0) is None
    finish_round(home, sessions)
    task = late.task(5, wait=0)
    assert (task.recipe, set(task.models)) == ("match", {ORIGIN, "k0", "k1"})
    weight = home.state.memory["origin"][:3] + sum(way[:3] for way in home.state.memory["directions"].values()) / 2
    np.testing.assert_allclose(late.draw()[:3], weight, rtol=1e-5)
    ((_, held),) = late.refresh(home.learner("c2"), wait=0, accept="always")
    (group,) = home.state.members["c2"].mixture
    assert np.array_equal(held, home.state.clusters[group].params)
    assert late._notebook() == {}
    home.close()


def test_a_learner_without_labels_is_told_to_use_fedgroup(tmp_path) -> None:
    home = Home(tmp_path, FLEX)

    class Blind:
        samples = 5

        def train(self, params, **_):
            return params

    home.session("c1").task(5, wait=0)
    with pytest.raises(SettingError, match="Use fedgroup"):
        home.session("c0").refresh(Blind(), wait=0)
    home.close()


def test_array_learners_count_their_labels() -> None:
    x, y = np.zeros((4, 2), np.float32), np.array([2, 0, 2, 2])
    assert SoftmaxRegression(2, 4).learner(x, y).histogram == (1, 0, 3, 0)
    assert SoftmaxRegression(2, 4).learner(x[:0], y[:0]).histogram == (0, 0, 0, 0)
    assert LinearRegression(2).learner(x, y.astype(np.float32)).histogram is None


@pytest.mark.heavy
def test_over_a_socket_clients_find_their_groups_and_train(tmp_path) -> None:
    server = Process(tmp_path / "server", algorithm=SERVED)
    points = runpy.run_path(tmp_path / "server" / "points.py")
    clients = [connect(server.url, token=server.token, home=tmp_path / f"c{i}", client=f"c{i}") for i in range(4)]
    learners = [points["MODEL"].learner(*points["draw"](i % 2, 10 + i)) for i in range(4)]
    for client, learner in zip(clients, learners, strict=True):
        client.task(learner.samples, wait=0)
    for _ in range(3):
        for client, learner in zip(clients, learners, strict=True):
            client.refresh(learner, wait=5)
    held = [learner.score(client.held()) for client, learner in zip(clients, learners, strict=True)]
    for client in clients:
        client.close()
    members = server.stop()
    homes = [next(iter(members[f"c{i}"]["mixture"])) for i in range(4)]
    assert homes[0] == homes[2] != homes[1] == homes[3]
    assert all(members[f"c{i}"]["answered"] == 5 for i in range(4))  # one training, two looks and trainings
    assert min(held) > 0.7
