"""What a server keeps on disk: events synced before they are acknowledged, snapshots, arrays by digest.

A store is a folder: `artesian.db` (SQLite: which federation, events, snapshots, which code wrote them), `blobs/`
(arrays under their digest), `mark` (the number of the last event, outside the database) and `lock`. Every event carries
a digest chained to the one before it, so nothing can be altered, dropped or reordered unseen. SQLite silently drops a
damaged tail of its log; the mark still knows about it, and a store that is behind its mark is refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from artesian.core import Event, Snapshot, Tree
from artesian.errors import MissingExtra, StorageError
from artesian.storage.blobs import named_in
from artesian.storage.codec import scatter, to_json, to_tree
from artesian.storage.failpoints import reach
from artesian.storage.files import owned
from artesian.storage.history import BEGAN, STORE_FORMAT, ActRow, chained, forgotten_in
from artesian.storage.older import translated
from artesian.storage.opened import OpenedStore
from artesian.storage.reading import event_of, snapshot_of
from artesian.storage.retention import ALL, NOTHING, Recorded, Retention, kept_snapshots
from artesian.storage.tables import ABOUT, ENROLMENTS, EVENTS, SECRETS, SNAPSHOTS, STRETCHES

try:
    import sqlalchemy as sql
except ModuleNotFoundError:
    raise MissingExtra("sqlalchemy", "server") from None

CHECKED_AT_START = 1 << 30  # bytes of older arrays, at most; `artesian verify` checks all


class Store(OpenedStore):
    """Events, snapshots and secrets of one federation, as its server writes and reads them."""

    def __init__(self, folder: Path, identity: Mapping[str, Any]) -> None:
        """Open or create the store of the federation that `identity` describes."""
        self._past: dict[int, Recorded] = {}  # events behind the newest snapshot, as far as they were asked for
        self._bases: dict[int, set[str]] = {}  # the arrays that each older snapshot needs, without open tasks
        super().__init__(folder, identity)

    def append(self, event: Event, at: float | None = None) -> int:
        """Make an event that came at this time durable and return its number; then it may be acknowledged."""
        reach("before-blobs")
        told = scatter(to_tree(event), lambda _, array: {"$blob": self.blobs.put(array)})
        record = to_json(told if at is None else {**told, "at": round(at, 3)})
        reach("between-blobs-and-event")
        number, chain = self.count + 1, chained(self.chain, record)
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
            self._acts[number] = ActRow(event.kind, event.client, event.act.to)
        reach("between-mark-and-change")
        return number

    def events(self, after: int = 0) -> Iterator[Event]:
        """The events after a number, each with its arrays."""
        query = sql.select(EVENTS.c.record).where(EVENTS.c.number > after).order_by(EVENTS.c.number)
        with self._database():
            records = self._db.execute(query).scalars().all()
            self._db.rollback()
        for record in records:
            yield self._value("event", partial(event_of, json.loads(record), self.blobs))

    def last(self, count: int) -> list[dict[str, Any]]:
        """The newest events as JSON values, oldest first, without their arrays."""
        query = sql.select(EVENTS.c.record).order_by(EVENTS.c.number.desc()).limit(count)
        with self._database():
            records = self._db.execute(query).scalars().all()
            self._db.rollback()
        return [json.loads(record) for record in reversed(records)]

    def save(
        self, snapshot: Snapshot, *, keep_uploads: bool = False, retain: Retention = NOTHING, at_once: bool = False
    ) -> None:
        """Write a snapshot with the open tasks, then drop what is not needed any more.

        Older snapshots, and the uploads after them, stay within the bounds of `retain`; all with `keep_uploads`. Those
        with which other code took over are not thinned out: everything since the oldest one can be replayed. While
        a backup is under way, arrays are dropped by a later snapshot, unless it has to be `at_once`.
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
            self._db.execute(SNAPSHOTS.insert().values(**row, digest=chained(self.chain, record)))
            self._db.execute(SNAPSHOTS.delete().where(SNAPSHOTS.c.events.not_in([*kept, self.count])))
            self._db.commit()
        reach("between-snapshot-and-cleaning")
        self._bases = {at: found for at, found in self._bases.items() if at in kept} | {self.count: names}
        if retain != ALL:
            with owned(self.blobs.folder) as alone:
                if alone or at_once:
                    self.blobs.keep(names | tasks | self._needed(kept))

    def drop_snapshots_of(self, client: str) -> set[str]:
        """Drop what holds uploads of a forgotten member among the snapshots before that; the names of their arrays."""
        before = self.forgotten()[client]
        tainted = [at for at in self.snapshots() if at < before and self._answered(at, client)]
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
            (theirs if gone else used).update(named_in(told))
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
        record = {**self._snapshot_record(at), "open_tasks": {}}
        return self._value("snapshot", partial(snapshot_of, record, self.blobs))

    def numbered(self, after: int, upto: int) -> list[tuple[int, Event]]:
        """The events of these numbers that can still be read: not the uploads of a member before it was forgotten."""
        forgotten = self.forgotten()
        records = [(number, json.loads(record)) for number, record in self._records(after, upto)]
        return [
            (number, self._value("event", partial(event_of, record, self.blobs)))
            for number, record in records
            if record["kind"] != "upload" or number >= forgotten.get(record["client"], 0)
        ]

    def forgotten(self) -> dict[str, int]:
        """Every member that was forgotten, and the number of that event."""
        return forgotten_in(self._acts)

    def rollbacks(self) -> set[int]:
        """The events that rollbacks went back to."""
        return {act.to for act in self._acts.values() if act.kind == "rollback"}

    def without(self, client: str, unknown: bool = True) -> int | None:
        """The newest snapshot before any upload of this client; None: there is none any more.

        If it should be `unknown`, one from before it joined comes first, where there is one.
        """
        answered = {at: self._answered(at, client) for at in reversed(self.snapshots())}
        before = [at for at, number in answered.items() if not number]
        earlier = [at for at in before if answered[at] is None] if unknown else []
        return next(iter(earlier or before), None)

    def _answered(self, at: int, client: str) -> int | None:
        """The number of the last upload of a client when this snapshot was taken; None: it was no member."""
        member = self._snapshot_record(at)["state"]["members"].get(client)
        return None if member is None else int(member["answered"])

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
            return kept_snapshots(dict.fromkeys(taken, 0), (), self.count, retain, self._taken_over())
        sizes = {at: sum(map(self.blobs.size, self._names_of(at))) for at in taken}
        return kept_snapshots(sizes, self._recorded(taken[0]), self.count, retain, self._taken_over())

    def _taken_over(self) -> set[int]:
        """After which events other code wrote on."""
        with self._database():
            found = self._db.execute(sql.select(STRETCHES.c.events)).scalars().all()
            self._db.rollback()
        return set(found)

    def _recorded(self, after: int) -> list[Recorded]:
        """What the events after this one keep on disk."""
        known = max(self._past, default=after)
        if not self._past or min(self._past) > after + 1:
            self._past, known = {}, after
        for number, record in self._records(known, self.count):
            told = json.loads(record)
            names = tuple(named_in(told))
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
            self._bases[at] = set(named_in({**self._snapshot_record(at), "open_tasks": {}}))
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
        rest = {**told, "open_tasks": {}}
        return row["events"], self._value("snapshot", partial(snapshot_of, rest, self.blobs))

    def secrets(self) -> dict[str, str]:
        """The hash of every client's secret."""
        with self._database():
            rows = self._db.execute(sql.select(SECRETS)).all()
            self._db.rollback()
        if any(row.digest != chained(str(row.client), str(row.hash)) for row in rows):
            raise self._damaged("a client's secret was altered")
        return {row.client: row.hash for row in rows}

    def add_secret(self, client: str, digest: str, token: str = "") -> None:
        """Remember a client's secret, by its hash, and by its name the token that the client joined with."""
        with self._database():
            row = {"client": client, "hash": digest, "digest": chained(client, digest)}
            self._db.execute(SECRETS.insert().values(**row))
            if token:
                self._db.execute(ENROLMENTS.insert().values(client=client, token=token, digest=chained(client, token)))
            self._db.commit()

    def replace_secret(self, client: str, digest: str) -> None:
        """Keep another hash for a client: of the same secret, or of a new one."""
        row = {"hash": digest, "digest": chained(client, digest)}
        with self._database():
            self._db.execute(SECRETS.update().where(SECRETS.c.client == client).values(**row))
            self._db.commit()

    def enrolments(self) -> dict[str, str]:
        """The name of the token that each client joined with; nothing of those who joined at an older version."""
        with self._database():
            rows = self._db.execute(sql.select(ENROLMENTS)).all()
            self._db.rollback()
        if any(row.digest != chained(str(row.client), str(row.token)) for row in rows):
            raise self._damaged("the token of a client was altered")
        return {row.client: row.token for row in rows}

    def drop_secret(self, client: str) -> None:
        """Forget a client's secret, and the token it joined with."""
        with self._database():
            self._db.execute(SECRETS.delete().where(SECRETS.c.client == client))
            self._db.execute(ENROLMENTS.delete().where(ENROLMENTS.c.client == client))
            self._db.commit()

    def find_upload(self, client: str, number: int) -> tuple[int, str, float | None] | None:
        """The number, the chain and the time of the event that an upload became."""
        keys = ("measured.upload.client", "measured.upload.number", "at")
        *said, at = (sql.func.json_extract(EVENTS.c.record, f"$.{key}") for key in keys)
        query = sql.select(EVENTS.c.number, EVENTS.c.chain, at).where(said[0] == client, said[1] == number)
        with self._database():
            row = self._db.execute(query.order_by(EVENTS.c.number.desc()).limit(1)).first()
            self._db.rollback()
        return None if row is None else (row[0], row[1], row[2])

    def writer(self, number: int | None = None) -> dict[str, str]:
        """The versions of the code that wrote an event, or that wrote last; none are known of what format 1 wrote."""
        query = sql.select(STRETCHES.c.versions).order_by(STRETCHES.c.events.desc()).limit(1)
        query = query if number is None else query.where(STRETCHES.c.events < number)
        with self._database():
            found = self._db.execute(query).scalar()
            self._db.rollback()
        return json.loads(found) if found else {}

    def begin_stretch(self, versions: Mapping[str, str]) -> None:
        """From the next event on, code of these versions writes; earlier versions cannot open the store any more."""
        told = json.dumps(dict(versions))
        row = {"events": self.count, "versions": told, "chain": self.chain, "digest": chained(self.chain, told)}
        with self._database():
            self._db.execute(STRETCHES.delete().where(STRETCHES.c.events == self.count))
            self._db.execute(STRETCHES.insert().values(**row))
            self._raise_format()
            self._db.commit()

    def _raise_format(self) -> None:
        before = json.loads(self._db.execute(sql.select(ABOUT.c.value).where(ABOUT.c.key == "format")).scalar_one())
        if before < STORE_FORMAT:
            self._db.execute(ABOUT.update().where(ABOUT.c.key == "format").values(value=json.dumps(STORE_FORMAT)))
            self._db.execute(ABOUT.insert().values(key=BEGAN, value=json.dumps(before)))

    def old_damage(self) -> list[str]:
        """What is wrong with arrays that belong here and that no server needs to go on."""
        with self._database():
            snapshots = self._db.execute(sql.select(sql.func.count()).select_from(SNAPSHOTS)).scalar_one()
            self._db.rollback()
        if snapshots < 2:
            return []
        history, room, lines = self._history(), CHECKED_AT_START, list[str]()
        for name in sorted(history.expected - history.needed):
            path = self.blobs.path(name)
            room -= path.stat().st_size if path.exists() else 0
            if room < 0:
                return [*lines, "not all older arrays were checked: artesian verify checks them"]
            try:
                self.blobs.get(name)
            except StorageError as error:
                lines.append(f"{error.problem} (an older array: the federation goes on without it)")
        return lines
