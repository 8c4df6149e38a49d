"""Hostile clients: what they train on, and what they send in place of an honest upload. Pure functions.

An attack forges weights. Buffers (BatchNorm statistics, counters) and the client's own mixture stay honest, so a model
is never broken by a statistic that cannot be, such as a negative variance.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal, get_args

import numpy as np

from artesian.core import Task, Upload, generator
from artesian.data.datasets import Samples
from artesian.engine.admission import origins_of
from artesian.params import Layout, Params, seal

Attack = Literal[
    "sign-flip", "x10", "x1e6", "constant", "noise", "label-flip", "replay", "inflated-samples", "flood"
]  # fmt: skip
ATTACKS: tuple[Attack, ...] = get_args(Attack)
FACTORS: Mapping[Attack, float] = {  # what the honest change is multiplied by
    "sign-flip": -1.0,
    "x10": 10.0,
    "x1e6": 1e6,
    "replay": 0.0,  # the models of the task come back as they were given
    "inflated-samples": -1.0,
    "flood": -1.0,
}
CONSTANT = 1.0  # every weight that is sent by the attack of this name
NOISE = 10.0  # the size of the noise, in sizes of the honest change
SAMPLES = 2**40  # how many samples are claimed by "inflated-samples"
FLOOD = 100.0  # how many times faster trainings are by "flood"


def poisoned(attack: Attack, train: Samples, classes: int) -> Samples:
    """What a hostile client trains on: with "label-flip", class y becomes classes - 1 - y, a number is negated."""
    if attack != "label-flip":
        return train
    flipped = classes - 1 - train.y if classes > 1 else -train.y
    return replace(train, y=flipped.astype(train.y.dtype))


def forged(attack: Attack, layout: Layout, upload: Upload, task: Task, seed: int) -> Upload:
    """What a hostile client sends in place of this honest answer to the task."""
    if attack == "label-flip":  # its training was poisoned
        return upload
    given = origins_of(layout, upload, task)
    rng = generator(seed, "attack", upload.client, upload.number)
    models = {k: _forged(attack, layout, honest, given[k], rng) for k, honest in upload.models.items()}
    samples = SAMPLES if attack == "inflated-samples" else upload.samples
    return replace(upload, models=models, samples=samples)


def _forged(attack: Attack, layout: Layout, honest: Params, given: Params | None, rng: np.random.Generator) -> Params:
    """A model, or a change where nothing is given, with forged weights."""
    out, weights = honest.copy(), slice(layout.trainable)
    start = np.zeros(layout.trainable) if given is None else given[weights].astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):  # the server is to find out
        out[weights] = _weights(attack, start, honest[weights] - start, rng)
    return seal(out)


def _weights(attack: Attack, start: np.ndarray, change: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The weights that are sent in place of `start` + `change`."""
    if attack == "constant":
        return np.full_like(start, CONSTANT)
    if attack == "noise":
        size = NOISE * np.sqrt(np.square(change).mean())
        return start + size * rng.standard_normal(start.size)
    return start + FACTORS[attack] * change
