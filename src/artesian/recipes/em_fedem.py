"""Estimate how far each component answers for each sample, and train all of them by that: FedEM."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from artesian.core import ClientId, ClusterId, Ensemble, Fit, Learner, Notebook, Recipe, Task, Upload
from artesian.params import Layout, Params
from artesian.recipes.following import losses_under, trained

FLOOR = 1e-8  # a component's share counts as this much at least


def fit(layout: Layout, client: ClientId, task: Task, learner: Learner, notebook: Notebook) -> Fit:
    """Weigh every sample by how far each component answers for it; train all of them; send them and their shares."""
    weights = _responsibilities(task, learner, notebook)
    shares = weights.mean(axis=1).tolist() if learner.samples else _known_shares(task, notebook)
    mixture = dict(zip(task.models, shares, strict=True))
    new = {k: trained(task, learner, params, weights=weights[i]) for i, (k, params) in enumerate(task.models.items())}
    kept = {**notebook, "mixture": mixture}
    return Fit(Upload(client, task.number, learner.samples, new, mixture), kept, _voices(task, new, shares))


def use(layout: Layout, task: Task, notebook: Notebook) -> Ensemble:
    """All components, each with the share estimated last, or the one with the largest (`predict`); even before."""
    return _voices(task, task.models, _known_shares(task, notebook))


def _responsibilities(task: Task, learner: Learner, notebook: Notebook) -> np.ndarray:
    """q: for every component (rows) and sample (columns), softmax over components of log share - loss."""
    losses = losses_under(task, learner)
    losses[:, ~np.isfinite(losses).any(axis=0)] = 0.0  # a sample that no component can judge: as the shares say
    logits = np.log(np.maximum(_known_shares(task, notebook), FLOOR))[:, None] - losses
    powers = np.exp(logits - logits.max(axis=0, initial=-np.inf))
    weights: np.ndarray = powers / powers.sum(axis=0)
    return weights


def _known_shares(task: Task, notebook: Notebook) -> list[float]:
    """The shares of the components as estimated last; even before that."""
    known = notebook.get("mixture") or task.mixture or {}
    shares = [known.get(k, 0.0) for k in task.models]
    return shares if sum(shares) > 0 else [1 / len(shares)] * len(shares)


def _voices(task: Task, models: Mapping[ClusterId, Params], shares: Sequence[float]) -> Ensemble:
    """Who predicts, with what weight."""
    voices = list(zip(shares, models.values(), strict=True))
    if task.settings.get("predict", "ensemble") == "largest":
        return ((1.0, voices[int(np.argmax(shares))][1]),)
    return tuple((share, params) for share, params in voices if share > 0)


EM = Recipe("em", fit, use)
