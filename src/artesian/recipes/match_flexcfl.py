"""Find the group whose direction one's own training takes: FedGroup and FlexCFL.

The notebook keeps `origin` and `directions` once they were sent, and the labels' `histogram` of the last search.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from artesian.algorithms.directions import ORIGIN, directions_digest
from artesian.core import ClientId, ClusterId, Ensemble, Fit, Learner, Notebook, Recipe, Task, Upload
from artesian.errors import SettingError
from artesian.params import Layout, combine, cosine, minus
from artesian.recipes.following import trained
from artesian.recipes.labels import histogram_of, shifted


def fit(layout: Layout, client: ClientId, task: Task, learner: Learner, notebook: Notebook) -> Fit:
    """Say in which group's direction one's own training goes; an empty mixture asks for the directions.

    With `migrate`, a client that has a group keeps it until its labels have changed since its last search.
    """
    notebook = _with_directions(task, notebook)
    if not _holds(notebook, task.settings["directions"]):  # a new device, or a lost home
        return Fit(Upload(client, task.number, learner.samples, mixture={}), notebook, ())
    migrate = bool(task.settings.get("migrate"))
    counts = histogram_of(learner) if migrate else []
    if task.mixture and migrate and not _searches_again(task, learner, counts, notebook.get("histogram", ())):
        return Fit(Upload(client, task.number, learner.samples, mixture=task.mixture), notebook, ())
    group = _nearest_group(layout, task, learner, notebook)
    upload = Upload(client, task.number, learner.samples, mixture={group: 1.0})
    if not migrate:  # nobody asks again
        return Fit(upload, {k: v for k, v in notebook.items() if k not in (ORIGIN, "directions")}, ())
    return Fit(upload, {**notebook, "histogram": counts}, ())


def use(layout: Layout, task: Task, notebook: Notebook) -> Ensemble:
    """The last model given to train; before the first, where the groups set out for on average."""
    if "own" in notebook:
        return ((1.0, notebook["own"]),)
    notebook = _with_directions(task, notebook)
    if ORIGIN not in notebook:
        raise SettingError("This client has no model yet", "Draw one, or refresh, first")
    ways = list(notebook["directions"].values())
    return ((1.0, combine(layout, [notebook[ORIGIN], *ways], [1.0, *[1 / len(ways)] * len(ways)], newest=0)),)


def _with_directions(task: Task, notebook: Notebook) -> Notebook:
    """The notebook with the directions the task brings, if it brings any."""
    if ORIGIN not in task.models:
        return notebook
    ways = {k: params for k, params in task.models.items() if k != ORIGIN}
    return {**notebook, ORIGIN: task.models[ORIGIN], "directions": ways}


def _holds(notebook: Notebook, digest: str) -> bool:
    """Are the directions in the notebook those of this digest?"""
    return ORIGIN in notebook and directions_digest(notebook[ORIGIN], notebook["directions"]) == digest


def _searches_again(task: Task, learner: Learner, now: Sequence[int], before: Sequence[int]) -> bool:
    """Have the labels changed since the client last searched for its group? Without samples nobody searches."""
    if not learner.samples:
        return False
    if not before:
        return True
    share = shifted(now, before, task.settings["shift_distance"], learner.samples)
    return share >= task.settings["shift_fraction"]


def _nearest_group(layout: Layout, task: Task, learner: Learner, notebook: Notebook) -> ClusterId:
    """argmin_j (1 - cos(direction_j, change)) / 2; ties, and a change of nothing, go to the first."""
    names = list(notebook["directions"])
    if not learner.samples:
        return names[0]
    origin = notebook[ORIGIN]
    change = minus(layout, trained(task, learner, origin), origin)
    apart = [(1 - cosine(layout, way, change)) / 2 for way in notebook["directions"].values()]
    return names[int(np.argmin(apart))]


MATCH = Recipe("match", fit, use)
