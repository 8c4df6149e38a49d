"""What a server keeps on disk: events synced before they are acknowledged, snapshots, arrays by digest.

A store is a folder: `artesian.db` (SQLite: which federation, events, snapshots), `blobs/` (arrays under their digest),
`mark` (the number of the last event, outside the database) and `lock`. Every event carries a digest chained to the one
before it, so nothing can be altered, dropped or reordered unseen. SQLite silently drops a damaged tail of its log; the
mark still knows about it, and a store that is behind its mark is refused.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from artesian.core import Event, Snapshot, Tree
from artesian.errors import MissingExtra, Refused, SettingError, StorageError, StoreDamaged, StoreLocked, StoreMismatch
from artesian.storage.blobs import Blobs
from artesian.storage.codec import FORMAT, check_format, from_tree, gather, scatter, to_json, to_tree
from artesian.storage.failpoints import reach
from artesian.storage.files import lock_file, storage, sync_folder, write_file
from artesian.storage.older import translated
from artesian.storage.open_tasks import OpenTasks, names_in
from artesian.storage.retention import ALL, NOTHING, Recorded, Retention, kept_snapshots

try:
    import sqlalchemy as sql
    from sqlalchemy.exc import DatabaseError, OperationalError
except ModuleNotFoundError:
    raise MissingExtra("sqlalchemy", "server") from None

TABLES = sql.MetaData()
ABOUT = sql.Table("about", TABLES, sql.Column("key", sql.Text, primary_key=True), sql.Column("value", sql.Text))
EVENTS = sql.Table(
    "events",
    TABLES,
    sql.Column("number", sql.Integer, primary_key=True, autoincrement=False),
    sql.Column("record", sql.Text, nullable=False),
    sql.Column("chain", sql.Text, nullable=False),
)
SNAPSHOTS = sql.Table(
    "snapshots",
    TABLES,
    sql.Column("events", sql.Integer, primary_key=True, autoincrement=False),  # how many it stands for
    sql.Column("record", sql.Text, nullable=False),
    sql.Column("chain", sql.Text, nullable=False),  # of the last event it stands for
    sql.Column("digest", sql.Text, nullable=False),  # of the record and the chain together
)
SECRETS = sql.Table(
    "secrets",
    TABLES,
    sql.Column("client", sql.Text, primary_key=True),
    sql.Column("hash", sql.Text, nullable=False),  # of the secret the client made
    sql.Column("digest", sql.Text, nullable=False),  # of the two together
)
SHARED = {"check_same_thread": False}  # opened by one thread, written by another, never by two at once
SLOT = 128  # bytes of one half of the mark
T = TypeVar("T")


class Store:
    """One federation's folder, held by one server at a time through one writing connection."""

    def __init__(self, folder: Path, identity: Mapping[str, Any]) -> None:
        """Open or create the store of the federation that `identity` describes."""
        self.folder = folder
        self.count, self.chain = 0, ""  # events so far, and the digest of them all
        self._sound = True  # mark and database agree
        self._past: dict[int, Recorded] = {}  # events behind the newest snapshot, as far as they were asked for
        self._bases: dict[int, set[str]] = {}  # the arrays that each older snapshot needs, without open tasks
        self._acts: dict[int, tuple[str, str, int]] = {}  # of the operator: kind, client, event gone back to
        self._held = ExitStack()  # everything to close
        self._rollback: Callable[[], None] = lambda: None  # of the database, once it is open
        with self._held:
            self._open(identity)
            self._held = self._held.pop_all()

    def append(self, event: Event) -> int:
        """Make an event durable and return its number; when this returns, it may be acknowledged."""
        reach("before-blobs")
        record = to_json(scatter(to_tree(event), lambda _, array: {"$blob": self.blobs.put(array)}))
        reach("between-blobs-and-event")
        number, chain = self.count + 1, _chained(self.chain, record)
        self._check_sound()
        with self._database():
            self._db.execute(EVENTS.insert().values(number=number, record=record, chain=chain))
            reach("between-event-and-commit")
            self._db.commit()
        reach("between-commit-and-mark")
        self._sound = False
        self._set_mark(number, chain)
        self.count, self.chain, self._sound = number, chain, True
        if event.act is not None:
            self._acts[number] = event.kind, event.client, event.act.to
        reach("between-mark-and-change")
        return number

    def events(self, after: int = 0) -> Iterator[Event]:
        """The events after a number, each with its arrays."""
        query = sql.select(EVENTS.c.record).where(EVENTS.c.number > after).order_by(EVENTS.c.number)
        with self._database():
            records = self._db.execute(query).scalars().all()
            self._db.rollback()
        for record in records:
            yield self._value(Event, json.loads(record))

    def last(self, count: int) -> list[dict[str, Any]]:
        """The newest events as JSON values, oldest first, without their arrays."""
        query = sql.select(EVENTS.c.record).order_by(EVENTS.c.number.desc()).limit(count)
        with self._database():
            records = self._db.execute(query).scalars().all()
            self._db.rollback()
        return [json.loads(record) for record in reversed(records)]

    def save(self, snapshot: Snapshot, *, keep_uploads: bool = False, retain: Retention = NOTHING) -> None:
        """Write a snapshot with the open tasks, then drop what is not needed any more.

        Older snapshots, and the uploads after them, stay within the bounds of `retain`; all with `keep_uploads`.
        """
        assert not snapshot.open_tasks, "open tasks are kept in open_tasks"
        retain = ALL if keep_uploads else retain
        names: set[str] = set()

        def put(path: str, array: np.ndarray) -> Tree:
            names.add(name := self.blobs.put(array))
            return {"$blob": name}

        scattered = scatter(to_tree(snapshot), put)
        tasks = self.open_tasks.settle(self.blobs)
        record = to_json({**scattered, "open_tasks": self.open_tasks.records})
        kept = self._kept(retain)
        reach("between-blobs-and-snapshot")
        row = {"events": self.count, "record": record, "chain": self.chain}
        with self._database():
            self._db.execute(SNAPSHOTS.delete().where(SNAPSHOTS.c.events == self.count))
            self._db.execute(SNAPSHOTS.insert().values(**row, digest=_chained(self.chain, record)))
            self._db.execute(SNAPSHOTS.delete().where(SNAPSHOTS.c.events.not_in([*kept, self.count])))
            self._db.commit()
        reach("between-snapshot-and-cleaning")
        self._bases = {at: found for at, found in self._bases.items() if at in kept} | {self.count: names}
        if retain != ALL:
            self.blobs.keep(names | tasks | self._needed(kept))

    def drop_snapshots_of(self, client: str) -> set[str]:
        """Drop what holds uploads of a forgotten member among the snapshots before that; the names of their arrays."""
        before = self.forgotten()[client]
        tainted = [at for at in self.snapshots() if at < before and self._has_answered(at, client)]
        with self._database():
            names = set[str]().union(*map(self._names_of, tainted))
            self._db.execute(SNAPSHOTS.delete().where(SNAPSHOTS.c.events.in_(tainted)))
            self._db.commit()
        return names

    def purge(self, more: set[str]) -> None:
        """Drop what members uploaded who were forgotten, and these arrays, however much is retained."""
        forgotten, theirs, used = self.forgotten(), set(more), self.open_tasks.settle(self.blobs)
        for number, record in self._records(0, self.count):
            told = json.loads(record)
            gone = told["kind"] == "upload" and number < forgotten.get(told["client"], 0)
            (theirs if gone else used).update(names_in(told))
        for name in theirs.difference(used, *(self._names_of(at) for at in self.snapshots())):
            self.blobs.drop(name)

    def snapshots(self) -> list[int]:
        """After which events there is a snapshot."""
        with self._database():
            found = self._db.execute(sql.select(SNAPSHOTS.c.events).order_by(SNAPSHOTS.c.events)).scalars().all()
            self._db.rollback()
        return list(found)

    def snapshot(self, at: int) -> Snapshot:
        """The snapshot after this event, without open tasks."""
        value: Snapshot = self._value(Snapshot, {**self._snapshot_record(at), "open_tasks": {}})
        return value

    def numbered(self, after: int, upto: int) -> list[tuple[int, Event]]:
        """The events of these numbers that can still be read: not the uploads of a member before it was forgotten."""
        forgotten = self.forgotten()
        records = [(number, json.loads(record)) for number, record in self._records(after, upto)]
        return [
            (number, self._value(Event, record))
            for number, record in records
            if record["kind"] != "upload" or number >= forgotten.get(record["client"], 0)
        ]

    def forgotten(self) -> dict[str, int]:
        """Every member that was forgotten, and the number of that event."""
        return {client: number for number, (kind, client, _) in self._acts.items() if kind == "forget"}

    def rollbacks(self) -> set[int]:
        """The events that rollbacks went back to."""
        return {to for kind, _, to in self._acts.values() if kind == "rollback"}

    def without(self, client: str) -> int | None:
        """The newest snapshot before any upload of this client, by its event; None: there is none any more."""
        return next((at for at in reversed(self.snapshots()) if not self._has_answered(at, client)), None)

    def _has_answered(self, at: int, client: str) -> bool:
        """Whether a client had uploaded something when this snapshot was taken."""
        member = self._snapshot_record(at)["state"]["members"].get(client)
        return member is not None and member["answered"] > 0

    def _records(self, after: int, upto: int) -> list[tuple[int, str]]:
        query = sql.select(EVENTS.c.number, EVENTS.c.record).where(EVENTS.c.number > after, EVENTS.c.number <= upto)
        with self._database():
            rows = self._db.execute(query.order_by(EVENTS.c.number)).all()
            self._db.rollback()
        return [(row.number, row.record) for row in rows]

    def _kept(self, retain: Retention) -> list[int]:
        """Which older snapshots stay when there is one of now."""
        if retain == NOTHING:
            return []
        taken = [at for at in self.snapshots() if at < self.count]
        if retain == ALL or not taken:
            return kept_snapshots(dict.fromkeys(taken, 0), (), self.count, retain)
        sizes = {at: sum(map(self.blobs.size, self._names_of(at))) for at in taken}
        return kept_snapshots(sizes, self._recorded(taken[0]), self.count, retain)

    def _recorded(self, after: int) -> list[Recorded]:
        """What the events after this one keep on disk."""
        known = max(self._past, default=after)
        if not self._past or min(self._past) > after + 1:
            self._past, known = {}, after
        for number, record in self._records(known, self.count):
            told = json.loads(record)
            names = tuple(names_in(told))
            size = sum(map(self.blobs.size, names))
            self._past[number] = Recorded(number, told["client"], told["kind"] == "upload", names, size)
        self._past = {number: event for number, event in self._past.items() if number > after}
        return list(self._past.values())

    def _needed(self, kept: list[int]) -> set[str]:
        """The arrays of older snapshots and of the events after the first of them, but for the forgotten."""
        forgotten, names = self.forgotten(), set[str]()
        for event in self._recorded(min(kept, default=self.count)):
            if not event.upload or event.number >= forgotten.get(event.client, 0):
                names.update(event.names)
        return names.union(*(self._names_of(at) for at in kept))

    def _names_of(self, at: int) -> set[str]:
        """The arrays of the snapshot after this event, without its open tasks."""
        if at not in self._bases:
            self._bases[at] = set(names_in({**self._snapshot_record(at), "open_tasks": {}}))
        return self._bases[at]

    def _snapshot_record(self, at: int) -> dict[str, Any]:
        with self._database():
            record = self._db.execute(sql.select(SNAPSHOTS.c.record).where(SNAPSHOTS.c.events == at)).scalar_one()
            self._db.rollback()
        return dict(translated(Snapshot, json.loads(record)))

    def latest(self) -> tuple[int, Snapshot] | None:
        """The newest snapshot, with the number of events before it; its open tasks go to `open_tasks`."""
        query = sql.select(SNAPSHOTS).order_by(SNAPSHOTS.c.events.desc()).limit(1)
        with self._database():
            row = self._db.execute(query).mappings().first()
            self._db.rollback()
        if row is None:
            return None
        told = translated(Snapshot, json.loads(row["record"]))
        self.open_tasks.fill(told["open_tasks"], self.blobs)
        return row["events"], self._value(Snapshot, {**told, "open_tasks": {}})

    def secrets(self) -> dict[str, str]:
        """The hash of every client's secret."""
        with self._database():
            rows = self._db.execute(sql.select(SECRETS)).all()
            self._db.rollback()
        if any(row.digest != _chained(str(row.client), str(row.hash)) for row in rows):
            raise self._damaged("a client's secret was altered")
        return {row.client: row.hash for row in rows}

    def add_secret(self, client: str, digest: str) -> None:
        """Remember a client's secret, by its hash."""
        with self._database():
            row = {"client": client, "hash": digest, "digest": _chained(client, digest)}
            self._db.execute(SECRETS.insert().values(**row))
            self._db.commit()

    def replace_secret(self, client: str, digest: str) -> None:
        """Put another secret in place of a client's, at once or not at all."""
        with self._database():
            self._db.execute(SECRETS.delete().where(SECRETS.c.client == client))
            self.add_secret(client, digest)

    def drop_secret(self, client: str) -> None:
        """Forget a client's secret."""
        with self._database():
            self._db.execute(SECRETS.delete().where(SECRETS.c.client == client))
            self._db.commit()

    def about(self) -> dict[str, Any]:
        """What the store says about itself."""
        with self._database():
            rows = self._db.execute(sql.select(ABOUT)).all()
            self._db.rollback()
        return {row.key: json.loads(row.value) for row in rows}

    def close(self) -> None:
        """Close the database and release the lock."""
        self._held.close()

    # opening

    def _open(self, identity: Mapping[str, Any]) -> None:
        database, mark = self.folder / "artesian.db", self.folder / "mark"
        about = {"format": FORMAT, **identity}
        with storage(self.folder):
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._held.callback(os.close, _locked(self.folder / "lock"))
            if database.exists() and not mark.exists():
                raise StoreDamaged(f"The store has lost its mark: {mark}", "Restore it from a backup")
            if not mark.exists():  # written first, and whole: after a crash right here the store begins again
                write_file(mark, _slot(0, _genesis(about)), private=True)
            self._mark = os.open(mark, os.O_RDWR)
            self._held.callback(os.close, self._mark)
        self.blobs = Blobs(self.folder / "blobs")
        self.open_tasks = OpenTasks(self.folder / "shelf")
        engine = sql.create_engine(f"sqlite:///{database}", poolclass=sql.pool.StaticPool, connect_args=SHARED)
        sql.event.listen(engine, "connect", _prepare)
        self._held.callback(engine.dispose)
        with self._database():
            self._db = self._held.enter_context(engine.connect())
            self._rollback = self._db.rollback
            self._begin(about) if self._is_empty() else self._reopen(identity)

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
        self.count, self.chain = 0, _genesis(about)
        self._set_mark(0, self.chain)
        sync_folder(self.folder)

    def _reopen(self, identity: Mapping[str, Any]) -> None:
        found = self.about()
        check_format(int(found.get("format", 0)))
        for key, value in identity.items():
            if found.get(key) != json.loads(json.dumps(value)):
                raise StoreMismatch(
                    f"{self.folder} is the store of another federation: its {key} is {str(found.get(key))[:80]}",
                    "Serve the federation it belongs to, or choose another store",
                )
        self._check_chain(_genesis(found))
        self._check_mark()

    def _check_chain(self, genesis: str) -> None:
        """Every event follows from the one before it, and the snapshot belongs to one of them."""
        rows = self._db.execute(sql.select(EVENTS).order_by(EVENTS.c.number)).all()
        snapshots = {row.events: row for row in self._db.execute(sql.select(SNAPSHOTS)).all()}
        self._db.rollback()
        self.count, self.chain = 0, genesis
        marked, expected = self._read_mark()
        for row in rows:
            self.count += 1
            self.chain = _chained(self.chain, row.record)
            if row.number != self.count or row.chain != self.chain:
                raise self._damaged(f"event {self.count} does not follow from the one before")
            if self.count == marked and self.chain != expected:
                raise self._damaged(f"event {marked} is not the one the mark knows")
            if '"act":{' in row.record:
                self._note(self.count, json.loads(row.record))
            stands = snapshots.pop(self.count, None)
            if stands and (stands.chain, stands.digest) != (self.chain, _chained(self.chain, stands.record)):
                raise self._damaged(f"the snapshot after event {self.count} was altered")
        stands = snapshots.pop(0, None)
        if snapshots or (stands and stands.digest != _chained(genesis, stands.record)):
            raise self._damaged("the events before a snapshot are missing")

    def _note(self, number: int, record: Mapping[str, Any]) -> None:
        """Remember an operator's act."""
        if record["act"] is not None:
            self._acts[number] = record["kind"], record["client"], record["act"]["to"]

    def _check_mark(self) -> None:
        """The database must hold every event up to the mark; one more may have come just before a crash."""
        number, chain = self._read_mark()
        if not number <= self.count <= number + 1 or (self.count == number and self.chain != chain):
            raise self._damaged(f"the mark counts {number} events, the database holds {self.count}")
        if self.count > number:
            self._set_mark(self.count, self.chain)

    def _check_sound(self) -> None:
        if not self._sound:
            raise StorageError(
                f"The mark is behind the database: {self.folder / 'mark'}", "Fix the disk, then restart the server"
            )

    def _damaged(self, problem: str) -> StoreDamaged:
        return StoreDamaged(f"The store {self.folder} is damaged: {problem}", "Restore a backup")

    # the mark: two slots written in turn, so that one is always whole

    def _set_mark(self, number: int, chain: str) -> None:
        with storage(self.folder / "mark"):
            os.pwrite(self._mark, _slot(number, chain), SLOT * (number % 2))
            os.fdatasync(self._mark)

    def _read_mark(self) -> tuple[int, str]:
        found = []
        for half in range(2):
            text, _, check = os.pread(self._mark, SLOT, SLOT * half).strip().rpartition(b" ")
            if text and check == b"%08x" % zlib.crc32(text):
                number, chain = text.decode().split()
                found.append((int(number), chain))
        if not found:
            raise self._damaged("the mark cannot be read")
        return max(found)

    # values

    def _value(self, kind: type[Any], record: Tree) -> Any:
        try:
            return from_tree(kind, gather(record, "$blob", self.blobs.get))
        except (Refused, ValueError) as error:
            raise self._damaged(f"a {kind.__name__.lower()} cannot be read: {error}") from None

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


def _locked(path: Path) -> int:
    handle = lock_file(path)
    if handle is None:
        raise StoreLocked(f"Another server uses this store: {path.parent}", "Stop it, or choose another store")
    return handle


def _prepare(connection: Any, _: Any) -> None:
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
        connection.execute(f"PRAGMA {pragma}").close()


def _slot(number: int, chain: str) -> bytes:
    """One half of the mark."""
    text = f"{number} {chain}".encode()
    return (b"%s %08x" % (text, zlib.crc32(text))).ljust(SLOT - 1) + b"\n"


def _chained(chain: str, record: str) -> str:
    return hashlib.sha256(f"{chain}\n{record}".encode()).hexdigest()


def _genesis(about: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(dict(about), sort_keys=True).encode()).hexdigest()


def read_store(
    folder: Path, ask: Callable[[Store], T]
) -> tuple[dict[str, Any], int, int, Snapshot, list[dict[str, Any]], T]:
    """A store that no server uses: about, number of events, events before the newest snapshot, it, last events; and
    what `ask` finds in it."""
    database = folder / "artesian.db"
    if not database.exists():
        raise SettingError(f"No store at {folder}: no artesian.db in it", "Give the --store folder of a server")
    view = sqlite3.connect(f"file:{database}?mode=ro", uri=True)
    try:
        identity = {key: json.loads(value) for key, value in view.execute("SELECT key, value FROM about")}
    except sqlite3.Error as error:
        raise StoreDamaged(f"The store {folder} cannot be read: {error}", "Restore a backup") from None
    finally:
        view.close()
    store = Store(folder, {key: value for key, value in identity.items() if key != "format"})
    try:
        latest = store.latest()
        if latest is None:
            raise SettingError(f"No snapshot in the store {folder} yet", "Start its server once")
        done, snapshot = latest
        return store.about(), store.count, done, snapshot, store.last(5), ask(store)
    finally:
        store.close()
