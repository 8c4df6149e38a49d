"""Arrays in files named by their digest: what did not change is not written again."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np

from artesian.core import Tree
from artesian.errors import Refused, StorageError
from artesian.storage.codec import decode, encode_parts, fingerprint, gather
from artesian.storage.files import storage, sync_folder, write_file


class Blobs:
    """A folder of arrays, each in a file named by the digest of its bytes."""

    def __init__(self, folder: Path, *, sync: bool = True, private: bool = False, create: bool = True) -> None:
        """`private` files and folders are for this user alone; without `create`, one is only read."""
        self.folder, self.sync, self.private = folder, sync, private
        self._sound: set[str] = set()  # written or checked by this process
        if create:
            with storage(folder):
                folder.mkdir(mode=0o700 if private else 0o777, parents=True, exist_ok=True)

    def put(self, array: np.ndarray) -> str:
        """Store an array, and return its name."""
        name = fingerprint(array)
        if not self._holds(name):
            parts = encode_parts("array", {"array": array})
            write_file(self.path(name), parts, private=self.private, sync=self.sync)
            self._sound.add(name)
        return name

    def adopt(self, name: str, other: Blobs) -> None:
        """Take an array from another folder in the same file system, synced if this one syncs."""
        if self._holds(name):
            return
        path, source = self.path(name), other.path(name)
        with storage(path):
            path.unlink(missing_ok=True)  # damaged
            if self.sync and not other.sync:
                with open(source, "rb") as file:
                    os.fsync(file.fileno())
            os.link(source, path)
            if self.sync:
                sync_folder(self.folder)
        self._sound.add(name)

    def drop(self, name: str) -> None:
        """Forget an array."""
        self._sound.discard(name)
        with storage(self.folder):
            self.path(name).unlink(missing_ok=True)

    def get(self, name: str) -> np.ndarray:
        """The array of this name; damaged bytes are refused."""
        path = self.path(name)
        if not path.exists():
            raise StorageError(f"The stored array is missing: {path}", "Restore the file from a backup")
        with storage(path):
            data = path.read_bytes()
        try:
            array: np.ndarray = decode("array", data, dict[str, Any])["array"]
            sound = fingerprint(array) == name
        except (Refused, KeyError, AttributeError):
            sound = False
        if not sound:
            raise StorageError(f"The stored array was altered: {path}", "Restore the file from a backup")
        self._sound.add(name)
        return array

    def size(self, name: str) -> int:
        """The bytes of an array's file; 0 where it was dropped."""
        path = self.path(name)
        return path.stat().st_size if path.exists() else 0

    def keep(self, names: Collection[str]) -> None:
        """Drop every array not among `names`."""
        for path in self.folder.glob("*.safetensors"):
            if path.stem not in names:
                self._sound.discard(path.stem)
                path.unlink(missing_ok=True)

    def names(self) -> list[str]:
        """The names of all arrays here, in order."""
        return sorted(path.stem for path in self.folder.glob("*.safetensors"))

    def path(self, name: str) -> Path:
        """The file of the array of this name."""
        if not isinstance(name, str) or len(name) != 64 or set(name) - set("0123456789abcdef"):
            raise StorageError(f"Not the name of a stored array: {repr(name)[:80]}", "Restore the file that names it")
        return self.folder / f"{name}.safetensors"

    def _holds(self, name: str) -> bool:
        """Whether a sound file of this name is here: nothing new may rest on a damaged one."""
        if not self.path(name).exists():
            return False
        if name not in self._sound:
            try:
                self.get(name)
            except StorageError:
                return False
        return True


def named_in(record: Tree) -> list[str]:
    """The names of the arrays that a record mentions."""
    found: list[str] = []
    gather(record, "$blob", found.append)
    return found
