"""Who may do what: tokens of the operator, secrets of the clients. Only hashes are kept, and none is ever logged.

Whoever holds an enrolment token may join. A client makes a secret before it joins, and acts with it as itself and
nobody else. An admin token reads the metrics and acts on members and state. Tokens live in `tokens.json` beside the
store's database, so that the operator can make and revoke them while the server runs.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

from artesian.errors import SettingError, StorageError, StoreDamaged, Unauthorized, nearest
from artesian.storage.codec import FORMAT, check_format
from artesian.storage.files import lock_file, storage, write_file
from artesian.storage.store import Store

Scope = Literal["enrol", "admin"]


@dataclass(frozen=True)
class Token:
    """One token, by its hash."""

    name: str
    scope: Scope
    hash: str
    revoked: bool = False


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

    def make(self, scope: Scope, name: str) -> str:
        """A new token: its text is shown only now."""
        with self._turn():
            if any(token.name == name for token in self.all()):
                raise SettingError(
                    f"There is a token named {name!r} already", "Choose another name, or rotate that one"
                )
            text = f"artesian_{scope}_{secrets.token_urlsafe(32)}"
            self._save([*self.all(), Token(name, scope, fingerprint(text))])
        return text

    def revoke(self, name: str) -> None:
        """Make a token invalid from now on."""
        with self._turn():
            self._save([replace(t, revoked=True) if t is self._named(name) else t for t in self.all()])

    def rotate(self, name: str) -> str:
        """Give a token a new text; the old one is invalid from now on."""
        with self._turn():
            old = self._named(name)
            text = f"artesian_{old.scope}_{secrets.token_urlsafe(32)}"
            new = replace(old, hash=fingerprint(text), revoked=False)
            self._save([new if t is old else t for t in self.all()])
        return text

    def allows(self, text: str, scope: Scope) -> bool:
        """Whether this is the text of a valid token of this scope."""
        return self.name_of(text, scope) is not None

    def name_of(self, text: str, scope: Scope) -> str | None:
        """The name of the valid token of this scope that has this text."""
        given, found = fingerprint(text), None
        for token in self.all():  # all of them are compared, so that the time says nothing
            if token.scope == scope and not token.revoked and hmac.compare_digest(token.hash, given):
                found = token.name
        return found

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
                f"Cannot read the tokens in {self.path}", "Restore the file, or make new tokens"
            ) from None

    def _save(self, tokens: list[Token]) -> None:
        told = {"format": FORMAT, "tokens": [asdict(t) for t in tokens]}
        write_file(self.path, json.dumps(told, indent=1).encode(), private=True)


class Auth:
    """Checks the credential of every request before its body is read."""

    needs_secret = True  # of whoever joins

    def __init__(self, tokens: Tokens, store: Store, members: Collection[str] = ()) -> None:
        """Each of `members` must have a secret: anybody could join as one whose secret was lost."""
        self.tokens, self.store = tokens, store
        self._secrets = store.secrets()
        if lost := sorted(set(members) - set(self._secrets)):
            raise StoreDamaged(f"The secret of client {lost[0]} is missing in {store.folder}", "Restore a backup")

    def enrolment(self, credential: str) -> None:
        """Only holders of an enrolment token may join."""
        if not self.tokens.allows(credential, "enrol"):
            raise _unauthorized(credential, "not a valid enrolment token", "an enrolment token")

    def is_new(self, client: str, secret: str) -> bool:
        """Whether this client never joined; if it has, its secret must be the same."""
        _check_secret(secret)
        if client not in self._secrets:
            return True
        if not hmac.compare_digest(self._secrets[client], fingerprint(secret)):
            raise Unauthorized(
                "Another client joined under this name", "Use the secret it joined with, or another name"
            )
        return False

    def admit(self, client: str, secret: str, reset: bool = False) -> None:
        """Let a client join: remember a new one's secret, check a known one's. In the writer's turn only.

        A client that was `reset` brings a new secret, which takes the place of its old one.
        """
        if reset:
            _check_secret(secret)
            self.keep(client, secret)
        elif self.is_new(client, secret):
            self.keep(client, secret)

    def drop(self, client: str) -> None:
        """Do not know a client's secret any more; in the writer's turn only."""
        self._secrets.pop(client, None)

    def keep(self, client: str, secret: str) -> None:
        """Remember a client's new secret, durably."""
        self.store.replace_secret(client, fingerprint(secret))
        self._secrets[client] = fingerprint(secret)

    def client(self, credential: str, client: str) -> None:
        """Only the client itself acts as the client."""
        known = self._secrets.get(client, "")
        if not hmac.compare_digest(known, fingerprint(credential)):
            raise _unauthorized(credential, "not the secret this client joined with", "its secret")

    def admin(self, credential: str) -> str:
        """Only the operator: the name of the token."""
        name = self.tokens.name_of(credential, "admin")
        if name is None:
            raise _unauthorized(credential, "not a valid admin token", "an admin token")
        return name

    def anybody(self, credential: str) -> None:
        """Whoever may join, and the operator."""
        if not (self.tokens.allows(credential, "enrol") or self.tokens.allows(credential, "admin")):
            raise _unauthorized(credential, "not a valid token", "an enrolment or admin token")


class NoAuth:
    """Lets everybody do everything: an application in process, for tests."""

    needs_secret = False

    def enrolment(self, credential: str) -> None: ...

    def admit(self, client: str, secret: str, reset: bool = False) -> None: ...

    def drop(self, client: str) -> None: ...

    def client(self, credential: str, client: str) -> None: ...

    def admin(self, credential: str) -> str:
        return ""

    def anybody(self, credential: str) -> None: ...


def fingerprint(text: str) -> str:
    """The hash of a random secret; long ones need no salt."""
    return hashlib.sha256(text.encode()).hexdigest()


def _check_secret(secret: str) -> None:
    if not (16 <= len(secret) <= 200 and secret.isascii() and secret.isprintable()):
        raise Unauthorized(
            f"A secret of {len(secret)} characters, or with some that are not ASCII",
            "Make one of 16 to 200 printable ASCII characters",
        )


def _unauthorized(credential: str, problem: str, wanted: str) -> Unauthorized:
    said = f"The credential is {problem}" if credential else "No credential was sent"
    return Unauthorized(said, f"Send {wanted} as Authorization: Bearer ...")
