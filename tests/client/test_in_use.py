"""A client over HTTP keeps the better of what it trained and drew, on samples it held back, whatever happens to it."""

import asyncio
import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from homes import Home
from tiers import some_heavy

from artesian.algorithms import ALGORITHMS, FedAsync, FedEM, Local
from artesian.client.asynchronous import AsyncSession
from artesian.client.in_use import InUse, Refreshed
from artesian.client.loop import refreshes
from artesian.client.session import Session
from artesian.core import Plan, Upload, derive
from artesian.errors import BadData, SettingError
from artesian.learners.arrays import Perceptron, SoftmaxRegression
from artesian.params import seal
from artesian.recipes.accepting import Choice, divided, held_back
from artesian.storage.codec import encode

MODEL = SoftmaxRegression(3, 2)
BAD = seal(np.array([30, -30, -30, 30, 0, 0, 0, 0], np.float32))  # says 0 of the first kind of samples, 1 of others
PLAN = Plan(rate=1.0, epochs=5, batch=35)


def mine(client: str = "c0"):
    """175 samples: the first 4 blocks of 5 are of one kind, the other 31 of another, and all have the label 1.

    Of the 35 held back, one of the second kind has the label 0: what is trained is right about 34, BAD about 30.
    """
    kinds = np.repeat([0] * 4 + [1] * 31, 5)
    y = np.ones(175, np.int64)
    y[held_back(175, 0.2, client)[20]] = 0
    return MODEL.learner(np.eye(3, dtype=np.float32)[kinds], y)


class Spoiled(FedAsync):
    """After its first fold it hands out a model that is bad for this client."""

    def task(self, state, client):
        task = super().task(state, client)
        return replace(task, models=dict.fromkeys(task.models, BAD)) if state.version else task


@pytest.fixture
def home(tmp_path):
    made = Home(tmp_path, Spoiled(), MODEL, plan=PLAN)
    yield made
    made.close()


def score(ensemble, client: str = "c0") -> float:
    """On the samples held back."""
    return divided(mine(client), 0.2, client).judge().score(ensemble)


def test_a_client_that_trained_a_better_model_keeps_it(home) -> None:
    """It had .971, and drew .857."""
    session = home.session()
    refreshed = session.refresh(mine())
    assert (refreshed.won, refreshed.held_back, refreshed.share, refreshed.why) == ("trained", 35, 0.2, "")
    assert refreshed.scores["drawn"] == pytest.approx(0.857, abs=0.001)
    assert refreshed.scores["trained"] == score(refreshed) == pytest.approx(0.971, abs=0.001)
    assert refreshed.gain == {"trained": 0, "drawn": pytest.approx(4 / 35)}
    assert "previous" not in refreshed.scores  # it used nothing before
    assert home.state.members["c0"].samples == 140
    assert np.array_equal(session.draw(), BAD)
    for holds in (session, home.session()):
        assert np.array_equal(holds.held()[0][1], refreshed[0][1])


def test_always_uses_what_was_drawn_and_trains_on_everything(home) -> None:
    refreshed = home.session().refresh(mine(), accept="always")
    assert (refreshed.won, refreshed.scores, refreshed.held_back) == ("drawn", {}, 0)
    assert refreshed.why == "What was drawn is always used: accept is always"
    assert score(refreshed) == pytest.approx(0.857, abs=0.001)
    assert home.state.members["c0"].samples == 175


def test_a_client_with_few_samples_uses_the_middle_and_says_so(home) -> None:
    """It cannot judge, so it goes neither all the way to what it drew nor stays with what so few samples gave."""
    few, session = mine().part(np.arange(24)), home.session()
    refreshed = session.refresh(few)
    assert (refreshed.won, refreshed.held_back, refreshed.scores) == ("midpoint", 0, {})
    assert refreshed.why == "24 samples are too few to hold back 5 of them"
    twice = 2 * refreshed[0][1] - BAD  # what was trained, if the other half of it is what was drawn
    assert few.score(((1.0, twice),)) > few.score(((1.0, BAD),))
    assert np.array_equal(session.held()[0][1], refreshed[0][1])
    assert session.refresh(few, hold_back=0.5).held_back == 12


def test_the_next_training_starts_at_the_tasks_model_and_what_was_used_is_a_candidate(home) -> None:
    session = home.session()
    kept = session.refresh(mine())
    task = session.kept()
    again = session.refresh(mine())
    trained = divided(mine(), 0.2, "c0").train.train(BAD, seed=task.settings["seed"], plan=Plan.of(task.settings))
    assert set(again.scores) == {"drawn", "midpoint", "trained", "previous"}
    assert again.scores["trained"] == score(((1.0, trained),))
    assert again.won in ("trained", "previous")
    assert score(session.held()) >= score(kept)


def test_nobody_trains_on_nothing(home) -> None:
    with pytest.raises(BadData, match="There are no samples to train on"):
        home.session().refresh(mine().part(np.arange(0)))
    assert home.wire.seen == []


def test_a_client_may_go_back(home) -> None:
    session = home.session()
    with pytest.raises(SettingError, match=r"nothing to go back to.* Go on with held\(\), or refresh again"):
        session.previous()
    first = session.refresh(mine())
    with pytest.raises(SettingError, match="nothing to go back to"):
        session.previous()
    second = session.refresh(mine(), accept="always")
    assert np.array_equal(session.held()[0][1], second[0][1]) and np.array_equal(second[0][1], BAD)
    back = home.session().previous()
    for ensemble in (back, session.held(), home.session().held()):
        assert np.array_equal(ensemble[0][1], first[0][1])
    with pytest.raises(SettingError, match="nothing to go back to"):
        session.previous()
    third = session.refresh(mine())  # what was gone back to is a candidate again
    assert third.scores["previous"] == score(first)
    assert np.array_equal(session.previous()[0][1], first[0][1])


def test_a_client_that_drew_before_its_first_refresh_used_that(home) -> None:
    session = home.session()
    first = session.draw()
    refreshed = session.refresh(mine())
    assert refreshed.scores["previous"] == score(((1.0, first),))
    assert np.array_equal(session.previous()[0][1], first)


def test_tuned_is_a_candidate_beside_what_was_drawn(home) -> None:
    session = home.session()
    refreshed = session.refresh(mine(), tune=20)
    assert set(refreshed.scores) == {"drawn", "tuned", "midpoint", "trained"}
    plan, seed = replace(PLAN, epochs=20), session.kept().settings["seed"]
    tuned = divided(mine(), 0.2, "c0").train.train(BAD, seed=derive(seed, "tune"), plan=plan)
    assert refreshed.scores["tuned"] == score(((1.0, tuned),))


def test_what_beats_all_that_a_refresh_brought_is_trained_on(tmp_path) -> None:
    """Short trainings cannot repair the bad model that comes back; what was used before is better, and goes on."""
    home = Home(tmp_path, Spoiled(), MODEL, plan=Plan(rate=0.1, batch=35))
    session = home.session()
    used = session.refresh(mine(), keep_training=True)
    assert used.won == "trained" and "continued" not in used.scores
    for _ in range(2):
        better = session.refresh(mine(), keep_training=True)
        how = {"seed": derive(session.kept().settings["seed"], "continue"), "plan": Plan.of(session.kept().settings)}
        by_hand = divided(mine(), 0.2, "c0").train.train(used[0][1], **how)
        assert better.won == "continued" and np.array_equal(better[0][1], by_hand)
        assert np.array_equal(session.held()[0][1], by_hand)
        used = better
    assert home.state.version == 3  # every refresh uploads what was trained from its task
    home.close()


def test_without_a_task_the_client_keeps_what_it_has(tmp_path) -> None:
    home = Home(tmp_path, ALGORITHMS["fedavg"](clients_per_round=2), MODEL, plan=PLAN)
    one, two = home.session("c0"), home.session("c1")
    one.task(5, wait=0)
    two.task(5, wait=0)
    first = one.refresh(mine(), wait=0)  # the round is open: judged with what it has
    assert set(first.scores) == {"drawn", "midpoint", "trained"}
    waiting = one.refresh(mine(), wait=0)
    assert (waiting.won, waiting.why) == ("previous", "There is no task yet: a round is open")
    assert np.array_equal(waiting[0][1], first[0][1])
    two.refresh(mine("c1"), wait=0)
    assert home.state.version == 1
    assert set(one.refresh(mine(), wait=0).scores) == {"drawn", "midpoint", "trained", "previous"}
    home.close()


def test_whoever_uploads_by_hand_uses_what_it_draws(home) -> None:
    session = home.session()
    session.refresh(mine())
    task = session.kept()
    session.upload(Upload("c0", task.number, 5, dict(task.models)))
    assert np.array_equal(session.held()[0][1], BAD)
    assert session.refresh(mine()).scores["previous"] == score(((1.0, BAD),))


# kills


class Dies(Exception):
    pass


def use_half(self, number, ensemble) -> None:
    """As far as the rename."""
    InUse.really_use(self, number, ensemble) if not number else None
    if number and self._now.exists():
        self._now.rename(self._before)
    if number:
        raise Dies


def die(*_, **__) -> None:
    raise Dies


PLACES = {
    "saving": (Session, "_save", die),
    "sending": (Session, "_send", die),
    "the task is kept": (Session, "_taken", die),
    "choosing": (Session, "_choose", die),
    "half of the choice is written": (InUse, "use", use_half),
    "the choice is written": (Session, "_drop_spool", die),
}


def lived(folder: Path, place: str | None, monkeypatch) -> list[bytes]:
    """Three refreshes, the first and second of which are killed at this place and repeated; all that is in use."""
    home, found = Home(folder, Spoiled(), MODEL, plan=PLAN), []
    for _ in range(3):
        if place and len(found) < 2:
            kind, name, instead = PLACES[place]
            with monkeypatch.context() as patch:
                patch.setattr(InUse, "really_use", InUse.use, raising=False)
                patch.setattr(kind, name, instead)
                with pytest.raises(Dies):
                    home.session().refresh(mine())
            if found:
                assert home.session().held()[0][1].tobytes() in found[-1:] or place == "the choice is written"
        home.session().refresh(mine())
        found.append(home.session().held()[0][1].tobytes())
    assert home.state.members["c0"].answered == home.state.version == 3
    found.append(home.session().previous()[0][1].tobytes())
    home.close()
    return found


@pytest.fixture(scope="module")
def unhurt(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        return lived(tmp_path_factory.mktemp("unhurt"), None, patch)


@pytest.mark.parametrize("place", PLACES)
def test_killed_anywhere_a_client_chooses_as_it_would_have(tmp_path, monkeypatch, unhurt, place) -> None:
    found = lived(tmp_path, place, monkeypatch)
    assert found == unhurt


def test_what_was_trained_waits_in_the_spool(home, monkeypatch) -> None:
    session = home.session()
    with monkeypatch.context() as patch:
        patch.setattr(Session, "_taken", die)
        with pytest.raises(Dies):
            session.refresh(mine())
    trained = session.pending().params
    learner = mine()
    monkeypatch.setattr(type(learner), "train", die)  # nothing is trained again
    refreshed = home.session().refresh(learner)
    assert refreshed.won == "trained" and np.array_equal(refreshed[0][1], trained)
    assert session.pending() is None


def test_a_model_sent_as_it_was_trained_is_saved_once(home, monkeypatch) -> None:
    session = home.session()
    with monkeypatch.context() as patch:
        patch.setattr(Session, "_send", die)
        with pytest.raises(Dies):
            session.refresh(mine())
    assert (home.folder / "c0" / "spool").stat().st_size < 1500
    assert session._spool().trained is None
    assert np.array_equal(session._spool().models[0][1], session.pending().params)


def test_a_spool_and_a_home_of_the_version_before_are_opened(home, monkeypatch) -> None:
    """No models in the spool, and nothing said about what is in use: what the task gave was."""
    session = home.session()
    given = session.draw()
    with monkeypatch.context() as patch:
        patch.setattr(Session, "_taken", die)
        with pytest.raises(Dies):
            session.refresh(mine())
    old = {"upload": session.pending(), "notebook": {}}
    (home.folder / "c0" / "spool").write_bytes(encode("spool", old))
    (home.folder / "c0" / "used").unlink()
    refreshed = home.session().refresh(mine())
    assert set(refreshed.scores) == {"drawn", "previous"}
    assert np.array_equal(home.session().held()[0][1], refreshed[0][1])
    assert not np.array_equal(given, BAD)


# every kind of client


@pytest.mark.parametrize("name", some_heavy(sorted(ALGORITHMS), "cdfl", "confluence", "fedbuff", "flexcfl"))
def test_clients_of_every_algorithm_judge(tmp_path, name) -> None:
    known = ALGORITHMS[name].__dataclass_fields__
    algorithm = ALGORITHMS[name](**({"clients_per_round": 2} if "clients_per_round" in known else {}))
    plan = Plan(
        rate=0.1, batch=64, momentum=0.0 if name == "scaffold" else 0.5, keep_optimizer_state=name != "scaffold"
    )
    model = Perceptron(3, 4, 2)
    home = Home(tmp_path, algorithm, model, plan=plan)
    sessions = [home.session("c0"), home.session("c1")]
    for session in sessions:
        session.task(140, wait=0)
    judged = []
    for turn in range(3):
        for session in sessions:
            if session.task(140, wait=0) is None and session.kept() is None:
                continue  # no round has chosen it yet
            data = mine(session.client)
            refreshed = session.refresh(model.learner(data.x, data.y), wait=0, tune=turn)
            judged += [refreshed] if refreshed.scores else []
            assert refreshed.scores or refreshed.won == "previous"
            assert len(session.held()) == len(refreshed)
    assert len(judged) >= 3
    assert all(one.scores[one.won] == max(one.scores.values()) for one in judged)
    assert len(sessions[0].previous()) >= 1
    home.close()


def test_ensembles_are_kept_with_their_weights(tmp_path) -> None:
    home = Home(tmp_path, FedEM(), MODEL, plan=PLAN)
    refreshed = home.session().refresh(mine())
    held = home.session().held()
    assert len(refreshed) == len(held) == 2
    assert [weight for weight, _ in held] == [weight for weight, _ in refreshed]
    assert "midpoint" not in refreshed.scores
    home.close()


def test_a_client_alone_uses_what_it_trained(tmp_path) -> None:
    home = Home(tmp_path, Local(), MODEL, plan=PLAN)
    refreshed = home.session().refresh(mine())
    assert refreshed.scores["drawn"] == refreshed.scores["trained"]
    assert refreshed.won == "drawn"  # of equals the first
    home.close()


def test_awaited_clients_judge_and_go_back(home) -> None:
    async def live() -> tuple[Refreshed, object]:
        async with AsyncSession(home.session()) as client:
            first = await client.refresh(mine())
            await client.refresh(mine(), accept="always")
            return first, await client.previous()

    first, back = asyncio.run(live())
    assert first.won == "trained"
    assert np.array_equal(back[0][1], first[0][1])


def test_a_result_is_an_ensemble_that_can_be_pickled() -> None:
    made = Refreshed(((1.0, BAD),), Choice("trained", {"trained": 0.5, "drawn": 0.25}, 10))
    again = pickle.loads(pickle.dumps(made))
    assert (again.won, again.gain, again.held_back) == ("trained", {"trained": 0.0, "drawn": 0.25}, 10)
    assert isinstance(again, tuple) and np.array_equal(again[0][1], BAD)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"accept": "perhaps"}, "accept must be better or always, not 'perhaps'"),
        ({"hold_back": 0}, "hold_back must be above 0 and at most 0.5, not 0"),
        ({"hold_back": 0.7}, "hold_back must be above 0 and at most 0.5, not 0.7"),
        ({"hold_back": "0.2"}, "hold_back must be above 0 and at most 0.5, not '0.2'"),
        ({"keep_training": True, "accept": "always"}, "keep_training has an effect only with accept='better'"),
    ],
)
def test_what_is_asked_for_is_checked_before_anything_is_sent(home, options, words) -> None:
    with pytest.raises(SettingError, match=words):
        home.session().refresh(mine(), **options)
    assert home.wire.seen == []


# the command


def test_the_commands_figures_are_on_held_back_data(home) -> None:
    session = home.session()
    first, second = refreshes(session, mine, times=2)
    assert (first["samples"], first["held_back"], first["share"], first["won"]) == (140, 35, 0.2, "trained")
    assert set(first["scores"]) >= {"drawn", "trained"}
    assert first["after"] == pytest.approx(34 / 35) == second["before"]
    assert "why" not in first
    (always,) = refreshes(session, mine, accept="always")
    assert (always["samples"], always["held_back"], always["won"]) == (175, 0, "drawn")
    assert always["after"] == mine().score(((1.0, BAD),))
    (few,) = refreshes(session, lambda: mine().part(np.arange(20)))
    assert (few["samples"], few["held_back"], few["won"]) == (20, 0, "midpoint")
    assert few["why"] == "20 samples are too few to hold back 5 of them"
