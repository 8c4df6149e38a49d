"""What the server computes for one upload besides receiving it, item by item: CDFL beside Confluence.

Confluence's clients ask a gate, so its server only folds and compares replies; what asking costs a client of 500
samples is timed too. Items of the calibrated estimate are those that it adds.

The network is the papers' convolutional one (582,026 parameters) with four clusters, and proxy sets of random images,
which cost as much as real ones. Everything runs in one thread. Each item is timed several times; the table has medians,
and how many times CDFL's plain estimation each is: the upload on all samples of every proxy set.

    python benchmarks/estimating.py --samples 1000 --repeats 5
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from artesian import CDFL, Confluence, Plan, TorchModel
from artesian.algorithms.calibration import pretend
from artesian.core import Learner, MeasureContext, Measured, Member, Model, Receipt, State, Upload
from artesian.execution.threads import single_threaded
from artesian.learners.networks import NETWORKS
from artesian.params import Params, seal
from artesian.recipes.train import asked

CLUSTERS = 4
PLAN = Plan(optimizer="adam", rate=0.001, epochs=2, batch=128)


def main() -> None:
    """Time everything and print one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=1000, help="of each of the four proxy sets (default 1000)")
    parser.add_argument("--repeats", type=int, default=5, help="timings of every item (default 5)")
    wanted = parser.parse_args()
    model = TorchModel(NETWORKS["cnn"], shape=(1, 28, 28))
    with single_threaded(model):
        rows = timings(model, wanted.samples, wanted.repeats)
    plain = rows["CDFL: the upload on all proxy samples"]
    print(f"{CLUSTERS} clusters, {wanted.samples} proxy samples each, medians of {wanted.repeats}")
    print("| item | ms | times a plain estimation |\n| --- | ---: | ---: |")
    for name, seconds in rows.items():
        print(f"| {name} | {1000 * seconds:.1f} | {seconds / plain:.2f} |")


def timings(model: Model, samples: int, repeats: int) -> dict[str, float]:
    """Seconds of every item."""
    rng = np.random.default_rng(0)
    proxies: dict[str, Learner] = {}
    for i in range(CLUSTERS):
        x = rng.normal(size=(samples, 784)).astype(np.float32)
        proxies[f"k{i}"] = model.learner(x, rng.integers(0, 10, samples))
    start = [shaken(model.start(0), i) for i in range(CLUSTERS)]
    confluence, calibrated, cdfl = Confluence(), Confluence(estimator="calibrated"), CDFL()
    state = replace(
        confluence.init(model.layout, start, seed=0),
        members={"c0": Member(500, {f"k{i}": 1 / CLUSTERS for i in range(CLUSTERS)})},
        present=80,
        version=200,
    )
    found = calibrated.find(replace(state, members={}), proxies, replace(PLAN, epochs=1))
    state = replace(state, memory={**state.memory, **found, **confluence.find(state, proxies, PLAN)})
    task = confluence.reply(state, "c0", confluence.compare(state, "c0", proxies))
    upload = Upload("c0", 1, 500, {"blend": shaken(task.models["blend"], 9)})
    receipt = Receipt(1, 120, "train", ("blend",), task.mixture, memo=task.memo)
    context = MeasureContext(receipt, proxies)
    measured = Measured(upload, receipt, calibrated.measure(upload, context), given=task.models)
    own = model.learner(rng.normal(size=(500, 784)).astype(np.float32), rng.integers(0, 10, 500))
    changed = 2  # clusters that an upload changes with CDFL, about
    items: Mapping[str, Callable[[], Any]] = {
        "CDFL: the upload on all proxy samples": lambda: cdfl.measure(upload, context),
        f"CDFL: the {changed} clusters it changes": lambda: [
            cdfl.appraise(start[i], proxies[f"k{i}"]) for i in range(changed)
        ],
        "Confluence: three replies on at most 250 of each": lambda: confluence.compare(state, "c0", proxies),
        "Confluence: the fold": lambda: confluence.fold(state, [measured]),
        "Confluence: fitting and trying the gate, once": lambda: confluence.find(state, proxies, PLAN),
        "Confluence's client: asking the gate about 500 samples": lambda: asked(task, own),
        "calibrated: the upload on at most 250 of each": lambda: calibrated.measure(upload, context),
        "calibrated: the fold with its estimate": lambda: calibrated.fold(state, [measured]),
        "Confluence, found: the fold with its sketch": folded_without_proxies(state, measured),
    }
    rows = {name: timed(item, repeats) for name, item in items.items()}
    one = timed(lambda: pretend(replace(state, members={}), proxies, PLAN, 1, calibrated.pull(state)), repeats)
    each = one * calibrated.pretend / calibrated.calibrate_every
    return rows | {"calibrated: calibrating, beside the uploads, for each": each}


def folded_without_proxies(state: State, measured: Measured) -> Callable[[], Any]:
    """The fold of a federation that finds its clusters."""
    confluence = Confluence(clusters="found")
    memory = confluence.init(state.layout, [state.clusters["k0"].params], seed=0).memory
    found = replace(state, memory=memory)
    return lambda: confluence.fold(found, [measured])


def shaken(params: Params, seed: int) -> Params:
    """A model near this one."""
    noise = np.random.default_rng(seed).normal(0, 0.01, len(params)).astype(np.float32)
    return seal(params + noise)


def timed(work: Callable[[], Any], repeats: int) -> float:
    """The median of so many timings, after one that does not count."""
    found = []
    for _ in range(repeats + 1):
        began = time.perf_counter()
        work()
        found.append(time.perf_counter() - began)
    return statistics.median(found[1:])


if __name__ == "__main__":
    main()
