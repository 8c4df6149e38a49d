"""A gate: a small classifier of clusters that a client runs on its own samples, to estimate its mixture itself.

It sees random features of the input, the same for everybody and made by integer arithmetic that any language has, and
the target: so it is a few kilobytes, needs no model, and does not depend on what the client was given. Of labels its
score is linear in the features, alone and once more for every label; of numbers it is linear in the features less half
the squared error of a small regression, in units of how far such regressions are usually off. From its answers, sample
by sample, shares follow by expectation maximisation, as in the estimation of label shift (Saerens et al. 2002). Only
the shares leave the client.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import sqrt
from typing import Any, Literal, Self, get_args

import numpy as np

from artesian.algorithms.calibration import PRETEND_SAMPLES, random_shares
from artesian.core import ClusterId, Divisible, Learner, Readable, generator
from artesian.errors import BadData, BadFormat, SettingError

Samples = tuple[np.ndarray, np.ndarray]  # inputs and targets
Randomness = Literal["hashed", "normal"]  # how the directions of features are made: by integers, or, earlier, by numpy

SIZE = 32  # random features of an input
RIDGE = 1e-3  # of the fit, relative to the number of samples
ROUNDS = 100  # of expectation maximisation
LEAST = 1e-3  # the smallest share
LABELS = 32  # that are told apart, at most: beyond, some count as the same
AT_ONCE = 1 << 22  # numbers of inputs that are looked at together
ENOUGH = 1 << 25  # numbers of inputs that a mixture is estimated from, at most
SHARPNESS = np.geomspace(0.5, 50, 25)  # what answers may be multiplied with, to be as sure as they are right


@dataclass(frozen=True)
class Gate:
    """Weights (rows x clusters) of a score; what inputs are shifted and scaled by; how many classes.

    For labels there is a row for every feature. For numbers the rows are those of a linear score, those of a
    regression, and 1 over its usual error.
    """

    weights: np.ndarray
    shift: float
    scale: float
    classes: int  # 0: targets are numbers
    features: Randomness = "hashed"

    def answers(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """How likely every sample (rows) is of every cluster (columns), if all clusters are equally likely."""
        weights, seen = self.weights.astype(np.float64), _seen((x - self.shift) / self.scale, self.features)
        scores = _scores(weights, seen, y, self.classes)
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
        told = {"weights": packed, "clusters": self.weights.shape[1], "shift": self.shift, "scale": self.scale}
        return {**told, "classes": self.classes, "features": self.features}

    @classmethod
    def of(cls, text: Mapping[str, Any]) -> Self:
        """The gate of a task."""
        try:
            numbers = np.frombuffer(b64decode(text["weights"], validate=True), np.float16).astype(np.float32)
            weights = numbers.reshape(-1, int(text["clusters"]))
            features = _known(text.get("features", "normal"))  # not said in stores from before there were two
            return cls(weights, float(text["shift"]), float(text["scale"]), int(text["classes"]), features)
        except (KeyError, TypeError, ValueError):
            raise BadFormat(
                "The gate of the task cannot be read", "Fetch the task again, or install a newer artesian"
            ) from None


def fitted(proxies: Mapping[ClusterId, Learner]) -> Gate:
    """A gate that tells clusters apart by their proxy sets: fitted to one half of each, as sure as the other allows."""
    sets = [samples_of(k, proxy) for k, proxy in proxies.items()]
    everything = np.concatenate([x for x, _ in sets])
    classes = _classes([y for _, y in sets])
    rough = Gate(np.zeros((1, len(sets))), float(everything.mean()), float(everything.std()) or 1.0, classes)
    kept, others = ([(_seen((x[i::2] - rough.shift) / rough.scale), y[i::2]) for x, y in sets] for i in (0, 1))
    weights = _of_labels(kept, classes) if classes else _of_numbers(kept, others)
    told = [
        np.concatenate([_scores(weights, seen, y, classes) for seen, y in others]),
        _of_which([len(seen) for seen, _ in others]),
    ]
    sure = min(SHARPNESS, key=lambda times: _surprise(times * told[0], told[1]))
    return replace(rough, weights=_surer(weights, float(sure), classes).astype(np.float16).astype(np.float32))


def tried(gate: Gate, proxies: Mapping[ClusterId, Learner], count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """What a gate says of so many pretend clients, and their true shares.

    Their samples are of the halves that it was not fitted to.
    """
    sets = [tuple(part[1::2] for part in samples_of(k, proxy)) for k, proxy in proxies.items()]
    size = min(PRETEND_SAMPLES, max(len(x) for x, _ in sets))
    said, true = [], []
    for i in range(count):
        rng = generator(seed, "gate", i)
        counts = rng.multinomial(size, random_shares(rng, len(sets))).tolist()
        rows = [rng.choice(len(x), many, replace=many > len(x)) for (x, _), many in zip(sets, counts, strict=True)]
        x, y = (np.concatenate([s[part][own] for s, own in zip(sets, rows, strict=True)]) for part in (0, 1))
        said.append(gate.shares(x, y))
        true.append(np.array(counts) / size)
    return np.array(said), np.array(true)


def samples_of(cluster: ClusterId, proxy: Learner) -> Samples:
    """The samples of a proxy set; refused where it hands out none, or too few to fit a gate and to try it."""
    try:
        if isinstance(proxy, Readable) and proxy.samples > 1:
            return proxy.arrays()
    except BadData:  # a stream, or samples of different sizes
        pass
    raise SettingError(
        f"The data of {cluster} cannot be read by a gate: they are fewer than two, or their learner has no arrays",
        'Give it two samples or more, as arrays, or set algorithm.estimator = "paper"',
    )


def readable_samples(learner: Learner) -> Samples | None:
    """A client's samples, or enough of them; None where a gate cannot see any."""
    if not isinstance(learner, Readable) or not learner.samples:
        return None
    try:
        return (_some(learner) if isinstance(learner, Divisible) else learner).arrays()
    except BadData:  # a stream, or samples of different sizes
        return None


def _some(learner: Any) -> Any:
    """A learner itself, or of one with very large samples as many as are enough, evenly spread."""
    if learner.samples <= 1:
        return learner
    width = learner.part(np.arange(1)).arrays()[0].shape[1]
    many = max(1, ENOUGH // max(width, 1))
    return learner if learner.samples <= many else learner.part(np.arange(many) * learner.samples // many)


def _classes(targets: Sequence[np.ndarray]) -> int:
    """How many labels are told apart; 0 where targets are numbers."""
    if any(y.dtype.kind == "f" for y in targets):
        return 0
    return min(LABELS, max(1, *(int(_label(y, 0).max()) + 1 for y in targets)))


def _label(y: np.ndarray, classes: int) -> np.ndarray:
    """One label for every sample; the same for all whose targets are several."""
    if y.ndim > 1:
        return np.zeros(len(y), np.int64)
    return y % LABELS if classes == LABELS else y


def _of_labels(sets: Sequence[Samples], classes: int) -> np.ndarray:
    """A linear score: the least squares of which cluster a sample is of."""
    features = np.concatenate([_features(seen, y, classes) for seen, y in sets])
    return _least(features, _of_which([len(seen) for seen, _ in sets]))


def _of_numbers(sets: Sequence[Samples], others: Sequence[Samples]) -> np.ndarray:
    """A linear score of the inputs, and a regression for each cluster, with its error on the other halves."""
    linear = _least(np.concatenate([seen for seen, _ in sets]), _of_which([len(seen) for seen, _ in sets]))
    lines = [_least(seen, _number(y)) for seen, y in sets]
    errors = [float(np.mean((_number(y) - seen @ line) ** 2)) for (seen, y), line in zip(others, lines, strict=True)]
    sharp = 1 / np.sqrt(np.maximum(errors, 1e-6 * max(errors) + 1e-12))
    linear[-1] += np.log(sharp)  # the last feature is 1
    return np.concatenate([linear, np.concatenate(lines, axis=1) * sharp, sharp[None]])


def _scores(weights: np.ndarray, seen: np.ndarray, y: np.ndarray, classes: int) -> np.ndarray:
    """How well every sample (rows) fits every cluster (columns)."""
    if classes or len(weights) == 2 * (SIZE + 1):  # as in stores from before numbers had a regression
        return _features(seen, y, classes) @ weights
    linear, lines, sharp = np.split(weights, [SIZE + 1, 2 * (SIZE + 1)])
    scores: np.ndarray = seen @ linear - 0.5 * np.square(_number(y) * sharp - seen @ lines)
    return scores


def _surer(weights: np.ndarray, times: float, classes: int) -> np.ndarray:
    """Weights whose scores are so many times as large."""
    by = np.full((len(weights), 1), times)
    if not classes:
        by[SIZE + 1 :] = sqrt(times)  # their errors are squared
    return weights * by


def _seen(x: np.ndarray, features: Randomness = "hashed") -> np.ndarray:
    """Random features of the inputs, and a 1."""
    directions, offsets = _directions(x.shape[1], features)
    rows = max(1, AT_ONCE // x.shape[1])
    bent = [np.maximum(x[i : i + rows] @ directions + offsets, 0.0) for i in range(0, max(len(x), 1), rows)]
    return np.concatenate([np.concatenate(bent), np.ones((len(x), 1))], axis=1)


def _directions(width: int, features: Randomness) -> tuple[np.ndarray, np.ndarray]:
    """What an input of this width is multiplied with for each feature (columns), and what is added then."""
    if features == "normal":
        rng = generator("gate", width)
        return rng.normal(0, 1 / sqrt(width), (width, SIZE)), rng.normal(0, 0.5, SIZE)
    numbers = hashed((width + 1) * SIZE).reshape(width + 1, SIZE)
    return numbers[:-1] / sqrt(width), numbers[-1] / 2


def hashed(count: int) -> np.ndarray:
    """So many fixed numbers of mean 0 and variance 1: the bits of 1, 2, 3, ... mixed as at the end of MurmurHash3."""
    bits = np.arange(1, count + 1, dtype=np.uint32)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        bits = (bits ^ (bits >> np.uint32(shift))) * np.uint32(factor)  # modulo 2^32
    bits ^= bits >> np.uint32(16)
    return sqrt(12) * ((bits + 0.5) / 2.0**32 - 0.5)


def _known(features: Any) -> Randomness:
    if features not in get_args(Randomness):
        raise ValueError(features)
    return features


def _features(seen: np.ndarray, y: np.ndarray, classes: int) -> np.ndarray:
    """What is seen of the inputs, and the same once more for every label, or times the target."""
    said = (_label(y, classes)[:, None] == np.arange(classes)).astype(np.float64) if classes else _number(y)
    return np.concatenate([seen, (seen[:, :, None] * said[:, None, :]).reshape(len(seen), -1)], axis=1)


def _number(y: np.ndarray) -> np.ndarray:
    """The target as a column; of several numbers the first."""
    return np.asarray(y, np.float64).reshape(len(y), -1)[:, :1]


def _of_which(counts: Sequence[int]) -> np.ndarray:
    """Which cluster each sample is of, less an even guess, where each has so many."""
    found: np.ndarray = np.repeat(np.eye(len(counts)), counts, axis=0) - 1 / len(counts)
    return found


def _least(features: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Least squares with a small ridge."""
    heavy = RIDGE * len(features) * np.eye(features.shape[1])
    found: np.ndarray = np.linalg.solve(features.T @ features + heavy, features.T @ targets)
    return found


def _surprise(scores: np.ndarray, targets: np.ndarray) -> float:
    """The mean negative log-likelihood of the right clusters."""
    shifted = scores - scores.max(axis=1, keepdims=True)
    right = np.take_along_axis(shifted, targets.argmax(axis=1)[:, None], axis=1)[:, 0]
    return float(np.mean(np.log(np.exp(shifted).sum(axis=1)) - right))
