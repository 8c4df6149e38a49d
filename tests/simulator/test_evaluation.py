"""Evaluations: when they are, what they score again, and what the summary makes of them."""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from artesian import CDFL, IFCA, Experiment, FedAvg, Fleet, Shift, load
from artesian.algorithms import CFL, FedEM, FedGroup, Local
from artesian.core import Cluster, Member, State
from artesian.data.datasets import Samples
from artesian.errors import SettingError
from artesian.params import Layout
from artesian.simulator.client_scores import ClientScores, Digests
from artesian.simulator.evaluation import Evaluation, discrepancy
from artesian.simulator.jobs import KeptTests, NewestVisits, Place
from artesian.simulator.run import run_experiment
from artesian.simulator.table import TEXT, Table, read_table
from artesian.simulator.worlds import Visit
from artesian.testing.toy import ToyModel, ToyWorld


def toy(algorithm=None, clients: int = 6, **options) -> Experiment:
    return Experiment(ToyWorld(clients), ToyModel(), algorithm or CDFL(), **options)


def same(one, two) -> bool:
    return all(np.array_equal(one[name], two[name], equal_nan=name not in TEXT) for name in one)


def tables(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.glob("*.csv"))}


@dataclass(frozen=True)
class Given:
    """A score that is there."""

    value: float
    ready: bool = True


class Scorer:
    """Scores by counting, and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked = []

    def __call__(self, score) -> Given:
        self.asked.append((score.client, score.cycle, score.again))
        return Given(float(len(self.asked)))


# the summary


def test_cluster_all_is_the_mean_of_every_evaluation_of_every_cluster() -> None:
    run = run_experiment(toy(uploads=40, evaluate_every=4))
    scores = run.clusters["accuracy"].reshape(10, 2)
    assert run.summary["cluster_all"] == pytest.approx(scores.mean())
    assert run.summary["cluster_final"] == pytest.approx(scores[-1].mean())
    assert run.summary["cluster"] == pytest.approx(scores[-2:].mean())  # of the last 6 uploads: after 36 and 40


# discrepancy


def federation(mixture, **clusters: tuple[float, float]) -> State:
    layout = Layout.of({"w": np.zeros(2, np.float32)})
    models = {k: Cluster(model(*values)) for k, values in clusters.items()}
    return State(layout, models, {"c0": Member(1, mixture)})


def test_discrepancy_by_hand() -> None:
    trained = model(3, 4)
    assert discrepancy(federation({"b": 1.0}, a=(9, 9), b=(0, 0)), "c0", trained) == 5
    assert discrepancy(federation({"a": 0.25, "b": 0.75}, a=(4, 0), b=(0, 4)), "c0", trained) == pytest.approx(5**0.5)
    assert discrepancy(federation({"a": 0.5, "b": 1.5}, a=(4, 0), b=(0, 4)), "c0", trained) == pytest.approx(5**0.5)
    assert discrepancy(federation(None, a=(6, 0), b=(0, 0)), "c0", trained) == 4  # a newcomer: the mean of all
    assert discrepancy(federation(None, a=(0, 0)), "c0", None) is None
    assert discrepancy(federation(None, a=(0, 0)), "c0", model(1, np.nan)) is None


@pytest.mark.heavy
def test_the_discrepancy_of_groups_is_what_they_note_themselves() -> None:
    experiment = toy(FedGroup(groups=2, clients_per_round=4, pretrain_scale=2), rounds=6)
    run = run_experiment(replace(experiment, world=HeldWorld(6)))
    found, versions = run.metrics["discrepancy"], run.metrics["version"]
    rounds = [found[versions == version].mean() for version in np.unique(versions)]
    assert run.summary["discrepancy"] == pytest.approx(found.mean())
    assert sum(rounds[1:]) == pytest.approx(run.summary["notes"]["discrepancy"])  # the first makes the groups


@pytest.mark.parametrize("algorithm", [CFL(clients_per_round=3), FedEM(clusters=2, clients_per_round=3), Local()])
def test_discrepancy_is_there_for_changes_ensembles_and_no_upload_at_all(algorithm) -> None:
    found = run_experiment(toy(algorithm, uploads=12)).metrics["discrepancy"]
    assert np.isfinite(found).all()
    assert (found > 0).all()


def test_a_run_of_the_version_before_goes_on_in_its_own_columns(tmp_path) -> None:
    path = tmp_path / "metrics.csv"
    path.write_text("upload,client\r\n1,a\r\n")
    table = Table(("upload", "client", "discrepancy"), path, path.stat().st_size)
    table.add(2, "b", 0.5)
    assert list(table) == [(1, "a"), (2, "b")]
    assert path.read_text().splitlines() == ["upload,client", "1,a", "2,b"]
    read = read_table(path, ("upload", "client", "discrepancy"))
    assert read["client"].tolist() == ["a", "b"]
    assert np.isnan(read["discrepancy"]).all()


# by rounds


def test_evaluating_every_round_is_evaluating_after_its_uploads() -> None:
    experiment = toy(FedAvg(clients_per_round=3), rounds=7, evaluate="clients")
    by_uploads = run_experiment(replace(experiment, evaluate_every=3))
    by_rounds = run_experiment(replace(experiment, evaluate_every_rounds=1))
    assert by_rounds.clients["round"].tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert same(by_rounds.clients, by_uploads.clients)
    assert same(by_rounds.clusters, by_uploads.clusters)
    weighted = by_rounds.clients["weighted"]
    assert by_rounds.summary["weighted_best"] == weighted.max()


def test_evaluating_every_third_round_ends_with_the_last() -> None:
    run = run_experiment(toy(FedAvg(clients_per_round=2), rounds=7, evaluate_every_rounds=3))
    assert run.clients["round"].tolist() == [3, 6, 7]
    run = run_experiment(toy(FedAvg(clients_per_round=2), rounds=6, evaluate_every_rounds=3))
    assert run.clients["round"].tolist() == [3, 6]


def test_rounds_that_patience_closes_are_evaluated_each_once() -> None:
    fleet = Fleet("latency", 1, slow_share=0.5, slow_factor=10, leave_share=0.3, leave_by=6, return_after=3)
    algorithm = FedAvg(clients_per_round=4, patience=2)
    run = run_experiment(toy(algorithm, clients=8, rounds=20, fleet=fleet, evaluate_every_rounds=1))
    assert run.clients["round"].tolist() == list(range(1, 21))
    assert len(set(np.diff(run.clients["upload"]).tolist())) > 1  # rounds of several sizes


def test_a_run_evaluated_by_rounds_resumes_to_the_same_bits(tmp_path) -> None:
    experiment = toy(IFCA(clusters=2, clients_per_round=3), rounds=8, evaluate_every_rounds=2, evaluate="clients")
    experiment = replace(experiment, snapshot_every=6)

    def stop(progress) -> None:
        if progress.uploads == 5:
            raise KeyboardInterrupt

    run_experiment(experiment, out=tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        run_experiment(experiment, out=tmp_path / "cut", progress=stop)
    run_experiment(experiment, out=tmp_path / "cut", resume=True)
    assert tables(tmp_path / "cut") == tables(tmp_path / "whole")


def test_the_setting_is_checked_and_counts_only_where_it_is_set() -> None:
    plain = load("digits-2")
    assert "evaluate_every_rounds" not in plain.describe()
    assert load("digits-2", ["evaluate_every_rounds=5"]).digest != plain.digest
    with pytest.raises(SettingError, match="evaluate_every_rounds must be at least 1, not 0"):
        load("digits-2", ["evaluate_every_rounds=0"])


# what is scored again


@dataclass(frozen=True)
class HeldWorld(ToyWorld):
    """Nobody's data ever change."""

    @property
    def held(self) -> bool:
        return True

    def visit(self, seed: int, client: str, cycle: int) -> Visit:
        return ToyWorld.visit(self, seed, client, 0)


def model(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def test_a_client_is_scored_again_only_if_models_or_data_changed() -> None:
    scores, scorer = ClientScores(Place(ToyWorld(2), ToyModel(), 0)), Scorer()
    one, alike, other = model(1, 2), model(1, 2), model(1, 3)
    first = scores.of("c0", 0, [(1.0, one)], scorer)
    assert first.size == len(ToyWorld(2).visit(0, "c0", 0).test)
    assert scores.of("c0", 0, [(1.0, alike)], scorer) is first
    assert scores.of("c1", 0, [(1.0, one)], scorer).score.value == 2
    assert scores.of("c0", 0, [(0.5, one)], scorer).score.value == 3
    assert scores.of("c0", 0, [(1.0, other)], scorer).score.value == 4
    assert scores.of("c0", 1, [(1.0, other)], scorer).score.value == 5
    assert scores.of("c0", 1, [(1.0, other)], scorer).score.value == 5
    assert scorer.asked == [(c, n, True) for c, n in (("c0", 0), ("c1", 0), ("c0", 0), ("c0", 0), ("c0", 1))]


def test_data_that_stay_keep_their_first_cycle() -> None:
    scores, scorer = ClientScores(Place(HeldWorld(2), ToyModel(), 0)), Scorer()
    first = scores.of("c0", 3, [(1.0, model(1))], scorer)
    assert scores.of("c0", 8, [(1.0, model(1))], scorer) is first
    scores.of("c0", 9, [(1.0, model(2))], scorer)
    assert scorer.asked == [("c0", 3, True), ("c0", 3, True)]


def test_where_clients_tune_every_cycle_is_scored() -> None:
    place = Place(HeldWorld(2), ToyModel(), 0, tune=load("digits-2").training)
    scores, scorer = ClientScores(place), Scorer()
    for cycle in (0, 0, 1):
        scores.of("c0", cycle, [(1.0, model(1))], scorer)
    assert [cycle for _, cycle, _ in scorer.asked] == [0, 1]


def test_swapped_data_are_scored_when_they_change() -> None:
    shifted = toy(clients=4, shift=Shift("swap-all", p=0.5)).world
    scores, scorer = ClientScores(Place(shifted, ToyModel(), 0)), Scorer()
    for turn in range(12):
        scores.of("c0", turn, [(1.0, model(1))], scorer)
    changes = [turn for turn in range(1, 12) if shifted.changed(0, "c0", turn - 1, turn)]
    assert 0 < len(changes) < 11
    assert [cycle for _, cycle, _ in scorer.asked] == [0, *changes]


def test_a_digest_follows_the_array_not_its_place_in_memory() -> None:
    digests = Digests()
    found = {digests.of([(1.0, model(i))]) for i in range(50)}  # freed at once: places are used again
    assert len(found) == 50
    assert digests._known == {}


def test_scores_that_are_kept_change_no_table(monkeypatch) -> None:
    experiment = toy(IFCA(clusters=2, clients_per_round=3), rounds=6, evaluate_every_rounds=1, evaluate="clients")
    experiment = replace(experiment, shift=Shift("swap-all", p=0.3))
    kept = run_experiment(experiment)
    monkeypatch.setattr(ClientScores, "_changed", lambda *_: True)
    monkeypatch.setattr(KeptTests, "of", lambda _, client, cycle, make: make(client, cycle)[0])
    assert same(kept.clients, run_experiment(experiment).clients)


def test_test_data_are_kept_while_there_is_room() -> None:
    made = []

    def make(client: str, cycle: int) -> tuple[str, int]:
        made.append((client, cycle))
        return f"{client}/{cycle}", 40

    kept = KeptTests(room=100)
    found = [kept.of(client, 0, make) for client in ("a", "b", "c", "a", "b", "c")]
    assert found == ["a/0", "b/0", "c/0", "a/0", "b/0", "c/0"]
    assert made == [("a", 0), ("b", 0), ("c", 0), ("c", 0)]  # no room for the third
    assert kept.of("a", 1, make) == "a/1"  # in the place of its older data
    assert kept.of("a", 1, make) == "a/1"
    assert made[4:] == [("a", 1)]
    assert kept.room == 20


def test_the_newest_visits_are_drawn_once_while_there_is_room() -> None:
    made = []

    def draw(client: str, cycle: int) -> Visit:
        made.append((client, cycle))
        part = Samples(np.zeros((2, 3), np.float32), np.zeros(2, np.int64))  # 24 and 16 bytes
        return Visit(part, part, {"k0": 1.0})

    visits = NewestVisits(room=200)
    first = visits.of("a", 0, draw)
    assert visits.of("b", 0, draw) is not first
    assert visits.of("a", 0, draw) is first
    assert visits.room == 40
    visits.of("a", 1, draw)  # in the place of the one that was not asked for the longest
    assert visits.of("a", 0, draw) is first
    assert made == [("a", 0), ("b", 0), ("a", 1)]
    visits.of("b", 0, draw)
    assert made[3:] == [("b", 0)]
    assert NewestVisits(room=10).of("a", 0, draw).mixture == {"k0": 1.0}  # too large to be kept


def test_a_round_is_judged_on_the_data_it_was_trained_on(monkeypatch) -> None:
    """Data change between rounds: the models of a round have not seen what comes next, and nobody has moved yet."""
    turns, scored = [], Evaluation.evaluate_clients

    def noting(self, coordinator, notebooks, cycles, upload, time) -> None:
        turns.append(cycles("c000"))
        scored(self, coordinator, notebooks, cycles, upload, time)

    monkeypatch.setattr(Evaluation, "evaluate_clients", noting)
    shift = Shift("swap-all", p=1.0)
    run_experiment(
        toy(
            FedAvg(clients_per_round=3),
            rounds=3,
            shift=shift,
            evaluate="clients",
            evaluate_every_rounds=1,
            fleet=Fleet("latency"),
        )
    )
    assert turns == [0, 1, 2]
