"""Virtual time: a queue of moments keyed by (time, sequence number), so that ties are never random."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from artesian.core import ClientId

Kind = Literal["join", "leave", "finish", "patience"]


@dataclass(frozen=True, order=True)
class Moment:
    """Something that will happen."""

    time: float
    sequence: int
    kind: Kind
    client: ClientId
    number: int = 0  # of the task, for a finish or the end of patience


class Clock:
    """The present time and all that is to come."""

    def __init__(self, now: float = 0.0, sequence: int = 0, moments: Iterable[Moment] = ()) -> None:
        self.now, self.sequence = now, sequence
        self._queue = list(moments)
        heapq.heapify(self._queue)

    def at(self, time: float, kind: Kind, client: ClientId, number: int = 0) -> None:
        """Let something happen at a time."""
        heapq.heappush(self._queue, Moment(time, self.sequence, kind, client, number))
        self.sequence += 1

    def pop(self) -> Moment | None:
        """The next moment; time moves on to it."""
        if not self._queue:
            return None
        moment = heapq.heappop(self._queue)
        self.now = moment.time
        return moment

    def upcoming(self, count: int) -> list[Moment]:
        """The next moments, without touching time."""
        return heapq.nsmallest(count, self._queue)

    def moments(self) -> tuple[Moment, ...]:
        """All that is to come, in order."""
        return tuple(sorted(self._queue))
