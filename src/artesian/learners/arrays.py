"""Learners in plain numpy: softmax regression, a small perceptron, linear regression. They need no torch.

A model is a value that knows its layout, its start, and its gradient by hand; `ArrayLearner` joins it to data.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from artesian.core import Ensemble, Model, OptimizerState, Plan, Pull, generator
from artesian.errors import BadData
from artesian.learners.optimizer_states import closing_state, opening_state
from artesian.params import Layout, Params, seal

Arrays = dict[str, np.ndarray]
TINY = np.finfo(np.float32).tiny
QUIET = np.errstate(all="ignore")  # a training that diverges is refused by its numbers, not warned about


class ArrayModel(Protocol):
    """A model with a hand-written gradient."""

    @property
    def layout(self) -> Layout: ...
    @property
    def features(self) -> int: ...
    @property
    def classes(self) -> int | None:
        """How many labels there are; None for a regression."""
        ...

    def predict(self, arrays: Arrays, x: np.ndarray) -> np.ndarray:
        """Of samples, or of a stack of as many of each learner."""
        ...

    def losses(self, output: np.ndarray, y: np.ndarray) -> np.ndarray: ...
    def score(self, output: np.ndarray, y: np.ndarray) -> float: ...
    def gradient(self, arrays: Arrays, x: np.ndarray, y: np.ndarray, weights: np.ndarray, out: Arrays) -> None:
        """Write the gradient of sum_i weights_i loss_i into `out`."""
        ...


@dataclass(frozen=True)
class SoftmaxRegression(Model):
    """Multinomial logistic regression: one dense layer, cross-entropy."""

    features: int
    classes: int

    def __post_init__(self) -> None:
        _check_sizes(self.features, self.classes)

    @cached_property
    def layout(self) -> Layout:
        return Layout.of(_dense("dense", self.features, self.classes))

    def start(self, seed: int) -> Params:
        return _start(self.layout, seed)

    def learner(self, x: np.ndarray, y: np.ndarray) -> ArrayLearner:
        return ArrayLearner(self, x, y)

    def predict(self, arrays: Arrays, x: np.ndarray) -> np.ndarray:
        return _probabilities(_outputs(arrays, "dense", x))

    def losses(self, output: np.ndarray, y: np.ndarray) -> np.ndarray:
        return _cross_entropy(output, y)

    def score(self, output: np.ndarray, y: np.ndarray) -> float:
        return _accuracy(output, y)

    def gradient(self, arrays: Arrays, x: np.ndarray, y: np.ndarray, weights: np.ndarray, out: Arrays) -> None:
        _backward(out, "dense", x, _output_error(self.predict(arrays, x), y, weights))


@dataclass(frozen=True)
class Perceptron(Model):
    """One hidden layer with ReLU, cross-entropy."""

    features: int
    classes: int
    hidden: int = 32

    def __post_init__(self) -> None:
        _check_sizes(self.features, self.classes, self.hidden)

    @cached_property
    def layout(self) -> Layout:
        return Layout.of(_dense("hidden", self.features, self.hidden) | _dense("output", self.hidden, self.classes))

    def start(self, seed: int) -> Params:
        return _start(self.layout, seed)

    def learner(self, x: np.ndarray, y: np.ndarray) -> ArrayLearner:
        return ArrayLearner(self, x, y)

    def predict(self, arrays: Arrays, x: np.ndarray) -> np.ndarray:
        return self._forward(arrays, x)[1]

    def losses(self, output: np.ndarray, y: np.ndarray) -> np.ndarray:
        return _cross_entropy(output, y)

    def score(self, output: np.ndarray, y: np.ndarray) -> float:
        return _accuracy(output, y)

    def gradient(self, arrays: Arrays, x: np.ndarray, y: np.ndarray, weights: np.ndarray, out: Arrays) -> None:
        active, output = self._forward(arrays, x)
        error = _output_error(output, y, weights)
        _backward(out, "output", active, error)
        hidden_error = error @ arrays["output.weight"].T
        hidden_error *= active > 0
        _backward(out, "hidden", x, hidden_error)

    def _forward(self, arrays: Arrays, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        active = _outputs(arrays, "hidden", x)
        np.maximum(active, 0, out=active)
        return active, _probabilities(_outputs(arrays, "output", active))


@dataclass(frozen=True)
class LinearRegression(Model):
    """y = <x, w> + bias with squared error; `bias=False` is FedSoft's synthetic model."""

    features: int
    bias: bool = True

    def __post_init__(self) -> None:
        _check_sizes(self.features)

    @property
    def classes(self) -> None:
        return None

    @cached_property
    def layout(self) -> Layout:
        return Layout.of(_dense("dense", self.features, 1, self.bias))

    def start(self, seed: int) -> Params:
        return _start(self.layout, seed)

    def learner(self, x: np.ndarray, y: np.ndarray) -> ArrayLearner:
        return ArrayLearner(self, x, y)

    def predict(self, arrays: Arrays, x: np.ndarray) -> np.ndarray:
        output: np.ndarray = (x @ arrays["dense.weight"])[..., 0]
        return output + arrays["dense.bias"] if self.bias else output

    def losses(self, output: np.ndarray, y: np.ndarray) -> np.ndarray:
        return np.square(output - y)

    def score(self, output: np.ndarray, y: np.ndarray) -> float:
        """Minus the mean squared error: larger is better, as everywhere."""
        return -float(self.losses(output, y).mean(dtype=np.float64))

    def gradient(self, arrays: Arrays, x: np.ndarray, y: np.ndarray, weights: np.ndarray, out: Arrays) -> None:
        error = (2 * weights * (self.predict(arrays, x) - y))[:, None]
        _backward(out, "dense", x, error, self.bias)


@dataclass(frozen=True)
class ArrayLearner:
    """A model and the data it learns from."""

    model: ArrayModel
    x: np.ndarray
    y: np.ndarray

    def __post_init__(self) -> None:
        _check_data(self.x, self.y, self.model.features, self.model.classes)

    @property
    def samples(self) -> int:
        return len(self.x)

    @property
    def histogram(self) -> tuple[int, ...] | None:
        """How many samples of each class; None for a regression."""
        classes = self.model.classes
        return None if classes is None else tuple(np.bincount(self.y, minlength=classes).tolist())

    def batches(self, size: int) -> int:
        """How many steps an epoch takes."""
        return -(-self.samples // size)

    def part(self, rows: np.ndarray) -> ArrayLearner:
        """The same with these samples alone."""
        return ArrayLearner(self.model, self.x[rows], self.y[rows])

    def joined(self, others: Sequence[ArrayLearner]) -> ArrayLearner:
        """The same with the samples of these after its own."""
        everybody = (self, *others)
        x, y = (np.concatenate(parts) for parts in ([o.x for o in everybody], [o.y for o in everybody]))
        return ArrayLearner(self.model, x, y)

    def stacked(self, others: Sequence[ArrayLearner]) -> Callable[[Params], np.ndarray] | None:
        """Their losses in one pass, a row for each, where all are of one size: every product has the shape it had."""
        everybody, model = (self, *others), self.model
        if any(o._form != self._form or not o.x.flags.c_contiguous for o in everybody):
            return None
        x, y = np.stack([o.x for o in everybody]), np.stack([o.y for o in everybody])
        return QUIET(lambda params: model.losses(model.predict(model.layout.view(params), x), y))

    @property
    def _form(self) -> tuple[Any, ...]:
        """All but its numbers."""
        return self.model, self.x.shape, self.x.dtype, self.y.dtype

    def arrays(self) -> tuple[np.ndarray, np.ndarray]:
        """Inputs and targets."""
        return self.x, self.y

    @QUIET
    def losses(self, params: Params) -> np.ndarray:
        return self.model.losses(self._predict(params), self.y)

    @QUIET
    def score(self, ensemble: Ensemble) -> float:
        """Of the weighted mean of the models' predictions; 0 where there are no data."""
        if not self.samples:
            return 0.0
        return self.model.score(self.outputs(ensemble), self.y)

    @QUIET
    def outputs(self, ensemble: Ensemble) -> np.ndarray:
        """The weighted mean of the models' predictions."""
        return np.asarray(sum(weight * self._predict(params) for weight, params in ensemble))

    def train(self, params: Params, *, seed: int, plan: Plan, **how: Any) -> Params:
        """Minimise mean loss + sum of c/2 ||w - anchor||^2 from `params`; see `Learner.train`."""
        return self.train_on(params, {}, seed=seed, plan=plan, **how)[0]

    @QUIET
    def train_on(
        self,
        params: Params,
        kept: OptimizerState,
        *,
        seed: int,
        plan: Plan,
        pulls: Sequence[Pull] = (),
        weights: np.ndarray | None = None,
        mask: np.ndarray | None = None,
        correction: Params | None = None,
    ) -> tuple[Params, OptimizerState]:
        layout, rng = self.model.layout, generator(seed, "train")
        own = np.array(params, np.float32)
        gradient, scratch = np.zeros_like(own), np.empty_like(own)
        arrays, slots = layout.view(own), layout.view(gradient)
        state = opening_state(plan, own.size, kept)
        step = _optimizer(plan, state)
        weights = np.ones(self.samples, np.float32) if weights is None else weights.astype(np.float32)
        for epoch in range(plan.epochs):
            rate = np.float32(plan.rate_in(epoch))
            order = rng.permutation(self.samples)
            for first in range(0, self.samples, plan.batch):
                rows = order[first : first + plan.batch]
                self.model.gradient(arrays, self.x.take(rows, 0), self.y[rows], weights[rows] / len(rows), slots)
                for strength, anchor in pulls:
                    np.subtract(own, anchor, out=scratch)
                    gradient += np.multiply(scratch, np.float32(strength), out=scratch)
                if correction is not None:
                    gradient += correction
                if plan.decay:
                    gradient += np.multiply(own, np.float32(plan.decay), out=scratch)
                own -= step(gradient, rate) if mask is None else np.where(mask, step(gradient, rate), 0)
        return seal(own), closing_state(state)

    def _predict(self, params: Params) -> np.ndarray:
        return self.model.predict(self.model.layout.view(params), self.x)


def _check_data(x: np.ndarray, y: np.ndarray, features: int, classes: int | None) -> None:
    """Refuse samples that the model cannot take, and labels it has no output for."""
    if np.ndim(x) != 2 or np.shape(x)[1] != features:
        raise BadData(f"The samples have the shape {np.shape(x)}", f"Give an array of rows of {features} numbers")
    if len(x) != len(y):
        raise BadData(f"There are {len(x)} samples and {len(y)} targets", "Give one target for every sample")
    for name, array in (("inputs", np.asarray(x)), ("targets", np.asarray(y))):
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            first = int(np.argwhere(~np.isfinite(array))[0][0])
            raise BadData(f"The {name} of sample {first} are not finite", "Leave such samples out, or fill in numbers")
    if classes is None or not len(y):
        return
    labels = np.asarray(y)
    if labels.dtype.kind not in "iu":
        raise BadData(f"The labels are {labels.dtype}", "Give whole numbers")
    least, most = labels.min(), labels.max()
    if least < 0 or most >= classes:
        raise BadData(f"The labels go from {least} to {most}", f"Give labels from 0 to {classes - 1}")


def _check_sizes(*sizes: int) -> None:
    if not all(type(size) is int and size >= 1 for size in sizes):
        raise ValueError(f"features, classes and hidden are whole numbers from 1 on, not {sizes}")


def _dense(name: str, inputs: int, outputs: int, bias: bool = True) -> Arrays:
    shapes = {f"{name}.weight": np.zeros((inputs, outputs), np.float32)}
    return shapes | ({f"{name}.bias": np.zeros(outputs, np.float32)} if bias else {})


def _start(layout: Layout, seed: int) -> Params:
    """Weights uniform within 1/sqrt(inputs), biases 0."""
    rng, arrays = generator(seed, "start"), {}
    for entry in layout.entries:
        bound = entry.shape[0] ** -0.5 if len(entry.shape) == 2 else 0.0
        arrays[entry.name] = rng.uniform(-bound, bound, entry.shape).astype(np.float32)
    return layout.pack(arrays)


def _outputs(arrays: Arrays, name: str, inputs: np.ndarray) -> np.ndarray:
    """What a dense layer makes of its inputs."""
    outputs: np.ndarray = inputs @ arrays[f"{name}.weight"]
    outputs += arrays[f"{name}.bias"]
    return outputs


def _probabilities(logits: np.ndarray) -> np.ndarray:
    """Their softmax, in their place."""
    logits -= logits.max(axis=-1, keepdims=True)
    np.exp(logits, out=logits)
    logits /= logits.sum(axis=-1, keepdims=True)
    return logits


def _cross_entropy(probabilities: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Of the true class, at most -log of the smallest float32."""
    chosen = probabilities.reshape(-1, probabilities.shape[-1])[np.arange(y.size), y.reshape(-1)]
    losses: np.ndarray = -np.log(np.maximum(chosen, TINY))
    return losses.reshape(y.shape)


def _accuracy(probabilities: np.ndarray, y: np.ndarray) -> float:
    return int(np.count_nonzero(probabilities.argmax(axis=1) == y)) / len(y)


def _output_error(probabilities: np.ndarray, y: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """What the loss grows by with each logit, in the place of the probabilities."""
    probabilities[np.arange(len(y)), y] -= 1
    probabilities *= weights[:, None]
    return probabilities


def _backward(out: Arrays, name: str, inputs: np.ndarray, error: np.ndarray, bias: bool = True) -> None:
    np.matmul(inputs.T, error, out=out[f"{name}.weight"])
    if bias:
        error.sum(axis=0, out=out[f"{name}.bias"])


def _optimizer(plan: Plan, state: dict[str, Any]) -> Callable[[np.ndarray, np.float32], np.ndarray]:
    """A function from gradient and rate to step; it changes the state."""
    if plan.optimizer == "adam":
        return _adam(state)
    if not plan.momentum:
        return lambda gradient, rate: rate * gradient
    velocity = state["velocity"]

    def step(gradient: np.ndarray, rate: np.float32) -> np.ndarray:
        np.multiply(velocity, np.float32(plan.momentum), out=velocity)
        np.add(velocity, gradient, out=velocity)
        return rate * velocity

    return step


def _adam(state: dict[str, Any]) -> Callable[[np.ndarray, np.float32], np.ndarray]:
    first, second = state["first"], state["second"]
    scale, change = np.empty_like(first), np.empty_like(first)

    def step(gradient: np.ndarray, rate: np.float32) -> np.ndarray:
        steps = state["steps"] = state["steps"] + 1
        np.multiply(first, np.float32(0.9), out=first)
        np.add(first, np.multiply(gradient, np.float32(0.1), out=change), out=first)
        np.square(gradient, out=change)
        np.multiply(second, np.float32(0.999), out=second)
        np.add(second, np.multiply(change, np.float32(0.001), out=change), out=second)
        np.sqrt(np.divide(second, np.float32(1 - 0.999**steps), out=scale), out=scale)
        np.add(scale, np.float32(1e-8), out=scale)
        np.multiply(first, np.float32(float(rate) / (1 - 0.9**steps)), out=change)
        return np.divide(change, scale, out=change)

    return step


MODELS: dict[str, type[SoftmaxRegression] | type[Perceptron] | type[LinearRegression]] = {
    "linear": LinearRegression,
    "mlp": Perceptron,
    "softmax": SoftmaxRegression,
}
