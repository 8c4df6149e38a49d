"""Workload W1 as its user writes it: networks, the training function, the clients' data. No federation, no Artesian.

The network is two 5x5 convolutions (32, 64) and a dense layer of 512, 582,026 parameters. `plain` is what people
write; `tuned` has every trick known to pay here: pooling before ReLU (the same result for less work), channels last,
the fused Adam; and memory that is kept for the next batch, which only the environment of a process can say.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Literal

import numpy as np
import torch
from torch import nn
from torch.nn import functional

Style = Literal["plain", "tuned"]
Batch = tuple[torch.Tensor, torch.Tensor]
CLIENTS = 80
SAMPLES = 1250
BATCH = 128
RATE = 0.001
PARAMETERS = 582_026
DATA = "W1_DATA"  # names the file of images


class Plain(nn.Module):
    """The network, ReLU before pooling."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 5)
        self.conv2 = nn.Conv2d(32, 64, 5)
        self.dense = nn.Linear(64 * 4 * 4, 512)
        self.output = nn.Linear(512, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.max_pool2d(functional.relu(self.conv1(x)), 2)
        x = functional.max_pool2d(functional.relu(self.conv2(x)), 2)
        x = functional.relu(self.dense(x.flatten(1)))
        return self.output(x)


class Tuned(Plain):
    """The same, pooling before ReLU."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.relu_(functional.max_pool2d(self.conv1(x), 2))
        x = functional.relu_(functional.max_pool2d(self.conv2(x), 2))
        x = functional.relu_(self.dense(x.flatten(1)))
        return self.output(x)


NETWORKS: dict[Style, type[Plain]] = {"plain": Plain, "tuned": Tuned}


def network(style: Style) -> nn.Module:
    """A fresh network as this style lays it out."""
    module = NETWORKS[style]()
    return module.to(memory_format=torch.channels_last) if style == "tuned" else module  # type: ignore[call-overload]


def adam(style: Style) -> Callable[..., torch.optim.Optimizer]:
    """From parameters to the optimiser of this style."""
    return partial(torch.optim.Adam, lr=RATE, fused=style == "tuned")


def train(module: nn.Module, x: torch.Tensor, y: torch.Tensor, style: Style = "plain") -> None:
    """One epoch over a client's data, in batches of a new order: one client update."""
    optimizer = adam(style)(module.parameters())
    module.train()
    for rows in torch.randperm(len(x)).split(BATCH):
        batch = x[rows]
        if style == "tuned":
            batch = batch.contiguous(memory_format=torch.channels_last)
        optimizer.zero_grad()
        functional.cross_entropy(module(batch), y[rows]).backward()
        optimizer.step()


def loss(module: nn.Module, x: torch.Tensor, y: torch.Tensor, style: Style = "plain") -> float:
    """The mean loss over a set of images."""
    module.eval()
    if style == "tuned":
        x = x.contiguous(memory_format=torch.channels_last)
    with torch.inference_mode():
        return float(functional.cross_entropy(module(x), y))


@dataclass(frozen=True)
class Images:
    """All images, as bytes, and their labels."""

    x: np.ndarray
    y: np.ndarray

    def client(self, index: int) -> Batch:
        """The samples of one client: always the same."""
        return self._taken(np.random.default_rng(index).choice(len(self.x), SAMPLES, replace=False))

    def proxy(self, turn: int, count: int) -> Batch:
        """A server's set of so many images, turned by so many quarters."""
        x, y = self._taken(np.random.default_rng(1_000_000 + turn).choice(len(self.x), count, replace=False))
        return torch.rot90(x, turn, (2, 3)).contiguous(), y

    def _taken(self, rows: np.ndarray) -> Batch:
        x = torch.from_numpy(self.x[rows].astype(np.float32) / 255).unsqueeze(1)
        return x, torch.from_numpy(self.y[rows].astype(np.int64))


@lru_cache(maxsize=1)
def images() -> Images:
    """Those of the file this run has prepared, read once per process."""
    with np.load(os.environ[DATA]) as file:
        return Images(file["x"], file["y"])
