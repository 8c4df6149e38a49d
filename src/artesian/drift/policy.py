"""When a client refreshes: small rules over what it knows at one moment, composed with `|`, `&` and `~`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from artesian.drift.detector import Drift


@dataclass(frozen=True)
class Situation:
    """What a client knows when it decides. Times are seconds, or units of virtual time in the simulator."""

    now: float
    drift: Drift | None = None  # found in the newest batch, or found before and not answered by a refresh yet
    refreshed_at: float | None = None  # None: never
    samples: int = 0  # seen since the last refresh
    batches: int = 0  # seen since the last refresh
    refreshes: tuple[float, ...] = ()  # when the refreshes were that a budget may have to count
    sent: tuple[tuple[float, int], ...] = ()  # when, and how many bytes up and down
    asked: bool = False  # somebody called for a refresh


class Policy(Protocol):
    """A rule: the reason to refresh now, or None."""

    def wants(self, situation: Situation) -> str | None: ...
