"""Estimators of mixtures behind one setting, for every method that blends clusters by them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Literal, get_args

import numpy as np

from artesian.algorithms.calibration import (
    COSINE,
    FEATURES,
    SMALL,
    Pretended,
    alike,
    divergence_of,
    features_of,
    fitted,
    mean_losses,
    pretend,
    shares_of,
    usual_sizes,
)
from artesian.algorithms.estimation import normalised, told_shares
from artesian.algorithms.gates import fitted as gate_of
from artesian.algorithms.gates import tried as gate_tried
from artesian.core import (
    BEFORE,
    OWN,
    Algorithm,
    ClientId,
    Cluster,
    ClusterId,
    Learner,
    Measured,
    Plan,
    State,
    Study,
    Task,
    Tree,
)
from artesian.errors import check
from artesian.params import Layout, Params, average, combine

Estimator = Literal["calibrated", "paper", "gate", "client", "oracle"]
ESTIMATORS: tuple[str, ...] = get_args(Estimator)
REMEMBERED = 101  # uploads by which the usual size of features is known, the newest
Losses = Mapping[ClusterId, float]


@dataclass(frozen=True)
class Calibration:
    """What an operator wants to know of a calibration, or of a gate."""

    version: int  # of the clusters it began with; a gate does not depend on them
    divergence: float  # of its estimates from the shares of pretend clients
    alike: tuple[tuple[ClusterId, ClusterId], ...]  # pairs of clusters that it cannot tell apart


@dataclass(frozen=True)
class Estimated:
    """The estimated mixture of an upload as shares of the clusters there are."""

    shares: np.ndarray
    notes: Mapping[str, float] = field(default_factory=dict)
    memory: Mapping[str, Tree] = field(default_factory=dict)  # what the state remembers of it


@dataclass(frozen=True, kw_only=True)
class Estimates(Algorithm):
    """A method that estimates mixtures: by CDFL's rule (`paper`), calibrated, or on the client: by a gate, a small
    classifier that comes with the task, or by all clusters (`client`). `oracle` is the truth.

    A calibration runs beside the uploads. It begins with the clusters of one version and is in force some folds later,
    so that the bits do not depend on how long it takes; a fold that would need it earlier waits.
    """

    estimator: Estimator = "paper"  # who estimates mixtures, and how
    first_pretend: int = 30  # pretend clients before anybody comes
    pretend: int = 12  # pretend clients of every later calibration
    pretend_window: int = 60  # of how many, the newest, a calibration is made
    calibrate_every: int = 100  # folds from one calibration to the next
    calibrate_lag: int = 20  # folds after which a calibration that has begun is in force
    matched: bool = field(default=True, metadata={BEFORE: False})  # are pretend and real uploads made alike?

    @abstractmethod
    def pull(self, state: State) -> float:
        """How strongly a client's training is held to the model it was given, from now on."""

    @abstractmethod
    def given_now(self, state: State, m: Measured) -> Params:
        """The blend that a client was given, made of the clusters as they are now."""

    def check_estimator(self) -> None:
        """Refuse numbers that cannot be."""
        rules = {
            f"estimator is one of {', '.join(ESTIMATORS)}": self.estimator in ESTIMATORS,
            "first_pretend is at least 2": self.first_pretend >= 2,
            "pretend is at least 1": self.pretend >= 1,
            "pretend_window is at least first_pretend": self.pretend_window >= self.first_pretend,
            "calibrate_lag is at least 1 and at most calibrate_every": 1 <= self.calibrate_lag <= self.calibrate_every,
        }
        check(self, rules)

    @property
    def recipes(self) -> tuple[str, ...]:  # type: ignore[override]
        return ("soft",) if self.estimator == "client" else ("train",)

    def task_of_all(self, state: State, mixture: Mapping[ClusterId, float] | None) -> Task:
        """All clusters, for a client that estimates itself."""
        models = {k: cluster.params for k, cluster in state.clusters.items()}
        return Task(models, "soft", {"prox": self.pull(state)}, mixture, returns=(OWN,), estimates=True)

    def task_of_one(
        self, state: State, blend: Params, mixture: Mapping[ClusterId, float] | None, memo: Tree = None
    ) -> Task:
        """One model, with the gate where the client estimates by one."""
        task = Task({"blend": blend}, settings={"prox": self.pull(state)}, mixture=mixture, memo=memo)
        if self.estimator != "gate" or state.memory.get("gate") is None:
            return task
        return replace(task, settings={**task.settings, "gate": state.memory["gate"], "clusters": list(state.clusters)})

    def fresh(self, state: State, client: ClientId) -> Task:
        """What it would be given, without what only a training needs."""
        return replace(self.draw(state, client), settings={})

    def shares_told(self, state: State, m: Measured) -> np.ndarray | None:
        """The mixture where nothing is left to estimate: of one cluster, of the client's own, of the oracle."""
        if len(state.clusters) == 1:
            return np.ones(1)
        if self.estimator in ("client", "gate"):  # whose learner cannot ask a gate sends nothing, and keeps its mixture
            told = shares_in(m.upload.mixture or state.members[m.upload.client].mixture or {}, state)
            known = state.memory.get("gate_tried") if self.estimator == "gate" else None
            return _evened(told, list(state.clusters), known["alike"]) if known is not None else told
        return told_shares(m.evidence, state.clusters) if self.estimator == "oracle" else None

    def calibrated(self, state: State, m: Measured, losses: Losses, stale: bool = False) -> Estimated:
        """The estimate of an upload with these losses; of a stale one it is made from losses alone."""
        names, known = list(state.clusters), state.memory["calibrated"]
        models = {k: state.clusters[k].params for k in names}
        before = {**known["trunk"], **losses_in(m.receipt.memo)}
        new, base, origin = m.upload.params, base_of(state.layout, m), None
        if matched := "usual" in known:  # what others have moved meanwhile says nothing of this client
            now, origin = self.given_now(state, m), average(state.layout, list(models.values()))
            new, base = combine(state.layout, [new, base, now], [1.0, -1.0, 1.0]), now
        features = features_of(state.layout, new, base, models, losses, before, origin)
        sizes = np.concatenate([state.memory.get("sizes", np.zeros((0, FEATURES))), usual_sizes(features[None])[None]])
        coefficients = np.asarray(known["coefficients"]) * (_held(known["usual"], sizes) if matched else 1.0)
        if stale:
            features[:, 2:] = 0.0  # the clusters have moved too far for distances and directions
        shares = shares_of(coefficients, features)
        notes = {"alike": len(known["alike"]), "calibration": known["divergence"]}
        memory = {"sizes": sizes[-REMEMBERED:]} if matched and not stale else {}
        return Estimated(_evened(shares, names, known["alike"]), notes, memory)

    def calibration(self, memory: Mapping[str, Tree]) -> Calibration | None:
        """The calibration that a state's memory holds, or that a study found; or what a gate is worth."""
        known = memory.get({"calibrated": "calibrated", "gate": "gate_tried"}.get(self.estimator, ""))
        if known is None:
            return None
        pairs = tuple((one, two) for one, two in known["alike"])
        return Calibration(int(known["version"]), float(known["divergence"]), pairs)

    def due(self, state: State) -> dict[str, Tree]:
        """What the next calibration begins with, if it is due."""
        known = state.memory.get("calibrated")
        if self.estimator != "calibrated" or known is None or state.memory["begun"] is not None:
            return {}
        waited = state.version - int(known["version"])
        if waited < self.calibrate_every:
            return {}
        begun = _begun(state.version, state.clusters)
        return {"begun": {**begun, "samples": _usual_samples(state)} if self.matched else begun}

    def study(self, state: State) -> Study | None:
        """The calibration that has begun; where there is none at all, or no gate, one that the next fold needs."""
        if self.estimator not in ("calibrated", "gate") or len(state.clusters) == 1:
            return None
        first, begun = state.memory.get(self.estimator) is None, state.memory.get("begun")
        if begun is None and not first:
            return None
        begun = begun or _begun(state.version, state.clusters)
        version = int(begun["version"])
        clusters = {k: Cluster(params) for k, params in begun["clusters"].items()}
        needed = version if first else version + self.calibrate_lag
        return Study(State(state.layout, clusters, version=version, seed=state.seed, memory=state.memory), needed)

    def find(self, state: State, proxies: Mapping[ClusterId, Learner], plan: Plan) -> dict[str, Tree]:
        """Coefficients fitted to the newest pretend clients, and which clusters they cannot tell apart; or a gate."""
        names, before = list(state.clusters), state.memory.get("calibrated")
        own = {k: proxies[k] for k in names}
        if self.estimator == "gate":
            gate = gate_of(own)
            worth = _worth(*gate_tried(gate, own, self.first_pretend, state.seed), names)
            return {"gate": gate.text, "gate_tried": {"version": state.version, **worth}, "begun": None}
        if before is not None and ("usual" in before) != self.matched:
            before = None  # made in another way
        trunk = average(state.layout, [cluster.params for cluster in state.clusters.values()])
        count, origin = self.first_pretend if before is None else self.pretend, trunk if self.matched else None
        known = new = pretend(state, own, plan, count, self.pull(state), _samples_begun(state), origin)
        if before is not None:
            known = Pretended(before["features"], before["shares"]).then(new).newest(self.pretend_window)
        coefficients = fitted(known)
        found = {
            "version": state.version,
            "coefficients": coefficients,
            **_worth(shares_of(coefficients, known.features), known.shares, names),
            "trunk": mean_losses(trunk, own),
            "features": known.features,
            "shares": known.shares,
            **({"usual": usual_sizes(new.features)} if self.matched else {}),
        }
        return {"calibrated": found, "begun": None}


def losses_in(memo: Tree) -> Losses:
    """What the model a client was given had as losses on the proxies, if that was found."""
    return (memo or {}).get("losses") or {}


def mixture_of(state: State, client: ClientId) -> dict[ClusterId, float] | None:
    """The newest estimate of a client, over the clusters there are; None for a newcomer."""
    member = state.members.get(client)
    if member is None or not member.mixture:
        return None
    return dict(zip(state.clusters, shares_in(member.mixture, state).tolist(), strict=True))


def shares_in(mixture: Mapping[ClusterId, float], state: State) -> np.ndarray:
    """A mixture as shares of the clusters there are, which sum to 1."""
    return normalised(np.array([mixture.get(k, 0.0) for k in state.clusters]))


def base_of(layout: Layout, m: Measured) -> Params:
    """The model a client began with: the only one it was given, or its blend of all."""
    models = list(m.given.values())
    if len(models) == 1:
        return models[0]
    shares = normalised(np.array([(m.upload.mixture or {}).get(k, 0.0) for k in m.given]))
    return combine(layout, models, shares.tolist())


def _begun(version: int, clusters: Mapping[ClusterId, Cluster]) -> dict[str, Tree]:
    return {"version": version, "clusters": {k: cluster.params for k, cluster in clusters.items()}}


def _usual_samples(state: State) -> int:
    """How many samples clients usually say they have."""
    return round(median(member.samples for member in state.members.values()))


def _samples_begun(state: State) -> int:
    """The same as it was when the calibration began; 0 where nobody asked."""
    return int((state.memory.get("begun") or {}).get("samples", 0))


def _held(usual: Sequence[float], sizes: np.ndarray) -> np.ndarray:
    """By how much each feature counts less: the cosine, where real trainings go straighter than pretend ones."""
    held, real = np.ones(FEATURES), float(np.median(sizes[:, COSINE]))
    if SMALL < usual[COSINE] < real:  # clusters that are all the same have no directions
        held[COSINE] = usual[COSINE] / real
    return held


def _worth(guessed: np.ndarray, true: np.ndarray, names: Sequence[ClusterId]) -> dict[str, Tree]:
    """How far estimates are from the true shares, and which clusters they cannot tell apart."""
    pairs = [list(pair) for pair in alike(guessed, true, names)]
    return {"alike": pairs, "divergence": divergence_of(guessed, true)}


def _evened(shares: np.ndarray, names: Sequence[ClusterId], pairs: Sequence[Sequence[ClusterId]]) -> np.ndarray:
    """The shares, those of clusters that cannot be told apart made equal."""
    groups = {k: {k} for k in names}
    for one, two in pairs:
        together = groups[one] | groups[two]
        groups.update(dict.fromkeys(together, together))
    return np.array([np.mean([shares[names.index(other)] for other in sorted(groups[k])]) for k in names])
