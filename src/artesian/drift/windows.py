"""Two bounded samples of what a client saw: the reference, which came first, and the window, which came last."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from artesian.core import Tree, generator
from artesian.drift.detector import Batch, Drift
from artesian.errors import BadData
from artesian.storage.codec import from_tree, to_tree


@dataclass(frozen=True)
class Reservoir:
    """A random sample of all rows put in: those with the smallest keys, where every row has a random one."""

    rows: np.ndarray | None = None
    keys: np.ndarray = field(default_factory=lambda: np.zeros(0))
    seen: int = 0  # rows put in

    def taking(self, rows: np.ndarray, keys: np.ndarray, most: int) -> Reservoir:
        """The same after these rows, with at most so many kept."""
        every = rows if self.rows is None else np.concatenate([self.rows, rows])
        every_key = np.concatenate([self.keys, keys])
        kept = np.sort(np.argsort(every_key, kind="stable")[:most])
        return Reservoir(every[kept], every_key[kept], self.seen + len(rows))


@dataclass(frozen=True)
class TwoSamples:
    """What is compared: a full reference and a full window."""

    reference: np.ndarray
    window: np.ndarray
    test: int  # the number of this comparison, counted from 1
    samples: int  # seen since the reference began


class Windows:
    """Fills a reference with the first batches, and then one window after the other with those that follow.

    A batch is never torn apart: it belongs to the reference or to one window as a whole, so the order of samples
    within it has no meaning. Of more samples than fit, a random part is kept, drawn with `seed`.
    """

    def __init__(self, reference: int, window: int, seed: int) -> None:
        self._most = reference, window
        self._seed = seed
        self._batches = 0  # ever, and reset() does not set it back: every batch has its own randomness
        self.reset()

    def reset(self) -> None:
        """Begin with an empty reference."""
        self._reference, self._window = Reservoir(), Reservoir()
        self._tests = self._samples = 0

    def take(self, rows: np.ndarray) -> TwoSamples | None:
        """Take in a batch, one row per sample; what is to be compared, if the window is full now."""
        self._check(rows)
        keys = generator(self._seed, "window", self._batches).random(len(rows))
        self._batches += 1
        self._samples += len(rows)
        first, later = self._most
        if self._reference.seen < first:
            self._reference = self._reference.taking(rows, keys, first)
            return None
        self._window = self._window.taking(rows, keys, later)
        return self._compared() if self._window.seen >= later else None

    def state(self) -> Tree:
        """All of it."""
        counts = {"batches": self._batches, "tests": self._tests, "samples": self._samples}
        return {"reference": to_tree(self._reference), "window": to_tree(self._window), **counts}

    def restore(self, state: Tree) -> None:
        """Go on from what `state` gave."""
        self._reference = from_tree(Reservoir, state["reference"])
        self._window = from_tree(Reservoir, state["window"])
        self._batches, self._tests, self._samples = state["batches"], state["tests"], state["samples"]

    def _compared(self) -> TwoSamples:
        """Both samples; the next window begins empty."""
        reference, window = self._reference.rows, self._window.rows
        assert reference is not None and window is not None
        self._window, self._tests = Reservoir(), self._tests + 1
        return TwoSamples(reference, window, self._tests, self._samples)

    def _check(self, rows: np.ndarray) -> None:
        before = self._reference.rows
        if before is not None and before.shape[1:] != rows.shape[1:]:
            wide, was = (int(np.prod(each.shape[1:])) for each in (rows, before))
            raise BadData(f"A sample has {wide} numbers, and those before had {was}", "Reset the detector first")


class ComparesWindows(Protocol):
    """A detector that compares its reference with one full window after the other."""

    _windows: Windows

    def rows(self, batch: Batch) -> np.ndarray:
        """What of a batch is compared: a number, or a row of them, for every sample."""
        ...

    def judge(self, full: TwoSamples) -> Drift | None:
        """What a full window means."""
        ...

    def observe(self, batch: Batch) -> Drift | None:
        rows = self.rows(batch)
        full = self._windows.take(rows) if len(rows) else None
        return None if full is None else self.judge(full)

    def reset(self) -> None:
        self._windows.reset()

    def state(self) -> Tree:
        return self._windows.state()

    def restore(self, state: Tree) -> None:
        self._windows.restore(state)
