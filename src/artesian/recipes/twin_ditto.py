"""Train the given model for everybody, and a second one for oneself, pulled towards the given one: Ditto.

The notebook keeps the personal model, `own`.
"""

from __future__ import annotations

from artesian.core import ClientId, Ensemble, Fit, Learner, Notebook, Recipe, Task, Upload
from artesian.params import Layout, Params
from artesian.recipes.following import only_model, trained


def fit(layout: Layout, client: ClientId, task: Task, learner: Learner, notebook: Notebook) -> Fit:
    """Send the given model, trained; keep one's own, trained with a pull of `personal_pull` towards the given one."""
    ((cluster, given),) = task.models.items()
    pull = float(task.settings["personal_pull"])
    new = trained(task, learner, given)
    own = trained(task, learner, _own(task, notebook), pulls=((pull, given),) if pull else ())
    upload = Upload(client, task.number, learner.samples, {cluster: new})
    return Fit(upload, {**notebook, "own": own}, ((1.0, own),))


def use(layout: Layout, task: Task, notebook: Notebook) -> Ensemble:
    """One's own model, or the given one before the first training."""
    return ((1.0, _own(task, notebook)),)


def _own(task: Task, notebook: Notebook) -> Params:
    return notebook["own"] if "own" in notebook else only_model(task)


TWIN = Recipe("twin", fit, use)
