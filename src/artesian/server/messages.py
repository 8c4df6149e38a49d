"""Tasks and uploads as they travel: what an upload's bytes hold, and what a task's bytes are."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection
from typing import Any

from artesian.core import ClientId, Task, Upload
from artesian.errors import BadFormat
from artesian.storage.codec import decode, encode_parts, to_tree

SERVER_ONLY = ("returns", "estimates")  # fields of a task that tell the server what to expect


def read_upload(body: memoryview, digest: str, client: ClientId, number: int, most: int) -> Upload:
    """The upload in a body of at most so many models, if it is whole and sent to its own address.

    `digest` is the SHA-256 that the client announced, in hex; empty if it announced none.
    """
    if digest and hashlib.sha256(body).hexdigest() != digest:
        raise BadFormat("The body does not match its Repr-Digest", "Send the whole upload again")
    upload = decode("upload", body, Upload, most=most)
    if (upload.client, upload.number) != (client, number):
        raise BadFormat(
            f"Upload {upload.number} of client {upload.client} was sent to the address of upload {number} of {client}",
            "Send it to its own address",
        )
    return upload


def read_object(data: bytes, known: Collection[str]) -> dict[str, Any]:
    """The JSON object in a small body: each of its keys is known, and stands there once; otherwise a ValueError."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            raise ValueError("a key stands there twice")
        return found

    body = json.loads(data, object_pairs_hook=once)
    if not isinstance(body, dict) or not body.keys() <= set(known):
        raise ValueError(f"not an object with no other keys than {', '.join(known)}")
    return body


def task_pieces(task: Task) -> tuple[list[bytes | memoryview], str]:
    """A task's bytes in pieces, none of them copied, and their ETag; what is for the server alone stays there."""
    fields = {**to_tree(task), "memo": None}
    pieces = encode_parts("task", {name: part for name, part in fields.items() if name not in SERVER_ONLY})
    return pieces, etag(*pieces)


def etag(*pieces: bytes | memoryview) -> str:
    """The SHA-256 of a response body, quoted: whoever receives it can tell whether it is whole."""
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
    return f'"{digest.hexdigest()}"'


def encode_task(task: Task) -> bytes:
    """A task's bytes in one piece."""
    return b"".join(task_pieces(task)[0])


def decode_task(data: bytes) -> Task:
    """The task in these bytes."""
    return decode("task", data, Task)
