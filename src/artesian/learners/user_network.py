"""A network that somebody already has: its copies are trained, and what comes back is loaded into it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from artesian.core import Ensemble
from artesian.errors import LayoutError, MissingExtra, SettingError

try:
    import torch
except ModuleNotFoundError:
    raise MissingExtra("torch", "torch") from None
from torch import nn

from artesian.learners.flat_modules import tensors_of
from artesian.learners.optimizers import Optimizer
from artesian.learners.sample_losses import Loss
from artesian.learners.torch import TorchLearner, TorchModel
from artesian.params import Layout


class OwnNetwork:
    """A module of the user's, and the data it learns from."""

    def __init__(
        self,
        module: nn.Module,
        loader: Any,
        loss: Loss | None = None,
        optimizer: Callable[..., Optimizer] | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        if not isinstance(module, nn.Module):
            got = type(module).__name__
            raise SettingError(
                f"{got} is not a torch network, which a refresh with a loader needs", "Pass the network itself"
            )
        self.module = module
        self.model = TorchModel(partial(copy.deepcopy, module), loss=loss, **(options or {}))
        self.learner = TorchLearner.over(loader, self.model)
        self.learner.optimizer = optimizer

    def check(self, layout: Layout) -> None:
        """The network must be laid out as the federation's models are."""
        if self.model.layout.digest != layout.digest:
            ours = {entry.name: entry.shape for entry in self.model.layout.entries}
            other = next((e for e in layout.entries if ours.get(e.name) != e.shape), None)
            got = "other entries besides"
            if other is not None:
                known = ours.get(other.name)
                got = f"no {other.name}" if known is None else f"{other.name} of shape {known}"
            wanted = f"{other.name} of shape {other.shape}" if other else "none"
            raise LayoutError(
                f"This is not the federation's network: it has {got}, and the federation {wanted}",
                "Build the same network",
            )

    def load(self, layout: Layout, held: Ensemble) -> None:
        """Become what the client predicts with; that must be one model."""
        load(self.module, layout, held, self.learner.home)


def load(module: nn.Module, layout: Layout, held: Ensemble, home: Mapping[str, np.ndarray] | None = None) -> None:
    """Put the one model that a client predicts with into a network, and what stays at home, where that is given."""
    if not isinstance(module, nn.Module):
        raise SettingError(f"A {type(module).__name__} is not a torch network", "Pass the network itself")
    if len(held) != 1:
        raise SettingError(
            f"This method predicts with {len(held)} models, and a network holds one", "Refresh a learner instead"
        )
    ((_, params),) = held
    tensors = tensors_of(module)
    with torch.no_grad():
        for name, array in {**layout.unpack(params), **(home or {})}.items():
            tensors[name].copy_(torch.from_numpy(array.copy()))
