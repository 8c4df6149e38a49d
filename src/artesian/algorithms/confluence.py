"""Confluence: CDFL's protocol, one model up when the client wants and one down for its mixture, with other arithmetic.

Clusters move along what a client changed, never towards the model it sent: that one still holds the old blend it began
with, and would drag all clusters together. A step is smaller where others have made the same change since. The reply is
the mean of the clusters (the trunk), moved towards the client's blend as far as held-back proxy samples say it should.

Paper line -> method: "trunk T = mean of w_k, draw u = T + reach sum alpha_k (w_k - T)" -> `weights`; "reach 0, 1/2 or
1 by the loss on proxies weighted by alpha" -> `compare`, `reply`; "alpha" -> `_estimate`; "w_k += step (sharing + (1
- sharing) K alpha_k) d, d = v - u, step = flight / median staleness (1 - catch_up done); w_k += fade step (1 - reach)
(T - w_k)" -> `fold`; "pull = (60 median rms(d))^2" -> `pull`; "done = <d, u' - u> / <d, d>, u' the client's blend
now" -> `_done`; clusters that nobody named -> `_regrouped`, artesian.algorithms.finding.
Differs from the paper: there is none; CDFL's rule is another (docs/algorithms says how). Clients estimate their mixture
by a gate (`estimator = "paper"` is CDFL's rule), and an upload is stale only beyond 20 medians of staleness. A start of
one model is a single model until kinds of clients show in their uploads; no proxy sets are needed then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf, sqrt
from statistics import median
from typing import Any, ClassVar, Literal

import numpy as np

from artesian.algorithms.calibration import mean_loss, mean_losses
from artesian.algorithms.estimation import estimate, truth_in
from artesian.algorithms.estimators import Estimated, Estimates, Estimator, base_of, mixture_of, shares_in
from artesian.algorithms.finding import (
    MOST,
    SMALLEST,
    Sketches,
    directions,
    grouped,
    named,
    shares_near,
    sketch,
)
from artesian.algorithms.settings import only
from artesian.core import (
    BEFORE,
    Buffers,
    ClientId,
    Cluster,
    ClusterId,
    Evidence,
    Learner,
    Matrix,
    MeasureContext,
    Measured,
    State,
    Step,
    Study,
    Task,
    Tree,
    Upload,
)
from artesian.engine.pace import Stream
from artesian.errors import check
from artesian.params import Layout, Params, average, combine, distance, dot, minus, moved, toward

REACHES = {"full": 1.0, "half": 0.5, "trunk": 0.0}  # by their names in the log; of equal losses the first wins
REMEMBERED = 101  # stalenesses, the newest
STALE = 20  # medians of staleness beyond which an upload changes nothing
SETTLED = 4  # uploads of each client on average before clusters are looked for: at first all go the same way
FIRMNESS = 60.0  # the pull is the square of this times how far a training moves a parameter
FIRMEST = 1.0  # the strongest such pull
FIRST_PULL = 0.2  # before any change is known
PAPER = (0.5, 0.25)  # c1 and c2 of CDFL's rule
SILENT = ("gate", "calibrated")  # of no effect where clusters are found: the default, and an earlier one


@dataclass(frozen=True)
class Confluence(Estimates):
    """Clusters move along changes, replies reach as far as they help."""

    name: ClassVar[str] = "confluence"
    needs_given = True
    rho: float | None = field(default=None, kw_only=True)  # pull towards the model given; None: by how hard they train
    flight: float = 4.0  # how many trainings may count in full while one is under way: the step is this over staleness
    sharing: float = 0.5  # how much of a change all clusters take; the rest goes to those it fits
    largest: float = 0.4  # how much of one change a cluster takes, at most
    catch_up: float = 2.0  # how much a step shrinks for what others have done of it since; 0: not at all
    fade: float = 1.0  # how fast clusters come together while replies do not reach for them; 0: never
    reach: float | None = None  # how far replies go from the trunk towards the blend; None: chosen for each reply
    estimator: Estimator = "gate"
    clusters: Literal["start", "found"] | None = None  # those of the start, or found; None: found if that is one model
    fewest: int = 20  # of how many clients an upload must be known before clusters are looked for
    clear: float = 2.5  # how clearly directions must stand out: the spread along the last over that along the next
    buffers: Buffers = "average"
    fade_bounded: bool = field(default=True, metadata={BEFORE: False})  # at any upload, by no more than its change?

    def __post_init__(self) -> None:
        rules = {
            "flight is above 0": self.flight > 0,
            "sharing is in [0, 1]": 0 <= self.sharing <= 1,
            "largest is in (0, 1]": 0 < self.largest <= 1,
            "catch_up is at least 0": self.catch_up >= 0,
            "fade is at least 0": self.fade >= 0,
            "rho is at least 0": self.rho is None or self.rho >= 0,
            "reach is in [0, 1]": self.reach is None or 0 <= self.reach <= 1,
            "clusters is start or found": self.clusters in (None, "start", "found"),
            "fewest is at least 3": self.fewest >= 3,
            "clear is at least 1": self.clear >= 1,
            "estimator is left out where clusters are found": self.clusters != "found" or self.estimator in SILENT,
        }
        check(self, rules)
        self.check_estimator()

    def describe(self) -> dict[str, Any]:
        """Without newer settings that change nothing: so digests are those from before there were any."""
        calibrates = self.estimator == "calibrated" and self.clusters != "found"
        left_out = {"fade_bounded"} if self.fade_bounded else set()
        left_out |= set() if calibrates else {"matched"}
        return {name: value for name, value in super().describe().items() if name not in left_out}

    @property
    def stands_for(self) -> bool:  # type: ignore[override]
        """Clusters that were found have no name in the world."""
        return self.clusters != "found"

    def init(self, layout: Layout, start: Sequence[Params], seed: int) -> State:
        finds = self.finds_clusters(len(start))
        models = [average(layout, start)] if finds else start
        clusters = {f"k{i}": Cluster(params) for i, params in enumerate(models)}
        memory: dict[str, Tree] = {"late": np.zeros(0), "moves": np.zeros(0)}
        return State(layout, clusters, seed=seed, memory={**memory, "sketches": Sketches().tree} if finds else memory)

    def finds_clusters(self, start: int) -> bool:
        alone = self.clusters is None and start == 1 and self.estimator in SILENT
        return alone or self.clusters == "found"

    def needs_proxies(self, clusters: int) -> bool:
        if self.finds_clusters(clusters):
            return False
        compares = self.reach is None and self.estimator != "client"
        return clusters > 1 and (compares or self.estimator in ("paper", "calibrated", "gate"))

    def pull(self, state: State) -> float:
        """rho, or the square of `FIRMNESS` times how far trainings move a parameter: hardly any for gentle ones."""
        if self.rho is not None:
            return self.rho
        known = state.memory["moves"]
        return min(FIRMEST, (FIRMNESS * median(known.tolist())) ** 2) if len(known) else FIRST_PULL

    def given_now(self, state: State, m: Measured) -> Params:
        return _blend(state, _drawn(state, m))

    # the reply

    def task(self, state: State, client: ClientId) -> Task:
        return self.reply(state, client, {})

    def compare(self, state: State, client: ClientId, proxies: Mapping[ClusterId, Learner]) -> Evidence:
        """The reach with the least loss on the proxies, weighted by the estimate, and its loss on each of them."""
        mixture = mixture_of(state, client)
        if mixture is None or len(mixture) == 1 or self.estimator == "client" or "sketches" in state.memory:
            return {}
        if self.reach is not None and self.estimator != "calibrated":
            return {}
        found = {}
        for reach in REACHES.values() if self.reach is None else (self.reach,):
            losses = mean_losses(_blend(state, weights(mixture, reach)), proxies)
            found[reach] = sum(mixture[k] * losses[k] for k in mixture), losses
        best = min(found, key=lambda reach: found[reach][0])
        won = {f"reply_{word}": float(reach == best) for word, reach in REACHES.items()}
        return {"reach": best, **won, **{f"loss/{k}": loss for k, loss in found[best][1].items()}}

    def reply(self, state: State, client: ClientId, compared: Evidence) -> Task:
        """The trunk for a newcomer; otherwise as far towards the blend as was found best."""
        mixture = mixture_of(state, client)
        if self.estimator == "client":
            return self.task_of_all(state, mixture)
        even = dict.fromkeys(state.clusters, 1 / len(state.clusters))
        shares = weights(mixture or even, compared.get("reach", 1.0 if self.reach is None else self.reach))
        memo = {
            "weights": shares,
            "chosen": compared.get("reach", 1.0) if self.reach is None else 1.0,
            "losses": {k: compared[f"loss/{k}"] for k in shares if f"loss/{k}" in compared},
        }
        return self.task_of_one(state, _blend(state, shares), mixture, memo)

    def fresh(self, state: State, client: ClientId) -> Task:
        """As far towards the blend as was found best for its open task: comparing again would cost as a reply does."""
        member = state.members.get(client)
        memo = (member.receipt.memo if member is not None and member.receipt is not None else None) or {}
        chosen = {"reach": memo["chosen"]} if self.reach is None and "chosen" in memo else {}
        return replace(self.reply(state, client, chosen), settings={})

    # the upload

    def measure(self, upload: Upload, context: MeasureContext) -> Evidence:
        """F(v; D_k) on the half of every proxy set that is measured on; or the true shares."""
        if self.estimator == "oracle":
            return truth_in(context.truth)
        if (
            self.estimator in ("client", "gate")
            or self.finds_clusters(len(context.proxies))
            or len(context.proxies) < 2
        ):
            return {}
        return {f"loss/{k}": loss for k, loss in mean_losses(upload.params, context.proxies).items()}

    def appraise(self, params: Params, proxy: Learner) -> float | None:
        """F(w_k; D_k), which only CDFL's rule asks for."""
        return mean_loss(params, proxy) if self.estimator == "paper" else None

    def fold(self, state: State, measured: Sequence[Measured]) -> Step:
        m = only(measured, "Confluence")
        late = state.version - m.receipt.base
        usual, remembered = _usual(state, late)
        stale = late > STALE * usual
        found = self._estimate(state, m, stale)
        shares = found.shares
        mixtures = {m.upload.client: dict(zip(state.clusters, shares.tolist(), strict=True))}
        memory: dict[str, Tree] = {"late": remembered, **found.memory, **self.due(state)}
        notes = {**found.notes, "staleness": late, "stale": float(stale)}
        if stale:
            return Step({}, mixtures, memory, notes)
        parts = self.sharing + (1 - self.sharing) * len(shares) * shares
        base = base_of(state.layout, m)
        change = minus(state.layout, m.upload.params, base)
        done = self._done(state, m, base, change)
        step = min(self.flight / usual, self.largest / float(parts.max())) * max(0.0, 1 - self.catch_up * done)
        clusters = {
            k: moved(state.layout, cluster.params, change, step * part, m.upload.params)
            for (k, cluster), part in zip(state.clusters.items(), parts.tolist(), strict=True)
        }
        if (by := self.fade * step * (1 - _reached(m))) and len(clusters) > 1:
            longest = sqrt(dot(state.layout, change, change)) if self.fade_bounded else inf
            clusters = _bounded(state, _drawn_together(state.layout, clusters, by), longest)
        memory["moves"] = np.append(state.memory["moves"], _distance_moved(state.layout, change))[-REMEMBERED:]
        notes |= {"step": step, "done": done, "pull": self.pull(state)}
        return self._regrouped(state, m, Step(clusters, mixtures, memory, notes))

    def study(self, state: State) -> Study | None:
        return None if "sketches" in state.memory else super().study(state)

    def matrices(self, state: State) -> dict[str, Matrix]:
        """How alike the newest sketches are, where clusters are found."""
        return {"similarity": Sketches.of(state.memory["sketches"]).likeness} if "sketches" in state.memory else {}

    def pace(self) -> Stream:
        return Stream()

    def _done(self, state: State, m: Measured, base: Params, change: Params) -> float:
        """How much of a change others have made since: what the client's blend moved along it, over its length."""
        now, size = self.given_now(state, m), dot(state.layout, change, change)
        return max(0.0, dot(state.layout, change, minus(state.layout, now, base)) / size) if size else 0.0

    def _regrouped(self, state: State, m: Measured, step: Step) -> Step:
        """The step with the sketch of this upload; and more clusters where two tests show more kinds of clients."""
        if "sketches" not in state.memory:
            return step
        here = {client for client, member in state.members.items() if member.present or client == m.upload.client}
        row = sketch(state.layout, _position(state, m))
        before = Sketches.of(state.memory["sketches"])
        known = before.then(m, state.version, row, here)
        count, now = len(known.clients), state.version + 1
        enough = count >= max(self.fewest, min(MOST, len(here)) / 2) and now >= SETTLED * count
        if not enough or now - known.tested < count:
            return replace(step, memory={**step.memory, "sketches": known.tree})
        seen = directions(known, self.clear)
        notes = {**step.notes, "directions": seen.count, "clearness": seen.clearness}
        tested = replace(known, tested=now, found=seen.count)
        step = replace(step, memory={**step.memory, "sketches": tested.tree}, notes=notes)
        if seen.count != known.found or seen.count < len(state.clusters):
            return step
        return _divided(state, step, known.clients, grouped(seen.places, seen.count + 1))

    def _estimate(self, state: State, m: Measured, stale: bool) -> Estimated:
        """alpha-hat."""
        if "sketches" in state.memory and len(state.clusters) > 1:
            known = Sketches.of(state.memory["sketches"])
            rows = np.array([_shares(state, client) for client in known.clients]).reshape(-1, len(state.clusters))
            return Estimated(shares_near(sketch(state.layout, _position(state, m)), known, rows))
        told = self.shares_told(state, m)
        if told is not None:
            return Estimated(told)
        losses = {k: m.evidence[f"loss/{k}"] for k in state.clusters}
        if self.estimator == "calibrated":
            return self.calibrated(state, m, losses, stale)
        return Estimated(_by_paper(state, m))


def weights(mixture: Mapping[ClusterId, float], reach: float) -> dict[ClusterId, float]:
    """T + reach sum_k alpha_k D_k as a blend of the clusters: how much of each it holds."""
    return {k: (1 - reach) / len(mixture) + reach * share for k, share in mixture.items()}


def _blend(state: State, shares: Mapping[ClusterId, float]) -> Params:
    names = list(shares)
    newest = max(range(len(names)), key=lambda i: (state.clusters[names[i]].updated, -i))
    return combine(state.layout, [state.clusters[k].params for k in names], list(shares.values()), newest=newest)


def _reached(m: Measured) -> float:
    """The reach that was chosen for the model a client began with; 1 where nothing was chosen."""
    return float(m.receipt.memo["chosen"]) if m.receipt.memo else 1.0


def _drawn_together(layout: Layout, clusters: dict[ClusterId, Params], by: float) -> dict[ClusterId, Params]:
    """The clusters, this part of the way nearer to their trunk: what helps nobody must not wander off."""
    trunk = average(layout, list(clusters.values()))
    return {k: toward(layout, params, trunk, min(1.0, by)) for k, params in clusters.items()}


def _bounded(state: State, clusters: dict[ClusterId, Params], longest: float) -> dict[ClusterId, Params]:
    """The clusters, none of them farther from where it was than the change is long: all that its member pays for."""
    moves = {k: distance(state.layout, state.clusters[k].params, params) for k, params in clusters.items()}
    return {
        k: toward(state.layout, state.clusters[k].params, params, longest / moves[k]) if moves[k] > longest else params
        for k, params in clusters.items()
    }


def _distance_moved(layout: Layout, change: Params) -> float:
    """How far a change moves a parameter: the root of its mean square."""
    return float(np.sqrt(dot(layout, change, change) / max(1, layout.trainable)))


def _drawn(state: State, m: Measured) -> dict[ClusterId, float]:
    """How much of each cluster the model holds that a client began with."""
    drawn = m.receipt.memo["weights"] if m.receipt.memo else m.upload.mixture or {}
    if "sketches" in state.memory:
        return Sketches.of(state.memory["sketches"]).inherited(drawn, state.clusters)
    return dict(zip(state.clusters, shares_in(drawn, state).tolist(), strict=True))


def _position(state: State, m: Measured) -> Params:
    """Where a training went, seen from the trunk: the client's blend as it is now, and its change."""
    even = 1 / len(state.clusters)
    models = [m.upload.params, base_of(state.layout, m), *(cluster.params for cluster in state.clusters.values())]
    return combine(state.layout, models, [1.0, -1.0, *(share - even for share in _drawn(state, m).values())])


def _shares(state: State, client: ClientId) -> np.ndarray:
    """The newest estimate of a client, all 0 for one of whom nothing is known."""
    member = state.members.get(client)
    known = (member.mixture if member else None) or {}
    return np.array([known.get(k, 0.0) for k in state.clusters])


def _divided(state: State, step: Step, clients: Sequence[ClientId], labels: np.ndarray) -> Step:
    """The step with a cluster for every group of clients, if none of them is too small."""
    names, sizes = list(state.clusters), np.bincount(labels)
    if len(sizes) <= len(names) or sizes.min() < SMALLEST:
        return step
    shares = np.array([_shares(state, client) for client in clients])
    homes = named(labels, shares, names, state.fresh_names(len(sizes)))
    born = {child: parent for child, parent in homes if child != parent}
    gone = tuple(k for k in names if k not in dict(homes))
    heirs = {k: [child for child, parent in homes if parent == k] for k in gone}
    sketches = step.memory["sketches"]
    clusters = {child: step.clusters[parent] for child, parent in homes}
    mixtures = {client: {homes[label][0]: 1.0} for client, label in zip(clients, labels.tolist(), strict=True)}
    memory = {**step.memory, "sketches": {**sketches, "heirs": {**sketches["heirs"], **heirs}}}
    return replace(step, clusters=clusters, mixtures={**step.mixtures, **mixtures}, memory=memory, born=born, gone=gone)


def _usual(state: State, late: int) -> tuple[float, np.ndarray]:
    """The median staleness with this upload's, at first at least what so many clients make likely; and all of them."""
    remembered = np.append(state.memory["late"], float(late))[-REMEMBERED:]
    likely = 0.7 * state.present if len(remembered) < REMEMBERED else 0.0
    return max(1.0, likely, median(remembered.tolist())), remembered


def _by_paper(state: State, m: Measured) -> np.ndarray:
    """CDFL's rule with its defaults."""
    losses = np.array([m.evidence[f"loss/{k}"] for k in state.clusters])
    own = np.array([cluster.loss for cluster in state.clusters.values()], np.float64)
    far = [distance(state.layout, m.upload.params, cluster.params) for cluster in state.clusters.values()]
    bar: float | Literal["min"] = "min" if len(losses) > 2 else 0.0
    amplifier = 10.0 if len(losses) > 2 else 3.0
    return estimate(np.array([losses, np.abs(own - losses), far]), [bar] * 3, *PAPER, (amplifier,))[1]
