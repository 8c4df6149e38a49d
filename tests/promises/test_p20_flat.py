"""Memory, open files and the store stay flat, however many uploads a server has taken; and it starts soon."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from promises.federation import APP, SECRET, Process, Web

pytestmark = pytest.mark.heavy

GROWTH = 24  # MB of memory after the warm-up; arenas and caches fill up, a leak per upload would show
WARM = 100  # uploads before anything is measured


def grown(before: tuple[float, int, int], after: tuple[float, int, int]) -> list[str]:
    """What grew further than it may: memory in MB, descriptors, files of the store."""
    names, allowed = ("MB of memory", "open files", "files in the store"), (GROWTH, 4, 30)
    rows = zip(names, allowed, before, after, strict=True)
    return [f"{name}: {then:.0f} to {now:.0f}" for name, most, then, now in rows if now - then > most]


def sizes(server: Process) -> tuple[float, int, int]:
    stored = sum(path.is_file() for path in (server.folder / "store").rglob("*"))
    return server.resident(), server.files(), stored


@pytest.mark.thorough
def test_memory_open_files_and_the_store_stay_flat(tmp_path, promise, figure) -> None:
    uploads = promise("flat")
    server = Process(tmp_path, "--set", "retain=50 uploads")
    tasks = {name: server.join(name) for name in ("c0", "c1", "c2", "c3")}
    for turn in range(WARM + uploads):
        if turn == WARM:
            before = sizes(server)
        name = f"c{turn % 4}"
        tasks[name] = server.upload(name, tasks[name])
    after = sizes(server)
    assert server.stop(signal.SIGTERM) == 0
    assert grown(before, after) == []
    figure("{:.0f} to {:.0f} MB, {} to {} open files, {} to {} files".format(*sum(zip(before, after, strict=True), ())))


def test_growth_would_be_seen() -> None:
    assert grown((100.0, 10, 40), (100.0 + GROWTH + 1, 10, 40))
    assert grown((100.0, 10, 40), (100.0, 15, 40))
    assert grown((100.0, 10, 40), (100.0, 10, 71))


def test_a_server_is_up_soon_and_has_not_imported_torch(tmp_path, promise, figure) -> None:
    """The command as a user starts it, imports and all."""
    promise("start")
    (tmp_path / "served.py").write_text(APP)
    command = [
        sys.executable,
        "-m",
        "artesian.cli",
        "serve",
        "served:federation",
        "--store",
        "store",
        "--port",
        "0",
        "--show-token",
    ]
    began = time.monotonic()
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    try:
        shown = next(line for line in process.stderr if line.startswith("serving "))
        port = int(shown.rpartition(":")[2])
        server = Web(port)
        while not server.up():
            assert time.monotonic() - began < 60
        seconds = time.monotonic() - began
        worked = sum(map(int, Path(f"/proc/{process.pid}/stat").read_text().split()[13:15])) / os.sysconf("SC_CLK_TCK")
        libraries = Path(f"/proc/{process.pid}/maps").read_text()
        assert "torch" not in libraries
        assert server.request("GET", "/metrics", SECRET)[0] == 401
    finally:
        os.kill(process.pid, signal.SIGTERM)
        assert process.wait(timeout=30) == 0
        process.stderr.close()
    figure(f"{seconds:.1f} s from the command to the first answer, {worked:.1f} s of them at work")
    assert worked < 10  # of the processor's: a busy machine is not the server's fault
