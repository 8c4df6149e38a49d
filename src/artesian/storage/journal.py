"""A journal: a text file with one record per line: a checksum, a space, a JSON object with the record's number.

A line cut short at the very end was never acknowledged and is dropped; a bad line anywhere else means the file was
altered, and is refused.
"""

from __future__ import annotations

import json
import os
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Any

from artesian.errors import JournalDamaged
from artesian.storage.codec import to_json
from artesian.storage.files import storage, sync_folder


class Journal:
    """An append-only file of numbered records, each synced to disk before `append` returns."""

    def __init__(self, path: Path, *, sync: bool = True) -> None:
        self.path, self.sync = path, sync
        records, self.length, self.torn = _read(path)
        self.count, self._clean = len(records), True
        with storage(path):
            self._file = open(path, "ab", buffering=0)  # noqa: SIM115 (held for the journal's life)
            self._cut(self.length)
            sync_folder(path.parent)

    def append(self, record: dict[str, Any]) -> int:
        """Add a record and return its number; a failed write leaves the file as it was."""
        line = _line({"n": self.count} | {key: value for key, value in record.items() if key != "n"})
        with storage(self.path):
            if not self._clean:  # what an earlier failure left behind goes first
                self._cut(self.length)
            self._clean = False
            try:
                rest = memoryview(line)
                while rest:
                    rest = rest[self._file.write(rest) :]
                if self.sync:
                    os.fsync(self._file.fileno())
            except OSError:
                with suppress(OSError):
                    self._cut(self.length)
                raise
        self.count += 1
        self.length += len(line)
        self._clean = True
        return self.count - 1

    def records(self) -> list[dict[str, Any]]:
        """All records so far."""
        return _read(self.path)[0]

    def cut(self, count: int) -> None:
        """Forget every record from number `count` on."""
        kept = self.records()[:count]
        length = sum(len(_line(record)) for record in kept)
        with storage(self.path):
            os.ftruncate(self._file.fileno(), length)
            self.count, self.length = len(kept), length
            os.fsync(self._file.fileno())

    def flush(self) -> None:
        """Make everything appended durable, where single records are not synced."""
        with storage(self.path):
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Sync and close the file."""
        self.flush()
        self._file.close()

    def _cut(self, length: int) -> None:
        os.ftruncate(self._file.fileno(), length)
        os.fsync(self._file.fileno())
        self._clean = True


def read_journal(path: Path) -> list[dict[str, Any]]:
    """The records of a journal that exists, without opening it for writing."""
    with storage(path):
        path.stat()
    return _read(path)[0]


def _line(record: dict[str, Any]) -> bytes:
    text = to_json(record).encode()
    return b"%08x %s\n" % (zlib.crc32(text), text)


def _parse(line: bytes, number: int) -> dict[str, Any] | None:
    """The record of a line, or None if the line is damaged."""
    text = line[9:]
    if line[:9] != b"%08x " % zlib.crc32(text):
        return None
    try:
        record = json.loads(text)
    except ValueError:
        return None
    return record if isinstance(record, dict) and record.get("n") == number else None


def _read(path: Path) -> tuple[list[dict[str, Any]], int, int]:
    """The valid records, the bytes they take, and the bytes of a torn tail."""
    with storage(path):
        data = path.read_bytes() if path.exists() else b""
    *lines, tail = data.split(b"\n")
    records: list[dict[str, Any]] = []
    for line in lines:
        record = _parse(line, len(records))
        if record is None:
            break
        records.append(record)
    length = sum(len(line) + 1 for line in lines[: len(records)])
    altered = _parse(tail[:-1], len(records)) is not None  # whole, but for its newline
    if len(records) < len(lines) or altered:
        raise JournalDamaged(f"Record {len(records)} of {path} was altered", "Restore the file from a backup")
    return records, length, len(tail)
