"""The processes of the demo. Whatever happens, none of them outlives it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

import httpx

from artesian.core import ClientId
from artesian.demo.client import Orders
from artesian.demo.federation import DATA
from artesian.errors import ServerFailed, UserError, WorkerLost
from artesian.execution.threads import ONE_THREAD
from artesian.server.auth import Tokens

PORTS = range(8440, 8540)  # below those that outgoing connections take, so that nobody else does meanwhile
LOG_LINES = 10


class Stage:
    """A folder, and the processes that work in it. Each holds a pipe to this one, and ends when it breaks."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with undisturbed():
            for process in self.processes:
                process.kill()
            for process in self.processes:
                process.wait()
                assert process.stdin is not None
                with suppress(OSError):
                    process.stdin.close()

    def start(self, *arguments: str, out: Path, log: Path) -> subprocess.Popen[bytes]:
        """A Python process with its standard output in one file and its complaints in another."""
        environment = {**os.environ, **ONE_THREAD, DATA: str(self.folder / "digits.npz")}
        with open(out, "ab") as output, open(log, "ab") as errors:
            process = subprocess.Popen(
                [sys.executable, *arguments],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=errors,
                env=environment,
                bufsize=0,
                start_new_session=True,  # a Ctrl-C is for us; we end them
            )
        self.processes.append(process)
        return process


class Server:
    """`artesian serve` on loopback: killed and started again, always on the same store and port."""

    def __init__(self, stage: Stage) -> None:
        self.stage, self.store, self.log = stage, stage.folder / "store", stage.folder / "server.log"
        self.token = Tokens(self.store / "tokens.json").make("enrol", "demo")
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.process: subprocess.Popen[bytes] | None = None
        self._http = httpx.Client(base_url=self.url, timeout=1.0, trust_env=False)

    def start(self) -> None:
        """Begin to serve; `answers` tells when it does."""
        where = ("--store", str(self.store), "--port", str(self.port), "--set", "keep_uploads=true")
        source = "artesian.demo.federation:tied"
        self.process = self.stage.start("-m", "artesian.cli", "serve", source, *where, out=self.log, log=self.log)

    def answers(self) -> bool:
        """Is it ready?"""
        self.check()
        try:
            return self._http.get("/readyz").status_code == 200
        except httpx.TransportError:
            return False

    def check(self) -> None:
        """It must run, unless we killed it."""
        if self.process is not None and self.process.poll() is not None:
            raise ServerFailed(
                "the server runs until it is told to stop", ended(self.process, self.log), "mend what it says"
            )

    def kill(self) -> None:
        """SIGKILL: no word of warning, no time to write anything."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()
        self.process = None

    def stop(self, seconds: float) -> None:
        """SIGTERM: it takes a snapshot and leaves."""
        assert self.process is not None
        self._http.close()
        self.process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(seconds)
        if self.process.poll() != 0:
            raise ServerFailed("a server told to stop ends well", ended(self.process, self.log), "mend what it says")


class Client:
    """One client's process."""

    def __init__(self, stage: Stage, orders: Orders) -> None:
        self.name: ClientId = orders.client
        self.log = stage.folder / "logs" / f"{self.name}.log"
        record = stage.folder / "records" / f"{self.name}.jsonl"
        self.process = stage.start("-m", "artesian.demo.client", out=record, log=self.log)
        self._tell(asdict(orders))

    @property
    def ended(self) -> bool:
        """Has it stopped by itself, and well?"""
        return self.process.poll() == 0

    def check(self, ending: bool) -> None:
        """It must run until it is told to stop."""
        code = self.process.poll()
        if code is not None and not (ending and code == 0):
            got = f"{self.name} {ended(self.process, self.log)}"
            raise WorkerLost("clients run until they are told to stop", got, "mend what it says")

    def stop(self) -> None:
        """Ask it to finish what it is doing and end."""
        self._tell("stop")

    def _tell(self, words: Any) -> None:
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # it has ended: the next check says so
            self.process.stdin.write(json.dumps(words).encode() + b"\n")


def ended(process: subprocess.Popen[bytes], log: Path) -> str:
    """How a process ended, with the last lines of its log."""
    code = process.poll()
    how = "does not end" if code is None else f"ended with code {code}"
    lines = log.read_text(errors="replace").splitlines()[-LOG_LINES:]
    return "\n  ".join([f"{how}; the end of its log:", *lines]) if lines else f"{how} without a word"


def free_port() -> int:
    """A port on loopback that nobody listens on; two demos begin to look at different ones."""
    first = os.getpid() % len(PORTS)
    for port in (*PORTS[first:], *PORTS[:first]):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise UserError("the demo finds a free port", f"none from {PORTS[0]} to {PORTS[-1]}", "end what listens there")


@contextmanager
def undisturbed() -> Iterator[None]:
    """Cleaning up is not interrupted."""
    with handled(signal.SIG_IGN):
        yield


@contextmanager
def handled(handler: Any) -> Iterator[None]:
    """Ctrl-C, SIGTERM and a closed terminal go to this handler; who ignores one from the start goes on ignoring it."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {n: signal.signal(n, handler) for n in numbers if signal.getsignal(n) is not signal.SIG_IGN}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)
