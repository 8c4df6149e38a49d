"""P18: a backup taken under load restores to an exact beginning of the history, and to the state that belongs to it."""

import json
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from promises.federation import SECRET, Process, Server, answer, clients, draws, federation, until

from artesian.cli import app
from artesian.engine.outcomes import task_digest
from artesian.server.service import Service
from artesian.storage import copying
from artesian.storage.blobs import Blobs
from artesian.storage.copying import Copied, copy_store
from artesian.storage.history import StoreHistory
from artesian.storage.reading import read_history
from artesian.storage.store import Store


def wrong_with(backup: Path, live: StoreHistory, work: Path) -> list[str]:
    """What a restored backup is, other than a beginning of the live history with the state that belongs to it."""
    shutil.rmtree(work, ignore_errors=True)
    restored = copy_store(backup, work).history
    count = restored.count
    wrong = [] if restored.events == live.events[:count] else [f"{backup}: not a beginning of the history"]
    found, rebuilt = states(work)
    return wrong + ([] if found == rebuilt else [f"{backup}: another state than its {count} events give"])


def states(folder: Path) -> tuple[str, str]:
    """What a server that starts here would go on with, and what all events from the first give."""
    served = federation()
    store = Store(folder, served.identity)
    try:
        service, rebuilt = Service.open(served, store, keep_uploads=True), served.begin()
        for event in store.events():
            rebuilt.replay(event)
        return service.coordinator.digest(), rebuilt.digest()
    finally:
        store.close()


@pytest.mark.heavy
def test_backups_under_load_are_exact_beginnings(tmp_path, promise, figure) -> None:
    """From servers that keep uploads, so that everything can be replayed from the first event; ten of each server."""
    wanted, moments, events = promise("backups"), draws("backups"), 0
    for part in range(0, wanted, 10):
        folder = tmp_path / str(part)
        folder.mkdir()
        events += backed_up(folder, min(10, wanted - part), moments)
        shutil.rmtree(folder)
    figure(f"{events} events")


def backed_up(folder: Path, wanted: int, moments) -> int:
    """Backups of one server under load, each an exact beginning of the history that it ends with; its events."""
    server = Process(folder, "--set", "keep_uploads=true", "--set", "log=off")
    backups = [folder / f"backup{turn}" for turn in range(wanted)]
    with clients(server, 6) as made:
        for backup in backups:
            goal = acknowledged(made) + moments.randint(1, 9)
            until(lambda goal=goal: acknowledged(made) >= goal)
            before = acknowledged(made)
            history = copy_store(folder / "store", backup).history
            uploads = sum('"kind":"upload"' in row.record for row in history.events)
            assert before <= uploads <= acknowledged(made) + 6, "what was acknowledged before a backup is in it"
    server.stop()
    live = read_history(folder / "store")
    assert [text for backup in backups for text in wrong_with(backup, live, folder / "work")] == []
    return live.count


def check_backup(server: Server, folder: Path) -> None:
    """A backup of a server that takes an upload and a snapshot meanwhile holds all that was acknowledged before."""
    tasks = {name: server.join(name).content for name in ("c0", "c1")}
    for name, task in tasks.items():
        path = f"/v1/clients/{name}/uploads/1"
        assert server.ask("PUT", path, SECRET, content=answer(name, task)).status_code == 200
    before = server.store.count

    def meanwhile(path: Path) -> None:
        server.join(f"late{path.stat().st_ino}")
        server.service._save()

    copied = copy_beside(server.store.folder, folder / "backup", meanwhile)
    assert copied.history.count >= before, "an acknowledged event is missing"
    assert copied.attempts == 1, "arrays were dropped under the hands of a backup"
    assert answers(folder / "backup") == given(copied.history)


def copy_beside(store: Path, target: Path, meanwhile: Callable[[Path], None]) -> Copied:
    """A copy of a store to which something happens once its database was copied for the first time."""
    real, done = copying._copy_database, []

    def copy_database(source: Path, path: Path) -> StoreHistory:
        history = real(source, path)
        if not done:
            done.append(meanwhile(path))
        return history

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(copying, "_copy_database", copy_database)
        return copy_store(store, target)


def test_a_backup_during_a_snapshot_is_taken_once(tmp_path) -> None:
    server = Server(tmp_path / "store")
    check_backup(server, tmp_path)
    server.close()


def acknowledged(made) -> int:
    return sum(len(client.acknowledged) for client in made)


@pytest.mark.heavy
def test_backups_while_snapshots_drop_arrays_give_the_answers_of_their_moment(tmp_path, promise, figure) -> None:
    """A snapshot after every upload: while a backup is taken none of them drops arrays, and after it they do."""
    wanted, attempts = promise("backups-snapshots"), []
    server = Process(tmp_path, "--set", "log=off", "--set", "snapshot_every=1")
    with clients(server, 4) as made:
        until(lambda: acknowledged(made) >= 4)
        for turn in range(wanted):
            attempts.append(copy_store(tmp_path / "store", tmp_path / f"backup{turn}").attempts)
    server.stop()
    live = read_history(tmp_path / "store")
    assert set(attempts) == {1}, "arrays were dropped under the hands of a backup"
    assert set(Blobs(tmp_path / "store" / "blobs").names()) == live.expected, "what backups held up was never dropped"
    for turn in range(wanted):
        copied = copy_store(tmp_path / f"backup{turn}", tmp_path / f"restored{turn}").history
        assert copied.events == live.events[: copied.count]
        assert answers(tmp_path / f"restored{turn}") == given(copied)
    figure(f"{live.count} events, one copy of the database for each backup")


def given(history: StoreHistory) -> dict[str, str]:
    """The digest of the task each client was given last, as the events recorded it."""
    outcomes = [json.loads(row.record)["outcome"] for row in history.events]
    tasks = {name: digest for outcome in outcomes for name, digest in outcome.items() if name.startswith("task of ")}
    return {name.removeprefix("task of "): digest for name, digest in tasks.items()}


def answers(folder: Path) -> dict[str, str]:
    """The digest of the task each client would get from a server that starts here."""
    served = federation()
    store = Store(folder, served.identity)
    try:
        tasks = dict(Service.open(served, store).coordinator.snapshot().open_tasks)
        return {client: task_digest(task) for client, task in tasks.items()}
    finally:
        store.close()


@pytest.mark.heavy
def test_the_commands_back_up_a_served_store_and_restore_it(tmp_path, capsys) -> None:
    server = Process(tmp_path, "--set", "log=off")
    with clients(server, 2) as made:
        until(lambda: acknowledged(made) >= 5)
        told = command(capsys, "backup", tmp_path / "store", tmp_path / "backup", "--json")
        assert command(capsys, "verify", tmp_path / "store", "--json")["sound"]
        assert command(capsys, "inspect", tmp_path / "store", "--json")["events"] >= told["events"] >= 7
    server.stop()
    assert command(capsys, "restore", tmp_path / "backup", tmp_path / "again", "--json")["chain"] == told["chain"]
    assert command(capsys, "verify", tmp_path / "again", "--json")["sound"]


def command(capsys, *words: object) -> dict:
    with suppress(SystemExit):  # with 0: what fails prints no JSON
        app([str(word) for word in words], standalone_mode=False)
    return json.loads(capsys.readouterr().out)
