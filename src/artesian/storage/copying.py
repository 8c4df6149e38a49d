"""A store copied at one moment, while a server goes on with it or not: a backup, and what a backup gives back.

The database is copied in one read transaction, so that the copy is an exact beginning of the history. Then come the
arrays it names. Meanwhile the folder of arrays is held, and snapshots drop nothing from it. Where that cannot be, and
where a member is forgotten, some may vanish: then the database is copied again, and only what is new of the arrays. A
copy has its name only when it is whole and on disk.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from artesian.errors import SettingError, StorageError
from artesian.storage.blobs import Blobs
from artesian.storage.files import make_folder, shared, storage, sync_folder, write_file
from artesian.storage.history import StoreHistory, behind, broken, slot
from artesian.storage.reading import connection, damaged, mark_of, rows_of, unchecked_history

ATTEMPTS = 20  # copies of the database, where arrays vanish again and again
Progress = Callable[[int, int], None]  # how many arrays are copied, and how many there are


@dataclass(frozen=True)
class Copied:
    """What a copy of a store holds."""

    history: StoreHistory
    arrays: int
    attempts: int  # copies of the database that it took
    left_out: tuple[str, ...] = ()  # what is wrong with arrays that no server needs: they are not in the copy


def copy_store(source: Path, target: Path, progress: Progress | None = None) -> Copied:
    """Copy a store as it is at one moment into a new folder, or an empty one."""
    mark_of(source)  # a store, or refused before anything is made
    if target.resolve().is_relative_to(source.resolve()):
        raise SettingError(f"{target} is inside {source}", "Choose a folder outside of it")
    partial = _claimed(target)
    try:
        with shared(source / "blobs"):  # a server drops nothing now
            copied = _copied(source, partial, progress or unseen)
        _finish(source, partial, copied.history)
        with storage(target):
            os.replace(partial, target)
            sync_folder(target.parent)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return copied


def _claimed(target: Path) -> Path:
    """The folder in which the copy grows, beside its target."""
    with storage(target):
        if target.exists() and (not target.is_dir() or any(target.iterdir())):
            raise SettingError(f"{target} is there already, and not empty", "Choose a new folder")
        partial = target.with_name(f"{target.name}.partial")
        if partial.exists():
            raise SettingError(f"An unfinished copy is in the way: {partial}", "Remove it, then start again")
        make_folder(partial)
    return partial


def _copied(source: Path, partial: Path, progress: Progress) -> Copied:
    here, there = Blobs(source / "blobs", create=False), Blobs(partial / "blobs", sync=False, private=True)
    before: StoreHistory | None = None
    for attempt in range(1, ATTEMPTS + 1):
        history = _copy_database(source, partial / "artesian.db")
        vanished, left_out = _copy_arrays(history, here, there, progress)
        if not vanished and not (left_out and attempt < ATTEMPTS and _went_on(source, history)):
            there.keep(history.expected)
            return Copied(history, len(there.names()), attempt, tuple(left_out))
        if vanished and before is not None and before.snapshots == history.snapshots:
            raise StorageError(f"The stored array is missing: {here.path(vanished)}", "Restore the file from a backup")
        before = history
    raise StorageError(
        f"Snapshots of {source} were taken faster than its arrays could be copied",
        "Copy to a faster disk, or set snapshot_every higher",
    )


def _went_on(source: Path, history: StoreHistory) -> bool:
    """Whether a snapshot was taken since, which may have dropped some of the older arrays."""
    return unchecked_history(source).snapshots != history.snapshots


def _copy_database(source: Path, path: Path) -> StoreHistory:
    mark = mark_of(source)  # first: the database is never behind it
    with storage(path):
        path.unlink(missing_ok=True)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    copy = sqlite3.connect(path, isolation_level=None)
    try:
        with connection(source) as view, _written_to(path):
            view.backup(copy)
        copy.execute("PRAGMA journal_mode=DELETE")  # one file, without a log
        history = rows_of(copy, source)
    except sqlite3.Error as error:
        raise StorageError(f"The database cannot be copied to {path}: {error}", "Check the disk") from error
    finally:
        copy.close()
    if problem := next(broken(history), "") or behind(history, mark):
        raise damaged(source, problem)
    return history


@contextmanager
def _written_to(path: Path) -> Iterator[None]:
    """A copy may fail because its source is damaged, or because its target is full: only the first is the source's."""
    try:
        yield
    except sqlite3.Error as error:
        if error.sqlite_errorname in ("SQLITE_FULL", "SQLITE_IOERR_WRITE", "SQLITE_IOERR_FSYNC"):
            raise StorageError(
                f"The copy cannot be written to {path.parent}: {error}", "Free some disk space"
            ) from None
        raise


def _copy_arrays(history: StoreHistory, here: Blobs, there: Blobs, progress: Progress) -> tuple[str, list[str]]:
    """Copy what is not there yet; the name of a needed array that is gone, and what is wrong with others."""
    left_out, present = [], set(there.names())
    wanted = sorted(history.expected, key=lambda name: (name not in history.needed, name))
    for number, name in enumerate(wanted, 1):
        if name not in present:
            try:
                there.put(here.get(name))
            except StorageError as error:
                if name in history.needed and here.path(name).exists():
                    raise
                if name in history.needed:
                    return name, []
                left_out.append(error.problem)
        progress(number, len(wanted))
    return "", left_out


def _finish(source: Path, partial: Path, history: StoreHistory) -> None:
    """Add the mark, the tokens and the signing keys, and sync everything."""
    write_file(partial / "mark", 2 * slot(history.count, history.chain), private=True)  # whichever is overwritten first
    for path in (source / "tokens.json", source / "keys.json"):
        with storage(path):
            if path.exists():
                write_file(partial / path.name, path.read_bytes(), private=True)
    with storage(partial):
        for path in [*partial.rglob("*"), partial]:
            handle = os.open(path, os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)


def unseen(done: int, total: int) -> None:
    """Progress that nobody watches."""
