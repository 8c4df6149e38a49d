"""Local (Standalone): every client for itself, the floor any federation must beat.

A client starts from the mean of the start models and goes on training its own model on whatever data it
has. Nothing is uploaded but the fact. The server folds nothing.

Paper line -> method: "no server" -> `fold` returns an empty step.
Differs from the paper: it runs behind the same engine as the others, so its clock and its client data are theirs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from artesian.core import Algorithm, Buffers, ClientId, Cluster, Measured, State, Step, Task
from artesian.engine.pace import Stream
from artesian.params import Layout, Params, average


@dataclass(frozen=True)
class Local(Algorithm):
    """No federation at all."""

    name: ClassVar[str] = "local"
    recipes: ClassVar[tuple[str, ...]] = ("alone",)
    no_draw: ClassVar[str] = "its clients share nothing, and each uses its own model"
    buffers: Buffers = "average"

    def init(self, layout: Layout, start: Sequence[Params], seed: int) -> State:
        return State(layout, {"k0": Cluster(average(layout, start))}, seed=seed)

    def task(self, state: State, client: ClientId) -> Task:
        """The start model the first time; after that a client has its own, and nothing needs to travel."""
        known = client in state.members and state.members[client].answered > 0
        return Task({} if known else {"k0": state.clusters["k0"].params}, recipe="alone", returns=())

    def fold(self, state: State, measured: Sequence[Measured]) -> Step:
        return Step()

    def pace(self) -> Stream:
        return Stream()
