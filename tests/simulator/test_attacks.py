"""Hostile clients: what each attack sends, who attacks, and what a run with attackers says."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiers import some_thorough

from artesian.algorithms import CDFL, SCAFFOLD, FedAsync, FedAvg, FedBuff, FedSoftAsync
from artesian.config.experiments import load
from artesian.core import OWN, Task, Upload, generator
from artesian.data.datasets import Samples
from artesian.errors import NotFinite, SettingError, Stalled
from artesian.simulator.attacks import ATTACKS, FLOOD, NOISE, SAMPLES, Attack, forged, poisoned
from artesian.simulator.experiment import Experiment
from artesian.simulator.fleet import Fleet, Habits
from artesian.simulator.jobs import Job, Place
from artesian.simulator.pretraining import Start
from artesian.simulator.result import Run
from artesian.simulator.run import run_experiment
from artesian.simulator.saved_runs import progress_in
from artesian.simulator.simulation import Progress, Simulation
from artesian.testing import InProcess, ToyModel, ToyWorld

LAYOUT = ToyModel().layout
NAMES = [f"c{i:03d}" for i in range(20)]
SMALL = ["world.clients=8", "snapshot_every=10", "evaluate_every=7"]


def model(*weight: float, mean: float = 0.5, steps: int = 7) -> np.ndarray:
    arrays = {"weight": np.array(weight, np.float32), "mean": np.array([mean], np.float32), "steps": np.array(steps)}
    return LAYOUT.pack(arrays)


GIVEN = model(1, 2, 3, mean=0.25, steps=6)
HONEST = model(2, 2, 1)  # a change of (1, 0, -2)
SENT = {  # what each attack makes of it
    "sign-flip": (0, 2, 5),
    "x10": (11, 2, -17),
    "x1e6": (1_000_001, 2, -1_999_997),
    "constant": (1, 1, 1),
    "label-flip": (2, 2, 1),
    "replay": (1, 2, 3),
    "inflated-samples": (0, 2, 5),
    "flood": (0, 2, 5),
}
CHANGES = {  # and of the change alone
    "sign-flip": (-1, 0, 2),
    "x10": (10, 0, -20),
    "x1e6": (1e6, 0, -2e6),
    "constant": (1, 1, 1),
    "label-flip": (1, 0, -2),
    "replay": (0, 0, 0),
    "inflated-samples": (-1, 0, 2),
    "flood": (-1, 0, 2),
}


def toy(algorithm: Any = None, attack: Attack = "sign-flip", share: float = 0.34, **options: Any) -> Experiment:
    fleet = Fleet(hostile_share=share, attack=attack, **options.pop("fleet", {}))
    world = options.pop("world", ToyWorld(6))
    return Experiment(world, ToyModel(), algorithm or CDFL(), fleet=fleet, **{"uploads": 60, **options})


def files(folder: Path) -> dict[str, bytes]:
    """What must be the same bit for bit."""
    tables = [folder / name for name in ("metrics.csv", "clusters.csv", "clients.csv", "journal.jsonl")]
    final = sorted((folder / "final").glob("*.safetensors"))
    assert final
    return {path.name: path.read_bytes() for path in [*tables, *final]}


def counts(run: Run) -> dict[str, Any]:
    """What the summary says of attackers."""
    return {key: run.summary[key] for key in ("uploads", "hostile", "hostile_uploads", "hostile_refused", "refusals")}


# what is sent


@pytest.mark.parametrize("attack", SENT)
def test_each_attack_by_hand(attack: Attack) -> None:
    upload = Upload("c1", 3, 12, {"k0": HONEST}, {"k0": 1.0})
    sent = forged(attack, LAYOUT, upload, Task({"k0": GIVEN}, number=3), seed=0)
    arrays = LAYOUT.unpack(sent.params)
    assert arrays["weight"].tolist() == list(SENT[attack])
    assert (arrays["mean"].tolist(), int(arrays["steps"])) == ([0.5], 7)  # as they were trained
    assert sent.samples == (2**40 if attack == "inflated-samples" else 12)
    assert (sent.client, sent.number, sent.mixture) == ("c1", 3, {"k0": 1.0})
    assert LAYOUT.unpack(HONEST)["weight"].tolist() == [2, 2, 1]  # untouched
    assert not sent.params.flags.writeable


@pytest.mark.parametrize("attack", CHANGES)
def test_each_attack_on_a_change_by_hand(attack: Attack) -> None:
    task = Task({"k0": GIVEN}, settings={"delta": True}, number=3)
    sent = forged(attack, LAYOUT, Upload("c1", 3, 12, {"k0": model(1, 0, -2)}), task, seed=0)
    assert LAYOUT.unpack(sent.params)["weight"].tolist() == list(CHANGES[attack])


def test_every_attack_is_worked_out_by_hand() -> None:
    assert {*SENT, "noise"} == {*CHANGES, "noise"} == set(ATTACKS)
    assert SAMPLES == 2**40 and FLOOD == 100


def test_a_model_trained_from_several_is_turned_at_their_blend() -> None:
    task = Task({"k0": model(0, 0, 0), "k1": model(4, 4, 4)}, "soft", number=1, returns=(OWN,))
    upload = Upload("c1", 1, 12, {OWN: model(4, 3, 2)}, {"k0": 0.25, "k1": 0.75})  # from (3, 3, 3)
    sent = forged("sign-flip", LAYOUT, upload, task, seed=0)
    assert LAYOUT.unpack(sent.params)["weight"].tolist() == [2, 3, 4]


def noise(seed: int = 0, client: str = "c1", number: int = 3) -> list[float]:
    upload = Upload(client, number, 12, {"k0": HONEST})
    sent = forged("noise", LAYOUT, upload, Task({"k0": GIVEN}, number=number), seed)
    return LAYOUT.unpack(sent.params)["weight"].tolist()


def test_noise_has_ten_times_the_size_of_the_honest_change() -> None:
    size = NOISE * np.sqrt(5 / 3)  # the root of the mean square of (1, 0, -2)
    drawn = generator(0, "attack", "c1", 3).standard_normal(3)
    assert NOISE == 10
    assert noise() == pytest.approx([1, 2, 3] + size * drawn)
    assert noise() == noise()
    assert len({tuple(found) for found in (noise(), noise(1), noise(0, "c2"), noise(0, "c1", 4))}) == 4


def test_what_overflows_is_sent_without_a_warning() -> None:
    task = Task({"k0": model(0, 0, 0)}, number=1)
    sent = forged("x1e6", LAYOUT, Upload("c1", 1, 12, {"k0": model(1e36, 1, 1)}), task, seed=0)
    assert LAYOUT.unpack(sent.params)["weight"].tolist() == [np.inf, 1e6, 1e6]


def test_an_answer_without_models_stays_empty() -> None:
    upload = Upload("c1", 1, 12, mixture={"k0": 1.0})
    assert forged("x10", LAYOUT, upload, Task({"k0": GIVEN}, number=1), seed=0) == upload


# what is trained on


def test_labels_are_flipped_and_numbers_negated() -> None:
    labels = Samples(np.zeros((3, 2)), np.array([0, 3, 9], np.uint8))
    flipped = poisoned("label-flip", labels, 10)
    assert flipped.y.tolist() == [9, 6, 0] and flipped.y.dtype == np.uint8
    assert flipped.x is labels.x
    numbers = Samples(np.zeros((2, 2)), np.array([1.5, -2.0], np.float32))
    assert poisoned("label-flip", numbers, 1).y.tolist() == [-1.5, 2.0]
    assert poisoned("sign-flip", labels, 10) is labels


def test_only_hostile_clients_train_on_flipped_labels() -> None:
    experiment = load("digits-2", ["world.clients=4"])
    world, plain = experiment.world, Place(experiment.world, experiment.model, 0)
    place = replace(plain, hostile=frozenset({world.names[0]}), attack="label-flip")
    settings = {**experiment.training.settings, "epochs": 40, "seed": 0}
    task = Task({"k0": experiment.model.start(0)}, settings=settings, number=1)
    for client, learns_wrong in zip(world.names[:2], (True, False), strict=True):
        visit = world.visit(0, client, 0)
        trained = place.perform(Job(client, 0, task, {})).fit.trained
        right = experiment.model.learner(visit.train.x, visit.train.y).score(trained)
        wrong = experiment.model.learner(visit.train.x, 9 - visit.train.y).score(trained)
        assert (wrong > 0.5 > right) is learns_wrong
        assert np.array_equal(trained[0][1], plain.perform(Job(client, 0, task, {})).fit.trained[0][1]) != learns_wrong


# who attacks, and when


def test_hostile_clients_are_drawn_by_the_seed() -> None:
    drawn = [Habits(Fleet(hostile_share=0.25), NAMES, seed).hostile for seed in range(10)]
    assert {len(hostile) for hostile in drawn} == {5}
    assert len(set(drawn)) > 5
    assert drawn[3] == Habits(Fleet(hostile_share=0.25, attack="x10"), NAMES, 3).hostile
    assert Habits(Fleet(), NAMES, 0).hostile == frozenset()


@pytest.mark.parametrize(("timed", "usual"), [({}, 20.0), ({"schedule": "latency", "latency": 3.0}, 3.0)])
def test_a_flood_takes_a_hundredth_of_the_time(timed: Any, usual: float) -> None:
    flood = Habits(Fleet(hostile_share=0.25, attack="flood", **timed), NAMES, 0)
    plain = Habits(Fleet(**timed), NAMES, 0)
    for name in NAMES:
        if name in flood.hostile:
            assert flood.finishes_at(name, 1, 7.0) == 7.0 + usual / 100
        else:
            assert flood.finishes_at(name, 1, 7.0) == plain.finishes_at(name, 1, 7.0)


@pytest.mark.thorough
@pytest.mark.heavy
@pytest.mark.parametrize("timed", [{}, {"schedule": "latency", "latency": 1.0, "latency_max": 3.0}])
def test_who_floods_uploads_more_often(timed: Any) -> None:
    quiet, flood = (run_experiment(toy(attack=attack, uploads=20, fleet=timed)) for attack in ("sign-flip", "flood"))
    assert quiet.summary["hostile"] == flood.summary["hostile"] == 2
    assert 2 < quiet.summary["hostile_uploads"] < 20  # two of six clients, beside 20 uploads of the others
    assert flood.summary["hostile_uploads"] > 50 * quiet.summary["hostile_uploads"]
    assert len(flood.metrics["upload"]) == len(quiet.metrics["upload"]) == 20
    assert flood.metrics["time"].tolist() == quiet.metrics["time"].tolist()  # honest clients keep their pace


# the same bits everywhere


class Stopped(Exception):
    pass


def stop_at(count: int) -> Any:
    def look(progress: Progress) -> None:
        if progress.uploads == count:
            raise Stopped

    return look


@pytest.mark.heavy
@pytest.mark.parametrize("attack", some_thorough(ATTACKS, "x10"))
def test_processes_and_resumed_runs_find_the_same_bits(attack: Attack, tmp_path: Path) -> None:
    length = 8 if attack == "flood" else 30  # honest uploads
    changes = [f"uploads={length}", "fleet.hostile_share=0.25", f"fleet.attack={attack}", "evaluate=clients"]
    experiment = load("digits-4", [*SMALL, *changes])
    whole = run_experiment(experiment, seed=1, out=tmp_path / "whole")
    pool = run_experiment(experiment, seed=1, out=tmp_path / "pool", workers=2)
    with pytest.raises(Stopped):
        run_experiment(experiment, seed=1, out=tmp_path / "parts", progress=stop_at(length * 2 // 3))
    parts = run_experiment(experiment, seed=1, out=tmp_path / "parts", resume=True)
    assert whole and pool and parts
    assert files(tmp_path / "whole") == files(tmp_path / "pool") == files(tmp_path / "parts")
    assert counts(whole) == counts(pool) == counts(parts)
    assert counts(whole)["hostile_uploads"] > 0


@pytest.mark.heavy
@pytest.mark.parametrize("attack", some_thorough(ATTACKS, "inflated-samples"))
@pytest.mark.parametrize(
    "algorithm",
    [CDFL(), FedAvg(clients_per_round=3), FedBuff(buffer_size=3), FedSoftAsync(), SCAFFOLD(clients_per_round=3)],
    ids=lambda algorithm: algorithm.name,
)
def test_attackers_do_the_same_over_http(attack: Attack, algorithm: Any) -> None:
    experiment = toy(algorithm, attack, uploads=3 if attack == "flood" else 10)
    direct, served = Simulation(experiment, 0), Simulation(experiment, 0, transport=InProcess)
    one, two = direct.run(), served.run()
    served.transport.close()
    assert direct.coordinator.digest() == served.coordinator.digest()
    assert counts(one) == counts(two)


# refusals


@dataclass(frozen=True)
class Far(ToyWorld):
    """Numbers so large that a million times a change is no model's any more."""

    def _points(self, rng: np.random.Generator, cluster: int, count: int) -> Samples:
        near = super()._points(rng, cluster, count)
        return replace(near, x=near.x * np.float32(1e14))


FAR: dict[str, Any] = {"world": Far(6), "start": Start(trunk_epochs=0, epochs=0), "attack": "x1e6"}


def test_a_refused_attacker_asks_again_and_the_run_goes_on(tmp_path: Path) -> None:
    experiment = toy(FedAsync(), **FAR, snapshot_every=10)
    run = run_experiment(experiment, out=tmp_path / "whole")
    assert run
    found = counts(run)
    assert found["hostile_refused"] == found["refusals"]["NotFinite"] > 5
    assert list(found["refusals"]) == ["NotFinite"]
    assert found["uploads"] - found["hostile_uploads"] == 60
    sent = found["uploads"] + found["hostile_refused"]
    assert run.summary["bytes_up"] == sent * LAYOUT.size * 4
    with pytest.raises(Stopped):
        run_experiment(experiment, out=tmp_path / "parts", progress=stop_at(33))
    resumed = run_experiment(experiment, out=tmp_path / "parts", resume=True)
    assert resumed and counts(resumed) == found
    assert files(tmp_path / "parts") == files(tmp_path / "whole")


def test_refusals_are_the_same_over_http() -> None:
    experiment = toy(FedAsync(), **FAR)
    served = Simulation(experiment, 0, transport=InProcess)
    found = counts(served.run())
    served.transport.close()
    assert found == counts(run_experiment(experiment)) and found["hostile_refused"]


def test_a_round_goes_on_without_a_refused_attacker() -> None:
    served = Simulation(toy(FedAvg(clients_per_round=6), **FAR), 0, transport=InProcess)
    run, found = run_experiment(toy(FedAvg(clients_per_round=6), **FAR)), counts(served.run())
    served.transport.close()
    assert counts(run) == found
    assert found["refusals"]["NotFinite"] > 5
    assert run.summary["rounds"] >= 14  # of four honest clients each; the last may still be open


def test_an_attacker_out_of_patience_is_late_and_refused() -> None:
    timed = {"schedule": "latency", "slow_share": 0.9, "slow_factor": 10.0}
    run = run_experiment(toy(FedAvg(clients_per_round=4, patience=2), fleet=timed))
    refused = run.summary["refusals"]["TaskClosed"]
    assert refused == run.summary["hostile_refused"] and 0 < refused < run.summary["late_uploads"]


def test_a_run_that_only_attackers_go_on_with_ends() -> None:
    leaving = {"leave_share": 0.75, "leave_by": 5.0}
    seed = next(seed for seed in range(100) if _all_honest_leave(seed))
    with pytest.raises(Stalled, match=r"121 trainings in a row brought no upload of an honest client. Lower hostile_"):
        run_experiment(toy(fleet=leaving), seed=seed)


def _all_honest_leave(seed: int) -> bool:
    habits = Habits(Fleet(hostile_share=0.34, leave_share=0.75, leave_by=5.0), ToyWorld(6).names, seed)
    return all((habits.leaves_at(name) is None) == (name in habits.hostile) for name in habits.names)


def test_an_honest_clients_refusal_ends_the_run_as_before() -> None:
    class Exploding(ToyModel):
        def learner(self, x: np.ndarray, y: np.ndarray) -> Any:
            return super().learner(x * np.float32("inf"), y)

    experiment = replace(toy(FedAsync()), model=Exploding(), start=Start(trunk_epochs=0, epochs=0))
    with np.errstate(all="ignore"), pytest.raises(NotFinite, match="The model holds"):
        run_experiment(experiment)


# who is evaluated


def test_only_honest_clients_are_evaluated(monkeypatch: pytest.MonkeyPatch) -> None:
    scored: set[str] = set()
    score = Place.score

    def noting(place: Place, wanted: Any, spent: Any) -> float:
        scored.add(wanted.client)
        return score(place, wanted, spent)

    monkeypatch.setattr(Place, "score", noting)
    simulation = Simulation(toy(evaluate="clients"), 0)
    run, hostile = simulation.run(), simulation.habits.hostile
    honest = set(simulation.world.names) - hostile
    assert len(hostile) == 2
    assert scored - {""} == honest
    assert set(run.metrics["client"].tolist()) == set(run.mixtures) == honest
    assert run.summary["clients"] is not None


def test_a_run_lasts_so_many_uploads_of_honest_clients() -> None:
    run = run_experiment(toy())
    assert len(run.metrics["upload"]) == 60
    assert run.summary["uploads"] == 60 + run.summary["hostile_uploads"]
    assert run.summary["hostile_uploads"] > 0


def test_progress_counts_uploads_of_honest_clients(tmp_path: Path) -> None:
    seen: list[int] = []
    experiment = toy(snapshot_every=1)
    run = run_experiment(experiment, out=tmp_path / "run", progress=lambda progress: seen.append(progress.uploads))
    assert run and seen[-1] == 60
    assert progress_in(tmp_path / "run") == {"uploads": 60, "rounds": run.summary["rounds"], "turns": 0}


def test_attackers_do_harm() -> None:
    """A sign that is flipped pulls models away from the data."""
    honest, attacked = run_experiment(toy(FedAsync(), share=0.0)), run_experiment(toy(FedAsync(), "x10"))
    assert attacked.summary["client_after"] < 2 * honest.summary["client_after"] < 0  # minus an error


# runs without attackers


def test_settings_from_before_there_were_attackers_keep_their_digest() -> None:
    assert load("digits-4", ["algorithm.name=fedbuff"]).digest.startswith("16d6e06f97e16781")
    assert "attack" not in load("digits-4").describe()["fleet"]
    told = load("digits-4", ["fleet.hostile_share=0.1"]).describe()["fleet"]
    assert (told["hostile_share"], told["attack"]) == (0.1, "sign-flip")


def test_a_run_without_attackers_says_nothing_of_them() -> None:
    run = run_experiment(toy(share=0.0, uploads=10))
    assert not {"hostile", "hostile_uploads", "hostile_refused", "refusals"} & set(run.summary)


def test_a_run_begun_without_attackers_is_not_resumed_with_them(tmp_path: Path) -> None:
    with pytest.raises(Stopped):
        run_experiment(toy(share=0.0), out=tmp_path / "run", progress=stop_at(5))
    fleet = json.loads((tmp_path / "run" / "config.json").read_text())["experiment"]["fleet"]
    assert "hostile_share" not in fleet
    with pytest.raises(Exception, match=r"hostile_share = 0.0, and now it is 0.34"):
        run_experiment(toy(), out=tmp_path / "run", resume=True)


# wrong settings


@pytest.mark.parametrize("share", [-0.1, 1.0, 1.5, float("nan")])
def test_a_share_of_hostile_clients_is_below_one(share: float) -> None:
    with pytest.raises(ValueError, match=r"hostile_share must be in \[0, 1\), not"):
        Fleet(hostile_share=share)


def test_an_unknown_attack_is_refused_with_the_list() -> None:
    wrong: Any = "signflip"
    with pytest.raises(ValueError, match="attack must be one of sign-flip, x10, x1e6, constant, noise, label-flip, "):
        Fleet(hostile_share=0.1, attack=wrong)
    with pytest.raises(SettingError, match=r"fleet.attack.*'sign-flip'.*'inflated-samples' or 'flood'"):
        load("digits-4", ["fleet.hostile_share=0.1", "fleet.attack=signflip"])


def test_an_attack_without_attackers_is_refused() -> None:
    with pytest.raises(SettingError, match="attack has an effect only with hostile_share"):
        load("digits-4", ["fleet.attack=x10"])


def test_a_fleet_without_an_honest_client_is_refused() -> None:
    with pytest.raises(SettingError, match=r"All clients would be hostile: there are 6. Lower hostile_share"):
        run_experiment(toy(share=0.95))
