"""The client halves of all algorithms: a small closed set, chosen by name in the task.

The server never ships code. A recipe has two parts: `fit` (task, learner, notebook -> fit) and `use` (what
the client predicts with).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from artesian.core import ClientId, Ensemble, Learner, Notebook, Plan, Task, Upload
from artesian.errors import SettingError, WrongModels, nearest
from artesian.params import Layout, Params, minus


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
    use: Callable[[Task, Notebook], Ensemble]
    sends: Literal["nothing", "all"]  # which of the task's models come back


def fit_alone(layout: Layout, client: ClientId, task: Task, learner: Learner, notebook: Notebook) -> Fit:
    """Keep training one's own model; nothing leaves the device but the fact."""
    start = _only(task) if notebook.own is None else notebook.own
    own = learner.train(start, seed=task.settings["seed"], plan=Plan.of(task.settings))
    return Fit(Upload(client, task.number, learner.samples), replace(notebook, own=own), ((1.0, own),))


def use_alone(task: Task, notebook: Notebook) -> Ensemble:
    """One's own model, or the given one before the first training."""
    return ((1.0, _only(task) if notebook.own is None else notebook.own),)


def fit_train(layout: Layout, client: ClientId, task: Task, learner: Learner, notebook: Notebook) -> Fit:
    """Train the given model, perhaps pulled towards it (`prox`); send it, or its change (`delta`)."""
    ((cluster, given),) = task.models.items()
    prox = float(task.settings.get("prox", 0.0))
    pulls = ((prox, given),) if prox else ()
    trained = learner.train(given, seed=task.settings["seed"], plan=Plan.of(task.settings), pulls=pulls)
    sent = minus(layout, trained, given) if task.settings.get("delta") else trained
    return Fit(Upload(client, task.number, learner.samples, {cluster: sent}), notebook, ((1.0, trained),))


def use_train(task: Task, notebook: Notebook) -> Ensemble:
    """The given model as it is."""
    return ((1.0, _only(task)),)


def _only(task: Task) -> Params:
    if len(task.models) != 1:
        raise WrongModels(f"recipe {task.recipe} works from one model", f"{len(task.models)}", "join under another id")
    (given,) = task.models.values()
    return given


RECIPES: dict[str, Recipe] = {
    "alone": Recipe(fit_alone, use_alone, sends="nothing"),
    "train": Recipe(fit_train, use_train, sends="all"),
}


def recipe(name: str) -> Recipe:
    """The recipe of this name."""
    if name not in RECIPES:
        raise SettingError("a task names a recipe this version knows", name, nearest(name, RECIPES))
    return RECIPES[name]
