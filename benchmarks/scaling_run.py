"""One measurement of how a cost grows, in a process of its own, called by `scaling.py`.

`python scaling_run.py WAY ORDER`: WAY is `folding`, `clients` or `journal`; ORDER is JSON, the arguments of that
function. The last line printed is JSON.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from artesian import CDFL, Experiment, FedAsync, Plan, Start
from artesian.core import Algorithm, Learner, MeasureContext, Receipt, Upload, generator
from artesian.engine.coordinator import Coordinator
from artesian.execution.threads import single_threaded
from artesian.params import Layout, Params, combine, distance, seal
from artesian.simulator.checkpoint import Checkpoint
from artesian.simulator.folder import RunFolder, configuration
from artesian.simulator.simulation import Progress, Simulation
from artesian.storage.journal import Journal
from artesian.testing import ToyLearner, ToyModel, ToyWorld

SHAPES = {"cnn": (1, 28, 28), "resnet18": (3, 32, 32)}
ALGORITHMS: dict[str, Callable[[], Algorithm]] = {
    "cdfl": lambda: CDFL(tau0=10**9),  # no upload is stale, or few clients would cost less: a third is not folded
    "fedasync": FedAsync,
}


class Instant(ToyLearner):
    """A proxy set that answers at once, the same for all: only distances tell clusters apart."""

    def losses(self, params: Params) -> np.ndarray:
        return np.ones(1)


def folding(network: str, clusters: int, samples: int, proxy: int, uploads: int, trainings: int) -> dict[str, float]:
    """The parts of one upload of CDFL, each on one core: milliseconds, and how many clusters a fold changed."""
    from artesian.learners.networks import NETWORKS
    from artesian.learners.torch import TorchModel

    model = TorchModel(NETWORKS[network], shape=SHAPES[network])
    start = [model.start(i) for i in range(clusters)]
    with single_threaded(model):
        own = model.learner(*_images(network, samples))
        plan = Plan("adam", 0.001, 1, 128)
        training = timed(lambda: own.train(start[0], seed=0, plan=plan), trainings)
        proxies: dict[str, Learner] = {f"k{i}": model.learner(*_images(network, proxy)) for i in range(clusters)}
        given = MeasureContext(Receipt(1, 0, "train", ("k0",)), proxies)
        upload = Upload("c0", 1, samples, {"k0": start[0]})
        measuring = timed(lambda: CDFL().measure(upload, given), trainings)
        appraising = timed(lambda: CDFL().appraise(start[0], proxies["k0"]), trainings)
        far = timed(lambda: [distance(model.layout, start[0], params) for params in start], 10)
        fold, changed = _fold(model.layout, start, uploads)
    return {
        "training": training,
        "measuring": measuring,
        "appraising": appraising * changed,
        "folding": fold,
        "distances": far,
        "changed": changed,
        "parameters": float(model.layout.trainable),
    }


def _fold(layout: Layout, start: list[Params], uploads: int) -> tuple[float, float]:
    """Receive canned uploads, between two clusters, with proxies that cost nothing."""
    proxies: dict[str, Learner] = {f"k{i}": Instant(layout, np.zeros((100, 1))) for i in range(len(start))}
    coordinator = Coordinator.start(CDFL(), layout, start, proxies=proxies)
    for i in range(8):
        coordinator.join(f"c{i}", 100)
    trained = seal(combine(layout, start[:2], (0.5, 0.5)))
    milliseconds = []
    for turn in range(uploads):
        (reply,) = coordinator.recorded(f"c{turn % 8}")
        upload = Upload(reply.client, reply.task.number, 100, dict.fromkeys(reply.task.models, trained))
        began = time.perf_counter()
        coordinator.receive(upload)
        milliseconds.append((time.perf_counter() - began) * 1000)
    changes = sum(cluster.updates for cluster in coordinator.state.clusters.values())
    return statistics.median(milliseconds), changes / uploads


def _images(network: str, count: int) -> tuple[np.ndarray, np.ndarray]:
    rng = generator(0, "images", network, count)
    return rng.random((count, int(np.prod(SHAPES[network]))), np.float32), rng.integers(0, 10, count)


def timed(act: Callable[[], Any], times: int) -> float:
    """The median milliseconds of an act, done once before to warm up."""
    act()
    found = []
    for _ in range(times):
        began = time.perf_counter()
        act()
        found.append((time.perf_counter() - began) * 1000)
    return statistics.median(found)


def clients(name: str, count: int, uploads: int) -> dict[str, float]:
    """A whole simulation with a model of three weights: what the framework itself costs.

    The last upload is left out: after it comes the look at all clients, and what that imports.
    """
    experiment = _toy(name, count, uploads)
    stamps: list[float] = []
    began = time.perf_counter()
    simulation = Simulation(experiment.planned(), 0, progress=lambda _: stamps.append(time.perf_counter()))
    simulation.run()
    ended = time.perf_counter()
    each = (stamps[-2] - stamps[0]) / (len(stamps) - 2)
    return {
        "joining": (stamps[0] - began) / count * 1000,
        "upload": each * 1000,
        "whole": ended - began,
        "mb": _peak_mb(),
    }


def _toy(name: str, count: int, uploads: int, snapshot_every: int = 10**9) -> Experiment:
    return Experiment(
        ToyWorld(count, 4),
        ToyModel(),
        ALGORITHMS[name](),
        start=Start("apart", 0, 1),
        uploads=uploads,
        evaluate_every=uploads,
        snapshot_every=snapshot_every,
    )


def journal(events: int) -> dict[str, float]:
    """Appending to a journal of so many events and reading it; and resuming a run that has had so many."""
    with tempfile.TemporaryDirectory(dir=Path(__file__).parent, prefix=".journal-") as folder:
        return _appending(Path(folder) / "journal.jsonl", events) | _resuming(Path(folder) / "run", events)


def _appending(path: Path, events: int) -> dict[str, float]:
    evidence = {f"{what}/k{i}": 1 / (i + 3) for what in ("loss", "unit") for i in range(4)}
    record = {"time": 0.5, "kind": "upload", "client": "c0000", "number": 7, "base": 3, "evidence": evidence}
    loose = Journal(path, sync=False)
    for _ in range(events):
        loose.append(record)
    unsynced = timed(lambda: loose.append(record), 200)
    loose.close()
    opening = timed(lambda: Journal(path, sync=False).close(), 3)
    strict = Journal(path)
    synced = timed(lambda: strict.append(record), 50)
    strict.close()
    return {"append": unsynced, "append_synced": synced, "opening": opening, "mb": path.stat().st_size / 1e6}


class Enough(Exception):
    """The run has had its events."""


def _resuming(path: Path, events: int, members: int = 100) -> dict[str, float]:
    """Stop right after a snapshot, and restore: joins and uploads together are the events."""
    uploads = events - members
    experiment = _toy("cdfl", members, 2 * uploads, snapshot_every=uploads).planned()
    config = configuration(experiment.describe(), 0)

    def stop(progress: Progress) -> None:
        if progress.uploads > uploads:
            raise Enough

    folder = RunFolder.create(path, config)
    try:
        Simulation(experiment, 0, folder=folder, progress=stop).run()
    except Enough:
        pass
    finally:
        folder.close()
    began = time.perf_counter()
    folder = RunFolder.reopen(path, config)
    restored = Simulation(experiment, 0, folder=folder, checkpoint=folder.load(Checkpoint))
    seconds = time.perf_counter() - began
    assert restored.totals.uploads == uploads
    folder.close()
    return {"resuming": seconds * 1000}


def _peak_mb() -> float:
    """Of this program alone: what getrusage tells begins with the memory of the process that started it."""
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")) * 1024 / 1e6


WAYS: dict[str, Callable[..., dict[str, float]]] = {"folding": folding, "clients": clients, "journal": journal}

if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] not in WAYS:
        raise SystemExit(__doc__)
    print(json.dumps(WAYS[sys.argv[1]](**json.loads(sys.argv[2]))))
