"""Open tasks on disk: memory holds a record of each, never its models.

After a crash the events are replayed, which computes them again: so nothing here is synced until a snapshot needs it.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import suppress
from pathlib import Path

from artesian.core import ClientId, Task, Tree
from artesian.errors import StorageError
from artesian.storage.blobs import Blobs
from artesian.storage.codec import from_tree, gather, scatter, to_tree
from artesian.storage.files import storage


class OpenTasks(MutableMapping[ClientId, Task]):
    """The open task of every member. Written in the writer's turn only."""

    def __init__(self, folder: Path) -> None:
        with storage(folder):
            shutil.rmtree(folder, ignore_errors=True)  # of an earlier start; the snapshot and the events have it all
        self._blobs = Blobs(folder, sync=False)
        self._records: dict[ClientId, Tree] = {}
        self._uses: Counter[str] = Counter()  # of each array, by open tasks
        self._unwritten: dict[ClientId, Task] = {}  # the disk was full: in memory until a snapshot can write them

    def __getitem__(self, client: ClientId) -> Task:
        if client in self._unwritten:
            return self._unwritten[client]
        return from_tree(Task, gather(self._records[client], "$blob", self._blobs.get))

    def __setitem__(self, client: ClientId, task: Task) -> None:
        if client in self:
            del self[client]
        try:
            self._write(client, task)
        except StorageError:
            self._unwritten[client] = task

    def __delitem__(self, client: ClientId) -> None:
        if self._unwritten.pop(client, None) is None:
            self._forget(self._records.pop(client))

    def __contains__(self, client: object) -> bool:
        return client in self._records or client in self._unwritten

    def __iter__(self) -> Iterator[ClientId]:
        return iter([*self._records, *self._unwritten])

    def __len__(self) -> int:
        return len(self._records) + len(self._unwritten)

    @property
    def records(self) -> Mapping[ClientId, Tree]:
        """Every task, with names in place of its arrays."""
        return self._records

    def settle(self, blobs: Blobs) -> set[str]:
        """Put every array into `blobs` too, and return their names."""
        for client, task in list(self._unwritten.items()):
            self._write(client, task)
            del self._unwritten[client]
        for name in self._uses:
            blobs.adopt(name, self._blobs)
        return set(self._uses)

    def fill(self, records: Mapping[ClientId, Tree], blobs: Blobs) -> None:
        """Take over a snapshot's tasks; each array is checked against its name."""
        for client, record in records.items():
            for name in names_in(record):
                blobs.get(name)
                self._blobs.adopt(name, blobs)
            self._keep(client, record)

    def _write(self, client: ClientId, task: Task) -> None:
        self._keep(client, scatter(to_tree(task), lambda _, array: {"$blob": self._blobs.put(array)}))

    def _keep(self, client: ClientId, record: Tree) -> None:
        self._records[client] = record
        self._uses.update(names_in(record))

    def _forget(self, record: Tree) -> None:
        for name in names_in(record):
            self._uses[name] -= 1
            if not self._uses[name]:
                del self._uses[name]
                with suppress(StorageError):  # an extra file does no harm: the next start removes it
                    self._blobs.drop(name)


def names_in(record: Tree) -> list[str]:
    """The arrays a record mentions."""
    found: list[str] = []
    gather(record, "$blob", found.append)
    return found
