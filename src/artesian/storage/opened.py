"""A store's folder, opened by the one server that may write: locks, mark and database, checked against each other."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar

from artesian.errors import MissingExtra, Refused, StorageError, StoreDamaged, StoreLocked
from artesian.storage.blobs import Blobs
from artesian.storage.files import lock_file, lock_folder, make_folder, make_private, storage, sync_folder, write_file
from artesian.storage.history import (
    SLOT,
    STORE_FORMAT,
    ActRow,
    EventRow,
    SnapshotRow,
    StoreHistory,
    StoreMark,
    StretchRow,
    behind,
    broken,
    check_identity,
    check_store_format,
    genesis,
    read_mark,
    slot,
)
from artesian.storage.open_tasks import OpenTasks
from artesian.storage.reading import damaged
from artesian.storage.tables import ABOUT, EVENTS, SNAPSHOTS, STRETCHES, TABLES

try:
    import sqlalchemy as sql
    from sqlalchemy.exc import DatabaseError, OperationalError
except ModuleNotFoundError:
    raise MissingExtra("sqlalchemy", "server") from None

T = TypeVar("T")
SHARED = {"check_same_thread": False}  # opened by one thread, written by another, never by two at once
OWN = (
    "artesian.db",
    "artesian.db-wal",
    "artesian.db-shm",
    "mark",
    "lock",
    "tokens.json",
    "tokens.lock",
    "keys.json",
    "keys.lock",
    "blobs",
    "parts",
)


class OpenedStore:
    """The folder of one federation, held by one server at a time through one writing connection."""

    def __init__(self, folder: Path, identity: Mapping[str, Any]) -> None:
        """Open or create the store of the federation that `identity` describes."""
        self.folder = folder
        self.notes: list[str] = []  # what the operator should know of how the folder was found
        self.count, self.chain = 0, ""  # events so far, and the digest of them all
        self._sound = True  # mark and database agree
        self._acts: dict[int, ActRow] = {}  # of the operator
        self._held = ExitStack()  # everything to close
        self._rollback: Callable[[], None] = lambda: None  # of the database, once it is open
        with self._held:
            self._open(identity)
            self._held = self._held.pop_all()

    def close(self) -> None:
        """Close the database and release the lock."""
        self._held.close()

    def about(self) -> dict[str, Any]:
        """What the store says about itself."""
        with self._database():
            rows = self._db.execute(sql.select(ABOUT)).all()
            self._db.rollback()
        return self._value("row", lambda: {row.key: json.loads(row.value) for row in rows})

    # opening

    def _open(self, identity: Mapping[str, Any]) -> None:
        database, mark = self.folder / "artesian.db", self.folder / "mark"
        about = {"format": STORE_FORMAT, **identity}
        with storage(self.folder):
            make_folder(self.folder)
            for lock in (lock_folder(self.folder), lock_file(self.folder / "lock")):  # earlier versions know the file
                self._hold(lock)
            self._close_to_others()
            if database.exists() and not mark.exists():
                raise StoreDamaged(f"The store has lost its mark: {mark}", "Restore it from a backup")
            if not mark.exists():  # written first, and whole: after a crash right here the store begins again
                write_file(mark, slot(0, genesis(about)), private=True)
            self._mark = os.open(mark, os.O_RDWR)
            self._held.callback(os.close, self._mark)
            os.close(os.open(database, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))  # SQLite's own would be 0644
        self.blobs = Blobs(self.folder / "blobs", private=True)
        self.open_tasks = OpenTasks(self.folder / "shelf")
        engine = sql.create_engine(f"sqlite:///{database}", poolclass=sql.pool.StaticPool, connect_args=SHARED)
        sql.event.listen(engine, "connect", _prepare)
        self._held.callback(engine.dispose)
        with self._database():
            self._db = self._held.enter_context(engine.connect())
            self._rollback = self._db.rollback
            self._begin(about) if self._is_empty() else self._reopen(identity)

    def _hold(self, lock: int | None) -> None:
        if lock is None:
            raise StoreLocked(f"Another server uses this store: {self.folder}", "Stop it, or choose another store")
        self._held.callback(os.close, lock)

    def _close_to_others(self) -> None:
        """Let only this user read what is ours; the folder itself is the operator's to close."""
        found = [path for path in (self.folder / name for name in OWN) if path.exists()]
        closed = [path.name for path in found if make_private(path)]
        if closed:
            self.notes.append(f"others could read {', '.join(closed)}: closed to them now")
        if self.folder.stat().st_mode & 0o077:
            self.notes.append(f"others can list {self.folder}: close it with chmod 700")

    def _is_empty(self) -> bool:
        """Whether nothing was ever acknowledged: no event in the mark, and no federation in the database."""
        known = sql.inspect(self._db).has_table("about") and self._db.execute(sql.select(ABOUT)).first() is not None
        self._db.rollback()
        if not known and self._read_mark()[0]:
            raise self._damaged("the database has lost its tables")
        return not known

    def _begin(self, about: Mapping[str, Any]) -> None:
        TABLES.create_all(self._db)
        rows = [{"key": key, "value": json.dumps(value, sort_keys=True)} for key, value in about.items()]
        self._db.execute(ABOUT.insert(), rows)
        self._db.commit()
        self.count, self.chain = 0, genesis(about)
        self._set_mark(0, self.chain)
        sync_folder(self.folder)

    def _reopen(self, identity: Mapping[str, Any]) -> None:
        found = self.about()
        check_store_format(int(found.get("format", 0)))
        check_identity(self.folder, found, identity)
        TABLES.create_all(self._db)  # stretches and enrolments, which older stores have not
        self._db.commit()
        history = self._history()
        self._check_chain(history)
        self._check_mark(history)

    def _history(self) -> StoreHistory:
        """All rows; the secrets are checked where they are used."""
        with self._database():
            events, snapshots, stretches = (
                self._db.execute(sql.select(table).order_by(table.c[0])).all()
                for table in (EVENTS, SNAPSHOTS, STRETCHES)
            )
            self._db.rollback()
        about = self.about()
        return StoreHistory(
            about,
            [EventRow(*row) for row in events],
            [SnapshotRow(*row) for row in snapshots],
            [StretchRow(*row) for row in stretches],
        )

    def _check_chain(self, history: StoreHistory) -> None:
        """Every event follows from the one before it, and every snapshot belongs to one of them."""
        for problem in broken(history):
            raise self._damaged(problem)
        self.count, self.chain, self._acts = history.count, history.chain, dict(history.acts)

    def _check_mark(self, history: StoreHistory) -> None:
        """The database must hold every event up to the mark; one more may have come just before a crash."""
        mark = self._read_mark()
        if problem := behind(history, mark):
            raise self._damaged(problem)
        if self.count > mark.number + 1:
            raise self._damaged(f"the mark counts {mark.number} events, the database holds {self.count}")
        if self.count > mark.number:
            self._set_mark(self.count, self.chain)

    def _check_sound(self) -> None:
        if not self._sound:
            raise StorageError(
                f"The mark is behind the database: {self.folder / 'mark'}", "Fix the disk, then restart the server"
            )

    def _damaged(self, problem: str) -> StoreDamaged:
        return damaged(self.folder, problem)

    # the mark: two slots written in turn, so that one is always whole

    def _set_mark(self, number: int, chain: str) -> None:
        with storage(self.folder / "mark"):
            os.pwrite(self._mark, slot(number, chain), SLOT * (number % 2))
            os.fdatasync(self._mark)

    def _read_mark(self) -> StoreMark:
        found = read_mark(os.pread(self._mark, 2 * SLOT, 0))
        if found is None:
            raise self._damaged("the mark cannot be read")
        return found

    # values

    def _value(self, what: str, read: Callable[[], T]) -> T:
        try:
            return read()
        except (Refused, ValueError) as error:
            raise self._damaged(f"a {what} cannot be read: {error}") from None

    @contextmanager
    def _database(self) -> Iterator[None]:
        """Turn the database's errors into ours, after rolling back."""
        try:
            yield
        except OperationalError as error:
            self._rollback()
            raise StorageError(
                f"The database cannot be written: {error.orig} ({self.folder})",
                "Free some disk space; nothing acknowledged is lost",
            ) from error
        except DatabaseError as error:
            self._rollback()
            raise self._damaged(str(error.orig)) from error


def _prepare(connection: Any, _: Any) -> None:
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
        connection.execute(f"PRAGMA {pragma}").close()
