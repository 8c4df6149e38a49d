"""Modules whose trainable parameters live in one vector: loaded by one copy, stepped as a whole.

A module is made once and lent to one training at a time. Every training loads what it depends on, so nothing
of the training before it remains.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property

import numpy as np
import torch
from torch import nn

from artesian.errors import LayoutError
from artesian.params import Layout, Params, seal, strip

GLOBAL = threading.RLock()  # torch's global generator belongs to one thread at a time


def tensors_of(module: nn.Module) -> dict[str, torch.Tensor]:
    """A module's parameters and lasting buffers by name, without a wrapper's prefix."""
    return strip(_spelt_out(module))  # type: ignore[arg-type, return-value]


def _spelt_out(module: nn.Module) -> dict[str, torch.Tensor]:
    state = module.state_dict(keep_vars=True)
    return {name: value for name, value in state.items() if isinstance(value, torch.Tensor)}


def array_of(name: str, tensor: torch.Tensor) -> np.ndarray:
    """The numbers of a tensor, sharing its memory where it lies on the processor."""
    if nn.parameter.is_lazy(tensor):
        raise LayoutError(
            f"The shape of {name} is not known yet, because its layer is lazy", "Run the network once inside make"
        )
    try:
        return tensor.detach().cpu().numpy()
    except TypeError:
        got = f"{name} of {str(tensor.dtype).removeprefix('torch.')}"
        raise LayoutError(
            f"{got} cannot travel", "Convert it to float16, float32, an integer or a boolean type"
        ) from None


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Torch's global generator, seeded for this thread alone and afterwards as it was."""
    devices = [device.index or 0] if device.type == "cuda" else []
    with GLOBAL, torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        yield


class Instance:
    """A module, and the vector its parameters are views of: shared entries first, then those kept at home."""

    def __init__(self, module: nn.Module, layout: Layout, device: torch.device) -> None:
        self.layout = layout
        with torch.inference_mode(False), torch.no_grad():  # whatever the caller is in
            self._settle(module, device)

    def _settle(self, module: nn.Module, device: torch.device) -> None:
        self.module = module.to(device)
        self._tensors = tensors_of(self.module)
        self._names = dict(zip(self._tensors, _spelt_out(self.module), strict=True))
        self._tail = Layout(tuple(entry for entry in self.layout.entries if not entry.trainable))
        self._gather(device)
        self._home_start = self.home

    @cached_property
    def normalises(self) -> bool:
        """Does it hold BatchNorm, which cannot learn from one sample?"""
        return any(isinstance(part, nn.modules.batchnorm._BatchNorm) for part in self.module.modules())

    @property
    def home(self) -> dict[str, np.ndarray]:
        """What training changes but nobody shares, as copies."""
        return {name: array_of(name, self._current(name)).copy() for name in self._moving}

    @property
    def shared(self) -> slice:
        """The part of the vector that travels."""
        return slice(0, self.layout.trainable)

    def load(self, params: Params, home: Mapping[str, np.ndarray] | None = None) -> None:
        """Become the model of this vector."""
        self.layout.check_shape(params)
        with torch.no_grad():
            self._write(params[: self.layout.trainable])
            if self._tail.entries:
                for name, array in self._tail.unpack(params[self.layout.trainable :]).items():
                    self._current(name).copy_(torch.from_numpy(array))
            for name, array in {**self._home_start, **(home or {})}.items():
                self._current(name).copy_(torch.tensor(array))

    def store(self) -> np.ndarray:
        """The vector of the model it has become."""
        out = np.empty(self.layout.size, np.float32)
        out[: self.layout.trainable] = self.weights[self.shared].cpu().numpy()
        if self._tail.entries:
            tail = {entry.name: array_of(entry.name, self._current(entry.name)) for entry in self._tail.entries}
            out[self.layout.trainable :] = self._tail.pack(tail)
        return out

    def _gather(self, device: torch.device) -> None:
        """Move every trainable parameter into one vector, with one vector of gradients beside it."""
        shared = [entry.name for entry in self.layout.entries if entry.trainable]
        learns = [name for name in self.layout.home if self._tensors[name].requires_grad]
        own = list({id(self._tensors[name]): name for name in reversed(learns)}.values())[::-1]
        sizes = [self._tensors[name].numel() for name in (*shared, *own)]
        self.weights = torch.empty(sum(sizes), device=device)
        self.gradient = torch.zeros_like(self.weights)
        begin = 0
        for name, size in zip((*shared, *own), sizes, strict=True):
            self._move(self._tensors[name], slice(begin, begin + size))
            begin += size
        for alias, name in self.layout.ties.items():
            self._tensors[alias].data, self._tensors[alias].grad = self._tensors[name].data, self._tensors[name].grad
        buffers = [n for n in self.layout.home if not isinstance(self._tensors[n], nn.Parameter)]
        self._moving = (*own, *buffers)

    def _move(self, parameter: torch.Tensor, place: slice) -> None:
        self.weights[place] = parameter.detach().reshape(-1)
        parameter.data = self.weights[place].view(parameter.shape)
        parameter.grad = self.gradient[place].view(parameter.shape)

    def _write(self, values: np.ndarray) -> None:
        place = self.weights[self.shared]
        if place.device.type == "cpu":
            np.copyto(place.numpy(), values)
        else:
            place.copy_(torch.tensor(values))

    def _current(self, name: str) -> torch.Tensor:
        """A tensor of the module as it is now: a forward pass may have put another in a buffer's place."""
        tensor = self._tensors[name]
        return tensor if isinstance(tensor, nn.Parameter) else self.module.get_buffer(self._names[name])


class Pool:
    """The instances of one model in this process: as many as are in use at once."""

    def __init__(self, make: Callable[[], Instance]) -> None:
        self._make, self._lock = make, threading.Lock()
        self._free: list[Instance] = []
        self.quiet = False  # seen to train without drawing from torch's global generator

    @contextmanager
    def borrow(self) -> Iterator[Instance]:
        """An instance nobody else works with."""
        with self._lock:
            instance = self._free.pop() if self._free else None
        instance = instance or self._make()
        try:
            yield instance
        finally:
            with self._lock:
                self._free.append(instance)


def pack(layout: Layout, module: nn.Module) -> Params:
    """The vector of a module."""
    arrays = {name: array_of(name, tensor) for name, tensor in tensors_of(module).items()}
    return seal(layout.pack(arrays))
