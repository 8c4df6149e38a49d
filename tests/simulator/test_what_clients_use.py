"""Clients of a simulation keep the better of what they trained and drew: by hand, and the same bits everywhere."""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from tiers import some_heavy

from artesian.algorithms import ALGORITHMS, CDFL, FedAvg
from artesian.config.experiments import build, load
from artesian.core import Plan
from artesian.data.datasets import Samples
from artesian.errors import ResumeMismatch, SettingError
from artesian.learners.arrays import LinearRegression
from artesian.params import seal
from artesian.simulator.experiment import Experiment
from artesian.simulator.fleet import Fleet
from artesian.simulator.jobs import Judging, Place
from artesian.simulator.metrics import is_worse
from artesian.simulator.profiling import Stopwatch
from artesian.simulator.run import run_experiment
from artesian.simulator.saved_runs import open_run
from artesian.simulator.worlds import Visit
from artesian.testing import InProcess, ToyWorld

LINE = LinearRegression(1, bias=False)  # the score is minus the mean of (w x - y)^2
NEW = ("accepted", "won", "pool_before", "pool_after", "pool_accepted")
ON = {"accept": "better", "pool_every": 4}
SMALL = ["uploads=24", "world.clients=4", "snapshot_every=5", "evaluate_every=10", "start.trunk_epochs=1"]


def at(y: float, samples: int = 1) -> Samples:
    return Samples(np.ones((samples, 1), np.float32), np.full(samples, y, np.float32))


def model(number: float):
    return ((1.0, seal(np.array([number], np.float32))),)


@dataclass(frozen=True)
class Lines(ToyWorld):
    """Clients have 50 samples that say 4, and are tested on 5; the test sets of the clusters say 6 and 10."""

    samples: int = 50

    def visit(self, seed: int, client: str, cycle: int) -> Visit:
        return Visit(at(4, self.samples), at(5), {"k0": 0.75, "k1": 0.25})

    def proxies(self, seed: int) -> dict[str, Samples]:
        return {"k0": at(4), "k1": at(4)}

    def tests(self, seed: int) -> dict[str, Samples]:
        return {"k0": at(6), "k1": at(10)}

    @property
    def features(self) -> int:
        return 1


def judged(place: Place, drawn: float, trained: float, previous: float | None = None, pool=None):
    before = () if previous is None else model(previous)
    return place.judge(Judging("c0", 0, model(drawn), model(trained), before, pool or {}), Stopwatch())


def test_the_winner_on_held_back_data_is_scored_on_test_data() -> None:
    """Held-back data say 4: of 8 (drawn), 3 (trained), 5.5 (the middle) and 4.5, the last is best; the test says 5."""
    place = Place(Lines(), LINE, seed=0, hold_back=0.2)
    found = judged(place, 8, 3, 4.5)
    assert (found.after, found.accepted, found.won, found.pool, found.made) == (-9, -0.25, "previous", (), ())
    assert judged(place, 4, 9).won == "drawn"
    assert (judged(place, 8, 3).won, judged(place, 8, 3).accepted) == ("trained", -4)


def test_what_was_made_for_the_choice_comes_back() -> None:
    """The middle of 3 and 5; and 8 tuned by two steps of 0.25 * 2 * (4 - w), to 6 and 5."""
    found = judged(Place(Lines(), LINE, seed=0, hold_back=0.2), 3, 5)
    assert (found.won, found.made[0][1].tolist(), found.accepted) == ("midpoint", [4], -1)
    found = judged(Place(Lines(), LINE, seed=0, hold_back=0.2, tune=Plan(rate=0.25, batch=40, epochs=2)), 8, 10)
    assert (found.won, found.made[0][1].tolist()) == ("tuned", [5])
    assert (found.after, found.accepted) == (0, 0)


def test_what_beats_all_that_a_refresh_brought_is_trained_on() -> None:
    """What was used before, 6, is better than 9, 8 and their middle: one step of 0.25 * 2 * (4 - w) makes 5 of it."""
    place = Place(Lines(), LINE, seed=0, hold_back=0.2, keep_training=Plan(rate=0.25, batch=40))
    found = judged(place, 9, 8, 6)
    assert (found.won, found.made[0][1].tolist(), found.accepted) == ("continued", [5], 0)
    assert judged(place, 9, 5, 6).won == "trained"


def test_the_pool_is_every_clusters_test_set_by_the_true_share() -> None:
    """Of w: -(0.75 (w - 6)^2 + 0.25 (w - 10)^2)."""
    pool = {"k0": 0.75, "k1": 0.25}
    found = judged(Place(Lines(), LINE, seed=0, hold_back=0.2), 10, 4, pool=pool)
    assert found.pool == (-12, -12, -12) and found.won == "trained"
    found = judged(Place(Lines(), LINE, seed=0), 6, 4, pool={"k0": 1.0, "k1": 0.0})
    assert (found.after, found.accepted, found.won, found.pool) == (-1, None, None, (-4, 0))


class OwnLines(Lines):
    """Every client has a distribution of its own."""

    personal = True


def test_the_pool_of_a_client_with_a_distribution_of_its_own_is_its_test_data() -> None:
    found = judged(Place(OwnLines(), LINE, seed=0, hold_back=0.2), 6, 4, pool={"k0": 0.75, "k1": 0.25})
    plain = judged(Place(OwnLines(), LINE, seed=0, hold_back=0.2), 6, 4)
    assert found.pool[1:] == (plain.after, plain.accepted)


def test_clients_train_on_what_they_do_not_hold_back() -> None:
    place = Place(Lines(), LINE, seed=0, hold_back=0.2)
    data = place.world.visit(0, "c0", 0).train
    assert place.trains_on("c0", data) == 40
    assert replace(place, hold_back=None).trains_on("c0", data) == 50
    assert replace(place, world=Lines(samples=24)).trains_on("c0", at(4, 24)) == 24


def lines(**settings) -> Experiment:
    return Experiment(Lines(2), LINE, CDFL(), uploads=8, fleet=Fleet("latency", 1), **settings)


def test_uploads_and_joins_say_how_many_samples_were_trained_on(tmp_path) -> None:
    for name, settings in (
        ("all", {}),
        ("held", {"accept": "better"}),
        ("half", {"accept": "better", "hold_back": 0.5}),
    ):
        run_experiment(lines(**settings), out=tmp_path / name)
    told = {p.name: {e["samples"] for e in open_run(p).journal if "samples" in e} for p in tmp_path.iterdir()}
    assert told == {"all": {50}, "held": {40}, "half": {25}}


def test_the_summary_says_what_clients_use_and_how_often_it_hurt() -> None:
    run = run_experiment(lines(**ON))
    assert run.metrics["pool_before"].shape == (8,)
    assert np.isfinite(run.metrics["pool_before"]).nonzero()[0].tolist() == [3, 7]
    last = run.metrics["accepted"][-2:]
    assert run.summary["client_accepted"] == pytest.approx(last.mean())
    assert sum(run.summary["won"].values()) == pytest.approx(1)
    assert set(run.summary["won"]) == set(run.metrics["won"].tolist())
    before, after, used = (run.metrics[name][[3, 7]] for name in NEW[2:])
    assert run.summary["worse_drawn"] == np.mean(after < before * 1.01)
    assert run.summary["worse_accepted"] == np.mean(used < before * 1.01)


def test_the_pool_is_scored_also_where_nobody_judges() -> None:
    run = run_experiment(lines(pool_every=2))
    assert "accepted" not in run.metrics and "client_accepted" not in run.summary
    assert np.isnan(run.metrics["pool_accepted"]).all()
    assert run.summary["worse_drawn"] is not None and "worse_accepted" not in run.summary
    plain = run_experiment(lines())
    assert plain.metrics["after"].tolist() == run.metrics["after"].tolist()
    assert not set(NEW) & set(plain.metrics) and "worse_drawn" not in plain.summary


@pytest.mark.parametrize(
    ("before", "after", "errors", "worse"),
    [
        (0.9, 0.891, False, False),
        (0.9, 0.889, False, True),
        (0.9, 1.0, False, False),
        (-2.0, -2.01, True, False),
        (-2.0, -2.03, True, True),
        (-2.0, -1.0, True, False),
        (0.9, float("nan"), False, True),
    ],
)
def test_worse_is_a_point_of_accuracy_or_a_hundredth_of_an_error(before, after, errors, worse) -> None:
    assert is_worse(before, after, errors=errors) == worse


@dataclass(frozen=True)
class Same(Lines):
    """Tested on what they train on, too."""

    def visit(self, seed: int, client: str, cycle: int) -> Visit:
        return Visit(at(4, self.samples), at(4), {"k0": 0.75, "k1": 0.25})


def test_what_was_used_before_stays_a_candidate() -> None:
    """A rate of 4 overshoots: the distance from 4 grows sevenfold in every training, and no client follows."""
    plan = Plan(rate=4.0, batch=40)
    run = run_experiment(replace(lines(**ON), world=Same(2), algorithm=FedAvg(clients_per_round=2), training=plan))
    for client in ("c0", "c1"):
        assert (np.diff(run.metrics["accepted"][run.metrics["client"] == client]) >= 0).all()
    assert run.summary["won"] == {"drawn": 0.25, "previous": 0.75}
    assert run.metrics["accepted"][-1] > run.metrics["after"][-1]


# the same bits


def bits(folder: Path) -> dict[str, bytes]:
    names = ["metrics.csv", "clusters.csv", "clients.csv", "journal.jsonl"]
    return {path.name: path.read_bytes() for path in [*(folder / n for n in names), *(folder / "final").iterdir()]}


def digits(*changes: str) -> Experiment:
    return load("digits-2", [*SMALL, "accept=better", "pool_every=4", *changes])


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("accepting") / "run"
    run_experiment(digits(), seed=1, out=folder)
    return folder


def test_workers_and_http_give_the_same_bits(whole, tmp_path) -> None:
    run_experiment(digits(), seed=1, workers=2, out=tmp_path / "workers")
    assert bits(tmp_path / "workers") == bits(whole)
    run_experiment(digits(), seed=1, transport=InProcess, out=tmp_path / "http")
    assert bits(tmp_path / "http") == bits(whole)


class Stopped(Exception):
    pass


@pytest.mark.parametrize("workers", [0, 1])
def test_a_stopped_run_resumes_to_the_same_bits(whole, tmp_path, workers) -> None:
    for count in (7, 16):

        def stop(progress, count=count) -> None:
            if progress.uploads == count:
                raise Stopped

        with pytest.raises(Stopped):
            run_experiment(digits(), seed=1, workers=workers, out=tmp_path / "run", resume=True, progress=stop)
    run_experiment(digits(), seed=1, workers=workers, out=tmp_path / "run", resume=True)
    assert bits(tmp_path / "run") == bits(whole)


def test_what_clients_use_may_be_spilled(whole, tmp_path) -> None:
    run_experiment(digits(), seed=1, memory_limit=0, out=tmp_path / "run")
    assert bits(tmp_path / "run") == bits(whole)


def test_clients_that_keep_training_do_so_with_the_same_bits_everywhere(tmp_path) -> None:
    """Labels that every client has for itself: what it used before is soon better than what a refresh brings."""
    settings = [
        "rounds=", "evaluate_every_rounds=", "uploads=40", "world.clients=4", "evaluate_every=40", "snapshot_every=15",
        "algorithm.name=confluence", "accept=better", "keep_training=true", "pool_every=4",
    ]  # fmt: skip
    experiment = load("flexcfl-synthetic", settings)
    run = run_experiment(experiment, seed=1, out=tmp_path / "run")
    assert run.summary["won"]["continued"] > 0.1
    run_experiment(experiment, seed=1, workers=2, out=tmp_path / "workers")
    run_experiment(experiment, seed=1, transport=InProcess, memory_limit=0, out=tmp_path / "http")
    assert bits(tmp_path / "run") == bits(tmp_path / "workers") == bits(tmp_path / "http")


def test_a_run_is_opened_with_its_columns(whole) -> None:
    run = open_run(whole)
    assert set(NEW) <= set(run.metrics)
    assert set(run.metrics["won"].tolist()) <= {"drawn", "midpoint", "trained", "previous"}
    assert run.summary["client_accepted"] == pytest.approx(
        np.mean([run.metrics["accepted"][run.metrics["client"] == c][-1] for c in set(run.metrics["client"])])
    )
    assert run.config["experiment"]["accept"] == "better"


@pytest.mark.parametrize("name", some_heavy(sorted(ALGORITHMS), "cdfl", "confluence", "fedbuff", "flexcfl"))
def test_every_algorithms_clients_can_judge(name) -> None:
    cohort = {"clients_per_round": 2} if "clients_per_round" in ALGORITHMS[name].__dataclass_fields__ else {}
    algorithm = ALGORITHMS[name](**cohort)
    plan = Plan(
        rate=0.05, batch=64, momentum=0.0 if name == "scaffold" else 0.5, keep_optimizer_state=name != "scaffold"
    )
    experiment = replace(digits("tune=1"), algorithm=algorithm, training=plan, uploads=12)
    run = run_experiment(experiment, seed=2)
    assert np.isfinite(run.metrics["accepted"]).all()
    assert len(run.metrics["won"]) == run.summary["uploads"]


def test_a_round_is_judged_when_it_closes() -> None:
    run = run_experiment(replace(lines(**ON), algorithm=FedAvg(clients_per_round=2)))
    assert np.isfinite(run.metrics["accepted"]).all()
    assert run.metrics["version"].tolist() == [1, 1, 2, 2, 3, 3, 4, 4]


# settings


def test_settings_are_described_only_where_they_are_on() -> None:
    plain = lines()
    assert not {"accept", "hold_back", "pool_every"} & set(plain.describe())
    told = lines(accept="better", pool_every=5).describe()
    assert (told["accept"], told["hold_back"], told["pool_every"]) == ("better", 0.2, 5)
    assert "keep_training" not in told
    assert lines(accept="better", keep_training=True).describe()["keep_training"] is True


def test_a_run_is_resumed_as_it_was_begun(tmp_path) -> None:
    run_experiment(lines(**ON), out=tmp_path / "run")
    for settings in ({}, {**ON, "hold_back": 0.5}, {**ON, "pool_every": 3}):
        with pytest.raises(ResumeMismatch, match=r"accept|hold_back|pool_every"):
            run_experiment(lines(**settings), out=tmp_path / "run", resume=True)


@pytest.mark.parametrize(
    ("setting", "problem"),
    [
        ({"accept": "perhaps"}, "accept must be always or better, not 'perhaps'"),
        ({"hold_back": 0.3}, "hold_back has an effect only with accept = better, but hold_back = 0.3 and accept"),
        ({"hold_back": 0.0}, "hold_back must be above 0 and at most 0.5, not 0.0"),
        ({"hold_back": 0.6}, "hold_back must be above 0 and at most 0.5, not 0.6"),
        ({"hold_back": "much"}, "hold_back must be a number, not 'much'"),
        ({"pool_every": -1}, "pool_every must be at least 0, not -1"),
        ({"keep_training": True}, "keep_training has an effect only with accept = better, but keep_training = True"),
        ({"keep_training": 1, "accept": "better"}, "keep_training must be true or false, not 1"),
    ],
)
def test_settings_are_checked(setting, problem) -> None:
    with pytest.raises(SettingError, match=problem):
        build({"world": {"name": "synthetic"}, **setting})
