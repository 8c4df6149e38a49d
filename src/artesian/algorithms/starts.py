"""The models that clusters begin with, where a method tells clusters apart by their models: no two may be the same."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Literal

import numpy as np

from artesian.core import Cluster, ClusterId, generator
from artesian.errors import SettingError
from artesian.params import Layout, Params, seal

Initial = Literal["start", "random"]


def different(
    name: str, layout: Layout, start: Sequence[Params], clusters: int | None, initial: Initial, seed: int
) -> dict[ClusterId, Cluster]:
    """Clusters that begin with the models of the start, or with random ones drawn to the measure of the first."""
    models = list(start) if initial == "start" else _random(layout, start[0], clusters or len(start), seed)
    if clusters not in (None, len(models)):
        raise SettingError(
            f"{name} needs a start model for each of its {clusters} clusters, and there are {len(models)}",
            'Leave clusters out, or set initial = "random"',
        )
    for i, j in combinations(range(len(models)), 2):
        if np.array_equal(models[i][: layout.trainable], models[j][: layout.trainable]):
            raise SettingError(
                f"{name} cannot tell k{i} from k{j}: they begin with the same model",
                'Pre-train them ([start] with epochs above 0), give different models, or set initial = "random"',
            )
    return {f"k{i}": Cluster(params) for i, params in enumerate(models)}


def check_count(clusters: int | None) -> None:
    """One cluster at least."""
    if clusters is not None and clusters < 1:
        raise ValueError(f"clusters must be at least 1, not {clusters}")


def _random(layout: Layout, like: Params, count: int, seed: int) -> list[Params]:
    """Models whose trainable entries are normal, each with the mean and the spread that entry has in `like`."""
    return [_drawn(layout, like, generator(seed, "initial", i)) for i in range(count)]


def _drawn(layout: Layout, like: Params, rng: np.random.Generator) -> Params:
    out = like.copy()
    for entry, offset in zip(layout.entries, layout.offsets, strict=True):
        if entry.trainable and entry.slots:
            part = out[offset : offset + entry.slots]
            part[:] = rng.normal(part.mean(dtype=np.float64), part.std(dtype=np.float64), entry.slots)
    return seal(out)
