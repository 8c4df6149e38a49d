"""How uploads are folded: judged by held-back samples, worked into the clusters, and the clusters appraised."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import isfinite

import numpy as np

from artesian.core import ClientId, Cluster, ClusterId, Measured, State, Step
from artesian.engine.defence import identity, judged
from artesian.engine.transition import Change, split
from artesian.engine.workbench import Workbench
from artesian.errors import NotFinite
from artesian.params import Params, keep_buffers, seal, toward

FINITE = float(np.finfo(np.float32).max)


def fold(bench: Workbench, change: Change, measured: Sequence[Measured], solo: bool = False) -> None:
    """Work uploads into the clusters, those that the judge does not refuse; it may be none."""
    state = change.state
    measured, alone = _kept(bench, change, measured)
    if not measured:
        return
    step = alone or bench.algorithm.fold(state, measured)
    clusters = split(state.clusters, step)
    changed = {k: finished(bench, state, clusters, k, params) for k, params in step.clusters.items()}
    if change.judged and bench.known is None:
        with bench.watch("appraising"):
            bench.judge().note(changed, bench.algorithm.stands_for)
    change.take(step, clusters, changed, appraise(bench, changed), solo)
    by = _changed_by(bench, state, step, measured, change.desk.changed_by)
    change.publish(clusters, changed, by, bench.publish_after, step)


def _changed_by(
    bench: Workbench,
    state: State,
    step: Step,
    measured: Sequence[Measured],
    before: Mapping[ClusterId, Sequence[ClientId]],
) -> dict[ClusterId, set[ClientId]]:
    """Who changed each cluster of a step. Once there are enough for it to be shown, no further ones are looked for."""
    everybody = {m.upload.client for m in measured}
    if bench.publish_after < 2 or len(measured) == 1 or not bench.movers:
        return dict.fromkeys(step.clusters, everybody)
    found: dict[ClusterId, set[ClientId]] = {k: set() for k in step.clusters}
    for m in measured:
        few = [k for k in found if len(found[k].union(before.get(k, ()))) < bench.publish_after]
        for k in _moved(bench, state, step, measured, m, few) if few else ():
            found[k].add(m.upload.client)
    return found


def _moved(
    bench: Workbench, state: State, step: Step, measured: Sequence[Measured], m: Measured, among: Sequence[ClusterId]
) -> list[ClusterId]:
    """Which of these clusters an upload moves: it alone would, and without it they would be others.

    A cluster that is only just divided is moved by nobody whom that could be said of.
    """
    alone = bench.algorithm.fold(state, (m,)).clusters
    moved = [k for k in among if k in state.clusters and k in alone and _differ(alone[k], state.clusters[k].params)]
    if not moved:
        return []
    rest = bench.algorithm.fold(state, [other for other in measured if other is not m]).clusters
    return [k for k in moved if _differ(step.clusters[k], rest.get(k, state.clusters[k].params))]


def _differ(one: Params, other: Params) -> bool:
    return one is not other and not np.array_equal(one, other)


def finished(
    bench: Workbench, state: State, clusters: Mapping[ClusterId, Cluster], cluster: ClusterId, params: Params
) -> Params:
    """A folded model as it is kept: finite, sealed, with the buffers the algorithm wants."""
    state.layout.check(params, FINITE)  # sums of sound uploads may be larger than each: that blocks nobody
    if bench.algorithm.buffers == "server" and cluster in clusters:
        params = keep_buffers(state.layout, clusters[cluster].params, params)
    return seal(params)


def appraise(bench: Workbench, changed: Mapping[ClusterId, Params]) -> dict[ClusterId, float]:
    """The losses of clusters on their own proxy sets; in a replay, those that were found the first time."""
    if bench.known is not None:
        return dict(bench.known.appraisals)
    found = {}
    with bench.watch("appraising"):
        for k, params in changed.items():
            loss = bench.algorithm.appraise(params, bench.proxies[k]) if k in bench.proxies else None
            if loss is not None:
                found[k] = loss
    if not all(isfinite(loss) for loss in found.values()):
        raise NotFinite(f"A cluster's loss on its proxy set is NaN or Inf: {found}", "Train at a lower rate")
    return found


def appraise_missing(bench: Workbench, change: Change) -> None:
    """Appraise the clusters that have no loss yet: other settings may ask for it."""
    clusters = change.state.clusters
    found = appraise(bench, {k: cluster.params for k, cluster in clusters.items() if cluster.loss is None})
    if found:
        told = {k: replace(cluster, loss=found.get(k, cluster.loss)) for k, cluster in clusters.items()}
        change.state = replace(change.state, clusters=told)
        change.appraisals.update(found)


def _kept(bench: Workbench, change: Change, measured: Sequence[Measured]) -> tuple[Sequence[Measured], Step | None]:
    """The uploads of a fold that raise no held-back loss too far; and the step, where one alone was judged."""
    if bench.defence is None or not bench.defence.rise:
        return measured, None
    steps: dict[str, Step] = {}
    rises = bench.known.judged if bench.known is not None else _rises(bench, change.state, measured, steps)
    named = {identity(m.upload): m for m in measured}
    own = {name: (m.upload.client, rises[name]) for name, m in named.items() if name in rises}
    ledger, refused = judged(bench.defence, change.desk.ledger, own)
    for name, why in refused.items():
        change.put_aside(named[name], why)
    change.judged.update({name: rise for name, (_, rise) in own.items()})
    change.desk = replace(change.desk, ledger=ledger)
    kept = [m for name, m in named.items() if name not in refused]
    return kept, steps.popitem()[1] if len(kept) == len(measured) == len(steps) == 1 else None


def _rises(bench: Workbench, state: State, measured: Sequence[Measured], steps: dict[str, Step]) -> dict[str, float]:
    """By how much of it the held-back loss of a cluster would rise, at the most, if each were folded alone and fresh.

    A rule for late uploads makes steps of any length. Of an upload whose step is short the losses say little, and by
    what is usual among short steps every long one is too far: so all are judged by the step they would make in time,
    and those that the stride of their member shortened by the step they would make without it.
    """
    found: dict[str, float] = {}
    for m in measured if bench.proxies else ():
        if m.upload.models:
            late = m.receipt.base != state.version
            fresh = replace(m, receipt=replace(m.receipt, base=state.version)) if late else m
            step = bench.algorithm.fold(state, (fresh,))
            if not late:
                steps[identity(m.upload)] = step
            with bench.watch("appraising"):
                whole = stretched(state, step, m.shortened)
                found[identity(m.upload)] = bench.judge().rise(state, whole, bench.algorithm.stands_for)
    return found


def stretched(state: State, step: Step, times: float) -> Step:
    """A step so many times as long; buffers stay as they are in the step."""
    if times == 1:
        return step
    known = {k: cluster.params for k, cluster in state.clusters.items()}
    longer = {k: toward(state.layout, known[k], new, times) for k, new in step.clusters.items() if k in known}
    kept = {k: keep_buffers(state.layout, step.clusters[k], params) for k, params in longer.items()}
    return replace(step, clusters={**step.clusters, **kept})
