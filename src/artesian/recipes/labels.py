"""How many samples of each label a client has, and how far two such counts are apart."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from artesian.core import Labelled, Learner
from artesian.errors import SettingError


def histogram_of(learner: Learner) -> list[int]:
    """How many samples have each label; a learner that cannot say is refused."""
    counts = learner.histogram if isinstance(learner, Labelled) else None
    if counts is None:
        raise SettingError(
            f"This client may move to another group, which its labels decide, and {type(learner).__name__} counts none",
            "Use fedgroup, whose clients stay, or give the learner a `histogram`",
        )
    return list(counts)


def shift(now: Sequence[int], before: Sequence[int], rule: str) -> int:
    """How many samples separate two histograms.

    `changed`: those added, or those removed, whichever are more; `mean_abs`: both together, which is L times the mean
    difference of L labels; `sorted_w1`: the same of the sorted counts, blind to which label is which.
    """
    counts = np.zeros((2, max(len(now), len(before))), np.int64)
    counts[0, : len(now)], counts[1, : len(before)] = now, before
    if rule == "sorted_w1":
        counts.sort(axis=1)
    gained = counts[0] - counts[1]
    added, removed = int(np.maximum(gained, 0).sum()), int(np.maximum(-gained, 0).sum())
    return max(added, removed) if rule == "changed" else added + removed


def shifted(now: Sequence[int], before: Sequence[int], rule: str, samples: int) -> float:
    """The same as a share of the present samples: what FlexCFL compares with a fifth."""
    return shift(now, before, rule) / samples
