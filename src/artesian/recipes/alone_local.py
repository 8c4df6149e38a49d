"""Keep training one's own model; nothing leaves the device but the fact. The client half of Local."""

from __future__ import annotations

from artesian.core import ClientId, Ensemble, Fit, Learner, Notebook, Recipe, Task, Upload
from artesian.params import Layout, Params
from artesian.recipes.following import only_model, trained


def fit(layout: Layout, client: ClientId, task: Task, learner: Learner, notebook: Notebook) -> Fit:
    """Train on from one's own model, and keep it in the notebook."""
    own = trained(task, learner, _own(task, notebook))
    return Fit(Upload(client, task.number, learner.samples), {**notebook, "own": own}, ((1.0, own),))


def use(layout: Layout, task: Task, notebook: Notebook) -> Ensemble:
    """One's own model, or the given one before the first training."""
    return ((1.0, _own(task, notebook)),)


def _own(task: Task, notebook: Notebook) -> Params:
    return notebook["own"] if "own" in notebook else only_model(task)


ALONE = Recipe("alone", fit, use)
