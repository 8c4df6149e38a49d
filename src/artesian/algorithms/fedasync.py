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

from artesian.algorithms.staleness import Rule, weigh
from artesian.core import Algorithm, Buffers, ClientId, Cluster, Measured, State, Step, Task
from artesian.engine.pace import Stream
from artesian.errors import check
from artesian.params import Layout, Params, average, toward


@dataclass(frozen=True)
class FedAsync(Algorithm):
    """An exponential average over arrivals."""

    name: ClassVar[str] = "fedasync"
    alpha: float = 0.3  # alpha, mixing rate of a fresh upload
    staleness: Rule = "hinge"  # s(t - tau)
    a: float = 1.0  # a of the rule
    b: float = 4.0  # b of the rule
    rho: float = 0.0  # rho, pull towards the received model
    max_staleness: int | None = None  # later uploads are dropped; the client is still answered
    buffers: Buffers = "average"

    def __post_init__(self) -> None:
        rules = {
            "alpha is in (0, 1]": 0 < self.alpha <= 1,
            "rho, a and b are at least 0": self.rho >= 0 and self.a >= 0 and self.b >= 0,
            "max_staleness is at least 0": self.max_staleness is None or self.max_staleness >= 0,
        }
        check(self, rules)

    def init(self, layout: Layout, start: Sequence[Params], seed: int) -> State:
        return State(layout, {"k0": Cluster(average(layout, start))}, seed=seed)

    def task(self, state: State, client: ClientId) -> Task:
        return Task({"k0": state.clusters["k0"].params}, settings={"prox": self.rho})

    def fold(self, state: State, measured: Sequence[Measured]) -> Step:
        old = state.clusters["k0"].params
        new = old
        for m in measured:
            late = state.version - m.receipt.base
            if self.max_staleness is None or late <= self.max_staleness:
                rate = self.alpha * weigh(self.staleness, late, self.a, self.b)
                new = toward(state.layout, new, m.upload.params, rate)
        return Step() if new is old else Step({"k0": new})

    def pace(self) -> Stream:
        return Stream()
