"""Memory and time per upload at 100 and 1,000 clients: the whole simulation, and the engine alone.

Run `python benchmarks/clients.py`. Every figure comes from a process of its own, three times, and is a median. The
engine alone is measured with canned uploads of 582,026 parameters and instant proxies, beside one bare blend of
two such vectors in the same process.
"""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys
import time

import numpy as np

import artesian
from artesian.core import Algorithm, Learner, Upload, generator
from artesian.engine.coordinator import Coordinator
from artesian.params import Layout, Params, combine, seal
from artesian.testing import ToyLearner

CLIENTS = (100, 1000)
WAYS = ("simulation cdfl", "simulation fedbuff", "engine cdfl", "engine fedbuff")
PARAMETERS = 582_026


class Instant(ToyLearner):
    """A proxy set that answers at once."""

    def losses(self, params: Params) -> np.ndarray:
        return np.full(1, abs(float(params[0])) + 0.5)


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def simulation(name: str, clients: int) -> dict[str, float]:
    """The preset digits-4 with so many clients: seconds and megabytes of the whole."""
    changes = [f"world.clients={clients}", f"algorithm.name={name}", "uploads=2000"]
    began = time.perf_counter()
    artesian.simulate("digits-4", changes=changes)
    return {"ms": (time.perf_counter() - began) / 2000 * 1000, "mb": peak_mb(), "reference_ms": 0.0}


def engine(name: str, clients: int, uploads: int = 300) -> dict[str, float]:
    """Joins, then canned uploads of random members: what one refresh costs the server besides measuring."""
    layout = Layout.of({"w": np.zeros(PARAMETERS, np.float32)})
    start = [seal(generator(i, "start").normal(0, 1, PARAMETERS).astype(np.float32)) for i in range(4)]
    algorithm: Algorithm = artesian.CDFL() if name == "cdfl" else artesian.FedBuff()
    proxies: dict[str, Learner] = {f"k{i}": Instant(layout, np.zeros((100, 1))) for i in range(4)}
    coordinator = Coordinator.start(algorithm, layout, start, proxies=proxies)
    for i in range(clients):
        coordinator.join(f"c{i}", 100)
    rng, seconds = generator(0, "uploads"), []
    for _ in range(uploads):
        client = f"c{int(rng.integers(clients))}"
        (reply,) = coordinator.recorded(client)
        upload = Upload(client, reply.task.number, 100, dict.fromkeys(reply.task.models, start[0]))
        began = time.perf_counter()
        coordinator.receive(upload)
        seconds.append(time.perf_counter() - began)
    began = time.perf_counter()
    for _ in range(10):
        combine(layout, start[:2], (0.5, 0.5))
    reference = (time.perf_counter() - began) / 10
    return {"ms": statistics.median(seconds) * 1000, "mb": peak_mb(), "reference_ms": reference * 1000}


def main() -> None:
    print(f"{'way':20} {'clients':>8} {'ms per upload':>14} {'peak MB':>9} {'ms of one blend':>16}")
    for way in WAYS:
        for clients in CLIENTS:
            command = [sys.executable, __file__, way, str(clients)]
            runs = [
                json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout) for _ in range(3)
            ]
            row = {key: statistics.median(run[key] for run in runs) for key in ("ms", "mb", "reference_ms")}
            bare = f"{row['reference_ms']:16.2f}" if row["reference_ms"] else " " * 16
            print(f"{way:20} {clients:8} {row['ms']:14.2f} {row['mb']:9.0f} {bare}", flush=True)


if __name__ == "__main__":
    if len(sys.argv) == 3:
        kind, name = sys.argv[1].split()
        print(json.dumps((simulation if kind == "simulation" else engine)(name, int(sys.argv[2]))))
    else:
        main()
