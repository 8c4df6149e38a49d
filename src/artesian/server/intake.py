"""Receiving bodies: never more than fits, never for ever, never too much at once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from starlette.requests import ClientDisconnect

from artesian.codec import HEADER_LIMIT
from artesian.errors import BadFormat, Busy, TooLarge, TooSlow
from artesian.params import Layout
from artesian.server.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


SMALL = 1 << 14  # bytes of a join


class Intake:
    """The bodies under way, and how often each client has come."""

    def __init__(self, settings: Settings, layout: Layout, models: int) -> None:
        self.settings = settings
        self.largest = models * layout.size * 4 + HEADER_LIMIT + 8  # bytes of any sound upload
        self.in_flight = 0
        self._under_way: set[str] = set()
        self._allowance: dict[str, tuple[float, float]] = {}  # uploads left, and when that was

    @contextmanager
    def one(self, client: str, headers: Mapping[str, str]) -> Iterator[int]:
        """Room for one upload of a client, from its first byte to its answer; gives its length."""
        length = self._length(headers)
        if client in self._under_way:
            raise Busy("a client sends one upload at a time", "another under way", "come back later")
        self._under_way.add(client)
        try:
            with self._room(length):
                yield length
        finally:
            self._under_way.discard(client)

    async def receive(self, length: int, stream: AsyncIterator[bytes]) -> bytes:
        """The body of an upload, within its time."""
        try:
            async with asyncio.timeout(length / self.settings.slowest + self.settings.grace):
                return await self._read(stream, length)
        except TimeoutError:
            got = f"{length} bytes not here in time"
            raise TooSlow(f"a body arrives at {self.settings.slowest:.0f} bytes/s", got, "send it again") from None

    async def receive_small(self, stream: AsyncIterator[bytes]) -> bytes:
        """A body of a few words."""
        body = bytearray()
        try:
            async with asyncio.timeout(self.settings.grace):
                async for chunk in _whole(stream):
                    body += chunk
                    if len(body) > SMALL:
                        raise TooLarge(f"this body has {SMALL} bytes at most", "more", "send only what is asked for")
        except TimeoutError:
            raise TooSlow("a small body arrives at once", "none in time", "send it again") from None
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

    def _length(self, headers: Mapping[str, str]) -> int:
        told = headers.get("content-length", "")
        if not told.isdigit():
            raise BadFormat("an upload says its Content-Length", repr(told)[:40], "send it")
        if int(told) > self.largest:
            raise TooLarge(f"an upload has {self.largest} bytes at most", told, "send only what the task asks for")
        return int(told)

    @contextmanager
    def _room(self, length: int) -> Iterator[None]:
        if self.in_flight + length > self.settings.bytes_in_flight and self.in_flight:
            raise Busy("bodies under way fit into memory", f"{self.in_flight} bytes already", "come back later")
        self.in_flight += length
        try:
            yield
        finally:
            self.in_flight -= length

    async def _read(self, stream: AsyncIterator[bytes], length: int) -> bytes:
        body = bytearray(length)
        at = 0
        async for chunk in _whole(stream):
            if at + len(chunk) > length:
                raise BadFormat("a body is as long as it says", f"more than {length} bytes", "send it again")
            body[at : at + len(chunk)] = chunk
            at += len(chunk)
        if at < length:
            raise BadFormat("a body is as long as it says", f"{at} of {length} bytes", "send it again")
        return bytes(body)


async def _whole(stream: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The chunks of a body; a client that hangs up is a refusal, not a failure."""
    try:
        async for chunk in stream:
            yield chunk
    except ClientDisconnect:
        raise BadFormat("a body is sent to its end", "a client that hung up", "send it again") from None
