"""What a client drew between its uploads: one file of its home, beside its task, which stays as it is."""

from __future__ import annotations

import hashlib
from pathlib import Path

from artesian.core import Task
from artesian.storage.codec import decode
from artesian.storage.files import storage, write_file


class Drawn:
    """The newest draw since the client's newest task."""

    def __init__(self, home: Path) -> None:
        self._path = home / "drawn"

    @property
    def tag(self) -> str:
        """Its ETag; empty where nothing was drawn."""
        return f'"{hashlib.sha256(self._bytes()).hexdigest()}"' if self._path.exists() else ""

    def task(self) -> Task:
        """What was drawn, as a task whose recipe says how to use it."""
        return decode("task", self._bytes(), Task)

    def keep(self, data: bytes) -> None:
        """Put a newer one in its place."""
        write_file(self._path, data)

    def drop(self) -> None:
        """A newer task has come."""
        with storage(self._path):
            self._path.unlink(missing_ok=True)

    def _bytes(self) -> bytes:
        with storage(self._path):
            return self._path.read_bytes()
