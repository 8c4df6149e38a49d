"""A store's history as values: events chained by digests, snapshots, who wrote what, and the rules all this keeps."""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Self

from artesian.core import Tree
from artesian.errors import StoreMismatch, UnknownFormat
from artesian.storage.blobs import named_in

STORE_FORMAT = 2  # 1 had no times, no outcomes of events and no stretches
BEGAN = "began_with"  # the format a store was begun in, where that was an earlier one: its chain builds on it
SLOT = 128  # bytes of one half of the mark


class EventRow(NamedTuple):
    """One event as it is stored."""

    number: int
    record: str
    chain: str


class SnapshotRow(NamedTuple):
    """One snapshot as it is stored."""

    events: int  # how many it stands for
    record: str
    chain: str  # of the last event it stands for
    digest: str  # of the record and the chain together


class StretchRow(NamedTuple):
    """From which event on which code wrote the store."""

    events: int  # how many came before
    versions: str  # of the code, as JSON
    chain: str
    digest: str


class SecretRow(NamedTuple):
    """The hash of one client's secret."""

    client: str
    hash: str
    digest: str


class ActRow(NamedTuple):
    """An operator's act, as far as it says what can still be read."""

    kind: str
    client: str
    to: int  # of a rollback: the event gone back to
    by: str = ""  # the name of the token
    why: str = ""
    at: float | None = None  # of the wall clock

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Self:
        """The act of an event, as its record tells it."""
        told = record["act"]
        return cls(record["kind"], record["client"], told["to"], told["by"], told["why"], record.get("at"))


class StoreMark(NamedTuple):
    """The number and the chain of the last event, as the file beside the database knows them."""

    number: int
    chain: str


@dataclass(frozen=True)
class StoreHistory:
    """All rows of a store at one moment, in order."""

    about: Mapping[str, Any]
    events: Sequence[EventRow]
    snapshots: Sequence[SnapshotRow]
    stretches: Sequence[StretchRow] = ()
    secrets: Sequence[SecretRow] = ()

    @property
    def count(self) -> int:
        """How many events there are."""
        return len(self.events)

    @property
    def chain(self) -> str:
        """The digest of them all."""
        return self.events[-1].chain if self.events else genesis(self.about)

    @cached_property
    def needed(self) -> frozenset[str]:
        """The arrays without which no server can go on: of the newest snapshot and the events after it."""
        newest = self.snapshots[-1:]
        rows = self.events[newest[0].events if newest else 0 :]
        return _arrays(json.loads(record) for record in [row.record for row in newest] + [row.record for row in rows])

    @cached_property
    def expected(self) -> frozenset[str]:
        """The arrays that belong here: also those of older snapshots that are kept, and of the events after them.

        Not those of the tasks that were open at an older snapshot, nor what a forgotten member uploaded.
        """
        older = self.snapshots[:-1]
        rows = self.events[older[0].events : self.snapshots[-1].events] if older else ()
        told = [{**json.loads(row.record), "open_tasks": {}} for row in older]
        return self.needed | _arrays((*told, *(json.loads(row.record) for row in rows if not self.is_gone(row))))

    @cached_property
    def acts(self) -> Mapping[int, ActRow]:
        """Every act of an operator, by the number of its event."""
        told = {row.number: json.loads(row.record) for row in self.events if '"act":{' in row.record}
        acted = {number: record for number, record in told.items() if record.get("act")}
        return {number: ActRow.of(record) for number, record in acted.items()}

    @cached_property
    def forgotten(self) -> Mapping[str, int]:
        """Every member that was forgotten, and the number of that event."""
        return forgotten_in(self.acts)

    def is_gone(self, row: EventRow) -> bool:
        """Whether an event is an upload of a member who was forgotten after it: its arrays were dropped."""
        if not self.forgotten or row.number >= max(self.forgotten.values()):
            return False
        told = json.loads(row.record)
        return told["kind"] == "upload" and row.number < self.forgotten.get(told["client"], 0)

    def writer(self, number: int) -> Mapping[str, str]:
        """The versions of the code that wrote this event; none are known of what format 1 wrote."""
        known = [stretch.versions for stretch in self.stretches if stretch.events < number]
        return json.loads(known[-1]) if known else {}

    def times(self) -> tuple[float | None, float | None]:
        """When the first and the last event came that carry a time."""
        found = (json.loads(row.record).get("at") for row in self.events)
        first = next((at for at in found if at is not None), None)
        return first, json.loads(self.events[-1].record).get("at") if self.events else None


def forgotten_in(acts: Mapping[int, ActRow]) -> dict[str, int]:
    """Every member that was forgotten, and the number of the last such event."""
    return {act.client: number for number, act in sorted(acts.items()) if act.kind == "forget"}


def _arrays(records: Iterable[Tree]) -> frozenset[str]:
    return frozenset(name for record in records for name in named_in(record))


def chained(chain: str, record: str) -> str:
    """The digest of everything up to this record."""
    return hashlib.sha256(f"{chain}\n{record}".encode()).hexdigest()


def genesis(about: Mapping[str, Any]) -> str:
    """What the first event builds on: the federation's identity, and the format it was begun in."""
    told = {key: value for key, value in about.items() if key != BEGAN}
    told["format"] = about.get(BEGAN, about.get("format"))
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()


def check_identity(folder: Path, about: Mapping[str, Any], identity: Mapping[str, Any]) -> None:
    """Refuse a store whose federation is not the one that `identity` describes."""
    for key, value in identity.items():
        if about.get(key) != json.loads(json.dumps(value)):
            raise StoreMismatch(
                f"{folder} is the store of another federation: its {key} is {str(about.get(key))[:80]}",
                "Name the federation it belongs to, or choose another store",
            )


def check_store_format(number: int) -> None:
    """Refuse what a newer version wrote."""
    if not 1 <= number <= STORE_FORMAT:
        raise UnknownFormat(
            f"A store of format {number}, but this version of Artesian reads formats 1 to {STORE_FORMAT}",
            "Use the version that wrote it",
        )


def broken(history: StoreHistory) -> Iterator[str]:
    """What does not follow: an event from the one before it, a snapshot or a stretch from the events before it."""
    chains = [genesis(history.about)]
    for row in history.events:
        chains.append(chained(chains[-1], row.record))
        if row.number != len(chains) - 1 or row.chain != chains[-1]:
            yield f"event {len(chains) - 1} does not follow from the one before"
            return
    for snapshot in history.snapshots:
        if not 0 <= snapshot.events < len(chains):
            yield "the events before a snapshot are missing"
        elif not _follows(snapshot, snapshot.record, chains):
            yield f"the snapshot after event {snapshot.events} was altered"
    for stretch in history.stretches:
        if not 0 <= stretch.events < len(chains) or not _follows(stretch, stretch.versions, chains):
            yield f"what is known of the code that wrote on from event {stretch.events} was altered"
    if any(row.digest != chained(str(row.client), str(row.hash)) for row in history.secrets):
        yield "a client's secret was altered"


def _follows(row: SnapshotRow | StretchRow, record: str, chains: Sequence[str]) -> bool:
    return (row.chain, row.digest) == (chains[row.events], chained(chains[row.events], record))


def behind(history: StoreHistory, mark: StoreMark) -> str:
    """What the mark knows and the history does not; nothing if all is there."""
    if mark.number > history.count:
        return f"the mark counts {mark.number} events, the database holds {history.count}"
    chain = history.events[mark.number - 1].chain if mark.number else genesis(history.about)
    return "" if chain == mark.chain else f"event {mark.number} is not the one the mark knows"


def slot(number: int, chain: str) -> bytes:
    """One half of the mark."""
    text = f"{number} {chain}".encode()
    return (b"%s %08x" % (text, zlib.crc32(text))).ljust(SLOT - 1) + b"\n"


def read_mark(data: bytes) -> StoreMark | None:
    """The mark in the bytes of its file: the newer of its halves that is whole; None if neither is."""
    found = []
    for half in (data[:SLOT], data[SLOT : 2 * SLOT]):
        text, _, check = half.strip().rpartition(b" ")
        if text and check == b"%08x" % zlib.crc32(text):
            number, chain = text.decode().split()
            found.append(StoreMark(int(number), chain))
    return max(found, default=None)
