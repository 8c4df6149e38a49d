"""How often somebody may do something: so many times a minute, at once or spread."""

from __future__ import annotations

import time
from collections.abc import Callable

from artesian.errors import Busy

MOST = 10_000  # names remembered: those who have been quiet long enough are forgotten beyond that


class Rate:
    """An allowance for every name, which fills up again within a minute."""

    def __init__(self, per_minute: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.per_minute, self._clock = per_minute, clock
        self._left: dict[str, tuple[float, float]] = {}  # allowance left, and when that was

    def left(self, name: str) -> float:
        """How much of the allowance is left."""
        now = self._clock()
        left, then = self._left.get(name, (self.per_minute, now))
        return min(self.per_minute, left + (now - then) * self.per_minute / 60)

    def is_spent(self, name: str) -> bool:
        """Whether nothing is left for this name."""
        return self.left(name) < 1

    def spend(self, name: str) -> None:
        """Count one more time; an allowance never falls below 0."""
        left = max(0.0, self.left(name) - 1)
        if len(self._left) >= MOST:
            self._left = {key: value for key, value in self._left.items() if self.left(key) < self.per_minute}
        self._left[name] = left, self._clock()

    def take(self, name: str, problem: str) -> None:
        """Count one more time, or refuse it."""
        if self.is_spent(name):
            raise Busy(problem, "Try again later")
        self.spend(name)
