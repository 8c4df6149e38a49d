"""A run as a folder: tables, snapshots, final models, and what is refused."""

from __future__ import annotations

import errno
import json
import math
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from artesian.errors import BadFormat, ChangedSince, ResumeMismatch, RunExists, StorageError, UnknownFormat
from artesian.simulator.folder import RunFolder, configuration
from artesian.simulator.table import Table

COLUMNS = ("upload", "loss", "client")

# tables


def test_a_table_is_a_csv_file(tmp_path: Path) -> None:
    table = Table(COLUMNS, tmp_path / "t.csv")
    table.add(1, 0.1, "c0")
    table.add(2, None, 'said "a, b"\nand left')
    assert (tmp_path / "t.csv").read_bytes() == b""
    length = table.flush()
    expected = b'upload,loss,client\r\n1,0.1,c0\r\n2,,"said ""a, b""\nand left"\r\n'
    assert (tmp_path / "t.csv").read_bytes() == expected and length == len(expected)


def test_a_table_is_flushed_piece_by_piece(tmp_path: Path) -> None:
    table = Table(COLUMNS, tmp_path / "t.csv")
    first = table.flush()
    table.add(1, 0.5, "a")
    second = table.flush()
    assert (first, second) == (20, 29) and table.flush() == 29
    assert (tmp_path / "t.csv").read_bytes() == b"upload,loss,client\r\n1,0.5,a\r\n"


def test_a_table_goes_on_where_it_was_left(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    rows = [(1, 0.1 + 0.2, "c0"), (2, None, "a,b\r\n"), (-3, 1e-300, "é"), (4, float(2**60), "x"), (5, math.inf, "y")]
    table = Table(COLUMNS, path)
    for row in rows:
        table.add(*row)
    length = table.flush()
    again = Table(COLUMNS, path, length)
    assert list(again) == rows
    assert [type(cell) for row in again for cell in row] == [type(cell) for row in rows for cell in row]
    again.add(6, 0.5, "z")
    again.flush()
    assert path.read_bytes().endswith(b"5,inf,y\r\n6,0.5,z\r\n")


def test_rows_written_after_a_snapshot_are_forgotten(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    table = Table(COLUMNS, path)
    table.add(1, 0.5, "kept")
    length = table.flush()
    table.add(2, 0.5, "forgotten, and longer than what comes next")
    table.flush()
    again = Table(COLUMNS, path, length)
    assert list(again) == [(1, 0.5, "kept")]
    again.add(2, 0.25, "new")
    again.flush()
    assert path.read_bytes() == b"upload,loss,client\r\n1,0.5,kept\r\n2,0.25,new\r\n"


def test_a_table_that_lost_rows_is_refused(tmp_path: Path) -> None:
    table = Table(COLUMNS, tmp_path / "t.csv")
    length = table.flush()
    with pytest.raises(StorageError, match=r"t\.csv has 20 bytes, but had 21"):
        Table(COLUMNS, tmp_path / "t.csv", length + 1)
    with pytest.raises(StorageError, match=r"gone\.csv"):
        Table(COLUMNS, tmp_path / "gone.csv", length)


def test_a_new_table_begins_an_old_file_anew(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes(b"something long that was there before")
    Table(COLUMNS, tmp_path / "t.csv").flush()
    assert (tmp_path / "t.csv").read_bytes() == b"upload,loss,client\r\n"


def test_rows_that_could_not_be_written_are_written_next_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    table = Table(COLUMNS, tmp_path / "t.csv")
    table.add(1, 0.5, "a")
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(StorageError, match="The disk is full"):
            table.flush()
    table.add(2, 0.5, "b")
    assert table.flush() == 38
    assert (tmp_path / "t.csv").read_bytes() == b"upload,loss,client\r\n1,0.5,a\r\n2,0.5,b\r\n"


def test_a_table_without_a_file_lives_in_memory() -> None:
    table = Table(COLUMNS)
    table.add(1, None, "a")
    table.flush()
    arrays = table.arrays()
    assert list(table) == [(1, None, "a")]
    assert arrays["upload"].tolist() == [1] and np.isnan(arrays["loss"]).all() and arrays["client"].tolist() == ["a"]


def test_a_table_in_a_file_keeps_no_rows_and_gives_the_same_arrays(tmp_path: Path) -> None:
    rows = [(1, 0.5, "a"), (2, None, "b"), (3, 2.0, "a")]
    filed, kept = Table(COLUMNS, tmp_path / "t.csv"), Table(COLUMNS)
    for row in rows:
        filed.add(*row)
        kept.add(*row)
    assert list(filed) == rows and filed._kept == []
    for name in COLUMNS:
        one, other = filed.arrays()[name], kept.arrays()[name]
        assert one.dtype == other.dtype and np.array_equal(one, other, equal_nan=name == "loss")
    assert filed.arrays()["upload"].dtype == np.int64 and filed.arrays()["loss"].dtype == np.float64


def test_an_empty_table_has_empty_columns() -> None:
    assert {name: column.shape for name, column in Table(COLUMNS).arrays().items()} == dict.fromkeys(COLUMNS, (0,))


# folders

CONFIG = configuration({"world": {"clients": 8, "data": "digits"}, "algorithm": {"name": "fedavg"}}, 3)


def test_a_run_opens_with_its_configuration(tmp_path: Path) -> None:
    RunFolder.create(tmp_path / "new" / "run", CONFIG)
    written = json.loads((tmp_path / "new" / "run" / "config.json").read_text())
    assert written["seed"] == 3 and written["experiment"]["world"]["clients"] == 8 and written["format"] == 1
    assert {"artesian", "commit"} <= set(written)
    assert written["commit"] is None or re.fullmatch("[0-9a-f]{40}(-dirty)?", written["commit"])


def test_a_folder_that_holds_anything_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_text("mine")
    with pytest.raises(RunExists, match="not a run folder"):
        RunFolder.create(tmp_path, CONFIG)
    with pytest.raises(RunExists):
        RunFolder.create(tmp_path / "note.txt", CONFIG)
    assert [path.name for path in tmp_path.iterdir()] == ["note.txt"]


def test_an_empty_folder_is_taken(tmp_path: Path) -> None:
    RunFolder.create(tmp_path, CONFIG)
    assert (tmp_path / "config.json").exists()


def test_the_same_configuration_reopens_a_run(tmp_path: Path) -> None:
    RunFolder.create(tmp_path / "r", {**CONFIG, "experiment": {"shares": (1, 2)}}).close()
    again = RunFolder.reopen(tmp_path / "r", {**CONFIG, "experiment": {"shares": (1, 2)}, "commit": "another"})
    assert again.summary is None and again.load(dict) is None


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"seed": 4}, "begun with seed = 3, and now it is 4"),
        (
            {"experiment": {"world": {"clients": 9, "data": "digits"}, "algorithm": {"name": "fedavg"}}},
            r"experiment\.world\.clients = 8, and now it is 9",
        ),
        (
            {"experiment": {"world": {"clients": 8, "data": "digits"}}},
            r"experiment\.algorithm = .*, and now it is None",
        ),
        (
            {"experiment": {**CONFIG["experiment"], "more": 1}},
            r"experiment\.more = None, and now it is 1",
        ),
    ],
)
def test_another_configuration_is_refused_by_key(tmp_path: Path, change: dict[str, Any], told: str) -> None:
    RunFolder.create(tmp_path / "r", CONFIG)
    with pytest.raises(ResumeMismatch, match=told):
        RunFolder.reopen(tmp_path / "r", {**CONFIG, **change})


def test_a_setting_that_is_newer_than_the_folder_counts_as_its_default(tmp_path: Path) -> None:
    RunFolder.create(tmp_path / "r", CONFIG).close()
    newer = {**CONFIG["experiment"], "tune": 0, "draws": {"share": 0.5, "every": None}}
    newer["world"] = {**newer["world"], "size": 3}
    defaults = {"tune": 0, "draws": {"share": 0.5, "every": None}, "world": {"clients": 80, "size": 3}}
    RunFolder.reopen(tmp_path / "r", {**CONFIG, "experiment": newer}, defaults).close()
    changes = {
        "experiment.tune = 0, and now it is 2": {"tune": 2},
        r"experiment\.draws\.share = 0\.5, and now it is 1": {"draws": {"share": 1.0, "every": None}},
        r"experiment\.world\.size = 3, and now it is 4": {"world": {**newer["world"], "size": 4}},
    }
    for told, change in changes.items():
        with pytest.raises(ResumeMismatch, match=told):
            RunFolder.reopen(tmp_path / "r", {**CONFIG, "experiment": newer | change}, defaults)


def test_what_changed_since_a_run_began_is_a_warning(tmp_path: Path) -> None:
    made = {"code": {"mine": {"sha256": "a", "commit": None}, "gone": {"sha256": "g", "commit": None}}}
    RunFolder.create(tmp_path / "r", {**CONFIG, **made, "data": {"x.npz": "b"}, "artesian": "0.0.9"}).close()
    here = {"code": {"mine": {"sha256": "c", "commit": None}}, "data": {"x.npz": "d", "new.npz": "e"}}
    with pytest.warns(ChangedSince) as told:
        RunFolder.reopen(tmp_path / "r", {**CONFIG, **here}).close()
    assert [str(one.message).split(". ")[0] for one in told] == [
        f"This run began with artesian 0.0.9 and goes on with {CONFIG['artesian']}",
        "The module mine has changed since this run began",
        "The data in x.npz have changed since this run began",
    ]


def test_a_folder_of_another_format_is_refused(tmp_path: Path) -> None:
    RunFolder.create(tmp_path / "r", {**CONFIG, "format": 2})
    with pytest.raises(UnknownFormat, match="2"):
        RunFolder.reopen(tmp_path / "r", CONFIG)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe\xfa", None])
def test_a_folder_without_a_sound_configuration_is_refused(tmp_path: Path, content: bytes | None) -> None:
    (tmp_path / "r").mkdir()
    if content is not None:
        (tmp_path / "r" / "config.json").write_bytes(content)
    with pytest.raises(StorageError, match=r"config\.json"):
        RunFolder.reopen(tmp_path / "r", CONFIG)


# snapshots


@dataclass(frozen=True)
class Checkpoint:
    uploads: int
    model: np.ndarray
    memory: dict[str, Any] = field(default_factory=dict)


def run_folder(tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path / "r", CONFIG)


def blobs(folder: RunFolder) -> int:
    return len(list((folder.path / "blobs").iterdir()))


def test_the_newest_snapshot_comes_back(tmp_path: Path) -> None:
    folder = run_folder(tmp_path)
    assert folder.load(Checkpoint) is None
    memory = {"list": [1, None, {"deep": np.arange(3)}], "text": "x", "count": np.array(2**60)}
    folder.save(9, Checkpoint(9, np.arange(4, dtype=np.float32)))
    folder.save(10, Checkpoint(10, np.arange(5, dtype=np.float32), memory))
    folder.close()
    found = RunFolder.reopen(folder.path, CONFIG).load(Checkpoint)
    assert found is not None and found.uploads == 10
    assert found.model.dtype == np.float32 and found.model.tolist() == [0, 1, 2, 3, 4]
    assert found.memory["list"][2]["deep"].tolist() == [0, 1, 2] and found.memory["list"][:2] == [1, None]
    assert found.memory["count"] == 2**60 and found.memory["count"].shape == ()


def test_arrays_no_longer_needed_are_dropped(tmp_path: Path) -> None:
    folder, shared = run_folder(tmp_path), np.arange(3)
    folder.save(1, Checkpoint(1, np.zeros(2), {"a": shared, "b": shared.copy()}))
    assert blobs(folder) == 2
    folder.save(2, Checkpoint(2, np.ones(2), {"a": shared}))
    assert blobs(folder) == 2 and len(list((folder.path / "snapshots").iterdir())) == 1
    folder.save(3, Checkpoint(3, shared))
    assert blobs(folder) == 1


def test_a_snapshot_that_could_not_be_written_leaves_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = run_folder(tmp_path)
    folder.save(1, Checkpoint(1, np.arange(3)))
    replace = os.replace

    def replace_blobs_only(source: Path, target: Path) -> None:
        if target.parent.name == "snapshots":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        replace(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", replace_blobs_only)
        with pytest.raises(StorageError, match="The disk is full"):
            folder.save(2, Checkpoint(2, np.arange(4)))
    found = folder.load(Checkpoint)
    assert found is not None and found.model.tolist() == [0, 1, 2]


def test_a_snapshot_that_lost_an_array_is_refused(tmp_path: Path) -> None:
    folder = run_folder(tmp_path)
    folder.save(1, Checkpoint(1, np.arange(3)))
    folder.blobs.keep(set())
    with pytest.raises(StorageError, match="safetensors"):
        folder.load(Checkpoint)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{}",
        '{"format":1}',
        '{"format":2,"checkpoint":{}}',
        '{"format":1,"checkpoint":{}}',
        '{"format":1,"checkpoint":{"uploads":1,"model":{"$blob":"../../etc"}}}',
        '{"format":1,"checkpoint":{"uploads":1,"model":{"$blob":5}}}',
    ],
)
def test_a_snapshot_that_is_not_sound_is_refused(tmp_path: Path, content: str) -> None:
    folder = run_folder(tmp_path)
    (folder.path / "snapshots" / "000000001.json").write_text(content)
    with pytest.raises((StorageError, BadFormat, UnknownFormat)):
        folder.load(Checkpoint)


def test_the_journal_of_a_run_lies_in_its_folder(tmp_path: Path) -> None:
    journal = run_folder(tmp_path).journal()
    assert journal.append({"kind": "x"}) == 0
    journal.close()
    assert (tmp_path / "r" / "journal.jsonl").read_bytes().endswith(b' {"n":0,"kind":"x"}\n')


# the end


def test_final_models_carry_their_ordinary_names_and_shapes(tmp_path: Path) -> None:
    folder = run_folder(tmp_path)
    weight = np.arange(6, dtype=np.float32).reshape(2, 3)
    steps = np.array(2**53 + 1, np.int64)
    folder.finish({"uploads": 5}, {"k0": {"layer.weight": weight.T, "layer.steps": steps}, "k1": {"w": weight}}, {})
    found = load_file(folder.path / "final" / "k0.safetensors")
    assert set(found) == {"layer.weight", "layer.steps"}
    assert found["layer.weight"].tolist() == [[0, 3], [1, 4], [2, 5]]
    assert found["layer.steps"] == 2**53 + 1 and found["layer.steps"].shape == ()
    assert load_file(folder.path / "final" / "k1.safetensors")["w"].tolist() == [[0, 1, 2], [3, 4, 5]]


def test_the_summary_says_that_a_run_has_finished(tmp_path: Path) -> None:
    folder = run_folder(tmp_path)
    assert folder.summary is None
    folder.finish({"uploads": 5}, {}, {})
    folder.close()
    assert RunFolder.reopen(folder.path, CONFIG).summary == {"uploads": 5}
