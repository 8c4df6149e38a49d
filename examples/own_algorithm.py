"""An algorithm of your own: the coordinate-wise median of a few changes, so that one liar moves nothing far."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

import artesian
from artesian import Algorithm, Buffers, ClientId, Cluster, Layout, Measured, Params, State, Step, Stream, Task


@dataclass(frozen=True)
class Median(Algorithm):
    name: ClassVar[str] = "median"
    buffer_size: int = 5
    buffers: Buffers = "average"

    def init(self, layout: Layout, start: Sequence[Params], seed: int) -> State:
        return State(layout, {"k0": Cluster(artesian.average(layout, start))}, seed=seed)

    def task(self, state: State, client: ClientId) -> Task:
        return Task({"k0": state.clusters["k0"].params}, settings={"delta": True})

    def fold(self, state: State, measured: Sequence[Measured]) -> Step:
        changes = [m.upload.params for m in measured]
        middle = changes[-1].copy()  # counters come from the newest
        floats = state.layout.floats
        middle[:floats] = np.median([change[:floats] for change in changes], axis=0)
        return Step({"k0": artesian.combine(state.layout, (state.clusters["k0"].params, middle), (1.0, 1.0))})

    def pace(self) -> Stream:
        return Stream(batch=self.buffer_size)


if __name__ == "__main__":
    print("passes", ", ".join(artesian.check_algorithm(Median())))
    simulated = artesian.simulate("digits-2", algorithm=Median(), uploads=200)
    served = artesian.simulate("digits-2", algorithm=Median(), uploads=200, transport=artesian.InProcess)
    print(simulated.table())
    print("the same bits over HTTP:", simulated.params["k0"].tobytes() == served.params["k0"].tobytes())
