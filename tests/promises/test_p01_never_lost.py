"""P1: an acknowledged upload is never lost, whenever the server dies."""

import os
import signal
import time

import pytest
from promises.checks import history, lost_or_twice
from promises.federation import IDENTITY, Process, clients, draws, restored, resumed, served, until

from artesian.server import failpoints
from artesian.server.store import Store


def test_killed_under_clients_a_server_loses_nothing(tmp_path, promise, figure) -> None:
    """Killed at any moment; now and then, and in the end, its journal is replayed from the first event on."""
    kills, moments = promise("kills"), draws("kills")
    server = Process(tmp_path, "--set", "keep_uploads=true", "--set", "log=off")
    with clients(server, 8) as made:
        for kill in range(1, kills + 1):
            wanted = progress(made) + moments.randint(0, 15)  # uploads of this life
            until(lambda wanted=wanted: progress(made) >= wanted)
            time.sleep(moments.uniform(0.0, 0.02))
            server.stop()
            if kill % max(3, kills // 4) == 0:
                check(tmp_path, made)
            server.start()
        before = {client: len(client.acknowledged) for client in made}
        until(lambda: all(len(client.acknowledged) > before[client] for client in made))  # everybody is served again
    server.stop()
    figure(f"{check(tmp_path, made)} uploads acknowledged")


def progress(made) -> int:
    return sum(len(client.acknowledged) for client in made)


def check(folder, made) -> int:
    """What clients saw acknowledged by now is in the store."""
    sent, acknowledged = history(made)
    _, journal = restored(folder / "store")
    assert lost_or_twice(sent, acknowledged, journal) == []
    return len(acknowledged)


HITS = (1, 2, 5)


def deaths() -> list[tuple[str, int]]:
    """Every fail point, at its first, a second and a later hit: all of them, or each once."""
    from promises.table import ROWS

    every = [(name, hits) for hits in HITS for name in failpoints.NAMES]
    once = [(name, HITS[i % len(HITS)]) for i, name in enumerate(failpoints.NAMES)]
    return every if ROWS["fail-points"].count == len(every) else once


@pytest.mark.parametrize(("name", "hits"), deaths())
def test_dead_at_any_fail_point_a_server_loses_nothing(tmp_path, promise, name, hits) -> None:
    assert promise("fail-points") == len(deaths())
    server = Process(tmp_path, "--set", "keep_uploads=true", "--set", "log=off")
    server.stop(signal.SIGTERM)
    server.start(**{failpoints.VARIABLE: f"{name}:{hits}"})
    with clients(server, 4) as made:
        assert server.wait() == -signal.SIGKILL
        check(tmp_path, made)
        server.start(**{failpoints.VARIABLE: ""})
        before = {client: len(client.acknowledged) for client in made}
        until(lambda: all(len(client.acknowledged) > before[client] for client in made))
    server.stop()
    assert check(tmp_path, made) >= 4


def test_killed_while_it_writes_a_store_holds_what_was_acknowledged(tmp_path, promise) -> None:
    """A process of its own writes until it is killed; what it had acknowledged through a pipe is there."""
    kills, moments = promise("writers"), draws("writers")
    for kill in range(kills):
        folder = tmp_path / f"store{kill // 25}"
        told = written_until_killed(folder, moments.uniform(0.0, 0.03))
        store = Store(folder, IDENTITY)
        found = served(store).coordinator.state
        store.close()
        for line in told:
            client, number = line.split(":")
            assert found.members[client].answered >= int(number), f"{line} is lost after kill {kill}"
        assert found.version == sum(member.answered for member in found.members.values())


def written_until_killed(folder, seconds: float) -> list[str]:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        write_for_ever(folder, writing)
    os.close(writing)
    with os.fdopen(reading) as told:
        first = told.readline()  # it is at work
        time.sleep(seconds)
        os.kill(child, signal.SIGKILL)
        rest = told.read().splitlines()
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status), "the writer ended by itself"
    return [line for line in (first.strip(), *rest) if line and line != "begun"]


def write_for_ever(folder, told: int) -> None:
    try:
        store = Store(folder, IDENTITY)
        toy = resumed(served(store))
        os.write(told, b"begun\n")
        for step in range(1_000_000):
            upload = toy.step()
            os.write(told, f"{upload.client}:{upload.number}\n".encode())
            if step % 4 == 3:
                store.save(toy.coordinator.snapshot(tasks=False))
    finally:
        os._exit(1)
