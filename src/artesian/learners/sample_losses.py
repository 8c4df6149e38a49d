"""The loss of every sample: cross-entropy, the squared error, or a function of the user's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from artesian.errors import BadData, SettingError

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]  # output, target -> one number per sample


def check_loss(loss: Loss | None) -> None:
    """Refuse a loss that is none, or that averages over the samples."""
    if loss is not None and not callable(loss):
        raise ValueError(f"loss is a function of outputs and targets, not {loss!r}")
    if isinstance(loss, nn.modules.loss._Loss) and loss.reduction != "none":
        raise no_loss(f"{type(loss).__name__} with reduction={loss.reduction!r}")


def no_loss(got: str) -> SettingError:
    """The error of a loss that gives something else."""
    return SettingError(
        f"The loss must give one number per sample, not {got}",
        'Use reduction="none", or a function that does not average',
    )


def one_per_sample(each: Any, samples: int) -> torch.Tensor:
    """What a loss gave, as one number per sample: the mean over whatever stands behind it."""
    if not isinstance(each, torch.Tensor) or each.ndim == 0 or len(each) != samples:
        got = f"shape {tuple(each.shape)}" if isinstance(each, torch.Tensor) else type(each).__name__
        raise no_loss(f"{got} for {samples} samples")
    return each.reshape(len(each), -1).mean(dim=1) if each.ndim > 1 else each


def squares(output: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The squared error of every sample, the mean over its numbers where there are several."""
    if output.numel() != y.numel():
        got = f"outputs of shape {tuple(output.shape)} and targets of shape {tuple(y.shape)}"
        raise BadData(
            f"The network gives {got}",
            "A regression needs as many outputs as there are targets: correct the network or the data",
        )
    return (output.reshape(len(y), -1) - y.reshape(len(y), -1)).square().mean(dim=1)


def cross_entropy(output: torch.Tensor, y: torch.Tensor, largest: int | None) -> torch.Tensor:
    """The cross-entropy of every sample; `largest` is the largest label of all, None: that of these."""
    classes = output.shape[1] if output.ndim > 1 else 0
    if output.ndim < 2 or y.shape != (len(output), *output.shape[2:]):
        got = f"outputs of shape {tuple(output.shape)} and labels of shape {tuple(y.shape)}"
        raise BadData(
            f"The network gives {got}",
            "A classifier needs one output per class and sample: correct the network, or set task",
        )
    largest = int(y.max()) if largest is None else largest
    if largest >= classes:
        raise BadData(
            f"There is a label {largest}, and the network has {classes} outputs",
            f"Use labels from 0 to {classes - 1}, or a larger network",
        )
    return functional.cross_entropy(output, y, reduction="none")
