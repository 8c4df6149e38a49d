"""What a learner shows a detector: its samples, and what the models in use make of them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import numpy as np

from artesian.core import Divisible, Ensemble, Learner, Predicting, Readable, generator
from artesian.drift.detector import Batch, Part
from artesian.errors import BadData, SettingError

MOST = 2000  # samples that are looked at, of a learner that has more


def batch_of(learner: Learner, models: Ensemble, parts: Collection[Part], most: int = MOST) -> Batch:
    """The parts of a learner's data that detectors look at; nothing else is computed.

    Of a learner with more samples than `most`, as many are looked at, always in the same places.
    """
    if {"losses", "errors", "logits"} & set(parts) and not models:
        raise SettingError("Losses, errors and outputs are a model's, and there is none", "Refresh first, or draw")
    learner = _sampled(learner, most)
    if not learner.samples:
        return Batch(**{part: np.zeros(0) for part in parts})
    batch = Batch(losses=_losses(learner, models)) if "losses" in parts else Batch()
    if {"features", "labels", "errors"} & set(parts):
        x, y = _arrays(learner)
        batch = replace(batch, features=x, labels=y)
    if {"errors", "logits"} & set(parts):
        batch = _with_outputs(batch, learner, models, "errors" in parts)
    return batch


def _sampled(learner: Learner, most: int) -> Learner:
    if learner.samples <= most or not isinstance(learner, Divisible):
        return learner
    rows = np.sort(generator("look", learner.samples).choice(learner.samples, most, replace=False))
    try:
        return learner.part(rows)
    except BadData:  # a stream cannot be taken apart, and is looked at as a whole
        return learner


def _losses(learner: Learner, models: Ensemble) -> np.ndarray:
    """The weighted mean of the models' losses, for every sample."""
    total = sum(weight for weight, _ in models)
    return np.asarray(sum(weight / total * np.asarray(learner.losses(params), np.float64) for weight, params in models))


def _arrays(learner: Learner) -> tuple[np.ndarray, np.ndarray]:
    if not isinstance(learner, Readable):
        kind = type(learner).__name__
        raise SettingError(f"A {kind} does not show its samples", "Give it a method arrays, or watch its losses")
    return learner.arrays()


def _with_outputs(batch: Batch, learner: Learner, models: Ensemble, errors: bool) -> Batch:
    """The batch with the models' outputs, and where they are wrong if that is asked for."""
    if not isinstance(learner, Predicting):
        kind = type(learner).__name__
        raise SettingError(f"A {kind} does not show what models say", "Give it a method outputs, or watch its losses")
    outputs = learner.outputs(models)
    batch = replace(batch, logits=outputs)
    if not errors:
        return batch
    if outputs.ndim != 2 or batch.labels is None:
        raise SettingError("A regression has no errors to count", "Watch its losses")
    return replace(batch, errors=(outputs.argmax(axis=1) != batch.labels).astype(np.int64))
