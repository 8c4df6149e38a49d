"""What every drift detector does: watch batch after batch, and say when the data are no longer what they were."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol, runtime_checkable

import numpy as np

from artesian.core import Tree
from artesian.errors import BadData

Part = Literal["labels", "losses", "errors", "features", "logits"]  # what of a batch a detector looks at


@dataclass(frozen=True)
class Batch:
    """What a client just saw, and what its model made of it. Parts that it does not have are None."""

    features: np.ndarray | None = None  # a row of numbers for every sample
    labels: np.ndarray | None = None  # of every sample
    losses: np.ndarray | None = None  # of every sample, under the model in use
    errors: np.ndarray | None = None  # 1 where the model in use is wrong, 0 where it is right
    logits: np.ndarray | None = None  # a row of outputs of the model in use for every sample

    @property
    def samples(self) -> int:
        """How many samples it has."""
        parts = (self.features, self.labels, self.losses, self.errors, self.logits)
        return next((len(part) for part in parts if part is not None), 0)


@dataclass(frozen=True)
class Drift:
    """A detector's word that the data changed."""

    detector: str  # its name
    statistic: float  # what it computed: a p-value, a share, or by how much a mean rose
    threshold: float  # what that was compared with, or the setting that decides
    samples: int  # how many samples it had seen since its reference began
    why: str  # one sentence for people


@runtime_checkable
class Detector(Protocol):
    """Watches one part of a client's batches. What it keeps is small, and survives a restart."""

    name: ClassVar[str]

    @property
    def part(self) -> Part:
        """What of a batch it looks at."""
        ...

    def observe(self, batch: Batch) -> Drift | None:
        """Take in a batch; what it means, if the data changed."""
        ...

    def reset(self) -> None:
        """Begin again: what comes next is the new normal, as after a refresh."""
        ...

    def state(self) -> Tree:
        """All it remembers, as JSON values and arrays."""
        ...

    def restore(self, state: Tree) -> None:
        """Go on from what `state` gave: every later answer is the same as without the interruption."""
        ...


def part_of(batch: Batch, part: Part, detector: str) -> np.ndarray:
    """What a detector looks at, one row or number per sample; a batch without it, or with NaN in it, is refused."""
    found = {"labels": batch.labels, "losses": batch.losses, "errors": batch.errors}.get(part)
    found = {"features": batch.features, "logits": batch.logits}.get(part, found)
    if found is None:
        raise BadData(f"The detector {detector} needs {part}, and this batch has none", f"Give the batch its {part}")
    array = np.asarray(found)
    if array.ndim == 0 or (array.ndim > 1 and part in ("labels", "losses", "errors")):
        raise BadData(f"The {part} have the shape {array.shape}", "Give one number for every sample")
    if array.dtype.kind not in "biuf":
        raise BadData(f"The {part} are {array.dtype}", "Give numbers")
    if not np.isfinite(array).all():
        raise BadData(f"The {part} hold NaN or infinity", "Leave these samples out, and find out where they come from")
    return array
