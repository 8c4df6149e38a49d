"""The client halves of all algorithms: a small closed set, chosen by name in the task.

The server never ships code. A recipe has two parts: `fit` (task, learner, notebook -> fit) and `use` (what
the client predicts with).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from artesian.core import ClientId, ClusterId, Ensemble, Learner, Mixture, Notebook, Plan, Task, Upload
from artesian.errors import BadMixture, NotFinite, SettingError, WrongModels, nearest
from artesian.params import Layout, Params, combine, cosine, kept_by_size, minus
from artesian.storage.codec import digest

OWN = "own"  # what a client calls the one model it trained from several
ORIGIN = "origin"  # the model from which all directions begin
DISTANCES = ("changed", "mean_abs", "sorted_w1")  # between two histograms
ESTIMATE_ONLY = "estimate_only"  # the setting of a task that asks for a mixture and no training
FLOOR = 1e-8  # a component's share counts as this much at least


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
    """Train the given model, perhaps pulled towards it (`prox`), or only its larger weights (`sparsity`).

    Send it, or its change (`delta`). A task may ask to keep the given model (`keep`) and the labels' counts (`labels`).
    """
    ((cluster, given),) = task.models.items()
    prox = float(task.settings.get("prox", 0.0))
    pulls = ((prox, given),) if prox else ()
    sparsity = float(task.settings.get("sparsity", 0.0))
    mask = kept_by_size(layout, given, sparsity) if sparsity else None
    trained = learner.train(given, seed=task.settings["seed"], plan=Plan.of(task.settings), pulls=pulls, mask=mask)
    sent = minus(layout, trained, given) if task.settings.get("delta") else trained
    if task.settings.get("keep"):
        notebook = replace(notebook, own=given)
    if task.settings.get("labels"):
        notebook = replace(notebook, histogram=histogram_of(learner))
    return Fit(Upload(client, task.number, learner.samples, {cluster: sent}), notebook, ((1.0, trained),))


def use_train(layout: Layout, task: Task, notebook: Notebook) -> Ensemble:
    """The given model as it is."""
    return ((1.0, _only(task)),)


def fit_soft(layout: Layout, client: ClientId, task: Task, learner: Learner, notebook: Notebook) -> Fit:
    """Count which model fits each sample best; train one near their blend by these shares; send it and them.

    A `personal` model goes on from itself instead, and is pulled towards every model by its share.
    """
    if task.settings.get(ESTIMATE_ONLY):
        return _estimate_soft(layout, client, task, learner, notebook)
    if task.settings.get("personal"):
        return _fit_personal(layout, client, task, learner, notebook)
    mixture = shares_of(task, learner)
    anchor = blended(layout, task.models, mixture)
    prox = float(task.settings.get("prox", 0.0))
    pulls = ((prox, anchor),) if prox else ()
    trained = learner.train(anchor, seed=task.settings["seed"], plan=Plan.of(task.settings), pulls=pulls)
    return Fit(Upload(client, task.number, learner.samples, {OWN: trained}, mixture), notebook, ((1.0, trained),))


def _estimate_soft(layout: Layout, client: ClientId, task: Task, learner: Learner, notebook: Notebook) -> Fit:
    """Only the shares; a client with a personal model to come begins it here, at the even blend."""
    mixture = shares_of(task, learner)
    own = _personal(layout, task, notebook) if task.settings.get("personal") else notebook.own
    kept = replace(notebook, own=own, mixture=mixture)
    return Fit(Upload(client, task.number, learner.samples, {}, mixture), kept, ())


def _fit_personal(layout: Layout, client: ClientId, task: Task, learner: Learner, notebook: Notebook) -> Fit:
    """Go on from one's own model, pulled towards every given one by the share told last."""
    shares = shares_of(task, learner) if task.mixture is None else dict(task.mixture)
    prox = float(task.settings.get("prox", 0.0))
    pulls = [(prox * shares.get(k, 0.0), centre) for k, centre in task.models.items() if prox * shares.get(k, 0.0)]
    start = _personal(layout, task, notebook)
    own = learner.train(start, seed=task.settings["seed"], plan=Plan.of(task.settings), pulls=pulls)
    kept = replace(notebook, own=own, mixture=shares)
    return Fit(Upload(client, task.number, learner.samples, {OWN: own}, shares), kept, ((1.0, own),))


def use_soft(layout: Layout, task: Task, notebook: Notebook) -> Ensemble:
    """The blend of what was given, by the shares told last, evenly before the first; or the personal model."""
    if task.settings.get("personal"):
        return ((1.0, _personal(layout, task, notebook)),)
    return ((1.0, blended(layout, task.models, task.mixture)),)


def _personal(layout: Layout, task: Task, notebook: Notebook) -> Params:
    """One's own model; before there is one, the even blend of those given."""
    return blended(layout, task.models, None) if notebook.own is None else notebook.own


def fit_match(layout: Layout, client: ClientId, task: Task, learner: Learner, notebook: Notebook) -> Fit:
    """Tell in which group's direction one's own training goes; an empty mixture asks for the directions.

    With `migrate`, a client that has a group keeps it until its labels are others than when it last looked.
    """
    notebook = _with_directions(task, notebook)
    if directions_digest(notebook) != task.settings["directions"]:  # a new device, or a lost home
        return Fit(Upload(client, task.number, learner.samples, mixture={}), notebook, ())
    migrate = bool(task.settings.get("migrate"))
    counts = histogram_of(learner) if migrate else ()
    if task.mixture and migrate and not _looks_again(task, learner, counts, notebook.histogram):
        return Fit(Upload(client, task.number, learner.samples, mixture=task.mixture), notebook, ())
    group = _nearest_group(layout, task, learner, notebook)
    told = Upload(client, task.number, learner.samples, mixture={group: 1.0})
    if not migrate:  # nobody asks again
        return Fit(told, replace(notebook, origin=None, directions={}), ())
    return Fit(told, replace(notebook, histogram=counts), ())


def use_match(layout: Layout, task: Task, notebook: Notebook) -> Ensemble:
    """The last model given to train; before the first, where the groups set out for on average."""
    if notebook.own is not None:
        return ((1.0, notebook.own),)
    notebook = _with_directions(task, notebook)
    if notebook.origin is None:
        raise SettingError("a client has drawn a model before it uses one", "none at home", "draw or refresh first")
    ways = list(notebook.directions.values())
    return ((1.0, combine(layout, [notebook.origin, *ways], [1.0, *[1 / len(ways)] * len(ways)], newest=0)),)


def directions_digest(notebook: Notebook) -> str:
    """A name for exactly these directions and their origin."""
    return digest({ORIGIN: notebook.origin, "directions": dict(notebook.directions)})


def histogram_of(learner: Learner) -> tuple[int, ...]:
    """How many samples have each label; a learner that cannot tell is refused."""
    counts = getattr(learner, "histogram", None)
    if counts is None:
        raise SettingError(
            "a client that may move to another group watches its labels",
            f"a {type(learner).__name__} without a histogram of labels",
            "use fedgroup, whose clients stay, or give the learner a `histogram`",
        )
    return tuple(counts)


def shift(now: tuple[int, ...], before: tuple[int, ...], rule: str) -> int:
    """How many samples separate two histograms.

    `changed`: those added, or those removed, whichever are more; `mean_abs`: both together, which is L times the mean
    difference of L labels; `sorted_w1`: the same of the sorted counts, blind to which label is which.
    """
    counts = np.zeros((2, max(len(now), len(before))), np.int64)
    counts[0, : len(now)], counts[1, : len(before)] = now, before
    if rule == "sorted_w1":
        counts.sort(axis=1)
    gained = counts[0] - counts[1]
    added, removed = int(np.maximum(gained, 0).sum()), int(np.maximum(-gained, 0).sum())
    return max(added, removed) if rule == "changed" else added + removed


def _looks_again(task: Task, learner: Learner, now: tuple[int, ...], before: tuple[int, ...]) -> bool:
    """Are the labels others than when the client last looked for its group? Without samples nobody looks."""
    if not learner.samples:
        return False
    if not before:
        return True
    return shift(now, before, task.settings["shift_distance"]) / learner.samples >= task.settings["shift_fraction"]


def _nearest_group(layout: Layout, task: Task, learner: Learner, notebook: Notebook) -> ClusterId:
    """argmin_j (1 - cos(direction_j, change)) / 2; ties, and a change of nothing, go to the first."""
    names = list(notebook.directions)
    if not learner.samples or notebook.origin is None:
        return names[0]
    trained = learner.train(notebook.origin, seed=task.settings["seed"], plan=Plan.of(task.settings))
    change = minus(layout, trained, notebook.origin)
    apart = [(1 - cosine(layout, way, change)) / 2 for way in notebook.directions.values()]
    return names[int(np.argmin(apart))]


def _with_directions(task: Task, notebook: Notebook) -> Notebook:
    """The notebook with the directions the task brings, if it brings any."""
    if ORIGIN not in task.models:
        return notebook
    ways = {k: params for k, params in task.models.items() if k != ORIGIN}
    return replace(notebook, origin=task.models[ORIGIN], directions=ways)


def shares_of(task: Task, learner: Learner) -> dict[ClusterId, float]:
    """How many of the samples each model fits best; ties go to the first, and no share is below `sigma`.

    They are scaled to sum to 1, unless `normalise` is false.
    """
    losses = _losses(task, learner)
    counts = np.bincount(losses.argmin(axis=0), minlength=len(losses)) if learner.samples else np.ones(len(losses))
    shares = np.maximum(counts / counts.sum(), float(task.settings.get("sigma", 0.0)))
    if task.settings.get("normalise", True):
        shares = shares / shares.sum()
    return dict(zip(task.models, shares.tolist(), strict=True))


def fit_pick(layout: Layout, client: ClientId, task: Task, learner: Learner, notebook: Notebook) -> Fit:
    """Pick the model with the smallest mean loss; train it; send it, or its change (`delta`), and the pick."""
    picked = _best(task, learner)
    mixture = {picked: 1.0}
    kept = replace(notebook, mixture=mixture)
    if task.settings.get(ESTIMATE_ONLY):
        return Fit(Upload(client, task.number, learner.samples, {}, mixture), kept, ())
    given = task.models[picked]
    trained = learner.train(given, seed=task.settings["seed"], plan=Plan.of(task.settings))
    sent = minus(layout, trained, given) if task.settings.get("delta") else trained
    return Fit(Upload(client, task.number, learner.samples, {OWN: sent}, mixture), kept, ((1.0, trained),))


def use_pick(layout: Layout, task: Task, notebook: Notebook) -> Ensemble:
    """The model picked last; the first one before any pick."""
    picked = notebook.mixture or task.mixture or {}
    return ((1.0, next((params for k, params in task.models.items() if k in picked), _first(task))),)


def pick_of(upload: Upload) -> ClusterId:
    """The one cluster that an upload picks; one that does not pick is refused."""
    picked = [k for k, share in (upload.mixture or {}).items() if share == 1]
    if len(picked) != 1 or len(upload.mixture or {}) != 1:
        raise BadMixture("a pick is one cluster with the share 1", str(dict(upload.mixture or {})), "pick one")
    return picked[0]


def _best(task: Task, learner: Learner) -> ClusterId:
    """The model with the smallest mean loss; ties, and a client without samples, take the first."""
    if not learner.samples:
        return next(iter(task.models))
    means = _losses(task, learner).mean(axis=1)
    if not np.isfinite(means).any():
        raise _no_loss(task)
    return list(task.models)[int(means.argmin())]


def _first(task: Task) -> Params:
    return next(iter(task.models.values()))


def fit_em(layout: Layout, client: ClientId, task: Task, learner: Learner, notebook: Notebook) -> Fit:
    """Find how far each component answers for each sample; train all of them by that; send them and their shares."""
    weights = _responsibilities(task, learner, notebook)
    known = _known_shares(task, notebook)
    found = weights.mean(axis=1).tolist() if learner.samples else known
    mixture = dict(zip(task.models, found, strict=True))
    seed, plan = task.settings["seed"], Plan.of(task.settings)
    trained = {
        k: learner.train(params, seed=seed, plan=plan, weights=weights[i])
        for i, (k, params) in enumerate(task.models.items())
    }
    kept = replace(notebook, mixture=mixture)
    return Fit(Upload(client, task.number, learner.samples, trained, mixture), kept, _voices(task, trained, found))


def use_em(layout: Layout, task: Task, notebook: Notebook) -> Ensemble:
    """All components, each with the share found last, or the one with the largest (`predict`); even before that."""
    return _voices(task, task.models, _known_shares(task, notebook))


def _responsibilities(task: Task, learner: Learner, notebook: Notebook) -> np.ndarray:
    """q: for every component (rows) and sample (columns), softmax over components of log share - loss."""
    losses = _losses(task, learner)
    losses[:, ~np.isfinite(losses).any(axis=0)] = 0.0  # a sample that no component can judge: as the shares say
    logits = np.log(np.maximum(_known_shares(task, notebook), FLOOR))[:, None] - losses
    powers = np.exp(logits - logits.max(axis=0, initial=-np.inf))
    found: np.ndarray = powers / powers.sum(axis=0)
    return found


def _known_shares(task: Task, notebook: Notebook) -> list[float]:
    """The shares of the components as found last; even before that."""
    known = notebook.mixture or task.mixture or {}
    shares = [known.get(k, 0.0) for k in task.models]
    return shares if sum(shares) > 0 else [1 / len(shares)] * len(shares)


def _voices(task: Task, models: Mapping[ClusterId, Params], shares: Sequence[float]) -> Ensemble:
    """Who predicts, with what weight."""
    voices = list(zip(shares, models.values(), strict=True))
    if task.settings.get("predict", "ensemble") == "largest":
        return ((1.0, voices[int(np.argmax(shares))][1]),)
    return tuple((share, params) for share, params in voices if share > 0)


def _losses(task: Task, learner: Learner) -> np.ndarray:
    """The loss of every sample (columns) under every model (rows); what is not a number is infinite."""
    losses = np.array([learner.losses(params) for params in task.models.values()], np.float64)
    losses[np.isnan(losses)] = np.inf
    if learner.samples and not np.isfinite(losses).any():
        raise _no_loss(task)
    return losses


def _no_loss(task: Task) -> NotFinite:
    return NotFinite(
        "one of the models given has a finite loss on the client's data",
        f"none of {', '.join(task.models)}",
        "check the data for NaN; if they are sound, the models diverged: begin again with a lower rate",
    )


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
    "match": Recipe(fit_match, use_match, nothing, estimates=True),
    "soft": Recipe(fit_soft, use_soft, own_only, estimates=True),
    "pick": Recipe(fit_pick, use_pick, own_only, estimates=True),
    "em": Recipe(fit_em, use_em, all_given, estimates=True),
}


def recipe(name: str) -> Recipe:
    """The recipe of this name."""
    if name not in RECIPES:
        raise SettingError("a task names a recipe this version knows", name, nearest(name, RECIPES))
    return RECIPES[name]
