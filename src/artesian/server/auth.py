"""Who may do what: tokens of the operator, secrets of the clients. Only hashes are kept, and none is ever logged.

Whoever holds an enrolment token may join, as long as it is valid and has joins left. A client makes a secret before it
joins, and acts with it as itself and nobody else. An admin token reads the metrics and acts on members and state.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import NamedTuple

from artesian.errors import StorageError, StoreDamaged, Unauthorized
from artesian.server.hashing import Hashes, is_older, slow_hash
from artesian.server.tokens import Scope, Token, Tokens
from artesian.storage.store import Store

SHORTEST, LONGEST, DIFFERENT = 16, 200, 8  # characters of a secret, and how many of them must differ


class Bearer(NamedTuple):
    """Who showed a client's secret: whoever has the next secret of that client is somebody else."""

    client: str
    secrets: int = 0  # how many secrets the client had before


class Auth:
    """Checks the credential of every request before its body is read, and once more before what it asks for is done."""

    needs_secret = True  # of whoever joins

    def __init__(
        self,
        tokens: Tokens,
        store: Store,
        members: Collection[str] = (),
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Each of `members` must have a secret: anybody could join as one whose secret was lost."""
        self.tokens, self.store, self._clock = tokens, store, clock
        self._secrets, self._hashes = store.secrets(), Hashes()
        self._replaced: Counter[str] = Counter()  # secrets that are not valid any more, by client
        self._joined = Counter(store.enrolments().values())  # clients by the name of their token
        if lost := sorted(set(members) - set(self._secrets)):
            raise StoreDamaged(f"The secret of client {lost[0]} is missing in {store.folder}", "Restore a backup")

    async def enrolment(self, credential: str) -> Token | None:
        """Only holders of an enrolment token may join."""
        token = await self._token(credential, "enrol")
        if token is None:
            raise _unauthorized(credential, "not a valid enrolment token", "an enrolment token")
        return token

    async def prepared(self, client: str, secret: str, reset: bool = False) -> str:
        """The hash to keep of a new client's secret; that of a known client must be the same, and gives nothing.

        A client that was `reset` brings a new secret.
        """
        if reset or client not in self._secrets:
            check_secret(secret)
            return await self._hashes.make(secret)
        if not await self._is_secret(client, secret):
            raise _taken()
        return ""

    def admit(self, client: str, secret: str, prepared: str, token: Token | None, reset: bool = False) -> None:
        """Let a client join: remember a new one's secret and its token, durably. In the writer's turn only.

        A client that was `reset` has its secret replaced, and still counts for the token it joined with first. The
        token may have been revoked, or have expired, since the request began.
        """
        if token is not None and not self._is_still_valid(token):
            raise Unauthorized("This enrolment token is not valid any more", "Ask the operator for another")
        known = self._secrets.get(client)
        if known is not None and not reset:
            if not self._hashes.is_known(secret, known):
                raise _taken()  # by one who came a moment earlier
            return
        if not prepared:  # it was reset or forgotten a moment earlier
            raise was_reset(client)
        if known is None:
            self._enrol(client, prepared, token)
        else:
            self.store.replace_secret(client, prepared)
            self._replaced[client] += 1
        self._hashes.remember(secret, prepared)
        self._secrets[client] = prepared

    def _is_still_valid(self, token: Token) -> bool:
        known = (t for t in self.tokens.all() if (t.name, t.hash) == (token.name, token.hash))
        return any(t.is_valid(self._clock()) for t in known)

    def _enrol(self, client: str, prepared: str, token: Token | None) -> None:
        name, allowed = ("", None) if token is None else (token.name, token.joins)
        if allowed is not None and self._joined[name] >= allowed:
            clients = f"{allowed} client{'s' if allowed != 1 else ''}"
            raise Unauthorized(f"This enrolment token has let {clients} join", "Ask the operator for another")
        self.store.add_secret(client, prepared, name)
        self._joined[name] += 1

    def drop(self, client: str) -> None:
        """Do not know a client's secret any more, as the store does not; in the writer's turn only."""
        if self._secrets.pop(client, None) is not None:
            self._replaced[client] += 1
        self._joined = Counter(self.store.enrolments().values())

    def keep(self, client: str, secret: str) -> None:
        """Remember a client's new secret, durably."""
        self.admit(client, secret, slow_hash(secret), None, reset=True)

    async def client(self, credential: str, client: str) -> Bearer:
        """Only the client itself acts as the client."""
        bearer = Bearer(client, self._replaced[client])
        if not credential or not await self._is_secret(client, credential):
            raise _unauthorized(credential, "not the secret this client joined with", "its secret")
        return bearer

    def is_still(self, bearer: Bearer) -> bool:
        """Whether the secret that was shown is still the client's: it may have been replaced during a request."""
        return bearer.secrets == self._replaced[bearer.client]

    async def admin(self, credential: str) -> str:
        """Only the operator; the token's name."""
        token = await self._token(credential, "admin")
        if token is None:
            raise _unauthorized(credential, "not a valid admin token", "an admin token")
        return token.name

    def admin_proof(self, name: str) -> str | None:
        """What stays the same as long as the admin token of this name does; None once it is not valid any more."""
        valid = (t for t in self.tokens.all() if t.name == name and t.scope == "admin" and t.is_valid(self._clock()))
        return next((token.hash for token in valid), None)

    async def anybody(self, credential: str) -> None:
        """Whoever may join, and the operator."""
        if not (await self._token(credential, "enrol") or await self._token(credential, "admin")):
            raise _unauthorized(credential, "not a valid token", "an enrolment or admin token")

    def knows(self, credential: str) -> bool:
        """Whether this credential was found valid since the server started."""
        return self._hashes.has_matched(credential)

    async def upgraded(self, client: str, secret: str) -> str:
        """The slow hash of a secret that an older version kept; nothing where there is one already."""
        return await self._hashes.make(secret) if self._is_older(client) else ""

    def upgrade(self, client: str, secret: str, made: str) -> None:
        """Keep a client's secret under this hash from now on. In the writer's turn only."""
        if not self._is_older(client):  # it was reset or forgotten a moment earlier
            return
        self.store.replace_secret(client, made)
        self._hashes.remember(secret, made)
        self._secrets[client] = made

    def _is_older(self, client: str) -> bool:
        return client in self._secrets and is_older(self._secrets[client])

    async def _is_secret(self, client: str, text: str) -> bool:
        known = self._secrets.get(client)  # none, where the member was forgotten a moment earlier
        return known is not None and await self._hashes.match(text, known)

    async def _token(self, text: str, scope: Scope) -> Token | None:
        """The valid token of this scope with this text."""
        for token in [t for t in self.tokens.all() if t.scope == scope and t.is_valid(self._clock())]:
            if token.may_be(text) and await self._hashes.match(text, token.hash):
                if is_older(token.hash):
                    with suppress(StorageError):  # the next use tries again
                        await asyncio.to_thread(self.tokens.upgrade, token.name, text)
                return next((t for t in self.tokens.all() if t.name == token.name and t.may_be(text)), token)
        return None


class NoAuth:
    """Lets everybody do everything: an application in process, for tests."""

    needs_secret = False

    async def enrolment(self, credential: str) -> Token | None:
        return None

    async def prepared(self, client: str, secret: str, reset: bool = False) -> str:
        return ""

    def admit(self, client: str, secret: str, prepared: str, token: Token | None, reset: bool = False) -> None: ...

    def drop(self, client: str) -> None: ...

    async def client(self, credential: str, client: str) -> Bearer:
        return Bearer(client)

    def is_still(self, bearer: Bearer) -> bool:
        return True

    async def admin(self, credential: str) -> str:
        return ""

    def admin_proof(self, name: str) -> str | None:
        return ""

    async def anybody(self, credential: str) -> None: ...

    def knows(self, credential: str) -> bool:
        return True

    async def upgraded(self, client: str, secret: str) -> str:
        return ""

    def upgrade(self, client: str, secret: str, made: str) -> None: ...


def check_secret(secret: str) -> None:
    """Refuse a secret that is easy to guess, or cannot be sent as a header."""
    if not (SHORTEST <= len(secret) <= LONGEST and secret.isascii() and secret.isprintable()):
        raise Unauthorized(
            f"A secret of {len(secret)} characters, or with some that are not ASCII",
            "Make one of 16 to 200 printable ASCII characters",
        )
    if secret != secret.strip():
        raise Unauthorized("A secret with spaces at its ends cannot be sent in a header", "Make one without them")
    if len(set(secret)) < DIFFERENT:
        raise Unauthorized(
            f"A secret of {len(set(secret))} different characters is easy to guess",
            "Make a random one, such as openssl rand -hex 16",
        )


def was_reset(client: str) -> Unauthorized:
    """The refusal of a secret from before a reset."""
    return Unauthorized(
        f"The operator reset client {client}",
        f"Join again with a new secret: a new home for this client, and the name {client}",
    )


def _taken() -> Unauthorized:
    return Unauthorized("Another client joined under this name", "Use the secret it joined with, or another name")


def _unauthorized(credential: str, problem: str, wanted: str) -> Unauthorized:
    said = f"The credential is {problem}" if credential else "No credential was sent"
    return Unauthorized(said, f"Send {wanted} as Authorization: Bearer ...")
