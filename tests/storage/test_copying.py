"""Copies of stores: an exact beginning of the history, whole or not there at all, nothing overwritten."""

import errno
import fcntl
import os
import shutil
import signal
import sqlite3
import stat
from contextlib import contextmanager
from pathlib import Path

import pytest
from promises.federation import IDENTITY, resumed, served

from artesian.errors import SettingError, StorageError, StoreDamaged
from artesian.storage import copying
from artesian.storage.blobs import Blobs
from artesian.storage.copying import Copied, copy_store
from artesian.storage.files import owned, shared
from artesian.storage.history import SLOT, read_mark
from artesian.storage.reading import _readable, read_history
from artesian.storage.store import Store


@pytest.fixture
def live(tmp_path):
    store = Store(tmp_path / "live", IDENTITY)
    toy = resumed(served(store))
    for _ in range(4):
        toy.step()
    (store.folder / "tokens.json").write_text("{}")
    yield store, toy
    store.close()


def state_of(folder: Path) -> str:
    store = Store(folder, IDENTITY)
    try:
        return served(store).coordinator.digest()
    finally:
        store.close()


def test_a_copy_of_an_open_store_is_the_store_at_that_moment(tmp_path, live) -> None:
    store, toy = live
    before, seen = toy.coordinator.digest(), []
    copied = copy_store(store.folder, tmp_path / "to" / "copy", lambda *told: seen.append(told))
    toy.step()
    assert (copied.history.count, copied.attempts, copied.left_out) == (8, 1, ())
    assert seen == [(i + 1, copied.arrays) for i in range(copied.arrays)]
    assert (tmp_path / "to" / "copy" / "tokens.json").read_text() == "{}"
    assert sorted(path.name for path in (tmp_path / "to").iterdir()) == ["copy"]
    assert copy_store(tmp_path / "to" / "copy", tmp_path / "back").history.count == 8
    assert state_of(tmp_path / "to" / "copy") == state_of(tmp_path / "back") == before


def test_a_copy_is_for_its_owner_alone(tmp_path, live) -> None:
    copy_store(live[0].folder, tmp_path / "copy")
    for path in [tmp_path / "copy", *(tmp_path / "copy").rglob("*")]:
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


def test_nothing_is_overwritten(tmp_path, live) -> None:
    folder = live[0].folder
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").write_text("mine")
    (tmp_path / "file").write_text("mine")
    (tmp_path / "half.partial").mkdir()
    for name in ("full", "file"):
        with pytest.raises(SettingError, match="is there already, and not empty"):
            copy_store(folder, tmp_path / name)
    with pytest.raises(SettingError, match="unfinished copy is in the way"):
        copy_store(folder, tmp_path / "half")
    with pytest.raises(SettingError, match="No store at"):
        copy_store(tmp_path / "full", tmp_path / "new")
    assert not (tmp_path / "new").exists()
    (tmp_path / "empty").mkdir()
    assert copy_store(folder, tmp_path / "empty").history.count == 8


def copy_beside(live, target: Path, **options) -> Copied:
    """A copy of a store that goes on by an upload and a snapshot, as a server does, once some arrays are copied."""
    store, toy = live
    real, turns = Blobs.get, iter(range(100))

    def get(self, name):
        if self.folder == store.folder / "blobs" and not self.sync_seen and next(turns) == 3:
            self.sync_seen = True
            toy.step()
            store.save(toy.coordinator.snapshot(tasks=False), **options)
        return real(self, name)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Blobs, "sync_seen", False, raising=False)
        patch.setattr(Blobs, "get", get)
        return copy_store(store.folder, target)


def test_a_snapshot_beside_a_copy_drops_nothing_and_a_later_one_drops_it_all(tmp_path, live) -> None:
    store, toy = live
    before, names = toy.coordinator.digest(), set(store.blobs.names())
    copied = copy_beside(live, tmp_path / "copy")
    assert (copied.attempts, copied.history.count) == (1, 8)
    assert set(Blobs(tmp_path / "copy" / "blobs").names()) == copied.history.expected
    assert state_of(tmp_path / "copy") == before
    assert names < set(store.blobs.names())
    store.save(toy.coordinator.snapshot(tasks=False))
    assert set(store.blobs.names()) == read_history(store.folder).expected
    assert not names <= set(store.blobs.names())


def test_arrays_that_vanish_meanwhile_are_a_reason_to_copy_again(tmp_path, live, monkeypatch) -> None:
    """Where a member is forgotten, and in file systems without locks."""
    toy = live[1]
    copied = copy_beside(live, tmp_path / "copy", at_once=True)
    assert (copied.attempts, copied.history.count) == (2, 9)
    assert set(Blobs(tmp_path / "copy" / "blobs").names()) == copied.history.expected
    assert state_of(tmp_path / "copy") == toy.coordinator.digest()
    monkeypatch.setattr(fcntl, "flock", no_locks)
    copied = copy_beside(live, tmp_path / "other")
    assert (copied.attempts, copied.history.count) == (2, 10)
    monkeypatch.undo()
    assert state_of(tmp_path / "other") == toy.coordinator.digest()


def no_locks(*_) -> None:
    raise OSError(errno.ENOLCK, "No locks available")


def test_a_folder_is_owned_when_the_last_holder_let_go_or_died(tmp_path) -> None:
    with shared(tmp_path), shared(tmp_path), owned(tmp_path) as alone:
        assert not alone
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        with shared(tmp_path):
            os.write(writing, b"x")
            signal.pause()
    os.read(reading, 1)
    with owned(tmp_path) as alone:
        assert not alone
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    with owned(tmp_path) as alone, owned(tmp_path) as another:
        assert (alone, another) == (True, False)
    os.close(reading)
    os.close(writing)


def test_a_forked_process_does_not_go_on_holding_a_folder(tmp_path) -> None:
    with shared(tmp_path):
        child = os.fork()
        if not child:
            signal.pause()
    with owned(tmp_path) as alone:
        assert alone
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def test_a_folder_that_is_not_there_is_not_held(tmp_path) -> None:
    with shared(tmp_path / "none"):
        assert not list(tmp_path.iterdir())


def test_a_store_that_drops_arrays_for_ever_is_given_up(tmp_path, live, monkeypatch) -> None:
    store, toy = live

    def vanished(history, here, there, progress):
        toy.step()
        store.save(toy.coordinator.snapshot(tasks=False), at_once=True)
        return "0" * 64, []

    monkeypatch.setattr(copying, "_copy_arrays", vanished)
    with pytest.raises(StorageError, match="faster than its arrays could be copied"):
        copy_store(store.folder, tmp_path / "copy")
    assert not list(tmp_path.glob("copy*"))


def test_a_damaged_or_missing_array_that_is_needed_stops_a_copy(tmp_path, live) -> None:
    store, _ = live
    name = min(read_history(store.folder).needed)
    path = store.blobs.path(name)
    path.write_bytes(path.read_bytes()[:-1] + b"\xff")
    with pytest.raises(StorageError, match="was altered"):
        copy_store(store.folder, tmp_path / "copy")
    path.unlink()
    with pytest.raises(StorageError, match="stored array is missing"):
        copy_store(store.folder, tmp_path / "copy")
    assert not list(tmp_path.glob("copy*"))


def test_a_damaged_old_array_is_left_out_and_said(tmp_path, live) -> None:
    store, toy = live
    store.save(toy.coordinator.snapshot(tasks=False), keep_uploads=True)
    history = read_history(store.folder)
    path = store.blobs.path(min(history.expected - history.needed))
    path.write_bytes(b"x")
    copied = copy_store(store.folder, tmp_path / "copy")
    assert copied.left_out == (f"The stored array was altered: {path}",)
    assert state_of(tmp_path / "copy") == toy.coordinator.digest()


def test_a_damaged_chain_stops_a_copy(tmp_path, live) -> None:
    store, _ = live
    shutil.copytree(store.folder, tmp_path / "other")
    (tmp_path / "other" / "mark").write_bytes(b"99 x 00000000".ljust(256))
    with pytest.raises(StoreDamaged):
        copy_store(tmp_path / "other", tmp_path / "copy")


def test_a_copys_mark_survives_a_torn_write(tmp_path, live) -> None:
    """Both halves hold it: whichever is overwritten first, the other one is whole."""
    store, toy = live
    for _ in range(2):  # an even and an odd number of events
        copy = tmp_path / f"copy {store.count}"
        history = copy_store(store.folder, copy).history
        whole = (copy / "mark").read_bytes()
        for half in (slice(0, SLOT), slice(SLOT, 2 * SLOT)):
            torn = bytearray(whole)
            torn[half] = b"\0" * SLOT
            assert read_mark(bytes(torn)) == (history.count, history.chain)
        toy.step()


def test_a_full_target_is_not_blamed_on_the_source(tmp_path, live, monkeypatch) -> None:
    full = sqlite3.OperationalError("database or disk is full")
    full.sqlite_errorname = "SQLITE_FULL"
    broken = sqlite3.DatabaseError("database disk image is malformed")
    broken.sqlite_errorname = "SQLITE_CORRUPT"
    for error, kind, words in (
        (full, StorageError, "The copy cannot be written to .*disk is full.* Free some disk space"),
        (broken, StoreDamaged, "cannot be read"),
    ):

        @contextmanager
        def failing(folder, error=error):
            class View:
                def backup(self, copy) -> None:
                    raise error

            with _readable(folder):
                yield View()

        monkeypatch.setattr(copying, "connection", failing)
        with pytest.raises(kind, match=words) as caught:
            copy_store(live[0].folder, tmp_path / "copy")
        assert type(caught.value) is kind
        assert not list(tmp_path.glob("copy*"))


def test_a_full_disk_leaves_nothing_behind(tmp_path, live, monkeypatch) -> None:
    def no_space(*_) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", no_space)
    with pytest.raises(StorageError, match="disk is full"):
        copy_store(live[0].folder, tmp_path / "copy")
    assert not list(tmp_path.glob("copy*"))
