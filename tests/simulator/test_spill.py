"""Vectors beyond the memory they may take: the same bits from a file, one copy of what is alike, nothing left."""

import errno
import gc
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tiers import some_thorough

from artesian.algorithms import CDFL, FedBuff, FedSoft, FlexCFL, Local
from artesian.core import Task
from artesian.errors import StorageError
from artesian.simulator.checkpoint import Checkpoint
from artesian.simulator.experiment import Experiment
from artesian.simulator.fleet import Fleet
from artesian.simulator.folder import RunFolder
from artesian.simulator.run import run_experiment
from artesian.simulator.simulation import Simulation
from artesian.simulator.spill import Spill, Spilled, filled
from artesian.storage.blobs import Blobs
from artesian.testing import InProcess, ToyModel, ToyWorld

TINY = 100 / (1024 * 1024)  # MB: a vector of 25 numbers


def toy(algorithm=None, clients: int = 8, uploads: int = 60, **options) -> Experiment:
    return Experiment(ToyWorld(clients), ToyModel(), algorithm or CDFL(), uploads=uploads, **options)


def files(folder: Path) -> dict[str, bytes]:
    paths = [folder / name for name in ("metrics.csv", "clusters.csv", "journal.jsonl")]
    return {path.name: path.read_bytes() for path in [*paths, *sorted((folder / "final").iterdir())]}


def vector(number: float, size: int = 10) -> np.ndarray:
    return np.full(size, number, np.float32)


def test_a_value_comes_back_bit_by_bit_from_memory_and_from_the_file(tmp_path) -> None:
    spill = Spill(TINY, tmp_path)
    kept = Spilled(spill)
    odd = np.array([np.nan, -0.0, 1e-45], np.float32)
    tasks = {
        f"c{i}": Task({"k0": vector(i), "k1": odd}, settings={"rate": (1, 2)}, mixture={"k0": 1.0}) for i in range(9)
    }
    kept.update(tasks)
    del odd
    assert spill.held <= 100 < spill.length
    for client, task in tasks.items():
        found = kept[client]
        assert replace(found, models={}) == replace(task, models={})
        assert {k: v.tobytes() for k, v in found.models.items()} == {k: v.tobytes() for k, v in task.models.items()}
    assert list(kept) == list(tasks) and len(kept) == 9 and "c3" in kept
    assert list(tmp_path.iterdir()) == []  # the file has no name


def test_arrays_of_any_shape_and_kind_are_kept() -> None:
    spill = Spill(0)
    makers = (
        lambda: np.array(2**60),
        lambda: np.zeros((0, 3)),
        lambda: np.arange(6).reshape(2, 3).T,
        lambda: np.array([True, False]),
    )
    for make in makers:
        array, shown = make(), make()
        ticket = spill.put(array)
        assert ticket.take() is array
        del array
        gc.collect()
        found = ticket.take()
        assert (found.dtype, found.shape) == (shown.dtype, shown.shape) and found.tolist() == shown.tolist()
        assert not (found.size and found.flags.writeable)


def test_places_are_used_again_and_vectors_in_use_are_not_touched() -> None:
    spill = Spill(0)
    kept = Spilled(spill)
    for i in range(4):
        kept[f"c{i}"] = {"own": vector(i)}
    length = spill.length
    in_use = kept["c1"]["own"]
    for i in range(40):
        kept[f"c{i % 4}"] = {"own": vector(100 + i)}
    assert spill.length == length + in_use.nbytes  # while one is exchanged, both have a place
    assert in_use.tolist() == [1] * 10
    del kept["c0"]
    assert "c0" not in kept and kept.get("c0") is None


def test_alike_is_one_ticket_and_what_is_read_is_read_once() -> None:
    spill = Spill(0)
    one, two = Spilled(spill), Spilled(spill)
    shared = vector(7)
    for i in range(50):
        one[f"c{i}"] = Task({"k0": shared})
        two[f"c{i}"] = {"own": shared}
    assert spill.length == shared.nbytes
    del shared
    first, second = one["c1"].models["k0"], two["c2"]["own"]
    assert first is second
    two["c3"] = {"own": second}  # back to where it came from
    assert spill.length == first.nbytes


def test_memory_is_given_back_when_the_last_slip_goes() -> None:
    spill = Spill(1)
    kept = Spilled(spill)
    kept["a"] = kept["b"] = {"own": vector(1)}
    assert spill.held == 40
    del kept["a"]
    assert spill.held == 40
    del kept["b"]
    assert spill.held == 0 == spill.length


def test_a_full_disk_is_one_sentence(monkeypatch, tmp_path) -> None:
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(StorageError, match="The disk is full"):
        Spill(0, tmp_path).put(vector(1))


def test_what_a_vault_has_is_not_read_again(tmp_path, monkeypatch) -> None:
    blobs, spill = Blobs(tmp_path / "blobs"), Spill(0)
    ticket = spill.put(vector(3))
    name = ticket.store(blobs)
    monkeypatch.setattr(spill, "read", None)
    assert ticket.store(blobs) == name
    assert blobs.get(name).tolist() == [3] * 10


FLEXCFL = FlexCFL(clients_per_round=4, pretrain_scale=1)  # its clients keep most
ALGORITHMS = [CDFL(), FedBuff(), FedSoft(), FLEXCFL, Local()]


@pytest.mark.heavy
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("algorithm", some_thorough(ALGORITHMS, FLEXCFL), ids=lambda algorithm: algorithm.name)
def test_a_run_that_spills_finds_the_same_bits(tmp_path, algorithm, workers) -> None:
    experiment = toy(
        algorithm, snapshot_every=9, fleet=Fleet("latency", 1, 5, leave_share=0.3, leave_by=9, return_after=3)
    )
    run_experiment(experiment, out=tmp_path / "memory")
    run_experiment(experiment, out=tmp_path / "spilled", memory_limit=TINY, workers=workers)
    assert files(tmp_path / "spilled") == files(tmp_path / "memory")
    names = {path.name for path in (tmp_path / "spilled").iterdir()}
    assert names == {path.name for path in (tmp_path / "memory").iterdir()}


@pytest.mark.heavy
@pytest.mark.parametrize("algorithm", some_thorough(ALGORITHMS, FLEXCFL), ids=lambda algorithm: algorithm.name)
def test_a_run_that_spills_resumes_to_the_same_bits(tmp_path, algorithm) -> None:
    experiment = toy(algorithm, snapshot_every=7)
    run_experiment(experiment, out=tmp_path / "whole")

    def stop_at(count):
        def look(progress) -> None:
            if progress.uploads == count:
                raise KeyboardInterrupt

        return look

    for count, limit in ((10, TINY), (30, 1024), (40, TINY)):
        with pytest.raises(KeyboardInterrupt):
            run_experiment(experiment, out=tmp_path / "run", resume=True, memory_limit=limit, progress=stop_at(count))
    run_experiment(experiment, out=tmp_path / "run", resume=True, memory_limit=TINY)
    assert files(tmp_path / "run") == files(tmp_path / "whole")


def test_a_run_over_http_spills_too() -> None:
    one, two = Simulation(toy(), 0), Simulation(toy(), 0, memory_limit=TINY, transport=InProcess)
    one.run()
    two.run()
    two.transport.close()
    assert one.coordinator.digest() == two.coordinator.digest()


def vectors(simulation: Simulation) -> set[int]:
    """The distinct vectors of all open tasks and trainings under way."""
    held = [*simulation.open_tasks.values(), *(flight.task for flight in simulation.flights.values())]
    assert len(held) == 2 * len(simulation.open_tasks)
    return {id(model) for task in held for model in task.models.values()}


def test_open_tasks_of_one_version_share_the_clusters_own_vector(tmp_path) -> None:
    experiment = toy(FedBuff(buffer_size=5), clients=40, uploads=12, snapshot_every=12)
    simulation = Simulation(experiment, 0)
    simulation.run()
    assert len(vectors(simulation)) == simulation.coordinator.state.version + 1 == 3

    run_experiment(experiment, out=tmp_path / "run")
    folder = RunFolder(tmp_path / "run")
    spill = Spill(1024)
    restored = Simulation(experiment, 0, folder=folder, checkpoint=folder.load(Checkpoint, spill), spill=spill)
    folder.close()
    assert len(vectors(restored)) == 3
    newest = {id(cluster.params) for cluster in restored.coordinator.state.clusters.values()}
    assert newest < vectors(restored)
    assert spill.held == 3 * experiment.model.layout.size * 4


def test_a_slip_of_a_state_is_filled_as_a_whole() -> None:
    spill = Spill(0)
    tree = {"list": [vector(1), {"deep": (vector(2), "x")}], "number": 3}
    slip = spill.slip(tree)
    found = filled(slip)
    assert found["list"][1]["deep"][0] is tree["list"][1]["deep"][0]
    assert filled({"plain": [1, 2]}) == {"plain": [1, 2]}
