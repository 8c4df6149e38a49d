"""Train with a control variate that takes out how this client's data pull away from everybody's: SCAFFOLD.

The notebook keeps the client's own control variate, `control`: its mean gradient in its last training.
"""

from __future__ import annotations

import numpy as np

from artesian.core import (
    CONTROL,
    Batched,
    ClientId,
    ClusterId,
    Ensemble,
    Fit,
    Learner,
    Notebook,
    Plan,
    Recipe,
    Task,
    Upload,
)
from artesian.params import Layout, Params, minus, seal
from artesian.recipes.following import trained


def fit(layout: Layout, client: ClientId, task: Task, learner: Learner, notebook: Notebook) -> Fit:
    """Add c - c_i to every gradient; send how the model and the client's own control variate c_i changed."""
    plan = Plan.of(task.settings)
    plan.check_plain("SCAFFOLD")
    cluster, given = _model(task)
    shared, own = task.models[CONTROL], notebook.get("control", np.zeros(layout.size, np.float32))
    new = trained(task, learner, given, correction=seal(shared - own))
    change = _change(layout, given, new, shared, _rates(learner, plan))
    sent = {cluster: minus(layout, new, given), CONTROL: change}
    kept = {**notebook, "control": seal(own + change)}
    return Fit(Upload(client, task.number, learner.samples, sent), kept, ((1.0, new),))


def use(layout: Layout, task: Task, notebook: Notebook) -> Ensemble:
    """The given model as it is."""
    return ((1.0, _model(task)[1]),)


def _model(task: Task) -> tuple[ClusterId, Params]:
    ((cluster, given),) = ((k, params) for k, params in task.models.items() if k != CONTROL)
    return cluster, given


def _change(layout: Layout, given: Params, new: Params, shared: Params, rates: float) -> Params:
    """c_i' - c_i = (x - y) / (sum of the steps' rates) - c; zero where no step was taken, and for buffers."""
    change = np.zeros(layout.size, np.float32)
    if rates:
        weights = slice(layout.trainable)
        moved = np.subtract(given[weights], new[weights], dtype=np.float64)
        change[weights] = moved / rates - shared[weights]
    return seal(change)


def _rates(learner: Learner, plan: Plan) -> float:
    """H lr: the learning rates of all steps of a training, added up."""
    full = -(-learner.samples // plan.batch)
    steps = learner.batches(plan.batch) if isinstance(learner, Batched) else full
    return sum(steps * plan.rate_in(epoch) for epoch in range(plan.epochs))


CORRECT = Recipe("correct", fit, use)
