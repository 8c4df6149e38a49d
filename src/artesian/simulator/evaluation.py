"""The scores of a run: clients before and after the answer, clusters, and what was estimated of mixtures."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from math import log
from typing import Any, Literal

import numpy as np

from artesian.core import ClientId, ClusterId, Ensemble, Mixture, Notebook, Reply, State, Task
from artesian.engine.coordinator import Coordinator
from artesian.params import Params, average, combine, distance
from artesian.recipes import recipe
from artesian.recipes.accepting import CANDIDATES, Voices
from artesian.simulator.client_scores import ClientScores
from artesian.simulator.executor import Promise
from artesian.simulator.export import Export
from artesian.simulator.jobs import Judged, Judging, Place, Score
from artesian.simulator.metrics import adjusted_rand, converged_at, is_worse, purity, time_to_target
from artesian.simulator.table import Cell, Row, Table

UPLOADS = (
    "upload", "time", "client", "cycle", "version", "staleness", "before", "after", "kl", "kl_uniform", "discrepancy"
)  # fmt: skip
ACCEPTED = ("accepted", "won")  # more columns of that table, where clients judge what they use
POOL = ("pool_before", "pool_after", "pool_accepted")  # and where models are scored on the whole pool
CLUSTERS = ("upload", "time", "cluster", "accuracy")
CLIENTS = ("upload", "time", "round", "clusters", "purity", "rand", "accuracy", "weighted")
Plain = (str, int, float, type(None))
Evaluate = Literal["clusters", "clients"]
FLOOR = 1e-4  # the smallest share a divergence sees


@dataclass(frozen=True)
class UnscoredUpload:
    """An upload whose answer is still to be scored."""

    upload: int
    time: float
    client: ClientId
    cycle: int
    staleness: int
    before: float
    mixture: Mixture  # the true one
    trained: Params | None = None  # what the client trained, as one model; None in runs of the version before
    voices: Voices = field(default_factory=Voices)  # what it trained, as it is, where that is judged or scored again


@dataclass(frozen=True)
class Best:
    """The best of several scores, some of which may still be worked out."""

    scores: tuple[Promise[float], ...]

    @property
    def ready(self) -> bool:
        return all(score.ready for score in self.scores)

    @property
    def value(self) -> float:
        return max(score.value for score in self.scores)


@dataclass(frozen=True)
class Mean:
    """The mean of several scores by these weights, some of which may still be worked out."""

    scores: tuple[Promise[float], ...]
    weights: tuple[float, ...]

    @property
    def ready(self) -> bool:
        return all(score.ready for score in self.scores)

    @property
    def value(self) -> float:
        return float(np.average([score.value for score in self.scores], weights=self.weights))


@dataclass(frozen=True)
class Figure:
    """One figure of a judged refresh, which may still be worked out."""

    judged: Promise[Judged]
    pick: Callable[[Judged], Cell]

    @property
    def ready(self) -> bool:
        return self.judged.ready

    @property
    def value(self) -> Cell:
        return self.pick(self.judged.value)


@dataclass(frozen=True)
class Underway:
    """A refresh that may still be judged, and its models: one of them is what the client will use."""

    upload: int
    refresh: Judging
    judged: Promise[Judged]

    @property
    def used(self) -> Ensemble:
        """What won."""
        known = {"drawn": self.refresh.drawn, "trained": self.refresh.trained, "previous": self.refresh.previous}
        judged = self.judged.value
        return judged.made or known[str(judged.won)]


@dataclass(frozen=True)
class UnfinishedRow:
    """A row of a table, some of whose cells may still be worked out."""

    table: Table
    cells: tuple[Cell | Promise[Cell], ...]

    @property
    def ready(self) -> bool:
        return all(cell.ready for cell in self.cells if not isinstance(cell, Plain))

    @property
    def values(self) -> list[Cell]:
        return [cell if isinstance(cell, Plain) else cell.value for cell in self.cells]


@dataclass
class Evaluation:
    """The tables of a run, and what is still to be entered into them."""

    place: Place
    uploads: Table
    clusters: Table
    clients: Table
    evaluate: Evaluate = "clusters"
    export: Export | None = None  # what is exported besides
    pool_every: int = 0  # uploads from one that is scored on the whole pool to the next; 0: none is
    used: MutableMapping[ClientId, Voices] = field(default_factory=dict)  # what clients use, where they judge that
    turns: Table | None = None  # of clients that decide
    entries: list[UnscoredUpload] = field(default_factory=list)
    estimated: dict[ClientId, Mixture] = field(default_factory=dict)
    true: dict[ClientId, Mixture] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.names: list[ClusterId] = list(self.place.world.tests(self.place.seed))
        self.scorer: Callable[[Score], Promise[float]]  # the executor's, while the run lasts
        self.judge: Callable[[Judging], Promise[Judged]]  # the executor's, too
        self._underway: dict[ClientId, Underway] = {}  # the newest refresh of a client, until it is judged
        self._rows: deque[UnfinishedRow] = deque()  # in the order they will have
        self._seen: dict[tuple[ClusterId, ClusterId], tuple[int, Promise[float]]] = {}  # version and score
        self._client_scores = ClientScores(self.place)
        self.evaluated = max(((int(row[0] or 0), int(row[2] or 0)) for row in self.clients), default=None)
        self._newest = {str(row[2]): float(row[7] or 0) for row in self.uploads}
        self._total = sum(self._newest.values())  # kept up, so that progress costs nothing

    @property
    def tables(self) -> dict[str, Table]:
        """The tables by the name of their file."""
        exported = self.export.tables if self.export else {}
        turns = {"turns": self.turns} if self.turns is not None else {}
        return {"metrics": self.uploads, "clusters": self.clusters, "clients": self.clients, **exported, **turns}

    def note(self, entry: UnscoredUpload) -> None:
        """An upload was accepted."""
        self.true[entry.client] = entry.mixture
        self.entries.append(entry)

    def blend(self, ensemble: Ensemble) -> Params:
        """An ensemble as one model: the mean of its models by their weights."""
        weights, models = zip(*ensemble, strict=True)
        return combine(self.place.model.layout, models, weights)

    def score(self, coordinator: Coordinator, notebooks: Mapping[ClientId, Notebook], replies: list[Reply]) -> None:
        """Score what the uploaders draw back: the answer, or what they would be given now."""
        answered = {reply.client: reply.task for reply in replies}
        for entry in self.entries:
            task = answered.get(entry.client)
            if task is None or task.solo:
                task = coordinator.preview(entry.client)
            self._score_upload(entry, task, coordinator, notebooks.get(entry.client, {}))
        self.entries = []
        self.enter()

    def evaluate_clusters(self, coordinator: Coordinator, upload: int, time: float) -> None:
        """Score, on each distribution's test data, the cluster that stands for it, or the best of all."""
        clusters = coordinator.state.clusters
        for name in self.names:
            shown = [name] if coordinator.algorithm.stands_for and name in clusters else list(clusters)
            scores = tuple(self._score_of(name, k, coordinator) for k in shown)
            self._rows.append(UnfinishedRow(self.clusters, (upload, time, name, Best(scores))))
        if self.export:
            for k, name in product(clusters, self.names):
                cells = (upload, time, k, name, self._score_of(name, k, coordinator))
                self._rows.append(UnfinishedRow(self.export.distributions, cells))
        self.enter()

    def evaluate_clients(
        self,
        coordinator: Coordinator,
        notebooks: Mapping[ClientId, Notebook],
        cycles: Callable[[ClientId], int],
        upload: int,
        time: float,
    ) -> None:
        """How clusters compare with the true groups and, where asked for, how every honest client does now."""
        state = coordinator.state
        known = [client for client, member in state.members.items() if member.mixture and client in self.true]
        found = [_largest(state.members[client].mixture or {}) for client in known]
        true = [_largest(self.true[client]) for client in known]
        scores: tuple[Cell | Promise[Cell], ...] = (None, None)
        if self.evaluate == "clients":
            present = [client for client, member in state.members.items() if member.present]
            honest = {client: cycles(client) for client in present if client not in self.place.hostile}
            scores = self._score_clients(coordinator, notebooks, honest)
        judged = (purity(found, true), adjusted_rand(found, true)) if known else (None, None)
        cells = (upload, time, state.rounds, len(state.clusters), *judged, *scores)
        self._rows.append(UnfinishedRow(self.clients, cells))
        self.evaluated = upload, state.rounds  # at the newest evaluation
        self.enter()

    def _score_clients(
        self, coordinator: Coordinator, notebooks: Mapping[ClientId, Notebook], cycles: Mapping[ClientId, int]
    ) -> tuple[Cell | Promise[Cell], ...]:
        """The mean over clients of their score on their own test data, and the mean weighted by its size."""
        scores, sizes = [], []
        for client, cycle in cycles.items():
            task = coordinator.preview(client)
            ensemble = self._predicting(task, notebooks.get(client, {}))
            found = self._client_scores.of(client, cycle, ensemble, self.scorer)
            scores.append(found.score)
            sizes.append(found.size)
        if not sum(sizes):
            return (None, None)
        return Mean(tuple(scores), (1.0,) * len(scores)), Mean(tuple(scores), tuple(sizes))

    def _score_of(self, name: ClusterId, k: ClusterId, coordinator: Coordinator) -> Promise[float]:
        cluster = coordinator.state.clusters[k]
        if (name, k) not in self._seen or self._seen[name, k][0] != cluster.updated:
            self._seen[name, k] = cluster.updated, self.scorer(Score(((1.0, cluster.params),), name))
        return self._seen[name, k][1]

    def enter(self, *, wait: bool = False) -> None:
        """Enter the rows whose scores are there, in order; or wait for all of them."""
        while self._rows and (wait or self._rows[0].ready):
            row = self._rows.popleft()
            values = row.values
            row.table.add(*values)
            if row.table is self.uploads:
                client, score = str(values[2]), float(values[7] or 0)
                self._total += score - self._newest.get(client, 0.0)
                self._newest[client] = score
                self._settle(client, values[0])

    def accuracy(self) -> float | None:
        """The mean score of what clients drew back last."""
        return self._total / len(self._newest) if self._newest else None

    def summary(self, coordinator: Coordinator, uploads: int, target: float | None) -> dict[str, Any]:
        """The mean over each client's last cycle; for clusters, over the last evaluations, the very last, and all."""
        newest, apart = {}, []
        for row in self.uploads:
            newest[row[2]] = row
            apart.append(row[10] if len(row) > 10 else None)  # a run of the version before has none
        last = list(newest.values())
        estimated = [row for row in last if row[8] is not None]
        learnt = any(cluster.updates for cluster in coordinator.state.clusters.values())
        since = uploads - len(self.place.world.names)
        every, recent, final = [], [], deque[Cell](maxlen=len(self.names))
        for upload, _, _, score in self.clusters:
            every.append(score)
            final.append(score)
            if int(upload or 0) > since:
                recent.append(score)
        return {
            "client_before": _mean([row[6] for row in last]),
            "client_after": _mean([row[7] for row in last]),
            "cluster": _mean(recent) if learnt else None,
            "cluster_final": _mean(list(final)) if learnt else None,
            "cluster_all": _mean(every) if learnt else None,
            "kl": _mean([row[8] for row in last]),
            "kl_uniform": _mean([row[9] for row in estimated or last]),  # guessing, where the other was estimated
            "discrepancy": _mean(apart),
            **self._summary_of_refreshes(last),
            **self._summary_of_clients(target),
        }

    def _summary_of_refreshes(self, last: list[Row]) -> dict[str, Any]:
        """What clients use at the end, which candidates won, and how often the pool says that training was better."""
        found: dict[str, Any] = {}
        if self.judges:
            at = self.uploads.columns.index("accepted")
            winners = Counter(str(row[at + 1]) for row in self.uploads)
            found["client_accepted"] = _mean([row[at] for row in last])
            found["won"] = {name: winners[name] / winners.total() for name in CANDIDATES if winners[name]}
        if self.pool_every:
            at = self.uploads.columns.index("pool_before")
            pairs = [(row[at], row[at + 1], row[at + 2]) for row in self.uploads if row[at] is not None]
            found["worse_drawn"] = self._share_worse([(before, after) for before, after, _ in pairs])
            if self.judges:
                found["worse_accepted"] = self._share_worse([(before, used) for before, _, used in pairs])
        return found

    def _share_worse(self, pairs: list[tuple[Cell, Cell]]) -> float | None:
        errors = self.place.world.classes <= 1
        return _mean([is_worse(float(a or 0), float(b or 0), errors=errors) for a, b in pairs])

    def _summary_of_clients(self, target: float | None) -> dict[str, Any]:
        """Clusters against true groups at the end; how clients do, and when they did as well."""
        rows = list(self.clients)
        judged = [row for row in rows if row[6] is not None]
        times, scores = [float(row[1] or 0) for row in judged], [float(row[6] or 0) for row in judged]
        weighted = [float(row[7] or 0) for row in judged]
        return {
            "clusters": rows[-1][3] if rows else None,
            "purity": rows[-1][4] if rows else None,
            "rand": rows[-1][5] if rows else None,
            "clients": scores[-1] if judged else None,
            "clients_best": max(scores) if judged else None,
            "weighted_best": max(weighted) if judged else None,
            "time_to_target": None if target is None else time_to_target(times, scores, target),
            "converged_at": converged_at(times, scores),
        }

    def _predicting(self, task: Task, notebook: Notebook) -> Ensemble:
        """What a client predicts with that drew this task."""
        return recipe(task.recipe, self.place.recipes).use(self.place.model.layout, task, notebook)

    def _score_upload(self, entry: UnscoredUpload, task: Task, coordinator: Coordinator, notebook: Notebook) -> None:
        client = entry.client
        ensemble = self._predicting(task, notebook)
        found = coordinator.state.members[client].mixture if coordinator.algorithm.stands_for else None
        found = None if found is None or set(found) - set(self.names) else found  # clusters of no name in the world
        if found is not None:
            self.estimated[client] = found
        even = {k: 1 / len(self.names) for k in self.names}
        version = coordinator.state.version
        before = (entry.upload, entry.time, client, entry.cycle, version, entry.staleness, entry.before)
        known = None if found is None else divergence(entry.mixture, found)
        score, *more = self._scores(entry, ensemble)
        after = (score, known, divergence(entry.mixture, even), discrepancy(coordinator.state, client, entry.trained))
        self._rows.append(UnfinishedRow(self.uploads, (*before, *after, *more)))
        if self.export:
            shares = coordinator.state.members[client].mixture or {}
            for k in dict.fromkeys([*entry.mixture, *shares]):
                cells = (entry.upload, entry.time, client, k, entry.mixture.get(k), shares.get(k))
                self._rows.append(UnfinishedRow(self.export.shares, cells))

    # what clients use

    def in_use(self, client: ClientId, task: Task, notebook: Notebook) -> Ensemble:
        """What a client uses that drew this task last."""
        return self._used_by(client) or self._predicting(task, notebook)

    @property
    def judges(self) -> bool:
        """Do clients judge what they use?"""
        return self.place.hold_back is not None

    @property
    def wants_models(self) -> bool:
        """Is what a client trained wanted once more when its upload is answered?"""
        return self.judges or bool(self.pool_every)

    def _scores(self, entry: UnscoredUpload, drawn: Ensemble) -> list[Cell | Promise[Cell]]:
        """The score of what a client drew, then what the further columns of its row hold."""
        pooled = self.pool_every and entry.upload % self.pool_every == 0
        figures = self._figures()
        if not self.judges and not pooled:
            return [self.scorer(Score(drawn, client=entry.client, cycle=entry.cycle)), *[None] * len(figures)]
        previous, pool = self._used_by(entry.client), entry.mixture if pooled else {}
        refresh = Judging(entry.client, entry.cycle, drawn, entry.voices.ensemble, previous, pool)
        judged = self.judge(refresh)
        if self.judges:
            self._underway[entry.client] = Underway(entry.upload, refresh, judged)
        return [Figure(judged, _after), *(Figure(judged, figure) for figure in figures)]

    def _figures(self) -> list[Callable[[Judged], Cell]]:
        """How the further columns follow from a judged refresh."""
        accepted: list[Callable[[Judged], Cell]] = [_accepted, _won] if self.judges else []
        return accepted + [partial(_on_pool, place) for place in range(len(POOL)) if self.pool_every]

    def _used_by(self, client: ClientId) -> Ensemble:
        """What a client used until now; nothing before its first refresh."""
        if client in self._underway:
            self._settle(client, self._underway[client].upload)
        return self.used[client].ensemble if client in self.used else ()

    def _settle(self, client: ClientId, upload: Cell) -> None:
        """Keep what a client uses since this upload; its other models go."""
        underway = self._underway.get(client)
        if underway is not None and underway.upload == upload:
            self.used[client] = Voices.of(underway.used)
            del self._underway[client]


def columns_of_uploads(judges: bool, pooled: bool) -> tuple[str, ...]:
    """The columns of the table of uploads, where clients judge what they use, and models are scored on the pool."""
    return UPLOADS + (ACCEPTED if judges else ()) + (POOL if pooled else ())


def _after(judged: Judged) -> Cell:
    return judged.after


def _accepted(judged: Judged) -> Cell:
    return judged.accepted


def _won(judged: Judged) -> Cell:
    return judged.won


def _on_pool(place: int, judged: Judged) -> Cell:
    """The score in this place of the pool's; None where there is none."""
    return judged.pool[place] if place < len(judged.pool) else None


def discrepancy(state: State, client: ClientId, trained: Params | None) -> float | None:
    """FlexCFL's measure: how far what a client trained is from the model of its cluster.

    With a soft mixture that is the mean of its clusters by their shares; for a newcomer, the mean of all.
    """
    if trained is None or not np.isfinite(trained[: state.layout.trainable]).all():
        return None
    mixture = state.members[client].mixture or {}
    shares = {k: share for k, share in mixture.items() if share > 0 and k in state.clusters}
    models = {k: state.clusters[k].params for k in shares or state.clusters}
    return distance(state.layout, trained, average(state.layout, list(models.values()), list(shares.values()) or None))


def divergence(true: Mapping[str, float], found: Mapping[str, float]) -> float:
    """KL(true || found), with shares below 1e-4 seen as 1e-4."""
    return sum(p * log(max(p, FLOOR) / max(found.get(k, 0.0), FLOOR)) for k, p in true.items())


def _largest(mixture: Mixture) -> ClusterId:
    """The cluster with the largest share, the first of equals."""
    return max(mixture, key=lambda k: mixture[k])


def _mean(cells: list[Cell]) -> float | None:
    known = [float(cell) for cell in cells if cell is not None]
    return float(np.mean(known)) if known else None
