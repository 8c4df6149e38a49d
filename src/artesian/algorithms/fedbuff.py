"""FedBuff (Nguyen et al. 2022): one global model, changed once per buffer of uploads.

Clients upload what they changed. Each change is weighed by its staleness; when the buffer holds
`buffer_size` of them, the global model takes one step along their sum divided by `buffer_size`. Every
uploader gets the present model at once, buffer full or not.

Paper line -> method: "Delta_i <- w_i - w" -> the setting `delta` of recipe `train`;
"buffer of size K" -> `pace`; "w <- w + eta_g/K sum s(tau_i) Delta_i" -> `fold`.
Differs from the paper: the sum is divided by K, never by the sum of the weights (as the paper says, and as
some libraries do not); at the end of a run a part-filled buffer is dropped unless `flush_on_stop` is
set, and then it is divided by the number of uploads it holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from artesian.algorithms.aggregation import Aggregates, aggregated
from artesian.algorithms.staleness import polynomial
from artesian.core import Buffers, ClientId, Cluster, Measured, State, Step, Task
from artesian.engine.pace import Stream
from artesian.errors import check
from artesian.params import Layout, Params, average, combine, seal


@dataclass(frozen=True)
class FedBuff(Aggregates):
    """A step along the mean of buffered changes."""

    name: ClassVar[str] = "fedbuff"
    buffer_size: int = 10  # K
    server_lr: float = 1.0  # eta_g
    staleness_weighting: bool = True
    staleness_power: float = 0.5  # 1/sqrt(1 + staleness)
    momentum: float = 0.0  # of the server's step
    flush_on_stop: bool = False
    buffers: Buffers = "average"

    def __post_init__(self) -> None:
        rules = {
            "server_lr is above 0": self.server_lr > 0,
            "staleness_power is at least 0": self.staleness_power >= 0,
            "momentum is in [0, 1)": 0 <= self.momentum < 1,
        }
        check(self, rules)
        self.check_aggregate()
        self.pace()

    def init(self, layout: Layout, start: Sequence[Params], seed: int) -> State:
        memory = {"velocity": seal(np.zeros(layout.size, np.float32))} if self.momentum else {}
        return State(layout, {"k0": Cluster(average(layout, start))}, seed=seed, memory=memory)

    def task(self, state: State, client: ClientId) -> Task:
        return Task({"k0": state.clusters["k0"].params}, settings={"delta": True})

    def fold(self, state: State, measured: Sequence[Measured]) -> Step:
        layout, old = state.layout, state.clusters["k0"].params
        changes = [m.upload.params for m in measured]
        shares = [self._weight(state.version - m.receipt.base) / len(measured) for m in measured]
        if self.aggregate != "mean":
            aged = [
                combine(layout, (change,), (share * len(measured),))
                for change, share in zip(changes, shares, strict=True)
            ]
            changes, shares = [aggregated(self.aggregate, layout, aged)], [1.0]
        if not self.momentum:
            return Step({"k0": combine(layout, (old, *changes), (1.0, *(self.server_lr * s for s in shares)))})
        velocity = combine(layout, (state.memory["velocity"], *changes), (self.momentum, *shares))
        new = combine(layout, (old, velocity), (1.0, self.server_lr))
        return Step({"k0": new}, memory={"velocity": velocity})

    def pace(self) -> Stream:
        return Stream(batch=self.buffer_size)

    def _weight(self, late: int) -> float:
        return polynomial(late, self.staleness_power) if self.staleness_weighting else 1.0
