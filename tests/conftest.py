"""What all tests share: Ctrl-C, no waiting for disk or imports, the promises' counts, and the table at the end."""

import multiprocessing
import os
import signal

import pytest
from promises.table import FULL, figure, lines, promise

from artesian.execution import processes
from artesian.server import hashing

__all__ = ["figure", "promise"]

# whoever starts tests in the background may have them ignore Ctrl-C, and with them every process they start
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _no_waiting_for_the_disk(request, monkeypatch) -> None:
    """Syncs cost most of the time of small tests, and nobody in process can see them; heavy tests keep them."""
    if request.node.get_closest_marker("heavy") is None:
        monkeypatch.setattr(os, "fsync", lambda _: None)
        monkeypatch.setattr(os, "fdatasync", lambda _: None)


@pytest.fixture(autouse=True)
def _no_waiting_for_hashes(request, monkeypatch) -> None:
    """Secrets are hashed slowly on purpose; heavy tests, and those of the hashes themselves, keep that."""
    if request.node.get_closest_marker("heavy") is None and request.path.name != "test_tokens.py":
        monkeypatch.setattr(hashing, "COST", 4)


FORKING = multiprocessing.get_context("forkserver")
FORKING.set_forkserver_preload(["pytest", "scipy.ndimage", "artesian.simulator.run", "artesian.testing"])


@pytest.fixture(autouse=True)
def _no_waiting_for_imports(request, monkeypatch) -> None:
    """Workers are forked from a process that has imported what they need; where they are the point, they start anew."""
    if request.node.get_closest_marker("heavy") is None and request.path.parent.name != "execution":
        monkeypatch.setattr(processes, "_SPAWN", FORKING)


def pytest_terminal_summary(terminalreporter) -> None:
    reports = [
        report for group in terminalreporter.stats.values() for report in group if isinstance(report, pytest.TestReport)
    ]
    if told := lines(reports):
        terminalreporter.section(f"promises, {'full' if FULL else 'quick'} counts")
        for line in told:
            terminalreporter.write_line(line)
