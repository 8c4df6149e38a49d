"""Watching a run: how clients do before and after the answer, how clusters do, what was estimated."""

from __future__ import annotations

import resource
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import log
from typing import Any

import numpy as np

from artesian.core import ClientId, Cluster, ClusterId, Learner, Mixture, Notebook, Reply, Task
from artesian.engine import Coordinator
from artesian.recipes import recipe
from artesian.simulator.executors import Place
from artesian.simulator.folder import Cell, Table

UPLOADS = (
    "upload", "time", "client", "cycle", "version", "staleness", "before", "after", "kl", "kl_uniform"
)  # fmt: skip
CLUSTERS = ("upload", "time", "cluster", "accuracy")
FLOOR = 1e-4  # the smallest share a divergence sees


@dataclass(frozen=True)
class Entry:
    """An upload whose answer is still to be scored."""

    upload: int
    time: float
    client: ClientId
    cycle: int
    staleness: int
    before: float
    mixture: Mixture  # the true one


@dataclass
class Watch:
    """The tables of a run, and what is still to be entered into them."""

    place: Place
    uploads: Table
    looks: Table
    entries: list[Entry] = field(default_factory=list)
    found: dict[ClientId, Mixture] = field(default_factory=dict)
    true: dict[ClientId, Mixture] = field(default_factory=dict)

    def __post_init__(self) -> None:
        place = self.place
        self.tests: dict[ClusterId, Learner] = {
            k: place.model.learner(s.x, s.y) for k, s in place.world.tests(place.seed).items()
        }
        self._seen: dict[tuple[ClusterId, ClusterId], tuple[int, float]] = {}  # version and score of the last look
        self._newest = {str(row[2]): float(row[7] or 0) for row in self.uploads.rows}
        self._total = sum(self._newest.values())  # kept up, so that progress costs nothing

    def note(self, entry: Entry) -> None:
        """An upload was accepted."""
        self.true[entry.client] = entry.mixture
        self.entries.append(entry)

    def score(self, coordinator: Coordinator, notebooks: Mapping[ClientId, Notebook], replies: list[Reply]) -> None:
        """Score what the uploaders draw back: the answer, or what they would be given now."""
        answered = {reply.client: reply.task for reply in replies}
        for entry in self.entries:
            task = answered.get(entry.client)
            if task is None or task.solo:
                task = coordinator.preview(entry.client)
            self._enter(entry, task, coordinator, notebooks.get(entry.client, Notebook()))
        self.entries = []

    def look(self, coordinator: Coordinator, upload: int, time: float) -> None:
        """Score, on each distribution's test data, the cluster that stands for it, or the best of all."""
        clusters = coordinator.state.clusters
        for name, test in self.tests.items():
            shown = {name: clusters[name]} if coordinator.algorithm.stands_for and name in clusters else clusters
            self.looks.add(upload, time, name, max(self._look(name, test, k, c) for k, c in shown.items()))

    def _look(self, name: ClusterId, test: Learner, k: ClusterId, cluster: Cluster) -> float:
        version, score = self._seen.get((name, k), (-1, 0.0))
        if version != cluster.updated:
            score = test.score(((1.0, cluster.params),))
            self._seen[name, k] = cluster.updated, score
        return score

    def accuracy(self) -> float | None:
        """The mean score of what clients drew back last."""
        return self._total / len(self._newest) if self._newest else None

    def summary(self, coordinator: Coordinator, uploads: int) -> dict[str, Any]:
        """The mean over each client's last cycle; for clusters, over the last looks and the very last."""
        last = list({row[2]: row for row in self.uploads.rows}.values())
        learnt = any(cluster.updates for cluster in coordinator.state.clusters.values())
        since = uploads - len(self.place.world.names)
        recent = [row[3] for row in self.looks.rows if int(row[0] or 0) > since]
        return {
            "client_before": _mean([row[6] for row in last]),
            "client_after": _mean([row[7] for row in last]),
            "cluster": _mean(recent) if learnt else None,
            "cluster_final": _mean([row[3] for row in self.looks.rows[-len(self.tests) :]]) if learnt else None,
            "kl": _mean([row[8] for row in last]),
            "kl_uniform": _mean([row[9] for row in last]),
        }

    def _enter(self, entry: Entry, task: Task, coordinator: Coordinator, notebook: Notebook) -> None:
        place, client = self.place, entry.client
        visit = place.world.visit(place.seed, client, entry.cycle)
        test = place.model.learner(visit.test.x, visit.test.y)
        after = test.score(recipe(task.recipe).use(place.model.layout, task, notebook))
        self._total += after - self._newest.get(client, 0.0)
        self._newest[client] = after
        found = coordinator.state.members[client].mixture if coordinator.algorithm.stands_for else None
        if found is not None:
            self.found[client] = found
        even = {k: 1 / len(self.tests) for k in self.tests}
        self.uploads.add(
            entry.upload,
            entry.time,
            client,
            entry.cycle,
            coordinator.state.version,
            entry.staleness,
            entry.before,
            after,
            None if found is None else divergence(entry.mixture, found),
            divergence(entry.mixture, even),
        )


def divergence(true: Mapping[str, float], found: Mapping[str, float]) -> float:
    """KL(true || found), with shares below 1e-4 seen as 1e-4."""
    return sum(p * log(max(p, FLOOR) / max(found.get(k, 0.0), FLOOR)) for k, p in true.items())


def peak_mb(workers: int) -> float:
    """Peak memory of this process and, for each worker, of the largest of them."""
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    each = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss if workers else 0
    unit = 1024 * 1024 if sys.platform == "darwin" else 1024  # macOS counts bytes
    return round((own + workers * each) / unit, 1)


def _mean(cells: list[Cell]) -> float | None:
    known = [float(cell) for cell in cells if cell is not None]
    return float(np.mean(known)) if known else None
