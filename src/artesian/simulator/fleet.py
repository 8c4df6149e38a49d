"""Fleets: when clients come, how long they train, when they leave. Pure functions of (seed, client, moment)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from math import inf
from typing import Any, Literal

from artesian.core import ClientId, generator
from artesian.errors import check
from artesian.simulator.attacks import ATTACKS, FLOOD, Attack

TIMES = ("latency_max", "redraw", "slow_share", "slow_factor", "latency")  # what makes durations
SHARES = ("slow_share", "leave_share", "late_share")
BLOCK = 4096  # draws of the uniform schedule made at a time


@dataclass(frozen=True)
class Fleet:
    """The habits of all clients together.

    `schedule="uniform"` is CDFL's: in every unit of time one client, drawn uniformly with replacement, finishes.
    `schedule="latency"` gives every training a duration: fixed, or drawn between `latency` and `latency_max`.
    """

    schedule: Literal["uniform", "latency"] = "uniform"
    latency: float = 1.0  # duration of one training
    latency_max: float | None = None  # with it, durations are uniform in [latency, latency_max]
    redraw: bool = True  # a new duration for every training, not one per client
    slow_share: float = 0.0  # of the clients take longer, chosen by seed
    slow_factor: float = 5.0  # how many times longer
    leave_share: float = 0.0  # of the clients leave once, chosen by seed
    leave_by: float = 0.0  # at a uniform time, so long after they came at most
    return_after: float | None = None  # and come back so much later; None: never
    late_share: float = 0.0  # of the clients join late, chosen by seed
    late_by: float = 0.0  # at a uniform time before this one
    hostile_share: float = 0.0  # of the clients attack, chosen by seed
    attack: Attack = "sign-flip"  # what these do

    def __post_init__(self) -> None:
        rules = {
            **{f"{name} is in [0, 1]": 0 <= vars(self)[name] <= 1 for name in SHARES},
            "latency is positive and finite": 0 < self.latency < inf,
            "latency_max is at least latency, and finite": (
                self.latency_max is None or self.latency <= self.latency_max < inf
            ),
            "slow_factor is at least 1, and finite": 1 <= self.slow_factor < inf,
            "leave_by is positive where leave_share is": not self.leave_share or self.leave_by > 0,
            "late_by is positive where late_share is": not self.late_share or self.late_by > 0,
            "return_after is positive and finite": self.return_after is None or 0 < self.return_after < inf,
            "leave_by and late_by are finite": 0 <= self.leave_by < inf and 0 <= self.late_by < inf,
            "hostile_share is in [0, 1)": 0 <= self.hostile_share < 1,
            f"attack is one of {', '.join(ATTACKS)}": self.attack in ATTACKS,
            "attack has an effect only with hostile_share": bool(self.hostile_share) or self.attack == Fleet.attack,
        }
        check(self, rules)
        timed = self.schedule == "latency"
        check(
            self,
            {
                f"{n} has an effect only with schedule = latency": timed or vars(self)[n] == vars(Fleet)[n]
                for n in TIMES
            },
        )

    @property
    def settings(self) -> dict[str, Any]:
        """Its fields by name. Without hostile clients those about them are left out, as before there were any."""
        told = asdict(self)
        return told if self.hostile_share else {k: v for k, v in told.items() if k not in ("hostile_share", "attack")}


@dataclass
class Habits:
    """A fleet with its names and seed: answers when things happen."""

    fleet: Fleet
    names: Sequence[ClientId]
    seed: int
    _turns: dict[ClientId, list[int]] = field(default_factory=dict)
    _drawn: int = 0
    _sets: dict[str, set[ClientId]] = field(default_factory=dict)

    @cached_property
    def hostile(self) -> frozenset[ClientId]:
        """The clients that attack."""
        return frozenset(self._chosen("hostile", self.fleet.hostile_share))

    def joins_at(self, client: ClientId) -> float:
        """When this client first comes."""
        if client not in self._chosen("late", self.fleet.late_share):
            return 0.0
        return float(generator(self.seed, "late", client).uniform(0, self.fleet.late_by))

    def leaves_at(self, client: ClientId) -> float | None:
        """When this client goes, counted from when it came; None: never."""
        if client not in self._chosen("leave", self.fleet.leave_share):
            return None
        return self.joins_at(client) + float(generator(self.seed, "leave", client).uniform(0, self.fleet.leave_by))

    def finishes_at(self, client: ClientId, number: int, now: float, work: float = 1.0) -> float:
        """When a training begun now is done; `work` is its share of a usual one.

        Who floods needs a hundredth of its time: in the uniform schedule, of the mean time between two turns.
        """
        floods = self.fleet.attack == "flood" and client in self.hostile
        if self.fleet.schedule == "uniform":
            return now + len(self.names) / FLOOD if floods else float(self._next_turn(client, now))
        return now + self._duration(client, number) * work / (FLOOD if floods else 1.0)

    def _duration(self, client: ClientId, number: int) -> float:
        fleet, duration = self.fleet, self.fleet.latency
        if fleet.latency_max is not None:
            rng = generator(self.seed, "latency", client, number if fleet.redraw else 0)
            duration = float(rng.uniform(fleet.latency, fleet.latency_max))
        slow = client in self._chosen("slow", fleet.slow_share)
        return duration * fleet.slow_factor if slow else duration

    def _next_turn(self, client: ClientId, now: float) -> int:
        """The first draw after `now` that falls on this client."""
        while True:
            turns = self._turns.get(client, [])
            place = bisect_right(turns, now)
            if place < len(turns):
                return turns[place]
            self._draw_more()

    def _draw_more(self) -> None:
        rng = generator(self.seed, "schedule", self._drawn)
        for offset, index in enumerate(rng.integers(0, len(self.names), BLOCK).tolist()):
            self._turns.setdefault(self.names[index], []).append(self._drawn + offset + 1)
        self._drawn += BLOCK

    def _chosen(self, purpose: str, share: float) -> set[ClientId]:
        if purpose not in self._sets:
            self._sets[purpose] = self._choose(purpose, share)
        return self._sets[purpose]

    def _choose(self, purpose: str, share: float) -> set[ClientId]:
        count = round(share * len(self.names))
        if not count:
            return set()
        order = generator(self.seed, "chosen", purpose).permutation(len(self.names))
        return {self.names[i] for i in order[:count].tolist()}
