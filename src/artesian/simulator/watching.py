"""Clients that decide: at every turn of its own a client sees new data, and refreshes or waits."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from artesian.core import ClientId, Ensemble, Tree
from artesian.drift.watch import Watching, detector, policy
from artesian.errors import SettingError, check
from artesian.simulator.executor import Promise
from artesian.simulator.jobs import Look, Observed
from artesian.simulator.table import Table
from artesian.simulator.worlds import Concept, World

ORACLE = "oracle"  # the policy of clients that know when their data drift
FIRST = "its first turn"
TURNS = ("turn", "time", "client", "cycle", "drifts", "share", "alarm", "refresh", "reason", "accuracy")


@dataclass(frozen=True)
class Watches:
    """How clients decide when to refresh. Everybody refreshes at its first turn; `when` decides about all others."""

    when: str = "drift"  # a policy, such as "drift or every 10", "always", "never"; or "oracle": at every true drift
    detector: str | None = None  # which watches the batches; None: none, where the policy needs none
    settings: Mapping[str, Any] = field(default_factory=dict)  # of the detector
    batch: int = 32  # new samples that a client sees at a turn

    def __post_init__(self) -> None:
        check(self, {"batch is at least 1": self.batch >= 1})
        object.__setattr__(self, "settings", dict(self.settings))
        if self.settings and self.detector is None:
            raise SettingError("watch.settings are those of a detector, and none is named", "Name it in watch.detector")
        if self.when == ORACLE:
            if self.detector is not None:
                raise SettingError("An oracle needs no detector", "Leave watch.detector out")
            return
        if "drift" in re.findall(r"\w+", self.when) and self.detector is None:
            raise SettingError(
                f"The policy {self.when!r} waits for drift, and no detector looks for it", "Name one in watch.detector"
            )
        self.watching()

    @property
    def tree(self) -> dict[str, Any]:
        """Its fields by name."""
        return {"when": self.when, "detector": self.detector, "settings": dict(self.settings), "batch": self.batch}

    @property
    def words(self) -> str:
        """The policy and its detector, as tables show them."""
        return self.when if self.detector is None else f"{self.when}, {self.detector}"

    def watching(self) -> Watching:
        """What one client decides by, fresh."""
        detectors = [] if self.detector is None else [detector(self.detector, **self.settings)]
        return Watching(policy(self.when), detectors)


@dataclass(frozen=True)
class Watched:
    """What a checkpoint holds of a client that decides."""

    state: Tree = None  # of its policy and detectors; None with an oracle
    refreshed: Concept | None = None  # of its data at its last refresh; None: it never refreshed


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
        concept = self._concept(turn)
        told = (number, turn.time, turn.client, turn.cycle, concept.drifts, concept.share)
        self.table.add(*told, int(decided.alarm), int(decided.refresh), decided.reason, seen.score)
        return decided.refresh

    def refreshed(self, turn: Turn, exchanged: int) -> None:
        """A client's refresh succeeded, and took so many bytes up and down."""
        self._refreshed[turn.client] = self._concept(turn)
        if turn.client in self._watchings:
            self._watchings[turn.client].refreshed(turn.time, exchanged)

    def forget(self, client: ClientId) -> None:
        """What was worked out ahead for a client counts no more."""
        self._seen.pop(client, None)
        decided = self._decided.pop(client, None)
        if decided is not None and decided.before is not None:
            self._watchings[client] = self._restored(decided.before)

    def kept(self) -> dict[ClientId, Watched]:
        """What a checkpoint holds: of whoever decided ahead, as it was before."""
        clients = dict.fromkeys([*self._watchings, *self._refreshed])
        return {client: Watched(self._state(client), self._refreshed.get(client)) for client in clients}

    def restore(self, kept: Mapping[ClientId, Watched]) -> None:
        """Go on from what `kept` gave."""
        self._refreshed = {client: watched.refreshed for client, watched in kept.items() if watched.refreshed}
        states = {client: watched.state for client, watched in kept.items() if watched.state is not None}
        self._watchings = {client: self._restored(state) for client, state in states.items()}

    def _concept(self, turn: Turn) -> Concept:
        return self.world.concept(self.seed, turn.client, turn.cycle)

    def _looked(self, turn: Turn) -> Promise[Observed]:
        if turn.client not in self._seen:
            look = Look(turn.client, turn.cycle, turn.used(), self.watches.batch)
            self._seen[turn.client] = self.observe(look)
        return self._seen[turn.client]

    def _decide(self, turn: Turn, seen: Observed, *, ahead: bool = False) -> Decided:
        if turn.client not in self._decided:
            oracle = self.watches.when == ORACLE
            self._decided[turn.client] = self._foretell(turn) if oracle else self._judge(turn, seen, ahead)
        return self._decided[turn.client]

    def _foretell(self, turn: Turn) -> Decided:
        """The oracle's: refresh where the data drifted since the last refresh."""
        before, now = self._refreshed.get(turn.client), self._concept(turn)
        reason = FIRST if before is None else "its data drifted" if before != now else "its data are as they were"
        return Decided(before != now, reason, alarm=False)

    def _judge(self, turn: Turn, seen: Observed, ahead: bool) -> Decided:
        watching = self._watchings.setdefault(turn.client, self.watches.watching())
        before = watching.state() if ahead else None
        decision = watching.decide(seen.batch, turn.time)
        first = turn.client not in self._refreshed
        reason = FIRST if first else decision.reason
        return Decided(first or decision.refresh, reason, bool(decision.drifts), before)

    def _state(self, client: ClientId) -> Tree:
        decided = self._decided.get(client)
        if decided is not None and decided.before is not None:
            return decided.before
        return self._watchings[client].state() if client in self._watchings else None

    def _restored(self, state: Tree) -> Watching:
        watching = self.watches.watching()
        watching.restore(state)
        return watching
