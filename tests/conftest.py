"""What all tests share: Ctrl-C, tiers, no waiting for disk, imports or threads, the promises' counts and table."""

import multiprocessing
import os
import signal
from functools import cache

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # threads with nothing to do sleep: the cores have other tests

import pytest
import typer.main
import typer.testing
from promises.table import FULL, figure, lines, promise
from tiers import check_named, is_elsewhere

from artesian.execution import processes
from artesian.server import hashing

__all__ = ["figure", "promise"]

# the command line is made once, not by every test that calls a command
typer.main.get_command = typer.testing._get_command = cache(typer.main.get_command)

# whoever starts tests in the background may have them ignore Ctrl-C, and with them every process they start
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_ignore_collect(collection_path, config) -> bool | None:
    return is_elsewhere(collection_path, config.option.markexpr) or None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items) -> None:
    check_named(items)


FORKING = multiprocessing.get_context("forkserver")
FORKING.set_forkserver_preload(["pytest", "scipy.ndimage", "artesian.simulator.run", "artesian.testing"])


@pytest.fixture(autouse=True)
def _no_waiting(request, monkeypatch) -> None:
    """Secrets are hashed slowly, and files synced, on purpose: that is not what most tests spend their time for."""
    if "slow_hashes" not in request.fixturenames:
        monkeypatch.setattr(hashing, "COST", 4)
    if request.node.get_closest_marker("heavy") is not None:  # keeps its syncs, and starts its workers anew
        return
    monkeypatch.setattr(os, "fsync", lambda _: None)  # nobody in process can see a sync
    monkeypatch.setattr(os, "fdatasync", lambda _: None)
    if request.path.parent.name != "execution":  # where workers are the point
        monkeypatch.setattr(processes, "_SPAWN", FORKING)


def pytest_terminal_summary(terminalreporter) -> None:
    reports = [
        report for group in terminalreporter.stats.values() for report in group if isinstance(report, pytest.TestReport)
    ]
    if told := lines(reports):
        terminalreporter.section(f"promises, {'full' if FULL else 'quick'} counts")
        for line in told:
            terminalreporter.write_line(line)
