"""Copies of stores: an exact beginning of the history, whole or not there at all, nothing overwritten."""

import os
import shutil
import stat
from pathlib import Path

import pytest
from promises.federation import IDENTITY, resumed, served

from artesian.errors import SettingError, StorageError, StoreDamaged
from artesian.storage import copying
from artesian.storage.blobs import Blobs
from artesian.storage.copying import copy_store
from artesian.storage.reading import read_history
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


def test_arrays_that_vanish_meanwhile_are_a_reason_to_copy_again(tmp_path, live, monkeypatch) -> None:
    store, toy = live
    real, turns = Blobs.get, iter(range(100))

    def get(self, name):
        if self.folder == store.folder / "blobs" and not self.sync_seen and next(turns) == 3:
            self.sync_seen = True
            toy.step()
            store.save(toy.coordinator.snapshot(tasks=False))  # as a server does beside a backup
        return real(self, name)

    monkeypatch.setattr(Blobs, "sync_seen", False, raising=False)
    monkeypatch.setattr(Blobs, "get", get)
    copied = copy_store(store.folder, tmp_path / "copy")
    assert (copied.attempts, copied.history.count) == (2, 9)
    monkeypatch.undo()
    assert set(Blobs(tmp_path / "copy" / "blobs").names()) == copied.history.expected
    assert state_of(tmp_path / "copy") == toy.coordinator.digest()


def test_a_store_that_drops_arrays_for_ever_is_given_up(tmp_path, live, monkeypatch) -> None:
    store, toy = live

    def vanished(history, here, there, progress):
        toy.step()
        store.save(toy.coordinator.snapshot(tasks=False))
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


def test_a_full_disk_leaves_nothing_behind(tmp_path, live, monkeypatch) -> None:
    def no_space(*_) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", no_space)
    with pytest.raises(StorageError, match="disk is full"):
        copy_store(live[0].folder, tmp_path / "copy")
    assert not list(tmp_path.glob("copy*"))
