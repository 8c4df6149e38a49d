"""Stores that are only read: nothing is written and no lock is taken, on read-only media and beside a server too."""

from __future__ import annotations

import json
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from artesian.core import Event, Snapshot, Tree
from artesian.errors import SettingError, StoreDamaged
from artesian.storage.blobs import Blobs
from artesian.storage.codec import Elsewhere, from_tree, gather
from artesian.storage.files import storage
from artesian.storage.history import (
    EventRow,
    SecretRow,
    SnapshotRow,
    StoreHistory,
    StoreMark,
    StretchRow,
    behind,
    broken,
    check_store_format,
    read_mark,
)
from artesian.storage.older import translated

ATTEMPTS = 3  # a server that opens or closes the store meanwhile may disturb a reader once
BESIDE = ("at",)  # what stands in the record of an event and is not part of the event


def read_history(folder: Path) -> StoreHistory:
    """All rows of a store, which follow from each other and reach as far as its mark."""
    problem = ""
    for _ in range(ATTEMPTS):
        mark, history = mark_of(folder), unchecked_history(folder)
        problem = next(broken(history), "") or behind(history, mark)
        if not problem:
            return history
    raise damaged(folder, problem)


def unchecked_history(folder: Path) -> StoreHistory:
    """All rows of a store, whatever they say."""
    with connection(folder) as view:
        return rows_of(view, folder)


def mark_of(folder: Path) -> StoreMark:
    """What the mark knows. Read it before the database, which is never behind it."""
    path = folder / "mark"
    if (folder / "artesian.db").exists() and not path.exists():
        raise StoreDamaged(f"The store has lost its mark: {path}", "Restore it from a backup")
    if not path.exists():
        raise SettingError(f"No store at {folder}: no artesian.db in it", "Give the folder of a store, or of a backup")
    with storage(path):
        found = read_mark(path.read_bytes())
    if found is None:
        raise damaged(folder, "the mark cannot be read")
    return found


@contextmanager
def connection(folder: Path) -> Iterator[sqlite3.Connection]:
    """A connection to a store's database that writes nothing into its folder.

    While a server has the store open, and after a crash, SQLite reads its log through the index beside it. A closed
    database has no log and cannot change. A log without an index would have one made, so that a copy is read instead.
    """
    database = folder / "artesian.db"
    if not database.exists():
        raise SettingError(f"No store at {folder}: no artesian.db in it", "Give the folder of a store, or of a backup")
    log, index = (database.with_name(f"{database.name}-{end}") for end in ("wal", "shm"))
    with ExitStack() as held, _readable(folder):
        way = "mode=ro&readonly_shm=1"
        if not log.exists() or not (log.stat().st_size or index.exists()):
            way = "immutable=1"
        elif not index.exists():
            copy = Path(held.enter_context(tempfile.TemporaryDirectory()))
            for path in (database, log):
                shutil.copyfile(path, copy / path.name)
            database, way = copy / database.name, "mode=ro"
        view = sqlite3.connect(f"{database.resolve().as_uri()}?{way}", uri=True, isolation_level=None)
        held.callback(view.close)
        yield view


@contextmanager
def _readable(folder: Path) -> Iterator[None]:
    try:
        with storage(folder):
            yield
    except sqlite3.Error as error:
        raise StoreDamaged(f"The store {folder} cannot be read: {error}", "Restore a backup") from None


def rows_of(view: sqlite3.Connection, folder: Path) -> StoreHistory:
    """All rows of a database as they are at this moment."""
    view.execute("BEGIN")
    try:
        known = {name for (name,) in view.execute("SELECT name FROM sqlite_master")}
        if not {"about", "events", "snapshots", "secrets"} <= known:
            raise damaged(folder, "the database has lost its tables")
        about = {key: json.loads(value) for key, value in view.execute("SELECT key, value FROM about")}
        if not about:
            raise damaged(folder, "the database has lost its rows")
        check_store_format(int(about.get("format", 0)))
        events = [EventRow(*row) for row in view.execute("SELECT number, record, chain FROM events ORDER BY number")]
        columns = "SELECT events, record, chain, digest FROM snapshots ORDER BY events"
        snapshots = [SnapshotRow(*row) for row in view.execute(columns)]
        columns = "SELECT events, versions, chain, digest FROM stretches ORDER BY events"
        stretches = [StretchRow(*row) for row in view.execute(columns)] if "stretches" in known else []
        secrets = [SecretRow(*row) for row in view.execute("SELECT client, hash, digest FROM secrets")]
    except (ValueError, TypeError) as error:
        raise damaged(folder, f"a row cannot be read ({error})") from None
    finally:
        view.execute("ROLLBACK")
    return StoreHistory(about, events, snapshots, stretches, secrets)


def read_enrolments(folder: Path) -> dict[str, str]:
    """The name of the token that each client joined with; nothing of those who joined at an older version."""
    with connection(folder) as view:
        known = view.execute("SELECT 1 FROM sqlite_master WHERE name = 'enrolments'").fetchone()
        return dict(view.execute("SELECT client, token FROM enrolments")) if known else {}


def event_of(record: Mapping[str, Tree], blobs: Blobs) -> Event:
    """An event from its record, with its arrays."""
    told = {key: value for key, value in record.items() if key not in BESIDE}
    return from_tree(Event, gather(told, "$blob", blobs.get))


def snapshot_of(record: Mapping[str, Tree], blobs: Blobs | None = None) -> Snapshot:
    """A snapshot from its record, with its open tasks; without `blobs`, its arrays are left out."""
    get = blobs.get if blobs is not None else lambda _: Elsewhere()
    return from_tree(Snapshot, gather(translated(Snapshot, record), "$blob", get))


def damaged(folder: Path, problem: str) -> StoreDamaged:
    """The error about a store that is not as it was written."""
    return StoreDamaged(f"The store {folder} is damaged: {problem}", "Restore a backup")
