"""Clients that decide: when they refresh, what they see, and the same bits everywhere."""

from __future__ import annotations

import re
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from artesian.algorithms import CASA, FedAsync, FedAvg, FedBuff
from artesian.config.experiments import build, load, simulate
from artesian.drift.detector import Batch, Drift
from artesian.errors import SettingError
from artesian.params import seal
from artesian.report.runs import finished, tables
from artesian.simulator.drifting import Drifts
from artesian.simulator.experiment import Experiment
from artesian.simulator.fleet import Fleet
from artesian.simulator.jobs import Look, Place
from artesian.simulator.profiling import Stopwatch
from artesian.simulator.run import run_experiment
from artesian.simulator.saved_runs import open_run, progress_in
from artesian.simulator.shifts import Shift
from artesian.simulator.watching import AGAIN, FIRST, Watches
from artesian.testing import InProcess, ToyModel, ToyWorld

SMALL = ["turns=40", "world.clients=4", "snapshot_every=7", "evaluate_every=10", "start.trunk_epochs=0"]
SMALL += ["start.epochs=1", "algorithm.name=fedasync"]
SMALL += ["watch.settings.reference=40", "watch.settings.window=20", "watch.batch=20", "drift.every=4"]


class Third:
    """Finds drift in every third batch since it was reset."""

    name: ClassVar[str] = "third"
    part: ClassVar[Any] = "losses"

    def __init__(self) -> None:
        self.batches = 0

    def observe(self, batch: Batch) -> Drift | None:
        self.batches += 1
        return None if self.batches % 3 else Drift(self.name, 3.0, 3.0, batch.samples, "three batches")

    def reset(self) -> None:
        self.batches = 0

    def state(self) -> Any:
        return {"batches": self.batches}

    def restore(self, state: Any) -> None:
        self.batches = state["batches"]


THIRD = f"{__name__}:Third"


def toy(watch: Watches, turns: int = 24, **settings: Any) -> Experiment:
    """Four clients; a turn of each takes one unit of time."""
    usual = {"algorithm": FedAsync(), "drift": Drifts(every=4), "fleet": Fleet("latency", 1)}
    return Experiment(ToyWorld(4), ToyModel(), watch=watch, turns=turns, **{**usual, **settings})


def refreshed(run, client: str = "c0") -> list[int]:
    """The turns of a client at which it refreshed."""
    own = run.turns["client"] == client
    return run.turns["cycle"][own & (run.turns["refresh"] == 1)].tolist()


@pytest.mark.parametrize(
    ("when", "expected"),
    [
        ("always", [0, 1, 2, 3, 4, 5]),
        ("never", [0]),
        ("every 2", [0, 2, 4]),
        ("drift", [0, 3]),
        ("drift or every 2", [0, 2, 4]),
    ],
)
def test_a_client_refreshes_at_its_first_turn_and_when_its_policy_says(when, expected) -> None:
    run = run_experiment(toy(Watches(when, THIRD)))
    assert all(refreshed(run, client) == expected for client in ToyWorld(4).names)
    assert run.summary["refreshes"] == run.summary["uploads"] == 4 * len(expected)
    assert run.summary["length"] == "24 turns" and run.summary["turns"] == 24
    assert run.turns["reason"][0] == FIRST


def test_a_client_may_refresh_several_times_in_a_row(tmp_path) -> None:
    """Drift is found in the third batch after a refresh: at the turns 4 and 8, after those that were refreshed at."""
    experiment = toy(Watches("drift", THIRD, again=2), turns=40, snapshot_every=3)
    run = run_experiment(experiment, out=tmp_path / "whole")
    assert refreshed(run) == [0, 1, 4, 5, 8, 9]
    assert run.turns["reason"][4] == AGAIN and run.summary["watch"].endswith(", 2 times")
    with pytest.raises(Stopped):
        run_experiment(experiment, out=tmp_path / "parts", progress=stop_at(19))
    run_experiment(experiment, out=tmp_path / "parts", resume=True)
    assert bits(tmp_path / "parts") == bits(tmp_path / "whole")


def test_time_goes_on_whether_or_not_a_client_refreshes() -> None:
    run = run_experiment(toy(Watches("never")))
    own = run.turns["client"] == "c2"
    assert run.turns["cycle"][own].tolist() == [0, 1, 2, 3, 4, 5]
    assert run.turns["time"][own].tolist() == [1, 2, 3, 4, 5, 6]
    assert run.summary["bytes_up"] == 4 * ToyModel().start(0).nbytes


def test_an_oracle_refreshes_at_every_true_drift() -> None:
    run = run_experiment(toy(Watches("oracle"), turns=80))
    drifts = Drifts(every=4)
    for client in ToyWorld(4).names:
        began = [t for t in range(1, 20) if drifts.concept(0, client, t) != drifts.concept(0, client, t - 1)]
        assert refreshed(run, client) == [0, *began]
    assert set(run.turns["reason"]) == {FIRST, "its data drifted", "its data did not drift"}


def test_an_oracle_follows_a_gradual_drift_to_its_end() -> None:
    gradual = Drifts("gradual", every=8, over=3)
    run = run_experiment(toy(Watches("oracle"), turns=60, drift=gradual))
    first = next(t for t in range(20) if gradual.concept(0, "c0", t).drifts)
    assert refreshed(run)[:4] == [0, first, first + 1, first + 2]


@pytest.mark.parametrize("fleet", [Fleet(), Fleet("latency", 1, latency_max=3, slow_share=0.5)])
@pytest.mark.parametrize("algorithm", [FedAsync(), FedBuff(buffer_size=3)])
def test_always_refreshing_is_what_clients_do_without_a_watch(fleet, algorithm) -> None:
    settings = {"algorithm": algorithm, "fleet": fleet}
    watched = run_experiment(toy(Watches("always"), **settings))
    plain = run_experiment(Experiment(ToyWorld(4), ToyModel(), uploads=24, drift=Drifts(every=4), **settings))
    for table in ("metrics", "clusters", "clients"):
        for name, column in vars(plain)[table].items():
            np.testing.assert_array_equal(vars(watched)[table][name], column)
    assert {k: v.tobytes() for k, v in watched.params.items()} == {k: v.tobytes() for k, v in plain.params.items()}
    assert not plain.turns and "turns" not in plain.summary and "watch" not in plain.summary


def test_a_client_is_judged_by_what_it_uses_on_the_data_of_its_turn() -> None:
    """The last upload is c3's, so what it drew is the final model; it uses that at its next turn."""
    experiment = toy(Watches("never"), turns=8)
    run = run_experiment(experiment)
    assert run.turns["client"].tolist() == ["c0", "c1", "c2", "c3"] * 2
    test = experiment.world.visit(0, "c3", 1).test
    (model,) = {params.tobytes(): params for params in run.params.values()}.values()
    assert run.turns["accuracy"][-1] == ToyModel().learner(test.x, test.y).score(((1.0, model),))
    assert run.summary["in_use"] == pytest.approx(run.turns["accuracy"].mean())


# what a client sees


@pytest.mark.parametrize(
    ("watches", "part"),
    [
        (Watches("never"), "losses"),
        (Watches("drift", "adwin"), "errors"),
        (Watches("drift", "ks"), "features"),
        (Watches("drift", "ks", {"part": "logits"}), "logits"),
    ],
)
def test_a_client_works_out_what_its_detector_watches(watches, part) -> None:
    assert watches.part == part


def test_new_samples_come_at_every_turn_and_no_more_than_there_are() -> None:
    place = Place(ToyWorld(), ToyModel(), seed=0)
    used = ((1.0, seal(ToyModel().start(0))),)
    one, two = (place.observe(Look("c0", cycle, used, 4, "features"), Stopwatch()).batch.features for cycle in (0, 1))
    assert one is not None and two is not None
    assert one.shape == (4, 3) and not np.array_equal(one, two)
    all_of_them = place.observe(Look("c0", 0, used, 1000), Stopwatch()).batch
    assert all_of_them.samples == len(ToyWorld().visit(0, "c0", 0).train)


# the same bits


def bits(folder: Path) -> dict[str, bytes]:
    names = ["metrics.csv", "clusters.csv", "clients.csv", "turns.csv", "journal.jsonl"]
    return {path.name: path.read_bytes() for path in [*(folder / n for n in names), *(folder / "final").iterdir()]}


def digits(*changes: str) -> Experiment:
    return load("drift-sudden", [*SMALL, *changes])


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("watching") / "run"
    run_experiment(digits(), seed=1, out=folder)
    return folder


@pytest.mark.heavy
def test_workers_http_and_a_file_of_vectors_give_the_same_bits(whole, tmp_path) -> None:
    means = {"workers": {"workers": 2}, "http": {"transport": InProcess}, "spilled": {"memory_limit": 0}}
    for name, more in means.items():
        run_experiment(digits(), seed=1, out=tmp_path / name, **more)
        assert bits(tmp_path / name) == bits(whole), name


class Stopped(Exception):
    pass


def stop_at(count: int):
    def stop(progress) -> None:
        if progress.uploads == count:
            raise Stopped

    return stop


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.heavy)])
def test_a_stopped_run_resumes_to_the_same_bits(whole, tmp_path, workers) -> None:
    for count in (9, 26):
        with pytest.raises(Stopped):
            run_experiment(
                digits(), seed=1, workers=workers, out=tmp_path / "run", resume=True, progress=stop_at(count)
            )
    assert progress_in(tmp_path / "run")["turns"] == 21
    run_experiment(digits(), seed=1, workers=workers, out=tmp_path / "run", resume=True)
    assert bits(tmp_path / "run") == bits(whole)


@pytest.mark.heavy
def test_clients_that_leave_and_return_give_the_same_bits(tmp_path) -> None:
    fleet = Fleet("latency", 1, latency_max=2, leave_share=0.75, leave_by=6, return_after=2)
    experiment = toy(Watches("drift", THIRD), turns=40, fleet=fleet, snapshot_every=5)
    run_experiment(experiment, out=tmp_path / "one")
    run_experiment(experiment, workers=2, out=tmp_path / "two")
    assert bits(tmp_path / "one") == bits(tmp_path / "two")
    run = open_run(tmp_path / "one")
    assert [event["kind"] for event in run.journal].count("leave") == 3
    assert all((np.diff(run.turns["cycle"][run.turns["client"] == c]) == 1).all() for c in ("c0", "c1", "c2", "c3"))


def test_a_run_is_opened_with_its_turns(whole) -> None:
    run = open_run(whole)
    assert len(run.turns["turn"]) == 40 == run.summary["turns"]
    assert run.summary["watch"] == "drift, ks" and run.summary["alarms"] >= 2
    assert run.config["experiment"]["watch"]["settings"] == {"reference": 40, "window": 20}
    assert run.config["experiment"]["drift"]["every"] == 4 and run.config["experiment"]["turns"] == 40


# beside the rest


def test_hostile_clients_do_not_decide_and_their_turns_do_not_count() -> None:
    fleet = Fleet("latency", 1, hostile_share=0.25, attack="noise")
    run = run_experiment(toy(Watches("never"), fleet=fleet))
    assert len(set(run.turns["client"])) == 3
    assert run.summary["hostile_uploads"] > 3 == run.summary["refreshes"]


def test_a_refresh_that_comes_too_late_is_tried_again() -> None:
    """A task is open for half a unit of time, so no upload is ever in time: every turn tries again."""
    with pytest.raises(Exception, match="trainings in a row came too late"):
        run_experiment(toy(Watches("never"), algorithm=CASA(patience=0.5), turns=200))


def test_the_turn_of_a_world_with_rounds_is_twenty_turns_of_clients() -> None:
    shift = Shift("incremental", steps=2, every=1)
    run = run_experiment(replace(toy(Watches("never"), turns=48), drift=None, world=ToyWorld(4), shift=shift))
    assert run.turns["cycle"][run.turns["client"] == "c0"].tolist()[:7] == [0, 0, 0, 0, 0, 0, 1]


def test_progress_counts_turns() -> None:
    told = []
    run_experiment(toy(Watches("never"), turns=6), progress=told.append)
    assert [(p.uploads, p.total, p.unit) for p in told] == [(i, 6, "turns") for i in range(1, 7)]


def test_runs_that_differ_in_the_policy_are_compared_by_it(tmp_path) -> None:
    for when in ("always", "oracle", "drift"):
        run_experiment(toy(Watches(when, THIRD), name="here"), out=tmp_path / when)
    (rows,) = tables([run.summary for run in finished([tmp_path], print)]).values()
    assert list(rows) == ["fedasync (always)", f"fedasync (drift, {THIRD})", "fedasync (oracle)"]
    oracle, drift = (rows[name]["in_use"][0] for name in ("fedasync (oracle)", f"fedasync (drift, {THIRD})"))
    assert rows[f"fedasync (drift, {THIRD})"]["regret"][0] == pytest.approx(oracle - drift)
    assert rows["fedasync (oracle)"]["regret"] == [0.0, 0.0]


def test_parts_are_given_to_simulate() -> None:
    run = simulate(
        world=ToyWorld(4),
        model=ToyModel(),
        algorithm=FedAsync(),
        drift=Drifts(every=4),
        watch=Watches("every 3"),
        turns=9,
    )
    assert run.summary["watch"] == "every 3" and run.summary["turns"] == 9


def test_the_experiment_of_the_page_runs() -> None:
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "study-drift.md").read_text()
    (settings,) = re.findall(r"```toml\n(.*?)```", page, re.S)
    run = run_experiment(replace(build(tomllib.loads(settings)), turns=30))
    assert run.summary["watch"] == "drift or every 10, ks"


# settings


def test_settings_are_described_only_where_they_are_on() -> None:
    plain = Experiment(ToyWorld(4), ToyModel(), FedAsync())
    assert not {"watch", "drift", "turns"} & set(plain.describe())


@pytest.mark.parametrize(
    ("tables", "problem"),
    [
        ({"watch": {}, "turns": 9}, "The policy 'drift' waits for drift, and no detector looks for it"),
        ({"watch": {"when": "never", "batch": 0}, "turns": 9}, "batch must be at least 1, not 0"),
        ({"watch": {"when": "never", "again": 0}, "turns": 9}, "again must be at least 1, not 0"),
        ({"watch": {"when": "never", "settings": {"a": 1}}, "turns": 9}, "watch.settings are those of a detector"),
        ({"watch": {"when": "sometimes"}, "turns": 9}, "sometimes"),
        ({"watch": {"detector": "adwim"}, "turns": 9}, "There is no detector 'adwim'. Did you mean 'adwin'"),
        ({"watch": {"detector": "ks", "settings": {"levl": 1}}, "turns": 9}, "has no setting 'levl'"),
        ({"watch": {"when": "never"}}, "A run with .watch. lasts a number of turns: set turns"),
        ({"turns": 9}, "turns has an effect only with .watch."),
        ({"watch": {"when": "never"}, "turns": 9, "rounds": 3}, "lasts turns, not rounds"),
        ({"watch": {"when": "never"}, "turns": 9, "evaluate_every_rounds": 3}, "is evaluated by turns"),
        ({"watch": {"when": "never"}, "turns": 9, "tune": 1}, 'tune needs accept = "better"'),
        ({"watch": {"when": "never"}, "turns": 0}, "turns must be at least 1, not 0"),
    ],
)
def test_settings_are_checked(tables, problem) -> None:
    with pytest.raises(SettingError, match=problem):
        build({"world": {"name": "synthetic"}, **tables})


def test_clients_of_a_method_in_rounds_cannot_decide() -> None:
    with pytest.raises(SettingError, match=r"fedavg works in rounds, whose clients the server chooses.*\[watch\] out"):
        run_experiment(toy(Watches("never"), algorithm=FedAvg(clients_per_round=2)))


def test_an_oracle_needs_a_world_that_drifts() -> None:
    with pytest.raises(SettingError, match=r"this world has none. Add a table \[drift\]"):
        run_experiment(toy(Watches("oracle"), drift=None))


def test_a_fold_that_needs_more_uploads_than_turns_is_refused() -> None:
    with pytest.raises(SettingError, match=r"A fold needs 30 uploads, but the run has 24 in all. Raise turns"):
        run_experiment(toy(Watches("always"), algorithm=FedBuff(buffer_size=30)))
