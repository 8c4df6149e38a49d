"""What an operator does while the server serves: decide about members, roll back, forget.

A past state is rebuilt beside the uploads: events are read in the writer's turn, a few at a time, and fed in another
thread. Only the last step, in which the federation goes on from what was rebuilt, holds uploads up.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from artesian.core import Act, ClientId, Event, Member
from artesian.engine.coordinator import Coordinator
from artesian.engine.rebuilding import Rebuilding
from artesian.engine.standing import Standing
from artesian.errors import BadFormat, NotRetained, ReplayDiffers, StorageError
from artesian.server.replaying import replay
from artesian.server.service import Service
from artesian.storage.store import Store

WHY = 500  # characters of a reason
BATCH = 20  # events read at once, each with its models
Feed = Callable[[int, Event], object]


@dataclass(frozen=True)
class Reach:
    """What can be undone: states after these events come back, and uploads after that event can be taken out."""

    rollback_from: int
    rollback_to: int
    forget_from: int


def reach_of(kept: Sequence[int], forgotten: Mapping[ClientId, int], count: int) -> Reach:
    """What a store of so many events still holds of its past, going by its snapshots and by who was forgotten when."""
    latest = max(forgotten.values(), default=0)
    first = next((at for at in kept if at >= latest), count)
    return Reach(first, count, kept[0] if kept else count)


class Operator:
    """An operator's acts on one service, one at a time."""

    def __init__(self, service: Service, drop_secret: Callable[[ClientId], None] | None = None) -> None:
        """`drop_secret` is called for every member who was forgotten, in the same turn of the writer."""
        self.service, self.coordinator, self._drop_secret = service, service.coordinator, drop_secret
        self._turn = asyncio.Lock()

    async def change_standing(self, kind: Standing, client: ClientId, act: Act) -> dict[str, Any]:
        """Revoke, reset, quarantine or release a member; the event's number, and what is known of the member."""
        return await self.service.act(partial(self._judge, kind, client, act))

    def _judge(self, kind: Standing, client: ClientId, act: Act) -> dict[str, Any]:
        before = self._count()
        self.coordinator.change_standing(kind, client, act)
        happened = self._count() if self._count() > before else None
        return {"event": happened, "member": describe_member(client, self.coordinator.known(client))}

    async def rollback(self, to: int, act: Act) -> dict[str, Any]:
        """Bring back the state after an event."""
        async with self._rebuilding() as store:
            reach = await self.service.run(lambda: reach_of(store.snapshots(), store.forgotten(), store.count))
            if not reach.rollback_from <= to <= reach.rollback_to:
                raise NotRetained(
                    f"The state after event {to} cannot be rebuilt: only those after the events "
                    f"{reach.rollback_from} to {reach.rollback_to} can",
                    "Choose one of these; the setting retain says how far back they go",
                )
            base = await self.service.run(lambda: max(at for at in store.snapshots() if at <= to))
            past = self.coordinator.sibling(await self.service.run(lambda: store.snapshot(base)))
            writer = await self.service.run(lambda: store.writer(to))  # of all since: it began with a snapshot
            await self._feed(store, partial(_replay, past, writer), base, to)
            return await self.service.act(lambda: self._roll_back(past, replace(act, to=to)))

    def _roll_back(self, past: Coordinator, act: Act) -> dict[str, Any]:
        self.coordinator.rollback(past.snapshot(tasks=False), act)
        self.coordinator.learn_losses()
        event = self._count()
        with suppress(StorageError):  # the rollback is safe in its event
            self.service.save()
        return {"event": event, "to": act.to, "version": self.coordinator.state.version}

    async def forget(self, client: ClientId, act: Act) -> dict[str, Any]:
        """Make the state what it would be had this member's uploads never been folded, and drop its record."""
        async with self._rebuilding() as store:
            self.coordinator.member(client)
            base = await self.service.run(lambda: self._clean_base(store, client))
            gone = {name: at for name, at in store.forgotten().items() if at > base} | {client: None}
            snapshot = await self.service.run(lambda: store.snapshot(base))
            rebuilt = Rebuilding(self.coordinator, snapshot, gone, store.rollbacks())
            done = base
            while store.count - done > BATCH or done == base < store.count:
                done = await self._feed(store, rebuilt.feed, done, store.count)
            return await self.service.act(partial(self._forget, store, client, rebuilt, done, act))

    def _clean_base(self, store: Store, client: ClientId) -> int:
        # who is there counts in the budgets of others, also before its first upload; rounds are those that were
        base, since = store.without(client, unknown=not self.coordinator.pace.in_rounds), min(store.snapshots())
        if base is None:
            raise NotRetained(
                f"Client {client} uploaded before event {since}, and uploads are kept only from there on",
                "Revoke it instead, or roll back; the setting retain says how much is kept",
            )
        return base

    def _forget(self, store: Store, client: ClientId, rebuilt: Rebuilding, done: int, act: Act) -> dict[str, Any]:
        for number, event in store.numbered(done, store.count):  # what came meanwhile
            rebuilt.feed(number, event)
        self.coordinator.forget(client, rebuilt.snapshot(), act)
        self.coordinator.learn_losses()
        at, self.service.holding = store.count, False
        with suppress(StorageError):  # it is forgotten already; the next start drops what is left
            self.service.clean_up(client)
        if self._drop_secret is not None:
            self._drop_secret(client)
        return {"event": at, "left_out": rebuilt.left_out, "version": self.coordinator.state.version}

    # inside

    @asynccontextmanager
    async def _rebuilding(self) -> AsyncIterator[Store]:
        """One act at a time; meanwhile nothing of the past is dropped."""
        store = self.service.store
        if store is None:
            raise NotRetained("This server keeps no journal", "Serve the federation with a store")
        async with self._turn:
            self.service.holding = True
            try:
                yield store
            finally:
                self.service.holding = False

    async def _feed(self, store: Store, feed: Feed, after: int, upto: int) -> int:
        """Hand the events after one, up to another, to `feed`, beside the uploads; the number of the last."""
        for at in range(after, upto, BATCH):
            end = min(at + BATCH, upto)
            events = await self.service.run(partial(store.numbered, at, end))
            await asyncio.to_thread(_feed_all, feed, events)
        return upto

    def _count(self) -> int:
        return self.service.store.count if self.service.store is not None else 0


def _replay(past: Coordinator, writer: Mapping[str, str], number: int, event: Event) -> None:
    """Do an event again; refused where this code answers it in another way than the code that wrote it."""
    try:
        replay(past, event, number, writer)
    except ReplayDiffers as error:
        raise NotRetained(
            f"The states after event {number} cannot be rebuilt: {error.problem}",
            "Choose an earlier event, or a later one",
        ) from error


def _feed_all(feed: Feed, events: list[tuple[int, Event]]) -> None:
    for number, event in events:
        feed(number, event)


def checked_why(why: str) -> str:
    """The reason of an act, which stays in the journal and is shown in terminals: one line of text."""
    if len(why) > WHY or not why.isprintable():
        raise BadFormat("A reason is longer than one line of text", f"Give at most {WHY} printable characters")
    return why


def describe_member(client: ClientId, member: Member | None) -> dict[str, Any] | None:
    """What an operator sees of a member."""
    if member is None:
        return None
    return {
        "client": client,
        "samples": member.samples,
        "answered": member.answered,
        "number": member.number,
        "open": member.receipt.number if member.receipt else None,
        "present": member.present,
        "set_aside": member.set_aside,
        "standing": standing_of(member),
        "mixture": None if member.mixture is None else dict(member.mixture),
    }


def standing_of(member: Member) -> str:
    """A member's standing in one word."""
    if member.revoked:
        return "revoked"
    if member.reset:
        return "reset"
    return "quarantined" if member.quarantined else "member"
