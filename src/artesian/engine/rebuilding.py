"""A federation fed again with what a journal recorded, but for the events of some clients.

What others uploaded is fed as it was measured and clipped; clusters are appraised anew, replies compared and studies
made anew. In a stream the pace decides as ever. Rounds are those that were: their cohorts without the forgotten.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from artesian.core import ClientId, Desk, Event, Pace, Snapshot, State
from artesian.engine.coordinator import Coordinator
from artesian.engine.reverting import without
from artesian.errors import Refused


@dataclass
class SameRounds(Pace):
    """Folds and answers when another federation did."""

    like: Pace
    folding: bool = False
    answered: tuple[ClientId, ...] = ()

    @property
    def patience(self) -> float | None:
        return self.like.patience

    @property
    def in_rounds(self) -> bool:
        return True

    def folds(self, desk: Desk) -> bool:
        return self.folding and bool(desk.pending)

    def answers(self, desk: Desk, state: State) -> Sequence[ClientId]:
        return [client for client in self.answered if client in desk.waiting]


class Rebuilding:
    """A federation without some clients, as far as it was fed."""

    def __init__(
        self, live: Coordinator, base: Snapshot, gone: Mapping[ClientId, int | None], moments: Collection[int] = ()
    ) -> None:
        """`gone`: until which event each is left out (None: for good); `moments`: events that rollbacks go back to."""
        self.gone, self.moments = gone, frozenset(moments)
        self.left_out = 0  # uploads that answer a task which was never given without them
        self._past: dict[int, Snapshot] = {}
        self._rounds = SameRounds(live.pace) if live.pace.in_rounds else None
        self._original = live.sibling(base)  # with everybody: fed only to see its rounds
        self.coordinator = live.sibling(without(base, list(gone)), self._rounds)

    def feed(self, number: int, event: Event) -> None:
        """The next event of the journal, with its number."""
        if self._rounds is not None:
            self._watch(self._rounds, event)
        if event.kind == "forget" or not self.is_left_out(number, event.client):
            self._repeat(event)
        elif self._rounds is not None:
            self.coordinator.ask_pace()
        if number in self.moments:
            self._past[number] = self.coordinator.snapshot(tasks=False)

    def is_left_out(self, number: int, client: ClientId) -> bool:
        """Whether an event of this client is not fed."""
        until = self.gone.get(client, 0)
        return until is None or number < until

    def snapshot(self) -> Snapshot:
        """The state that the events fed so far give."""
        return self.coordinator.snapshot(tasks=False)

    def _repeat(self, event: Event) -> None:
        try:
            match event.kind:
                case "forget":
                    self._retire(event)
                case "rollback":
                    self.coordinator.rollback(self._target(event))
                case _:
                    self.coordinator.repeat(event)
        except Refused:
            if event.measured is None:
                raise
            self.left_out += 1

    def _target(self, event: Event) -> Snapshot:
        """What a rollback went back to: from before the first event that was fed, none of them had uploaded."""
        assert event.act is not None and event.act.snapshot is not None
        return self._past.get(event.act.to) or without(event.act.snapshot, list(self.gone))

    def _retire(self, event: Event) -> None:
        """One who was forgotten before was never fed: open tasks are replaced as then, and its numbers go on."""
        assert event.act is not None and event.act.snapshot is not None
        self.coordinator.rollback(self.snapshot())
        if self.gone.get(event.client, 0) is not None:
            self.coordinator.retire(event.client, event.act.snapshot.desk.retired[event.client])

    def _watch(self, rounds: SameRounds, event: Event) -> None:
        """See whether this event closed a round, and who was answered."""
        before = self._original.state.rounds
        rounds.answered = tuple(reply.client for reply in self._original.replay(event))
        rounds.folding = self._original.state.rounds > before
