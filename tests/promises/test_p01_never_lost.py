"""P1: an acknowledged upload is never lost, whenever the server dies."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from promises.checks import history, lost_or_twice
from promises.federation import Process, clients, draws, restored, until
from promises.table import ROWS

from artesian.storage import failpoints

pytestmark = pytest.mark.heavy


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
    """In a process of its own, which forks: this one has threads."""
    script, kills = Path(__file__).with_name("writers.py"), str(promise("writers"))
    told = subprocess.run([sys.executable, script, tmp_path, kills], capture_output=True, text=True, timeout=1800)
    assert told.returncode == 0, told.stderr
    assert told.stdout == f"{kills} kills survived\n"
