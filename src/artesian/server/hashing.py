"""Salted, slow hashes of tokens and secrets, and what this process has already checked against them."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from artesian.errors import Busy

T = TypeVar("T")

NAME, COST = "scrypt", 14  # 2**14 blocks: 16 MiB, and some 50 ms on one core
WAITING = 64  # checks that may wait for their turn


def slow_hash(text: str) -> str:
    """The hash under which a text is kept: its kind, its cost, a salt of its own and the digest."""
    salt = secrets.token_bytes(16)
    return f"{NAME}${COST}${salt.hex()}${_derived(text, COST, salt).hex()}"


def matches(text: str, known: str) -> bool:
    """Whether this is the text of a hash, be it a slow one or one of an older version."""
    if is_older(known):
        return hmac.compare_digest(fingerprint(text), known)
    try:
        _, cost, salt, digest = known.split("$")
        return hmac.compare_digest(_derived(text, int(cost), bytes.fromhex(salt)), bytes.fromhex(digest))
    except ValueError:
        return False


def is_older(known: str) -> bool:
    """Whether an older version made it, fast and without salt."""
    return not known.startswith(f"{NAME}$")


def fingerprint(text: str) -> str:
    """The hash of older versions."""
    return hashlib.sha256(text.encode()).hexdigest()


def _derived(text: str, cost: int, salt: bytes) -> bytes:
    return hashlib.scrypt(text.encode(), salt=salt, n=1 << cost, r=8, p=1, dklen=32, maxmem=1 << (cost + 11))


class Hashes:
    """Checks texts against hashes, one after the other in a thread of its own; a text that matched costs nothing again.

    What matched is remembered under a key that dies with the process. Whoever sends another text for a hash that was
    matched before is refused at once, without a slow check.
    """

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)
        self._matched: dict[str, bytes] = {}  # hash: its text, under the key
        self._texts: set[bytes] = set()  # all of them
        self._thread = ThreadPoolExecutor(1, "hashes")
        self._waiting = 0

    async def match(self, text: str, known: str) -> bool:
        """Whether this is the text of a hash."""
        if known in self._matched:
            return self.is_known(text, known)
        found = await self._slowly(partial(matches, text, known))
        if found:
            self.remember(text, known)
        return found

    async def make(self, text: str) -> str:
        """A slow hash of a text."""
        return await self._slowly(partial(slow_hash, text))

    def is_known(self, text: str, known: str) -> bool:
        """Whether this text matched this hash before."""
        return hmac.compare_digest(self._matched.get(known, b""), self._under_key(text))

    def has_matched(self, text: str) -> bool:
        """Whether this text matched any hash before."""
        return self._under_key(text) in self._texts

    def remember(self, text: str, known: str) -> None:
        """This text matches this hash."""
        self._matched[known] = self._under_key(text)
        self._texts.add(self._matched[known])

    def _under_key(self, text: str) -> bytes:
        return hmac.digest(self._key, text.encode(), "sha256")

    async def _slowly(self, work: Callable[[], T]) -> T:
        if self._waiting >= WAITING:
            raise Busy("Too many credentials wait to be checked", "Try again later")
        self._waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)
        finally:
            self._waiting -= 1
