"""Vectors of clients beyond the memory they may take: kept in one file, and read again when they are wanted.

Whoever keeps a value keeps a slip of it: the same value with tickets in place of its vectors. A vector that many keep
has one ticket, and when the last slip that holds it is gone, its place is free for another. The file has no name, so
nothing is left of it, however the run ends. It is read and written, not mapped: a full disk is then an error with a
sentence, and a vector in use never changes when its place gets another owner.
"""

from __future__ import annotations

import os
import tempfile
import weakref
from collections import defaultdict
from collections.abc import Iterator, MutableMapping
from math import prod
from pathlib import Path
from typing import TypeVar

import numpy as np

from artesian.core import ClientId
from artesian.params import seal
from artesian.storage.blobs import Blobs
from artesian.storage.codec import Elsewhere
from artesian.storage.files import storage
from artesian.storage.nested import swapped

V = TypeVar("V")
MB = 1024 * 1024


class Spill:
    """Vectors: in memory up to a limit, and in a file beyond it."""

    def __init__(self, limit_mb: float, folder: Path | None = None) -> None:
        """The file is in that folder, or where temporary files are."""
        self.limit, self.folder = int(limit_mb * MB), Path(folder or tempfile.gettempdir())
        self.held = 0  # bytes in memory
        self.length = 0  # of the file
        self._file: int | None = None
        self._free: dict[int, list[int]] = defaultdict(list)  # places by their size
        self._seen: weakref.WeakValueDictionary[int, Ticket] = weakref.WeakValueDictionary()  # by vectors in use

    def put(self, array: np.ndarray, name: str = "") -> Ticket:
        """A ticket for a vector, the same for the same one; `name` is its digest, where that is known."""
        ticket = self._seen.get(id(array))
        if ticket is None or ticket.current() is not array:
            ticket = self._seen[id(array)] = Ticket(self, array, name)
        return ticket

    def slip(self, value: V) -> V:
        """The value with tickets in place of its vectors."""
        return swapped(value, np.ndarray, self.put)

    def seen(self, ticket: Ticket, array: np.ndarray) -> None:
        """A vector is in use again."""
        self._seen[id(array)] = ticket

    def write(self, array: np.ndarray) -> int:
        """Put a vector into the file; where it begins."""
        free = self._free[array.nbytes]
        start = free.pop() if free else self.length
        self.length = max(self.length, start + array.nbytes)
        rest = _bytes(np.ascontiguousarray(array))
        with storage(self.folder):
            while rest:
                rest = rest[os.pwrite(self._opened(), rest, start + array.nbytes - len(rest)) :]
        return start

    def read(self, array: np.ndarray, start: int) -> None:
        """Fill a vector from the file."""
        rest = _bytes(array)
        with storage(self.folder):
            while rest:
                rest = rest[os.preadv(self._opened(), [rest], start + array.nbytes - len(rest)) or _cut_short() :]

    def free(self, start: int, size: int) -> None:
        """A place that another vector may have."""
        self._free[size].append(start)

    def _opened(self) -> int:
        if self._file is None:
            self._file, path = tempfile.mkstemp(dir=self.folder, prefix="spill-")
            os.unlink(path)
            weakref.finalize(self, os.close, self._file)
        return self._file


class Ticket(Elsewhere):
    """Stands for one vector."""

    __slots__ = ("__weakref__", "_array", "_dtype", "_shape", "_spill", "_start", "_used", "name")

    def __init__(self, spill: Spill, array: np.ndarray, name: str = "") -> None:
        self._spill, self.name, self._start = spill, name, -1
        self._dtype, self._shape = array.dtype, array.shape
        self._array: np.ndarray | None = None
        self._used: weakref.ref[np.ndarray] | None = None
        if spill.held + array.nbytes <= spill.limit:
            self._array = array
            spill.held += array.nbytes
        else:
            self._start, self._used = spill.write(array), weakref.ref(array)

    def current(self) -> np.ndarray | None:
        """The vector, if it is in memory."""
        if self._array is not None or self._used is None:
            return self._array
        return self._used()

    def take(self) -> np.ndarray:
        """The vector; one that is in use already is not read twice."""
        array = self.current()
        if array is None:
            array = np.empty(self._shape, self._dtype)
            self._spill.read(array, self._start)
            self._used = weakref.ref(seal(array))
            self._spill.seen(self, array)
        return array

    def store(self, blobs: Blobs) -> str:
        """Have it in a folder of blobs, and return its name there; what lies there already is not even read."""
        if not self.name or not blobs.path(self.name).exists():
            self.name = blobs.put(self.take())
        return self.name

    def __del__(self) -> None:
        size = prod(self._shape) * self._dtype.itemsize
        if self._array is not None:
            self._spill.held -= size
        elif self._start >= 0:
            self._spill.free(self._start, size)


class Spilled(MutableMapping[ClientId, V]):
    """A value for each client, whose vectors may be spilled."""

    def __init__(self, spill: Spill) -> None:
        self.slips: dict[ClientId, V] = {}
        self._spill = spill

    def __getitem__(self, client: ClientId) -> V:
        return filled(self.slips[client])

    def __setitem__(self, client: ClientId, value: V) -> None:
        self.slips[client] = self._spill.slip(value)

    def __delitem__(self, client: ClientId) -> None:
        del self.slips[client]

    def __contains__(self, client: object) -> bool:
        return client in self.slips

    def __iter__(self) -> Iterator[ClientId]:
        return iter(self.slips)

    def __len__(self) -> int:
        return len(self.slips)


def filled(value: V) -> V:
    """The value whose slip this is."""
    return swapped(value, Ticket, Ticket.take)


def _bytes(array: np.ndarray) -> memoryview:
    return memoryview(array.reshape(-1).view(np.uint8).data)


def _cut_short() -> int:
    raise OSError("The file of spilled vectors was cut short")
