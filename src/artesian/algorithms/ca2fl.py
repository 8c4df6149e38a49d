"""CA2FL, cached update calibration (Wang et al. 2024): a buffer whose bias is corrected by remembered changes.

The server remembers the last change of every client. When the buffer is full, the global model takes one step
along the mean remembered change of all clients, corrected by how much the changes in the buffer differ from
those remembered. Every uploader gets the present model at once, buffer full or not.

Paper line -> method: "h_i" -> `memory["cache"]`; "H = (1/N) sum h_i" -> `memory["total"]` over the number of
members; "v = H + (1/M) sum (Delta_i - h_i); w <- w + eta v" -> `fold`. H is that of the previous step: the refreshed
one would count new changes twice.
Differs from the paper: eta is M / N where it is not set, because 1 overshoots where clients upload one by one; N is
the number of clients who ever joined, so H shrinks as newcomers come; two uploads of a client in one buffer
telescope; BatchNorm statistics take the plain mean of the buffer, without calibration; the sum of the cached changes
is carried along, not added up anew.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np

from artesian.core import Algorithm, Buffers, ClientId, Cluster, Measured, State, Step, Task
from artesian.engine.pace import Stream
from artesian.errors import check
from artesian.params import Layout, Params, average, combine, keep_buffers, seal


@dataclass(frozen=True)
class CA2FL(Algorithm):
    """A step along the mean remembered change, calibrated by the buffer."""

    name: ClassVar[str] = "ca2fl"
    buffer_size: int = 10  # M
    server_lr: float | None = None  # eta; None: min(1, M / N)
    buffers: Buffers = "average"

    def __post_init__(self) -> None:
        check(self, {"server_lr is above 0": self.server_lr is None or self.server_lr > 0})
        self.pace()

    def resumed(self, recorded: Mapping[str, Any]) -> Self:
        """A run or store that began with a rate goes on with it where nobody sets another."""
        return self if self.server_lr is not None else replace(self, server_lr=recorded.get("server_lr"))

    def rate(self, clients: int) -> float:
        """eta, of so many clients: about N / M steps apply H before a client's entry is refreshed, M / N of it each."""
        return min(1.0, self.buffer_size / clients) if self.server_lr is None else self.server_lr

    def init(self, layout: Layout, start: Sequence[Params], seed: int) -> State:
        memory = {"cache": {}, "total": _nothing(layout)}
        return State(layout, {"k0": Cluster(average(layout, start))}, seed=seed, memory=memory)

    def task(self, state: State, client: ClientId) -> Task:
        return Task({"k0": state.clusters["k0"].params}, settings={"delta": True})

    def fold(self, state: State, measured: Sequence[Measured]) -> Step:
        layout, old, total = state.layout, state.clusters["k0"].params, state.memory["total"]
        nothing, cache = _nothing(layout), dict(state.memory["cache"])
        news: list[Params] = []  # Delta_i
        known: list[Params] = []  # h_i at that moment
        for m in measured:
            news.append(m.upload.params)
            known.append(cache.get(m.upload.client, nothing))
            cache[m.upload.client] = keep_buffers(layout, nothing, m.upload.params)
        rate = self.rate(len(state.members))
        step = rate / len(measured)
        models = (old, total, *known, *news)
        shares = (1.0, rate / len(state.members), *[-step] * len(known), *[step] * len(news))
        fresh = [keep_buffers(layout, nothing, change) for change in news]
        total = combine(layout, (total, *known, *fresh), (1.0, *[-1.0] * len(known), *[1.0] * len(fresh)), newest=0)
        return Step({"k0": combine(layout, models, shares)}, memory={"cache": cache, "total": total})

    def pace(self) -> Stream:
        return Stream(batch=self.buffer_size)


def _nothing(layout: Layout) -> Params:
    return seal(np.zeros(layout.size, np.float32))
