"""The client library against a real application: it saves before it sends, and survives what happens in between."""

import asyncio
import json
import threading
from dataclasses import replace

import numpy as np
import pytest
from homes import MODEL, Home

from artesian.algorithms import IFCA, FedAsync, FedAvg, FedEM, FedSoft, Local
from artesian.client.loop import learner_maker
from artesian.client.session import Session
from artesian.client.transport import Transport
from artesian.core import Act, Plan, Recipe, Upload, derive
from artesian.errors import (
    BadFormat,
    NotFinite,
    ServerFailed,
    SettingError,
    StorageError,
    TaskClosed,
    Unauthorized,
    Unreachable,
)
from artesian.learners.arrays import LinearRegression
from artesian.recipes.kept_optimizers import follow
from artesian.recipes.train import TRAIN
from artesian.server.messages import encode_task
from artesian.server.operating import Operator


def test_a_client_draws_trains_uploads_and_draws_again(home) -> None:
    with home.session() as session:
        first = session.draw()
        ((weight, second),) = session.refresh(home.learner(), accept="always")
        assert weight == 1.0
        assert not np.array_equal(first, second)
        assert np.array_equal(session.draw(), second)
        assert home.state.version == 1
        assert home.state.members["c0"].answered == 1
        assert session.layout.digest == MODEL.layout.digest


def test_it_is_the_same_client_after_a_restart_and_its_home_keeps_it_so(home) -> None:
    home.session().refresh(home.learner())
    again = home.session()
    again.refresh(home.learner())
    assert list(home.state.members) == ["c0"]
    with pytest.raises(SettingError, match="its own home"):
        Session(again.transport, home.token, home.folder / "c0", "another")
    (home.folder / "c0" / "identity.json").write_text("{")
    with pytest.raises(StorageError, match="who this client is"):
        home.session()


def test_it_works_offline_in_between(home) -> None:
    ((_, held),) = home.session().refresh(home.learner())
    home.wire.cut = 10**6
    offline = home.session(patience=0.3)
    assert np.array_equal(offline.held()[0][1], held)
    with pytest.raises(
        Unreachable, match=r"No answer from http://test in .* Check that the server runs, and its address"
    ):
        offline.refresh(home.learner())


def test_a_server_that_is_down_at_first_is_waited_for(home) -> None:
    home.wire.cut = 3
    assert home.session().draw() is not None
    assert len(home.wire.seen) >= 4


def test_an_answer_lost_on_the_way_is_asked_for_again_and_folded_once(home) -> None:
    session = home.session()
    session.task(5)
    home.wire.after = 2  # the upload is taken, and its answer lost, twice
    session.refresh(home.learner())
    assert home.state.version == 1
    assert home.state.members["c0"].answered == 1


class Dies(Exception):
    pass


@pytest.mark.parametrize("place", ["before-sending", "after-it-was-taken", "before-it-was-saved"])
def test_killed_anywhere_nothing_is_counted_or_trained_twice(tmp_path, monkeypatch, place) -> None:
    home = Home(tmp_path, Local())
    session = home.session()
    session.refresh(home.learner())
    trained = []
    learner = home.learner()
    monkeypatch.setattr(type(learner), "train", counted(trained, type(learner).train))

    def die(*_, **__):
        raise Dies

    with monkeypatch.context() as patch:
        name = {"before-sending": "_send", "after-it-was-taken": "_taken", "before-it-was-saved": "_save"}[place]
        patch.setattr(Session, name, die)
        with pytest.raises(Dies):
            session.refresh(learner)
    home.session().refresh(learner)
    answered = home.state.members["c0"].answered
    assert answered == 2
    assert len(trained) == (2 if place == "before-it-was-saved" else 1)
    own = home.session()._notebook()["own"]
    steps = MODEL.layout.unpack(own)["steps"]
    assert steps == 2**53 + 1 + 2  # two trainings count, whatever was lost
    home.close()


KEPT = Plan("adam", 0.1, epochs=2, keep_optimizer_state=True)


def test_an_optimiser_goes_on_after_a_restart_to_the_bits_of_a_simulation(tmp_path) -> None:
    home = Home(tmp_path, FedAsync(), LinearRegression(3), plan=KEPT)
    for _ in range(3):
        home.session().refresh(home.learner(), tune=1)
    (state,) = home.session()._notebook()["optimizers"]["states"]["train"]
    assert state["steps"] == 6  # one batch an epoch; tuning counts for nothing
    served = home.service.coordinator.digest()
    home.close()
    simulated, book = home.federation.begin(), {}
    (reply,) = simulated.join("c0", home.learner().samples)
    for _ in range(3):
        fit = follow(TRAIN, home.model.layout, "c0", reply.task, home.learner(), book)
        book, (reply,) = fit.notebook, simulated.receive(fit.upload)
    assert simulated.digest() == served


def counted(seen: list, train):
    def wrapper(self, *args, **options):
        seen.append(1)
        return train(self, *args, **options)

    return wrapper


@pytest.mark.parametrize(
    "spoil",
    [
        lambda data: data[: len(data) // 2],
        lambda _: b"",
        lambda data: data[:-4] + b"\xff\xff\xff\x7f" if data else data,
    ],
)
def test_a_half_or_unsound_model_is_never_kept(home, spoil) -> None:
    session = home.session(patience=0.2)
    held = session.draw()
    before = (home.folder / "c0" / "task").read_bytes()
    home.wire.spoil = spoil
    with pytest.raises(BadFormat, match="damaged on its way"):
        session.refresh(home.learner())
    assert (home.folder / "c0" / "task").read_bytes() == before
    assert np.array_equal(session.draw(), held)
    home.wire.spoil, home.wire.seen = None, []
    session.refresh(home.learner())  # it was taken: the answer is fetched, and nothing sent again
    assert home.wire.seen == [("GET", "/v1/clients/c0/task")]
    assert home.state.version == 1
    assert not np.array_equal(session.draw(), held)


def test_a_garbled_answer_is_asked_for_again(home) -> None:
    session, spoilt = home.session(), []

    def once(data: bytes) -> bytes:
        spoilt.extend([data] if data else [])
        return data[:-1] if len(spoilt) == 1 else data

    session.task(5)
    home.wire.spoil = once
    session.refresh(home.learner())
    assert home.state.members["c0"].answered == 1
    assert len(spoilt) >= 2


def test_a_layout_that_arrived_garbled_is_not_kept(home) -> None:
    session = home.session(patience=0.3)
    home.wire.spoil = lambda data: data.replace(b'"shape":[3]', b'"shape":[4]')
    for _ in range(2):
        with pytest.raises(BadFormat, match="damaged on its way"):
            _ = session.layout
    home.wire.spoil = None
    assert session.layout == MODEL.layout


def test_one_model_down_per_refresh(home) -> None:
    session, models = home.session(), []

    def count(data: bytes) -> bytes:
        models.extend([len(data)] if b"models/blend" in data else [])
        return data

    session.draw()
    home.wire.spoil = count
    for cycle in range(3):
        session.refresh(home.learner(cycle=cycle))
    assert len(models) == 3
    assert home.state.version == 3


def test_an_upload_that_will_never_be_taken_is_not_sent_for_ever(home, monkeypatch) -> None:
    session, learner = home.session(), home.learner()
    with monkeypatch.context() as patch:
        patch.setattr(type(learner), "train", lambda _, params, **__: params * np.float32("nan"))
        with pytest.raises(NotFinite):
            session.refresh(learner)
    session.refresh(learner)  # trained again
    assert home.state.members["c0"].answered == 1


def test_a_wrong_token_and_a_page_that_is_no_server(home) -> None:
    session = home.session()
    session.token = "nonsense"
    with pytest.raises(Unauthorized, match="enrolment token"):
        session.task(5)
    home.wire.spoil = lambda _: b"<html>"
    with pytest.raises(BadFormat, match="Artesian server"):
        session.task(5)


def test_a_withdrawn_task_is_dropped_and_the_next_refresh_starts_afresh(home) -> None:
    session = home.session()
    task = session.task(5)
    upload = Upload("c0", task.number, 5, {"blend": task.models["blend"]})
    home.service.coordinator.expire("c0", task.number)
    with pytest.raises(TaskClosed):
        session.upload(upload)
    assert not (home.folder / "c0" / "spool").exists()
    session.refresh(home.learner())
    assert home.state.members["c0"].answered == 2


def test_rounds_are_waited_for(tmp_path) -> None:
    home = Home(tmp_path, FedAvg(clients_per_round=2))
    one, two = home.session("c0"), home.session("c1")
    with pytest.raises(SettingError, match="No model yet"):
        one.refresh(home.learner("c0"), wait=0)
    waiting = threading.Thread(target=lambda: one.refresh(home.learner("c0"), wait=20))
    waiting.start()
    two.refresh(home.learner("c1"))
    waiting.join()
    assert home.state.version == 1
    one.leave()
    assert home.state.present == 1
    home.close()


def test_a_full_disk_at_home_loses_nothing(home, monkeypatch) -> None:
    session = home.session()
    session.refresh(home.learner())
    before = {path.name: path.read_bytes() for path in (home.folder / "c0").iterdir()}

    def full(*_):
        raise StorageError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr("artesian.client.session.write_file", full)
        with pytest.raises(StorageError):
            session.refresh(home.learner())
    assert {path.name: path.read_bytes() for path in (home.folder / "c0").iterdir()} == before
    session.refresh(home.learner())
    assert home.state.members["c0"].answered == 2


def test_messages_of_a_client_are_what_the_server_reads(home) -> None:
    session = home.session()
    task = session.task(5)
    reply = session.upload(Upload("c0", task.number, 5, {"blend": task.models["blend"]}))
    assert reply.number == 2
    assert encode_task(reply) == (home.folder / "c0" / "task").read_bytes()


def test_a_refresh_may_tune_what_comes_back(home) -> None:
    session, learner = home.session(), home.learner()
    tuned = session.refresh(learner, tune=2)
    drawn, task = session.draw(), session.kept()
    plan = replace(Plan.of(task.settings), epochs=2)
    expected = learner.train(drawn, seed=derive(task.settings["seed"], "tune"), plan=plan)
    assert tuned[0][1].tobytes() == expected.tobytes() != drawn.tobytes()
    assert home.session().held()[0][1].tobytes() == expected.tobytes()
    assert home.state.members["c0"].answered == 1
    with pytest.raises(SettingError, match="tune must be a number of epochs from 0 on, not -1"):
        session.refresh(learner, tune=-1)


def test_a_client_refuses_a_recipe_it_does_not_have_and_follows_its_own(tmp_path) -> None:
    class Shrinking(FedAsync):
        def task(self, state, client):
            return replace(super().task(state, client), recipe="shrink")

    home = Home(tmp_path, Shrinking())
    with pytest.raises(SettingError, match=r"no recipe 'shrink'.*connect\(\.\.\., recipes="):
        home.session().task(5)
    assert not (home.folder / "c0" / "task").exists()  # a task nobody can follow is not kept
    shrink = Recipe("shrink", TRAIN.fit, TRAIN.use)
    home.session(recipes=[shrink]).refresh(home.learner())
    assert home.state.members["c0"].answered == 1
    home.close()


def test_a_client_of_fedem_holds_an_ensemble_and_cannot_draw_one_model(tmp_path) -> None:
    home = Home(tmp_path, FedEM())
    with home.session() as session:
        ensemble = session.refresh(home.learner())
        assert [share for share, _ in ensemble] == list(session._notebook()["mixture"].values())
        assert sum(share for share, _ in ensemble) == pytest.approx(1)
        assert len(ensemble) == 2
        with pytest.raises(SettingError, match=r"2 models.*Call held\(\)"):
            session.draw()
    home.close()


def test_a_client_of_fedem_goes_on_from_its_shares_after_a_crash(tmp_path) -> None:
    home = Home(tmp_path, FedEM())
    home.session().refresh(home.learner())
    told = home.state.members["c0"].mixture
    session = home.session()
    task = session.task(5)
    assert session._notebook()["mixture"] == told == task.mixture
    home.wire.cut = 10**6
    with pytest.raises(Unreachable):
        home.session(patience=0.3).refresh(home.learner())  # it has a task at home, and nobody to ask
    home.wire.cut = 0
    home.session().refresh(home.learner())
    assert home.state.members["c0"].answered == 2
    assert home.session()._notebook()["mixture"] == home.state.members["c0"].mixture != told
    home.close()


def test_a_client_of_ifca_predicts_with_its_pick(tmp_path) -> None:
    home = Home(tmp_path, IFCA())
    session = home.session("c1")
    first = session.draw()
    session.refresh(home.learner("c1"))
    (picked,) = home.state.members["c1"].mixture
    assert session._notebook()["mixture"] == {picked: 1.0}
    assert np.array_equal(home.session("c1").draw(), session.kept().models[picked])
    assert np.array_equal(first, MODEL.start(0))  # before any pick
    home.close()


def test_a_client_of_fedsoft_keeps_its_personal_model_in_its_spool_and_then_in_its_notebook(tmp_path) -> None:
    home = Home(tmp_path, FedSoft())
    even = np.mean([MODEL.start(i)[:3] for i in range(2)], axis=0)
    home.session().refresh(home.learner())  # an estimation, answered by a training at once
    assert (home.state.memory["trained"], home.state.memory["estimated"]) == (1, 0)
    first = home.session().draw()
    assert not np.allclose(first[:3], even)
    home.session().task(5)
    session = home.session()

    def dies(spool, begun=False):
        raise KeyboardInterrupt

    session._send = dies
    with pytest.raises(KeyboardInterrupt):
        session.refresh(home.learner())
    again = home.session()
    assert np.array_equal(again.draw(), first)  # what is not taken does not count yet
    trained = again.pending().params
    ((_, held),) = again.refresh(home.learner(cycle=1))  # sent as it was saved, not trained again
    assert np.array_equal(held, trained)
    assert np.array_equal(home.session().draw(), trained)
    assert home.state.memory["trained"] == 2
    home.close()


def test_a_home_of_another_store_is_named(home) -> None:
    session = home.session()
    session.task(5)
    path = home.folder / "c0" / "identity.json"
    path.write_text(path.read_text().replace(json.loads(path.read_text())["secret"], "s" * 43))
    with pytest.raises(Unauthorized, match=r"another home, or delete .*c0"):
        home.session().task(5)


@pytest.mark.parametrize(
    ("kind", "remedy"),
    [("revoke", "Ask the operator to reset it"), ("reset", "Join again with a new secret")],
)
def test_what_the_operator_decided_is_said_as_the_server_says_it(home, kind, remedy) -> None:
    session = home.session()
    session.task(5)
    asyncio.run(Operator(home.service).change_standing(kind, "c0", Act("a0")))
    with pytest.raises(Unauthorized, match=f"The operator {kind.rstrip('e')}[a-z]* client c0. {remedy}"):
        session.task(5)


def test_a_lost_answer_leaves_no_proof_of_an_earlier_upload(home) -> None:
    session = home.session(patience=0.2)
    session.task(5)
    (home.folder / "c0" / "acknowledgement").write_text("of an upload before")
    home.wire.spoil = lambda data: data[:-1]
    with pytest.raises(BadFormat, match="damaged on its way"):
        session.refresh(home.learner())
    home.wire.spoil = None
    session.refresh(home.learner())
    assert session.acknowledgement is None


def test_a_server_that_failed_is_quoted(home) -> None:
    session = home.session(patience=0.2)
    session.task(5)
    (home.folder / "store" / "tokens.json").write_text("{")
    with pytest.raises(ServerFailed, match=r"failed with status 507: The server cannot use its disk\. Try again later"):
        session.keys()


def test_a_wrong_token_says_where_tokens_come_from(home) -> None:
    with pytest.raises(Unauthorized, match="the operator makes one with artesian token make"):
        Session(Transport("http://test", transport=home.wire), "wrong", home.folder / "c1").task(5)


def test_a_learner_without_its_module_is_refused() -> None:
    with pytest.raises(SettingError, match=r"'lrn' does not say where the learner is. Write it as MODULE:NAME"):
        learner_maker("lrn")


def test_an_address_without_a_scheme_gets_the_right_one() -> None:
    with pytest.raises(SettingError, match=r"http://127\.0\.0\.1:8440"):
        Transport("127.0.0.1:8440")
