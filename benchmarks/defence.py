"""What the defence costs in time when nobody is hostile: CPU seconds with its defaults and without it, and their ratio.

* `simulation`: the preset digits-4, all of it: training, the server's work and the evaluation.
* `server`: an upload of the papers' convolutional network (582,026 parameters) from `receive` to its reply, in process,
  in one thread, with four proxy sets of 250 random images; no HTTP and no disk.

With and without take turns, and every figure is the median of the repetitions. A simulation is a process of its own;
a repetition of the server is the mean of 20 uploads, after 10 that do not count.

    python benchmarks/defence.py
    python benchmarks/defence.py --uploads 400 --repeats 3
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from statistics import fmean, median

import numpy as np

import artesian
from artesian.algorithms import ALGORITHMS
from artesian.core import Learner, Model, Upload, generator
from artesian.engine.coordinator import Coordinator
from artesian.engine.defence import Defence
from artesian.execution.threads import single_threaded
from artesian.learners.networks import NETWORKS
from artesian.params import Params, seal

METHODS = ("confluence", "cdfl", "fedbuff")
WAYS = ("without", "with")
CLIENTS, CLUSTERS, SAMPLES = 20, 4, 250
FIRST, COUNTED = 10, 20  # uploads of the server in a repetition: two buffers of FedBuff


def simulated(method: str, way: str, uploads: int) -> float:
    """CPU seconds of one simulation, of this process and its workers."""
    changes = [f"algorithm.name={method}", f"uploads={uploads}", *(["defence.clip=3.0"] if way == "with" else [])]
    artesian.simulate("digits-4", changes=changes)
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(part.ru_utime + part.ru_stime for part in used)


def simulations(method: str, uploads: int, repeats: int) -> dict[str, float]:
    """The median of several processes each, which take turns."""
    found: dict[str, list[float]] = {way: [] for way in WAYS}
    for _ in range(repeats):
        for way in WAYS:
            command = [sys.executable, __file__, "--one", method, way, "--uploads", str(uploads)]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            found[way].append(json.loads(done.stdout))
    return {way: median(seconds) for way, seconds in found.items()}


def served(method: str, repeats: int) -> dict[str, float]:
    """CPU milliseconds of one upload: means of some, on two servers that take turns, and the median of these."""
    model = artesian.TorchModel(NETWORKS["cnn"], shape=(1, 28, 28))
    with single_threaded(model):
        found: dict[str, list[float]] = {way: [] for way in WAYS}
        for turn in range(repeats):
            servers = {way: _uploads(model, method, Defence() if way == "with" else None, turn) for way in WAYS}
            took = [{way: next(seconds) for way, seconds in servers.items()} for _ in range(FIRST + COUNTED)]
            for way in WAYS:
                found[way].append(1000 * fmean(row[way] for row in took[FIRST:]))
    return {way: median(times) for way, times in found.items()}


def _uploads(model: Model, method: str, defence: Defence | None, seed: int) -> Iterator[float]:
    """A server that gets one upload after another, and how long each took."""
    proxies: dict[str, Learner] = {}
    for i in range(CLUSTERS):
        rng = generator(i, "proxy")
        x = rng.standard_normal((SAMPLES, 784), np.float32)
        proxies[f"k{i}"] = model.learner(x, rng.integers(0, 10, SAMPLES))
    start = [_shaken(model.start(0), i) for i in range(CLUSTERS)]
    plan = artesian.Plan(epochs=1, batch=128)
    own = {"proxies": proxies, "plan": plan, "defence": defence}
    coordinator = Coordinator.start(ALGORITHMS[method](), model.layout, start, seed, **own)
    for i in range(CLIENTS):
        coordinator.join(f"c{i}", 100)
    rng = generator(seed, "uploads")
    while True:
        client = f"c{int(rng.integers(CLIENTS))}"
        (reply,) = coordinator.recorded(client)
        delta = bool(reply.task.settings.get("delta"))
        models = {k: _shaken(p * (not delta), int(rng.integers(1 << 30))) for k, p in reply.task.models.items()}
        upload = Upload(client, reply.task.number, 100, models)
        began = time.process_time()
        coordinator.receive(upload)
        yield time.process_time() - began


def _shaken(params: Params, seed: int) -> Params:
    return seal((params + generator(seed, "noise").normal(0, 1e-4, params.size)).astype(np.float32))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--uploads", type=int, default=2000, help="of a simulation (default 2000)")
    parser.add_argument("--repeats", type=int, default=5, help="of every figure (default 5)")
    parser.add_argument("--only", choices=("server", "simulation"), help="one of the two parts")
    parser.add_argument("--methods", default=",".join(METHODS), help="which, as A,B")
    parser.add_argument("--one", nargs=2, metavar=("METHOD", "WAY"), help="run one simulation, and print its seconds")
    asked = parser.parse_args()
    if asked.one:
        method, way = asked.one
        print(json.dumps(simulated(method, way, asked.uploads)))
        return
    methods = asked.methods.split(",")
    if unknown := [method for method in methods if method not in METHODS]:
        parser.error(f"unknown methods: {', '.join(unknown)}. There are {', '.join(METHODS)}.")
    print("| method | what | without | with | ratio |\n|---|---|---|---|---|", flush=True)
    for method in methods:
        figures = {}
        if asked.only != "simulation":
            figures["server, ms of CPU per upload"] = served(method, asked.repeats)
        if asked.only != "server":
            figures["simulation, s of CPU"] = simulations(method, asked.uploads, asked.repeats)
        for what, row in figures.items():
            cells = f"{row['without']:.1f} | {row['with']:.1f} | {row['with'] / row['without']:.2f}"
            print(f"| {method} | {what} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
