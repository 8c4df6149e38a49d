"""Who belongs where, for algorithms in which every client has one cluster: homes, members, newcomers."""

from __future__ import annotations

from typing import Any

from artesian.core import ClientId, ClusterId, State, Task, Upload
from artesian.errors import BadMixture
from artesian.params import Params, average

ALL = "all"  # what a newcomer's model is called: the mean of all clusters


def home(state: State, client: ClientId) -> ClusterId | None:
    """The cluster of a client: the only one while there is one; None for a newcomer among several."""
    member = state.members.get(client)
    if member is not None and member.mixture:
        return next(iter(member.mixture))
    return next(iter(state.clusters)) if len(state.clusters) == 1 else None


def pick_of(upload: Upload) -> ClusterId:
    """The one cluster that an upload picks; one that does not pick is refused."""
    mixture = dict(upload.mixture or {})
    picked = [k for k, share in mixture.items() if share == 1]
    if len(picked) != 1 or len(mixture) != 1:
        raise BadMixture(
            f"Client {upload.client} did not pick one cluster: its shares are {mixture}",
            "Send one cluster with share 1",
        )
    return picked[0]


def members_of(state: State, cluster: ClusterId) -> list[ClientId]:
    """Whose home this cluster is, present or not, in order."""
    return sorted(client for client in state.members if home(state, client) == cluster)


def mean_of_clusters(state: State) -> Params:
    """All clusters, each by the samples of its members; evenly where nobody has any."""
    sizes = dict.fromkeys(state.clusters, 0)
    for member in state.members.values():
        for cluster in member.mixture or ():
            sizes[cluster] += member.samples
    weights = list(sizes.values()) if any(sizes.values()) else None
    return average(state.layout, [cluster.params for cluster in state.clusters.values()], weights)


def home_task(state: State, client: ClientId, **settings: Any) -> Task:
    """The model of a client's cluster to train; for a newcomer among several, their mean."""
    own = home(state, client)
    if own is None:
        return Task({ALL: mean_of_clusters(state)}, settings=settings)
    return Task({own: state.clusters[own].params}, settings=settings)
