"""CDFL, Client-Driven Federated Learning, and CCFL, its first version.

A client uploads its model when it wants to and gets back one model. The server estimates, from the upload
alone, how much of each cluster the client is, moves the clusters that fit towards it, and answers with
the clusters blended by that estimate.

Paper line -> method: "DistributionEstimation" -> `estimate`; "UpdateRatioCompute" -> `update_ratios`;
"global adjustment" -> `_filtered`; the stale test, the cluster update and the reply -> `fold` and `task`.
Differs from the paper: a loss below its bar is clamped to 0 and counted (`clamp=False` is the literal
formula, which inverts the ranking); a stale client without an estimate, and a late joiner, get the uniform
blend; K = 1 skips the estimate; the filter waits for 30 records and never compares an upload with itself;
`estimator` can take the mixture from elsewhere, and the rest stays.
`staleness_ref="epoch"` is CDFL, `"cluster"` is CCFL. Numeric bars are in the paper's unit, the sum of 16
batch means, and are rescaled to the size of the proxy sets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from math import ceil
from typing import Any, ClassVar, Literal

import numpy as np

from artesian.algorithms import staleness
from artesian.algorithms.calibration import losses_on, mean_losses
from artesian.algorithms.estimation import TINY, estimate, truth_in
from artesian.algorithms.estimators import Estimated, Estimates
from artesian.algorithms.settings import KnowsLength, only
from artesian.core import (
    Buffers,
    ClientId,
    Cluster,
    ClusterId,
    Evidence,
    Learner,
    MeasureContext,
    Measured,
    Mixture,
    State,
    Step,
    Task,
    Tree,
    Upload,
)
from artesian.engine.pace import Stream
from artesian.errors import SettingError, check
from artesian.params import Layout, Params, combine, distance, toward

Bar = float | Literal["min"] | None  # None: "min" from three clusters on, 0 for two
BATCH = 128  # the papers' only batch size
UNIT = 16  # batches of a 2,000-image proxy set: the unit numeric bars are given in


@dataclass(frozen=True)
class CDFL(Estimates, KnowsLength):
    """Estimate on the server, answer with one blended model."""

    name: ClassVar[str] = "cdfl"
    stands_for: ClassVar[bool] = True
    beta0: float = 0.025  # beta_0, the largest step of a cluster towards an upload
    a: float = 10.0  # a of the staleness weight
    b: float = 5.0  # b of the staleness weight: fresh is strictly below it
    rho: float = 0.1  # rho, pull of a client's training towards the model it was given
    tau0: int | None = None  # tau_0, beyond which an upload is stale; None: the number of clients
    c1: float = 0.5  # c_1, weight of the loss
    c2: float = 0.25  # c_2, weight of the loss gap; the distance has 1 - c1 - c2
    amplifier: float | tuple[float, ...] | None = None  # A, one softmax each; None: 10, or 3 for two clusters
    l_bar: Bar = None  # bar of the loss
    d1_bar: Bar = None  # bar of the loss gap
    d2_bar: Bar = None  # bar of the distance
    update_bar: float | Literal["ave"] = "ave"  # an estimate below it updates nothing
    loss_scale: Literal["batch_sum", "mean", "sum"] = "batch_sum"  # what F counts
    staleness_ref: Literal["epoch", "cluster"] = "epoch"  # t - tau, or e_k - tau as in CCFL
    reply_clusters: Literal["all", "above_bar"] = "all"  # which clusters are blended into a reply
    clamp: bool = True  # a metric below its bar counts as 0
    adjust_start: float | None = None  # the filter starts at this fraction of the horizon
    adjust_start_epoch: int | None = None  # or at this epoch
    adjust_percentile: float = 70.0
    adjust_records: int = 30  # the filter is silent until a cluster has so many
    adjust_window: int | None = None  # how many records are kept, the newest; None: all
    buffers: Buffers = "average"

    def __post_init__(self) -> None:
        rules = {
            "beta0 is in (0, 1]": 0 < self.beta0 <= 1,
            "a and b are at least 0": self.a >= 0 and self.b >= 0,
            "rho is at least 0": self.rho >= 0,
            "tau0 is at least 1": self.tau0 is None or self.tau0 >= 1,
            "c1 and c2 are in [0, 1] and sum to 1 at most": min(self.c1, self.c2) >= 0 and self.c1 + self.c2 <= 1,
            "every amplifier is positive": bool(self.amplifiers(3)) and min(self.amplifiers(3)) > 0,
            "update_bar is 'ave' or in [0, 1]": self.update_bar == "ave" or 0 <= self.update_bar <= 1,
            "adjust_records is at least 1": self.adjust_records >= 1,
            "adjust_window is at least adjust_records": self.adjust_window is None
            or self.adjust_window >= self.adjust_records,
            "adjust_start is in [0, 1]": self.adjust_start is None or 0 <= self.adjust_start <= 1,
            "adjust_percentile is in [0, 100]": 0 <= self.adjust_percentile <= 100,
        }
        check(self, rules)
        self.check_estimator()

    @property
    def needs_given(self) -> bool:  # type: ignore[override]
        return self.estimator == "calibrated"

    def pull(self, state: State) -> float:
        return self.rho

    def given_now(self, state: State, m: Measured) -> Params:
        return self._blend(state, m.receipt.mixture)

    def describe(self) -> dict[str, Any]:
        """By the paper's rule, without the settings of other estimators: as before there were any."""
        left_out = {f.name for f in fields(Estimates)} if self.estimator == "paper" else set()
        return {name: value for name, value in super().describe().items() if name not in left_out}

    def init(self, layout: Layout, start: Sequence[Params], seed: int) -> State:
        if self.adjust_start is not None and self.horizon is None and self.adjust_start_epoch is None:
            raise SettingError(
                "adjust_start is a fraction of the planned length, and none is planned",
                "Set horizon, or adjust_start_epoch",
            )
        clusters = {f"k{i}": Cluster(params) for i, params in enumerate(start)}
        return State(layout, clusters, seed=seed)

    def needs_proxies(self, clusters: int) -> bool:
        return self._weighs or (self.estimator in ("calibrated", "gate") and clusters > 1)

    def task(self, state: State, client: ClientId) -> Task:
        """The clusters blended by the newest estimate, or evenly where there is none."""
        mixture = self._mixture(state, client)
        if self.estimator == "client":
            return self.task_of_all(state, mixture)
        return self.task_of_one(state, self._blend(state, mixture), mixture)

    def compare(self, state: State, client: ClientId, proxies: Mapping[ClusterId, Learner]) -> Evidence:
        """F(u; D_k) of the blend a client is given, which the calibrated estimate of its upload asks for."""
        mixture = self._mixture(state, client)
        if self.estimator != "calibrated" or mixture is None or len(state.clusters) == 1:
            return {}
        return {f"loss/{k}": loss for k, loss in mean_losses(self._blend(state, mixture), proxies).items()}

    def reply(self, state: State, client: ClientId, compared: Evidence) -> Task:
        """The task, and its losses for later."""
        task = self.task(state, client)
        losses = {k: compared[f"loss/{k}"] for k in state.clusters if f"loss/{k}" in compared}
        return replace(task, memo={"losses": losses}) if losses else task

    def measure(self, upload: Upload, context: MeasureContext) -> Evidence:
        """F(v; D_k) for every proxy set, and the unit its bar is given in; or what another estimator asks for."""
        found = truth_in(context.truth) if self.estimator == "oracle" else {}
        if self._weighs:
            losses = losses_on(upload.params, context.proxies)
            pairs = zip(context.proxies.items(), losses, strict=True)
            found |= {f"loss/{k}": self._loss(each, proxy.samples) for (k, proxy), each in pairs}
            found |= {f"unit/{k}": self._unit(proxy.samples) for k, proxy in context.proxies.items()}
        if self.estimator == "calibrated" and len(context.proxies) > 1:
            found |= {f"mean/{k}": loss for k, loss in mean_losses(upload.params, context.proxies).items()}
        return found

    def appraise(self, params: Params, proxy: Learner) -> float | None:
        """F(w_k; D_k), where the estimate or the filter asks for it."""
        return self._loss(proxy.losses(params), proxy.samples) if self._weighs else None

    def fold(self, state: State, measured: Sequence[Measured]) -> Step:
        m = only(measured, "CDFL")
        epoch, synced_at = state.version + 1, m.receipt.base  # t, tau
        if epoch - synced_at > (self.tau0 or state.present):
            return Step(memory=self.due(state), notes={"stale": 1, "staleness": epoch - synced_at})
        metrics = self._metrics(state, m) if self._weighs else np.zeros((3, len(state.clusters)))
        found = self._estimate(state, m, metrics)
        shares = found.shares
        since = [self._staleness(cluster, epoch, synced_at) for cluster in state.clusters.values()]
        ratios = update_ratios(shares, since, self.beta0, self._bar(shares), self.a, self.b)
        kept = np.where(self._filtered(state, metrics, epoch), 0.0, ratios)
        changed = {
            k: toward(state.layout, cluster.params, m.upload.params, rate)
            for (k, cluster), rate in zip(state.clusters.items(), kept.tolist(), strict=True)
            if rate > 0
        }
        notes = {
            "stale": 0,
            "staleness": epoch - synced_at,
            **found.notes,
            "filtered": int(((ratios > 0) & (kept == 0)).sum()),
            "largest_ratio": float(kept.max()),
        }
        mixture = dict(zip(state.clusters, shares.tolist(), strict=True))
        memory: dict[str, Tree] = {**self._recorded(state, metrics), **found.memory, **self.due(state)}
        return Step(changed, {m.upload.client: mixture}, memory, notes)

    def pace(self) -> Stream:
        return Stream()

    def amplifiers(self, clusters: int) -> tuple[float, ...]:
        """A, as the list of softmax passes."""
        if self.amplifier is None:
            return (10.0,) if clusters >= 3 else (3.0,)
        return self.amplifier if isinstance(self.amplifier, tuple) else (self.amplifier,)

    @property
    def _weighs(self) -> bool:
        """Does anybody ask for the three metrics: the paper's estimate, or the filter?"""
        return self.estimator == "paper" or self._filter_from() is not None

    def _mixture(self, state: State, client: ClientId) -> Mixture | None:
        return state.members[client].mixture if client in state.members else None

    def _blend(self, state: State, mixture: Mixture | None) -> Params:
        """The clusters blended by a mixture, or evenly without one."""
        names = list(state.clusters)
        shares = np.array([mixture[k] for k in names]) if mixture else np.full(len(names), 1 / len(names))
        if self.reply_clusters == "above_bar":
            shares = np.where(shares < self._bar(shares), 0.0, shares)
            shares = shares / shares.sum() if shares.any() else np.full(len(names), 1 / len(names))
        newest = max(range(len(names)), key=lambda i: (state.clusters[names[i]].updated, -i))
        models = [state.clusters[k].params for k in names]
        return combine(state.layout, models, shares.tolist(), newest=newest)

    def _loss(self, losses: np.ndarray, samples: int) -> float:
        """F(w; D): the mean loss times the scale."""
        return self._scale(samples) * float(np.mean(losses, dtype=np.float64))

    def _scale(self, samples: int) -> float:
        return {"batch_sum": ceil(samples / BATCH), "mean": 1, "sum": samples}[self.loss_scale]

    def _unit(self, samples: int) -> float:
        return ceil(samples / BATCH) / UNIT if self.loss_scale == "batch_sum" else 1.0

    def _metrics(self, state: State, m: Measured) -> np.ndarray:
        """Rows l, d1, d2; a column per cluster."""
        losses = np.array([m.evidence[f"loss/{k}"] for k in state.clusters])
        own = np.array([cluster.loss for cluster in state.clusters.values()], np.float64)
        far = [distance(state.layout, m.upload.params, c.params) for c in state.clusters.values()]
        return np.array([losses, np.abs(own - losses), far])

    def _estimate(self, state: State, m: Measured, metrics: np.ndarray) -> Estimated:
        """alpha-hat."""
        if self.estimator == "paper":
            return self._by_paper(state, m, metrics)
        told = self.shares_told(state, m)
        if told is not None:
            return Estimated(told)
        return self.calibrated(state, m, {k: m.evidence[f"mean/{k}"] for k in state.clusters})

    def _by_paper(self, state: State, m: Measured, metrics: np.ndarray) -> Estimated:
        count = len(state.clusters)
        unit = np.array([m.evidence[f"unit/{k}"] for k in state.clusters])
        default: Bar = "min" if count >= 3 else 0.0
        bars = [default if bar is None else bar for bar in (self.l_bar, self.d1_bar, self.d2_bar)]
        units = (unit, unit, np.ones(count))
        scaled = [bar if bar == "min" else float(bar or 0) * u for bar, u in zip(bars, units, strict=True)]
        _, shares, clamped = estimate(metrics, scaled, self.c1, self.c2, self.amplifiers(count), self.clamp)
        return Estimated(shares, {"bar_clamped": clamped})

    def _bar(self, shares: np.ndarray) -> float:
        return 1 / len(shares) - TINY if self.update_bar == "ave" else self.update_bar - TINY

    def _staleness(self, cluster: Cluster, epoch: int, synced_at: int) -> int:
        return (epoch if self.staleness_ref == "epoch" else cluster.updated) - synced_at

    def _filter_from(self) -> float | None:
        """The epoch the filter starts at; None: never."""
        if self.adjust_start_epoch is not None:
            return self.adjust_start_epoch
        if self.adjust_start is None or self.horizon is None:
            return None
        return self.adjust_start * self.horizon

    def _filtered(self, state: State, metrics: np.ndarray, epoch: int) -> np.ndarray:
        """Which clusters must not follow this upload: one of its metrics is beyond the percentile."""
        start, records = self._filter_from(), state.memory.get("records")
        if start is None or epoch < start or records is None or len(records) < self.adjust_records:
            return np.zeros(metrics.shape[1], bool)
        limits = np.percentile(records, self.adjust_percentile, axis=0)
        return np.asarray((metrics > limits).any(axis=0))

    def _recorded(self, state: State, metrics: np.ndarray) -> dict[str, np.ndarray]:
        """The filter's records (uploads x metrics x clusters) with this one; nothing while it is off."""
        if self._filter_from() is None:
            return {}
        before = state.memory.get("records")
        if before is None:
            return {"records": metrics[None]}
        kept = before if self.adjust_window is None else before[max(0, len(before) + 1 - self.adjust_window) :]
        return {"records": np.concatenate([kept, metrics[None]])}


def update_ratios(
    shares: np.ndarray, since: Sequence[float], beta0: float, bar: float, a: float, b: float
) -> np.ndarray:
    """beta_k = beta_0 beta1_k beta2_k: 0 below the bar, else relative to the largest share and aged.

    With a = 10 and b = 5 only clients who come back within 4 epochs weigh 1; all others weigh 1/51 at most. So
    clusters learn mainly from frequent uploaders, and the schedule is meant to be uniform with replacement.
    """
    fits = np.where(shares < bar, 0.0, shares / shares.max())
    return beta0 * fits * np.array([staleness.cdfl(s, a, b) for s in since])
