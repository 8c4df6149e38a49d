"""The store: synced before acknowledged, one server at a time, nothing altered or lost unseen."""

import json
import os
import shutil
import signal
import sqlite3
from pathlib import Path

import numpy as np
import pytest
from promises.federation import IDENTITY, resumed, served
from tiers import some_heavy

from artesian.algorithms import CDFL, FedAvg, FedBuff
from artesian.core import Event
from artesian.errors import StorageError, StoreDamaged, StoreLocked, StoreMismatch, UnknownFormat
from artesian.storage import failpoints
from artesian.storage.blobs import Blobs, named_in
from artesian.storage.codec import encode
from artesian.storage.files import lock_file
from artesian.storage.reading import read_history
from artesian.storage.store import Store

FORMAT_1 = Path(__file__).parents[1] / "fixtures" / "format-1"


class Stores(list[Store]):
    """Opens stores, and closes them in the end."""

    def __call__(self, folder: Path, identity=IDENTITY) -> Store:
        self.append(Store(folder, identity))
        return self[-1]

    def close_all(self) -> None:
        for store in self:
            if store._db.closed is False:
                store.close()


@pytest.fixture
def stores():
    opened = Stores()
    yield opened
    opened.close_all()


@pytest.mark.parametrize(
    "algorithm", [CDFL(), FedBuff(buffer_size=3), FedAvg(clients_per_round=2)], ids=lambda a: a.name
)
def test_a_reopened_store_gives_the_same_state(tmp_path, stores, algorithm) -> None:
    identity = {"algorithm": algorithm.name}
    for part in range(4):
        store = stores(tmp_path, identity)
        federation = resumed(served(store, algorithm))
        for _ in range(5):
            federation.step()
        if part == 1:
            store.save(federation.coordinator.snapshot(tasks=False))
        before = federation.coordinator.digest()
        store.close()
        again = stores(tmp_path, identity)
        assert served(again, algorithm).coordinator.digest() == before
        again.close()


def test_events_come_back_bit_for_bit(tmp_path, stores) -> None:
    store, kept = stores(tmp_path), []
    federation = served(store)
    federation.coordinator.record = lambda event: (kept.append(event), store.append(event))
    resumed(federation)
    for _ in range(3):
        federation.step()
    assert [encode("event", e) for e in store.events()] == [encode("event", e) for e in kept]
    assert [encode("event", e) for e in store.events(after=5)] == [encode("event", e) for e in kept[5:]]
    assert store.count == len(kept)


def test_a_second_server_is_refused(tmp_path, stores) -> None:
    stores(tmp_path)
    with pytest.raises(StoreLocked, match="Another server uses this store"):
        Store(tmp_path, IDENTITY)


def test_another_federation_another_model_and_a_newer_format_are_refused(tmp_path, stores) -> None:
    stores(tmp_path).close()
    with pytest.raises(StoreMismatch, match="another federation: its layout is"):
        stores(tmp_path, {**IDENTITY, "layout": "xyz"})
    with pytest.raises(StoreMismatch, match="another federation: its algorithm is"):
        stores(tmp_path, {**IDENTITY, "algorithm": "fedavg"})
    alter(tmp_path, "UPDATE about SET value = '9' WHERE key = 'format'")
    with pytest.raises(UnknownFormat):
        stores(tmp_path)


def alter(folder: Path, statement: str) -> None:
    with sqlite3.connect(folder / "artesian.db") as database:
        assert database.execute(statement).rowcount > 0
    database.close()


def filled(folder: Path, stores) -> None:
    store = stores(folder)
    federation = resumed(served(store))
    for _ in range(4):
        federation.step()
    store.save(federation.coordinator.snapshot(tasks=False), keep_uploads=True)
    for _ in range(3):
        federation.step()
    store.close()


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM events WHERE number = (SELECT max(number) FROM events)",
        "DELETE FROM events WHERE number = 2",
        "DELETE FROM events",
        "UPDATE events SET record = replace(record, '\"samples\":10', '\"samples\":11') WHERE number = 1",
        "UPDATE events SET chain = replace(chain, '0', '1') WHERE number = 3",
        "UPDATE events SET number = number + 100 WHERE number = (SELECT max(number) FROM events)",
        "UPDATE snapshots SET record = replace(record, '\"present\":4', '\"present\":5')",
        "UPDATE snapshots SET events = events + 1000",
        "UPDATE about SET value = '\"other\"' WHERE key = 'algorithm'",
    ],
)
def test_a_tampered_store_is_refused(tmp_path, stores, statement) -> None:
    filled(tmp_path, stores)
    alter(tmp_path, statement)
    with pytest.raises((StoreDamaged, StoreMismatch)):
        stores(tmp_path)


def test_a_tampered_array_is_refused(tmp_path, stores) -> None:
    filled(tmp_path, stores)
    for path in (tmp_path / "blobs").iterdir():
        path.write_bytes(path.read_bytes()[:-1] + b"\xff")
    store = stores(tmp_path)
    with pytest.raises(StorageError, match="was altered"):
        store.latest()


def test_a_store_without_its_mark_or_database_is_refused(tmp_path, stores) -> None:
    filled(tmp_path, stores)
    (tmp_path / "mark").rename(tmp_path / "elsewhere")
    with pytest.raises(StoreDamaged, match="mark"):
        stores(tmp_path)
    (tmp_path / "elsewhere").rename(tmp_path / "mark")
    (tmp_path / "artesian.db").unlink()
    with pytest.raises(StoreDamaged, match="lost its tables"):
        stores(tmp_path)


def test_a_store_that_died_while_it_was_made_begins_again(tmp_path, stores) -> None:
    stores(tmp_path).close()
    (tmp_path / "artesian.db").unlink()  # the mark was there first, and says nothing was acknowledged
    assert stores(tmp_path).count == 0


def test_a_store_that_died_while_it_made_its_mark_begins_again(tmp_path, stores, monkeypatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", no_space)
        with pytest.raises(StorageError):
            Store(tmp_path, IDENTITY)
    assert not (tmp_path / "mark").exists()  # whole, or not at all
    (tmp_path / "mark.tmp").write_bytes(b"half a")
    assert stores(tmp_path).count == 0


def test_a_mark_that_cannot_be_read_is_refused(tmp_path, stores) -> None:
    filled(tmp_path, stores)
    (tmp_path / "mark").write_bytes(b"\x00" * 256)
    with pytest.raises(StoreDamaged, match="mark cannot be read"):
        stores(tmp_path)


def test_one_torn_half_of_the_mark_is_survived(tmp_path, stores) -> None:
    """A crash while one slot is written leaves the other whole; the database may be one event ahead of it."""
    filled(tmp_path, stores)
    store = stores(tmp_path)
    half, count = store.count % 2, store.count
    store.close()
    data = bytearray((tmp_path / "mark").read_bytes())
    data[128 * half : 128 * half + 20] = b"x" * 20
    (tmp_path / "mark").write_bytes(bytes(data))
    assert stores(tmp_path).count == count


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.99])
def test_a_write_ahead_log_cut_short_is_refused(tmp_path, stores, share) -> None:
    """SQLite would forget the tail and say all is well; the mark remembers."""
    store = stores(tmp_path)
    federation = resumed(served(store))
    for _ in range(6):
        federation.step()
    log = (tmp_path / "artesian.db-wal").read_bytes()  # as a crash leaves it: the server is still there
    database = (tmp_path / "artesian.db").read_bytes()
    store.close()
    (tmp_path / "artesian.db").write_bytes(database)
    (tmp_path / "artesian.db-wal").write_bytes(log[: int(len(log) * share)])
    (tmp_path / "artesian.db-shm").unlink(missing_ok=True)
    with pytest.raises(StoreDamaged):
        stores(tmp_path)


def test_raw_uploads_go_at_a_snapshot_unless_they_are_kept(tmp_path, stores) -> None:
    store = stores(tmp_path)
    federation = resumed(served(store))
    for _ in range(6):
        federation.step()
    store.save(federation.coordinator.snapshot(tasks=False), keep_uploads=True)
    everything = len(list((tmp_path / "blobs").iterdir()))
    store.save(federation.coordinator.snapshot(tasks=False))
    assert len(list((tmp_path / "blobs").iterdir())) < everything
    before = federation.coordinator.digest()
    store.close()
    assert served(stores(tmp_path)).coordinator.digest() == before


def test_a_failed_write_changes_nothing_and_the_store_goes_on(tmp_path, stores, monkeypatch) -> None:
    store = stores(tmp_path)
    federation = resumed(served(store))
    before, count = federation.coordinator.digest(), store.count
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", no_space)
        with pytest.raises(StorageError, match="disk is full"):
            federation.coordinator.receive(federation.upload_of("c0"))
    assert (federation.coordinator.digest(), store.count) == (before, count)
    federation.take(federation.coordinator.receive(federation.upload_of("c0")))
    assert store.count == count + 1


def no_space(*_) -> None:
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize("hits", some_heavy([1, 2, 5], 2))
@pytest.mark.parametrize("name", failpoints.NAMES)
def test_killed_at_any_fail_point_nothing_acknowledged_is_lost(tmp_path, stores, monkeypatch, name, hits) -> None:
    acknowledged = tmp_path / "acknowledged"
    child = os.fork()
    if child == 0:
        monkeypatch.setenv(failpoints.VARIABLE, f"{name}:{hits}")
        live(tmp_path / "store", acknowledged)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    told = acknowledged.read_text().split() if acknowledged.exists() else []
    died = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
    assert died, f"{name} was never reached {hits} times"
    store = stores(tmp_path / "store")
    federation = served(store)
    answered = sum(member.answered for member in federation.coordinator.state.members.values())
    assert len(told) <= answered <= len(told) + 1
    if answered == len(told) and told:
        assert federation.coordinator.state.version == answered
    for _ in range(3):  # and it goes on
        resumed(federation).step()


def live(folder: Path, acknowledged: Path) -> None:
    """A server's life: upload, snapshot now and then, and write down what was acknowledged."""
    try:
        store = Store(folder, IDENTITY)
        federation = resumed(served(store))
        with open(acknowledged, "a", buffering=1) as told:
            for step in range(12):
                upload = federation.step()
                failpoints.reach("between-change-and-answer")
                told.write(f"{upload.client}:{upload.number}\n")
                if step % 2:
                    store.save(federation.coordinator.snapshot(tasks=False))
    except BaseException:
        os._exit(1)


def test_an_event_is_what_it_was_when_recorded(tmp_path, stores) -> None:
    store = stores(tmp_path)
    assert store.append(Event("join", "$odd/name", 3)) == 1
    assert list(store.events()) == [Event("join", "$odd/name", 3)]
    assert store.about()["layout"] == "abc"


# who may come in


def test_removing_the_lock_file_lets_no_second_server_in(tmp_path, stores) -> None:
    stores(tmp_path)
    for name in ("lock", "mark", "artesian.db"):  # one after the other, even all of them
        (tmp_path / name).unlink()
        with pytest.raises(StoreLocked, match="Another server uses this store"):
            Store(tmp_path, IDENTITY)


def test_a_server_of_an_earlier_version_keeps_this_one_out(tmp_path, stores) -> None:
    stores(tmp_path).close()
    handle = lock_file(tmp_path / "lock")  # all that it held
    with pytest.raises(StoreLocked):
        Store(tmp_path, IDENTITY)
    os.close(handle)
    stores(tmp_path)


def modes(folder: Path) -> set[str]:
    return {oct(path.stat().st_mode & 0o777)[2:] + "/" * path.is_dir() for path in folder.rglob("*")}


def test_files_are_for_their_owner_alone_in_a_folder_that_was_there_too(tmp_path, stores) -> None:
    folder = tmp_path / "store"
    folder.mkdir(mode=0o755)
    before = os.umask(0)
    try:
        filled(folder, stores)
        store = stores(folder)
    finally:
        os.umask(before)
    assert modes(folder) == {"600", "700/"}
    assert store.notes == [f"others can list {folder}: close it with chmod 700"]


def test_what_others_could_read_is_closed_and_said(tmp_path, stores) -> None:
    filled(tmp_path, stores)
    for name in ("artesian.db", "mark"):
        (tmp_path / name).chmod(0o644)
    (tmp_path / "blobs").chmod(0o755)
    assert stores(tmp_path).notes == ["others could read artesian.db, mark, blobs: closed to them now"]
    assert (tmp_path / "blobs").stat().st_mode & 0o777 == 0o700


def test_the_parents_of_a_new_store_are_synced(tmp_path, stores, monkeypatch) -> None:
    synced: list[Path] = []
    monkeypatch.setattr("artesian.storage.files.sync_folder", synced.append)
    stores(tmp_path / "a" / "b")
    assert synced[:2] == [tmp_path, tmp_path / "a"]
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o700


# times, versions, old arrays


def test_an_event_has_the_time_that_its_writer_gives(tmp_path, stores) -> None:
    store = stores(tmp_path)
    store.append(Event("join", "a", 3))
    store.append(Event("join", "b", 3), at=1_700_000_000.12345)
    assert [told.get("at") for told in store.last(2)] == [None, 1_700_000_000.123]
    assert list(store.events()) == [Event("join", "a", 3), Event("join", "b", 3)]


def test_a_store_knows_which_code_wrote_which_events(tmp_path, stores) -> None:
    store = stores(tmp_path)
    assert store.writer() == {}
    for turn, version in enumerate(("1", "2", "3")):
        store.begin_stretch({"artesian": version})
        if turn != 1:
            store.append(Event("join", version, 3))
    store.close()
    again = stores(tmp_path)
    assert again.writer() == {"artesian": "3"}
    history = read_history(tmp_path)
    assert [row.events for row in history.stretches] == [0, 1]  # the second wrote nothing
    assert [history.writer(n)["artesian"] for n in (1, 2, 3)] == ["1", "3", "3"]
    again.close()
    alter(tmp_path, "UPDATE stretches SET versions = '{}' WHERE events = 0")
    with pytest.raises(StoreDamaged, match="the code that wrote on from event 0 was altered"):
        stores(tmp_path)


def test_a_store_of_format_1_goes_on_in_this_format_once_somebody_writes(tmp_path, stores) -> None:
    folder = Path(shutil.copytree(FORMAT_1 / "cdfl", tmp_path / "store"))
    identity = {key: value for key, value in read_history(folder).about.items() if key != "format"}
    chain = stores(folder, identity).chain
    stores.close_all()
    assert read_history(folder).about["format"] == 1  # opening alone changes nothing that an earlier version reads
    opened_again = reopened(stores, folder, identity)
    opened_again.begin_stretch({"artesian": "now"})
    opened_again.append(Event("join", "new", 3), at=1.0)
    assert reopened(stores, folder, identity).about() == {**identity, "format": 2, "began_with": 1}
    assert read_history(folder).events[-2].chain == chain
    assert read_history(folder).times() == (1.0, 1.0)


def reopened(stores, folder: Path, identity) -> Store:
    stores.close_all()
    return stores(folder, identity)


def test_with_uploads_kept_everything_since_the_oldest_snapshot_stays(tmp_path, stores) -> None:
    store = stores(tmp_path)
    toy = resumed(served(store))
    for turn in range(4):
        toy.step()
        if turn == 2:
            store.begin_stretch({"artesian": "2"})
        store.save(toy.coordinator.snapshot(tasks=False), keep_uploads=True)
    history = read_history(tmp_path)
    assert [row.events for row in history.snapshots] == [0, 5, 6, 7, 8]  # few yet: none are thinned out
    assert history.expected <= set(store.blobs.names())
    store.save(toy.coordinator.snapshot(tasks=False))
    assert [row.events for row in read_history(tmp_path).snapshots] == [8]


def test_a_damaged_old_array_stops_nobody_and_is_said(tmp_path, stores) -> None:
    filled_old = stores(tmp_path)
    toy = resumed(served(filled_old))
    for _ in range(4):
        toy.step()
    filled_old.save(toy.coordinator.snapshot(tasks=False), keep_uploads=True)
    history, before = read_history(tmp_path), toy.coordinator.digest()
    old = sorted(history.expected - history.needed)
    flipped, gone = filled_old.blobs.path(old[0]), filled_old.blobs.path(old[1])
    filled_old.close()
    flipped.write_bytes(flipped.read_bytes()[:-1] + b"\xff")
    gone.unlink()
    store = stores(tmp_path)
    assert served(store).coordinator.digest() == before
    more = "(an older array: the federation goes on without it)"
    assert store.old_damage() == [
        f"The stored array was altered: {flipped} {more}",
        f"The stored array is missing: {gone} {more}",
    ]


@pytest.mark.parametrize("kind", ["snapshot", "event", "open task"])
def test_a_damaged_array_that_is_needed_is_refused(tmp_path, stores, kind) -> None:
    filled(tmp_path, stores)
    history = read_history(tmp_path)
    newest = json.loads(history.snapshots[-1].record)
    tree = {
        "snapshot": newest["state"],
        "event": json.loads(history.events[-1].record),
        "open task": newest["open_tasks"],
    }[kind]
    path = tmp_path / "blobs" / f"{named_in(tree)[0]}.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"\xff")
    with pytest.raises(StorageError, match="was altered"):
        served(stores(tmp_path))


def test_nothing_new_rests_on_a_damaged_array(tmp_path) -> None:
    array = np.arange(5, dtype=np.float32)
    path = Blobs(tmp_path).path(Blobs(tmp_path).put(array))
    for damage in (b"", b"x", path.read_bytes()[:-1] + b"\xff"):
        path.write_bytes(damage)
        assert (Blobs(tmp_path).get(Blobs(tmp_path).put(array)) == array).all()
