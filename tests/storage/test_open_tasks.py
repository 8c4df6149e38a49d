"""Open tasks on disk: nothing of a model stays in memory, and a full disk loses none."""

import errno

import numpy as np
import pytest

from artesian.core import Task
from artesian.errors import StorageError
from artesian.params import seal
from artesian.storage import files
from artesian.storage.blobs import Blobs
from artesian.storage.open_tasks import OpenTasks


def task(number: int, value: float) -> Task:
    return Task({"k0": seal(np.full(5, value, np.float32))}, settings={"seed": 3}, number=number)


def stored(shelf: OpenTasks) -> int:
    return len(list(shelf._blobs.folder.iterdir()))


def same(a: Task, b: Task) -> bool:
    return a.number == b.number and np.array_equal(a.models["k0"], b.models["k0"])


def test_a_task_comes_back_and_a_shared_model_is_one_file(tmp_path) -> None:
    shelf = OpenTasks(tmp_path / "shelf")
    shelf["ann"], shelf["bob"] = task(1, 2.0), task(7, 2.0)
    assert same(shelf["ann"], task(1, 2.0))
    assert same(shelf["bob"], task(7, 2.0))
    assert (stored(shelf), len(shelf), set(shelf)) == (1, 2, {"ann", "bob"})
    del shelf["ann"]
    assert stored(shelf) == 1
    shelf["bob"] = task(8, 3.0)
    assert stored(shelf) == 1
    del shelf["bob"]
    assert (stored(shelf), "bob" in shelf, shelf.get("bob")) == (0, False, None)


def test_an_earlier_life_is_swept_and_a_snapshot_fills_the_shelf(tmp_path) -> None:
    blobs = Blobs(tmp_path / "blobs")
    shelf = OpenTasks(tmp_path / "shelf")
    shelf["ann"] = task(1, 2.0)
    assert len(shelf.settle(blobs)) == 1
    records = dict(shelf.records)
    again = OpenTasks(tmp_path / "shelf")
    assert (len(again), stored(again)) == (0, 0)
    again.fill(records, blobs)
    assert same(again["ann"], task(1, 2.0))
    (blob,) = (tmp_path / "blobs").iterdir()
    blob.write_bytes(blob.read_bytes()[:-1] + b"x")
    with pytest.raises(StorageError, match="was altered"):
        OpenTasks(tmp_path / "other").fill(records, blobs)


def test_a_full_disk_keeps_the_task_in_memory_until_there_is_room(tmp_path, monkeypatch) -> None:
    shelf, blobs = OpenTasks(tmp_path / "shelf"), Blobs(tmp_path / "blobs")

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(files.os, "replace", full)
        shelf["ann"] = task(1, 2.0)
        assert same(shelf["ann"], task(1, 2.0))
        with pytest.raises(StorageError):
            shelf.settle(blobs)
    assert len(shelf.settle(blobs)) == 1
    assert (same(shelf["ann"], task(1, 2.0)), stored(shelf)) == (True, 1)
