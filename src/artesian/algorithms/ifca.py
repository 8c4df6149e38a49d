"""IFCA, the iterative federated clustering algorithm (Ghosh et al. 2020): every client picks the model that fits it.

Each round a cohort gets all K models. Every client of it picks the one with the smallest mean loss on its own data,
trains that one, and uploads it with the pick. A cluster becomes the plain mean of the models that picked it.

Paper line -> method: "j = argmin F_i(theta_j)", "theta_i = LocalUpdate(theta_j)" -> recipe `pick`;
"theta_j <- sum s_ij theta_i / sum s_ij" (model averaging) and "theta_j <- theta_j - gamma/m sum s_ij g_i" (gradient
averaging) -> `fold`; FlexCFL's IFCA-MIG -> `moved`.
Differs from the paper: a cluster that nobody picked keeps its model; who has no samples does not count; a gradient
travels as the change that one step of plain descent on all local data makes; models that begin the same are refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from artesian.algorithms.aggregation import Aggregates, aggregated
from artesian.algorithms.membership import pick_of
from artesian.algorithms.settings import InRoundsAfterAll
from artesian.algorithms.starts import Initial, check_count, different
from artesian.core import (
    ESTIMATE_ONLY,
    OWN,
    ClientId,
    ClusterId,
    Evidence,
    MeasureContext,
    Measured,
    State,
    Step,
    Task,
    Upload,
)
from artesian.errors import check
from artesian.params import Layout, Params, combine

WHOLE = 1 << 40  # a batch no client's data fill
ONE_STEP = {"delta": True, "optimizer": "sgd", "momentum": 0.0, "epochs": 1, "batch": WHOLE}


@dataclass(frozen=True)
class IFCA(Aggregates, InRoundsAfterAll):
    """Hard clusters that the clients choose."""

    name: ClassVar[str] = "ifca"
    recipes: ClassVar[tuple[str, ...]] = ("pick",)
    clusters: int | None = None  # K; None: as many as the start has models
    initial: Initial = "start"  # the models of the start, or random ones
    averaging: Literal["model", "gradient"] = "model"  # whole trainings, or one gradient step per round
    migrate: bool = False  # IFCA-MIG: a waiting client whose data changed picks again at once
    estimation_work: float = 0.1  # of picking alone, as a share of a training's time; the simulator's business

    def __post_init__(self) -> None:
        check_count(self.clusters)
        rules = {
            "estimation_work is at least 0": self.estimation_work >= 0,
            "aggregate has an effect only with averaging = model": self.averaging == "model"
            or self.aggregate == "mean",
        }
        check(self, rules)
        self.check_aggregate()
        self.pace()

    def init(self, layout: Layout, start: Sequence[Params], seed: int) -> State:
        return State(layout, different("IFCA", layout, start, self.clusters, self.initial, seed), seed=seed)

    def task(self, state: State, client: ClientId) -> Task:
        """All models, and what the client picked last."""
        return self._all(state, client, ONE_STEP if self.averaging == "gradient" else {})

    def moved(self, state: State, client: ClientId) -> Task | None:
        if not self.migrate:
            return None
        return self._all(state, client, {ESTIMATE_ONLY: True, "work": self.estimation_work})

    def measure(self, upload: Upload, context: MeasureContext) -> Evidence:
        pick_of(upload)  # refuses what is no pick
        return {}

    def fold(self, state: State, measured: Sequence[Measured]) -> Step:
        trained = [m.upload for m in measured if m.upload.models and m.upload.samples]
        picks: dict[ClusterId, list[Params]] = {}
        for upload in trained:
            picks.setdefault(pick_of(upload), []).append(upload.params)
        changed = {k: self._folded(state, k, models, len(trained)) for k, models in sorted(picks.items())}
        return Step(changed, {m.upload.client: m.upload.mixture or {} for m in measured})

    def _all(self, state: State, client: ClientId, settings: dict[str, Any]) -> Task:
        models = {k: cluster.params for k, cluster in state.clusters.items()}
        mixture = state.members[client].mixture if client in state.members else None
        returns = () if settings.get(ESTIMATE_ONLY) else (OWN,)
        return Task(models, "pick", settings, mixture, returns=returns, estimates=True)

    def _folded(self, state: State, cluster: ClusterId, sent: Sequence[Params], cohort: int) -> Params:
        """The mean of the models sent; or one step along the mean change of the whole cohort, 0 for other picks."""
        old = state.clusters[cluster].params
        if self.averaging == "model":
            return aggregated(self.aggregate, state.layout, sent, origin=old)
        return combine(state.layout, (old, *sent), (1.0, *[1 / cohort] * len(sent)))
