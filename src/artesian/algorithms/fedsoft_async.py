"""FedSoft-Async, CDFL's main baseline: soft clusters whose shares the client estimates itself.

A client holds all cluster models. It counts which of them fits each of its samples best, trains one model near their
blend by these shares, and uploads both. The server moves every cluster towards the upload by its share, and answers
with all clusters: K models down where CDFL sends one.

Paper line -> method: "mu_k = count_k / n", the training and the blend -> recipe `soft`;
"w_k <- (1 - beta_k) w_k + beta_k v, beta_k = beta_0 mu_k beta2" -> `fold`.
Differs from the paper: nothing is published but a few sentences. The stale test is CDFL's; the anchor is the single
blend of the clusters, which has the gradient of FedSoft's penalty towards all of them; a client predicts with the
blend of what was returned; shares are at least `sigma` before they are normalised.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from artesian.algorithms import staleness
from artesian.algorithms.settings import only
from artesian.core import OWN, Algorithm, Buffers, ClientId, Cluster, Matrix, Measured, State, Step, Task
from artesian.engine.pace import Stream
from artesian.errors import check
from artesian.params import Layout, Params, toward


@dataclass(frozen=True)
class FedSoftAsync(Algorithm):
    """The client estimates, the server moves every cluster by its share, all clusters travel."""

    name: ClassVar[str] = "fedsoft-async"
    recipes: ClassVar[tuple[str, ...]] = ("soft",)
    stands_for: ClassVar[bool] = True
    beta0: float = 0.025  # beta_0, the largest step of a cluster towards an upload
    a: float = 10.0  # a of the staleness weight
    b: float = 5.0  # b of the staleness weight: fresh is strictly below it
    rho: float = 0.1  # rho, pull of a client's training towards the blend
    tau0: int | None = None  # tau_0, beyond which an upload is stale; None: the number of clients
    sigma: float = 1e-4  # the smallest share, before normalising
    buffers: Buffers = "average"

    def __post_init__(self) -> None:
        rules = {
            "beta0 is in (0, 1]": 0 < self.beta0 <= 1,
            "a and b are at least 0": self.a >= 0 and self.b >= 0,
            "rho is at least 0": self.rho >= 0,
            "tau0 is at least 1": self.tau0 is None or self.tau0 >= 1,
            "sigma is in [0, 1]": 0 <= self.sigma <= 1,
        }
        check(self, rules)

    def init(self, layout: Layout, start: Sequence[Params], seed: int) -> State:
        return State(layout, {f"k{i}": Cluster(params) for i, params in enumerate(start)}, seed=seed)

    def task(self, state: State, client: ClientId) -> Task:
        """All clusters, and the shares the client sent last."""
        models = {k: cluster.params for k, cluster in state.clusters.items()}
        mixture = state.members[client].mixture if client in state.members else None
        settings = {"prox": self.rho, "sigma": self.sigma}
        return Task(models, "soft", settings, mixture, returns=(OWN,), estimates=True)

    def fold(self, state: State, measured: Sequence[Measured]) -> Step:
        m = only(measured, "FedSoft-Async")
        shares = m.upload.mixture or {}  # mu
        late = state.version + 1 - m.receipt.base  # t - tau
        if late > (self.tau0 or state.present):
            return Step(mixtures={m.upload.client: shares}, notes={"stale": 1, "staleness": late})
        rate = self.beta0 * staleness.cdfl(late, self.a, self.b)
        changed = {
            k: toward(state.layout, cluster.params, m.upload.params, rate * shares.get(k, 0.0))
            for k, cluster in state.clusters.items()
            if shares.get(k, 0.0) > 0
        }
        return Step(changed, {m.upload.client: shares}, notes={"stale": 0, "staleness": late})

    def matrices(self, state: State) -> dict[str, Matrix]:
        """mu: the shares each client sent last."""
        known = {client: member.mixture for client, member in state.members.items() if member.mixture}
        values = np.array([[shares.get(k, 0.0) for k in state.clusters] for shares in known.values()])
        return {"importance": Matrix(tuple(known), tuple(state.clusters), values)} if known else {}

    def pace(self) -> Stream:
        return Stream()
