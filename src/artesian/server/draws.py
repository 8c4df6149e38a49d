"""Draws between uploads: worked out beside the writer, and remembered until the next fold."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from artesian.core import ClientId, Receipt, Snapshot, Task
from artesian.engine.drawing import HEADER, Moved, check_draw, fresh_task, moved_between
from artesian.server.messages import task_pieces
from artesian.server.service import Service

Pieces = Sequence[bytes | memoryview]


@dataclass(frozen=True)
class Offer:
    """What is known of a model that a client may draw now: everything but the model."""

    number: int | None  # of the client's open task; None: it has none
    tag: str
    moved: Moved

    @property
    def headers(self) -> dict[str, str]:
        """Those of an answer about it, with or without the model."""
        told = self.moved.header
        return {"etag": self.tag} | ({HEADER: told} if told else {})

    def is_named_in(self, header: str) -> bool:
        """Whether an `If-None-Match` names it; `*` names anything."""
        tags = [tag.strip().removeprefix("W/") for tag in header.split(",")]
        return "*" in tags or self.tag in tags


class Draws:
    """The offers to all clients. Of the present state alone: the next fold makes other ones."""

    def __init__(self, service: Service) -> None:
        self.service, self.coordinator = service, service.coordinator
        self._changes = 0  # of the state that the offers are of
        self._offers: dict[ClientId, Offer] = {}

    def known(self, client: ClientId) -> Offer | None:
        """The offer to a client, if it was worked out since the last fold; somebody who may not draw is refused."""
        member = self.coordinator.state.members.get(client)
        check_draw(self.coordinator.algorithm, client, member)
        if self.coordinator.changes != self._changes:
            self._changes, self._offers = self.coordinator.changes, {}
        offer = self._offers.get(client)
        open_task = member.receipt.number if member is not None and member.receipt is not None else None
        return offer if offer is not None and offer.number == open_task else None

    async def draw(self, client: ClientId) -> tuple[Offer, Pieces]:
        """What a client may use now, as bytes. The writer only copies its table of members for it."""
        snapshot, changes = await self.service.run(self._now)
        now = await asyncio.to_thread(fresh_task, self.coordinator.algorithm, snapshot.state, snapshot.desk, client)
        pieces, tag = await asyncio.to_thread(task_pieces, now)
        receipt = snapshot.state.members[client].receipt
        moved = Moved() if receipt is None else await self._moved(client, receipt, snapshot, now)
        offer = Offer(None if receipt is None else receipt.number, tag, moved)
        if changes == self._changes:
            self._offers[client] = offer
        return offer, pieces

    def _now(self) -> tuple[Snapshot, int]:
        return self.coordinator.snapshot(tasks=False), self.coordinator.changes

    async def _moved(self, client: ClientId, receipt: Receipt, snapshot: Snapshot, now: Task) -> Moved:
        """How far the model moved since the open task, unless that was answered in this very moment."""
        versions = snapshot.state.version - receipt.base
        given = await self.service.task(client)
        if given is None or given.number != receipt.number:
            return Moved(versions)
        return await asyncio.to_thread(moved_between, snapshot.state.layout, given, now, versions)
