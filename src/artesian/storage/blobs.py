"""Arrays in files named by their digest: what did not change is not written again."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from artesian.errors import Refused, StorageError
from artesian.storage.codec import decode, encode_parts, fingerprint
from artesian.storage.files import storage, sync_folder, write_file


class Blobs:
    """A folder of arrays, each in a file named by the digest of its bytes."""

    def __init__(self, folder: Path, *, sync: bool = True) -> None:
        self.folder, self.sync = folder, sync
        with storage(folder):
            folder.mkdir(parents=True, exist_ok=True)

    def put(self, array: np.ndarray) -> str:
        """Store an array, and return its name."""
        name = fingerprint(array)
        if not self.path(name).exists():
            write_file(self.path(name), encode_parts("array", {"array": array}), sync=self.sync)
        return name

    def adopt(self, name: str, other: Blobs) -> None:
        """Take an array from another folder in the same file system, synced if this one syncs."""
        path, source = self.path(name), other.path(name)
        with storage(path):
            if path.exists():
                return
            if self.sync and not other.sync:
                with open(source, "rb") as file:
                    os.fsync(file.fileno())
            os.link(source, path)
            if self.sync:
                sync_folder(self.folder)

    def drop(self, name: str) -> None:
        """Forget an array."""
        with storage(self.folder):
            self.path(name).unlink(missing_ok=True)

    def get(self, name: str) -> np.ndarray:
        """The array of this name; damaged bytes are refused."""
        path = self.path(name)
        with storage(path):
            data = path.read_bytes()
        try:
            array: np.ndarray = decode("array", data, dict[str, Any])["array"]
            sound = fingerprint(array) == name
        except (Refused, KeyError, AttributeError):
            sound = False
        if not sound:
            raise StorageError(f"The stored array was altered: {path}", "Restore the file from a backup")
        return array

    def size(self, name: str) -> int:
        """The bytes of an array's file; 0 where it was dropped."""
        path = self.path(name)
        return path.stat().st_size if path.exists() else 0

    def keep(self, names: set[str]) -> None:
        """Drop every array not among `names`."""
        for path in self.folder.glob("*.safetensors"):
            if path.stem not in names:
                path.unlink(missing_ok=True)

    def path(self, name: str) -> Path:
        """The file of the array of this name."""
        if not isinstance(name, str) or len(name) != 64 or set(name) - set("0123456789abcdef"):
            raise StorageError(f"Not the name of a stored array: {repr(name)[:80]}", "Restore the file that names it")
        return self.folder / f"{name}.safetensors"
