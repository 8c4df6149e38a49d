"""CASA (KDD 2024) and CASA+: hard clusters of an unknown number, found and trained without rounds.

All clients begin in one cluster and train all the time. Every upload is compared with models of peers who began at
nearly the same version, moves the model of its cluster by a rate that falls with size, time and lateness, and is
answered at once. When all pairs of a cluster are known and the eigenvalues of their Laplacian show a gap that beats
the rate, the cluster is split into as many as the gap says. CASA+ lets late clients train only their larger weights.

Paper line -> method: "Omega(t) = (e/2.8)^(kappa t)" -> `omega`; "a_c = alpha_0 Omega / log(|C| + 3)" -> `cluster_rate`;
"a_i = a_c, or a_c / sqrt(s) beyond r_c = |C| (2 - Omega)" -> `rates`, `patience_of`; "buffers, large gap, recurring,
budget M" -> `artesian.algorithms.peers`, `_takers`; "R = argmax of the eigengap, split if a_c < gap^gamma" -> `_parts`;
"a newcomer joins the most similar cluster" -> `_place`; "S_i = S_0/2 (a_c - a_i) (1 + cos((t - 1) pi / R_end))" ->
`CASAPlus.sparsity`; "m_i" -> `params.kept_by_size`.
Differs from the paper: the logarithm has base 2; lateness and gaps count versions of the cluster; gaps are searched
from the second; the budget counts distinct models; a split waits until all pairs are known; a client that left is
forgotten; CASA+'s mask is that of the model sent, with the rates of the previous upload. docs/algorithms says why.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import cos, e, isfinite, log, nan, pi
from typing import ClassVar, Literal

import numpy as np

from artesian.algorithms.clustering import eigengap, eigenvalues, spectral_groups, square
from artesian.algorithms.peers import Peers, Unit
from artesian.algorithms.settings import KnowsLength, only
from artesian.algorithms.staleness import casa
from artesian.core import (
    Algorithm,
    Buffers,
    ClientId,
    Cluster,
    ClusterId,
    Matrix,
    Measured,
    Member,
    Receipt,
    State,
    Step,
    Task,
)
from artesian.engine.pace import Stream
from artesian.errors import check
from artesian.params import Layout, Params, average, cosine, kept_by_size, minus, norm, seal, toward

Crowd = Mapping[ClientId, Member]  # everybody at work
Homes = Mapping[ClientId, ClusterId | None]  # the cluster of everybody at work; None: a newcomer
MEAN = "mean"  # what a newcomer is given
OFTEN = 100  # up to twice so many members a cluster is tested at every upload, beyond that less often
ROUNDS = 50_000  # the paper's R_end


@dataclass(frozen=True)
class CASA(Algorithm):
    """CASA (KDD 2024): asynchronous clusters that split where their members differ."""

    name: ClassVar[str] = "casa"
    alpha0: float = 2.0  # alpha_0, the rate before size and time lower it
    omega_base: float = e / 2.8  # the base of Omega
    omega_rate: float = 0.001  # kappa: how fast Omega falls
    size_offset: float = 3.0  # added to the size inside the logarithm
    log_base: float = 2.0  # of that logarithm
    gamma: float = 0.15  # gamma: a split needs a_c < gap^gamma
    margin: float = 0.0  # by how much gap^gamma must exceed a_c
    eigenvalues: int = 10  # how many of them are looked at
    first_gap: int = 2  # the first R that is tried; similarity "delta" begins at 1
    min_cluster_size: int = 2  # a split into smaller parts is not made
    test_every: int | None = None  # updates of a cluster between split tests; None: 1, above 199 members size / 100
    buffer_budget: int | None = None  # M; None: the number of clients
    budget_unit: Unit = "models"  # what M counts
    similarity: Literal["weights", "delta"] = "weights"  # whose cosine: the model's, or that of its change
    staleness_unit: Literal["cluster", "global"] = "cluster"  # whose versions lateness and gaps count
    split: bool = True  # False: CASA-C
    forget_at_split: bool = True  # the pairs of a cluster that split become unknown
    decay: bool = True  # False: CASA-D, the rate `alpha` for all
    alpha: float = 0.3  # the rate of CASA-D
    patience: float | None = None  # after which a silent client no longer counts as a member; None: never
    buffers: Buffers = "average"

    def __post_init__(self) -> None:
        rules = {
            "alpha0 is positive": self.alpha0 > 0,
            "omega_base is in (0, 1]": 0 < self.omega_base <= 1,
            "omega_rate is at least 0": self.omega_rate >= 0,
            "size_offset is positive": self.size_offset > 0,
            "log_base is above 1": self.log_base > 1,
            "gamma is positive": self.gamma > 0,
            "margin is in [0, 1)": 0 <= self.margin < 1,
            "eigenvalues is at least 2": self.eigenvalues >= 2,
            "first_gap is at least 1": self.first_gap >= 1,
            "min_cluster_size is at least 1": self.min_cluster_size >= 1,
            "test_every is at least 1": self.test_every is None or self.test_every >= 1,
            "buffer_budget is at least 0": self.buffer_budget is None or self.buffer_budget >= 0,
            "alpha is in (0, 1]": 0 < self.alpha <= 1,
        }
        check(self, rules)
        self.pace()

    @property
    def needs_given(self) -> bool:  # type: ignore[override]
        """A change is from the model that was given."""
        return self.similarity == "delta"

    def init(self, layout: Layout, start: Sequence[Params], seed: int) -> State:
        return State(layout, {"k0": Cluster(average(layout, start))}, seed=seed, memory=Peers.nothing())

    def task(self, state: State, client: ClientId) -> Task:
        """The model of its cluster, or the mean of all for a newcomer; the memo says how often they had changed."""
        home = _home(state, state.members.get(client))
        if home is None:
            return Task({MEAN: _mean(state)}, memo={"updates": {k: c.updates for k, c in state.clusters.items()}})
        cluster = state.clusters[home]
        return Task({home: cluster.params}, memo={"updates": {home: cluster.updates}})

    def fold(self, state: State, measured: Sequence[Measured]) -> Step:
        m = only(measured, self.name)
        layout, client, vector = state.layout, m.upload.client, self._compared(state.layout, m)
        crowd = _crowd(state, client)
        homes = {member: _home(state, known) for member, known in crowd.items()}
        peers = Peers.of(state.memory, homes)
        home = homes[client] = homes[client] or _place(state, peers, homes, m, vector)
        undefined = peers.compare(layout, client, vector)  # C-phase
        gap, parts = self._parts(state, peers, homes, client)
        children = dict(zip(state.fresh_names(len(parts)), parts, strict=True))
        born, gone = dict.fromkeys(children, home), (home,) if children else ()
        if children:
            homes.update({member: child for child, part in children.items() for member in part})
            peers.part(_groups(peers, homes))
            if self.forget_at_split:
                peers.forget([member for part in parts for member in part])
        old, now = state.clusters[home], homes[client] or home  # a child begins as its parent is
        size = sum(other == now for other in homes.values())
        late = self._late(state, m.receipt, home, old.updates)
        rates = self.rates(state.rounds, size, late)
        peers.rates[peers.place(client)] = rates
        began, widest = self._began(m.receipt, home), self.patience_of(state.rounds, size)
        near = {other for other, member in crowd.items() if _near(began, self._began(member.receipt, home), widest)}
        takers = np.array([other in near and homes[other] in (now, None) for other in peers.clients])
        peers.offer(layout, client, vector, takers, state.version)
        peers.prune(len(homes) if self.buffer_budget is None else self.buffer_budget, self.budget_unit)
        mixtures = {member: {k: 1.0} for member, k in homes.items() if k in children} | {client: {now: 1.0}}
        notes = {"staleness": late, "rate": rates[1], "stored": len(peers.models)}
        notes |= {"undefined": undefined, "gap": gap, "parts": len(parts)}
        changed = self._mixed(layout, old.params, m, rates[1])  # A-phase
        return Step({now: changed}, mixtures, peers.memory(), notes, born, gone)

    def matrices(self, state: State) -> dict[str, Matrix]:
        """The cosines of all pairs that are known; NaN: not known."""
        return {"similarity": square(state.memory["clients"], state.memory["similarity"])}

    def pace(self) -> Stream:
        return Stream(patience=self.patience)

    def omega(self, rounds: int) -> float:
        """Omega(t): from 1 slowly to 0."""
        return float(self.omega_base ** (self.omega_rate * rounds))

    def cluster_rate(self, rounds: int, size: int) -> float:
        """a_c: the rate of a fresh upload in a cluster of this size."""
        if not self.decay:
            return self.alpha
        rate = self.alpha0 * self.omega(rounds) / log(size + self.size_offset, self.log_base)
        return min(1.0, max(0.0, rate))

    def rates(self, rounds: int, size: int, late: int) -> tuple[float, float]:
        """(a_c, a_i) of an upload so many versions late."""
        top = self.cluster_rate(rounds, size)
        return top, top * casa(late, self.patience_of(rounds, size)) if self.decay else top

    def patience_of(self, rounds: int, size: int) -> float:
        """r_c: how late an upload may be without weighing less, and how far apart peers may begin."""
        return size * (2 - self.omega(rounds))

    def _compared(self, layout: Layout, m: Measured) -> Params:
        """What similarities see of an upload."""
        if self.similarity == "weights":
            return m.upload.params
        (given,) = m.given.values()
        return minus(layout, m.upload.params, given)

    def _late(self, state: State, receipt: Receipt, home: ClusterId, updates: int) -> int:
        """How often the cluster changed since the task was given; all folds where that is not known."""
        began = self._began(receipt, home)
        if self.staleness_unit == "global" or began is None:
            return state.version - receipt.base
        return max(0, updates - began)

    def _began(self, receipt: Receipt | None, home: ClusterId) -> int | None:
        """At which version of this cluster a training began: children go on counting where their parent was."""
        if receipt is None:
            return None
        if self.staleness_unit == "global":
            return receipt.base
        counts = receipt.memo["updates"]
        return next(iter(counts.values())) if len(counts) == 1 else counts.get(home)

    def _parts(self, state: State, peers: Peers, homes: Homes, client: ClientId) -> tuple[float, list[list[ClientId]]]:
        """The gap of the uploader's cluster, 0 if it is not tested, and the parts to split it into, if any."""
        home = homes[client]
        assert home is not None
        places = np.array([place for place, other in enumerate(peers.clients) if homes[other] == home])
        every = self.test_every or max(1, len(places) // OFTEN)
        if not self.split or len(places) < 3 or state.clusters[home].updates % every:
            return 0.0, []
        if not peers.all_known(client, places):
            return 0.0, []
        affinity = np.maximum(peers.similarity[np.ix_(places, places)].astype(np.float64), 0)
        count, gap = eigengap(eigenvalues(affinity, self.eigenvalues), self._first_gap)
        if count < 2 or self.cluster_rate(state.rounds, len(places)) + self.margin >= gap**self.gamma:
            return gap, []
        labels = spectral_groups(affinity, count)
        parts = [[peers.clients[place] for place in places[labels == label]] for label in range(labels.max() + 1)]
        return gap, parts if len(parts) > 1 and min(map(len, parts)) >= self.min_cluster_size else []

    @property
    def _first_gap(self) -> int:
        return 1 if self.similarity == "delta" else self.first_gap

    def _mixed(self, layout: Layout, old: Params, m: Measured, rate: float) -> Params:
        return toward(layout, old, m.upload.params, rate)


@dataclass(frozen=True)
class CASAPlus(CASA, KnowsLength):
    """CASA whose late clients leave their smallest weights as they are, and so train for a shorter time."""

    name: ClassVar[str] = "casa+"
    s0: float = 0.5  # S_0, scales the share of weights left alone; 0: CASA
    total_rounds: int | None = None  # R_end, planned uploads; None: the horizon, or 50,000

    def __post_init__(self) -> None:
        rules = {
            "s0 is in [0, 1]": 0 <= self.s0 <= 1,
            "total_rounds is at least 1": self.total_rounds is None or self.total_rounds >= 1,
        }
        check(self, rules)
        super().__post_init__()

    @property
    def needs_given(self) -> bool:  # type: ignore[override]
        """The mask is that of the model that was given."""
        return True

    def task(self, state: State, client: ClientId) -> Task:
        """As CASA's, with the share of weights to leave alone, worked out from the rates of the last upload."""
        task = super().task(state, client)
        known = state.memory["clients"]
        top, rate = state.memory["rates"][known.index(client)].tolist() if client in known else (0.0, 0.0)
        share = self.sparsity(top, rate, state.rounds)
        settings = {"sparsity": share, "work": 1 - share} if share else {}
        return replace(task, settings={**task.settings, **settings}, memo={**task.memo, "sparsity": share})

    def fresh(self, state: State, client: ClientId) -> Task:
        """As CASA's: no weight is left alone where nothing is trained."""
        return super().task(state, client)

    def sparsity(self, top: float, rate: float, rounds: int) -> float:
        """S_i, of a client whose last upload had the rates a_c and a_i; 0 from R_end on."""
        end = self.total_rounds or self.horizon or ROUNDS
        share = self.s0 / 2 * (top - rate) * (1 + cos(min(1.0, max(0, rounds - 1) / end) * pi))
        return min(0.99, max(0.0, share))

    def _mixed(self, layout: Layout, old: Params, m: Measured, rate: float) -> Params:
        """Only weights that were trained count; the others of the cluster stay."""
        new, share = super()._mixed(layout, old, m, rate), m.receipt.memo["sparsity"]
        if not share:
            return new
        (given,) = m.given.values()
        return seal(np.where(kept_by_size(layout, given, share), new, old))


def _home(state: State, member: Member | None) -> ClusterId | None:
    """The cluster of a client; None for a newcomer among several, and where its cluster was split while it was away."""
    for cluster in (member.mixture if member else None) or ():
        if cluster in state.clusters:
            return cluster
    return next(iter(state.clusters)) if len(state.clusters) == 1 else None


def _crowd(state: State, uploader: ClientId) -> dict[ClientId, Member]:
    """Everybody at work: the uploader, and whoever is present with an open task."""
    return {
        client: member
        for client, member in state.members.items()
        if client == uploader or (member.present and member.receipt is not None)
    }


def _near(one: int | None, other: int | None, widest: float) -> bool:
    """Did two trainings begin less than `widest` versions apart?"""
    return one is not None and other is not None and abs(one - other) < widest


def _groups(peers: Peers, homes: Homes) -> np.ndarray:
    """A number per cluster for everybody; -1 for newcomers."""
    numbers = {cluster: number for number, cluster in enumerate(dict.fromkeys(homes.values()))} | {None: -1}
    return np.array([numbers[homes[client]] for client in peers.clients])


def _mean(state: State) -> Params:
    """The clusters' mean by the samples of their members; evenly where nobody has any."""
    weights = dict.fromkeys(state.clusters, 0)
    for member in state.members.values():
        home = _home(state, member) if member.present else None
        if home is not None:
            weights[home] += member.samples
    models = [cluster.params for cluster in state.clusters.values()]
    return average(state.layout, models, list(weights.values()) if any(weights.values()) else None)


def _place(state: State, peers: Peers, homes: Homes, m: Measured, vector: Params) -> ClusterId:
    """The cluster of a newcomer: by the members in its buffer, else by the models, else the largest."""
    layout, buffer = state.layout, peers.buffer(m.upload.client)
    found: dict[ClusterId, float] = {}
    for cluster in state.clusters:
        mates = [client for client in buffer if homes[client] == cluster]
        if mates:
            samples = [state.members[client].samples for client in mates]
            rep = average(layout, [buffer[client] for client in mates], samples if any(samples) else None)
            found[cluster] = _cosine(layout, rep, vector)
    for likeness in (found, {k: _cosine(layout, c.params, m.upload.params) for k, c in state.clusters.items()}):
        defined = {cluster: value for cluster, value in likeness.items() if isfinite(value)}
        if defined:
            return max(defined, key=defined.__getitem__)
    sizes = {cluster: sum(home == cluster for home in homes.values()) for cluster in state.clusters}
    return max(sizes, key=sizes.__getitem__)


def _cosine(layout: Layout, a: Params, b: Params) -> float:
    """The cosine; NaN where one of them is zero."""
    return cosine(layout, a, b) if norm(layout, a) and norm(layout, b) else nan
