"""What a run is judged by, as functions of its numbers: clusters against true groups, and times."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence

import numpy as np

WINDOW = 20  # evaluations of a moving mean
GAIN = 0.001  # what counts as an improvement: 0.1 point of accuracy
HARM = 0.01  # what counts as worse: 1 point of accuracy, or 1% of an error


def purity(found: Sequence[Hashable], true: Sequence[Hashable]) -> float:
    """(1/n) * the sum over clusters of their largest overlap with one true group; 1 for nobody."""
    _check_pairs(found, true)
    overlaps = Counter(zip(found, true, strict=True))
    largest: dict[Hashable, int] = {}
    for (cluster, _), count in overlaps.items():
        largest[cluster] = max(count, largest.get(cluster, 0))
    return sum(largest.values()) / len(found) if found else 1.0


def adjusted_rand(found: Sequence[Hashable], true: Sequence[Hashable]) -> float:
    """The adjusted Rand index: 1 for the same clusters whatever their names, about 0 for chance; 1 for nobody.

    It counts ordered pairs of members by whether both lists put them together, one of the two does, or neither.
    """
    _check_pairs(found, true)
    both = _squares(zip(found, true, strict=True))
    only_found, only_true = _squares(found) - both, _squares(true) - both
    if not only_found and not only_true:
        return 1.0
    together = both - len(found)
    apart = len(found) ** 2 - only_found - only_true - both
    chance = (together + only_true) * (only_true + apart) + (together + only_found) * (only_found + apart)
    return 2.0 * (together * apart - only_true * only_found) / chance


def _squares(names: Iterable[Hashable]) -> int:
    """The sum of the squared sizes of the groups of members with one name."""
    return sum(size * size for size in Counter(names).values())


def time_to_target(times: Sequence[float], accuracies: Sequence[float], target: float) -> float | None:
    """When the accuracy first reached the target; None: never."""
    _check_pairs(times, accuracies)
    return next((time for time, accuracy in zip(times, accuracies, strict=True) if accuracy >= target), None)


def converged_at(
    times: Sequence[float], accuracies: Sequence[float], window: int = WINDOW, gain: float = GAIN
) -> float | None:
    """The last time at which the moving mean rose more than `gain` above where it last did; None without numbers.

    The mean is over the newest `window` evaluations, or those there are so far.
    """
    _check_pairs(times, accuracies)
    last, best = None, -np.inf
    for i, time in enumerate(times):
        mean = float(np.mean(accuracies[max(0, i + 1 - window) : i + 1]))
        if mean > best + gain:
            last, best = time, mean
    return last


def is_worse(before: float, after: float, *, errors: bool) -> bool:
    """Is `after` more than HARM worse? Where scores are minus `errors`, relative to them. No number is worse, too."""
    return not after >= (before * (1 + HARM) if errors else before - HARM)


def _check_pairs(one: Sequence[object], two: Sequence[object]) -> None:
    if len(one) != len(two):
        raise ValueError(f"both lists must have the same length, not {len(one)} and {len(two)}")
