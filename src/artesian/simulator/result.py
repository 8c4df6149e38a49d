"""What a run found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from artesian.core import ClientId, ClusterId, Mixture
from artesian.params import Params


@dataclass(frozen=True, repr=False)
class Run:
    """What a run found."""

    summary: Mapping[str, Any]
    metrics: Mapping[str, np.ndarray]  # one row per upload
    clusters: Mapping[str, np.ndarray]  # one row per look at a cluster
    clients: Mapping[str, np.ndarray]  # one row per look at all clients
    models: Mapping[ClusterId, Mapping[str, np.ndarray]]  # the final ones, by parameter name
    params: Mapping[ClusterId, Params]  # the same as vectors
    mixtures: Mapping[ClientId, tuple[Mixture, Mixture | None]]  # true and found, newest
    folder: Path | None = None

    def __repr__(self) -> str:
        told = self.summary
        return f"Run({told['preset']} {told['algorithm']} seed {told['seed']}, {told['uploads']} uploads)"

    def table(self) -> str:
        """The summary as two columns of text."""
        width = max(len(key) for key in self.summary)
        return "\n".join(f"{key:<{width}}  {_plain(value)}" for key, value in self.summary.items())


def _plain(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return "-" if value is None else str(value)
