"""The keys that sign acknowledgements, in `keys.json` beside the store's database.

The newest one signs. Of those before it only the public half is kept, so that what they signed can still be checked.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from artesian.errors import StorageError
from artesian.storage.acknowledgement import Acknowledgement, from_base64, key_id, public_key, to_base64
from artesian.storage.codec import FORMAT, check_format
from artesian.storage.files import lock_file, storage, write_file

LOG = logging.getLogger("artesian.keys")


@dataclass(frozen=True)
class Key:
    """One pair of keys."""

    public: str
    created: str  # in UTC
    private: str = ""  # of the newest one alone
    retired: str = ""  # in UTC, once another took its place

    @property
    def published(self) -> dict[str, str]:
        """Its public half, as a JSON Web Key."""
        named = {"kty": "OKP", "crv": "Ed25519", "use": "sig", "alg": "EdDSA", "x": self.public}
        times = {"created": self.created} | ({"retired": self.retired} if self.retired else {})
        return {**named, "kid": key_id(from_base64(self.public)), **times}


class SigningKeys:
    """The keys of a store, in a file that is read again when it changes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._read: tuple[int, list[Key]] = (-1, [])
        self._held: list[Key] = []
        self._problem = ""  # with the file, as it was logged last

    def all(self) -> list[Key]:
        """Every key in the file, oldest first; none where there is no file."""
        try:
            changed = self.path.stat().st_mtime_ns
        except FileNotFoundError:
            return []
        if changed != self._read[0]:
            self._read = changed, self._load()
        return self._read[1]

    def held(self) -> list[Key]:
        """Every key, oldest first, those the file has lost since they were read among them: a server goes on."""
        try:
            found, problem = self.all(), f"No such file: {self.path}"
        except StorageError as error:
            if not self._held:
                raise
            found, problem = [], error.problem
        lost = [key for key in self._held if key.public not in {key.public for key in found}]
        if found and lost:
            problem = f"{self.path} has lost {len(lost)} of the keys read before; restore it, and rotate again"
        self._warn(problem if lost else "")
        if found:
            self._held = [*(_retired(key, found[-1].created) for key in lost), *found]
        return self._held

    def _warn(self, problem: str) -> None:
        """Log a problem with the file once, until there is another."""
        if problem and problem != self._problem:
            LOG.warning("signing keys", extra={"fields": {"problem": problem, "now": "the keys read before are used"}})
        self._problem = problem

    def published(self) -> dict[str, Any]:
        """The public keys, as a JSON Web Key Set, newest first."""
        return {"keys": [key.published for key in reversed(self.held())]}

    def sign(self, acknowledgement: Acknowledgement) -> str:
        """An acknowledgement as text, signed with the newest key."""
        return acknowledgement.signed(from_base64(self.held()[-1].private))

    def rotate(self, now: str) -> Key:
        """Sign with a new key from now on; the first one is made the same way."""
        with storage(self.path):
            handle = lock_file(self.path.with_name("keys.lock"), wait=True)
        assert handle is not None
        try:
            made = _made(now)
            old = [_retired(key, now) for key in self.all()]
            told = {"format": FORMAT, "keys": [asdict(key) for key in (*old, made)]}
            write_file(self.path, json.dumps(told, indent=1).encode(), private=True)
        finally:
            os.close(handle)
        return made

    def _load(self) -> list[Key]:
        with storage(self.path):
            data = self.path.read_bytes()
        try:
            told = json.loads(data)
            check_format(told["format"])
            keys = [Key(**key) for key in told["keys"]]
            if public_key(from_base64(keys[-1].private)) != from_base64(keys[-1].public):
                raise ValueError("a private key and another's public key")
            return keys
        except (ValueError, KeyError, TypeError, IndexError):
            raise StorageError(
                f"Cannot read the signing keys in {self.path}", "Restore the file; clients rely on its public keys"
            ) from None


def _retired(key: Key, when: str) -> Key:
    """What is kept of a key that no longer signs: its public half."""
    return replace(key, private="", retired=key.retired or when)


def _made(now: str) -> Key:
    private = secrets.token_bytes(32)  # any 32 random bytes are an Ed25519 key
    return Key(to_base64(public_key(private)), now, to_base64(private))
