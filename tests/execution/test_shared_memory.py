"""Data that workers map: made once, read-only, and gone with the processes."""

import os
import pickle
import signal
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest
from tiers import some_thorough

from artesian.config.experiments import load, simulate
from artesian.data.datasets import Samples, images
from artesian.data.people import people
from artesian.execution import shared_memory as blocks
from artesian.execution.processes import Processes
from artesian.execution.shared_memory import SharedArray, arrays_of, laid_out, made, once
from artesian.simulator.jobs import Place, worker_setup
from artesian.simulator.worlds import DigitWorld, LabelGroups, Natural, Rotated
from artesian.simulator.worlds.dealing import flat_images
from artesian.testing import ToyModel

SMALL = ["uploads=12", "world.clients=4", "start.trunk_epochs=1", "model.name=softmax", "training.epochs=1"]
LINUX = pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="only Linux tells what a process maps")


def save(path: Path, **arrays: np.ndarray) -> str:
    np.savez(path, **arrays)
    return str(path)


def pictures(path: Path, shape: tuple[int, ...] = (20, 20), count: int = 600, **more: np.ndarray) -> str:
    rng = np.random.default_rng(0)
    return save(path, x=rng.integers(0, 256, (count, *shape), np.uint8), y=np.arange(count) % 10, **more)


@pytest.mark.parametrize("array", [np.arange(40_000.0), np.zeros((3, 90_000), np.uint8), np.array(["ann"] * 9000)])
def test_a_block_holds_the_same_bits_and_refuses_to_be_written(array) -> None:
    held = SharedArray(array).array
    assert held.dtype == array.dtype and held.shape == array.shape and held.tobytes() == array.tobytes()
    with pytest.raises(ValueError, match="read-only"):
        held[...] = held[0]
    with pytest.raises(ValueError, match="WRITEABLE"):
        held.flags.writeable = True


def test_without_memory_files_a_temporary_file_does(monkeypatch) -> None:
    monkeypatch.delattr(os, "memfd_create", raising=False)
    array = np.arange(20_000.0)
    assert np.array_equal(SharedArray(array).array, array)


def test_arrays_of_any_order_are_laid_out_as_they_read() -> None:
    turned = np.asfortranarray(np.arange(30_000.0).reshape(100, 300))
    assert np.array_equal(SharedArray(turned).array, turned)
    assert np.array_equal(SharedArray(turned[::-1]).array, turned[::-1])


def test_small_arrays_stay_where_they_are_and_are_protected_too() -> None:
    mine = np.arange(4)
    slip = laid_out(Samples(np.zeros(20_000), mine))
    assert isinstance(slip.x, SharedArray) and np.shares_memory(slip.y, mine)
    seen = arrays_of(slip)
    assert not seen.x.flags.writeable and not seen.y.flags.writeable and mine.flags.writeable


def test_files_of_blocks_are_closed_with_them() -> None:
    block = SharedArray(np.zeros(20_000))
    array, file = block.array, block._file
    del block
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(file)
    assert array.sum() == 0  # which is still mapped


def test_a_block_sent_by_pickle_is_a_copy() -> None:
    block = SharedArray(np.arange(20_000.0))
    assert np.array_equal(pickle.loads(pickle.dumps(block)), block.array)


def test_what_was_made_last_is_kept() -> None:
    calls = []

    @once(2)
    def make(name: str) -> np.ndarray:
        calls.append(name)
        return np.zeros(3)

    for name in ("a", "b", "a", "c", "a", "b"):
        make(name)
    assert calls == ["a", "b", "c", "b"]
    blocks.EVERY.remove(make)


def _seen(path: str) -> tuple[int, bool, bool]:
    """In a worker: who it is, whether data are protected, and whether their file was needed."""
    return os.getpid(), images(path).x.flags.writeable, Path(path).exists()


@pytest.mark.heavy
def test_workers_need_no_file_any_more(tmp_path) -> None:
    name = pictures(tmp_path / "d.npz")
    images.cache_clear()
    images(name)
    Path(name).unlink()
    with ProcessPoolExecutor(1, get_context("spawn"), initializer=blocks.take_over, initargs=(made(),)) as pool:
        worker, writable, exists = pool.submit(_seen, name).result()
    assert worker != os.getpid() and not writable and not exists


def _scribble(sets: dict[str, Samples]) -> float:
    sets["k0"].x[:] = 7
    return float(sets["k0"].x.sum())


@pytest.mark.heavy
def test_what_a_worker_writes_into_its_own_stays_its_own() -> None:
    slip = laid_out({"k0": Samples(np.zeros(20_000), np.zeros(1))}, own=True)
    with ProcessPoolExecutor(1, get_context("spawn"), initializer=_keep, initargs=(slip,)) as pool:
        assert pool.submit(_scribble_kept).result() == 140_000
    assert arrays_of(slip)["k0"].x.sum() == 0


_kept: dict[str, Samples] = {}


def _keep(sets: dict[str, Samples]) -> None:
    _kept.update(sets)


def _scribble_kept() -> float:
    return _scribble(_kept)


def worlds(folder: Path) -> list:
    grey, colour = pictures(folder / "grey.npz"), pictures(folder / "colour.npz", (12, 12, 3))
    whose = pictures(folder / "whose.npz", (12, 12, 3), user=np.arange(600) % 5)
    few = {"proxy_images": 20, "test_images": 30}
    sizes = {**few, "samples_min": 5, "samples_max": 9, "client_test_samples": 5, "clients": 4}
    return [
        Rotated(grey, **sizes),
        Rotated(colour, **{**sizes, "clusters": 3}),
        LabelGroups(colour, groups=((0, 1, 2, 3, 4), (5, 6, 7, 8, 9)), shares=(), clients=4),
        Natural(whose),
        DigitWorld((grey, f"inverted:{grey}"), size=20, channels=1, **sizes),
    ]


@pytest.mark.parametrize("number", range(5))
def test_no_world_makes_large_arrays_in_a_worker(tmp_path, number) -> None:
    """What visits, proxies and tests are drawn from lies in blocks, all of which a worker is given."""
    world = worlds(tmp_path)[number]
    for function in blocks.EVERY:
        function.cache_clear()
    Place(world, ToyModel(), 0).shared()
    before = [(function, args) for function, args, _ in made()]
    for client in world.names:
        world.visit(0, client, 1)
    world.proxies(0), world.tests(0)
    assert [(function, args) for function, args, _ in made()] == before
    assert before


def test_grey_images_are_not_held_twice(tmp_path) -> None:
    name = pictures(tmp_path / "d.npz")
    assert np.shares_memory(flat_images(name), images(name).x)
    colour = pictures(tmp_path / "c.npz", (12, 12, 3))
    assert flat_images(colour) is flat_images(colour) and not flat_images(colour).flags.writeable


def test_people_are_held_once_too(tmp_path) -> None:
    name = pictures(tmp_path / "d.npz", user=np.arange(600) % 5)
    people.cache_clear()
    assert not people(name).x.flags.writeable
    assert (people, (name,)) in [(function, args) for function, args, _ in made()]


@pytest.mark.heavy
@LINUX
def test_workers_map_the_memory_of_the_main_process(tmp_path) -> None:
    world = Rotated(pictures(tmp_path / "d.npz"), 2, 4, 5, 9, proxy_images=60, test_images=90, client_test_samples=5)
    pool = Processes(worker_setup(Place(world, ToyModel(), 0)), 2)
    try:
        pool.wait()
        one, other = map(mapped, pool.pids)
        assert len(one) >= 4 and one == other  # images, and the sets of two clusters
        assert one <= mapped(os.getpid())
    finally:
        pool.close()


def mapped(pid: int) -> set[str]:
    """The memory files of ours that a process maps, by their inodes."""
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return {line.split()[4] for line in lines if "memfd:artesian" in line}


def wait_for(holds, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.01)


def begun(folder: Path, *options: str) -> subprocess.Popen:
    """A run in a process group of its own, once its workers have worked."""
    command = [sys.executable, "-m", "artesian.cli", "simulate", "digits-4", "--workers", "2", "--out", str(folder)]
    given = [*SMALL, "snapshot_every=4", *options]
    command += [part for change in given for part in ("--set", change)]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    wait_for(lambda: (folder / "snapshots" / "000000008.json").exists() or process.poll() is not None)
    return process


def of_group(group: int) -> list[int]:
    """The processes of a group that have not ended."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, number = path.read_text().rsplit(")", 1)[1].split()[:3]
        except OSError:
            continue
        if int(number) == group and state not in "ZX":
            found.append(int(path.parent.name))
    return found


def files(folder: Path) -> dict[str, bytes]:
    names = [folder / name for name in ("metrics.csv", "clusters.csv", "journal.jsonl")]
    return {path.name: path.read_bytes() for path in [*names, *sorted((folder / "final").iterdir())]}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("undisturbed") / "run"
    simulate(load("digits-4", [*SMALL, "snapshot_every=4", "uploads=400"]), out=folder)
    return files(folder)


@pytest.mark.heavy
@LINUX
@pytest.mark.parametrize("number", some_thorough([signal.SIGTERM, signal.SIGINT], signal.SIGTERM))
def test_a_signal_to_the_whole_group_is_the_main_processs_business(undisturbed, tmp_path, number) -> None:
    folder = tmp_path / "run"
    process = begun(folder, "uploads=400")
    os.killpg(process.pid, number)
    _, told = process.communicate(timeout=60)
    assert process.returncode == 130 and f"Continue it with --resume --out {folder}" in told
    assert "WorkerLost" not in told and "resource_tracker" not in told and "Traceback" not in told
    wait_for(lambda: of_group(process.pid) == [])
    assert not (folder / "summary.json").exists(), "it finished before it was interrupted"
    simulate(load("digits-4", [*SMALL, "snapshot_every=4", "uploads=400"]), out=folder, resume=True, workers=2)
    assert files(folder) == undisturbed


@pytest.mark.heavy
@LINUX
def test_workers_end_with_a_main_process_that_is_killed(tmp_path) -> None:
    process = begun(tmp_path / "run", "uploads=100000")
    assert len(of_group(process.pid)) >= 3
    process.kill()
    process.communicate(timeout=60)
    wait_for(lambda: of_group(process.pid) == [])


@pytest.mark.heavy
def test_a_run_ends_without_a_word_about_shared_memory(tmp_path) -> None:
    process = begun(tmp_path / "run")
    told = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "resource_tracker" not in told[1] and "Warning" not in told[1]
