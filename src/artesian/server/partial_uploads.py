"""Uploads whose connection broke: what arrived is kept, and the client continues where it was cut off."""

from __future__ import annotations

import asyncio
import hashlib
import shutil
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from artesian.errors import Conflict, StorageError
from artesian.server.limits import Announced, Limits
from artesian.storage.files import storage, write_file

SMALLEST = 1 << 16  # bytes worth keeping: less is sent again sooner than asked for


@dataclass(frozen=True)
class PartialUpload:
    """The beginning of an upload."""

    number: int
    digest: str  # of the whole body, as the client announced it
    size: int


class PartialUploads:
    """The newest partial upload of each client, in files; the oldest are dropped first when they take too much room."""

    def __init__(self, folder: Path | None, most: int) -> None:
        """`most` is how many bytes they may take together; without a folder none is kept."""
        self.folder, self.most = folder, most
        self._known: dict[str, PartialUpload] = {}
        if folder is not None:
            with storage(folder):
                shutil.rmtree(folder, ignore_errors=True)  # of an earlier start: clients send them again
                folder.mkdir(mode=0o700)

    async def receive(
        self, client: str, number: int, announced: Announced, stream: AsyncIterator[bytes], limits: Limits
    ) -> memoryview:
        """The whole body of an upload: what is here already, then the stream. What breaks off is kept."""
        head, keep = b"", None
        if announced.start:
            head = await asyncio.to_thread(self.take, client, number, announced.digest, announced.start)
        if announced.digest:
            keep = partial(self.keep, client, number, announced.digest)
        body = await limits.receive(announced, stream, head, keep)
        if self.find(client, number):
            await asyncio.to_thread(self.drop, client)
        return body

    def find(self, client: str, number: int) -> PartialUpload | None:
        """The beginning of this upload, if it is here."""
        found = self._known.get(client)
        return found if found is not None and found.number == number else None

    def keep(self, client: str, number: int, digest: str, body: bytes | memoryview) -> None:
        """Keep what arrived; on a full disk nothing is kept."""
        self.drop(client)
        if not SMALLEST <= len(body) <= self.most:
            return
        while self._known and self.size + len(body) > self.most:
            self.drop(next(iter(self._known)))
        try:
            write_file(self._path(client), body, private=True, sync=False)
        except StorageError:
            return
        self._known[client] = PartialUpload(number, digest, len(body))

    def take(self, client: str, number: int, digest: str, start: int) -> bytes:
        """The first `start` bytes of an upload, to be continued."""
        found = self.find(client, number)
        if found is None or (found.size, found.digest) != (start, digest):
            raise Conflict(
                f"The upload continues at byte {start}, but the server holds {_held(found, digest)}",
                "Ask with HEAD where to continue, or send the whole upload",
            )
        with storage(self._path(client)):
            return self._path(client).read_bytes()

    def drop(self, client: str) -> None:
        """Forget a client's partial upload."""
        if self._known.pop(client, None) is not None:
            with storage(self._path(client)):
                self._path(client).unlink(missing_ok=True)

    @property
    def size(self) -> int:
        """The bytes of all of them."""
        return sum(found.size for found in self._known.values())

    def _path(self, client: str) -> Path:
        assert self.folder is not None, "nothing is kept without a folder"
        return self.folder / hashlib.sha256(client.encode()).hexdigest()


def _held(found: PartialUpload | None, digest: str) -> str:
    if found is None:
        return "nothing of it"
    return f"{found.size} bytes" if found.digest == digest else f"{found.size} bytes of another body"
