"""Processes that write a store until they are killed; what each had acknowledged through a pipe must be there."""

import os
import signal
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from promises.federation import IDENTITY, draws, resumed, served

from artesian.storage.store import Store


def survive(folder: Path, kills: int) -> None:
    moments = draws("writers")
    for kill in range(kills):
        store_folder = folder / f"store{kill // 8}"  # a new one now and then: it may die while it is made
        told = written_until_killed(store_folder, moments.uniform(0.0, 0.03), wait=moments.random() < 0.7)
        store = Store(store_folder, IDENTITY)
        found = served(store).coordinator.state
        store.close()
        for line in told:
            client, number = line.split(":")
            assert found.members[client].answered >= int(number), f"{line} is lost after kill {kill}"
        assert found.version == sum(member.answered for member in found.members.values())


def written_until_killed(folder, seconds: float, wait: bool) -> list[str]:
    """What a writer acknowledged, killed so long after it was at work; or after it began to open its store."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        write_for_ever(folder, writing)
    os.close(writing)
    with os.fdopen(reading) as told:
        first = told.readline() if wait else ""
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


survive(Path(sys.argv[1]), int(sys.argv[2]))
print(f"{sys.argv[2]} kills survived")
