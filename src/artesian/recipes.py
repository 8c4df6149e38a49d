"""The client halves of all algorithms: a small closed set, chosen by name in the task.

The server never ships code. A recipe has two parts: `fit` (task, learner, notebook -> fit) and `use` (what
the client predicts with).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from artesian.core import ClientId, ClusterId, Ensemble, Learner, Mixture, Notebook, Plan, Task, Upload
from artesian.errors import SettingError, WrongModels, nearest
from artesian.params import Layout, Params, combine, kept_by_size, minus

OWN = "own"  # what a client calls the one model it trained from several
ESTIMATE_ONLY = "estimate_only"  # the setting of a task that asks for a mixture and no training


@dataclass(frozen=True)
class Fit:
    """What following a recipe gave."""

    upload: Upload
    notebook: Notebook
    trained: Ensemble  # what the client would predict with if no answer came


@dataclass(frozen=True)
class Recipe:
    """One client half."""

    fit: Callable[[Layout, ClientId, Task, Learner, Notebook], Fit]
    use: Callable[[Layout, Task, Notebook], Ensemble]
    sends: Callable[[Task], tuple[str, ...]]  # the names of the models that come back
    estimates: bool = False  # the client tells its mixture


def fit_alone(layout: Layout, client: ClientId, task: Task, learner: Learner, notebook: Notebook) -> Fit:
    """Keep training one's own model; nothing leaves the device but the fact."""
    start = _only(task) if notebook.own is None else notebook.own
    own = learner.train(start, seed=task.settings["seed"], plan=Plan.of(task.settings))
    return Fit(Upload(client, task.number, learner.samples), replace(notebook, own=own), ((1.0, own),))


def use_alone(layout: Layout, task: Task, notebook: Notebook) -> Ensemble:
    """One's own model, or the given one before the first training."""
    return ((1.0, _only(task) if notebook.own is None else notebook.own),)


def fit_train(layout: Layout, client: ClientId, task: Task, learner: Learner, notebook: Notebook) -> Fit:
    """Train the given model, perhaps pulled towards it (`prox`), or only its larger weights (`sparsity`); send it, or
    its change (`delta`)."""
    ((cluster, given),) = task.models.items()
    prox = float(task.settings.get("prox", 0.0))
    pulls = ((prox, given),) if prox else ()
    sparsity = float(task.settings.get("sparsity", 0.0))
    mask = kept_by_size(layout, given, sparsity) if sparsity else None
    trained = learner.train(given, seed=task.settings["seed"], plan=Plan.of(task.settings), pulls=pulls, mask=mask)
    sent = minus(layout, trained, given) if task.settings.get("delta") else trained
    return Fit(Upload(client, task.number, learner.samples, {cluster: sent}), notebook, ((1.0, trained),))


def use_train(layout: Layout, task: Task, notebook: Notebook) -> Ensemble:
    """The given model as it is."""
    return ((1.0, _only(task)),)


def fit_soft(layout: Layout, client: ClientId, task: Task, learner: Learner, notebook: Notebook) -> Fit:
    """Count which model fits each sample best; train one near their blend by these shares; send it and them."""
    mixture = shares_of(task, learner)
    anchor = blended(layout, task.models, mixture)
    prox = float(task.settings.get("prox", 0.0))
    pulls = ((prox, anchor),) if prox else ()
    trained = learner.train(anchor, seed=task.settings["seed"], plan=Plan.of(task.settings), pulls=pulls)
    return Fit(Upload(client, task.number, learner.samples, {OWN: trained}, mixture), notebook, ((1.0, trained),))


def use_soft(layout: Layout, task: Task, notebook: Notebook) -> Ensemble:
    """The blend of what was given, by the shares told last; evenly before the first."""
    return ((1.0, blended(layout, task.models, task.mixture)),)


def shares_of(task: Task, learner: Learner) -> dict[ClusterId, float]:
    """How many of the samples each model fits best; ties go to the first, and no share is below `sigma`."""
    names = list(task.models)
    losses = np.array([learner.losses(params) for params in task.models.values()])
    counts = np.bincount(losses.argmin(axis=0), minlength=len(names)) if learner.samples else np.ones(len(names))
    shares = np.maximum(counts / counts.sum(), float(task.settings.get("sigma", 0.0)))
    return dict(zip(names, (shares / shares.sum()).tolist(), strict=True))


def blended(layout: Layout, models: Mapping[ClusterId, Params], mixture: Mixture | None) -> Params:
    """The models blended by these shares; evenly where there are none."""
    shares = [1 / len(models) if mixture is None else mixture.get(k, 0.0) for k in models]
    return combine(layout, list(models.values()), shares)


def _only(task: Task) -> Params:
    if len(task.models) != 1:
        raise WrongModels(f"recipe {task.recipe} works from one model", f"{len(task.models)}", "join under another id")
    (given,) = task.models.values()
    return given


def nothing(task: Task) -> tuple[str, ...]:
    """No model is sent."""
    return ()


def all_given(task: Task) -> tuple[str, ...]:
    """Every model of the task is sent back."""
    return tuple(task.models)


def own_only(task: Task) -> tuple[str, ...]:
    """One model is sent, the client's own; none where only an estimate is asked for."""
    return () if task.settings.get(ESTIMATE_ONLY) else (OWN,)


RECIPES: dict[str, Recipe] = {
    "alone": Recipe(fit_alone, use_alone, nothing),
    "train": Recipe(fit_train, use_train, all_given),
    "soft": Recipe(fit_soft, use_soft, own_only, estimates=True),
}


def recipe(name: str) -> Recipe:
    """The recipe of this name."""
    if name not in RECIPES:
        raise SettingError("a task names a recipe this version knows", name, nearest(name, RECIPES))
    return RECIPES[name]
