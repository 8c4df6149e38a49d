"""FlexCFL (Duan et al. 2022) and FedGroup, which is FlexCFL without migration: groups by the direction of a training.

Before the first round some clients train from a common model w_0; clustering their changes makes the groups, and the
mean change of a group is its direction, fixed for ever. Any other client, when it is first drawn, trains shortly from
w_0 and joins the group whose direction is nearest to its own change; with FlexCFL it looks again when its labels have
changed. Every group then runs FedAvg, and the groups may lean on each other a little.

Paper line -> method: "group cold start" -> `_start_groups`, its EDC -> `edc_points`, its MADC -> `madc`; "client cold
start" and the shift test -> recipe `match`, its answer -> `_place`; "w_g <- sum n_i/n w_i" -> `_train_groups`;
"w_g + eta_g sum w_l/||w_l||" -> `_lean`; "S_t" -> `_cohort`.
Differs from the paper: groups start at w_0 + direction (`group_start`); the inter-group step is normalised, because the
literal one diverges; the shift test counts changed samples, since the code's distance is blind to which label is which,
and a fifth exactly counts as shifted; n_i is the present number of samples; an empty group is seeded anew; the first
tour visits those who were never given anything; the embedding comes from the products of the changes, never from
their matrix, which would be as large as all of them; pre-trainings are counted in epochs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np

from artesian.algorithms.clustering import cosines, kmeans_groups, left_singular, linked_groups, square
from artesian.algorithms.directions import DISTANCES, ORIGIN, directions_digest
from artesian.algorithms.settings import InRoundsAfterAll
from artesian.core import (
    ESTIMATE_ONLY,
    ClientId,
    Cluster,
    ClusterId,
    Matrix,
    Measured,
    Mixture,
    State,
    Step,
    Task,
    derive,
    generator,
)
from artesian.engine.pace import Rounds
from artesian.errors import BadMixture, SettingError, check
from artesian.params import Layout, Params, average, combine, distance, keep_buffers, norm

Models = Mapping[ClusterId, Params]
COLD = "cold"  # the memo of a task of the group cold start
ITERATIONS = 20  # of k-means
PRETRAINING = 0.1  # of a usual training, in virtual time


@dataclass(frozen=True)
class FedGroup(InRoundsAfterAll):
    """FedGroup (Duan et al. 2021): groups by direction; whoever has a group stays in it."""

    name: ClassVar[str] = "fedgroup"
    recipes: ClassVar[tuple[str, ...]] = ("match", "train")
    migrates: ClassVar[bool] = False
    groups: int | None = None  # m; None: one per start model, and no more than clients in the cold start
    pretrain_scale: int = 20  # alpha: alpha m clients make the groups
    proximity: Literal["EDC", "MADC"] = "EDC"  # by which changes are clustered
    group_pretrain: int | None = None  # epochs of the group cold start; None: a whole training, E
    client_pretrain: int = 1  # epochs of the client cold start
    group_start: Literal["direction", "w0"] = "direction"  # a group begins at w_0 + direction, or at w_0
    inter_group_lr: float = 0.0  # eta_g; 0: groups keep apart
    inter_group_normalise: bool = True  # divide by 1 + eta_g sum 1/||w_l||; the paper's own form does not
    random_centers: bool = False  # RCC: m random clients are the groups
    random_assign: bool = False  # RAC: a client that was not clustered goes anywhere, and stays
    selection: Literal["round-robin", "random"] = "round-robin"  # who was never drawn goes first
    clients_per_round: int | None = 10  # K_c; None: everybody who waits

    def __post_init__(self) -> None:
        rules = {
            "groups is at least 1": self.groups is None or self.groups >= 1,
            "pretrain_scale is at least 1": self.pretrain_scale >= 1,
            "proximity is EDC or MADC": self.proximity in ("EDC", "MADC"),
            "group_pretrain is at least 1": self.group_pretrain is None or self.group_pretrain >= 1,
            "client_pretrain is at least 1": self.client_pretrain >= 1,
            "group_start is direction or w0": self.group_start in ("direction", "w0"),
            "inter_group_lr is at least 0": self.inter_group_lr >= 0,
            "selection is round-robin or random": self.selection in ("round-robin", "random"),
        }
        check(self, rules)
        if self.groups and self.first_round and self.groups > self.first_round:
            got = f"{self.groups} groups of {self.first_round} clients"
            raise SettingError(f"There are {got}, and every group begins with a client", "Lower groups, or add clients")
        self.pace()

    def init(self, layout: Layout, start: Sequence[Params], seed: int) -> State:
        """All groups at w_0 until the cold start."""
        origin = average(layout, start)
        clusters = {f"k{i}": Cluster(origin) for i in range(self.groups or len(start))}
        memory: dict[str, Any] = {"origin": origin, "directions": {}, "digest": "", "holds": {}, "checked": {}}
        return State(layout, clusters, seed=seed, memory=memory)

    def task(self, state: State, client: ClientId) -> Task:
        """The cold start; or, where its group is open, to look for it; or the training of its group's model."""
        if not state.memory["directions"]:
            return Task({ORIGIN: state.memory["origin"]}, settings=self._pretraining(), memo=COLD)
        group = self._group(state, client)
        if group is None or (self._checks and client not in state.memory["checked"]):
            return self._match(state, client)
        return Task({group: state.clusters[group].params}, settings={"keep": True} if self._checks else {})

    def draw(self, state: State, client: ClientId) -> Task:
        """The newest model of its group; before it has one, the mean of all groups."""
        group = _assigned(state, client)
        if group is not None:
            return Task({group: state.clusters[group].params})
        if not state.memory["directions"]:
            return Task({ORIGIN: state.memory["origin"]})
        return Task({ORIGIN: average(state.layout, [cluster.params for cluster in state.clusters.values()])})

    def fold(self, state: State, measured: Sequence[Measured]) -> Step:
        if not state.memory["directions"]:
            return self._start_groups(state, measured)
        if measured[0].receipt.recipe == "match":
            return self._place(state, measured[0])
        return self._train_groups(state, [m for m in measured if m.receipt.memo != COLD])

    def matrices(self, state: State) -> dict[str, Matrix]:
        """The cosines of the directions in which the groups set out."""
        directions: Models = state.memory["directions"]
        return {"directions": square(list(directions), cosines(state.layout, list(directions.values())))}

    def pace(self) -> Rounds:
        first = max(self.groups or 1, self.first_round or 1)
        return replace(super().pace(), select=self._cohort, first=first)

    # what a client is asked

    @property
    def _checks(self) -> bool:
        """Does every client compare its labels before it trains?"""
        return self.migrates and not self.random_assign

    def _pretraining(self) -> dict[str, Any]:
        told: dict[str, Any] = {"delta": True}
        if self._checks:
            told |= {"keep": True, "labels": True}
        return told if self.group_pretrain is None else {**told, "epochs": self.group_pretrain}

    def _match(self, state: State, client: ClientId) -> Task:
        """The search for a group: whoever holds the directions gets their digest, anybody else is sent them."""
        memory, sent = state.memory, client not in state.memory["holds"]
        models = {ORIGIN: memory["origin"], **memory["directions"]} if sent else {}
        settings = {
            ESTIMATE_ONLY: True,
            "epochs": self.client_pretrain,
            "directions": memory["digest"],
            "work": PRETRAINING if sent else 0.0,
            **self._watching(),
        }
        mixture = state.members[client].mixture
        return Task(models, "match", settings, mixture, solo=True, returns=(), estimates=True)

    def _watching(self) -> dict[str, Any]:
        return {}

    def _group(self, state: State, client: ClientId) -> ClusterId | None:
        """Where a client belongs; with RAC everybody belongs somewhere."""
        group = _assigned(state, client)
        if group is None and self.random_assign:
            names = list(state.clusters)
            return names[derive(state.seed, "group", client) % len(names)]
        return group

    def _cohort(self, state: State, ready: Sequence[ClientId]) -> Sequence[ClientId]:
        """The clients of the cold start; later, those never given anything first, then anybody."""
        numbers = {client: state.members[client].number for client in ready}
        order = generator(state.seed, "cohort", state.version, sum(numbers.values())).permutation(len(ready))
        drawn = [ready[i] for i in order.tolist()]
        if state.memory["directions"]:
            size = self.clients_per_round or len(ready)
            if self.selection == "round-robin":
                drawn = [c for c in ready if not numbers[c]] + [c for c in drawn if numbers[c]]
        elif len(ready) < (self.groups or 1):
            return ()
        else:
            size = len(state.clusters) * (1 if self.random_centers else self.pretrain_scale)
        return sorted(drawn[:size])

    # what its answer changes

    def _start_groups(self, state: State, measured: Sequence[Measured]) -> Step:
        """Cluster the changes; too few for the groups wanted: the cold start begins again."""
        names = list(state.clusters)
        if self.groups is not None and len(measured) < self.groups:
            return Step(notes={"failed_starts": 1})
        names, gone = names[: len(measured)], names[len(measured) :]
        changes = [m.upload.params for m in measured]
        labels = self._clustered(state, changes, len(names))
        origin: Params = state.memory["origin"]
        ways = {k: average(state.layout, _pick(changes, labels, j)) for j, k in enumerate(names)}
        models = {k: combine(state.layout, (origin, way), (1.0, 1.0), newest=1) for k, way in ways.items()}
        return Step(
            models if self.group_start == "direction" else dict.fromkeys(names, origin),
            {m.upload.client: {names[label]: 1.0} for m, label in zip(measured, labels, strict=True)},
            {"directions": ways, "digest": directions_digest(origin, ways)},
            {"largest_group": max(np.bincount(labels).tolist())},
            gone=tuple(gone),
        )

    def _clustered(self, state: State, changes: Sequence[Params], groups: int) -> list[int]:
        """A group for every change; where there are as many groups, each has its own."""
        if len(changes) == groups:
            return list(range(groups))
        if self.proximity == "MADC":
            found = linked_groups(madc(cosines(state.layout, changes)), groups)
        else:
            points = edc_points(state.layout, changes, groups)
            found = kmeans_groups(points, groups, derive(state.seed, "k-means", state.version), ITERATIONS)
        return [int(label) for label in found]

    def _place(self, state: State, m: Measured) -> Step:
        """Write down the group a client found; one that has lost the directions names none, and is sent them."""
        client, told = m.upload.client, m.upload.mixture or {}
        holds = state.memory["holds"]
        if not told and not m.receipt.models:
            return Step(memory={"holds": {other: True for other in holds if other != client}})
        if list(told.values()) != [1.0]:
            raise BadMixture(
                f"The upload names {dict(told)} instead of one group with the share 1", "Follow the recipe match"
            )
        before = state.members[client].mixture
        moved = before is not None and dict(before) != dict(told)
        memory: dict[str, Any] = {"checked": {**state.memory["checked"], client: True}}
        if self._checks and client not in holds:
            memory["holds"] = {**holds, client: True}
        return Step(mixtures={client: told}, memory=memory, notes={"moved": float(moved)})

    def _train_groups(self, state: State, measured: Sequence[Measured]) -> Step:
        """FedAvg in every group; an upload counts for the group whose model it trained, wherever its client is now."""
        layout, changed, apart = state.layout, dict[ClusterId, Params](), list[float]()
        for k in state.clusters:
            uploads = [m.upload for m in measured if m.receipt.models == (k,)]
            if weights := [upload.samples for upload in uploads if upload.samples]:
                changed[k] = average(layout, [upload.params for upload in uploads if upload.samples], weights)
            model = changed.get(k, state.clusters[k].params)
            apart += [distance(layout, upload.params, model) for upload in uploads]
        newcomers: dict[ClientId, Mixture] = {
            m.upload.client: {m.receipt.models[0]: 1.0}
            for m in measured
            if state.members[m.upload.client].mixture is None
        }
        if self.inter_group_lr:
            changed = self._lean(state, changed)
        notes = {"discrepancy": float(np.mean(apart))} if apart else {}
        return Step(changed, newcomers, {"checked": {}}, notes)

    def _lean(self, state: State, changed: Models) -> dict[ClusterId, Params]:
        """Inter-group aggregation of all groups that have members, from one snapshot."""
        homes = {k for member in state.members.values() if member.present for k in member.mixture or {}}
        models = {k: changed.get(k, cluster.params) for k, cluster in state.clusters.items() if k in homes}
        leant = lean(state.layout, models, self.inter_group_lr, self.inter_group_normalise)
        return {**changed, **leant}


@dataclass(frozen=True)
class FlexCFL(FedGroup):
    """FlexCFL (Duan et al. 2022): groups by direction; whoever's labels change looks for its group again."""

    name: ClassVar[str] = "flexcfl"
    migrates: ClassVar[bool] = True
    shift_fraction: float = 0.2  # tau_i / n_i: this share of changed samples is a shift
    shift_distance: Literal["changed", "mean_abs", "sorted_w1"] = "changed"  # between label histograms

    def __post_init__(self) -> None:
        rules = {
            "shift_fraction is in (0, 1]": 0 < self.shift_fraction <= 1,
            f"shift_distance is one of {', '.join(DISTANCES)}": self.shift_distance in DISTANCES,
        }
        check(self, rules)
        super().__post_init__()

    def moved(self, state: State, client: ClientId) -> Task | None:
        """Whoever waits, has a group and other data than before looks again at once."""
        if not self._checks or _assigned(state, client) is None:
            return None
        return self._match(state, client)

    def _watching(self) -> dict[str, Any]:
        return {"migrate": True, "shift_fraction": self.shift_fraction, "shift_distance": self.shift_distance}


def edc_points(layout: Layout, changes: Sequence[Params], count: int) -> np.ndarray:
    """EDC: a row per change, its cosines with the first left singular vectors V of the matrix of all changes.

    The eigenvectors U of the changes' products give them: <change_i, V_k> = sigma_k U_ik.
    """
    sizes = np.array([norm(layout, change) for change in changes])
    if not sizes.any():
        return np.zeros((len(changes), 1))
    products = cosines(layout, changes) * np.outer(sizes, sizes)
    vectors = left_singular(products, count)
    spread = np.sqrt(np.maximum(np.einsum("ik,ij,jk->k", vectors, products, vectors), 0.0))
    points: np.ndarray = vectors * spread / np.where(sizes > 0, sizes, 1.0)[:, None]
    return points


def madc(similarity: np.ndarray) -> np.ndarray:
    """MADC: the mean over all others z of |S_iz - S_jz|; of two changes, 1 - cosine."""
    count = len(similarity)
    if count <= 2:
        return 1.0 - similarity
    found = np.zeros_like(similarity)
    for i in range(count):
        gaps = np.abs(similarity - similarity[i])
        own = gaps[:, i] + gaps[np.arange(count), np.arange(count)]  # z = i and z = j
        found[i] = np.maximum(gaps.sum(axis=1) - own, 0.0) / (count - 2)
    np.fill_diagonal(found, 0.0)
    return (found + found.T) / 2


def lean(layout: Layout, models: Models, rate: float, normalise: bool) -> dict[ClusterId, Params]:
    """w_g + rate sum w_l / ||w_l|| over all l but g, divided by 1 + rate sum 1/||w_l|| where `normalise` says so.

    A model of norm 0 pulls nobody.
    """
    pulls = {k: rate / size for k, params in models.items() if (size := norm(layout, params))}
    leant = {}
    for k, params in models.items():
        others = [other for other in pulls if other != k]
        if not others:
            continue
        total = 1.0 + sum(pulls[other] for other in others) if normalise else 1.0
        factors = [1.0 / total, *(pulls[other] / total for other in others)]
        moved = combine(layout, [params, *(models[other] for other in others)], factors, newest=0)
        leant[k] = moved if normalise else keep_buffers(layout, params, moved)
    return leant


def _assigned(state: State, client: ClientId) -> ClusterId | None:
    """The group a client is known to be in."""
    mixture = state.members[client].mixture if client in state.members else None
    return next(iter(mixture), None) if mixture else None


def _pick(changes: Sequence[Params], labels: Sequence[int], group: int) -> list[Params]:
    return [change for change, label in zip(changes, labels, strict=True) if label == group]
