"""A federation small enough to work out by hand: models of one or two numbers, uploads as written down."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from artesian.core import Algorithm, Cluster, Measured, Member, Receipt, State, Upload
from artesian.params import Layout, Params, seal


def layout(size: int = 1) -> Layout:
    return Layout.of({"w": np.zeros(size, np.float32)})


def vector(*numbers: float) -> Params:
    return seal(np.array(numbers, np.float32))


def measured(client: str, params: Params, base: int = 0, samples: int = 1, **evidence: Any) -> Measured:
    receipt = Receipt(1, base, "train", ("k0",))
    return Measured(Upload(client, 1, samples, {"k0": params}), receipt, evidence.get("evidence", {}))


def state(
    algorithm: Algorithm,
    models: Sequence[Params],
    *,
    version: int = 0,
    clients: int = 4,
    losses: Sequence[float] = (),
    updated: Sequence[int] = (),
    memory: Mapping[str, Any] | None = None,
) -> State:
    clusters = {
        f"k{i}": Cluster(
            params,
            updated=updated[i] if updated else 0,
            loss=losses[i] if losses else None,
        )
        for i, params in enumerate(models)
    }
    members = {f"c{i}": Member(1) for i in range(clients)}
    return State(layout(len(models[0])), clusters, members, clients, version, named=len(clusters), memory=memory or {})


@dataclass(frozen=True)
class FixedLoss:
    """A proxy set on which every model has the loss it is told."""

    samples: int
    loss: float = 0.5

    def losses(self, params: Params) -> np.ndarray:
        return np.full(self.samples, self.loss)
