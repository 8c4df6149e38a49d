"""ICFL (reconstructed) and ICFL-Async (reconstructed): iterative clustered federated learning (Yan, Tong, Wang 2023).

Only the abstract and what CASA's paper says of it could be read, and no code: this is a reconstruction. A client that
uploads for the first time joins the cluster it resembles most, or opens one of its own; then every cluster whose
members resemble each other too little is halved. What counts as too little rises as the run goes on.

Paper line -> method: "alpha*(0) = 0.85, increasing factor 4.0" -> `threshold`, th(t) = 1 - (1 - 0.85) exp(-4 t / T);
"incremental clustering" -> `_placed`; "clustering by average connectivity, bi-partition, spectral method" ->
`_divided`; the average inside clusters -> `ICFL.fold`; CASA's asynchronous form -> `ICFLAsync.fold`.
Differs from the paper: nothing can be compared but the few sentences above. The threshold's form is a guess; t / T
makes 500 rounds and 50,000 uploads alike, which is what CASA's factor 0.01 for the asynchronous form does.

The asynchronous form splits true groups, down to clients of their own: it compares the newest weights of clients who
have trained for different numbers of versions, and a threshold of 0.997 is above the cosines inside a group. CASA's
printed accuracies for it are close to those of clients who train alone. It is left as it is: comparing only clients
of nearly the same version is CASA's own rule.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import exp
from typing import Any, ClassVar, Literal

import numpy as np

from artesian.algorithms.clustering import blank_table, refreshed, spectral_groups, square
from artesian.algorithms.membership import home_task
from artesian.algorithms.settings import InRoundsAfterAll, KnowsLength, MixesUploads, only
from artesian.core import Buffers, ClientId, Cluster, ClusterId, Matrix, Measured, State, Step, Task
from artesian.engine.pace import Stream
from artesian.errors import check
from artesian.params import Layout, Params, average, minus, toward


@dataclass(frozen=True)
class _Group:
    """Clients that are a cluster from here on, and the one they come from, if any."""

    clients: list[ClientId]
    parent: ClusterId | None = None
    split: bool = False


@dataclass(frozen=True)
class _Connected(KnowsLength):
    """Placing and halving by connectivity: what both forms share."""

    usual: ClassVar[int]  # T where no horizon is planned: that of CASA's runs
    alpha_start: float = 0.85  # alpha*(0), the threshold at the start
    growth: float = 4.0  # eps, how fast the threshold rises
    similarity: Literal["weights", "delta"] = "weights"  # of what cosines are taken
    buffers: Buffers = "average"

    def __post_init__(self) -> None:
        rules = {
            "alpha_start is in [0, 1]": 0 <= self.alpha_start <= 1,
            "growth is at least 0": self.growth >= 0,
            "similarity is weights or delta": self.similarity in ("weights", "delta"),
            "horizon is at least 1": self.horizon is None or self.horizon >= 1,
        }
        check(self, rules)
        self.pace()

    @property
    def needs_given(self) -> bool:  # type: ignore[override]
        """A change is known only where the start is."""
        return self.similarity == "delta"

    def init(self, layout: Layout, start: Sequence[Params], seed: int) -> State:
        return State(layout, {"k0": Cluster(average(layout, start))}, seed=seed, memory=blank_table())

    def task(self, state: State, client: ClientId) -> Task:
        return home_task(state, client)

    def matrices(self, state: State) -> dict[str, Matrix]:
        """The cosines of the newest weights, or changes, of all clients."""
        return {"similarity": square(state.memory["clients"], state.memory["cosines"])}

    def threshold(self, rounds: int) -> float:
        """th(t): from alpha_start towards 1."""
        return 1 - (1 - self.alpha_start) * exp(-self.growth * rounds / (self.horizon or self.usual))

    def _table(self, state: State, measured: Sequence[Measured]) -> dict[str, Any]:
        """The newest weights, or changes, of all clients and their cosines."""
        return refreshed(state.layout, state.memory, {m.upload.client: self._seen(state.layout, m) for m in measured})

    def _seen(self, layout: Layout, m: Measured) -> Params:
        if self.similarity == "weights":
            return m.upload.params
        (given,) = m.given.values()
        return minus(layout, m.upload.params, given)

    def _groups(self, state: State, table: Mapping[str, Any], measured: Sequence[Measured]) -> list[_Group]:
        """All clusters once newcomers are placed and those of low connectivity are halved."""
        least = self.threshold(state.rounds)
        rows = {client: i for i, client in enumerate(table["clients"])}
        placed = _placed(state, table["cosines"], rows, [m.upload.client for m in measured], least)
        return [part for group in placed for part in _divided(group, table["cosines"], rows, least)]


@dataclass(frozen=True)
class ICFL(_Connected, InRoundsAfterAll):
    """ICFL (reconstructed), in rounds: place, halve, then average inside every cluster."""

    name: ClassVar[str] = "icfl"
    usual: ClassVar[int] = 500

    def fold(self, state: State, measured: Sequence[Measured]) -> Step:
        table = self._table(state, measured)
        sent = {m.upload.client: m for m in measured}

        def model(group: _Group) -> Params | None:
            return _averaged(state.layout, [sent[c] for c in group.clients if c in sent], new=group.parent is None)

        return _step(state, self._groups(state, table, measured), model, table)


@dataclass(frozen=True)
class ICFLAsync(_Connected, MixesUploads):
    """ICFL (reconstructed) as a stream: place, halve, then move the uploader's cluster. It splits true groups."""

    name: ClassVar[str] = "icfl-async"
    usual: ClassVar[int] = 50_000

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_mixing()

    def fold(self, state: State, measured: Sequence[Measured]) -> Step:
        m = only(measured, "ICFL-Async")
        late = state.version - m.receipt.base
        if self.too_late(late):
            return Step(notes={"dropped": 1})
        table = self._table(state, measured)
        rate = self.rate(late)

        def model(group: _Group) -> Params | None:
            if m.upload.client not in group.clients:
                return None
            if group.parent is None:
                return m.upload.params
            return toward(state.layout, state.clusters[group.parent].params, m.upload.params, rate)

        return _step(state, self._groups(state, table, measured), model, table)

    def pace(self) -> Stream:
        return Stream()


def _placed(
    state: State, alike: np.ndarray, rows: Mapping[ClientId, int], clients: Sequence[ClientId], least: float
) -> list[_Group]:
    """The incremental part: whoever uploads first joins the best-connected cluster, or opens one."""
    groups = [_Group([], k) for k in state.clusters]
    at = {group.parent: group for group in groups}
    for client in rows:
        for k in state.members[client].mixture or ():
            at[k].clients.append(client)
    for client in (c for c in clients if not state.members[c].mixture):
        known = [group for group in groups if group.clients]
        links = [float(alike[rows[client], [rows[c] for c in group.clients]].mean()) for group in known]
        best = int(np.argmax(links)) if links else -1
        if not links:  # the first client of all
            groups[0].clients.append(client)
        elif links[best] >= least:
            known[best].clients.append(client)
        else:
            groups.append(_Group([client]))
    return groups


def _divided(group: _Group, alike: np.ndarray, rows: Mapping[ClientId, int], least: float) -> list[_Group]:
    """The clustering part: a group whose mean cosine over pairs is too low, in two; else itself."""
    places, count = [rows[client] for client in group.clients], len(group.clients)
    if count < 2:
        return [group]
    inner = alike[np.ix_(places, places)]
    if inner[~np.eye(count, dtype=bool)].mean() >= least:
        return [group]
    labels = spectral_groups(np.maximum(inner, 0.0), 2)
    halves = [[c for c, label in zip(group.clients, labels, strict=True) if label == half] for half in (0, 1)]
    return [_Group(half, group.parent, split=True) for half in halves] if all(halves) else [group]


def _averaged(layout: Layout, uploads: Sequence[Measured], new: bool) -> Params | None:
    """The mean by samples; None where an old cluster got nothing."""
    samples = [m.upload.samples for m in uploads]
    if not any(samples) and not new:
        return None
    return average(layout, [m.upload.params for m in uploads], samples if any(samples) else None)


def _step(
    state: State, groups: Sequence[_Group], model: Callable[[_Group], Params | None], table: Mapping[str, Any]
) -> Step:
    """Names for all groups, their models, and whoever's home changed."""
    fresh = iter(state.fresh_names(len(groups)))
    named = {next(fresh) if group.split or group.parent is None else group.parent: group for group in groups}
    clusters = {k: params for k, group in named.items() if (params := model(group)) is not None}
    born = {k: group.parent for k, group in named.items() if group.split and group.parent is not None}
    mixtures = {c: {k: 1.0} for k, group in named.items() for c in group.clients}
    moved = {c: mixture for c, mixture in mixtures.items() if state.members[c].mixture != mixture}
    gone = tuple(sorted(set(born.values())))
    notes = {"splits": len(gone), "opened": sum(group.parent is None for group in groups)}
    return Step(clusters, moved, table, notes, born, gone)
