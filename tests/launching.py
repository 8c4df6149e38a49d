"""Commands as real processes that cost no imports: forked from one that has done them."""

import atexit
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

SERVING = """
import uvicorn
import artesian.server.hashing
import artesian.server.serve
artesian.server.hashing.COST = 4  # these servers are in a hurry; what a check costs is not what they prove
from artesian.algorithms import CDFL
from artesian.testing import ToyModel
"""
SIMULATING = """
import sklearn.datasets
import artesian.config.experiments, artesian.report.runs, artesian.simulator.executor, artesian.simulator.folder
"""


class Launcher:
    """The process that forks commands; see launcher.py."""

    def __init__(self, prelude: str = "", under: tuple[str, ...] = ()) -> None:
        self._codes: dict[int, int | None] = {}  # of those that have ended
        command = [*under, sys.executable, str(Path(__file__).with_name("launcher.py"))]
        self.process = subprocess.Popen(
            command,
            env={**os.environ, "LAUNCHER_PRELUDE": prelude},
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self.process.stdout.readline() == "ready\n"

    def start(self, words: list[str], folder: Path, log: Path, out: Path | None = None, **environment: str) -> int:
        """The process id of `artesian words`, run in this folder, its standard error in a log."""
        surroundings = {**os.environ, **environment}
        return self._ask(words=words, folder=str(folder), log=str(log), out=str(out or log), environment=surroundings)

    def poll(self, pid: int) -> int | None:
        """The exit code, once it has one."""
        if self._codes.get(pid) is None:
            self._codes[pid] = self._ask(poll=pid)
        return self._codes[pid]

    def wait(self, pid: int, seconds: float = 60.0) -> int:
        """The exit code of a process that must end."""
        end = time.monotonic() + seconds
        while (code := self.poll(pid)) is None:
            assert time.monotonic() < end, "a command does not end"
            time.sleep(0.002)
        return code

    def run(self, *words: str, cwd: Path | None = None, timeout: float = 120, **environment: str):
        """A command from its start to its end: its exit code, and what it printed."""
        with tempfile.TemporaryDirectory() as folder:
            out, log = Path(folder, "out"), Path(folder, "log")
            pid = self.start(list(words), cwd or Path.cwd(), log, out, **environment)
            return subprocess.CompletedProcess(words, self.wait(pid, timeout), out.read_text(), log.read_text())

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait(timeout=30)
        self.process.stdout.close()

    def _ask(self, **order) -> int | None:
        print(json.dumps(order), file=self.process.stdin, flush=True)
        return json.loads(self.process.stdout.readline())


@cache
def launcher(prelude: str = SERVING) -> Launcher:
    """The one that all ordinary commands with these imports come from."""
    made = Launcher(prelude)
    atexit.register(made.close)
    return made


@contextmanager
def served(folder: Path, *words: str) -> Iterator[tuple[str, str]]:
    """The address and the enrolment token of `artesian serve words`, run in this folder until the block ends."""
    log = folder / "log"
    command = [sys.executable, "-m", "artesian.cli", "serve", *words, "--show-token", "--port", "0", "--set", "log=off"]
    with log.open("w") as said:
        server = subprocess.Popen(command, cwd=folder, stderr=said, stdout=said)
    try:
        while not (address := re.search(r"http://127\.0\.0\.1:\d+", log.read_text())):
            assert server.poll() is None, log.read_text()
            time.sleep(0.05)
        yield address[0], re.search(r"artesian_enrol_\S+", log.read_text())[0]
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(timeout=30)


def printed(*words: str, cwd: Path, **environment: str) -> str:
    """What a command prints that must end well."""
    surroundings = {**os.environ, **environment}
    told = subprocess.run(words, capture_output=True, text=True, cwd=cwd, timeout=300, env=surroundings)
    assert told.returncode == 0, told.stderr
    return told.stdout
