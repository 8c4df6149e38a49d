"""SCAFFOLD (Karimireddy et al. 2020): FedAvg whose clients correct their steps by control variates.

Clients whose data differ drift apart while they train. Each keeps its own mean gradient c_i, the server the mean c of
all of them, and every local step takes c - c_i on top of its gradient: what is peculiar to the client goes out.

Paper line -> method: "y <- y - lr (g(y) - c_i + c)" and "c_i+ = c_i - c + (x - y)/(K lr)" (option II) -> recipe
`correct`; "x <- x + eta_g mean(dy)", "c <- c + |S|/N mean(dc)" -> `fold`.
Differs from the paper: N is the number of clients present; the mean is over those of the cohort who answered and have
samples; where the plan lowers the rate, K lr is the sum of the rates; buffers are averaged and not corrected.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from artesian.algorithms.settings import InRounds
from artesian.core import CONTROL, ClientId, Cluster, Measured, Plan, State, Step, Task
from artesian.errors import check
from artesian.params import Layout, Params, average, combine, seal


@dataclass(frozen=True)
class SCAFFOLD(InRounds):
    """The mean change of a cohort whose drift was corrected."""

    name: ClassVar[str] = "scaffold"
    recipes: ClassVar[tuple[str, ...]] = ("correct",)
    server_lr: float = 1.0  # eta_g, how far the mean change goes
    clients_per_round: int = 10  # |S|

    def __post_init__(self) -> None:
        check(self, {"server_lr is above 0": self.server_lr > 0})
        self.pace()

    def check_plan(self, plan: Plan) -> None:
        plan.check_plain("SCAFFOLD")

    def init(self, layout: Layout, start: Sequence[Params], seed: int) -> State:
        """The control variate c, in the memory, begins at zero."""
        control = seal(np.zeros(layout.size, np.float32))
        return State(layout, {"k0": Cluster(average(layout, start))}, seed=seed, memory={CONTROL: control})

    def task(self, state: State, client: ClientId) -> Task:
        models = {"k0": state.clusters["k0"].params, CONTROL: state.memory[CONTROL]}
        return Task(models, "correct", {"delta": True})

    def fresh(self, state: State, client: ClientId) -> Task:
        """The model alone: the control variate is of use only in a training."""
        return Task({"k0": state.clusters["k0"].params}, "correct")

    def models_sent(self, state: State) -> int:
        return 2

    def fold(self, state: State, measured: Sequence[Measured]) -> Step:
        uploads = [m.upload.models for m in measured if m.upload.samples]
        if not uploads:
            return Step()
        share, everybody = self.server_lr / len(uploads), max(state.present, len(uploads))
        model = _moved(state.layout, state.clusters["k0"].params, [sent["k0"] for sent in uploads], share)
        control = _moved(state.layout, state.memory[CONTROL], [sent[CONTROL] for sent in uploads], 1 / everybody)
        return Step({"k0": model}, memory={CONTROL: control})


def _moved(layout: Layout, vector: Params, changes: Sequence[Params], share: float) -> Params:
    """A vector with this share of every change added to it."""
    return combine(layout, (vector, *changes), (1.0, *[share] * len(changes)))
