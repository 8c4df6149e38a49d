"""Limits of requests: how large, how slow, how often, and how much memory for all of them together."""

from __future__ import annotations

import asyncio
import base64
import binascii
import re
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Hashable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass

import numpy as np
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect

from artesian.errors import BadFormat, Busy, TooLarge, TooSlow, UnknownEncoding
from artesian.params import Layout
from artesian.server.rates import Rate
from artesian.server.settings import Settings
from artesian.storage.codec import HEADER_LIMIT

SMALL = 1 << 14  # bytes of a join
STRANGERS = 16  # bodies read at once of those who have shown no credential yet
RANGE = re.compile(r"bytes (\d{1,15})-(\d{1,15})/(\d{1,15})")
DIGEST = re.compile(r"sha-256=:([A-Za-z0-9+/=]{44}):")


@dataclass(frozen=True)
class Announced:
    """What the headers of an upload say about its body."""

    total: int  # bytes of the whole body
    start: int = 0  # where this request continues it
    digest: str = ""  # SHA-256 of the whole body, in hex, if announced


class Limits:
    """The requests under way, and how often each client has uploaded: a client by the secret it acts with."""

    def __init__(self, settings: Settings, layout: Layout, models: int) -> None:
        self.settings = settings
        self.largest = models * layout.size * 4 + HEADER_LIMIT + 8  # bytes of the largest valid upload
        self.model = layout.size * 4 + SMALL  # bytes of a message with one model, about
        self.in_flight = 0
        self._queue: deque[tuple[int, asyncio.Future[None]]] = deque()  # requests that wait for memory
        self._uploading: set[Hashable] = set()
        self._allowance: dict[Hashable, tuple[float, float]] = {}  # uploads left, and when that was
        self.joins, self.refusals = Rate(settings.joins_per_minute), Rate(settings.refusals_per_minute)  # by address
        self.draws = Rate(settings.draws_per_minute or 0)  # by client
        self._requests: Counter[Hashable] = Counter()  # under way, by client
        self._strangers: deque[asyncio.Timeout] = deque()  # whose bodies are under way, the longest first

    @contextmanager
    def request(self, client: Hashable) -> Iterator[None]:
        """One request of a client, among the few it may have under way."""
        if self._requests[client] >= self.settings.requests_per_client:
            raise Busy("Too many requests of this client are under way", "Wait for the answer to one of them")
        self._requests[client] += 1
        try:
            yield
        finally:
            self._requests[client] -= 1
            if not self._requests[client]:
                del self._requests[client]

    def join(self, address: str) -> None:
        """Count a join from this address; refuse it if there were too many."""
        self.joins.take(address, f"More than {self.settings.joins_per_minute:g} joins a minute from this address")

    def draw(self, client: str) -> None:
        """Count a draw of this client, or its question whether one is worth it; refuse it if there were too many."""
        if rate := self.settings.draws_per_minute:
            self.draws.take(client, f"More than {rate:g} draws a minute from this client")

    @asynccontextmanager
    async def upload(self, client: Hashable, headers: Mapping[str, str], response: int) -> AsyncIterator[Announced]:
        """One upload of a client, from its headers to the last byte of its response of about so many bytes."""
        self.count(client)
        announced = self.announced(headers)
        async with self.one(client, announced.total + response):
            yield announced

    def count(self, client: Hashable) -> None:
        """Count an upload of this client; refuse it if the client uploads too often."""
        rate = self.settings.uploads_per_minute
        if not rate:
            return
        now, burst = time.monotonic(), min(self.settings.upload_burst, rate)
        left, then = self._allowance.get(client, (burst, now))
        left = min(burst, left + (now - then) * rate / 60)
        if left < 1:
            raise Busy(f"More than {rate:g} uploads a minute from this client", "Try again later")
        self._allowance[client] = left - 1, now

    def announced(self, headers: Mapping[str, str]) -> Announced:
        """The length of a body, where it continues an earlier one, and its digest; too large a body is refused."""
        length = headers.get("content-length", "")
        if not (length.isascii() and length.isdigit() and len(length) <= 15):
            raise BadFormat("The upload has no valid Content-Length", "Send the number of bytes of the body")
        start, total = _range(headers.get("content-range"), int(length))
        if total > self.largest:
            raise TooLarge(
                f"An upload of {total} bytes, but at most {self.largest} are accepted",
                "Send only what the task asks for",
            )
        return Announced(total, start, _digest(headers.get("repr-digest")))

    @asynccontextmanager
    async def one(self, client: Hashable, length: int) -> AsyncIterator[None]:
        """Memory for the only upload of a client."""
        if client in self._uploading:
            raise Busy("Another upload of this client is under way", "Try again later")
        self._uploading.add(client)
        try:
            async with self.room(length):
                yield
        finally:
            self._uploading.discard(client)

    async def receive(
        self,
        announced: Announced,
        stream: AsyncIterator[bytes],
        head: bytes = b"",
        broken: Callable[[memoryview], None] | None = None,
    ) -> memoryview:
        """The body of an upload, after the `head` that is here already; `broken` gets what arrived if it breaks off.

        It is never copied whole: that would keep every other request waiting.
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
                        raise BadFormat(f"The body is longer than the {len(body)} bytes announced", "Send it again")
                    body[at : at + len(chunk)] = chunk
                    at += len(chunk)
                    end += len(chunk) / self.settings.slowest  # every byte buys some time
                    deadline.reschedule(end)
        except (TimeoutError, ClientDisconnect) as error:
            if broken is not None:
                await asyncio.to_thread(broken, body[:at])
            raise _broken_off(error, at, len(body), self.settings.slowest) from None
        if at < len(body):
            raise BadFormat(f"The body ended after {at} of {len(body)} bytes", "Send it again")
        return body

    async def receive_small(self, stream: AsyncIterator[bytes]) -> bytes:
        """A small JSON body."""
        body = bytearray()
        try:
            async with asyncio.timeout(self.settings.grace):
                async for chunk in stream:
                    body += chunk
                    if len(body) > SMALL:
                        raise TooLarge(f"A body of more than {SMALL} bytes", "Send only what is asked for")
        except (TimeoutError, ClientDisconnect) as error:
            raise _broken_off(error, len(body), SMALL, self.settings.slowest) from None
        return bytes(body)

    async def receive_from_stranger(self, stream: AsyncIterator[bytes]) -> bytes:
        """A small body that itself is the credential. Of too many at once, the one that has taken longest has to go.

        Whoever sends it in one go is always read; many who trickle hold few connections, and keep nobody out.
        """
        try:
            async with asyncio.timeout(None) as deadline:
                self._strangers.append(deadline)
                if len(self._strangers) > STRANGERS:
                    self._strangers.popleft().reschedule(asyncio.get_running_loop().time())
                try:
                    return await self.receive_small(stream)
                finally:
                    if deadline in self._strangers:
                        self._strangers.remove(deadline)
        except TimeoutError:
            raise Busy("Too many slow requests without a credential are under way", "Try again later") from None

    @asynccontextmanager
    async def room(self, length: int) -> AsyncIterator[None]:
        """Memory for so many bytes, given in the order of asking; refused if none becomes free in time."""
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
                self._leave(length)  # it became free in the last moment
            else:
                self._queue.remove((length, turn))
            if isinstance(error, TimeoutError):
                raise Busy(f"{self.in_flight} bytes of other requests fill the memory", "Try again later") from None
            raise

    def _leave(self, length: int) -> None:
        self.in_flight -= length
        while self._queue and self._fits(self._queue[0][0]):
            wanted, turn = self._queue.popleft()
            if not turn.cancelled():
                self.in_flight += wanted
                turn.set_result(None)


def too_many_refusals() -> Busy:
    """What is answered in place of one refusal after the other."""
    return Busy("Too many refused requests from this address", "Check the credential, and try again later")


def check_encoding(headers: Headers) -> None:
    """Refuse a compressed body."""
    for said in headers.getlist("content-encoding"):
        if said.lower() not in ("", "identity"):
            raise UnknownEncoding(f"Not an encoding that is understood: {said[:40]!r}", "Send the body as it is")


def _broken_off(error: Exception, at: int, length: int, slowest: float) -> TooSlow | BadFormat:
    """The refusal of a body that came too slowly, or whose client hung up."""
    if isinstance(error, TimeoutError):
        problem = f"Only {at} of {length} bytes arrived in time: a body must arrive at {slowest:.0f} bytes/s"
        return TooSlow(problem, "Send it again, or continue it")
    return BadFormat(f"The client hung up after {at} of {length} bytes", "Send it again, or continue it")


def _range(header: str | None, length: int) -> tuple[int, int]:
    """Where the body of a request begins in the whole, and the length of the whole, which it must complete."""
    if header is None:
        return 0, length
    match = RANGE.fullmatch(header)
    first, last, total = (int(part) for part in match.groups()) if match else (0, 0, 0)
    if not (0 < first <= last == total - 1 and last - first + 1 == length):
        raise BadFormat(
            f"Not a Content-Range of the rest of this upload: {header[:60]!r}",
            "Send bytes FIRST-LAST/TOTAL up to the end, or the whole upload without it",
        )
    return first, total


def _digest(header: str | None) -> str:
    """The SHA-256 that a Repr-Digest announces, in hex; empty without one."""
    if header is None:
        return ""
    match = DIGEST.fullmatch(header)
    try:
        if match:
            return base64.b64decode(match[1], validate=True).hex()
    except binascii.Error:
        pass
    raise BadFormat(f"Not a Repr-Digest: {header[:60]!r}", "Send sha-256=:BASE64:, or leave it out")
