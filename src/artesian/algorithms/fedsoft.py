"""FedSoft (Ruan and Joe-Wong 2022): soft clusters in rounds; every client trains one personal model near all centres.

Every so many rounds each client counts which centre fits each of its samples best: its importance weights. For every
centre some clients are drawn by these weights. Each of those drawn trains its own model once, pulled towards all
centres by its weights, and a centre becomes the plain mean of the models drawn for it.

Paper line -> method: "u_ks = max(n_ks/n_k, sigma)", "f_k + lambda/2 sum_s u_ks ||w_k - c_s||^2" -> recipe `soft`;
"v_sk", "Sel_s" -> `_selection`, drawn by the fold before the round; "c_s <- mean of Sel_s", "sum_k v_sk w_k" -> `fold`.
Differs from the paper: v runs over all clients with an estimate who answered their last task, as in public code, not
over the set that is drawn by it; an estimation is a round of the pace; a personal model begins at the even blend of the
centres a client first sees, and is trained by a fresh optimiser every time; centres that begin the same are refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from artesian.algorithms.settings import WaitsForAll
from artesian.algorithms.starts import Initial, check_count, different
from artesian.core import (
    ESTIMATE_ONLY,
    OWN,
    Buffers,
    ClientId,
    ClusterId,
    Matrix,
    Measured,
    Mixture,
    State,
    Step,
    Task,
    Upload,
)
from artesian.engine.pace import Rounds
from artesian.errors import SettingError, check
from artesian.params import Layout, Params, average


@dataclass(frozen=True)
class FedSoft(WaitsForAll):
    """Phases of estimation, and rounds in which those drawn train."""

    name: ClassVar[str] = "fedsoft"
    recipes: ClassVar[tuple[str, ...]] = ("soft",)
    no_draw: ClassVar[str] = "its clients predict with personal models, which change only when they train"
    clusters: int | None = None  # S; None: as many as the start has models
    initial: Initial = "start"  # the models of the start, or random ones
    estimation_interval: int = 2  # tau, training rounds from one estimation to the next
    selection_size: int = 60  # K_c, clients drawn for every centre
    sigma: float = 1e-4  # the smallest importance weight
    reg_weight: float = 0.1  # lambda, the pull towards the centres
    do_selection: bool = True  # False: everybody trains, and centres are means weighted by v
    estimation_work: float = 0.1  # of an estimation, as a share of a training's time; the simulator's business
    quorum: int | None = None  # how many must wait before a round begins; None: one
    patience: float | None = None  # how long a round waits for its last clients
    buffers: Buffers = "average"

    def __post_init__(self) -> None:
        check_count(self.clusters)
        rules = {
            "estimation_interval is at least 1": self.estimation_interval >= 1,
            "selection_size is at least 1": self.selection_size >= 1,
            "sigma is in [0, 1]": 0 <= self.sigma <= 1,
            "reg_weight is at least 0": self.reg_weight >= 0,
            "estimation_work is at least 0": self.estimation_work >= 0,
        }
        check(self, rules)
        self.pace()

    def init(self, layout: Layout, start: Sequence[Params], seed: int) -> State:
        """`trained` counts training rounds, `estimated` is its value at the last estimation."""
        clusters = different("FedSoft", layout, start, self.clusters, self.initial, seed)
        memory = {"trained": 0, "estimated": -1, "selected": {}}
        return State(layout, clusters, seed=seed, memory=memory)

    def task(self, state: State, client: ClientId) -> Task:
        """All centres: to train near them for whoever is drawn, to estimate by them for others."""
        settings: dict[str, Any] = {"personal": True, "normalise": False, "sigma": self.sigma, "prox": self.reg_weight}
        if self._is_due(state) or not any(client in drawn for drawn in state.memory["selected"].values()):
            settings |= {ESTIMATE_ONLY: True, "work": self.estimation_work}
        models = {k: cluster.params for k, cluster in state.clusters.items()}
        mixture = state.members[client].mixture if client in state.members else None
        returns = () if settings.get(ESTIMATE_ONLY) else (OWN,)
        return Task(models, "soft", settings, mixture, returns=returns, estimates=True)

    def fold(self, state: State, measured: Sequence[Measured]) -> Step:
        trained = [m.upload for m in measured if m.upload.models]
        if any(m.receipt.base != state.version for m in measured) or len(trained) not in (0, len(measured)):
            raise SettingError(
                "FedSoft got estimates and trainings in one fold",
                "Leave the pace to FedSoft: in its rounds all estimate, or all train",
            )
        rounds = state.memory["trained"] + bool(trained)
        told = {} if trained else {m.upload.client: m.upload.mixture or {} for m in measured}
        estimated = state.memory["estimated"] if trained else rounds
        memory = {"trained": rounds, "estimated": estimated, "selected": self._selection(state, told)}
        notes = {"training_rounds": float(bool(trained)), "estimation_rounds": float(not trained)}
        return Step(self._centres(state, trained), told, memory, notes)

    def pace(self) -> Rounds:
        return Rounds(None, self.quorum, self.patience, self._select, self.first_round)

    def matrices(self, state: State) -> dict[str, Matrix]:
        """u and v: how important each cluster is to a client, and with which probability it is drawn for it."""
        known = _estimates(state, {})
        if not known:
            return {}
        names = tuple(known), tuple(state.clusters)
        importance = np.array([[mixture.get(k, 0.0) for k in names[1]] for mixture in known.values()])
        selection = np.stack([_chances(state, known, k) for k in names[1]], axis=1)
        return {"importance": Matrix(*names, importance), "selection": Matrix(*names, selection)}

    def _is_due(self, state: State) -> bool:
        trained: int = state.memory["trained"]
        return trained % self.estimation_interval == 0 and state.memory["estimated"] != trained

    def _select(self, state: State, ready: Sequence[ClientId]) -> Sequence[ClientId]:
        """Everybody to an estimation; else those drawn, and where none of them is there, an estimation is put in."""
        drawn = set() if self._is_due(state) else _drawn(state)
        return [client for client in ready if client in drawn] or ready

    def _selection(self, state: State, told: Mapping[ClientId, Mixture]) -> dict[ClusterId, list[ClientId]]:
        """Sel_s: for every centre, clients drawn without replacement with the probabilities v_s."""
        known = _estimates(state, told)
        if not self.do_selection or not known:
            return {k: list(known) for k in state.clusters}
        drawn: dict[ClusterId, list[ClientId]] = {}
        for i, k in enumerate(state.clusters):
            chances = _chances(state, known, k)
            size = min(self.selection_size, int(np.count_nonzero(chances)))
            chosen = state.rng("selection", i).choice(len(known), size, replace=False, p=chances)
            drawn[k] = [list(known)[c] for c in sorted(chosen.tolist())]
        return drawn

    def _centres(self, state: State, trained: Sequence[Upload]) -> dict[ClusterId, Params]:
        """Each the mean of those drawn for it who answered; it stays where nobody did."""
        changed = {}
        for k in state.clusters:
            drawn = set(state.memory["selected"].get(k, ()))
            uploads = [upload for upload in trained if upload.client in drawn]
            if uploads:
                known = {upload.client: state.members[upload.client].mixture or {} for upload in uploads}
                weights = None if self.do_selection else _chances(state, known, k).tolist()
                changed[k] = average(state.layout, [upload.params for upload in uploads], weights)
        return changed


def _drawn(state: State) -> set[ClientId]:
    """Everybody who is drawn for some centre."""
    return {client for clients in state.memory["selected"].values() for client in clients}


def _estimates(state: State, told: Mapping[ClientId, Mixture]) -> dict[ClientId, Mixture]:
    """The importance weights of all who are there and answered their last task; those just sent are the newest."""
    there = sorted(c for c, member in state.members.items() if member.present and member.answered == member.number)
    known = {client: told.get(client, state.members[client].mixture) for client in there}
    return {client: mixture for client, mixture in known.items() if mixture is not None}


def _chances(state: State, known: Mapping[ClientId, Mixture], centre: ClusterId) -> np.ndarray:
    """v_s: u_ks n_k over its sum; even where that is no probability."""
    weights = np.array([state.members[c].samples * mixture.get(centre, 0.0) for c, mixture in known.items()])
    total = weights.sum()
    chances: np.ndarray = weights / total if total > 0 else np.full(len(weights), 1 / len(weights))
    return chances
