"""A client draws between its uploads: it uses what is better, and its task, spool and notebook stay as they are."""

import asyncio
from dataclasses import replace

import numpy as np
import pytest
from homes import Home

from artesian.algorithms import FedAsync, FedAvg, FedEM, Local
from artesian.client import in_use
from artesian.client.asynchronous import AsyncSession
from artesian.client.connect import Client
from artesian.client.in_use import InUse
from artesian.client.transport import Transport
from artesian.core import Plan
from artesian.errors import BadFormat, NothingToDraw, SettingError, Unauthorized
from artesian.learners.arrays import SoftmaxRegression
from artesian.params import seal

MODEL = SoftmaxRegression(3, 2)
GOOD = seal(np.array([9, -9, -9, 9, 0, 0, 0, 0], np.float32))  # the class of a sample is where its 1 stands
BAD = seal(-GOOD)


def learner():
    """60 samples of two classes, each told by its input."""
    y = np.arange(60) % 2
    return MODEL.learner(np.eye(3, dtype=np.float32)[y], y)


class Turning(FedAsync):
    """Its tasks bring BAD; what it draws is BAD up to version 1, then GOOD."""

    def task(self, state, client):
        return replace(super().task(state, client), models={"k0": BAD})

    def fresh(self, state, client):
        return replace(super().fresh(state, client), models={"k0": GOOD if state.version > 1 else BAD})


@pytest.fixture
def home(tmp_path):
    made = Home(tmp_path, secrets=False)
    yield made
    made.close()


@pytest.fixture
def turning(tmp_path):
    made = Home(tmp_path, Turning(), MODEL, secrets=False, plan=Plan(rate=0.001), defence=None)
    yield made
    made.close()


def files(session) -> dict[str, bytes]:
    """All that a refresh goes on from."""
    return {name: (session.home / name).read_bytes() for name in ("task", "notebook") if (session.home / name).exists()}


def test_a_fresh_draw_is_newer_than_the_task_and_is_only_fetched(home) -> None:
    session, other = home.session("c0"), home.session("c1")
    first = session.draw(5)
    assert np.array_equal(session.draw(fresh=True), first)
    other.refresh(home.learner("c1"))
    before = files(session)
    fresh = session.draw(fresh=True)
    assert not np.array_equal(fresh, first)
    assert np.array_equal(session.held()[0][1], first)
    assert np.array_equal(session.draw(), first)
    assert files(session) == before
    home.wire.seen.clear()
    assert np.array_equal(session.draw(fresh=True), fresh)  # 304: from home
    assert home.wire.seen == [("GET", "/v1/clients/c0/model")]


def test_it_asks_how_far_its_model_moved(home) -> None:
    session, other = home.session("c0"), home.session("c1")
    with pytest.raises(SettingError, match="This client has not joined yet"):
        session.moved()
    session.draw(5)
    moved = session.moved()
    assert (moved.versions, moved.distance, moved.changed) == (0, 0, False)
    other.refresh(home.learner("c1"))
    moved = session.moved()
    assert (moved.versions, moved.changed) == (1, True)
    assert moved.distance > 0
    session.draw(fresh=True)
    assert session.moved() == replace(moved, changed=False)  # it holds the newest, and its task is as old as before
    other.refresh(home.learner("c1"))
    assert session.moved().changed
    session.refresh(home.learner())
    assert session.moved() == replace(moved, versions=0, distance=0, changed=False)
    assert not (session.home / "drawn").exists()


def test_a_refresh_says_how_far_the_answer_is_from_its_task(home) -> None:
    session, other = home.session("c0"), home.session("c1")
    session.task(5)
    other.refresh(home.learner("c1"))
    told = session.moved()
    refreshed = session.refresh(home.learner())
    assert refreshed.moved.versions == told.versions + 1  # its own upload
    assert refreshed.moved.distance > 0


def test_a_draw_is_used_where_it_is_no_worse_and_can_be_taken_back(turning) -> None:
    session = turning.session()
    session.refresh(learner(), accept="always")
    kept = files(session)
    turned = session.draw_now(learner())  # version 1: BAD, as is what it has
    assert (turned.won, turned.held_back) == ("drawn", 12)
    turning.session("c1").refresh(learner(), accept="always")
    turned = session.draw_now(learner())
    assert (turned.won, turned.scores) == ("drawn", {"drawn": 1.0, "previous": 0.0})
    for holds in (session, turning.session()):
        assert np.array_equal(holds.held()[0][1], GOOD)
    assert files(session) == kept
    assert session.pending() is None
    assert turning.state.members["c0"].answered == 1
    assert np.array_equal(session.previous()[0][1], BAD)


def test_a_worse_draw_is_not_used(turning) -> None:
    session = turning.session()
    session.task(5)
    session._in_use.use(0, ((1.0, GOOD),))
    drawn = session.draw_now(learner())
    assert (drawn.won, drawn.scores["drawn"]) == ("previous", 0.0)
    assert np.array_equal(session.held()[0][1], GOOD)
    assert session.draw_now(learner(), accept="always").won == "drawn"
    assert np.array_equal(session.held()[0][1], BAD)


def test_the_next_refresh_trains_from_its_task_and_judges_what_was_drawn(turning) -> None:
    """Its task brings BAD, so it trains about BAD; GOOD, drawn meanwhile, is what it used before, and wins."""
    session = turning.session()
    for name in ("c0", "c1"):
        turning.session(name).refresh(learner(), accept="always")
    assert session.draw_now().why == "There were no data to judge by"
    refreshed = session.refresh(learner())
    assert refreshed.won == "previous"
    assert refreshed.scores["trained"] == 0
    assert np.array_equal(refreshed[0][1], GOOD)


def test_killed_while_it_takes_a_draw_into_use_it_goes_on_with_one_of_the_two(turning, monkeypatch) -> None:
    session = turning.session()
    for name in ("c0", "c1"):
        turning.session(name).refresh(learner(), accept="always")

    class Dies(Exception):
        pass

    def die(*_):
        raise Dies

    with monkeypatch.context() as patch:
        patch.setattr(in_use, "write_file", die)
        with pytest.raises(Dies):
            session.draw_now()
    again = turning.session()
    assert np.array_equal(again.held()[0][1], BAD)
    again.draw_now()
    assert np.array_equal(again.held()[0][1], GOOD)
    assert np.array_equal(again.refresh(learner())[0][1], GOOD)
    assert turning.state.members["c0"].answered == 2


def test_the_same_draw_again_does_not_hide_what_was_used_before(turning) -> None:
    session = turning.session()
    for name in ("c0", "c1"):
        turning.session(name).refresh(learner(), accept="always")
    session.draw_now()
    session.draw_now()
    assert np.array_equal(session.previous()[0][1], BAD)


def test_a_draw_is_used_with_what_the_recipe_keeps(tmp_path) -> None:
    """FedEM's clients weigh the components by shares in their notebook."""
    home = Home(tmp_path, FedEM(clients_per_round=1), secrets=False)
    session = home.session()
    session.refresh(home.learner())
    shares = session._notebook()
    drawn = session.draw_now()
    assert len(drawn) == 2
    assert [weight for weight, _ in drawn] == [weight for weight, _ in session._drawn()]
    assert session._notebook() == shares
    with pytest.raises(SettingError, match="This client predicts with 2 models"):
        session.draw(fresh=True)
    home.close()


def test_a_client_that_never_joined_joins_and_may_draw_before_its_first_round(tmp_path) -> None:
    home = Home(tmp_path, FedAvg(clients_per_round=3), secrets=False)
    session = home.session()
    drawn = session.draw_now(samples=7)
    assert home.state.members["c0"].samples == 7
    assert np.array_equal(session.held()[0][1], drawn[0][1])
    moved = session.moved()
    assert (moved.versions, moved.distance, moved.changed) == (None, None, False)
    home.close()


def test_refusals_reach_the_client(tmp_path) -> None:
    home = Home(tmp_path, Local())
    session = home.session()
    session.task(5)
    with pytest.raises(NothingToDraw, match="its clients share nothing"):
        session.moved()
    (session.home / "joined").touch()
    session._secret = "not the secret it joined with"
    with pytest.raises(Unauthorized, match="delete"):
        session.draw(fresh=True)
    home.close()


def test_a_damaged_draw_is_not_kept(home) -> None:
    session = home.session(patience=0.2)
    session.task(5)
    home.wire.spoil = lambda body: body[:-1] + b"\xff"
    with pytest.raises(BadFormat, match="damaged"):
        session.draw_now()
    assert not (session.home / "drawn").exists()


def test_an_empty_home_has_nothing_in_use_to_move(tmp_path) -> None:
    used = InUse(tmp_path)
    used.renew(((1.0, GOOD),))
    assert np.array_equal(used.now()[0][1], GOOD)
    assert used.before() == ()


def test_the_asynchronous_session_draws_too(home) -> None:
    async def life() -> None:
        client = AsyncSession(home.session())
        first = await client.draw(5)
        assert np.array_equal(await client.draw(fresh=True), first)
        assert not (await client.moved()).changed
        assert (await client.draw_now()).won == "drawn"

    asyncio.run(life())


def test_options_of_a_network_need_its_loader(home) -> None:
    client = Client(Transport("http://test", 5.0, transport=home.wire), home.token, home.folder / "c0", "c0")
    with pytest.raises(SettingError, match="options of a network without a loader"):
        client.draw_now(loss=lambda *_: 0)
    assert client.draw_now(home.learner()).why == "9 samples are too few to hold back 5 of them"
