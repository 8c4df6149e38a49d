"""Train one model on the data of all clients: what a federation could reach if nobody had to keep data at home.

In every cycle the samples that the clients of the experiment draw in that cycle are put together, less what clients
hold back, and trained on with the experiment's own plan: the same samples, as often, from the same start. One model is
trained on everything; with --each, also one on the samples of every cluster alone. A line is printed after every cycle,
and added to --results; a run that was interrupted goes on.

    python benchmarks/central.py fashion-4 --seed 3 --set training.rate=0.001 --set training.epochs=2
    python benchmarks/central.py digits-4 --cycles 25 --each --results central.jsonl
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from artesian.config.experiments import load
from artesian.core import Learner, Model, derive
from artesian.data.datasets import Samples
from artesian.params import Params, average
from artesian.recipes.accepting import SHARE, held_back
from artesian.simulator.experiment import Experiment
from artesian.simulator.pretraining import proxy_learners

ALL = "all"  # the name of the model of everything, beside those of clusters


def drawn(experiment: Experiment, seed: int, cycle: int, hold_back: float) -> Iterator[tuple[Samples, np.ndarray]]:
    """What every client trains on in a cycle, and of which cluster each sample is."""
    for client in experiment.world.names:
        visit = experiment.world.visit(seed, client, cycle)
        counts = [round(share * len(visit.train)) for share in visit.mixture.values()]
        cluster = np.repeat(np.arange(len(counts)), counts)
        if len(cluster) != len(visit.train):
            raise SystemExit(
                f"Clients of {experiment.name} do not draw from clusters. Choose a preset such as digits-4."
            )
        rows = np.setdiff1d(
            np.arange(len(cluster)), held_back(len(cluster), hold_back, client) if hold_back else [], assume_unique=True
        )
        yield Samples(visit.train.x[rows], visit.train.y[rows]), cluster[rows]


def learners(model: Model, parts: Sequence[tuple[Samples, np.ndarray]], each: Sequence[str]) -> dict[str, Learner]:
    """The samples of all clients as one body of data, and those of every cluster as one each."""
    x, y = (np.concatenate([samples.x for samples, _ in parts]), np.concatenate([samples.y for samples, _ in parts]))
    cluster = np.concatenate([own for _, own in parts])
    found = {ALL: model.learner(x, y)}
    return found | {k: model.learner(x[cluster == i], y[cluster == i]) for i, k in enumerate(each)}


def scores(models: Mapping[str, Params], tests: Mapping[str, Learner]) -> dict[str, float]:
    """The mean over clusters: of the model of everything, and of each cluster's own where there are such."""
    found = {ALL: float(np.mean([test.score(((1.0, models[ALL]),)) for test in tests.values()]))}
    own = [test.score(((1.0, models[k]),)) for k, test in tests.items() if k in models]
    return found | ({"each": float(np.mean(own))} if own else {})


def trained(experiment: Experiment, seed: int, cycles: int, each: bool, hold_back: float, saved: Path) -> Iterator[Any]:
    """Go through all cycles that are left; a line after each."""
    world, model = experiment.world, experiment.model
    tests = proxy_learners(model, world.tests(seed))
    done, models = _read(saved)
    if not models:
        start = experiment.start.from_samples(model, world.proxies(seed), seed)
        models = {ALL: average(model.layout, start)} | (dict(zip(tests, start, strict=True)) if each else {})
    for cycle in range(done, cycles):
        parts = list(drawn(experiment, seed, cycle, hold_back))
        for name, learner in learners(model, parts, [k for k in tests if k in models]).items():
            learner_seed = derive(seed, "central", name, cycle)
            models[name] = learner.train(models[name], seed=learner_seed, plan=experiment.training)
        saved.parent.mkdir(parents=True, exist_ok=True)
        np.savez(saved, done=cycle + 1, **models)  # type: ignore[arg-type]
        samples = sum(len(own) for own, _ in parts)
        yield {"preset": experiment.name, "seed": seed, "cycle": cycle + 1, "samples": samples, **scores(models, tests)}


def _read(saved: Path) -> tuple[int, dict[str, Params]]:
    """How many cycles are done, and the models after them."""
    if not saved.exists():
        return 0, {}
    with np.load(saved) as arrays:
        return int(arrays["done"]), {name: arrays[name] for name in arrays if name != "done"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("preset", help="an experiment of a world whose clients draw from clusters, such as fashion-4")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="change a setting")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cycles", type=int, default=25, help="trainings of every client")
    parser.add_argument("--each", action="store_true", help="also one model for every cluster")
    parser.add_argument("--hold-back", type=float, default=SHARE, help="the share that clients do not train on")
    parser.add_argument("--runs", type=Path, default=Path("runs/central"), help="where models are kept meanwhile")
    parser.add_argument("--results", type=Path, help="a file to add the lines to")
    asked = parser.parse_args()
    saved = asked.runs / f"{asked.preset}-{asked.seed}{'-each' if asked.each else ''}.npz"
    experiment = load(asked.preset, asked.set)
    for line in trained(experiment, asked.seed, asked.cycles, asked.each, asked.hold_back, saved):
        text = json.dumps(line)
        print(text, flush=True)
        if asked.results:
            with asked.results.open("a") as file:
                file.write(text + "\n")


if __name__ == "__main__":
    main()
