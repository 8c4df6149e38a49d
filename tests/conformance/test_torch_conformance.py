"""Algorithms with a torch network of BatchNorm and dropout: the same bits wherever and however it runs."""

import pytest
from tiers import some_thorough

from artesian.algorithms import ALGORITHMS, CDFL, FedBuff, FlexCFL
from artesian.simulator.experiment import Experiment
from artesian.simulator.fleet import Fleet
from artesian.simulator.run import run_experiment
from artesian.simulator.simulation import Simulation
from artesian.testing import CHECKS, InProcess, ToyWorld, check_algorithm

torch = pytest.importorskip("torch", reason="torch is not installed")
from torch import nn  # noqa: E402

from artesian.learners.torch import TorchModel  # noqa: E402


def tiny() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Dropout(0.3), nn.Linear(4, 2))


MODEL = TorchModel(tiny, device="cpu")
HEAVY_2 = pytest.param(2, marks=[pytest.mark.heavy, pytest.mark.thorough])  # each process imports torch


@pytest.fixture(autouse=True)
def _one_thread():
    with MODEL.one_thread():
        yield


def experiment(algorithm=None) -> Experiment:
    fleet = Fleet("latency", 1, 4, leave_share=0.3, leave_by=3, return_after=2)
    return Experiment(ToyWorld(6), MODEL, algorithm or CDFL(), fleet=fleet, uploads=30, snapshot_every=7)


def files(folder) -> dict[str, bytes]:
    names = ["metrics.csv", "clusters.csv", "journal.jsonl"]
    final = sorted((folder / "final").glob("*.safetensors"))
    assert final
    return {path.name: path.read_bytes() for path in [*(folder / n for n in names), *final]}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("torch") / "run"
    run = run_experiment(experiment(), seed=1, out=folder)
    assert run.models["k0"]["1.num_batches_tracked"] > 10
    return folder


@pytest.mark.heavy
@pytest.mark.parametrize("name", ["cdfl", "fedbuff"])
def test_the_algorithm_conforms_with_a_torch_model(name) -> None:
    assert check_algorithm(ALGORITHMS[name](), model=MODEL) == list(CHECKS)


@pytest.mark.heavy
@pytest.mark.parametrize("check", ["restores", "agrees_over_http"])  # what depends on the model most
@pytest.mark.parametrize("name", some_thorough(sorted(set(ALGORITHMS) - {"cdfl", "fedbuff"}), "confluence", "fedem"))
def test_every_algorithm_has_the_same_bits_with_a_torch_model(name, check) -> None:
    assert check_algorithm(ALGORITHMS[name](), only=check, model=MODEL) == [check]


@pytest.mark.heavy
@pytest.mark.parametrize("workers", some_thorough([1, 2, 3], 2))
def test_any_number_of_workers_gives_the_same_bits(whole, tmp_path, workers) -> None:
    run_experiment(experiment(), seed=1, workers=workers, out=tmp_path / "run")
    assert files(tmp_path / "run") == files(whole)


def test_another_seed_gives_other_bits(whole, tmp_path) -> None:
    run_experiment(experiment(), seed=2, out=tmp_path / "run")
    assert files(tmp_path / "run") != files(whole)


class Stopped(Exception):
    pass


@pytest.mark.parametrize("workers", [0, HEAVY_2])
def test_a_run_resumes_to_the_same_bits(whole, tmp_path, workers) -> None:
    def stop(progress) -> None:
        if progress.uploads == 17:
            raise Stopped

    with pytest.raises(Stopped):
        run_experiment(experiment(), seed=1, workers=workers, out=tmp_path / "run", progress=stop)
    run_experiment(experiment(), seed=1, workers=workers, out=tmp_path / "run", resume=True)
    assert files(tmp_path / "run") == files(whole)


@pytest.mark.heavy
@pytest.mark.parametrize(
    "algorithm", [CDFL(), FedBuff(buffer_size=3), FlexCFL(clients_per_round=2, pretrain_scale=1)], ids=lambda a: a.name
)
def test_the_bits_are_the_same_through_the_in_process_server(algorithm) -> None:
    direct = Simulation(experiment(algorithm), 1)
    served = Simulation(experiment(algorithm), 1, transport=InProcess)
    direct.run()
    served.run()
    served.transport.close()
    assert direct.coordinator.digest() == served.coordinator.digest()


def test_a_function_that_workers_cannot_find_is_named() -> None:
    own = Experiment(ToyWorld(2), TorchModel(lambda: tiny(), device="cpu"), CDFL(), uploads=2)
    with pytest.raises(Exception, match="Workers cannot find"):
        run_experiment(own, workers=1)
