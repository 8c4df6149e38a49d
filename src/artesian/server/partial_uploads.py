"""Halves of uploads whose connection broke: a client goes on where it was cut off."""

from __future__ import annotations

import hashlib
import shutil
from dataclasses import dataclass
from pathlib import Path

from artesian.errors import Conflict, StorageError
from artesian.storage.files import storage, write_file

SMALLEST = 1 << 16  # bytes worth keeping: less is sent again sooner than asked for


@dataclass(frozen=True)
class PartialUpload:
    """What is here of an upload."""

    number: int
    digest: str  # of the whole body, as the client announced it
    size: int


class PartialUploads:
    """The newest part of each client, in files, oldest dropped first when they take too much room."""

    def __init__(self, folder: Path, most: int) -> None:
        self.folder, self.most = folder, most
        self._parts: dict[str, PartialUpload] = {}
        with storage(folder):
            shutil.rmtree(folder, ignore_errors=True)  # of an earlier life: nobody is owed them
            folder.mkdir(mode=0o700)

    def find(self, client: str, number: int) -> PartialUpload | None:
        """The part of this upload, if there is one."""
        part = self._parts.get(client)
        return part if part is not None and part.number == number else None

    def keep(self, client: str, number: int, digest: str, body: bytes | memoryview) -> None:
        """Keep what arrived; a disk that is full keeps nothing."""
        self.drop(client)
        if not SMALLEST <= len(body) <= self.most:
            return
        while self._parts and self.size + len(body) > self.most:
            self.drop(next(iter(self._parts)))
        try:
            write_file(self._path(client), body, private=True, sync=False)
        except StorageError:
            return
        self._parts[client] = PartialUpload(number, digest, len(body))

    def take(self, client: str, number: int, digest: str, start: int) -> bytes:
        """The first `start` bytes of an upload, for its continuation."""
        part = self.find(client, number)
        if part is None or (part.size, part.digest) != (start, digest):
            got = "none" if part is None else f"{part.size} bytes" + (" of another" if part.digest != digest else "")
            raise Conflict("a continued upload begins where the server's part ends", got, "ask HEAD, or send the whole")
        with storage(self._path(client)):
            return self._path(client).read_bytes()

    def drop(self, client: str) -> None:
        """Forget a client's part."""
        if self._parts.pop(client, None) is not None:
            with storage(self.folder):
                self._path(client).unlink(missing_ok=True)

    @property
    def size(self) -> int:
        """The bytes of all parts."""
        return sum(part.size for part in self._parts.values())

    def _path(self, client: str) -> Path:
        return self.folder / hashlib.sha256(client.encode()).hexdigest()
