"""Durable pieces: a file written whole or not at all, arrays by digest, and a journal of records.

A journal is a text file with one record a line: a checksum, a space, a JSON object that carries its own
number. A line cut short at the very end was never acknowledged and is dropped; a bad line anywhere else
means the file was altered, and is refused.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from artesian.codec import Bytes, decode, encode_parts, fingerprint, to_json
from artesian.errors import JournalDamaged, Refused, StorageError

_FULL = "the disk is full", "free some space; what was written before is intact"
_MISSING = "what is read is there, what is new has a place we can write in", "restore it, or name another place"
_IN_THE_WAY = "what holds a file or a folder is a folder", "name another place: here, or above it, is a file"
COMPLAINTS = {
    0: ("a file must be writable and readable", "check the folder's permissions"),
    errno.ENOENT: _MISSING,
    errno.ENOTDIR: _IN_THE_WAY,
    errno.EEXIST: _IN_THE_WAY,
    errno.ENOSPC: _FULL,
    errno.EDQUOT: _FULL,
    errno.EFBIG: _FULL,
}


@contextmanager
def storage(path: Path) -> Iterator[None]:
    """Turn an operating system's complaint about `path` into ours."""
    try:
        yield
    except OSError as error:
        rule, remedy = COMPLAINTS.get(error.errno or 0, COMPLAINTS[0])
        raise StorageError(rule, f"{error.strerror or error} at {path}", remedy) from error


def write_file(path: Path, data: Bytes | Sequence[Bytes], *, private: bool = False, sync: bool = True) -> None:
    """Write a file whole or not at all, in one piece or several: temporary name, sync, rename, sync of the folder.

    Without `sync` that holds for a killed process, not for a machine that lost its power.
    """
    mode = 0o600 if private else 0o666
    temporary = path.with_name(path.name + ".tmp")
    with storage(path):
        try:
            with open(temporary, "wb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
                for piece in [data] if isinstance(data, Bytes) else data:
                    file.write(piece)
                file.flush()
                if sync:
                    os.fsync(file.fileno())
            os.replace(temporary, path)
        except OSError:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise
        if sync:
            sync_folder(path.parent)


def lock_file(path: Path, *, wait: bool = False) -> int | None:
    """Hold a lock for as long as the returned handle is open; None if another process holds it."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        os.close(handle)
        return None
    return handle


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class Vault:
    """Arrays in a folder, each under the digest of its bytes: what did not change is not written again."""

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

    def adopt(self, name: str, other: Vault) -> None:
        """Have an array of another vault in the same file system, durably where this one is."""
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
        """The array of this name, if its bytes are still the same."""
        path = self.path(name)
        with storage(path):
            data = path.read_bytes()
        try:
            array: np.ndarray = decode("array", data, dict[str, Any])["array"]
            sound = fingerprint(array) == name
        except (Refused, KeyError, AttributeError):
            sound = False
        if not sound:
            raise StorageError("a stored array matches its name", f"other bytes in {path}", "restore the file")
        return array

    def keep(self, names: set[str]) -> None:
        """Drop every array not among `names`."""
        for path in self.folder.glob("*.safetensors"):
            if path.stem not in names:
                path.unlink(missing_ok=True)

    def path(self, name: str) -> Path:
        """Where the array of this name lies."""
        if not isinstance(name, str) or len(name) != 64 or set(name) - set("0123456789abcdef"):
            raise StorageError("arrays are named by hex digests", repr(name)[:80], "restore the file that names it")
        return self.folder / f"{name}.safetensors"


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
        """Sync, and let go of the file."""
        self.flush()
        self._file.close()

    def _cut(self, length: int) -> None:
        os.ftruncate(self._file.fileno(), length)
        os.fsync(self._file.fileno())
        self._clean = True


def _line(record: dict[str, Any]) -> bytes:
    text = to_json(record).encode()
    return b"%08x %s\n" % (zlib.crc32(text), text)


def _parse(line: bytes, number: int) -> dict[str, Any] | None:
    """The record of a line, or None where the line is not sound."""
    text = line[9:]
    if line[:9] != b"%08x " % zlib.crc32(text):
        return None
    try:
        record = json.loads(text)
    except ValueError:
        return None
    return record if isinstance(record, dict) and record.get("n") == number else None


def _read(path: Path) -> tuple[list[dict[str, Any]], int, int]:
    """The sound records, the bytes they take, and the bytes of a torn tail."""
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
        raise JournalDamaged(
            "every line of a journal is a sound record", f"a bad record {len(records)} in {path}", "restore the file"
        )
    return records, length, len(tail)
