"""IFCA-Async, IFCA as CASA compares with it: every client picks the model that fits it, whenever it likes.

A client holds the K models of its last reply. It picks the one with the smallest mean loss on its present data, trains
it, and uploads it with the pick. The server moves that one cluster towards the upload and answers with all K models.

Paper line -> method: "j = argmin F_i(theta_j)" and the training -> recipe `pick`;
"theta_j <- (1 - a) theta_j + a theta_i, a = 0.3" -> `fold`; "version of j" -> `memo` of `task`.
Differs from the paper: CASA gives the rate and no more. Lateness counts what changed the picked cluster since the task
was given, not what changed others; it counts for nothing unless `staleness` says so; who has no samples moves nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from artesian.algorithms.membership import pick_of
from artesian.algorithms.settings import MixesUploads, only
from artesian.algorithms.starts import Initial, check_count, different
from artesian.core import OWN, Buffers, ClientId, Evidence, MeasureContext, Measured, State, Step, Task, Upload
from artesian.engine.pace import Stream
from artesian.params import Layout, Params, toward


@dataclass(frozen=True)
class IFCAAsync(MixesUploads):
    """The picked cluster moves towards the upload."""

    name: ClassVar[str] = "ifca-async"
    recipes: ClassVar[tuple[str, ...]] = ("pick",)
    clusters: int | None = None  # K; None: as many as the start has models
    initial: Initial = "start"  # the models of the start, or random ones
    buffers: Buffers = "average"

    def __post_init__(self) -> None:
        check_count(self.clusters)
        self.check_mixing()

    def init(self, layout: Layout, start: Sequence[Params], seed: int) -> State:
        return State(layout, different("IFCA-Async", layout, start, self.clusters, self.initial, seed), seed=seed)

    def task(self, state: State, client: ClientId) -> Task:
        """All models, what the client picked last, and, kept here, how often each model changed so far."""
        models = {k: cluster.params for k, cluster in state.clusters.items()}
        mixture = state.members[client].mixture if client in state.members else None
        updates = {k: c.updates for k, c in state.clusters.items()}
        return Task(models, "pick", mixture=mixture, memo=updates, returns=(OWN,), estimates=True)

    def measure(self, upload: Upload, context: MeasureContext) -> Evidence:
        pick_of(upload)  # refuses what is no pick
        return {}

    def fold(self, state: State, measured: Sequence[Measured]) -> Step:
        m = only(measured, "IFCA-Async")
        picked = pick_of(m.upload)
        cluster = state.clusters[picked]
        late = cluster.updates - m.receipt.memo[picked]
        stale = self.too_late(late)
        notes = {"stale": float(stale), "staleness": float(late)}
        if stale or not m.upload.samples:
            return Step(mixtures={m.upload.client: {picked: 1.0}}, notes=notes)
        moved = toward(state.layout, cluster.params, m.upload.params, self.rate(late))
        return Step({picked: moved}, {m.upload.client: {picked: 1.0}}, notes=notes)

    def pace(self) -> Stream:
        return Stream()
