"""What a user's own file may rely on: `make check` holds these types against the package's."""

from dataclasses import asdict
from typing import Any, assert_type

import artesian
from artesian import ALGORITHMS, CDFL, Algorithm, Experiment, Layout, Mixture, Run, State, Stream, Task, load


def settings() -> dict[str, Any]:
    """The settings of an algorithm, as a user may want to print them."""
    algorithm = CDFL(rho=0.2)
    assert_type(algorithm, artesian.CDFL)
    assert_type(algorithm.rho, float)
    return asdict(algorithm)


def accuracy(run: Run) -> float:
    """A figure of a run that was kept."""
    assert_type(artesian.open_run("runs/first"), Run)
    return float(run.metrics["after"].mean())


def compare(names: list[str], experiment: str) -> list[Run]:
    """Several algorithms on one experiment."""
    assert_type(load(experiment), Experiment)
    assert_type(ALGORITHMS, dict[str, type[Algorithm]])
    return [artesian.simulate(experiment, algorithm=name) for name in names]


def describe(state: State, layout: Layout) -> tuple[Task, Mixture, Stream]:
    """Values an algorithm of one's own is written with."""
    task = Task({name: cluster.params for name, cluster in state.clusters.items()})
    assert_type(task.number, int)
    assert_type(layout.trainable, int)
    return task, {"k0": 1.0}, Stream(batch=2)
