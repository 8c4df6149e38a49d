"""Clients that decide: at every turn of its own a client sees new data, and refreshes or waits."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from artesian.core import ClientId, Ensemble, Tree
from artesian.drift.detector import Part
from artesian.drift.watch import Decision, Watching, detector, policy
from artesian.errors import SettingError, check
from artesian.simulator.executor import Promise
from artesian.simulator.jobs import Look, Observed
from artesian.simulator.table import Table
from artesian.simulator.worlds import Concept, World

ORACLE = "oracle"  # the policy of clients that know when their data drift
FIRST = "its first turn"
AGAIN = "it refreshes several times in a row"
TURNS = ("turn", "time", "client", "cycle", "drifts", "share", "alarm", "refresh", "reason", "accuracy")


@dataclass(frozen=True)
class Watches:
    """How clients decide when to refresh. Everybody refreshes at its first turn; `when` decides about all others."""

    when: str = "drift"  # a policy, such as "drift or every 10", "always", "never"; or "oracle": at every true drift
    detector: str | None = None  # which watches the batches; None: none, where the policy does not wait for drift
    settings: Mapping[str, Any] = field(default_factory=dict)  # of the detector
    batch: int = 32  # new samples that a client sees at a turn
    again: int = 1  # turns in a row at which a client refreshes once it wants to

    def __post_init__(self) -> None:
        check(self, {"batch is at least 1": self.batch >= 1, "again is at least 1": self.again >= 1})
        object.__setattr__(self, "settings", dict(self.settings))
        if self.settings and self.detector is None:
            raise SettingError("watch.settings are those of a detector, and none is named", "Name it in watch.detector")
        if self.waits_for_drift and self.detector is None:
            raise SettingError(
                f"The policy {self.when!r} waits for drift, and no detector looks for it", "Name one in watch.detector"
            )
        self.watching()

    @property
    def tree(self) -> dict[str, Any]:
        """Its fields by name."""
        return {**vars(self), "settings": dict(self.settings)}

    @property
    def words(self) -> str:
        """The policy and the detector that it waits for, as tables show them."""
        told = f"{self.when}, {self.detector}" if self.waits_for_drift else self.when
        return told if self.again == 1 else f"{told}, {self.again} times"

    @property
    def waits_for_drift(self) -> bool:
        """Does the policy ask whether a detector found drift?"""
        return "drift" in re.findall(r"\w+", self.when)

    @property
    def part(self) -> Part:
        """What of a batch is watched; without a detector the losses, which every learner has."""
        return "losses" if self.detector is None else detector(self.detector, **self.settings).part

    def watching(self) -> Watching:
        """What one client decides by, fresh; with an oracle it only looks for drift."""
        detectors = [] if self.detector is None else [detector(self.detector, **self.settings)]
        return Watching(policy("never" if self.when == ORACLE else self.when), detectors)


@dataclass(frozen=True)
class KeptWatch:
    """What a checkpoint holds of a client that decides."""

    state: Tree  # of its policy and detectors
    refreshed: Concept | None = None  # of its data at its last refresh; None: it never refreshed
    left: int = 0  # turns at which it refreshes again


@dataclass(frozen=True)
class Turn:
    """One moment of a client: when it is, which of its data it has, and what it uses."""

    client: ClientId
    time: float
    cycle: int
    used: Callable[[], Ensemble]  # asked once, when the client looks at its data


@dataclass(frozen=True)
class Decided:
    """What a client does at its turn."""

    refresh: bool
    reason: str
    alarm: bool
    before: Tree = None  # the state it decided from, where it decided ahead of its turn


class Lookout:
    """The turns of all clients: what they see, what they decide, and the table of it.

    What a client sees and decides depends on nothing that happens after its turn before, so both may be worked out
    ahead; nothing of that counts until its turn has come.
    """

    def __init__(self, watches: Watches, world: World, seed: int, table: Table) -> None:
        self.watches, self.world, self.seed, self.table = watches, world, seed, table
        self.observe: Callable[[Look], Promise[Observed]]  # the executor's, while the run lasts
        self._refreshed: dict[ClientId, Concept] = {}  # the concept of a client's data at its last refresh
        self._left: dict[ClientId, int] = {}  # turns at which a client refreshes again
        self._watchings: dict[ClientId, Watching] = {}
        self._seen: dict[ClientId, Promise[Observed]] = {}
        self._decided: dict[ClientId, Decided] = {}

    def foresee(self, turn: Turn) -> bool:
        """Let a client look ahead of its turn; True if it is known already that it will refresh."""
        seen = self._looked(turn)
        return seen.ready and self._decide(turn, seen.value, ahead=True).refresh

    def take(self, turn: Turn, number: int) -> bool:
        """A client's turn has come, with this number among all turns: does it refresh?"""
        seen = self._looked(turn).value
        decided = self._decide(turn, seen)
        self._seen.pop(turn.client)
        self._decided.pop(turn.client)
        if decided.refresh:
            left = self._left.get(turn.client, 0) if decided.reason == AGAIN else self.watches.again
            self._left[turn.client] = left - 1
        concept = self._concept(turn)
        told = (number, turn.time, turn.client, turn.cycle, concept.drifts, concept.share)
        self.table.add(*told, int(decided.alarm), int(decided.refresh), decided.reason, seen.score)
        return decided.refresh

    def refreshed(self, turn: Turn, exchanged: int) -> None:
        """A client's refresh succeeded, and took so many bytes up and down."""
        self._refreshed[turn.client] = self._concept(turn)
        self._watchings[turn.client].refreshed(turn.time, exchanged)

    def forget(self, client: ClientId) -> None:
        """What was worked out ahead for a client counts no more."""
        self._seen.pop(client, None)
        decided = self._decided.pop(client, None)
        if decided is not None and decided.before is not None:
            self._watchings[client] = self._restored(decided.before)

    def kept(self) -> dict[ClientId, KeptWatch]:
        """What a checkpoint holds: of whoever decided ahead, as it was before."""
        return {
            client: KeptWatch(self._state(client), self._refreshed.get(client), self._left.get(client, 0))
            for client in self._watchings
        }

    def restore(self, kept: Mapping[ClientId, KeptWatch]) -> None:
        """Go on from what `kept` gave."""
        self._left = {client: watched.left for client, watched in kept.items()}
        self._refreshed = {client: watched.refreshed for client, watched in kept.items() if watched.refreshed}
        self._watchings = {client: self._restored(watched.state) for client, watched in kept.items()}

    def _concept(self, turn: Turn) -> Concept:
        return self.world.concept(self.seed, turn.client, turn.cycle)

    def _looked(self, turn: Turn) -> Promise[Observed]:
        if turn.client not in self._seen:
            look = Look(turn.client, turn.cycle, turn.used(), self.watches.batch, self.watches.part)
            self._seen[turn.client] = self.observe(look)
        return self._seen[turn.client]

    def _decide(self, turn: Turn, seen: Observed, *, ahead: bool = False) -> Decided:
        if turn.client not in self._decided:
            watching = self._watchings.get(turn.client) or self.watches.watching()
            before = watching.state() if ahead else None
            decision = watching.decide(seen.batch, turn.time)
            self._watchings[turn.client] = watching
            wanted, reason = self._wish(turn, decision)
            self._decided[turn.client] = Decided(wanted, reason, bool(decision.drifts), before)
        return self._decided[turn.client]

    def _wish(self, turn: Turn, decision: Decision) -> tuple[bool, str]:
        """Whether a client refreshes, and why: at its first turn, or as its policy or the oracle says."""
        before = self._refreshed.get(turn.client)
        if before is None or self._left.get(turn.client):
            return True, FIRST if before is None else AGAIN
        if self.watches.when != ORACLE:
            return decision.refresh, decision.reason
        drifted = before != self._concept(turn)
        return drifted, "its data drifted" if drifted else "its data did not drift"

    def _state(self, client: ClientId) -> Tree:
        decided = self._decided.get(client)
        ahead = decided is not None and decided.before is not None
        return decided.before if decided is not None and ahead else self._watchings[client].state()

    def _restored(self, state: Tree) -> Watching:
        watching = self.watches.watching()
        watching.restore(state)
        return watching
