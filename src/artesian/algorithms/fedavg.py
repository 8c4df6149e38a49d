"""FedAvg (McMahan et al. 2017): synchronous rounds, one global model.

Each round a cohort is drawn, every client of it trains the global model on its own data, and the new
global model is their mean weighted by numbers of samples.

Paper line -> method: "S_t <- random set of m clients" -> `pace`; "ClientUpdate" -> recipe `train`;
"w <- sum n_k/n w_k" -> `fold`.
Differs from the paper: n counts the samples of those who answered, not of the whole federation, so the
weights sum to 1 when somebody drops out; if nobody answered, or nobody has data, the model stands.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from artesian.algorithms.aggregation import Aggregates
from artesian.algorithms.settings import InRounds
from artesian.core import ClientId, Cluster, Measured, State, Step, Task
from artesian.params import Layout, Params, average


@dataclass(frozen=True)
class FedAvg(Aggregates, InRounds):
    """The weighted mean of a cohort."""

    name: ClassVar[str] = "fedavg"
    clients_per_round: int = 10  # m

    def __post_init__(self) -> None:
        self.check_aggregate()
        self.pace()

    def init(self, layout: Layout, start: Sequence[Params], seed: int) -> State:
        return State(layout, {"k0": Cluster(average(layout, start))}, seed=seed)

    def task(self, state: State, client: ClientId) -> Task:
        return Task({"k0": state.clusters["k0"].params})

    def fold(self, state: State, measured: Sequence[Measured]) -> Step:
        return self.averaged(state, measured)
