"""Follow a task's recipe, with optimisers that go on from the client's last task where the plan says so.

The notebook keeps `optimizers`: the layout of the models, and for every recipe the states of its trainings in the order
in which one task has them. So no recipe has to know of it.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from artesian.core import (
    Batched,
    ClientId,
    Ensemble,
    Fit,
    Labelled,
    Learner,
    Notebook,
    OptimizerState,
    Plan,
    Recipe,
    Resumable,
    Task,
)
from artesian.errors import SettingError, StartedAfresh
from artesian.params import Layout, Params

OPTIMIZERS = "optimizers"  # where a notebook keeps them


def follow(recipe: Recipe, layout: Layout, client: ClientId, task: Task, learner: Learner, notebook: Notebook) -> Fit:
    """Answer a task by its recipe."""
    if not Plan.of(task.settings).keep_optimizer_state:
        return recipe.fit(layout, client, task, learner, notebook)
    states = _states(layout, notebook)
    keeping = Keeping(learner, states.get(recipe.name, ()))
    fit = recipe.fit(layout, client, task, keeping, notebook)
    if not fit.trained:  # such as a search for one's group: nothing came of its training, so nothing is kept of it
        return fit
    kept = {"layout": layout.digest, "states": {**states, recipe.name: keeping.states}}
    return replace(fit, notebook={**fit.notebook, OPTIMIZERS: kept})


@dataclass
class Keeping:
    """A learner whose first training goes on from the first state, the second from the second, and so on."""

    learner: Learner
    before: Sequence[OptimizerState]
    after: list[OptimizerState] = field(default_factory=list)

    @property
    def states(self) -> list[OptimizerState]:
        """What is kept now; the states of trainings that this task did not have stay."""
        return [*self.after, *self.before[len(self.after) :]]

    @property
    def samples(self) -> int:
        return self.learner.samples

    @property
    def histogram(self) -> tuple[int, ...] | None:
        return self.learner.histogram if isinstance(self.learner, Labelled) else None

    def batches(self, size: int) -> int:
        return self.learner.batches(size) if isinstance(self.learner, Batched) else -(-self.samples // size)

    def losses(self, params: Params) -> np.ndarray:
        return self.learner.losses(params)

    def score(self, ensemble: Ensemble) -> float:
        return self.learner.score(ensemble)

    def train(self, params: Params, **how: Any) -> Params:
        if not isinstance(self.learner, Resumable):
            raise SettingError(
                f"The training keeps its optimiser's state, and {type(self.learner).__name__} cannot go on from one",
                "Set training.keep_optimizer_state = false, or give the learner the method `train_on`",
            )
        turn = len(self.after)
        kept = self.before[turn] if turn < len(self.before) else {}
        params, state = self.learner.train_on(params, kept, **how)
        self.after.append(state)
        return params


def _states(layout: Layout, notebook: Notebook) -> dict[str, Sequence[OptimizerState]]:
    """The kept states by recipe; none where they belong to models of another layout."""
    kept = notebook.get(OPTIMIZERS)
    if kept is None:
        return {}
    if kept["layout"] != layout.digest:
        problem = "What this client kept of its optimisers belongs to a model of another layout"
        warnings.warn(StartedAfresh(f"{problem}; they start afresh"), stacklevel=3)
        return {}
    return dict(kept["states"])
