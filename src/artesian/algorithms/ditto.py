"""Ditto (Li et al. 2021): FedAvg for everybody, and beside it a personal model for each client, near the shared one.

A client of the cohort trains the shared model and sends it. It also goes on training a model of its own with the same
data, pulled towards the shared one as it was given. It predicts with its own, which never leaves.

Paper line -> method: "w <- mean of the w_k" -> `fold`; "v_k <- v_k - eta (grad F_k(v_k) + lambda (v_k - w))" -> recipe
`twin`.
Differs from the paper: both trainings run by the plan of the task, with the same number of epochs; uploads are weighted
by samples, as FedAvg's are; a client begins its own model at the shared one it is first given.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from artesian.algorithms.aggregation import Aggregates
from artesian.algorithms.settings import InRounds
from artesian.core import ClientId, Cluster, Measured, State, Step, Task
from artesian.errors import check
from artesian.params import Layout, Params, average


@dataclass(frozen=True)
class Ditto(Aggregates, InRounds):
    """A shared model by FedAvg, and a personal one near it."""

    name: ClassVar[str] = "ditto"
    recipes: ClassVar[tuple[str, ...]] = ("twin",)
    no_draw: ClassVar[str] = "its clients predict with personal models, which change only when they train"
    personal_pull: float = 1.0  # lambda, pull of a personal model towards the shared one
    clients_per_round: int = 10  # cohort

    def __post_init__(self) -> None:
        check(self, {"personal_pull is at least 0": self.personal_pull >= 0})
        self.check_aggregate()
        self.pace()

    def init(self, layout: Layout, start: Sequence[Params], seed: int) -> State:
        return State(layout, {"k0": Cluster(average(layout, start))}, seed=seed)

    def task(self, state: State, client: ClientId) -> Task:
        return Task({"k0": state.clusters["k0"].params}, "twin", {"personal_pull": self.personal_pull})

    def fold(self, state: State, measured: Sequence[Measured]) -> Step:
        return self.averaged(state, measured)
