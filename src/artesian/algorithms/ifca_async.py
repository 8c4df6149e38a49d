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

from artesian.algorithms.staleness import Rule, weigh
from artesian.algorithms.starts import Initial, check_count, different
from artesian.core import Algorithm, Buffers, ClientId, Evidence, Given, Measured, State, Step, Task, Upload
from artesian.engine.pace import Stream
from artesian.errors import SettingError, check
from artesian.params import Layout, Params, toward
from artesian.recipes import pick_of


@dataclass(frozen=True)
class IFCAAsync(Algorithm):
    """The picked cluster moves towards the upload."""

    name: ClassVar[str] = "ifca-async"
    clusters: int | None = None  # K; None: as many as the start has models
    initial: Initial = "start"  # the models of the start, or random ones
    alpha: float = 0.3  # a, mixing rate of a fresh upload
    staleness: Rule = "constant"  # how lateness counts
    a: float = 1.0  # a of the rule
    b: float = 4.0  # b of the rule
    max_staleness: int | None = None  # later uploads change nothing; the client is still answered
    buffers: Buffers = "average"

    def __post_init__(self) -> None:
        check_count(self.clusters)
        rules = {
            "alpha is in (0, 1]": 0 < self.alpha <= 1,
            "a and b are at least 0": self.a >= 0 and self.b >= 0,
            "max_staleness is at least 0": self.max_staleness is None or self.max_staleness >= 0,
        }
        check(self, rules)

    def init(self, layout: Layout, start: Sequence[Params], seed: int) -> State:
        return State(layout, different("IFCA-Async", layout, start, self.clusters, self.initial, seed), seed=seed)

    def task(self, state: State, client: ClientId) -> Task:
        """All models, what the client picked last, and, kept here, how often each model changed so far."""
        models = {k: cluster.params for k, cluster in state.clusters.items()}
        mixture = state.members[client].mixture if client in state.members else None
        return Task(models, "pick", mixture=mixture, memo={k: c.updates for k, c in state.clusters.items()})

    def measure(self, upload: Upload, given: Given) -> Evidence:
        pick_of(upload)  # refuses what is no pick
        return {}

    def fold(self, state: State, measured: Sequence[Measured]) -> Step:
        if len(measured) != 1:
            raise SettingError("IFCA-Async folds one upload at a time", f"{len(measured)}", "use Stream(batch=1)")
        (m,) = measured
        picked = pick_of(m.upload)
        cluster = state.clusters[picked]
        late = cluster.updates - m.receipt.memo[picked]
        stale = self.max_staleness is not None and late > self.max_staleness
        notes = {"stale": float(stale), "staleness": float(late)}
        if stale or not m.upload.samples:
            return Step(mixtures={m.upload.client: {picked: 1.0}}, notes=notes)
        rate = self.alpha * weigh(self.staleness, late, self.a, self.b)
        moved = toward(state.layout, cluster.params, m.upload.params, rate)
        return Step({picked: moved}, {m.upload.client: {picked: 1.0}}, notes=notes)

    def pace(self) -> Stream:
        return Stream()
