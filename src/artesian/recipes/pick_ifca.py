"""Pick the model with the smallest mean loss, and train that one: IFCA and IFCA-Async."""

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
from artesian.params import Layout, minus
from artesian.recipes.following import losses_under, no_finite_loss, trained


def fit(layout: Layout, client: ClientId, task: Task, learner: Learner, notebook: Notebook) -> Fit:
    """Pick the model with the smallest mean loss; train it; send it, or its change (`delta`), and the pick."""
    picked = _best(task, learner)
    mixture = {picked: 1.0}
    kept = {**notebook, "mixture": mixture}
    if task.settings.get(ESTIMATE_ONLY):
        return Fit(Upload(client, task.number, learner.samples, {}, mixture), kept, ())
    given = task.models[picked]
    new = trained(task, learner, given)
    sent = minus(layout, new, given) if task.settings.get("delta") else new
    return Fit(Upload(client, task.number, learner.samples, {OWN: sent}, mixture), kept, ((1.0, new),))


def use(layout: Layout, task: Task, notebook: Notebook) -> Ensemble:
    """The model picked last; the first one before any pick."""
    picked = notebook.get("mixture") or task.mixture or {}
    first = next(iter(task.models.values()))
    return ((1.0, next((params for k, params in task.models.items() if k in picked), first)),)


def _best(task: Task, learner: Learner) -> ClusterId:
    """The model with the smallest mean loss; ties, and a client without samples, take the first."""
    if not learner.samples:
        return next(iter(task.models))
    means = losses_under(task, learner).mean(axis=1)
    if not np.isfinite(means).any():
        raise no_finite_loss(task)
    return list(task.models)[int(means.argmin())]


PICK = Recipe("pick", fit, use)
