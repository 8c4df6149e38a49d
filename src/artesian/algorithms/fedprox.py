"""FedProx (Li et al. 2020): FedAvg whose clients are held near the global model.

Each client of the cohort minimises its loss + mu/2 ||w - w_global||^2, so that clients with odd data or
much time do not run away. The server averages as FedAvg does.

Paper line -> method: "h_k(w; w^t) = F_k(w) + mu/2 ||w - w^t||^2" -> the setting `prox` of recipe `train`.
Differs from the paper: uploads are weighted by samples with a uniform draw of the cohort (the paper draws by
samples and averages plainly, the same in expectation); the norm is squared and halved, as the paper has it.
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
class FedProx(Aggregates, InRounds):
    """The weighted mean of a cohort that was held on a leash."""

    name: ClassVar[str] = "fedprox"
    mu: float = 0.05  # mu, strength of the pull
    clients_per_round: int = 10  # K

    def __post_init__(self) -> None:
        check(self, {"mu is at least 0": self.mu >= 0})
        self.check_aggregate()
        self.pace()

    def init(self, layout: Layout, start: Sequence[Params], seed: int) -> State:
        return State(layout, {"k0": Cluster(average(layout, start))}, seed=seed)

    def task(self, state: State, client: ClientId) -> Task:
        return Task({"k0": state.clusters["k0"].params}, settings={"prox": self.mu})

    def fold(self, state: State, measured: Sequence[Measured]) -> Step:
        return self.averaged(state, measured)
