"""What a run exports on request: tables and matrices with hand-worked numbers, the same bits however it is run."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tiers import some_thorough

from artesian import Experiment, Matrix, open_run
from artesian.algorithms import ALGORITHMS, CASA, CDFL, CFL, FedGroup, FedSoft, FedSoftAsync, IFCAAsync
from artesian.core import Cluster, Member, State
from artesian.errors import SettingError, StorageError
from artesian.params import Layout
from artesian.simulator.export import is_moment, read_matrices, write_matrices
from artesian.simulator.run import run_experiment
from artesian.testing.toy import ToyFederation, ToyModel, ToyWorld


def toy(algorithm=None, clients: int = 6, **options) -> Experiment:
    options = {"uploads": 40, "evaluate_every": 4, "snapshot_every": 12, "export": True, **options}
    return Experiment(ToyWorld(clients), ToyModel(), algorithm or CDFL(), **options)


def exported(folder: Path) -> dict[str, bytes]:
    paths = [folder / "distributions.csv", folder / "shares.csv", *(folder / "matrices").glob("*")]
    return {path.name: path.read_bytes() for path in paths}


def vector(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


LAYOUT = Layout.of({"w": np.zeros(2, np.float32)})


# the tables


def test_every_cluster_is_scored_on_every_distribution() -> None:
    run = run_experiment(toy())
    found = run.distributions
    pairs = list(zip(found["cluster"][:4], found["distribution"][:4], strict=True))
    assert pairs == [("k0", "k0"), ("k0", "k1"), ("k1", "k0"), ("k1", "k1")]
    scores = found["accuracy"].reshape(10, 2, 2)
    np.testing.assert_equal(scores[:, [0, 1], [0, 1]], run.clusters["accuracy"].reshape(10, 2))  # CDFL's own ones
    last = ToyModel().learner(ToyWorld(6).tests(0)["k1"].x, np.zeros(0)).score([(1.0, run.params["k0"])])
    assert scores[-1, 0, 1] == last


def test_where_no_cluster_stands_for_a_distribution_the_best_one_counts() -> None:
    run = run_experiment(toy(IFCAAsync(clusters=3, initial="random")))
    scores = run.distributions["accuracy"].reshape(-1, 3, 2)
    np.testing.assert_equal(scores.max(axis=1), run.clusters["accuracy"].reshape(-1, 2))


def test_shares_are_true_and_estimated_at_every_upload() -> None:
    run = run_experiment(toy(uploads=8))
    shares = run.shares
    assert shares["upload"].tolist() == [n for n in range(1, 9) for _ in range(2)]
    assert shares["cluster"].tolist() == ["k0", "k1"] * 8
    last = len(shares["upload"]) - 2
    true, estimated = run.mixtures[shares["client"][last]]
    assert dict(zip(("k0", "k1"), shares["true"][last:], strict=True)) == true
    assert dict(zip(("k0", "k1"), shares["estimated"][last:], strict=True)) == estimated


def test_a_share_that_one_side_lacks_is_empty(tmp_path) -> None:
    run = run_experiment(toy(CASA(), uploads=6), out=tmp_path / "run")
    assert run.shares["cluster"].tolist() == ["k0", "k1"] * 6
    assert run.shares["estimated"][::2].tolist() == [1.0] * 6  # its only cluster
    assert np.isnan(run.shares["estimated"][1::2]).all()  # no cluster has this name


# the matrices


def test_moments_are_the_first_evaluations_after_each_tenth() -> None:
    looks = range(0, 101, 7)
    assert [b for a, b in zip(looks, [*looks][1:], strict=False) if is_moment(a, b, 100)] == [
        14, 21, 35, 42, 56, 63, 70, 84, 91
    ]  # fmt: skip
    assert is_moment(98, 100, 100) and not is_moment(91, 98, 100)


def test_matrices_are_kept_at_ten_moments_and_are_those_of_the_state() -> None:
    run = run_experiment(toy(CASA(), uploads=100, evaluate_every=2))
    assert list(run.matrices) == list(range(10, 101, 10))
    similarity = run.matrices[100]["similarity"]
    assert similarity.rows == similarity.columns
    assert set(similarity.rows) == {f"c{i}" for i in range(6)}
    assert similarity.values.dtype == np.float32
    np.testing.assert_equal(np.diag(similarity.values), 1)
    np.testing.assert_equal(similarity.values, similarity.values.T)


def test_matrices_of_a_run_in_rounds_are_at_tenths_of_its_rounds() -> None:
    run = run_experiment(toy(CFL(clients_per_round=3), rounds=20, evaluate_every_rounds=1))
    assert list(run.matrices) == list(range(6, 61, 6))


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_looking_at_matrices_changes_nothing(name) -> None:
    federation = ToyFederation(ALGORITHMS[name](), 6)
    federation.join_all()
    for _ in range(12):
        federation.step()
        coordinator = federation.coordinator
        before = coordinator.digest()
        found = coordinator.algorithm.matrices(coordinator.state)
        assert all(matrix.values.ndim == 2 for matrix in found.values())
        assert coordinator.digest() == before


def test_fedsofts_weights_by_hand() -> None:
    members = {"a": Member(10, {"k0": 0.25, "k1": 0.75}), "b": Member(30, {"k0": 0.5, "k1": 0.5}), "c": Member(5)}
    clusters = {"k0": Cluster(vector(0, 0)), "k1": Cluster(vector(1, 1))}
    found = FedSoft().matrices(State(LAYOUT, clusters, members))
    assert (found["importance"].rows, found["importance"].columns) == (("a", "b"), ("k0", "k1"))
    assert found["importance"].values.tolist() == [[0.25, 0.75], [0.5, 0.5]]
    np.testing.assert_allclose(found["selection"].values, [[2.5 / 17.5, 7.5 / 22.5], [15 / 17.5, 15 / 22.5]])
    assert FedSoft().matrices(State(LAYOUT, clusters)) == {}
    shares = FedSoftAsync().matrices(State(LAYOUT, clusters, members))["importance"]
    assert (shares.rows, shares.values.tolist()) == (("a", "b"), [[0.25, 0.75], [0.5, 0.5]])


def test_cosines_by_hand() -> None:
    last = {"a": vector(1, 0), "b": vector(1, 1)}
    found = CFL().matrices(State(LAYOUT, {}, memory={"last": last}))["similarity"]
    np.testing.assert_allclose(found.values, [[1, 0.5**0.5], [0.5**0.5, 1]])
    found = FedGroup().matrices(State(LAYOUT, {}, memory={"directions": {"k0": vector(0, 2), "k1": vector(0, -1)}}))
    assert found["directions"].rows == ("k0", "k1")
    np.testing.assert_allclose(found["directions"].values, [[1, -1], [-1, 1]])


def test_a_matrix_has_a_name_for_every_row_and_column() -> None:
    with pytest.raises(ValueError, match=r"names for 1 rows and 2 columns has values of shape \(2, 2\)"):
        Matrix(("a",), ("a", "b"), np.eye(2))


# however it is run


@pytest.mark.heavy
@pytest.mark.parametrize(
    "algorithm", some_thorough([CDFL(), CASA(), CFL(clients_per_round=3), FedSoft(selection_size=2)], CASA())
)
def test_an_export_is_the_same_after_a_kill_and_changes_nothing_else(tmp_path, algorithm) -> None:
    def stop(progress) -> None:
        if progress.uploads == 27:
            raise KeyboardInterrupt

    experiment = toy(algorithm)
    whole = run_experiment(experiment, out=tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        run_experiment(experiment, out=tmp_path / "cut", progress=stop)
    run_experiment(experiment, out=tmp_path / "cut", resume=True)
    assert exported(tmp_path / "cut") == exported(tmp_path / "whole")
    plain = run_experiment(replace(experiment, export=False), out=tmp_path / "plain")
    assert not {"distributions.csv", "shares.csv", "matrices"} & {path.name for path in (tmp_path / "plain").iterdir()}
    for name in ("metrics.csv", "clusters.csv", "clients.csv", "journal.jsonl"):
        assert (tmp_path / "plain" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert {k: p.tobytes() for k, p in plain.params.items()} == {k: p.tobytes() for k, p in whole.params.items()}
    assert (plain.distributions, plain.shares, plain.matrices) == ({}, {}, {})


def test_an_export_is_the_same_with_workers(tmp_path) -> None:
    for workers in (0, 2):
        run_experiment(toy(uploads=16), out=tmp_path / str(workers), workers=workers)
    assert exported(tmp_path / "0") == exported(tmp_path / "2")


def test_an_opened_run_has_its_export(tmp_path) -> None:
    ran = run_experiment(toy(CASA()), out=tmp_path / "run")
    again = open_run(tmp_path / "run")
    np.testing.assert_equal(dict(again.distributions), dict(ran.distributions))
    np.testing.assert_equal(dict(again.shares), dict(ran.shares))
    assert list(again.matrices) == list(ran.matrices)
    np.testing.assert_equal(again.matrices[40]["similarity"].values, ran.matrices[40]["similarity"].values)
    (tmp_path / "run" / "summary.json").unlink()
    early = open_run(tmp_path / "run", unfinished=True)
    assert max(early.matrices) <= early.summary["uploads"] == 36
    assert max(early.shares["upload"]) == 36
    memory = run_experiment(toy(CASA()))
    np.testing.assert_equal(memory.matrices[40]["similarity"].values, ran.matrices[40]["similarity"].values)


def test_a_file_of_matrices_is_read_as_it_was_written_or_refused(tmp_path) -> None:
    path = tmp_path / "000000001.safetensors"
    write_matrices(path, {"one": Matrix(("a",), ("b", "c"), vector(1, 2).reshape(1, 2))})
    found = read_matrices(path)["one"]
    assert (found.rows, found.columns, found.values.tolist()) == (("a",), ("b", "c"), [[1, 2]])
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(StorageError, match="is damaged"):
        read_matrices(path)


def test_export_is_true_or_false() -> None:
    with pytest.raises((SettingError, ValueError), match="export must be true or false"):
        toy(export=1)
