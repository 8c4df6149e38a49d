"""What most recipes do with a task: find its only model, train by its plan, take losses under each of its models."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from artesian.core import Learner, Plan, Task
from artesian.errors import NotFinite, WrongModels
from artesian.params import Params


def only_model(task: Task) -> Params:
    """The one model of a task that brings one."""
    if len(task.models) != 1:
        raise WrongModels(
            f"Recipe {task.recipe} works from one model, and the task brings {len(task.models)}",
            "Join under another client id",
        )
    (given,) = task.models.values()
    return given


def trained(task: Task, learner: Learner, start: Params, *, epochs: int | None = None, **how: Any) -> Params:
    """`start`, trained by a task's plan and seed, perhaps for other `epochs`; `how` goes to `Learner.train`."""
    plan = Plan.of(task.settings)
    plan = plan if epochs is None else replace(plan, epochs=epochs)
    return learner.train(start, seed=task.settings["seed"], plan=plan, **how)


def losses_under(task: Task, learner: Learner) -> np.ndarray:
    """The loss of every sample (columns) under every model (rows); what is not a number is infinite."""
    losses = np.array([learner.losses(params) for params in task.models.values()], np.float64)
    losses[np.isnan(losses)] = np.inf
    if learner.samples and not np.isfinite(losses).any():
        raise no_finite_loss(task)
    return losses


def no_finite_loss(task: Task) -> NotFinite:
    """No model of a task has a finite loss on the client's data."""
    return NotFinite(
        f"None of the models {', '.join(task.models)} has a finite loss on this client's data",
        "Check the data for NaN; if there is none, the models diverged: begin again with a lower learning rate",
    )
