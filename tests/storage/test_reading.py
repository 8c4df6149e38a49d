"""Stores that are only read: closed, crashed, served, on read-only media; nothing in the folder changes."""

import ctypes
import hashlib
import json
import os
import shutil
import sqlite3
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from promises.federation import IDENTITY, resumed, served

from artesian.core import Event
from artesian.errors import SettingError, StoreDamaged, UnknownFormat
from artesian.storage.blobs import Blobs
from artesian.storage.history import STORE_FORMAT, StoreHistory, StoreMark, behind, broken
from artesian.storage.reading import event_of, read_history, snapshot_of
from artesian.storage.store import Store


def everything(folder: Path) -> dict[str, tuple]:
    """Every file and folder: mode, time of change, content."""
    found = {}
    for path in [folder, *folder.rglob("*")]:
        told = path.stat()
        content = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
        found[str(path)] = (told.st_mode, told.st_mtime_ns, told.st_ino, content)
    return found


@pytest.fixture
def live(tmp_path):
    """A store that is open, with a log that is not yet part of the database."""
    store = Store(tmp_path / "live", IDENTITY)
    toy = resumed(served(store))
    for _ in range(4):
        toy.step()
    yield store
    store.close()


def copied(live: Store, folder: Path, *, index: bool = True, log: bool = True) -> Path:
    shutil.copytree(live.folder, folder)
    if not index:
        (folder / "artesian.db-shm").unlink()
    if not log:
        with sqlite3.connect(folder / "artesian.db") as database:
            database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        database.close()
        for end in ("wal", "shm"):
            (folder / f"artesian.db-{end}").unlink(missing_ok=True)
    return folder


READ = """
import sys
from pathlib import Path
from artesian.storage.reading import read_history
print(read_history(Path(sys.argv[1])).count)
"""


def counted(folder: Path) -> int:
    """The events that another process reads, as `artesian inspect` does."""
    return int(subprocess.run([sys.executable, "-c", READ, str(folder)], capture_output=True, check=True).stdout)


@pytest.mark.parametrize("kind", ["live", "crashed", "without its index", "closed"])
def test_reading_changes_nothing(tmp_path, live, kind) -> None:
    folder = {
        "live": lambda: live.folder,
        "crashed": lambda: copied(live, tmp_path / "b"),
        "without its index": lambda: copied(live, tmp_path / "c", index=False),
        "closed": lambda: copied(live, tmp_path / "d", log=False),
    }[kind]()
    before = everything(folder)
    assert counted(folder) == live.count == 8
    assert everything(folder) == before


@pytest.mark.parametrize("options", [{}, {"index": False}, {"log": False}], ids=str)
def test_a_folder_that_cannot_be_written_is_read(tmp_path, live, options) -> None:
    folder = copied(live, tmp_path / "store", **options)
    for path in [*folder.rglob("*"), folder]:
        path.chmod(stat.S_IMODE(path.stat().st_mode) & 0o555)
    before = everything(folder)
    try:
        assert as_nobody(lambda: not os.access(folder, os.W_OK) and read_history(folder).count == live.count)
        assert everything(folder) == before
    finally:
        for path in [folder, *folder.rglob("*")]:
            path.chmod(0o700)


def as_nobody(holds) -> bool:
    """Whether something holds for a user who may only read: root would be allowed everything."""
    child = os.fork()
    if child == 0:
        try:
            give_up_writing()
            os._exit(0 if holds() else 1)
        except BaseException:
            os._exit(2)
    return os.waitpid(child, 0)[1] == 0


def give_up_writing() -> None:
    """Give up root's right to write everywhere (CAP_DAC_OVERRIDE, number 1); nobody else has it."""
    libc, head, sets = ctypes.CDLL(None), (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    assert libc.capget(head, sets) == 0
    for i in range(3):  # effective, permitted, inheritable
        sets[i] &= ~(1 << 1)
    assert libc.capset(head, sets) == 0


def test_a_reader_sees_events_as_they_come(live) -> None:
    for number in range(9, 12):
        live.append(Event("join", f"x{number}", 3), at=1000.0 + number)
        assert counted(live.folder) == number
    history = read_history(live.folder)
    assert history.times() == (1009.0, 1011.0)
    assert [json.loads(row.record).get("at") for row in history.events[7:]] == [None, 1009.0, 1010.0, 1011.0]


def test_what_is_read_is_what_was_written(live) -> None:
    history, blobs = read_history(live.folder), Blobs(live.folder / "blobs", create=False)
    assert [event_of(json.loads(row.record), blobs).kind for row in history.events] == ["join"] * 4 + ["upload"] * 4
    snapshot = snapshot_of(json.loads(history.snapshots[-1].record))
    assert list(snapshot.state.clusters) == ["k0", "k1"]
    assert history.needed == history.expected >= set(blobs.names()) - history.expected


def test_what_is_no_store_is_said(tmp_path, live) -> None:
    with pytest.raises(SettingError, match="No store at"):
        read_history(tmp_path)
    folder = copied(live, tmp_path / "store")
    (folder / "mark").unlink()
    with pytest.raises(StoreDamaged, match="lost its mark"):
        read_history(folder)
    (folder / "mark").write_bytes(bytes(256))
    with pytest.raises(StoreDamaged, match="mark cannot be read"):
        read_history(folder)


def test_damage_is_seen_by_a_reader_too(tmp_path, live) -> None:
    folder = copied(live, tmp_path / "store", log=False)
    change = "UPDATE events SET record = replace(record, '\"samples\":10', '\"samples\":11') WHERE number = 1"
    with sqlite3.connect(folder / "artesian.db") as database:
        assert database.execute(change).rowcount
    database.close()
    with pytest.raises(StoreDamaged, match="event 1 does not follow"):
        read_history(folder)
    (folder / "artesian.db").write_bytes(b"x" * 8192)
    with pytest.raises(StoreDamaged, match="cannot be read"):
        read_history(folder)


def test_a_log_cut_short_is_seen_by_a_reader_too(tmp_path, live) -> None:
    folder = copied(live, tmp_path / "store", index=False)
    log = folder / "artesian.db-wal"
    log.write_bytes(log.read_bytes()[: log.stat().st_size // 2])
    with pytest.raises(StoreDamaged):
        read_history(folder)


def test_a_newer_format_is_refused(tmp_path, live) -> None:
    folder = copied(live, tmp_path / "store", log=False)
    with sqlite3.connect(folder / "artesian.db") as database:
        database.execute("UPDATE about SET value = '9' WHERE key = 'format'")
    database.close()
    with pytest.raises(
        UnknownFormat, match=f"format 9, but this version of Artesian reads formats 1 to {STORE_FORMAT}"
    ):
        read_history(folder)


def test_a_history_that_does_not_reach_its_mark_is_behind() -> None:
    history = StoreHistory({"format": 2}, [], [])
    assert not list(broken(history))
    assert behind(history, StoreMark(0, history.chain)) == ""
    assert behind(history, StoreMark(0, "other")) == "event 0 is not the one the mark knows"
    assert behind(history, StoreMark(3, "x")) == "the mark counts 3 events, the database holds 0"
