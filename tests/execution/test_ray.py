"""Runs on Ray: the same bits as anywhere, whoever dies; one sentence where no cluster is."""

import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from artesian.algorithms import CDFL, FedAsync, FedAvg, FedSoft
from artesian.errors import NotFinite, SettingError, WorkerLost
from artesian.execution import ray as ours
from artesian.learners.arrays import SoftmaxRegression
from artesian.simulator.drifting import Drifts
from artesian.simulator.experiment import Experiment
from artesian.simulator.pretraining import Start
from artesian.simulator.run import run_experiment
from artesian.simulator.simulation import Simulation
from artesian.simulator.watching import Watches
from artesian.simulator.worlds import Rotated
from artesian.testing import ToyModel, ToyWorld

ray = pytest.importorskip("ray", reason="Ray is not installed")
pytestmark = [pytest.mark.ray, pytest.mark.filterwarnings("ignore::ResourceWarning")]  # its own, of pipes
WORKING = (b"ray::perform", b"ray::IDLE")  # what Ray calls its workers; its own agents have names like these too
RAY = {"workers": 2, "executor": "ray"}


def toy(algorithm=None, uploads: int = 40, model=None, **options) -> Experiment:
    return Experiment(ToyWorld(6), model or ToyModel(), algorithm or CDFL(), uploads=uploads, **options)


def files(folder: Path) -> dict[str, bytes]:
    paths = [folder / name for name in ("metrics.csv", "clusters.csv", "journal.jsonl")]
    return {path.name: path.read_bytes() for path in [*paths, *sorted((folder / "final").iterdir())]}


@pytest.fixture(scope="module")
def cluster():
    """A session of the caller's own, which runs use and leave as it is."""
    with ours.cluster(2, "local"):
        yield
        assert ray.is_initialized()


@pytest.mark.parametrize("algorithm", [CDFL(), FedAvg(clients_per_round=4), FedSoft()])
def test_workers_find_the_same_bits(cluster, tmp_path, algorithm) -> None:
    run_experiment(toy(algorithm), out=tmp_path / "inline")
    run_experiment(toy(algorithm), out=tmp_path / "processes", workers=2)
    run = run_experiment(toy(algorithm), out=tmp_path / "ray", profile=True, **RAY)
    assert files(tmp_path / "ray") == files(tmp_path / "inline") == files(tmp_path / "processes")
    assert (run.summary["executor"], run.summary["workers"]) == ("ray", 2)
    parts = run.summary["profile"]
    assert min(parts["workers"][part] for part in ("training", "evaluating", "moving")) > 0
    assert parts["main"]["moving"] > 0 == parts["main"]["training"]


def test_clients_decide_the_same_on_ray(cluster, tmp_path) -> None:
    watch = Watches("drift or every 4", "ks", {"part": "losses", "level": 0.2, "reference": 20, "window": 20})
    experiment = replace(toy(FedAsync()), drift=Drifts(every=4), watch=watch, turns=40)
    run_experiment(experiment, out=tmp_path / "inline")
    run = run_experiment(experiment, out=tmp_path / "ray", **RAY)
    assert files(tmp_path / "ray") == files(tmp_path / "inline")
    assert (tmp_path / "ray" / "turns.csv").read_bytes() == (tmp_path / "inline" / "turns.csv").read_bytes()
    assert 6 < run.summary["refreshes"] < 40


def test_killed_workers_are_replaced_and_the_bits_stay(cluster) -> None:
    killed = []

    def kill(progress) -> None:
        if progress.uploads in (7, 8, 20):
            killed.append(wait_for(at_work))
            for pid in killed[-1]:
                with suppress(ProcessLookupError):  # it has ended by itself
                    os.kill(pid, signal.SIGKILL)

    simulation, one = Simulation(toy(), 0, progress=kill, **RAY), Simulation(toy(), 0)
    simulation.run()
    one.run()
    assert len(killed) == 3 and all(killed)
    assert simulation.coordinator.digest() == one.coordinator.digest()
    assert list(simulation.evaluation.uploads) == list(one.evaluation.uploads)


def wait_for(find, seconds: float = 60) -> list[int]:
    end = time.monotonic() + seconds
    while not (found := find()):
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.05)
    return found


def at_work() -> list[int]:
    """The processes in which Ray does jobs now, or did the last."""
    found = []
    for pid in descendants(os.getpid()):
        with suppress(OSError):
            found += [pid] if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(WORKING) else []
    return found


def test_workers_need_no_data_files(cluster, tmp_path) -> None:
    """All they draw from comes from the main process."""
    path = tmp_path / "d.npz"
    x = np.random.default_rng(0).integers(0, 256, (600, 20, 20), np.uint8)
    np.savez(path, x=x, y=np.arange(600) % 10)
    sizes = {"samples_min": 20, "samples_max": 40, "proxy_images": 50, "test_images": 60, "client_test_samples": 30}
    experiment = Experiment(
        Rotated(str(path), clients=6, **sizes),
        SoftmaxRegression(400, 10),
        CDFL(),
        start=Start("apart", 0, 0),
        uploads=12,
    )
    simulations = [Simulation(experiment, 0, **means) for means in ({}, RAY, {"workers": 2})]
    path.unlink()
    for simulation in simulations:
        simulation.run()
    assert len({simulation.coordinator.digest() for simulation in simulations}) == 1


@dataclass(frozen=True)
class Fragile(ToyModel):
    """The first workers that train it end in the middle."""

    folder: str = ""

    def learner(self, x, y):
        for name in ("first", "second"):
            if self.folder and not (Path(self.folder) / name).exists():
                (Path(self.folder) / name).touch()
                os._exit(1)
        return super().learner(x, y)

    def __reduce__(self):
        return Fragile, (os.environ["FRAGILE"],)  # in a worker; here it is safe


def test_a_training_lost_in_the_middle_is_done_again(cluster, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("FRAGILE", str(tmp_path))
    simulation, one = Simulation(toy(model=Fragile()), 0, **RAY), Simulation(toy(), 0)
    simulation.run()
    one.run()
    assert (tmp_path / "second").exists()
    assert simulation.coordinator.digest() == one.coordinator.digest()
    assert list(simulation.evaluation.uploads) == list(one.evaluation.uploads)


@dataclass(frozen=True)
class Killer(ToyModel):
    """Ends any worker that trains it."""

    home: int = 0  # the process that survives it

    def learner(self, x, y):
        if os.getpid() != self.home:
            os._exit(1)
        return super().learner(x, y)


def test_a_training_that_kills_every_worker_ends_the_run(cluster) -> None:
    with pytest.raises(WorkerLost, match=r"One job lost 3 workers\. .*--resume"):
        run_experiment(toy(model=Killer(home=os.getpid())), **RAY)


@dataclass(frozen=True)
class Stranger:
    """A place no worker can settle in."""

    def __reduce__(self):
        return _refuse, (os.getpid(),)


def _refuse(home: int) -> Stranger:
    raise RuntimeError("this node lacks the data")


def test_workers_that_cannot_start_end_the_run(cluster) -> None:
    @dataclass(frozen=True)
    class Nowhere(ToyModel):
        stranger: Stranger = Stranger()

    with pytest.raises(WorkerLost, match=r"A worker could not start: .*this node lacks the data"):
        run_experiment(toy(model=Nowhere()), **RAY)


@dataclass(frozen=True)
class Refusing(ToyModel):
    home: int = 0

    def learner(self, x, y):
        if os.getpid() != self.home:
            raise NotFinite("The data hold NaN", "Remove it")
        return super().learner(x, y)


def test_a_training_that_fails_fails_as_anywhere(cluster) -> None:
    with pytest.raises(NotFinite, match=r"The data hold NaN\. Remove it\."):
        run_experiment(toy(model=Refusing(home=os.getpid())), **RAY)


def test_of_trainings_that_fail_one_is_named() -> None:
    code = (
        "import os; from test_ray import *\n"
        "try: run_experiment(toy(model=Refusing(home=os.getpid())), **RAY)\n"
        "except NotFinite as error: print(error, file=sys.stderr)"
    )
    surroundings = os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    surroundings.pop("RAY_IGNORE_UNHANDLED_ERRORS", None)  # what a run in this process may have left
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240, env=surroundings)
    assert (told.returncode, told.stdout, told.stderr) == (0, "", "The data hold NaN. Remove it.\n")


def test_a_process_is_in_one_cluster(cluster) -> None:
    with pytest.raises(SettingError, match="in a Ray cluster already"):
        run_experiment(toy(), ray_address="127.0.0.1:6379", **RAY)


def command(*options: str, **environment: str) -> subprocess.CompletedProcess:
    """In a process of its own: that has no session yet."""
    given = [sys.executable, "-m", "artesian.cli", "simulate", "digits-2", "--set", "uploads=8", "--executor", "ray"]
    surroundings = {key: value for key, value in os.environ.items() if key != "RAY_ADDRESS"} | environment
    surroundings["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # Ray leaves 127.0.0.1 as it is, so it is found there
    return subprocess.run([*given, *options], capture_output=True, text=True, timeout=240, env=surroundings)


def test_a_run_brings_its_own_cluster_and_ends_it_without_a_word() -> None:
    told = command("--workers", "1", "--json")
    assert told.returncode == 0
    assert all(
        line.startswith("digits-2 confluence seed 0: ") for line in told.stderr.splitlines()
    )  # our progress, no chatter
    assert '"executor": "ray", "workers": 1' in told.stdout


def test_a_clusters_own_processes_listen_here_only(cluster) -> None:
    """Whoever reaches a cluster may run code in it."""
    assert ray.get_runtime_context().gcs_address.startswith("127.0.0.1:")
    own = ("0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000")
    listening = {address for pid in descendants(os.getpid()) for address in listens(pid)}
    assert listening and listening <= set(own)  # 127.0.0.1, the same in IPv6, and ::1


def descendants(pid: int) -> list[int]:
    children: list[int] = []
    for thread in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):  # it has ended meanwhile
            children += map(int, thread.read_text().split())
    return [*children, *(below for child in children for below in descendants(child))]


def listens(pid: int) -> list[str]:
    """The addresses a process listens at, as the system writes them."""
    try:
        sockets = {os.readlink(path) for path in Path(f"/proc/{pid}/fd").iterdir()}
    except OSError:
        return []  # it has ended
    lines = [
        line.split() for kind in ("tcp", "tcp6") for line in Path(f"/proc/net/{kind}").read_text().splitlines()[1:]
    ]
    return [line[1].split(":")[0] for line in lines if line[3] == "0A" and f"socket:[{line[9]}]" in sockets]


def errors_in(told: str) -> list[str]:
    """What is printed besides the two lines that open a run."""
    return [line for line in told.splitlines() if not line.startswith(("digits-2: confluence", "pre-training: "))]


def test_a_run_joins_a_cluster_by_its_address_and_leaves_it(cluster) -> None:
    address = ray.get_runtime_context().gcs_address
    told = command("--workers", "1", "--json", "--ray-address", address)
    assert told.returncode == 0 and '"executor": "ray", "workers": 1' in told.stdout
    assert all(line.startswith("digits-2 confluence seed 0: ") for line in told.stderr.splitlines())
    told = command("--workers", "3", RAY_ADDRESS=address)
    assert told.returncode == 2
    assert errors_in(told.stderr) == ["error: The Ray cluster has 2 CPUs, too few for 3 workers. Use fewer workers."]


def test_an_address_nobody_listens_at_is_one_sentence() -> None:
    told = command("--workers", "1", RAY_ADDRESS="127.0.0.1:1")
    assert told.returncode == 1
    (sentence,) = errors_in(told.stderr)
    assert sentence.startswith("error: No Ray cluster answers at 127.0.0.1:1 (Conn")
    told = command("--workers", "1", "--ray-address", "nonsense")
    assert told.returncode == 2 and "host:port" in told.stderr


def test_somebody_else_at_the_address_is_one_sentence() -> None:
    code = (
        "import sys; from artesian.execution import ray; ray.JOIN_WITHIN = 1.0; from artesian.cli import main;"
        " sys.argv = ['artesian', *sys.argv[1:]]; main()"
    )
    with socket.create_server(("127.0.0.1", 0)) as mute:
        address = f"127.0.0.1:{mute.getsockname()[1]}"
        given = ["simulate", "digits-2", "--executor", "ray", "--workers", "1", "--ray-address", address]
        told = subprocess.run([sys.executable, "-c", code, *given], capture_output=True, text=True, timeout=240)
    assert told.returncode == 1
    assert f"at {address} (no answer within 1 s)" in told.stderr


def test_a_cluster_that_has_no_room_is_not_waited_for(cluster, monkeypatch) -> None:
    monkeypatch.setattr(ours, "START_WITHIN", 0.1)

    class Holder:
        """Holds a CPU."""

        def hold(self) -> None:
            """Answer once it does."""

    held = [ray.remote(num_cpus=1)(Holder).remote() for _ in range(2)]
    ray.get([actor.hold.remote() for actor in held])
    with pytest.raises(WorkerLost, match="had no room for 2 workers within 0 s"):
        run_experiment(toy(), **RAY)
    for actor in held:
        ray.kill(actor)


def test_a_session_of_the_callers_own_with_too_few_cpus_is_refused(cluster) -> None:
    with pytest.raises(SettingError, match="has 2 CPUs, too few for 3 workers"):
        run_experiment(toy(), workers=3, executor="ray")
