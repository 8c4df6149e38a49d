"""Share the body of a model and keep its head at home: FedRep and FedPer.

The notebook keeps the client's own head, `head`: the numbers of the entries that the task calls so, in their order.
"""

from __future__ import annotations

import numpy as np

from artesian.core import ClientId, Ensemble, Fit, Learner, Notebook, Recipe, Task, Upload
from artesian.errors import WrongShape
from artesian.params import Layout, Params, places_of, seal
from artesian.recipes.following import only_model, trained


def fit(layout: Layout, client: ClientId, task: Task, learner: Learner, notebook: Notebook) -> Fit:
    """Train the head with the body frozen, then the body with the head frozen; or both at once (`together`).

    What is sent has the given head: no number of the client's own head ever leaves.
    """
    ((cluster, given),) = task.models.items()
    head, new = places_of(layout, task.settings["head"]), _own(layout, task, notebook)
    if task.settings.get("together"):
        new = trained(task, learner, new)
    else:
        new = trained(task, learner, new, mask=head, epochs=task.settings.get("head_epochs"))
        new = trained(task, learner, new, mask=~head)
    upload = Upload(client, task.number, learner.samples, {cluster: seal(np.where(head, given, new))})
    return Fit(upload, {**notebook, "head": seal(new[head])}, ((1.0, new),))


def use(layout: Layout, task: Task, notebook: Notebook) -> Ensemble:
    """The given body with one's own head; with the given head before the first training."""
    return ((1.0, _own(layout, task, notebook)),)


def _own(layout: Layout, task: Task, notebook: Notebook) -> Params:
    given = only_model(task)
    if "head" not in notebook:
        return given
    head, kept = places_of(layout, task.settings["head"]), notebook["head"]
    if kept.shape != (int(head.sum()),):
        raise WrongShape(
            f"This client keeps a head of {kept.size} numbers, and the task's has {int(head.sum())}",
            "Give the client a new home: the federation's head has changed",
        )
    own = given.copy()
    own[head] = kept
    return seal(own)


SPLIT = Recipe("split", fit, use)
