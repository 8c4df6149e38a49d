"""A gate: a small classifier of clusters that a client runs on its own samples, to estimate its mixture itself.

It sees random features of the input, the same for everybody, and the target: so it is a few kilobytes, needs no model,
and does not depend on what the client was given. From its answers, sample by sample, shares follow by expectation
maximisation, as in the estimation of label shift (Saerens et al. 2002). Only the shares leave the client.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any, Self

import numpy as np

from artesian.core import ClusterId, Learner, Readable, generator
from artesian.errors import BadFormat, SettingError

SIZE = 32  # random features of an input
RIDGE = 1e-3  # of the fit, relative to the number of samples
ROUNDS = 100  # of expectation maximisation
LEAST = 1e-3  # the smallest share
SHARPNESS = np.geomspace(0.5, 50, 25)  # what answers may be multiplied with, to be as sure as they are right


@dataclass(frozen=True)
class Gate:
    """Weights (features x clusters) of a linear score; what inputs are shifted and scaled by; how many classes."""

    weights: np.ndarray
    shift: float
    scale: float
    classes: int  # 0: targets are numbers

    def answers(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """How likely every sample (rows) is of every cluster (columns), if all clusters are equally likely."""
        scores = _features((x - self.shift) / self.scale, y, self.classes) @ self.weights.astype(np.float64)
        powers = np.exp(scores - scores.max(axis=1, keepdims=True))
        found: np.ndarray = powers / powers.sum(axis=1, keepdims=True)
        return found

    def shares(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """The mixture these samples are most likely to come from."""
        answers, shares = self.answers(x, y), np.full(self.weights.shape[1], 1 / self.weights.shape[1])
        for _ in range(ROUNDS if len(x) else 0):
            weighed = answers * shares
            shares = (weighed / weighed.sum(axis=1, keepdims=True)).mean(axis=0)
        shares = np.maximum(shares, LEAST)
        return shares / shares.sum()

    @property
    def text(self) -> dict[str, Any]:
        """The gate as JSON values, for a task."""
        packed = b64encode(self.weights.astype(np.float16).tobytes()).decode()
        return {"weights": packed, "clusters": self.weights.shape[1], "shift": self.shift, "scale": self.scale} | {
            "classes": self.classes
        }

    @classmethod
    def of(cls, text: Mapping[str, Any]) -> Self:
        """The gate of a task."""
        try:
            numbers = np.frombuffer(b64decode(text["weights"], validate=True), np.float16).astype(np.float32)
            weights = numbers.reshape(-1, int(text["clusters"]))
            return cls(weights, float(text["shift"]), float(text["scale"]), int(text["classes"]))
        except (KeyError, TypeError, ValueError):
            raise BadFormat("The gate of the task cannot be read", "Fetch the task again") from None


def fitted(proxies: Mapping[ClusterId, Learner]) -> Gate:
    """A gate that tells clusters apart by their proxy sets: fitted to one half of each, as sure as the other allows."""
    sets = [readable(k, proxy).arrays() for k, proxy in proxies.items()]
    everything = np.concatenate([x for x, _ in sets])
    classes = _classes([y for _, y in sets])
    rough = Gate(np.zeros((1, len(sets))), float(everything.mean()), float(everything.std()) or 1.0, classes)
    kept, tried = (_stacked(rough, [(x[first::2], y[first::2]) for x, y in sets]) for first in (0, 1))
    features, targets = kept
    heavy = RIDGE * len(features) * np.eye(features.shape[1])
    weights = np.linalg.solve(features.T @ features + heavy, features.T @ (targets - 1 / len(sets)))
    sure = min(SHARPNESS, key=lambda times: _surprise(times * tried[0] @ weights, tried[1]))
    return Gate((sure * weights).astype(np.float16).astype(np.float32), rough.shift, rough.scale, classes)


def readable(cluster: ClusterId, learner: Learner) -> Readable:
    """A learner that hands out its samples; refused where it does not."""
    if not isinstance(learner, Readable) or not learner.samples:
        raise SettingError(
            f"The data of {cluster} cannot be read by a gate: there are none, or their learner has no method arrays",
            'Give the learner arrays, or set estimator = "calibrated"',
        )
    return learner


def _classes(targets: Sequence[np.ndarray]) -> int:
    """How many labels there are; 0 where targets are numbers."""
    if any(y.dtype.kind == "f" for y in targets):
        return 0
    return int(max(y.max() for y in targets)) + 1


def _stacked(rough: Gate, sets: Sequence[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """The features of all samples, and which cluster each is of."""
    features = [_features((x - rough.shift) / rough.scale, y, rough.classes) for x, y in sets]
    targets = [np.tile(np.eye(len(sets))[i], (len(x), 1)) for i, (x, _) in enumerate(sets)]
    return np.concatenate(features), np.concatenate(targets)


def _features(x: np.ndarray, y: np.ndarray, classes: int) -> np.ndarray:
    """Random features of the inputs, and the same once more for every label, or times the target."""
    rng = generator("gate", x.shape[1])
    directions = rng.normal(0, 1 / sqrt(x.shape[1]), (x.shape[1], SIZE))
    bent = np.maximum(x @ directions + rng.normal(0, 0.5, SIZE), 0.0)
    seen = np.concatenate([bent, np.ones((len(x), 1))], axis=1)
    if classes:
        said = (y[:, None] == np.arange(classes)).astype(np.float64)
    else:
        said = np.asarray(y, np.float64).reshape(len(x), -1)[:, :1]
    return np.concatenate([seen, (seen[:, :, None] * said[:, None, :]).reshape(len(x), -1)], axis=1)


def _surprise(scores: np.ndarray, targets: np.ndarray) -> float:
    """The mean negative log-likelihood of the right clusters."""
    shifted = scores - scores.max(axis=1, keepdims=True)
    return float(np.mean(np.log(np.exp(shifted).sum(axis=1)) - (shifted * targets).sum(axis=1)))
