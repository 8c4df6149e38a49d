"""Train the given model and send it back: the client half of CDFL, FedAvg and most others."""

from __future__ import annotations

from artesian.algorithms.gates import Gate, readable_samples
from artesian.core import ClientId, ClusterId, Ensemble, Fit, Learner, Notebook, Recipe, Task, Upload
from artesian.params import Layout, kept_by_size, minus
from artesian.recipes.following import only_model, trained
from artesian.recipes.labels import histogram_of


def fit(layout: Layout, client: ClientId, task: Task, learner: Learner, notebook: Notebook) -> Fit:
    """Train the given model, perhaps pulled towards it (`prox`), or only its larger weights (`sparsity`).

    Send it, or its change (`delta`). A task may ask to keep the given model (`keep`) and the labels' counts (`labels`),
    and may bring a `gate` to estimate the mixture with.
    """
    ((cluster, given),) = task.models.items()
    prox = float(task.settings.get("prox", 0.0))
    sparsity = float(task.settings.get("sparsity", 0.0))
    mask = kept_by_size(layout, given, sparsity) if sparsity else None
    new = trained(task, learner, given, pulls=((prox, given),) if prox else (), mask=mask)
    sent = minus(layout, new, given) if task.settings.get("delta") else new
    if task.settings.get("keep"):
        notebook = {**notebook, "own": given}
    if task.settings.get("labels"):
        notebook = {**notebook, "histogram": histogram_of(learner)}
    upload = Upload(client, task.number, learner.samples, {cluster: sent}, asked(task, learner))
    return Fit(upload, notebook, ((1.0, new),))


def asked(task: Task, learner: Learner) -> dict[ClusterId, float] | None:
    """The shares of the task's `clusters` by its gate; None where there is no gate, or no samples it could see."""
    samples = readable_samples(learner) if "gate" in task.settings else None
    if samples is None:
        return None
    shares = Gate.of(task.settings["gate"]).shares(*samples)
    return dict(zip(task.settings["clusters"], shares.tolist(), strict=True))


def use(layout: Layout, task: Task, notebook: Notebook) -> Ensemble:
    """The given model as it is."""
    return ((1.0, only_model(task)),)


TRAIN = Recipe("train", fit, use)
