"""Learners in torch: any `nn.Module` as a `Model`, any data as a `Learner`.

The same seed gives the same bits on a CPU with one torch thread (`one_thread`), in any process and in any Python
thread: the order of batches has a generator of its own, and a training that draws from torch's global one (dropout)
holds it alone, seeded, and gives it back as it was.
"""

from __future__ import annotations

import ctypes
import fnmatch
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, fields
from functools import cached_property
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any, Literal
from weakref import WeakSet

import numpy as np

from artesian.core import Ensemble, Model, OptimizerState, Plan, Pull, derive, generator
from artesian.errors import BadData, LayoutError, MissingExtra, SettingError, WrongShape
from artesian.params import Layout, Params, Share, seal

try:
    import torch
except ModuleNotFoundError:
    raise MissingExtra("torch", "torch") from None
from torch import nn

from artesian.learners.batches import (
    Flowing,
    Resident,
    Shaping,
    Source,
    all_of,
    label_counts,
    rows_of,
    source_over,
    split,
    unordered,
)
from artesian.learners.flat_modules import Instance, Pool, array_of, pack, seeded, tensors_of
from artesian.learners.forward import PRECISIONS, Passes, Precision, sound
from artesian.learners.optimizers import Optimizer, Stepper, chosen, stepper
from artesian.learners.sample_losses import Loss, check_loss, cross_entropy, no_loss, one_per_sample, squares

DEVICES = ("auto", "cpu", "cuda", "mps")
TASKS = ("classification", "regression")
ROOM = 2 << 30  # bytes of a dataset that are held in memory
NAMED = (FunctionType, MethodType, BuiltinFunctionType, type)  # what has a name to be found by
MADE: WeakSet[nn.Module] = WeakSet()  # every network that a `make` returned
MALLOC = {-3: 1 << 30, -1: (1 << 31) - 1, -2: 1 << 28}  # M_MMAP_THRESHOLD, M_TRIM_THRESHOLD, M_TOP_PAD of malloc.h


def keep_memory() -> bool:
    """Tell glibc to keep the memory of a batch for the next one; False where there is no glibc.

    Otherwise every batch asks the system for its pages again. It holds for the rest of the process.
    """
    try:
        adjust = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # another C library, or another system
        return False
    return min(adjust(which, value) for which, value in MALLOC.items()) == 1


@contextmanager
def one_thread() -> Iterator[None]:
    """Torch on one thread in this process: as fast where trainings run side by side, and the same bits.

    The process keeps its memory from batch to batch from now on.
    """
    keep_memory()
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def is_network(value: Any) -> bool:
    """Is it something `TorchModel` can learn with?"""
    return isinstance(value, nn.Module)


@dataclass(frozen=True)
class TorchModel(Model):
    """A network as a model: `make` returns a fresh one each time it is called.

    What is frozen (`requires_grad=False`, or named in `frozen`) and what `share` leaves out stays at home. `loss`
    takes outputs and targets and gives one number per sample.
    """

    make: Callable[[], nn.Module]
    loss: Loss | None = None  # None: cross-entropy, or the squared error
    task: Literal["classification", "regression"] = "classification"
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    share: Share = ("*",)  # names or glob patterns, or a function of the name
    frozen: Sequence[str] = ()  # names or glob patterns
    shape: Sequence[int] | None = None  # of one sample; None: as the data come
    scale: float | None = None  # what inputs are multiplied with; None: 1/255 for uint8, 1 otherwise
    precision: Precision = "float32"  # or "bfloat16" in forward passes, where the machine can
    compile: bool = False  # forward passes that nothing is learnt from, where the machine can

    def __post_init__(self) -> None:
        if isinstance(self.make, nn.Module) or not callable(self.make):
            got = f"a {type(self.make).__name__}"
            raise SettingError(
                f"make is {got}, not a function that returns a network", "Pass the network's class, or a function"
            )
        _check_one_of("task", self.task, TASKS)
        _check_one_of("device", self.device, DEVICES)
        _check_one_of("precision", self.precision, PRECISIONS)
        if not isinstance(self.compile, bool):
            raise ValueError(f"compile is true or false, not {self.compile!r}")
        check_loss(self.loss)
        if self.shape is not None:
            object.__setattr__(self, "shape", _tuple("shape", self.shape, int))
        object.__setattr__(self, "frozen", _tuple("frozen", self.frozen, str))
        if not callable(self.share):
            object.__setattr__(self, "share", _tuple("share", self.share, str))
        self._probe()

    def _probe(self) -> None:
        """Keep the options that work here; the value that travels to workers has no others."""
        if self.precision == "float32" and not self.compile:
            return
        found = sound({"bfloat16": self.precision == "bfloat16", "compile": self.compile}, self.place.type)
        object.__setattr__(self, "precision", "bfloat16" if found["bfloat16"] else "float32")
        object.__setattr__(self, "compile", found["compile"])

    @cached_property
    def layout(self) -> Layout:
        module = self._fresh(0)
        tensors = tensors_of(module)
        arrays = {name: array_of(name, tensor) for name, tensor in tensors.items()}
        learns = [n for n, t in tensors.items() if isinstance(t, nn.Parameter) and t.requires_grad]
        for name in learns:
            if tensors[name].dtype == torch.float16:
                raise LayoutError(f"{name} is float16, and torch models are trained in float32", "Convert the network")
        frozen = [n for n, t in tensors.items() if isinstance(t, nn.Parameter) and not t.requires_grad]
        return Layout.of(arrays, trainable=learns, frozen=frozen, share=self.share)

    @cached_property
    def pool(self) -> Pool:
        """The instances of this process."""
        return Pool(lambda: Instance(self._fresh(0), self.layout, self.place))

    @cached_property
    def passes(self) -> Passes:
        """How its networks are run in this process."""
        return Passes(self.precision, self.compile)

    @cached_property
    def place(self) -> torch.device:
        """The device that `device` stands for here."""
        return _device(self.device)

    @property
    def shaping(self) -> Shaping:
        shape = None if self.shape is None else tuple(self.shape)
        labels = self.task == "classification" and self.loss is None
        return Shaping(self.task, self.place, shape, self.scale, labels)

    def start(self, seed: int) -> Params:
        """A fresh model; torch's global generator is left as it was."""
        return pack(self.layout, self._fresh(seed))

    def learner(self, x: np.ndarray, y: np.ndarray) -> TorchLearner:
        return TorchLearner(self, Resident.of(x, y, self.shaping))

    def one_thread(self) -> AbstractContextManager[None]:
        """What whoever runs trainings side by side enters first."""
        return one_thread()

    def describe(self) -> dict[str, Any]:
        """The model as JSON values, for the configuration of a run."""
        settings = {name: _spell(value) for name, value in self._settings.items()}
        return {"name": _spell(type(self)), **settings, "layout": self.layout.digest}

    @property
    def _settings(self) -> dict[str, Any]:
        """Its fields by name, without what was made from them."""
        return {f.name: vars(self)[f.name] for f in fields(self)}

    def __getstate__(self) -> dict[str, Any]:
        """Its fields, not the instances of this process."""
        for part in (self.make, self.loss, self.share):
            if isinstance(part, NAMED) and "<" in part.__qualname__:
                raise SettingError(
                    f"Workers cannot find {part.__qualname__} by name",
                    "Define it at the top of a module, or use no workers",
                )
        return self._settings

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__dict__.update(state)

    def _fresh(self, seed: int) -> nn.Module:
        with torch.inference_mode(False), seeded(derive(seed, "start"), torch.device("cpu")):
            module = self.make()
        if not isinstance(module, nn.Module):
            raise SettingError(
                f"make returned a {type(module).__name__}, not an nn.Module", "Return the network from it"
            )
        if module in MADE:
            raise SettingError("make returned the same network again", "Build a fresh network inside make")
        MADE.add(module)
        _freeze(module, self.frozen)
        return module


class TorchLearner:
    """A model and the data it learns from.

    `home` holds what training changes but `share` leaves out: it stays with the learner from one training to the next.
    """

    def __init__(self, model: TorchModel, source: Source, home: Mapping[str, np.ndarray] | None = None) -> None:
        self.model, self.source, self.home = model, source, home
        self.optimizer: Callable[..., Optimizer] | None = None  # from parameters to one of the client's own choice
        self._whole: TorchLearner | None = None  # what it is a part of: that one keeps what stays at home

    @classmethod
    def over(cls, data: Any, model: TorchModel, *, room: int = ROOM, samples: int | None = None) -> TorchLearner:
        """A learner over a DataLoader or a Dataset of (input, target) pairs.

        What fits into `room` bytes is read once and held; a larger dataset is read in every epoch. Batches are the
        plan's, except from an IterableDataset, which keeps its own and whose length is `samples`.
        """
        return cls(model, source_over(data, model.shaping, room, samples))

    @property
    def samples(self) -> int:
        return self.source.samples

    @property
    def histogram(self) -> tuple[int, ...] | None:
        """How many samples of each class; None for a regression, a loss of one's own, or a stream."""
        return label_counts(self.source)

    def batches(self, size: int) -> int:
        """How many steps an epoch takes; a stream cannot say."""
        if isinstance(self.source, Flowing):
            raise unordered("a count of steps")
        with self.model.pool.borrow() as instance:
            return len(split(np.arange(self.samples), size, 2 if instance.normalises else 1))

    def part(self, rows: np.ndarray) -> TorchLearner:
        """The same with these samples alone; a stream cannot be taken apart."""
        made = TorchLearner(self.model, rows_of(self.source, rows), self.home)
        made.optimizer, made._whole = self.optimizer, self._whole or self
        return made

    def joined(self, others: Sequence[TorchLearner]) -> TorchLearner:
        """The same with the samples of these after its own, all of them in memory."""
        made = TorchLearner(self.model, all_of([self.source, *(other.source for other in others)]), self.home)
        made.optimizer = self.optimizer
        return made

    def arrays(self) -> tuple[np.ndarray, np.ndarray]:
        """Inputs as the network gets them, a row each, and targets; a stream has no order to hand them out in."""
        batches = [(x.reshape(len(x), -1).cpu().numpy(), y.cpu().numpy()) for _, x, y in self.source.ordered("a gate")]
        if len({(x.shape[1:], y.shape[1:]) for x, y in batches}) > 1:
            raise BadData("Samples of different sizes have no common row of numbers", "Pad all to one length")
        return np.concatenate([x for x, _ in batches]), np.concatenate([y for _, y in batches])

    def losses(self, params: Params) -> np.ndarray:
        found = self._look(params, "losses", self._each)
        return torch.cat(found).cpu().numpy() if found else np.zeros(0, np.float32)

    def score(self, ensemble: Ensemble) -> float:
        """Of the weighted mean of the models' predictions; 0 where there are no data."""
        if not self.samples:
            return 0.0
        output = self._output(ensemble, "a score")
        target = torch.cat([y for _, _, y in self.source.ordered("a score")])
        if self.model.task == "regression":
            return -float(squares(output, target).double().mean())
        return float((output.argmax(dim=1) == target).double().mean())

    def outputs(self, ensemble: Ensemble) -> np.ndarray:
        """The weighted mean of the models' predictions; a stream has no order to give them in."""
        return self._output(ensemble, "a look at outputs").float().cpu().numpy()

    def train(self, params: Params, *, seed: int, plan: Plan, **how: Any) -> Params:
        """Minimise mean loss + sum of c/2 ||w - anchor||^2 from `params`; see `Learner.train`."""
        return self._trained(params, {}, seed=seed, plan=plan, **how)[0]

    def train_on(
        self, params: Params, kept: OptimizerState, *, seed: int, plan: Plan, **how: Any
    ) -> tuple[Params, OptimizerState]:
        """`train`, by an optimiser in this state; see `Resumable.train_on`."""
        result, optimizer = self._trained(params, kept, seed=seed, plan=plan, **how)
        return result, kept if optimizer is None else optimizer.state()

    def _trained(
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
    ) -> tuple[Params, Stepper | None]:
        """What training gives, and the optimiser that did it; none where there are no samples."""
        self._check(params, pulls, weights, mask, correction)
        if not self.samples:
            return seal(np.array(params, np.float32)), None
        with self.model.pool.borrow() as instance:
            instance.load(params, self.home)
            with torch.inference_mode(False), torch.enable_grad(), self._noise(derive(seed, "noise")):
                optimizer = self._optimizer(plan, instance, kept)
                self._fit(instance, optimizer.step, seed, plan, pulls, weights, mask, correction)
            self.home = instance.home or self.home
            if self._whole is not None:
                self._whole.home = self.home
            result = instance.store()
        if mask is not None:
            result[~mask] = params[~mask]
        return seal(result), optimizer

    def _fit(
        self,
        instance: Instance,
        step: Callable[[float], Any],
        seed: int,
        plan: Plan,
        pulls: Sequence[Pull],
        weights: np.ndarray | None,
        mask: np.ndarray | None,
        correction: Params | None,
    ) -> None:
        rng, shared = generator(seed, "train"), instance.shared
        own, gradient = instance.weights[shared], instance.gradient[shared]
        anchors = [(float(c), torch.tensor(anchor[shared], device=own.device)) for c, anchor in pulls]
        free = None if mask is None else torch.tensor(mask[shared], device=own.device)
        added = None if correction is None else torch.tensor(correction[shared], device=own.device)
        begin = own.clone()
        instance.module.train()
        for epoch in range(plan.epochs):
            for rows, x, y in self.source.shuffled(rng, plan.batch, 2 if instance.normalises else 1):
                instance.gradient.zero_()
                self._mean(instance.module, x, y, None if weights is None else weights[rows]).backward()
                for strength, anchor in anchors:
                    gradient.add_(own - anchor, alpha=strength)
                if added is not None:
                    gradient.add_(added)
                step(plan.rate_in(epoch))
                if free is not None:
                    own.copy_(torch.where(free, own, begin))

    def _optimizer(self, plan: Plan, instance: Instance, kept: OptimizerState) -> Stepper:
        """The plan's optimiser, or the client's own."""
        if self.optimizer is None:
            return stepper(plan, instance.weights, instance.gradient, kept)
        return chosen(self.optimizer, instance.weights, instance.gradient, kept)

    def _mean(self, module: nn.Module, x: torch.Tensor, y: torch.Tensor, weights: np.ndarray | None) -> torch.Tensor:
        each = self._each(self.model.passes.learn(module, x), y)
        if not each.requires_grad:
            raise no_loss("one that no gradient passes through")
        if weights is None:
            return each.mean()
        return (each * torch.tensor(weights, dtype=torch.float32, device=each.device)).sum() / len(each)

    def _each(self, output: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """The loss of every sample of a batch."""
        if self.model.loss is not None:
            each = self.model.loss(output, y)
        elif self.model.task == "regression":
            each = squares(output, y)
        else:
            each = cross_entropy(output, y, self.source.largest if isinstance(self.source, Resident) else None)
        return one_per_sample(each, len(output))

    def _look(self, params: Params, what: str, see: Callable[[torch.Tensor, torch.Tensor], Any]) -> list[Any]:
        """What there is to see in the network's answers, in large batches, nothing being learnt."""
        with self.model.pool.borrow() as instance:
            instance.load(params, self.home)
            instance.module.eval()
            with torch.inference_mode():
                passes, module = self.model.passes, instance.module
                return [see(passes.look(module, x), y) for _, x, y in self.source.ordered(what)]

    def _output(self, ensemble: Ensemble, what: str) -> torch.Tensor:
        """The weighted mean of what the models say."""
        said = [[weight * part for part in self._look(params, what, self._says)] for weight, params in ensemble]
        return functools.reduce(torch.add, [torch.cat(parts) for parts in said])

    def _says(self, output: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Probabilities, or numbers."""
        return output.softmax(dim=1) if self.model.task == "classification" else output

    @contextmanager
    def _noise(self, seed: int) -> Iterator[None]:
        """Torch's global generator, seeded; left alone once a training of this model drew nothing from it."""
        pool, place = self.model.pool, self.model.place
        if pool.quiet and self.source.steady:
            yield
            return
        with seeded(seed, place):
            before = torch.get_rng_state()
            yield
            pool.quiet = place.type == "cpu" and torch.equal(before, torch.get_rng_state())

    def _check(
        self,
        params: Params,
        pulls: Sequence[Pull],
        weights: np.ndarray | None,
        mask: np.ndarray | None,
        correction: Params | None,
    ) -> None:
        layout = self.model.layout
        corrections = () if correction is None else (correction,)
        for vector in (params, *corrections, *(anchor for _, anchor in pulls)):
            layout.check_shape(vector)
        if corrections and self.optimizer is not None:
            raise SettingError(
                "This method corrects the steps of plain SGD, and the client has an optimiser of its own",
                "Leave out optimizer=...",
            )
        if weights is not None and isinstance(self.source, Flowing):
            raise unordered("a weight per sample")
        if weights is not None and np.shape(weights) != (self.samples,):
            got = f"weights of shape {np.shape(weights)}"
            raise BadData(f"There are {got} for {self.samples} samples", "Give one weight per sample")
        if mask is not None and (np.shape(mask) != (layout.size,) or np.asarray(mask).dtype != np.bool_):
            got = f"{np.asarray(mask).dtype} of shape {np.shape(mask)}"
            raise WrongShape(f"The mask is {got}", f"Give {layout.size} booleans, one for each number of the model")


def _device(name: str) -> torch.device:
    has = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if name == "auto":
        return torch.device(next(kind for kind, there in has.items() if there))
    if not has[name]:
        raise SettingError(
            f"There is no device {name!r} here", f"Use {', '.join(k for k, there in has.items() if there)}"
        )
    return torch.device(name)


def _freeze(module: nn.Module, patterns: Sequence[str]) -> None:
    tensors = tensors_of(module)
    for pattern in patterns:
        if not (names := fnmatch.filter(tensors, pattern)):
            raise LayoutError(
                f"No entry of the model matches {pattern!r} in frozen", f"Names look like {next(iter(tensors), '')}"
            )
        for name in names:
            tensors[name].requires_grad_(False)


def _check_one_of(name: str, value: str, known: Sequence[str]) -> None:
    if value not in known:
        raise ValueError(f"{name} is one of {', '.join(known)}, not {value!r}")


def _tuple(name: str, value: Any, kind: type) -> tuple[Any, ...]:
    values = tuple(value) if isinstance(value, (list, tuple)) else (value,)
    if not all(type(one) is kind for one in values):
        raise ValueError(f"{name} is a list of {'texts' if kind is str else 'whole numbers'}, not {value!r}")
    return values


def _spell(value: Any) -> Any:
    """A value as JSON would have it: functions and classes by their names."""
    if isinstance(value, functools.partial):
        return {"call": _spell(value.func), "args": [_spell(v) for v in value.args], **_spell(value.keywords)}
    if isinstance(value, nn.Module):
        return repr(value)
    if isinstance(value, Mapping):
        return {key: _spell(item) for key, item in value.items()}
    if callable(value):
        named = value if isinstance(value, NAMED) else type(value)
        return f"{named.__module__}:{named.__qualname__}"
    return list(value) if isinstance(value, tuple) else value
