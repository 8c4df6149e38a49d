"""The clusters as a file for any tool: ordinary named parameters, by cluster, and no word about any client."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from artesian.core import Model, State
from artesian.errors import SettingError
from artesian.params import Params
from artesian.storage.codec import FORMAT, contiguous
from artesian.storage.files import storage


def models_file(state: State, event: int, about: dict[str, Any]) -> bytes:
    """A safetensors file: tensors `CLUSTER/PARAMETER`; `version`, `event`, `clusters` and `about` as metadata."""
    tensors = {
        f"{k}/{name}": contiguous(array)
        for k, cluster in state.clusters.items()
        for name, array in state.layout.unpack(cluster.params).items()
    }
    told = {"format": FORMAT, **about, "version": state.version, "event": event, "clusters": list(state.clusters)}
    return save(tensors, {key: value if isinstance(value, str) else json.dumps(value) for key, value in told.items()})


def start_from(path: str | Path, model: Model, seed: int = 0) -> list[Params]:
    """The clusters of a file that `artesian models export` wrote, to start a federation with: one model each.

    Parameters of the same name and shape are taken from the file, others from a fresh model. So the new model may have
    more parameters than the old one, or fewer.
    """
    found = _clusters(Path(path))
    fresh = model.layout.unpack(model.start(seed))
    return [model.layout.pack(_taken(fresh, arrays, Path(path))) for arrays in found.values()]


def _clusters(path: Path) -> dict[str, dict[str, np.ndarray]]:
    """The parameters of every cluster in a file."""
    try:
        with storage(path), safe_open(path, framework="numpy") as file:
            clusters: list[str] = json.loads((file.metadata() or {})["clusters"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, KeyError, ValueError):
        raise SettingError(f"No exported models in {path}", "Make the file with: artesian models export") from None
    return {
        k: {name.removeprefix(f"{k}/"): array for name, array in tensors.items() if name.startswith(f"{k}/")}
        for k in clusters
    }


def _taken(fresh: dict[str, np.ndarray], arrays: dict[str, np.ndarray], path: Path) -> dict[str, np.ndarray]:
    """A fresh model's parameters, those that the file has replaced."""
    same = {
        name: arrays[name].astype(array.dtype)
        for name, array in fresh.items()
        if name in arrays and arrays[name].shape == array.shape
    }
    if not same:
        raise SettingError(f"Not one parameter of {path} is in this model", f"Its parameters are {', '.join(fresh)}")
    return {**fresh, **same}
