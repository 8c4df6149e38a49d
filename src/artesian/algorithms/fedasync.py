"""FedAsync (Xie et al. 2019): one global model, every upload mixed in on arrival.

The later an upload, the less it weighs: alpha times a staleness weight. The client gets the new global
model at once.

Paper line -> method: "x_t <- (1 - alpha_t) x_{t-1} + alpha_t x_new" -> `fold`;
"alpha_t = alpha s(t - tau)" -> `staleness.weigh`; "rho/2 ||x - x_t||^2" -> the setting `prox`.
Differs from the paper: defaults are those of CASA's comparison (alpha 0.3, hinge a = 1, b = 4, rho 0; the
paper's own are a = 10 and rho = 0.005); an upload beyond `max_staleness` changes nothing but counts as a fold.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from artesian.algorithms.settings import MixesUploads
from artesian.algorithms.staleness import Rule
from artesian.core import Buffers, ClientId, Cluster, Measured, State, Step, Task
from artesian.engine.pace import Stream
from artesian.errors import check
from artesian.params import Layout, Params, average, toward


@dataclass(frozen=True)
class FedAsync(MixesUploads):
    """An exponential average over arrivals."""

    name: ClassVar[str] = "fedasync"
    staleness: Rule = "hinge"  # s(t - tau)
    rho: float = 0.0  # rho, pull towards the received model
    buffers: Buffers = "average"

    def __post_init__(self) -> None:
        self.check_mixing()
        check(self, {"rho is at least 0": self.rho >= 0})

    def init(self, layout: Layout, start: Sequence[Params], seed: int) -> State:
        return State(layout, {"k0": Cluster(average(layout, start))}, seed=seed)

    def task(self, state: State, client: ClientId) -> Task:
        return Task({"k0": state.clusters["k0"].params}, settings={"prox": self.rho})

    def fold(self, state: State, measured: Sequence[Measured]) -> Step:
        old = state.clusters["k0"].params
        new = old
        for m in measured:
            late = state.version - m.receipt.base
            if not self.too_late(late):
                new = toward(state.layout, new, m.upload.params, self.rate(late))
        return Step() if new is old else Step({"k0": new})

    def pace(self) -> Stream:
        return Stream()
