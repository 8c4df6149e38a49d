"""What a client sees of its new samples: the parts of a batch that drift detectors watch."""

from __future__ import annotations

import numpy as np

from artesian.core import Ensemble, Learner, Predictive
from artesian.drift.detector import Batch

SMALLEST = float(np.finfo(np.float32).tiny)  # below which a probability has no logarithm


def seen(learner: Learner, x: np.ndarray, y: np.ndarray, used: Ensemble, classes: int) -> Batch:
    """A batch with all parts that there are: of data without classes, or of a learner that does not predict, fewer."""
    losses = sum(weight * np.asarray(learner.losses(params), np.float64) for weight, params in used)
    labels = y if classes > 1 else None
    if labels is None or not isinstance(learner, Predictive):
        return Batch(x, labels, np.asarray(losses))
    said = learner.predictions(used)
    errors = (said.argmax(axis=1) != labels).astype(np.float64)
    logits = np.log(np.maximum(said, SMALLEST))  # a row's own constant apart, what the last layer gave
    return Batch(x, labels, np.asarray(losses), errors, logits)
