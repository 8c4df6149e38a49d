"""The judge: what a fold would do to the losses of clusters on held-back samples of the server's own data."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite

import numpy as np

from artesian.core import ClusterId, Divisible, Learner, State, Step, generator
from artesian.engine.defence import BEYOND
from artesian.params import Params

TINY = 1e-9  # a loss that counts as no smaller


class Judge:
    """Samples of every proxy set, the same for every fold; it remembers the newest losses, and nothing else."""

    def __init__(self, proxies: Mapping[ClusterId, Learner], most: int, seed: int) -> None:
        self.most = most
        self._samples = {k: _some(proxy, most, seed, k) for k, proxy in proxies.items()}
        self._known: dict[ClusterId, list[tuple[Params, float]]] = {}  # of the newest two models of each cluster

    def rise(self, state: State, step: Step, own: bool) -> float:
        """By how much of it the loss of a cluster rises in this step, at the most; `own`: each has a set of its own."""
        changed = {k: params for k, params in step.clusters.items() if k in state.clusters}
        return max((self._rise(k, state.clusters[k].params, new, own) for k, new in changed.items()), default=0.0)

    def note(self, changed: Mapping[ClusterId, Params], own: bool) -> None:
        """Find the losses of clusters as they are from now on."""
        for k, params in changed.items():
            self._known[k] = [*self._known.get(k, [])[-1:], (params, self._loss(k, params, own))]

    def losses(self, state: State) -> dict[ClusterId, float]:
        """The loss of every cluster that is known as it is now."""
        known = {k: self._find(k, cluster.params) for k, cluster in state.clusters.items()}
        return {k: loss for k, loss in known.items() if loss is not None}

    def _rise(self, cluster: ClusterId, old: Params, new: Params, own: bool) -> float:
        before, after = self._loss(cluster, old, own), self._loss(cluster, new, own)
        self._known[cluster] = [(old, before), (new, after)]
        rise = after / max(before, TINY) - 1
        return rise if isfinite(rise) and rise < 2 * BEYOND else 2 * BEYOND

    def _loss(self, cluster: ClusterId, params: Params, own: bool) -> float:
        """The mean loss on the samples that stand for a cluster: its own, or those of all."""
        known = self._find(cluster, params)
        if known is not None:
            return known
        chosen = [self._samples[cluster]] if own and cluster in self._samples else list(self._samples.values())
        return float(np.mean([np.mean(samples.losses(params), dtype=np.float64) for samples in chosen]))

    def _find(self, cluster: ClusterId, params: Params) -> float | None:
        return next((loss for model, loss in self._known.get(cluster, ()) if model is params), None)


def _some(proxy: Learner, most: int, seed: int, cluster: ClusterId) -> Learner:
    if not isinstance(proxy, Divisible) or proxy.samples <= most:
        return proxy
    rows = generator(seed, "judge", cluster).choice(proxy.samples, most, replace=False)
    return proxy.part(np.sort(rows))
