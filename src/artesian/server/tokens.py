"""The operator's tokens, in `tokens.json` beside the store's database: made and revoked while the server runs.

Only hashes are kept. An enrolment token may expire, and may let so many clients join; the store counts who joined with
which token.
"""

from __future__ import annotations

import json
import os
import re
import secrets
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from artesian.errors import SettingError, StorageError, nearest
from artesian.server.hashing import fingerprint, is_older, slow_hash
from artesian.storage.codec import FORMAT, check_format
from artesian.storage.files import lock_file, storage, write_file

Scope = Literal["enrol", "admin"]
UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}  # seconds
LONGEST = 5000.0 * UNITS["w"]  # seconds: nearly a century
HINT = 8  # hex digits of a token's fingerprint: enough to tell tokens apart, far too few to find one


@dataclass(frozen=True)
class Token:
    """One token, by its hash."""

    name: str
    scope: Scope
    hash: str
    revoked: bool = False
    hint: str = ""  # the beginning of its fingerprint, so that only its own text is checked slowly
    expires: float | None = None  # seconds since 1970; None: never
    joins: int | None = None  # how many clients may join with it; None: any number

    def may_be(self, text: str) -> bool:
        """Whether this can be its text, going by what costs nothing to compare."""
        return (self.hash if is_older(self.hash) else self.hint) in (fingerprint(text), fingerprint(text)[:HINT])

    def is_valid(self, now: float) -> bool:
        """Neither revoked nor expired."""
        return not self.revoked and (self.expires is None or now < self.expires)

    def state(self, now: float, joined: int) -> str:
        """What an operator reads of it."""
        if self.revoked:
            return "revoked"
        if not self.is_valid(now):
            return "expired"
        return "used up" if self.joins is not None and joined >= self.joins else "living"

    def rehashed(self, text: str) -> Token:
        """The same token with this text."""
        return replace(self, hash=slow_hash(text), hint=fingerprint(text)[:HINT])


class Tokens:
    """The operator's tokens, in a file that is read again when it changes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._read: tuple[int, list[Token]] = (-1, [])

    def all(self) -> list[Token]:
        """Every token, revoked ones included."""
        try:
            changed = self.path.stat().st_mtime_ns
        except FileNotFoundError:
            return []
        if changed != self._read[0]:
            self._read = changed, self._load()
        return self._read[1]

    def make(self, scope: Scope, name: str, expires: float | None = None, joins: int | None = None) -> str:
        """A new token: its text is shown only now."""
        if not name.strip() or not name.isprintable():
            raise SettingError(f"{name!r} cannot be the name of a token", "Use printable characters")
        with self._turn():
            if any(token.name == name for token in self.all()):
                raise SettingError(
                    f"There is a token named {name!r} already", "Choose another name, or rotate that one"
                )
            text = _text(scope)
            self._save([*self.all(), Token(name, scope, "", expires=expires, joins=joins).rehashed(text)])
        return text

    def revoke(self, name: str) -> None:
        """Make a token invalid from now on."""
        with self._turn():
            self._save([replace(t, revoked=True) if t is self._named(name) else t for t in self.all()])

    def rotate(self, name: str, expires: float | None = None) -> str:
        """Give a token a new text, which may expire; the old one is invalid from now on."""
        with self._turn():
            old = self._named(name)
            text = _text(old.scope)
            new = replace(old, revoked=False, expires=expires).rehashed(text)
            self._save([new if t is old else t for t in self.all()])
        return text

    def upgrade(self, name: str, text: str) -> None:
        """Keep a token of an older version under a slow hash from now on."""
        with self._turn():
            self._save([t.rehashed(text) if t.name == name and is_older(t.hash) else t for t in self.all()])

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Two commands at once change the file one after the other."""
        with storage(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            handle = lock_file(self.path.with_name("tokens.lock"), wait=True)
        assert handle is not None
        try:
            self._read = -1, []
            yield
        finally:
            os.close(handle)

    def _named(self, name: str) -> Token:
        known = {token.name: token for token in self.all()}
        if name not in known:
            raise SettingError(f"No token is named {name!r}", nearest(name, known))
        return known[name]

    def _load(self) -> list[Token]:
        with storage(self.path):
            data = self.path.read_bytes()
        try:
            told = json.loads(data)
            check_format(told["format"])
            tokens = [Token(**token) for token in told["tokens"]]
            if not all(isinstance(t.hash, str) and isinstance(t.name, str) for t in tokens):
                raise TypeError("a token has a name and a hash")
            return tokens
        except (ValueError, KeyError, TypeError):
            raise StorageError(
                f"Cannot read the tokens in {self.path}",
                "Restore the file from a backup, or remove it and make new tokens",
            ) from None

    def _save(self, tokens: list[Token]) -> None:
        told = {"format": FORMAT, "tokens": [asdict(t) for t in tokens]}
        write_file(self.path, json.dumps(told, indent=1).encode(), private=True)


def described(tokens: Iterable[Token], enrolments: Mapping[str, str], now: float) -> list[dict[str, Any]]:
    """What is left of each token, where the store says who joined with which."""
    joined = Counter(enrolments.values())
    return [
        {
            "name": token.name,
            "scope": token.scope,
            "revoked": token.revoked,
            "state": token.state(now, joined[token.name]),
            "joined": joined[token.name],
            "joins": token.joins,
            "left": None if token.joins is None else max(0, token.joins - joined[token.name]),
            "expires": None
            if token.expires is None
            else datetime.fromtimestamp(token.expires, UTC).isoformat("T", "seconds"),
        }
        for token in tokens
    ]


def seconds_of(text: str) -> float:
    """A duration such as 90s, 30m, 12h, 7d or 4w, in seconds."""
    found = re.fullmatch(r"([0-9]{1,12})([smhdw])", text)
    if found is None:
        raise SettingError(
            f"Not a duration: {text[:20]!r}", "Write a number and a unit, such as 90s, 30m, 12h, 7d or 4w"
        )
    if not 0 < (seconds := float(int(found[1]) * UNITS[found[2]])) <= LONGEST:
        raise SettingError(f"{text[:20]} is no time to expire in", "Choose one from 1s to 5000w, or none: never")
    return seconds


def _text(scope: Scope) -> str:
    return f"artesian_{scope}_{secrets.token_urlsafe(32)}"
