"""Files and folders: written whole or not at all, locked, synced; the system's complaints in our words."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from artesian.errors import StorageError
from artesian.storage.codec import Bytes

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
