"""Who is signed in to the live page: sessions in memory, each bound to an admin token, gone with the server."""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass

IDLE = 1800.0  # seconds without a request or a stream after which a session ends
LONGEST = 8 * 3600.0  # seconds after which it ends in any case
MOST = 64  # sessions at once; beyond that the oldest goes


@dataclass
class PageSession:
    """One browser that signed in."""

    by: str  # the name of the token
    proof: str  # what the token was then: another text, and the session is over
    csrf: str  # what every act must show besides the cookie
    began: float
    used: float


class PageSessions:
    """Every session by the hash of its key, which only the browser's cookie holds."""

    def __init__(self, proof_of: Callable[[str], str | None], clock: Callable[[], float] = time.monotonic) -> None:
        """`proof_of` names what a token is now; None once it is not valid any more."""
        self._proof_of, self._clock = proof_of, clock
        self._open: dict[str, PageSession] = {}

    def begin(self, by: str) -> tuple[str, PageSession]:
        """A new session of whoever showed the token of this name, and its key."""
        key, now = secrets.token_urlsafe(32), self._clock()
        made = PageSession(by, self._proof_of(by) or "", secrets.token_urlsafe(32), now, now)
        while len(self._open) >= MOST:
            del self._open[next(iter(self._open))]
        self._open[_hashed(key)] = made
        return key, made

    def find(self, key: str) -> PageSession | None:
        """The session of this key, as long as it and its token are valid."""
        place, now = _hashed(key), self._clock()
        found = self._open.get(place)
        if found is None:
            return None
        over = now - found.used > IDLE or now - found.began > LONGEST or self._proof_of(found.by) != found.proof
        if over:
            del self._open[place]
            return None
        found.used = now
        return found

    def end(self, key: str) -> None:
        """Sign out."""
        self._open.pop(_hashed(key), None)


def _hashed(key: str) -> str:
    return hashlib.sha256(key.encode(errors="replace")).hexdigest()
