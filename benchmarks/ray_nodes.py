"""What a lost worker and a lost node cost on Ray: two nodes on this machine, one of them killed in the middle of a run.

Run `python benchmarks/ray_nodes.py` where Ray is installed. Four runs of the same experiment: in this process, on a
head node with one CPU and a second node with two, there with a worker's process killed while it trains, and with the
whole second node killed. All must find the same bits; `redone` counts the trainings that were begun more than once.
`memories` are the pieces of memory in which workers see the same images, and `nodes` those that trained.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from measuring import machine, say, table

from artesian import CDFL, Experiment, Start
from artesian.data.datasets import images
from artesian.learners.arrays import ArrayLearner, SoftmaxRegression
from artesian.params import Params
from artesian.simulator.simulation import Simulation
from artesian.simulator.worlds import Rotated

WORKERS = 3
WARM = 30  # trainings before one stops
LIMIT = 120.0  # seconds until something that is waited for has happened
QUIET = (
    "RAY_USAGE_STATS_ENABLED",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER",  # at 0, Ray leaves 127.0.0.1 as it is, here too
)
CLUSTER = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 500, "health_check_failure_threshold": 3}


@dataclass(frozen=True)
class Watched(SoftmaxRegression):
    """A model whose trainings leave a note, and of which one never ends."""

    folder: str = ""
    home: int = 0  # the process that notes nothing
    doomed: str = ""  # the node on which a training stops; "any": wherever

    def learner(self, x: np.ndarray, y: np.ndarray) -> ArrayLearner:
        watched = self.folder and os.getpid() != self.home
        return Watching(self, x, y) if watched else super().learner(x, y)

    def note(self, seed: int) -> None:
        """A training begins; its seed is its own."""
        import ray

        node = ray.get_runtime_context().get_node_id()
        note = {"training": seed, "pid": os.getpid(), "node": node, "memory": memory_of_images()}
        with open(Path(self.folder) / "notes", "a") as file:  # lines this short are written whole
            file.write(json.dumps(note) + "\n")
        wait_until(lambda: len({note["pid"] for note in notes(self.folder)}) >= WORKERS)  # a slow one is waited for
        if len(notes(self.folder)) <= WARM or not self.doomed:
            return
        if self.doomed in ("any", node):
            self._stop()
        else:  # so that the next training is done on the doomed node
            wait_until((Path(self.folder) / "stopped").exists)

    def _stop(self) -> None:
        """The first to come here stays, until it is killed."""
        own = Path(self.folder) / f"stopped-{os.getpid()}"
        own.write_text(str(os.getpid()))
        try:
            os.link(own, Path(self.folder) / "stopped")
        except FileExistsError:
            return
        threading.Event().wait()


def notes(folder: str) -> list[dict[str, Any]]:
    """Of all trainings begun so far."""
    return [json.loads(line) for line in (Path(folder) / "notes").read_text().splitlines()]


def wait_until(true: Callable[[], bool]) -> None:
    """A bounded time."""
    end = time.monotonic() + LIMIT
    while not true():
        if time.monotonic() > end:
            raise TimeoutError(f"what is waited for happens within {LIMIT:.0f} s")
        time.sleep(0.01)


class Watching(ArrayLearner):
    """A learner that says when it trains."""

    def train(self, params: Params, *, seed: int, **rest: Any) -> Params:
        assert isinstance(self.model, Watched)
        self.model.note(seed)
        return super().train(params, seed=seed, **rest)


def memory_of_images() -> str:
    """Which memory this process sees the images in."""
    address = images("digits").x.__array_interface__["data"][0]
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, _, _, device, inode, *_ = line.split()
        first, last = (int(end, 16) for end in span.split("-"))
        if first <= address < last:
            return f"{device} {inode}" if int(inode) else f"private {os.getpid()}"
    return "unknown"


def experiment(uploads: int, **watching: Any) -> Experiment:
    sizes: dict[str, Any] = {
        "samples_min": 20,
        "samples_max": 40,
        "proxy_images": 100,
        "test_images": 100,
        "client_test_samples": 50,
    }
    world, model = Rotated("digits", clients=12, **sizes), Watched(64, 10, **watching)
    return Experiment(world, model, CDFL(), start=Start("apart", 0, 0), uploads=uploads).planned()


@contextmanager
def two_nodes() -> Iterator[Any]:
    """A head node with one CPU and a second with two, on this machine, as long as this lasts."""
    os.environ |= dict.fromkeys(QUIET, "0")
    from ray.cluster_utils import Cluster

    folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")  # its sockets need a short path
    os.environ["RAY_TMPDIR"] = folder
    (Path(folder) / "ray").mkdir()
    cluster: Any = Cluster()
    try:
        here = {"node_ip_address": "127.0.0.1", "include_dashboard": False}
        cluster.add_node(**here, num_cpus=1, _system_config=CLUSTER)
        cluster.second = cluster.add_node(**here, num_cpus=WORKERS - 1)
        yield cluster
    finally:
        cluster.shutdown()
        shutil.rmtree(folder, ignore_errors=True)


def bits(simulation: Simulation) -> str:
    """All that a run found, as one name."""
    rows = repr(list(simulation.evaluation.uploads)).encode()
    return sha256(simulation.coordinator.digest().encode() + rows).hexdigest()[:16]


def measured(uploads: int, cluster: Any, doomed: str = "", strike: Callable[[int], object] | None = None) -> dict:
    """One run on the cluster; `strike` gets the process of the training that never ends."""
    with tempfile.TemporaryDirectory(prefix="nodes-") as folder:
        watching = {"folder": folder, "home": os.getpid(), "doomed": doomed}
        means = {"workers": WORKERS, "executor": "ray", "ray_address": cluster.address}
        simulation = Simulation(experiment(uploads, **watching), 0, **means)
        began = time.perf_counter()
        striking = threading.Thread(target=_strike, args=(Path(folder) / "stopped", strike), daemon=True)
        if strike:
            striking.start()
        simulation.run()
        seconds = time.perf_counter() - began
        if strike:
            striking.join(LIMIT)
        begun = notes(folder)
    trainings = {note["training"] for note in begun}
    return {
        "bits": bits(simulation),
        "trainings": len(trainings),
        "redone": len(begun) - len(trainings),
        "workers": len({note["pid"] for note in begun}),
        "nodes": len({note["node"] for note in begun}),
        "memories": len({(note["node"], note["memory"]) for note in begun}),
        "private": sum(note["memory"].startswith("private") for note in begun),
        "seconds": round(seconds, 1),
    }


def _strike(stopped: Path, strike: Callable[[int], object]) -> None:
    try:
        wait_until(stopped.exists)
    except TimeoutError:
        os._exit(3)  # nothing to strike: the run would be waited for for ever
    strike(int(stopped.read_text()))


def everything(uploads: int) -> dict[str, dict[str, Any]]:
    """All four runs."""
    inline = Simulation(experiment(uploads), 0)
    began = time.perf_counter()
    inline.run()
    found: dict[str, dict[str, Any]] = {
        "inline": {"bits": bits(inline), "seconds": round(time.perf_counter() - began, 1)}
    }
    with two_nodes() as cluster:
        say("two nodes, undisturbed")
        found["two nodes"] = measured(uploads, cluster)
        say("a worker is killed")
        found["a worker killed"] = measured(uploads, cluster, "any", lambda pid: os.kill(pid, signal.SIGKILL))
        say("a node is killed")
        second = cluster.second
        found["a node killed"] = measured(
            uploads, cluster, second.node_id, lambda _: cluster.remove_node(second, allow_graceful=False)
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--uploads", type=int, default=120, help="of every run (default 120)")
    parser.add_argument("--json", action="store_true", help="print one line of JSON instead of a table")
    given = parser.parse_args()
    found = everything(given.uploads)
    if given.json:
        print(json.dumps(found))
        return
    columns = ("bits", "trainings", "redone", "workers", "nodes", "memories", "seconds")
    rows = [[name, *(str(told.get(column, "")) for column in columns)] for name, told in found.items()]
    print(f"{machine('benchmarks/ray_nodes.py')}\n\n{table(('run', *columns), rows)}")


if __name__ == "__main__":
    main()
