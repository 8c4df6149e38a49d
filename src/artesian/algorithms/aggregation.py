"""How a batch of uploads becomes one model: the mean, or a rule that a few hostile uploads cannot carry away.

A rule takes vectors of a layout and their weights. Weights count in the mean, in `bounded` and in `krum`; the rules
that go entry by entry, `median` and `trimmed`, give every vector one voice. Fewer than three vectors have their mean.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from artesian.core import Algorithm, Measured, State, Step
from artesian.errors import check
from artesian.params import Layout, Params, average, chunks, clipped, distance, norm, seal

Aggregate = Literal["mean", "median", "trimmed", "bounded", "krum"]
FEWEST = 3  # vectors of which one can be told from the others
SHARE = 5  # one vector of so many is taken to be hostile, at least one


@dataclass(frozen=True, kw_only=True)
class Aggregates(Algorithm):
    """A method that averages a batch of uploads, and can do so by another rule."""

    aggregate: Aggregate = "mean"  # how a batch becomes one model

    def check_aggregate(self) -> None:
        """Refuse a rule that there is not."""
        names = ("mean", *RULES)
        check(self, {f"aggregate is one of {', '.join(names)}": self.aggregate in names})

    def describe(self) -> dict[str, Any]:
        """Without the rule where it is the mean: as before there were others."""
        found = super().describe()
        return found if self.aggregate != "mean" else {key: item for key, item in found.items() if key != "aggregate"}

    def averaged(self, state: State, measured: Sequence[Measured]) -> Step:
        """The only cluster as the mean of the models of a cohort, by samples; nothing where nobody has any."""
        weights = [m.upload.samples for m in measured]
        if not sum(weights):
            return Step()
        models = [m.upload.params for m in measured]
        return Step({"k0": aggregated(self.aggregate, state.layout, models, weights, state.clusters["k0"].params)})


def aggregated(
    rule: Aggregate,
    layout: Layout,
    vectors: Sequence[Params],
    weights: Sequence[float] | None = None,
    origin: Params | None = None,
) -> Params:
    """One vector for many; `origin` is where they began, None for vectors that are changes."""
    if rule == "mean":
        return average(layout, vectors, weights)
    voices = np.ones(len(vectors)) if weights is None else np.asarray(weights, np.float64)
    heard = [(vector, weight) for vector, weight in zip(vectors, voices.tolist(), strict=True) if weight]
    kept, shares = [vector for vector, _ in heard], [weight for _, weight in heard]
    if len(kept) < FEWEST:
        return average(layout, vectors, weights)
    return RULES[rule](layout, kept, shares, origin)


def hostile(count: int) -> int:
    """How many of so many vectors are taken to be hostile: a fifth, at least one."""
    return max(1, count // SHARE)


def median(layout: Layout, vectors: Sequence[Params], weights: Sequence[float], origin: Params | None) -> Params:
    """The median of every entry."""
    return _by_entry(layout, vectors, lambda rows: np.median(rows, axis=0))


def trimmed(layout: Layout, vectors: Sequence[Params], weights: Sequence[float], origin: Params | None) -> Params:
    """The mean of every entry without its smallest and largest values, as many of each as are taken to be hostile."""
    cut = hostile(len(vectors))
    return _by_entry(layout, vectors, lambda rows: np.sort(rows, axis=0)[cut : len(rows) - cut].mean(axis=0))


def bounded(layout: Layout, vectors: Sequence[Params], weights: Sequence[float], origin: Params | None) -> Params:
    """The weighted mean of changes, none of them longer than the median of the batch."""
    lengths = [norm(layout, v) if origin is None else distance(layout, v, origin) for v in vectors]
    longest = float(np.median(lengths))
    return average(layout, [clipped(layout, vector, origin, longest) for vector in vectors], weights)


def krum(layout: Layout, vectors: Sequence[Params], weights: Sequence[float], origin: Params | None) -> Params:
    """The weighted mean of the vectors whose nearest others are nearest: multi-Krum (Blanchard et al. 2017)."""
    count, cut = len(vectors), hostile(len(vectors))
    far = np.zeros((count, count))
    for i in range(count):
        for j in range(i):
            far[i, j] = far[j, i] = distance(layout, vectors[i], vectors[j]) ** 2
    near = max(1, count - cut - 2)
    scores = np.sort(far, axis=1)[:, 1 : near + 1].sum(axis=1)  # without the distance to itself
    kept = sorted(np.argsort(scores, kind="stable")[: count - cut].tolist())
    return average(layout, [vectors[i] for i in kept], [weights[i] for i in kept])


def _by_entry(layout: Layout, vectors: Sequence[Params], rule: Callable[[np.ndarray], np.ndarray]) -> Params:
    """A rule for the floating entries, chunk by chunk; exact entries are those of the last vector."""
    out = vectors[-1].copy()
    for part in chunks(layout.floats):
        out[part] = rule(np.array([vector[part] for vector in vectors], np.float64))
    return seal(out)


Rule = Callable[[Layout, Sequence[Params], Sequence[float], Params | None], Params]
RULES: dict[str, Rule] = {"median": median, "trimmed": trimmed, "bounded": bounded, "krum": krum}
