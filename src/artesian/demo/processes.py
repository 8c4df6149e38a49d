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
from pathlib import Path
from typing import Any

from artesian.demo.federation import DATA
from artesian.errors import ArtesianError, UserError
from artesian.execution.threads import ONE_THREAD

PORTS = range(8440, 8540)  # below those of outgoing connections: nobody takes the port of a server that was killed
LOG_LINES = 10


class Attendant:
    """A process that works in the demo's folder. It holds a pipe to this one, and ends when the pipe breaks."""

    def __init__(self, name: str, folder: Path, command: list[str], record: Path, failure: type[ArtesianError]) -> None:
        self.name, self.failure, self.log = name, failure, folder / "logs" / f"{name}.log"
        with open(record, "ab") as output, open(self.log, "ab") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", *command],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=errors,
                env={**os.environ, **ONE_THREAD, DATA: str(folder / "digits.npz")},
                bufsize=0,
                start_new_session=True,  # a Ctrl-C is for us; we end them
            )

    def tell(self, words: Any) -> None:
        """Write a line to its standard input."""
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # it has ended: the next check says so
            self.process.stdin.write(json.dumps(words).encode() + b"\n")

    def check(self, ending: bool = False) -> None:
        """It must run until it is asked to stop, and then end well."""
        code = self.process.poll()
        if code is not None and not (ending and code == 0):
            lines = self.log.read_text(errors="replace").splitlines()[-LOG_LINES:] or ["(nothing)"]
            words = "\n  ".join([f"{self.name} ended with code {code}; the end of its log:", *lines])
            raise self.failure(words, "Fix what it says, then start the demo again")

    def end(self) -> None:
        """Be gone, at once."""
        self.process.kill()
        self.process.wait()
        assert self.process.stdin is not None
        with suppress(OSError):
            self.process.stdin.close()


def free_port() -> int:
    """A port on loopback that nobody listens on; two demos begin their search at different ones."""
    first = os.getpid() % len(PORTS)
    for port in (*PORTS[first:], *PORTS[:first]):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with suppress(OSError):
                probe.bind(("127.0.0.1", port))
                return port
    raise UserError(f"Every port from {PORTS[0]} to {PORTS[-1]} is taken", "Stop something that listens on one of them")


@contextmanager
def handled(handler: Any) -> Iterator[None]:
    """Ctrl-C, SIGTERM and a closed terminal go to this handler; a signal ignored from the start stays ignored."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {n: signal.signal(n, handler) for n in numbers if signal.getsignal(n) is not signal.SIG_IGN}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)
