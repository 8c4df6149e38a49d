"""FedRep (Collins et al. 2021): a body that all share, and a head for each client that stays at home.

A client of the cohort puts its own head on the shared body, trains the head alone, then the body alone, and sends the
body; the server averages bodies. With `together`, both are trained at once: FedPer (Arivazhagan et al. 2019).

Paper line -> method: "h_i <- GRD(f(h_i, phi))", "phi_i <- GRD(f(h_i, phi))" -> recipe `split`; "phi <- mean of the
phi_i" -> `fold`.
Differs from the paper: uploads are weighted by samples, as FedAvg's are; what travels is a whole model whose head is
the one everybody starts from; the head is the last layer unless it is named; body and head train by one plan, but for
`head_epochs`.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from artesian.algorithms.aggregation import Aggregates
from artesian.algorithms.settings import InRounds
from artesian.core import ClientId, Cluster, Measured, State, Step, Task
from artesian.errors import SettingError, check
from artesian.params import Layout, Params, average, last_layer


@dataclass(frozen=True)
class FedRep(Aggregates, InRounds):
    """A shared body, and heads that stay."""

    name: ClassVar[str] = "fedrep"
    recipes: ClassVar[tuple[str, ...]] = ("split",)
    head: tuple[str, ...] = ()  # names or patterns of the entries that stay; none: the last layer
    head_epochs: int | None = None  # tau_h, epochs of the head; None: as the training plan says
    together: bool = False  # train body and head at once: FedPer
    clients_per_round: int = 10  # cohort

    def __post_init__(self) -> None:
        check(self, {"head_epochs is at least 1": self.head_epochs is None or self.head_epochs >= 1})
        self.check_aggregate()
        self.pace()

    def init(self, layout: Layout, start: Sequence[Params], seed: int) -> State:
        self._head(layout)
        return State(layout, {"k0": Cluster(average(layout, start))}, seed=seed)

    def task(self, state: State, client: ClientId) -> Task:
        settings: dict[str, Any] = {"head": self._head(state.layout), "together": self.together}
        if self.head_epochs is not None:
            settings["head_epochs"] = self.head_epochs
        return Task({"k0": state.clusters["k0"].params}, "split", settings)

    def fold(self, state: State, measured: Sequence[Measured]) -> Step:
        return self.averaged(state, measured)

    def _head(self, layout: Layout) -> list[str]:
        """The names of the entries that stay with the client."""
        names = [entry.name for entry in layout.entries]
        for pattern in self.head:
            if not fnmatch.filter(names, pattern):
                raise SettingError(f"The model has no entry {pattern!r} for the head", f"Name some of {names}")
        if self.head:
            return [name for name in names if any(fnmatch.fnmatchcase(name, pattern) for pattern in self.head)]
        return last_layer(layout)
