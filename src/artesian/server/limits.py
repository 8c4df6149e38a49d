"""Receiving bodies: never more than fits, never for ever, never too much at once."""

from __future__ import annotations

import asyncio
import base64
import binascii
import re
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from starlette.requests import ClientDisconnect

from artesian.errors import BadFormat, Busy, TooLarge, TooSlow
from artesian.params import Layout
from artesian.server.settings import Settings
from artesian.storage.codec import HEADER_LIMIT

if TYPE_CHECKING:
    from collections.abc import Mapping


SMALL = 1 << 14  # bytes of a join
RANGE = re.compile(r"bytes (\d{1,15})-(\d{1,15})/(\d{1,15})")
DIGEST = re.compile(r"sha-256=:([A-Za-z0-9+/=]{44}):")


@dataclass(frozen=True)
class Announced:
    """What the head of an upload says of its body."""

    total: int  # bytes of the whole
    start: int = 0  # where this piece begins
    digest: str = ""  # SHA-256 of the whole, in hex, if told


class Limits:
    """The bodies under way, and how often each client has come."""

    def __init__(self, settings: Settings, layout: Layout, models: int) -> None:
        self.settings = settings
        self.largest = models * layout.size * 4 + HEADER_LIMIT + 8  # bytes of any sound upload
        self.model = layout.size * 4 + SMALL  # bytes of a message with one model, about
        self.in_flight = 0
        self._queue: deque[tuple[int, asyncio.Future[None]]] = deque()  # who waits for room
        self._under_way: set[str] = set()
        self._allowance: dict[str, tuple[float, float]] = {}  # uploads left, and when that was

    @asynccontextmanager
    async def one(self, client: str, length: int) -> AsyncIterator[None]:
        """Room for one upload of a client, from its first byte to the last of its answer."""
        if client in self._under_way:
            raise Busy("a client sends one upload at a time", "another under way", "come back later")
        self._under_way.add(client)
        try:
            async with self.room(length):
                yield
        finally:
            self._under_way.discard(client)

    async def receive(
        self,
        announced: Announced,
        stream: AsyncIterator[bytes],
        head: bytes = b"",
        broken: Callable[[memoryview], None] | None = None,
    ) -> memoryview:
        """The body of an upload, after the `head` that is here already; `broken` gets what came if it breaks off.

        Nobody else has it, and it is never copied whole: that would take the time of everybody on this loop.
        """
        room, at = np.empty(announced.total, np.uint8), len(head)
        body = room.data
        if head:
            await asyncio.to_thread(np.copyto, room[:at], np.frombuffer(head, np.uint8))
        end = asyncio.get_running_loop().time() + self.settings.grace
        try:
            async with asyncio.timeout_at(end) as deadline:
                async for chunk in stream:
                    if at + len(chunk) > len(body):
                        raise BadFormat("a body is as long as it says", f"over {len(body)} bytes", "send it again")
                    body[at : at + len(chunk)] = chunk
                    at += len(chunk)
                    end += len(chunk) / self.settings.slowest  # at no moment behind its pace
                    deadline.reschedule(end)
        except (TimeoutError, ClientDisconnect) as error:
            if broken is not None:
                await asyncio.to_thread(broken, body[:at])
            raise _broken_off(error, at, len(body), self.settings.slowest) from None
        if at < len(body):
            raise BadFormat("a body is as long as it says", f"{at} of {len(body)} bytes", "send it again")
        return body

    async def receive_small(self, stream: AsyncIterator[bytes]) -> bytes:
        """A body of a few words."""
        body = bytearray()
        try:
            async with asyncio.timeout(self.settings.grace):
                async for chunk in stream:
                    body += chunk
                    if len(body) > SMALL:
                        raise TooLarge(f"this body has {SMALL} bytes at most", "more", "send only what is asked for")
        except (TimeoutError, ClientDisconnect) as error:
            raise _broken_off(error, len(body), SMALL, self.settings.slowest) from None
        return bytes(body)

    def count(self, client: str) -> None:
        """One more upload of this client: refused when it comes too often."""
        rate = self.settings.uploads_per_minute
        if rate is None:
            return
        now = time.monotonic()
        left, then = self._allowance.get(client, (rate, now))
        left = min(rate, left + (now - then) * rate / 60)
        if left < 1:
            raise Busy(f"a client uploads {rate:g} times a minute at most", "more", "come back later")
        self._allowance[client] = left - 1, now

    def announced(self, headers: Mapping[str, str]) -> Announced:
        """What the head says: the length, which piece of the whole, and the whole's digest."""
        told = headers.get("content-length", "")
        if not (told.isascii() and told.isdigit() and len(told) <= 15):
            raise BadFormat("an upload says its Content-Length", repr(told)[:40], "send it")
        start, total = _piece(headers.get("content-range"), int(told))
        if total > self.largest:
            raise TooLarge(f"an upload has {self.largest} bytes at most", str(total), "send only what is asked for")
        return Announced(total, start, _digest(headers.get("repr-digest")))

    @asynccontextmanager
    async def room(self, length: int) -> AsyncIterator[None]:
        """Room for so many bytes under way, in the order of asking; refused if none comes free in time."""
        if self._queue or not self._fits(length):
            await self._turn(length)
        else:
            self.in_flight += length
        try:
            yield
        finally:
            self._leave(length)

    def _fits(self, length: int) -> bool:
        return not self.in_flight or self.in_flight + length <= self.settings.bytes_in_flight

    async def _turn(self, length: int) -> None:
        turn = asyncio.get_running_loop().create_future()
        self._queue.append((length, turn))
        try:
            async with asyncio.timeout(self.settings.grace):
                await turn
        except BaseException as error:
            if turn.done() and not turn.cancelled():
                self._leave(length)  # it came in the last moment
            else:
                self._queue.remove((length, turn))
            if isinstance(error, TimeoutError):
                got = f"{self.in_flight} bytes already"
                raise Busy("bodies and answers under way fit into memory", got, "come back later") from None
            raise

    def _leave(self, length: int) -> None:
        self.in_flight -= length
        while self._queue and self._fits(self._queue[0][0]):
            wanted, turn = self._queue.popleft()
            if not turn.cancelled():
                self.in_flight += wanted
                turn.set_result(None)


def _broken_off(error: Exception, at: int, length: int, slowest: float) -> TooSlow | BadFormat:
    """What to say of a body that came too slowly, or whose client hung up: a refusal, not a failure."""
    got = f"{at} of {length} bytes"
    if isinstance(error, TimeoutError):
        return TooSlow(f"a body arrives at {slowest:.0f} bytes/s", f"{got} in time", "send it again, or go on")
    return BadFormat("a body is sent to its end", f"{got}, then a client that hung up", "send it again, or go on")


def _piece(told: str | None, length: int) -> tuple[int, int]:
    """Where a piece begins, and the length of the whole it is the end of."""
    if told is None:
        return 0, length
    match = RANGE.fullmatch(told)
    first, last, total = (int(part) for part in match.groups()) if match else (0, 0, 0)
    if not (0 < first <= last == total - 1 and last - first + 1 == length):
        raise BadFormat(
            "a continued upload says Content-Range: bytes FIRST-LAST/TOTAL, to its end", told[:60], "send the whole"
        )
    return first, total


def _digest(told: str | None) -> str:
    """The SHA-256 a header announces, in hex; none if there is none."""
    match = DIGEST.fullmatch(told or "")
    if told is None:
        return ""
    try:
        return base64.b64decode(match[1], validate=True).hex() if match else _no_digest(told)
    except binascii.Error:
        return _no_digest(told)


def _no_digest(told: str) -> str:
    raise BadFormat("Repr-Digest is sha-256=:BASE64:", told[:60], "send it so, or leave it out")
