"""FedEM (Marfoq et al. 2021): every client's data are a mixture of K distributions, each with a model of its own.

A client gets all K components. It finds how far each of them answers for each of its samples, and trains every one with
the samples weighted by that. The server averages each component over the clients, weighted by their numbers of samples.

Paper line -> method: "q_jk ~ pi_k exp(-l(h_k(x_j), y_j))", "pi_k = mean_j q_jk", the weighted trainings, and
"sum_k pi_k h_k(x)" -> recipe `em`; "theta_k <- sum_i n_i/n theta_ik" -> `fold`.
Differs from the paper: n counts the samples of those who answered; if nobody has any, the components stand; shares
count as 1e-8 at least before the logarithm; components that begin the same are refused; all K share one seed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from artesian.algorithms.aggregation import Aggregates, aggregated
from artesian.algorithms.settings import InRoundsAfterAll
from artesian.algorithms.starts import Initial, check_count, different
from artesian.core import ClientId, Measured, State, Step, Task
from artesian.errors import check
from artesian.params import Layout, Params


@dataclass(frozen=True)
class FedEM(Aggregates, InRoundsAfterAll):
    """Components that all clients share, mixed by each in its own way."""

    name: ClassVar[str] = "fedem"
    recipes: ClassVar[tuple[str, ...]] = ("em",)
    clusters: int | None = None  # K, components; None: as many as the start has models
    initial: Initial = "start"  # the models of the start, or random ones
    local_epochs: int | None = None  # E of every component; None: as the training plan says
    predict: Literal["ensemble", "largest"] = "ensemble"  # with all components, or with the one of the largest share

    def __post_init__(self) -> None:
        check_count(self.clusters)
        check(self, {"local_epochs is at least 1": self.local_epochs is None or self.local_epochs >= 1})
        self.check_aggregate()
        self.pace()

    def init(self, layout: Layout, start: Sequence[Params], seed: int) -> State:
        return State(layout, different("FedEM", layout, start, self.clusters, self.initial, seed), seed=seed)

    def task(self, state: State, client: ClientId) -> Task:
        """All components, and the shares the client found last."""
        models = {k: cluster.params for k, cluster in state.clusters.items()}
        mixture = state.members[client].mixture if client in state.members else None
        settings: dict[str, Any] = {"predict": self.predict}
        if self.local_epochs is not None:
            settings["epochs"] = self.local_epochs
        return Task(models, "em", settings, mixture, estimates=True)

    def fold(self, state: State, measured: Sequence[Measured]) -> Step:
        uploads = [m.upload for m in measured]
        mixtures = {upload.client: upload.mixture or {} for upload in uploads}
        weights = [upload.samples for upload in uploads]
        if not sum(weights):
            return Step(mixtures=mixtures)
        changed = {
            k: aggregated(
                self.aggregate, state.layout, [upload.models[k] for upload in uploads], weights, cluster.params
            )
            for k, cluster in state.clusters.items()
        }
        return Step(changed, mixtures)
