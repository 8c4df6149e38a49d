"""CFL, clustered federated learning (Sattler et al. 2019), and CFL-Async, its asynchronous form in CASA's comparison.

All clients begin in one cluster. When its mean change has become small while single changes are still large, its
members pull in different directions: the cluster is halved by the cosines of their changes, and so are its children in
their turn. A client trains the model of its own cluster and nothing else.

Paper line -> method: "||sum_i w_i delta_i|| < eps1 and max_i ||delta_i|| > eps2" -> `_ripe`; "bipartition minimising
the largest cosine across" -> `_halved`, by complete linkage; "sqrt((1 - alpha_cross) / 2) > gamma_max" -> `gamma_max`;
"theta_c <- theta_c + mean of its members' delta" -> `CFL.fold`; CASA's "newest parameters of every client, a test each
asynchronous round" -> `CFLAsync.fold`.
Differs from the paper: groups are of clients, not of positions inside a cluster, so a second split moves the right
ones; a member that missed a round counts with its last change if that is one round old, and nothing is split while a
present member has none; newcomers, leavers and uploads that were under way during a split have the rules below, where
the paper has none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any, ClassVar, Literal

import numpy as np

from artesian.algorithms.clustering import blank_table, cosines, linked_groups, refreshed, square
from artesian.algorithms.membership import home, home_task, mean_of_clusters, members_of
from artesian.algorithms.settings import InRoundsAfterAll, MixesUploads, only
from artesian.core import Algorithm, Buffers, ClientId, Cluster, ClusterId, Matrix, Measured, State, Step, Task
from artesian.engine.pace import Stream
from artesian.errors import check
from artesian.params import Layout, Params, average, combine, cosine, minus, norm, toward

Groups = list[list[ClientId]]


@dataclass(frozen=True)
class _Splitting(Algorithm):
    """When a cluster is halved, and how: what both forms share."""

    eps1: float = 0.4  # eps_1, below which the mean change is small
    eps2: float = 0.7  # eps_2, above which a single change is large
    min_size: int = 3  # the smallest cluster that may be halved
    warmup_rounds: int = 0  # rounds without any split
    gamma_max: float | None = None  # gamma_max, what a split must exceed; None: no such test
    weighting: Literal["samples", "uniform"] = "samples"  # w_i of the mean change
    buffers: Buffers = "average"

    def __post_init__(self) -> None:
        rules = {
            "eps1 and eps2 are at least 0": self.eps1 >= 0 and self.eps2 >= 0,
            "min_size is at least 2": self.min_size >= 2,
            "warmup_rounds is at least 0": self.warmup_rounds >= 0,
            "gamma_max is in [0, 1)": self.gamma_max is None or 0 <= self.gamma_max < 1,
            "weighting is samples or uniform": self.weighting in ("samples", "uniform"),
        }
        check(self, rules)
        self.pace()

    def _shares(self, state: State, clients: Sequence[ClientId]) -> list[float]:
        """The weight of each: by samples, or evenly; evenly also where nobody has any."""
        sizes = [state.members[client].samples if self.weighting == "samples" else 1 for client in clients]
        return [size / sum(sizes) if any(sizes) else 1 / len(sizes) for size in sizes]

    def _ripe(self, state: State, members: int, mean_norm: float, max_norm: float) -> bool:
        """Has the cluster come to rest while its members have not?"""
        allowed = members >= self.min_size and state.rounds + 1 > self.warmup_rounds
        return allowed and mean_norm < self.eps1 and max_norm > self.eps2

    def _halved(self, clients: Sequence[ClientId], alike: np.ndarray) -> Groups:
        """Two groups by complete linkage, as clients again; one where `gamma_max` is not exceeded."""
        labels = linked_groups(np.maximum(1 - alike, 0.0), 2)
        across = float(alike[np.ix_(labels == 0, labels == 1)].max())
        if self.gamma_max is not None and sqrt(max(1 - across, 0.0) / 2) <= self.gamma_max:
            return [list(clients)]
        return [[client for client, label in zip(clients, labels, strict=True) if label == half] for half in (0, 1)]


@dataclass(frozen=True)
class CFL(_Splitting, InRoundsAfterAll):
    """CFL (Sattler et al. 2019) in rounds: a cluster takes its members' mean change, and splits where they disagree."""

    name: ClassVar[str] = "cfl"

    def init(self, layout: Layout, start: Sequence[Params], seed: int) -> State:
        return State(layout, {"k0": Cluster(average(layout, start))}, seed=seed, memory={"last": {}})

    def task(self, state: State, client: ClientId) -> Task:
        return home_task(state, client, delta=True)

    def matrices(self, state: State) -> dict[str, Matrix]:
        """The cosines of the newest changes, none older than one round."""
        last: Mapping[ClientId, Params] = state.memory["last"]
        return {"similarity": square(list(last), cosines(state.layout, list(last.values())))}

    def fold(self, state: State, measured: Sequence[Measured]) -> Step:
        sent = {m.upload.client: m.upload.params for m in measured}
        new = {client: delta for client, delta in sent.items() if home(state, client) is not None}
        fresh = {**state.memory["last"], **new}  # at most one round old
        born, moved = _divide(state, {k: self._groups(state, k, fresh) for k in state.clusters})
        homes = {client: k for client in new if (k := home(state, client))} | moved
        models = self._stepped(state, new, born, homes)
        newcomers = {client: delta for client, delta in sent.items() if client not in new}
        if newcomers:
            given = mean_of_clusters(state)
            homes |= {client: _nearest(state.layout, delta, models, given) for client, delta in newcomers.items()}
        changed = {k: w for k, w in models.items() if w is not state.clusters[born.get(k, k)].params}
        gone = tuple(k for k in state.clusters if k not in models)
        notes = {"splits": len(gone), "placed": len(newcomers)}
        return Step(changed, {client: {k: 1.0} for client, k in homes.items()}, {"last": new}, notes, born, gone)

    def _groups(self, state: State, cluster: ClusterId, fresh: Mapping[ClientId, Params]) -> Groups:
        """The members of a cluster, in two groups if it splits; those who left before follow the larger."""
        members = members_of(state, cluster)
        known = [client for client in members if client in fresh]
        others = [client for client in members if client not in fresh]
        if not known or any(state.members[client].present for client in others):
            return [members]
        deltas = [fresh[client] for client in known]
        mean_norm = norm(state.layout, combine(state.layout, deltas, self._shares(state, known)))
        if not self._ripe(state, len(known), mean_norm, max(norm(state.layout, delta) for delta in deltas)):
            return [members]
        groups = self._halved(known, cosines(state.layout, deltas))
        max(groups, key=len).extend(client for client in others if state.members[client].mixture)
        return groups

    def _stepped(
        self,
        state: State,
        new: Mapping[ClientId, Params],
        born: Mapping[ClusterId, ClusterId],
        homes: Mapping[ClientId, ClusterId],
    ) -> dict[ClusterId, Params]:
        """Every cluster after the round: its model, or its parent's, and the mean change of its own members."""
        models, gone = {}, set(born.values())
        for k in (k for k in (*state.clusters, *born) if k not in gone):
            old = state.clusters[born.get(k, k)].params
            clients = [client for client in new if homes[client] == k]
            deltas = [new[client] for client in clients]
            models[k] = combine(state.layout, (old, *deltas), (1.0, *self._shares(state, clients))) if clients else old
        return models


@dataclass(frozen=True)
class CFLAsync(_Splitting, MixesUploads):
    """CFL as a stream: every upload moves its cluster at once, and the test is made with everybody's newest change."""

    name: ClassVar[str] = "cfl-async"
    needs_given = True
    eps2: float = 1.0  # eps_2 of CASA's asynchronous runs

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_mixing()

    def init(self, layout: Layout, start: Sequence[Params], seed: int) -> State:
        return State(layout, {"k0": Cluster(average(layout, start))}, seed=seed, memory=blank_table())

    def task(self, state: State, client: ClientId) -> Task:
        return home_task(state, client)

    def fold(self, state: State, measured: Sequence[Measured]) -> Step:
        m = only(measured, "CFL-Async")
        layout, client, params = state.layout, m.upload.client, m.upload.params
        late = state.version - m.receipt.base
        if self.too_late(late):
            return Step(notes={"dropped": 1, "staleness": late})
        (given,) = m.given.values()
        delta, own = minus(layout, params, given), home(state, client)
        rate = self.rate(late)
        if own is None:  # its change began at the mean of the clusters: it counts from the next on
            own = _nearest(layout, delta, self._bound(state), given)
            merged = toward(layout, state.clusters[own].params, params, rate)
            return Step({own: merged}, {client: {own: 1.0}}, notes={"splits": 0, "placed": 1, "staleness": late})
        table = refreshed(layout, state.memory, {client: delta})
        merged = toward(layout, state.clusters[own].params, params, rate)
        born, homes = _divide(state, {own: self._groups(state, own, table)})
        notes = {"splits": int(bool(born)), "placed": 0, "staleness": late}
        if not born:
            return Step({own: merged}, {client: {own: 1.0}}, table, notes)
        mixtures = {member: {k: 1.0} for member, k in homes.items()}
        return Step(dict.fromkeys(born, merged), mixtures, table, notes, born, (own,))

    def matrices(self, state: State) -> dict[str, Matrix]:
        """The cosines of everybody's newest change."""
        return {"similarity": square(state.memory["clients"], state.memory["cosines"])}

    def _groups(self, state: State, cluster: ClusterId, table: Mapping[str, Any]) -> Groups:
        """The members of a cluster, in two groups if it splits; those who left follow whom they resemble."""
        members, rows = members_of(state, cluster), {client: i for i, client in enumerate(table["clients"])}
        here = [client for client in members if state.members[client].present]
        if not here or not all(client in rows for client in here):
            return [members]
        places = [rows[client] for client in here]
        alike, norms = table["cosines"][np.ix_(places, places)], table["norms"][places]
        sizes = norms * self._shares(state, here)
        mean_norm = sqrt(max(float((alike * sizes[:, None] * sizes[None, :]).sum()), 0.0))  # of sum_i w_i delta_i
        if not self._ripe(state, len(here), mean_norm, float(norms.max())):
            return [members]
        groups = self._halved(here, alike)
        largest, parts = max(groups, key=len), [[rows[client] for client in group] for group in groups]
        for client in (c for c in members if c not in here and state.members[c].mixture):
            likeness = [table["cosines"][rows[client], part].mean() for part in parts] if client in rows else []
            (groups[int(np.argmax(likeness))] if likeness else largest).append(client)
        return groups

    def _bound(self, state: State) -> dict[ClusterId, Params]:
        """Where the members of each cluster are bound: its model and their mean newest change."""
        vectors, found = state.memory["vectors"], {}
        for k, cluster in state.clusters.items():
            deltas = [vectors[client] for client in members_of(state, k) if client in vectors]
            shares = [1 / len(deltas)] * len(deltas)
            found[k] = combine(state.layout, (cluster.params, *deltas), (1.0, *shares))
        return found

    def pace(self) -> Stream:
        return Stream()


def _divide(
    state: State, groups: Mapping[ClusterId, Groups]
) -> tuple[dict[ClusterId, ClusterId], dict[ClientId, ClusterId]]:
    """The children of every cluster that splits, each with its parent; and who goes to which."""
    halves = [(parent, half) for parent, parts in groups.items() if len(parts) > 1 for half in parts]
    names = state.fresh_names(len(halves))
    born = {name: parent for name, (parent, _) in zip(names, halves, strict=True)}
    homes = {client: name for name, (_, half) in zip(names, halves, strict=True) for client in half}
    return born, homes


def _nearest(layout: Layout, delta: Params, models: Mapping[ClusterId, Params], given: Params) -> ClusterId:
    """The cluster a newcomer set out for: the largest cosine of its change with the way there; ties to the first."""
    return max(models, key=lambda k: cosine(layout, delta, minus(layout, models[k], given)))
