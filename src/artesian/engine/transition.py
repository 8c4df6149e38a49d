"""What an event would change, worked out beside the present state: nothing is true until the engine makes it so."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from artesian.core import (
    ClientId,
    Cluster,
    ClusterId,
    Desk,
    Evidence,
    Measured,
    Member,
    Reply,
    State,
    Step,
    Task,
    Tree,
)
from artesian.engine.defence import identity
from artesian.params import Params, seal


@dataclass
class Change:
    """The state, the desk and the open tasks as they would be after an event."""

    state: State
    desk: Desk
    members: dict[ClientId, Member] = field(default_factory=dict)
    tasks: dict[ClientId, Task | None] = field(default_factory=dict)
    appraisals: dict[ClusterId, float] = field(default_factory=dict)
    compared: dict[ClientId, Evidence] = field(default_factory=dict)
    found: Mapping[str, Tree] = field(default_factory=dict)
    judged: dict[str, float] = field(default_factory=dict)
    set_aside: dict[str, str] = field(default_factory=dict)
    notes: dict[str, float] = field(default_factory=dict)
    replies: list[Reply] = field(default_factory=list)
    gone: tuple[ClientId, ...] = ()  # members who are forgotten

    def take(
        self,
        step: Step,
        before: Mapping[ClusterId, Cluster],
        changed: Mapping[ClusterId, Params],
        losses: Mapping[ClusterId, float],
        solo: bool,
    ) -> None:
        """What a fold changes: of the clusters `before` it, already split, those that `changed`; mixtures, memory."""
        state, version, clusters = self.state, self.state.version + 1, dict(before)
        for k, params in changed.items():
            updates = clusters[k].updates + 1 if k in clusters else 0
            clusters[k] = Cluster(params, version, updates, losses.get(k))
        for client, mixture in step.mixtures.items():
            self.members[client] = replace(state.members[client], mixture=dict(mixture))
        self.state = replace(
            state,
            clusters=clusters,
            version=version,
            rounds=state.rounds + (not solo),
            named=state.named + len(set(clusters) - set(state.clusters)),
            memory={**state.memory, **_sealed(step.memory)} if step.memory else state.memory,
        )
        self.appraisals.update(losses)
        self.notes.update(step.notes)

    def learn(self, found: Mapping[str, Tree]) -> None:
        """What a study found comes into force."""
        self.found = found
        self.state = replace(self.state, memory={**self.state.memory, **_sealed(found)})

    def put_aside(self, measured: Measured, why: str) -> None:
        """An upload is answered and not folded, and its member is remembered for it."""
        upload = measured.upload
        self.set_aside[identity(upload)] = why
        member = self.state.members[upload.client]
        self.members[upload.client] = replace(member, set_aside=member.set_aside + 1)
        self.notes["set_aside"] = self.notes.get("set_aside", 0) + 1

    def publish(
        self,
        before: Mapping[ClusterId, Cluster],
        changed: Mapping[ClusterId, Params],
        changed_by_now: Mapping[ClusterId, Collection[ClientId]],
        publish_after: int,
        step: Step,
    ) -> None:
        """Hold a changed cluster back until enough clients have changed it; children inherit what is held back."""
        published, changed_by = dict(self.desk.published), dict(self.desk.changed_by)
        for child, parent in step.born.items():
            if parent in published:
                published[child], changed_by[child] = published[parent], changed_by[parent]
        for k in changed:
            by = tuple(sorted({*changed_by.get(k, ()), *changed_by_now.get(k, ())}))
            if k in before and len(by) < publish_after:
                published.setdefault(k, before[k])
                changed_by[k] = by
            else:  # a cluster out of nothing is shown as it is
                published.pop(k, None)
                changed_by.pop(k, None)
        for k in step.gone:
            published.pop(k, None)
            changed_by.pop(k, None)
        self.desk = replace(self.desk, published=published, changed_by=changed_by)


def split(clusters: Mapping[ClusterId, Cluster], step: Step) -> dict[ClusterId, Cluster]:
    """The clusters once children are born, with the model and the counters of their parent, and others are gone."""
    born = {child: replace(clusters[parent], loss=None) for child, parent in step.born.items()}
    return {k: cluster for k, cluster in {**clusters, **born}.items() if k not in step.gone}


def _sealed(tree: Tree) -> Tree:
    """A tree nobody can write to any more."""
    if isinstance(tree, Mapping):
        return {key: _sealed(item) for key, item in tree.items()}
    if isinstance(tree, (list, tuple)):
        return [_sealed(item) for item in tree]
    return seal(tree) if isinstance(tree, np.ndarray) else tree
