"""Files and folders: written whole or not at all, locked, synced; errors of the system as a StorageError."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from artesian.errors import StorageError
from artesian.storage.codec import Bytes

_FULL = "The disk is full", "Free some space; what was written before is intact"
_DENIED = "Permission denied", "Check who may read and write it, and its folder"
_FILE = "A file is in the way of a folder", "Choose another path"
COMPLAINTS = {  # what the system's errors mean, and what to do about them
    errno.ENOENT: ("No such file or directory", "Check the path, or restore it"),
    errno.ENOTDIR: _FILE,
    errno.EEXIST: _FILE,
    errno.EISDIR: ("A folder is in the way of a file", "Choose another path"),
    errno.EACCES: _DENIED,
    errno.EPERM: _DENIED,
    errno.EROFS: ("The disk is read-only", "Choose another path"),
    errno.ENOSPC: _FULL,
    errno.EDQUOT: _FULL,
    errno.EFBIG: _FULL,
}


@contextmanager
def storage(path: Path) -> Iterator[None]:
    """Turn the operating system's error about `path` into a StorageError."""
    try:
        yield
    except OSError as error:
        other = error.strerror or str(error), "Check the disk, and the permissions of the folder"
        problem, remedy = COMPLAINTS.get(error.errno or 0, other)
        raise StorageError(f"{problem}: {path}", remedy) from error


def write_file(path: Path, data: Bytes | Sequence[Bytes], *, private: bool = False, sync: bool = True) -> None:
    """Write a file whole or not at all, in one piece or several: temporary name, sync, rename, sync of the folder.

    Without `sync` a file is whole after the process was killed, but perhaps not after the machine lost power.
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


def make_folder(path: Path) -> None:
    """Make a folder for this user alone, and its parents, so that they survive a loss of power; one may be there."""
    if path.is_dir():
        return
    make_folder(path.parent)
    path.mkdir(mode=0o700, exist_ok=True)
    sync_folder(path.parent)


def make_private(path: Path) -> bool:
    """Let only its owner read a file or folder, where the file system can say so; whether that changed anything."""
    mode = path.stat().st_mode
    if mode & 0o077:
        with suppress(PermissionError):  # another user's
            path.chmod(mode & 0o700)
    return path.stat().st_mode != mode


def lock_folder(path: Path) -> int | None:
    """Hold a lock on a folder itself, which no removal of a file in it lifts; None if another process holds it."""
    return _locked(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC), wait=False)


def lock_file(path: Path, *, wait: bool = False) -> int | None:
    """Hold a lock for as long as the returned handle is open; None if another process holds it."""
    return _locked(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), wait=wait)


def _locked(handle: int, *, wait: bool) -> int | None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        os.close(handle)
        return None
    return handle


@contextmanager
def shared(path: Path) -> Iterator[None]:
    """Hold a folder beside others who hold it too, so that `owned` finds it held; nothing is written.

    Where the folder is not there, or its file system has no locks, it is not held.
    """
    with _flocked(path, fcntl.LOCK_SH):
        yield


@contextmanager
def owned(path: Path) -> Iterator[bool]:
    """Hold a folder alone, and say whether that is so: not while others hold it. Without locks nobody can tell."""
    with _flocked(path, fcntl.LOCK_EX | fcntl.LOCK_NB) as error:
        yield not isinstance(error, BlockingIOError)


@contextmanager
def _flocked(path: Path, operation: int) -> Iterator[OSError | None]:
    """Hold a lock on a folder, or say why not; who dies lets go of it."""
    with ExitStack() as held:
        failed: OSError | None = None
        try:
            handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            held.callback(os.close, handle)
            fcntl.flock(handle, operation)
            held.callback(fcntl.flock, handle, fcntl.LOCK_UN)  # also of a process that was forked meanwhile
        except OSError as error:
            failed = error
        yield failed


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
