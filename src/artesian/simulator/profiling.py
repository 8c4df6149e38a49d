"""Where a run's time goes: a stopwatch for the parts of a run, and parcels that know how long they took to travel."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

T = TypeVar("T")
PARTS = {
    "starting": "reading data, pre-training the clusters, the first study of an algorithm",
    "training": "drawing a client's data and following its task's recipe",
    "measuring": "measuring uploads on the proxy sets",
    "folding": "folding uploads, and making the tasks that answer them",
    "appraising": "the changed clusters on their own proxy sets",
    "comparing": "the replies that a client might get, on the proxy sets",
    "studying": "what an algorithm learns from the proxy sets, such as a calibration",
    "evaluating": "scores for the tables",
    "moving": "packing and unpacking what travels between processes",
    "waiting": "for a result, or for work; a worker's own start counts here",
    "other": "the rest: clock, tables, journal, snapshots",
}
Seconds = Mapping[str, float]


class Stopwatch:
    """Counts every moment once, for the innermost part it is in."""

    def __init__(self, part: str = "other") -> None:
        self._seconds = dict.fromkeys(PARTS, 0.0)
        self._part, self._since = part, time.perf_counter()

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """What happens inside counts for this part."""
        outer = self.turn(name)
        try:
            yield
        finally:
            self.turn(outer)

    def turn(self, name: str) -> str:
        """From now on it is this part; what it was before."""
        now = time.perf_counter()
        self._seconds[self._part] += now - self._since
        outer, self._part, self._since = self._part, name, now
        return outer

    def shift(self, before: str, after: str, seconds: float) -> None:
        """Count for another part what went on beside this one, as far as it goes."""
        moved = min(seconds, self._seconds[before])
        self._seconds[before] -= moved
        self._seconds[after] += moved

    @property
    def seconds(self) -> dict[str, float]:
        """What each part took until now; together, the time since the start."""
        self.turn(self._part)
        return dict(self._seconds)


class Mark:
    """Notes when it is pickled and when it is unpickled."""

    def __init__(self, packed: float = 0.0) -> None:
        self.packed, self.unpacked = packed, time.perf_counter()

    def __reduce__(self) -> tuple[Any, ...]:
        return Mark, (time.perf_counter(),)


@dataclass(frozen=True)
class Parcel(Generic[T]):
    """A content between two marks: fields are pickled and unpickled in their order."""

    first: Mark = field(default_factory=Mark, init=False)
    content: T
    last: Mark = field(default_factory=Mark, init=False)

    @property
    def packing(self) -> float:
        """The seconds its sender took to pickle it; 0 before it was sent."""
        return self.last.packed - self.first.packed

    @property
    def unpacking(self) -> float:
        """The seconds its receiver took to unpickle it."""
        return self.last.unpacked - self.first.unpacked
