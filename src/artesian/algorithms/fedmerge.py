"""FedMerge (Chen et al. 2026), and FedMerge-Async: every client trains one merger of d models, with weights of its own.

The server sends a client the d models merged into one by the client's weights. What the training changed is taken over
by every model, by the same weights. The weights learn too: models that lie where the training went gain.

Paper line -> method: "theta_i = sum_j w_ij Theta_j, w_i = softmax(W_i)" -> `task`; "g_i = theta_i - trained model" and
"Theta_j <- Theta_j - sum_i w'_ij g_i" -> `_moved`; "w'_ij = w_ij / sum_i w_ij" -> `FedMerge.fold`;
"W_ij <- W_ij - eta_w w_ij <Theta_j - theta_i, g_i>" -> `_steps`, `_learnt`.
Differs from the paper: eta_w is 1 unless it is set, since we have no printed value; the inner product sees the last
layer unless `inner` says otherwise, as in the authors' code; models and weights step from the same point, where that
code moves the weights first; who has no samples does not count; statistics of BatchNorm are averaged, since their
changes could make a variance negative; the stream has no paper: there a model takes w_ij g_i times a mixing rate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from artesian.algorithms.settings import InRoundsAfterAll, MixesUploads, only
from artesian.algorithms.starts import Initial, check_count, different
from artesian.core import Algorithm, Buffers, ClientId, Matrix, Measured, State, Step, Task
from artesian.engine.pace import Stream
from artesian.errors import check
from artesian.params import Layout, Params, blended, combine, keep_buffers, last_layer


@dataclass(frozen=True)
class _Merging(Algorithm):
    """Models merged by clients' weights, and how both learn: what both forms share."""

    needs_given = True
    clusters: int | None = None  # d; None: as many as the start has models
    initial: Initial = "start"  # the models of the start, or random ones
    eta_w: float = 1.0  # eta_w, rate of the weights' logits
    scaled: bool = False  # True: eta_w is the largest step of a logit in a fold, as in the authors' code, with 0.01
    inner: Literal["last", "all"] = "last"  # what the weights' step sees: the last layer, or all trainable entries
    rho: float = 0.0  # pull of a client's training towards the merged model
    buffers: Buffers = "average"

    def __post_init__(self) -> None:
        check_count(self.clusters)
        rules = {
            "eta_w is at least 0": self.eta_w >= 0,
            "inner is last or all": self.inner in ("last", "all"),
            "rho is at least 0": self.rho >= 0,
        }
        check(self, rules)
        self.pace()

    def init(self, layout: Layout, start: Sequence[Params], seed: int) -> State:
        return State(layout, different("FedMerge", layout, start, self.clusters, self.initial, seed), seed=seed)

    def task(self, state: State, client: ClientId) -> Task:
        """The models merged by the client's weights; a newcomer's are even."""
        mixture = state.members[client].mixture if client in state.members else None
        models = {k: cluster.params for k, cluster in state.clusters.items()}
        return Task({"blend": blended(state.layout, models, mixture)}, settings={"prox": self.rho}, mixture=mixture)

    def matrices(self, state: State) -> dict[str, Matrix]:
        """w: the weight of every model for each client that uploaded."""
        known = tuple(client for client, member in state.members.items() if member.mixture)
        return {"importance": Matrix(known, tuple(state.clusters), _weights(state, known))} if known else {}

    def _learnt(self, state: State, measured: Sequence[Measured], weights: np.ndarray, shares: np.ndarray) -> Step:
        """Every model after it took these shares of the changes, and the clients' new weights: the softmax of W."""
        changed = {
            k: _moved(state.layout, cluster.params, measured, shares[:, j].tolist())
            for j, (k, cluster) in enumerate(state.clusters.items())
            if shares[:, j].any()
        }
        steps = self._steps(state, measured, weights)
        with np.errstate(divide="ignore"):  # a weight that has vanished stays 0
            logits = np.log(weights) - steps
        new = np.exp(logits - logits.max(axis=1, keepdims=True))
        rows = (new / new.sum(axis=1, keepdims=True)).tolist()
        clients = [m.upload.client for m in measured]
        mixtures = {c: dict(zip(state.clusters, row, strict=True)) for c, row in zip(clients, rows, strict=True)}
        return Step(changed, mixtures, notes={"largest_step": float(np.abs(steps).max())})

    def _steps(self, state: State, measured: Sequence[Measured], weights: np.ndarray) -> np.ndarray:
        """eta_w w_ij <Theta_j - theta_i, g_i>, or all of them scaled so that the largest is eta_w."""
        places = _places(state.layout, self.inner)
        models = [cluster.params for cluster in state.clusters.values()]
        slopes = weights * [[_inner(model, m, places) for model in models] for m in measured]
        largest = np.abs(slopes).max() if self.scaled else 1.0
        return self.eta_w * slopes / (largest or 1.0)


@dataclass(frozen=True)
class FedMerge(_Merging, InRoundsAfterAll):
    """FedMerge (Chen et al. 2026) in rounds: a model takes the mean change of the cohort, by the clients' weights."""

    name: ClassVar[str] = "fedmerge"

    def fold(self, state: State, measured: Sequence[Measured]) -> Step:
        counted = [m for m in measured if m.upload.samples]
        if not counted:
            return Step()
        weights = _weights(state, [m.upload.client for m in counted])
        totals = weights.sum(axis=0)
        return self._learnt(state, counted, weights, weights / np.where(totals > 0, totals, 1.0))


@dataclass(frozen=True)
class FedMergeAsync(_Merging, MixesUploads):
    """FedMerge as a stream: every upload moves all models at once, by the client's weights and a mixing rate."""

    name: ClassVar[str] = "fedmerge-async"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_mixing()

    def fold(self, state: State, measured: Sequence[Measured]) -> Step:
        m = only(measured, "FedMerge-Async")
        late = state.version - m.receipt.base
        notes = {"stale": float(self.too_late(late)), "staleness": float(late)}
        if self.too_late(late) or not m.upload.samples:
            return Step(notes=notes)
        weights = _weights(state, [m.upload.client])
        step = self._learnt(state, [m], weights, self.rate(late) * weights)
        return Step(step.clusters, step.mixtures, notes={**notes, **step.notes})

    def pace(self) -> Stream:
        return Stream()


def _weights(state: State, clients: Sequence[ClientId]) -> np.ndarray:
    """w, a row for each client: even for newcomers."""
    names = list(state.clusters)
    known = [state.members[client].mixture or dict.fromkeys(names, 1 / len(names)) for client in clients]
    return np.array([[mixture.get(k, 0.0) for k in names] for mixture in known])


def _moved(layout: Layout, old: Params, measured: Sequence[Measured], shares: Sequence[float]) -> Params:
    """A model that takes these shares of the clients' changes; of their statistics it takes the mean by them."""
    sent, given = [m.upload.params for m in measured], [_given(m) for m in measured]
    new = combine(layout, (old, *given, *sent), (1.0, *(-share for share in shares), *shares))
    if layout.trainable == layout.size:
        return new
    return keep_buffers(layout, combine(layout, (old, *sent), (1 - sum(shares), *shares)), new)


def _places(layout: Layout, inner: Literal["last", "all"]) -> list[slice]:
    """Where a vector holds what the inner product sees."""
    names = {entry.name for entry in layout.entries if entry.trainable} if inner == "all" else set(last_layer(layout))
    entries = zip(layout.entries, layout.offsets, strict=True)
    return [slice(offset, offset + entry.slots) for entry, offset in entries if entry.name in names]


def _inner(model: Params, m: Measured, places: Sequence[slice]) -> float:
    """<Theta_j - theta_i, g_i> over these places."""
    given, sent, total = _given(m), m.upload.params, 0.0
    for part in places:
        apart = np.subtract(model[part], given[part], dtype=np.float64)
        total += float((apart * np.subtract(given[part], sent[part], dtype=np.float64)).sum())
    return total


def _given(m: Measured) -> Params:
    (given,) = m.given.values()
    return given
