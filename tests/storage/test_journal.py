"""Durable pieces: what was acknowledged is there, what was altered is noticed, what failed left no trace."""

from __future__ import annotations

import errno
import os
import random
import signal
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from artesian.algorithms import FedBuff
from artesian.core import Event
from artesian.errors import ArtesianError, JournalDamaged, StorageError
from artesian.storage.blobs import Blobs
from artesian.storage.codec import from_tree, gather, scatter, to_tree
from artesian.storage.files import write_file
from artesian.storage.journal import Journal
from artesian.testing import ToyFederation

RECORDS: list[dict[str, Any]] = [
    {"kind": "join", "who": "c1 é"},
    {"kind": "x-ray", "loss": 0.1},
    {"many": [1, None, {}]},
]


def written(path: Path, records: list[dict[str, Any]] = RECORDS) -> bytes:
    journal = Journal(path)
    for record in records:
        journal.append(record)
    journal.close()
    return path.read_bytes()


@contextmanager
def opened(path: Path, **options: Any) -> Iterator[Journal]:
    journal = Journal(path, **options)
    try:
        yield journal
    finally:
        journal.close()


def numbered(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"n": i, **record} for i, record in enumerate(records)]


def failing(number: int, times: int = 1) -> Callable[..., None]:
    """A system call that fails so often, and does nothing afterwards."""
    left = [times]

    def call(*_: Any) -> None:
        if left[0]:
            left[0] -= 1
            raise OSError(number, os.strerror(number))

    return call


# records


def test_records_are_numbered_and_come_back_in_order(tmp_path: Path) -> None:
    with opened(tmp_path / "j") as journal:
        assert [journal.append(record) for record in RECORDS] == [0, 1, 2]
        assert journal.records() == numbered(RECORDS)
        assert journal.count == 3


def test_a_reopened_journal_goes_on_counting(tmp_path: Path) -> None:
    written(tmp_path / "j")
    with opened(tmp_path / "j") as journal:
        assert (journal.count, journal.torn) == (3, 0)
        assert journal.append({"later": True}) == 3
        assert journal.records() == numbered([*RECORDS, {"later": True}])


def test_a_line_is_a_checksum_and_json(tmp_path: Path) -> None:
    # CRC-32 of the text {"n":0} worked out with the reference polynomial, bit by bit
    crc, text = 0xFFFFFFFF, b'{"n":0}'
    for byte in text:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0xEDB88320 if crc & 1 else 0)
    assert written(tmp_path / "j", [{}]) == f"{crc ^ 0xFFFFFFFF:08x} ".encode() + text + b"\n"


def test_a_record_cannot_be_numbered_from_outside(tmp_path: Path) -> None:
    with opened(tmp_path / "j") as journal:
        with suppress(ValueError, ArtesianError):
            journal.append({"n": 7})
        journal.append({"kind": "next"})
        assert [record["n"] for record in journal.records()] == list(range(journal.count))


@pytest.mark.parametrize("record", [{"loss": float("nan")}, {"x": np.zeros(1)}, {"x": {1, 2}}])
def test_what_is_not_json_is_not_written(tmp_path: Path, record: dict[str, Any]) -> None:
    before = written(tmp_path / "j")
    with opened(tmp_path / "j") as journal:
        with pytest.raises((TypeError, ValueError)):
            journal.append(record)
        assert (tmp_path / "j").read_bytes() == before
        assert journal.append({}) == 3


def test_records_need_not_be_synced_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    with opened(tmp_path / "eager") as eager, opened(tmp_path / "lazy", sync=False) as lazy:
        monkeypatch.setattr(os, "fsync", calls.append)
        lazy.append({})
        assert len(calls) == 0
        eager.append({})
        assert len(calls) == 1
        lazy.flush()
        assert len(calls) == 2


def test_cut_forgets_the_records_from_a_number_on(tmp_path: Path) -> None:
    data = written(tmp_path / "j")
    with opened(tmp_path / "j") as journal:
        journal.cut(1)
        assert (tmp_path / "j").read_bytes() == data[: data.index(b"\n") + 1]
        assert journal.append({"again": 1}) == 1
        assert journal.records() == numbered([RECORDS[0], {"again": 1}])
        journal.cut(9)
        assert journal.count == 2
        journal.cut(0)
        assert journal.records() == [] and journal.append({}) == 0


# torn and damaged


def test_a_record_torn_anywhere_is_dropped_and_its_number_used_again(tmp_path: Path) -> None:
    path = tmp_path / "j"
    data = written(path)
    start = data[:-1].rindex(b"\n") + 1
    for length in range(start, len(data)):
        path.write_bytes(data[:length])
        with opened(path) as journal:
            assert (journal.count, journal.torn) == (2, length - start)
            assert path.read_bytes() == data[:start]
            assert journal.append(RECORDS[2]) == 2
        assert path.read_bytes() == data


def flips(data: bytes, places: range) -> Iterator[bytes]:
    for place in places:
        for bit in range(8):
            altered = bytearray(data)
            altered[place] ^= 1 << bit
            yield bytes(altered)


def assert_damaged(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    with pytest.raises(JournalDamaged, match="was altered"):
        Journal(path).close()
    assert path.read_bytes() == data


def test_a_bit_flipped_before_the_last_record_is_damage(tmp_path: Path) -> None:
    data = written(tmp_path / "j")
    for altered in flips(data, range(data[:-1].rindex(b"\n") + 1)):
        assert_damaged(tmp_path / "j", altered)


def test_a_bit_flipped_in_a_complete_last_record_is_damage(tmp_path: Path) -> None:
    data = written(tmp_path / "j")
    for altered in flips(data, range(data[:-1].rindex(b"\n") + 1, len(data) - 1)):
        assert_damaged(tmp_path / "j", altered)


def test_a_bit_flipped_in_the_last_newline_does_not_lose_a_record(tmp_path: Path) -> None:
    data = written(tmp_path / "j")
    for altered in flips(data, range(len(data) - 1, len(data))):
        assert_damaged(tmp_path / "j", altered)


def test_lines_removed_repeated_or_swapped_are_damage(tmp_path: Path) -> None:
    one, two, three = written(tmp_path / "j").splitlines(keepends=True)
    for lines in ([two, three], [one, three], [one, one, two], [one, three, two], [one, b"\n", two], [b"\n"]):
        assert_damaged(tmp_path / "j", b"".join(lines))


def test_damage_is_noticed_while_the_journal_is_open(tmp_path: Path) -> None:
    data = written(tmp_path / "j")
    with opened(tmp_path / "j") as journal:
        (tmp_path / "j").write_bytes(b"0" + data[1:])
        with pytest.raises(JournalDamaged):
            journal.records()


def test_a_sound_checksum_over_what_is_no_record_is_damage(tmp_path: Path) -> None:
    for text in (b"[0]", b"0", b'{"n":1}', b"{}", b"{", b'{"n":"0"}'):
        assert_damaged(tmp_path / "j", b"%08x %s\n" % (zlib.crc32(text), text))


# disks that fail


class SmallDisk:
    """A file on a disk with room for so many bytes more."""

    def __init__(self, file: Any, room: int) -> None:
        self.file, self.room = file, room

    def write(self, data: memoryview) -> int:
        if not self.room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        count: int = self.file.write(data[: self.room])
        self.room -= count
        return count

    def fileno(self) -> int:
        handle: int = self.file.fileno()
        return handle


def test_a_full_disk_leaves_the_journal_as_it_was(tmp_path: Path) -> None:
    before = written(tmp_path / "j")
    with opened(tmp_path / "j") as journal:
        file = journal._file
        for room in (0, 1, 9, 20):
            journal._file = SmallDisk(file, room)  # type: ignore[assignment]
            with pytest.raises(StorageError, match="The disk is full"):
                journal.append({"kind": "too much for the disk"})
            assert (tmp_path / "j").read_bytes() == before
        journal._file = file
        assert journal.append({"kind": "fits"}) == 3
    with opened(tmp_path / "j") as again:
        assert again.records() == numbered([*RECORDS, {"kind": "fits"}])


def test_a_write_in_pieces_is_one_record(tmp_path: Path) -> None:
    class Slow(SmallDisk):
        def write(self, data: memoryview) -> int:
            count: int = self.file.write(data[:3])
            return count

    with opened(tmp_path / "j") as journal:
        file, journal._file = journal._file, Slow(journal._file, 0)  # type: ignore[assignment]
        assert journal.append(RECORDS[0]) == 0
        journal._file = file
        assert journal.records() == numbered(RECORDS[:1])


@pytest.mark.parametrize(
    ("number", "told"),
    [
        (errno.ENOSPC, "The disk is full"),
        (errno.EDQUOT, "The disk is full"),
        (errno.EIO, "Input/output error: "),
    ],
)
def test_a_record_that_was_not_synced_is_taken_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, told: str
) -> None:
    before = written(tmp_path / "j")
    with opened(tmp_path / "j") as journal:
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", failing(number))
            with pytest.raises(StorageError, match=told):
                journal.append({"kind": "lost"})
        assert (tmp_path / "j").read_bytes() == before and journal.count == 3
        assert journal.append({"kind": "kept"}) == 3


def test_a_record_that_could_not_be_taken_back_harms_no_later_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(tmp_path / "j")
    with opened(tmp_path / "j") as journal:
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", failing(errno.EIO))
            patch.setattr(os, "ftruncate", failing(errno.EIO))
            with pytest.raises(StorageError):
                journal.append({"kind": "lost"})
        kept = []
        with suppress(StorageError):  # to refuse everything from now on would do as well
            journal.append({"kind": "kept"})
            kept.append({"kind": "kept"})
    with opened(tmp_path / "j") as again:
        assert again.records()[: 3 + len(kept)] == numbered([*RECORDS, *kept])


def test_a_cut_that_failed_leaves_all_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path / "j")
    with opened(tmp_path / "j") as journal:
        with monkeypatch.context() as patch:
            patch.setattr(os, "ftruncate", failing(errno.EIO))
            with pytest.raises(StorageError):
                journal.cut(1)
        assert journal.append({"kind": "next"}) == 3
        assert journal.records() == numbered([*RECORDS, {"kind": "next"}])


def test_a_cut_that_was_not_synced_leaves_a_sound_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path / "j")
    with opened(tmp_path / "j") as journal:
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", failing(errno.EIO))
            with pytest.raises(StorageError):
                journal.cut(1)
        number = journal.append({"kind": "next"})
        assert journal.records() == numbered([*RECORDS[:number], {"kind": "next"}])


def test_a_journal_that_cannot_be_opened_says_where(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    for path in (tmp_path / "folder", tmp_path / "nowhere" / "j"):
        with pytest.raises(StorageError, match=path.name):
            Journal(path)


# files


def test_a_file_is_written_whole(tmp_path: Path) -> None:
    write_file(tmp_path / "f", b"one")
    write_file(tmp_path / "f", b"two")
    assert (tmp_path / "f").read_bytes() == b"two"
    assert [path.name for path in tmp_path.iterdir()] == ["f"]


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_file_that_cannot_be_written_keeps_its_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    write_file(tmp_path / "f", b"old")
    with monkeypatch.context() as patch:
        patch.setattr(os, call, failing(errno.ENOSPC))
        with pytest.raises(StorageError, match="The disk is full"):
            write_file(tmp_path / "f", b"new")
    assert (tmp_path / "f").read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["f"]


def test_a_file_in_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="nowhere"):
        write_file(tmp_path / "nowhere" / "f", b"x")


def test_a_file_is_synced_before_it_takes_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    replace = os.replace
    monkeypatch.setattr(os, "fsync", lambda _: calls.append("sync"))
    monkeypatch.setattr(os, "replace", lambda a, b: (calls.append("rename"), replace(a, b)))
    write_file(tmp_path / "f", b"x")
    assert calls == ["sync", "rename", "sync"]


# arrays


@pytest.mark.parametrize(
    "array",
    [np.arange(6, dtype=np.float32), np.eye(2), np.array([2**60]), np.zeros((0, 3)), np.array(7, np.int64)],
)
def test_an_array_comes_back_under_its_name(tmp_path: Path, array: np.ndarray) -> None:
    back = Blobs(tmp_path / "v").get(Blobs(tmp_path / "v").put(array))
    assert (back.dtype, back.shape, back.tobytes()) == (array.dtype, array.shape, array.tobytes())


def test_the_same_array_is_written_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blobs = Blobs(tmp_path)
    name = blobs.put(np.arange(3))
    monkeypatch.setattr(os, "replace", failing(errno.EIO, times=9))
    assert blobs.put(np.arange(3)) == name
    with pytest.raises(StorageError):
        blobs.put(np.arange(4))


def test_arrays_that_differ_in_anything_have_other_names(tmp_path: Path) -> None:
    blobs = Blobs(tmp_path)
    zeros = [np.zeros(4, "f4"), np.zeros((2, 2), "f4"), np.zeros(2, "f8"), np.zeros(4, "i4"), np.zeros(5, "f4")]
    assert len({blobs.put(array) for array in zeros}) == len(zeros)


def test_keep_drops_the_rest(tmp_path: Path) -> None:
    blobs = Blobs(tmp_path)
    kept, dropped = blobs.put(np.arange(3)), blobs.put(np.arange(4))
    blobs.keep({kept})
    assert blobs.get(kept).tolist() == [0, 1, 2]
    with pytest.raises(StorageError, match=dropped):
        blobs.get(dropped)


def test_an_altered_array_is_noticed(tmp_path: Path) -> None:
    blobs = Blobs(tmp_path)
    name = blobs.put(np.arange(3))
    (path,) = tmp_path.iterdir()
    data = path.read_bytes()
    for altered in (data[:-1], b"", data + b"x", data[:-1] + bytes([data[-1] ^ 1])):
        path.write_bytes(altered)
        with pytest.raises(StorageError, match="was altered"):
            blobs.get(name)


@pytest.mark.parametrize("name", ["", "x", "a" * 63, "a" * 65, "A" * 64, "../" + "a" * 61, "/" * 64, "g" * 64])
def test_a_name_that_is_no_digest_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(StorageError, match="Not the name of a stored array"):
        Blobs(tmp_path).get(name)


# a writer killed again and again: run as a program, this file is the writer

ALGORITHM = FedBuff(buffer_size=3, momentum=0.5)


def federation_in(folder: Path, journal: Journal) -> ToyFederation:
    """A fresh federation that did again all its journal says, and records what comes."""
    blobs = Blobs(folder / "blobs")

    def record(event: Event) -> None:
        tree = scatter(to_tree(event), lambda _, array: {"$blob": blobs.put(array)})
        journal.append({"event": tree})

    return ToyFederation(ALGORITHM, clients=4, record=record)


def events_in(folder: Path, journal: Journal) -> list[Event]:
    blobs = Blobs(folder / "blobs")
    return [from_tree(Event, gather(record["event"], "$blob", blobs.get)) for record in journal.records()]


def act(federation: ToyFederation, turn: int) -> None:
    """One event: a join, a departure or an upload, as the turn has it."""
    coordinator, names = federation.coordinator, federation.world.names
    absent = [name for name in names if name not in federation.tasks]
    if absent and turn % 3 != 1:
        federation.take(coordinator.join(absent[0], 10))
    elif turn % 5 == 4:
        del federation.tasks[names[turn % 4]]
        coordinator.leave(names[turn % 4])
    else:
        federation.steps = turn
        federation.step()


def write_for_ever(folder: Path) -> None:
    """Go on with a journal, and acknowledge every event by number and digest."""
    os.write(1, f"pid {os.getpid()}\n".encode())
    journal = Journal(folder / "journal")
    federation = federation_in(folder, journal)
    coordinator = federation.coordinator
    for event in events_in(folder, journal):
        coordinator.replay(event)
    for name in coordinator.state.members:
        federation.take(coordinator.recorded(name))
    while True:
        act(federation, journal.count)
        os.write(1, f"ack {journal.count - 1} {coordinator.digest()}\n".encode())


def serve_writers() -> None:
    """For every folder named on standard input, one writer that lives until it is killed."""
    for line in sys.stdin:
        child = os.fork()
        if not child:
            try:
                write_for_ever(Path(line.strip()))
            finally:
                os._exit(1)
        os.waitpid(child, 0)
        os.write(1, b"dead\n")


@contextmanager
def writers() -> Iterator[subprocess.Popen[str]]:
    """A program that starts writers; it and they end with the test."""
    one_thread = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    with subprocess.Popen(
        [sys.executable, __file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, **one_thread},
    ) as program:
        try:
            yield program
        finally:
            os.killpg(program.pid, signal.SIGKILL)


def one_life(program: subprocess.Popen[str], folder: Path, acknowledgements: int) -> dict[int, str]:
    """Start a writer, kill it after so many acknowledgements, and return all that arrived."""
    assert program.stdin is not None and program.stdout is not None
    program.stdin.write(f"{folder}\n")
    program.stdin.flush()
    _, pid = program.stdout.readline().split()
    found: dict[int, str] = {}
    while (words := program.stdout.readline().split()) and words[0] == "ack":
        found[int(words[1])] = words[2]
        if len(found) == acknowledgements:
            os.kill(int(pid), signal.SIGKILL)
    assert words == ["dead"] and len(found) >= acknowledgements
    return found


def check_journal(folder: Path, before: int, acknowledged: dict[int, str]) -> int:
    """Every acknowledged event is there and leads to its state; one more may be. Return how many there are."""
    assert sorted(acknowledged) == list(range(before, before + len(acknowledged)))
    with opened(folder / "journal") as journal:
        events = events_in(folder, journal)
        coordinator = federation_in(folder, journal).coordinator
    assert len(events) - before - len(acknowledged) in (0, 1)
    for number, event in enumerate(events):
        coordinator.replay(event)
        if number in acknowledged:
            assert coordinator.digest() == acknowledged[number]
    return len(events)


@pytest.mark.thorough
@pytest.mark.heavy
def test_a_killed_writer_loses_nothing_it_acknowledged(tmp_path: Path) -> None:
    rng = random.Random(0)
    with writers() as program:
        for run in range(10):
            folder, count = tmp_path / str(run), 0
            folder.mkdir()
            for _ in range(10):
                count = check_journal(folder, count, one_life(program, folder, rng.randint(1, 6)))


if __name__ == "__main__":
    serve_writers()
