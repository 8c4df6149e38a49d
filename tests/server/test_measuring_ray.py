"""Measuring on Ray: the same journal as anywhere, whoever dies; nobody is left behind."""

import signal
from contextlib import suppress
from pathlib import Path

import pytest
from promises.federation import APP, Process, until
from server.test_measuring import DIE, alive, journal, measured, play, watched

from artesian.server.messages import decode_task

ray = pytest.importorskip("ray", reason="Ray is not installed")
pytestmark = [pytest.mark.ray, pytest.mark.filterwarnings("ignore::ResourceWarning")]  # its own, of pipes
WORKING = (b"ray::perform", b"ray::start", b"ray::IDLE")  # what Ray calls its workers
RAY = ("--measure", "ray", "--measurers", "1")


def measurers(pid: int) -> set[int]:
    """The workers among the processes that come from this one."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            parents[int(path.name)] = int((path / "stat").read_text().rpartition(")")[2].split()[1])
    found = {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return {one for one in found if alive(one) and Path(f"/proc/{one}/cmdline").read_bytes().startswith(WORKING)}


@pytest.fixture(autouse=True)
def own_cluster(monkeypatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)


def test_workers_write_the_journal_of_threads_and_end_with_the_server(tmp_path) -> None:
    for way, options in (("threads", ()), ("ray", RAY)):
        (tmp_path / way).mkdir()
        process = Process(tmp_path / way, *options, app=APP)
        play(process)
        others = measurers(process.pid)
        assert len(others) == (way == "ray")
        assert process.stop(signal.SIGTERM) == 0
        until(lambda others=others: not any(map(alive, others)))
    assert journal(tmp_path / "ray") == journal(tmp_path / "threads")


def test_a_worker_that_dies_is_replaced_and_a_killed_server_leaves_nobody(tmp_path) -> None:
    died = str(tmp_path / "died")
    hook = f"if not pathlib.Path({died!r}).exists(): pathlib.Path({died!r}).touch(); {DIE}"
    process = Process(tmp_path, *RAY, app=watched(hook))
    assert decode_task(process.upload("c0", process.join("c0"))).number == 2
    assert (tmp_path / "died").exists()
    others = measurers(process.pid)
    assert len(others) == 1
    process.stop()
    until(lambda: not any(map(alive, others)))  # Ray's own agents take a minute or so longer
    assert measured(tmp_path) == [("c0", 1)]
