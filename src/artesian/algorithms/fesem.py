"""FeSEM, multi-center federated learning (Long et al. 2022): k-means over the clients' weights, in rounds.

The server keeps the weights every client uploaded last. After each round every client belongs to the centre nearest
to its weights, and every centre becomes the plain mean of its clients' weights. A client downloads its own centre only,
trains it, and uploads.

Paper line -> method: "r_i = argmin_k ||W_i - W^(k)||" (E) -> `_nearest`; "W^(k) = mean of its clients" (M) ->
`_centred`; FlexCFL's FeSEM-MIG, "a shifted client is re-scheduled by the method's own rule" -> `moved`, with `migrate`.
Differs from the paper: by default the centres are found by k-means++ on the weights after one local training of
everybody, where the paper's code takes the first K clients; `centres = "random"` takes the K start models, as FlexCFL
does, and everybody falls to the same centre. Distances see all trainable weights, not one layer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np

from artesian.algorithms.clustering import kmeans_groups
from artesian.algorithms.membership import home, home_task
from artesian.algorithms.settings import InRoundsAfterAll
from artesian.core import ClientId, Cluster, ClusterId, Measured, State, Step, Task, Tree
from artesian.engine.pace import Rounds
from artesian.errors import SettingError, check
from artesian.params import Layout, Params, average, distance


@dataclass(frozen=True)
class FeSEM(InRoundsAfterAll):
    """Centres are means of weights; every client goes to the nearest."""

    name: ClassVar[str] = "fesem"
    clusters: int | None = None  # K; None: as many as start models
    centres: Literal["kmeans", "random"] = "kmeans"  # where the centres come from
    migrate: bool = False  # FeSEM-MIG: whoever's data changed looks for its centre at once

    def __post_init__(self) -> None:
        rules = {
            "clusters is at least 1": self.clusters is None or self.clusters >= 1,
            "centres is kmeans or random": self.centres in ("kmeans", "random"),
        }
        check(self, rules)
        self.pace()

    def init(self, layout: Layout, start: Sequence[Params], seed: int) -> State:
        count = self.clusters or len(start)
        self._check(count, start)
        origin = average(layout, start)
        models = start[:count] if self.centres == "random" else [origin] * count
        memory = {"weights": {}, "begun": self.centres == "random", "origin": origin}
        return State(layout, {f"k{i}": Cluster(params) for i, params in enumerate(models)}, seed=seed, memory=memory)

    def _check(self, count: int, start: Sequence[Params]) -> None:
        if self.first_round is not None and count > self.first_round:
            raise SettingError(
                f"FeSEM has {count} centres for {self.first_round} clients",
                "Lower clusters, or raise the number of clients",
            )
        if self.centres == "random" and len({params.tobytes() for params in start[:count]}) < count:
            raise SettingError(
                f"There are {len({params.tobytes() for params in start})} different start models for {count} centres",
                'Lower clusters, give other start models, or set centres = "kmeans"',
            )

    def task(self, state: State, client: ClientId) -> Task:
        """The client's centre; before its first upload the mean of all, or the one nearest to the common start."""
        if home(state, client) is None and self.centres == "random":
            centre = _nearest(state.layout, state.memory["origin"], _models(state))
            return Task({centre: state.clusters[centre].params})
        return home_task(state, client)

    def moved(self, state: State, client: ClientId) -> Task | None:
        """One training of its present centre, after which its weights decide anew."""
        known = self.migrate and state.members[client].mixture
        return home_task(state, client) if known else None

    def fold(self, state: State, measured: Sequence[Measured]) -> Step:
        new = {m.upload.client: m.upload.params for m in measured}
        last = state.memory["weights"]
        weights = {c: w for c, w in last.items() if state.members[c].present} | new
        if not state.memory["begun"]:
            return self._begin(state, weights)
        alone = all(m.receipt.solo for m in measured)  # a client that moved: the centres stand
        homes = {c: _nearest(state.layout, w, _models(state)) for c, w in (new if alone else weights).items()}
        centres = {} if alone else _centred(state.layout, weights, homes)
        return _step(state, centres, homes, {"weights": weights})

    def _begin(self, state: State, weights: Mapping[ClientId, Params]) -> Step:
        """The first centres, once there are as many clients; until then all centres are one mean."""
        clients, names = sorted(weights), list(state.clusters)
        if len(clients) < len(names):
            mean = average(state.layout, [weights[client] for client in clients])
            return Step(dict.fromkeys(names, mean), memory={"weights": weights})
        points = np.stack([weights[client][: state.layout.trainable] for client in clients])
        labels = kmeans_groups(points, len(names), int(state.rng("centres").integers(1 << 31))).tolist()
        named = dict(zip(dict.fromkeys(labels), names, strict=True))  # in order of appearance; no group is empty
        homes = {client: named[label] for client, label in zip(clients, labels, strict=True)}
        memory = {"weights": weights, "begun": True}
        return _step(state, _centred(state.layout, weights, homes), homes, memory)

    def pace(self) -> Rounds:
        return replace(super().pace(), select=self._cohort)

    def _cohort(self, state: State, ready: Sequence[ClientId]) -> Sequence[ClientId]:
        """Everybody until there are centres; then a cohort."""
        if self.clients_per_round is None or not state.memory["begun"]:
            return ready
        given = sum(member.number for member in state.members.values())
        count = min(self.clients_per_round, len(ready))
        chosen = state.rng("cohort", given).choice(len(ready), count, replace=False)
        return [ready[i] for i in sorted(chosen.tolist())]


def _models(state: State) -> dict[ClusterId, Params]:
    return {k: cluster.params for k, cluster in state.clusters.items()}


def _nearest(layout: Layout, params: Params, centres: Mapping[ClusterId, Params]) -> ClusterId:
    """The centre at the smallest distance; ties to the first."""
    return min(centres, key=lambda k: distance(layout, params, centres[k]))


def _centred(
    layout: Layout, weights: Mapping[ClientId, Params], homes: Mapping[ClientId, ClusterId]
) -> dict[ClusterId, Params]:
    """The plain mean of every centre's clients; a centre without any is not in it, and stays."""
    return {
        k: average(layout, [weights[client] for client in sorted(homes) if homes[client] == k])
        for k in sorted(set(homes.values()))
    }


def _step(
    state: State, centres: Mapping[ClusterId, Params], homes: Mapping[ClientId, ClusterId], memory: Mapping[str, Tree]
) -> Step:
    moved = {c: {k: 1.0} for c, k in homes.items() if state.members[c].mixture != {k: 1.0}}
    return Step(centres, moved, memory, notes={"moved": len(moved)})
