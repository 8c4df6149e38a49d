"""The demo from its first process to its last word."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from math import inf
from pathlib import Path
from signal import SIG_IGN
from typing import Any

import httpx
import numpy as np

from artesian.cli.console import err, out
from artesian.core import ClientId, generator
from artesian.data.datasets import images
from artesian.demo.audit import audit
from artesian.demo.federation import SEED, experiment
from artesian.demo.processes import Attendant, free_port, handled
from artesian.demo.records import Records
from artesian.demo.screen import DemoProgress, Screen
from artesian.errors import MachineError, RunExists, ServerFailed, SettingError, WorkerLost
from artesian.server.tokens import Tokens
from artesian.storage.files import storage

LIMIT = 100.0  # seconds for all but the closing check, so that the demo ends within two minutes
PAUSES = (0.4, 1.6)  # mean seconds between two refreshes: every client's habit is between these
DEAD = 1.0  # seconds the killed server is left lying


def perform(clients: int, seconds: float, keep: Path | None = None, stay: bool = False) -> None:
    """Serve, let clients come, kill the server in the middle, start it again, and count; `stay` until Ctrl-C."""
    with handled(_interrupt), _folder(keep) as folder:
        err.print(
            "A server on this machine, and clients that are processes of their own, with digits in four\n"
            "rotations, mixed differently every time. Each refreshes when it chooses: it uploads one model and draws\n"
            "back one model, the clusters blended for what its data are now. In the middle the server is killed.\n"
        )
        digits = images("digits")
        np.savez(folder / "digits.npz", x=digits.x, y=digits.y)
        with ExitStack() as processes:
            names = list(experiment(clients).world.names)[:clients]
            kill = _Play(folder, processes, DemoProgress(_screen(), seconds), names).run(stay)
        check(folder, kill)
        if keep:
            out.print(f"kept          {keep}: artesian inspect {keep / 'store'}", highlight=False, markup=False)


def check(folder: Path, kill: str = "") -> None:
    """Compare the store with what clients saw acknowledged, show the last screen, and fail if anything is amiss."""
    records = Records(folder / "records")
    records.read()
    figures = records.figures()
    if figures is None or not (folder / "store" / "artesian.db").exists():
        raise SettingError(f"{folder} is not a folder that --keep wrote", "Name one that is")
    found = audit(folder / "store", records.acknowledged)
    _screen().close(records, figures, kill, found)
    found.insist()


class _Play:
    """One performance: processes, their records, and the time."""

    def __init__(self, folder: Path, processes: ExitStack, progress: DemoProgress, names: list[ClientId]) -> None:
        self.folder, self.processes, self.progress, self.names = folder, processes, progress, names
        self.records = Records(folder / "records")
        tokens = Tokens(folder / "store" / "tokens.json")
        self.token, self.admin = tokens.make("enrol", "demo"), tokens.make("admin", "demo-page")
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.http = processes.enter_context(httpx.Client(base_url=self.url, timeout=1.0, trust_env=False))
        self.server: Attendant | None = None
        self.clients: list[Attendant] = []
        self.deadline = time.monotonic() + LIMIT
        self.busy_since: float | None = None
        self.ending = False

    def run(self, stay: bool = False) -> str:
        """From the first process to the last; what the kill cost."""
        if err.is_terminal:
            self.processes.enter_context(self.progress.live)
        seconds = self.progress.seconds
        self._begin()
        self._watch(lambda: self.busy >= seconds / 2)
        kill = self._kill()
        seen = self._counts()
        self._watch(lambda: all(count > seen[name] for name, count in self._counts().items()))
        self._watch(lambda: self.busy >= seconds)
        if stay:
            self._stay()
        self._end()
        return kill

    def _stay(self) -> None:
        """Let clients come and go until somebody presses Ctrl-C."""
        self.progress.tell(f"everything goes on until Ctrl-C; the live page is at {self.url}")
        self.deadline = inf
        with suppress(KeyboardInterrupt):
            self._watch(lambda: False)
        self.deadline = time.monotonic() + LIMIT

    @property
    def busy(self) -> float:
        """Seconds since every client had its first answer."""
        return 0.0 if self.busy_since is None else time.monotonic() - self.busy_since

    def _begin(self) -> None:
        self._serve()
        self.progress.tell(f"the server answers at {self.url}: {len(self.names)} clients are started")
        self.progress.tell(f"the live page is at {self.url}/ while it runs: sign in with {self.admin}")
        self.clients = [self._client(name) for name in self.names]
        self._watch(lambda: all(self._counts().values()))
        self.busy_since = time.monotonic()
        self.progress.tell("every client has uploaded and drawn back a model")

    def _serve(self) -> None:
        """`artesian serve`, always on the same store and port."""
        where = ["--store", str(self.folder / "store"), "--port", str(self.port), "--set", "keep_uploads=true"]
        where += ["--set", "uploads_per_minute=0"]  # clients of the demo are in a hurry
        command = ["artesian.cli", "serve", "artesian.demo.federation:tied", *where]
        self.server = self._start("server", command, self.folder / "logs" / "server.log", ServerFailed)
        self._watch(self._answers)

    def _client(self, name: ClientId) -> Attendant:
        record = self.folder / "records" / f"{name}.jsonl"
        made = self._start(name, ["artesian.demo.client"], record, WorkerLost)
        pause = float(generator(SEED, "habit", name).uniform(*PAUSES))
        who = {"url": self.url, "token": self.token, "home": str(self.folder / "homes" / name), "client": name}
        made.tell({**who, "clients": len(self.names), "pause": pause})
        return made

    def _start(self, name: str, command: list[str], record: Path, failure: type[MachineError]) -> Attendant:
        made = Attendant(name, self.folder, command, record, failure)
        self.processes.callback(_undisturbed, made.end)
        return made

    def _answers(self) -> bool:
        try:
            return self.http.get("/readyz").status_code == 200
        except httpx.TransportError:
            return False

    def _kill(self) -> str:
        """SIGKILL at a moment when uploads are on their way; then the same command again."""
        caught = self._caught()
        assert self.server is not None
        self.server.end()
        self.server, began = None, time.monotonic()
        self._watch(lambda: time.monotonic() - began >= DEAD)
        cut = sum(self.records.sending.get(client) == number for client, number in caught.items())
        acknowledged = len(self.records.acknowledged)
        self.progress.tell(f"the server was killed with SIGKILL; acknowledged: {acknowledged}, on their way: {cut}")
        self._serve()
        down = time.monotonic() - began
        self.progress.tell(f"it answers again, on the same store and port, after {down:.1f} s")
        return f"1 with SIGKILL: uploads on their way: {cut}; answering again after {down:.1f} s"

    def _caught(self) -> dict[ClientId, int]:
        """Wait a little for a moment when somebody sends; what is on its way then."""
        end = time.monotonic() + 3
        while not self.records.sending and time.monotonic() < end:
            time.sleep(0.002)
            self.records.read()
        return dict(self.records.sending)

    def _end(self) -> None:
        self.ending = True
        for client in self.clients:
            client.tell("stop")
        self._watch(lambda: all(client.process.poll() == 0 for client in self.clients))
        assert self.server is not None
        self.server.process.terminate()
        self._watch(lambda: self.server is not None and self.server.process.poll() == 0)
        self.progress.tell("clients and server have ended; the store is compared with what clients saw acknowledged")

    def _watch(self, until: Callable[[], bool]) -> None:
        """Show how it goes until then; fail if a process does, or if it takes too long."""
        while not until():
            for attendant in (*self.clients, *([self.server] if self.server else [])):
                attendant.check(self.ending)
            if time.monotonic() > self.deadline:
                raise MachineError(f"The demo is still busy after {LIMIT:g} s", "Try fewer --clients")
            time.sleep(0.1)
            self.records.read()
            self.progress.show(self.records, self.busy)

    def _counts(self) -> dict[ClientId, int]:
        return {name: len(self.records.refreshes.get(name, ())) for name in self.names}


def _screen() -> Screen:
    chosen = experiment()
    return Screen(tuple(chosen.world.tests(SEED)), 4 * chosen.model.layout.size)


@contextmanager
def _folder(keep: Path | None) -> Iterator[Path]:
    """The folder of a demo: kept where it was wished, or temporary and gone at the end."""
    if keep is None:
        folder = Path(tempfile.mkdtemp(prefix="artesian-demo-"))
    else:
        folder = keep.resolve()
        with storage(keep):
            if keep.exists() and any(keep.iterdir()):
                raise RunExists(f"{keep} is not empty", "Give --keep a new folder")
            keep.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        with storage(folder):
            for name in ("store", "homes", "records", "logs"):
                (folder / name).mkdir(mode=0o700)
        yield folder
    finally:
        if keep is None:
            _undisturbed(lambda: shutil.rmtree(folder))


def _undisturbed(act: Callable[[], object]) -> None:
    """Cleaning up is not interrupted."""
    with handled(SIG_IGN):
        act()


def _interrupt(*_: Any) -> None:
    raise KeyboardInterrupt
