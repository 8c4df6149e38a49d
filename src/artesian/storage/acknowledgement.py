"""What a server signs when it takes an upload: which event it became, in a text that anybody can check later.

The text is a JSON Web Signature (RFC 7515) in its compact form, signed with Ed25519. Public keys are a JSON Web Key Set
(RFC 7517), so that any library for them can check an acknowledgement.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Self

from artesian.errors import MissingExtra, NotAuthentic

HEADER = "artesian-acknowledgement"  # of the response to an upload
ALGORITHM = "EdDSA"
Keys = Mapping[str, Any]  # a JSON Web Key Set


@dataclass(frozen=True)
class Acknowledgement:
    """An upload was taken: it is on the server's disk, at this place in the chain of events."""

    federation: str
    client: str
    number: int  # of the upload
    digest: str  # SHA-256 of the upload's body, in hex
    event: int  # its number in the journal
    chain: str  # digest of the journal up to it
    time: str  # when the server said so, in UTC

    def signed(self, private: bytes) -> str:
        """This acknowledgement as text, signed with a private key."""
        said = f"{_packed({'alg': ALGORITHM, 'kid': key_id(public_key(private))})}.{_packed(asdict(self))}"
        return f"{said}.{to_base64(_ed25519().Ed25519PrivateKey.from_private_bytes(private).sign(said.encode()))}"

    @classmethod
    def read(cls, text: str) -> Self:
        """What a text says, without checking who said it."""
        try:
            _, body, _ = text.split(".")
            told = json.loads(from_base64(body))
            made = cls(**{field.name: told[field.name] for field in fields(cls)})
        except (ValueError, KeyError, TypeError, RecursionError):
            raise NotAuthentic(
                "The text is not an acknowledgement", "Use the whole text as the server sent it"
            ) from None
        return made


def verify_acknowledgement(text: str, keys: Keys, body: bytes | None = None) -> Acknowledgement:
    """What an acknowledgement says, if one of these keys signed it; with the body of an upload, if it is about that."""
    acknowledgement = Acknowledgement.read(text)
    said, _, signature = text.rpartition(".")
    public = _public_keys(keys).get(_key_of(said))
    if public is None:
        raise NotAuthentic("None of these keys signed the acknowledgement", "Get the server's keys: GET /v1/keys")
    if not _is_signed(said, signature, public):
        raise NotAuthentic("The acknowledgement was altered: its signature does not fit", "Do not rely on it")
    if body is not None and hashlib.sha256(body).hexdigest() != acknowledgement.digest:
        raise NotAuthentic("The acknowledgement is about another upload", "Compare client and number")
    return acknowledgement


def public_key(private: bytes) -> bytes:
    """The public key of a private one."""
    return bytes(_ed25519().Ed25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw())


def key_id(public: bytes) -> str:
    """The name of a public key."""
    return hashlib.sha256(public).hexdigest()[:16]


def to_base64(data: bytes) -> str:
    """Bytes as JSON Web Signatures write them."""
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def from_base64(text: str) -> bytes:
    """The bytes of such a text, of which there is only one for the same bytes."""
    data = base64.b64decode(text + "=" * (-len(text) % 4), b"-_", validate=True)
    if to_base64(data) != text:
        raise ValueError("not in its only form")
    return data


def _packed(told: Mapping[str, Any]) -> str:
    return to_base64(json.dumps(told, sort_keys=True, separators=(",", ":")).encode())


def _key_of(said: str) -> str:
    """The name of the key that an acknowledgement claims; empty if it is signed in another way."""
    try:
        told = json.loads(from_base64(said.partition(".")[0]))
        return str(told["kid"]) if told["alg"] == ALGORITHM else ""
    except (ValueError, KeyError, TypeError, RecursionError):
        return ""


def _public_keys(keys: Keys) -> dict[str, bytes]:
    """Public keys by their names, which are worked out anew."""
    try:
        found = [from_base64(key["x"]) for key in keys["keys"] if key["crv"] == "Ed25519"]
    except (ValueError, KeyError, TypeError):
        raise NotAuthentic("The keys cannot be read", "Give the whole answer to GET /v1/keys") from None
    return {key_id(public): public for public in found}


def _is_signed(said: str, signature: str, public: bytes) -> bool:
    scheme = _ed25519()
    from cryptography.exceptions import InvalidSignature

    try:
        scheme.Ed25519PublicKey.from_public_bytes(public).verify(from_base64(signature), said.encode())
    except (InvalidSignature, ValueError):
        return False
    return True


def _ed25519() -> Any:
    """The signature scheme, from a package that only those need who sign or check."""
    try:
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ModuleNotFoundError:
        raise MissingExtra("cryptography", "signing") from None
    return ed25519
