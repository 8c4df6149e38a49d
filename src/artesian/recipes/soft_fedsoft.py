"""Count which model fits each sample best, and train one model near their blend: FedSoft and FedSoft-Async."""

from __future__ import annotations

import numpy as np

from artesian.core import (
    ESTIMATE_ONLY,
    OWN,
    ClientId,
    ClusterId,
    Ensemble,
    Fit,
    Learner,
    Notebook,
    Recipe,
    Task,
    Upload,
)
from artesian.params import Layout, Params, blended
from artesian.recipes.following import losses_under, trained


def fit(layout: Layout, client: ClientId, task: Task, learner: Learner, notebook: Notebook) -> Fit:
    """Count which model fits each sample best; train one near their blend by these shares; send it and them.

    A `personal` model goes on from itself instead, and is pulled towards every model by its share.
    """
    if task.settings.get(ESTIMATE_ONLY):
        return _estimate(layout, client, task, learner, notebook)
    if task.settings.get("personal"):
        return _fit_personal(layout, client, task, learner, notebook)
    mixture = shares_of(task, learner)
    anchor = blended(layout, task.models, mixture)
    prox = float(task.settings.get("prox", 0.0))
    new = trained(task, learner, anchor, pulls=((prox, anchor),) if prox else ())
    return Fit(Upload(client, task.number, learner.samples, {OWN: new}, mixture), notebook, ((1.0, new),))


def use(layout: Layout, task: Task, notebook: Notebook) -> Ensemble:
    """The blend of what was given, by the shares sent last, evenly before the first; or the personal model."""
    if task.settings.get("personal"):
        return ((1.0, _personal(layout, task, notebook)),)
    return ((1.0, blended(layout, task.models, task.mixture)),)


def shares_of(task: Task, learner: Learner) -> dict[ClusterId, float]:
    """How many of the samples each model fits best; ties go to the first, and no share is below `sigma`.

    They are scaled to sum to 1, unless `normalise` is false.
    """
    losses = losses_under(task, learner)
    counts = np.bincount(losses.argmin(axis=0), minlength=len(losses)) if learner.samples else np.ones(len(losses))
    shares = np.maximum(counts / counts.sum(), float(task.settings.get("sigma", 0.0)))
    if task.settings.get("normalise", True):
        shares = shares / shares.sum()
    return dict(zip(task.models, shares.tolist(), strict=True))


def _estimate(layout: Layout, client: ClientId, task: Task, learner: Learner, notebook: Notebook) -> Fit:
    """Only the shares; a client with a personal model to come begins it here, at the even blend."""
    mixture = shares_of(task, learner)
    kept = {**notebook, "mixture": mixture}
    if task.settings.get("personal"):
        kept["own"] = _personal(layout, task, notebook)
    return Fit(Upload(client, task.number, learner.samples, {}, mixture), kept, ())


def _fit_personal(layout: Layout, client: ClientId, task: Task, learner: Learner, notebook: Notebook) -> Fit:
    """Go on from one's own model, pulled towards every given one by the share sent last."""
    shares = shares_of(task, learner) if task.mixture is None else dict(task.mixture)
    prox = float(task.settings.get("prox", 0.0))
    pulls = [(prox * shares.get(k, 0.0), centre) for k, centre in task.models.items() if prox * shares.get(k, 0.0)]
    own = trained(task, learner, _personal(layout, task, notebook), pulls=pulls)
    kept = {**notebook, "own": own, "mixture": shares}
    return Fit(Upload(client, task.number, learner.samples, {OWN: own}, shares), kept, ((1.0, own),))


def _personal(layout: Layout, task: Task, notebook: Notebook) -> Params:
    """One's own model; before there is one, the even blend of those given."""
    return notebook["own"] if "own" in notebook else blended(layout, task.models, None)


SOFT = Recipe("soft", fit, use)
