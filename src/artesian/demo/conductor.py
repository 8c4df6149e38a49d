"""The demo from its first process to its last word."""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from artesian.cli.console import err, out
from artesian.core import ClientId, generator
from artesian.demo.audit import audit
from artesian.demo.client import Orders
from artesian.demo.records import Records
from artesian.demo.screen import Kill, Repository, Screen, close
from artesian.demo.stage import Client, Server, Stage, handled, undisturbed
from artesian.demo.world import SEED, experiment, write_digits
from artesian.errors import MachineError, RunExists, SettingError
from artesian.storage.files import storage

LIMIT = 100.0  # seconds for all but the closing check, so that the demo ends within two minutes
PAUSES = (0.4, 1.6)  # mean seconds between two refreshes: every client's habit is between these
DEAD = 1.0  # seconds the killed server is left lying


def perform(clients: int, seconds: float, keep: Path | None = None) -> None:
    """Serve, let clients come, kill the server in the middle, start it again, and count."""
    with handled(_interrupt), _folder(keep) as folder:
        err.print(
            "A server on this machine, and clients that are processes of their own, with digits in four\n"
            "rotations, mixed differently every time. Each trains when it chooses, uploads one model, and draws\n"
            "back one model: the clusters blended for what its data are now. In the middle the server is killed.\n"
        )
        write_digits(folder / "digits.npz")
        chosen = experiment(clients, str(folder / "digits.npz"))
        with Screen(_repository(), seconds) as screen, Stage(folder) as stage:
            kills = _Play(stage, screen, list(chosen.world.names)[:clients], seconds).run()
        _write_kills(folder, kills)
        check(folder)
        if keep:
            out.print(f"kept          {keep}: artesian inspect {keep / 'store'}", highlight=False, markup=False)


def check(folder: Path) -> None:
    """Compare the store with what clients saw acknowledged, show the last screen, and fail if anything is amiss."""
    records = Records(folder / "records")
    records.read()
    figures = records.figures()
    if figures is None or not (folder / "store" / "artesian.db").exists():
        raise SettingError("--check takes a folder that --keep wrote", str(folder), "name another")
    found = audit(folder / "store", records.acknowledged)
    close(records, figures, _repository(), _read_kills(folder), found)
    found.insist()


class _Play:
    """One performance: processes, their records, and the time."""

    def __init__(self, stage: Stage, screen: Screen, names: list[ClientId], seconds: float) -> None:
        self.stage, self.screen, self.names, self.seconds = stage, screen, names, seconds
        self.records = Records(stage.folder / "records")
        self.server = Server(stage)
        self.clients: list[Client] = []
        self.deadline = time.monotonic() + LIMIT
        self.busy_since: float | None = None
        self.ending = False

    def run(self) -> list[Kill]:
        """From the first process to the last."""
        self._begin()
        self._watch(lambda: self.busy >= self.seconds / 2)
        kill = self._kill()
        seen = self._counts()
        self._watch(lambda: all(count > seen[name] for name, count in self._counts().items()))
        self._watch(lambda: self.busy >= self.seconds)
        self._end()
        return [kill]

    @property
    def busy(self) -> float:
        """Seconds since every client had its first answer."""
        return 0.0 if self.busy_since is None else time.monotonic() - self.busy_since

    def _begin(self) -> None:
        self.server.start()
        self._watch(self.server.answers)
        self.screen.tell(f"the server answers at {self.server.url}: {len(self.names)} clients are started")
        self.clients = [Client(self.stage, self._orders(name)) for name in self.names]
        self._watch(lambda: all(self._counts().values()))
        self.busy_since = time.monotonic()
        self.screen.tell("every client has uploaded and drawn back a model")

    def _kill(self) -> Kill:
        """SIGKILL at a moment when uploads are on their way; then the same command again."""
        caught = self._caught()
        self.server.kill()
        began = time.monotonic()
        self._watch(lambda: time.monotonic() - began >= DEAD)
        cut = sum(self.records.sending.get(client) == number for client, number in caught.items())
        acknowledged = len(self.records.acknowledged)
        self.screen.tell(
            f"the server was killed with SIGKILL; uploads acknowledged: {acknowledged}, on their way: {cut}"
        )
        self.server.start()
        self._watch(self.server.answers)
        down = time.monotonic() - began
        self.screen.tell(f"it answers again, on the same store and port, after {down:.1f} s")
        return Kill(cut, down)

    def _caught(self) -> dict[ClientId, int]:
        """Wait for a moment when somebody sends; what is on its way then."""
        end = time.monotonic() + 3
        while time.monotonic() < end:
            self.records.read()
            if self.records.sending:
                break
            time.sleep(0.002)
        return dict(self.records.sending)

    def _end(self) -> None:
        self.ending = True
        for client in self.clients:
            client.stop()
        self._watch(lambda: all(client.ended for client in self.clients))
        self.server.stop(max(1.0, self.deadline - time.monotonic()))
        self.records.read()
        self.screen.tell("clients and server have ended; the store is compared with what clients saw acknowledged")

    def _watch(self, until: Callable[[], bool]) -> None:
        """Show how it goes until then; fail if a process does, or if it takes too long."""
        while not until():
            self.server.check()
            for client in self.clients:
                client.check(self.ending)
            if time.monotonic() > self.deadline:
                raise MachineError("the demo ends by itself", f"still busy after {LIMIT:g} s", "try fewer --clients")
            time.sleep(0.1)
            self.records.read()
            self.screen.show(self.records, self.busy)

    def _counts(self) -> dict[ClientId, int]:
        return {name: len(self.records.refreshes.get(name, ())) for name in self.names}

    def _orders(self, name: ClientId) -> Orders:
        return Orders(
            client=name,
            url=self.server.url,
            token=self.server.token,
            home=str(self.stage.folder / "homes" / name),
            data=str(self.stage.folder / "digits.npz"),
            clients=len(self.names),
            pause=float(generator(SEED, "habit", name).uniform(*PAUSES)),
        )


def _repository() -> Repository:
    chosen = experiment()
    return Repository(tuple(chosen.world.tests(SEED)), 4 * chosen.model.layout.size)


@contextmanager
def _folder(keep: Path | None) -> Iterator[Path]:
    """The folder of a demo: kept where it was wished, or temporary and gone at the end."""
    if keep is not None:
        with storage(keep):
            if keep.exists() and any(keep.iterdir()):
                raise RunExists("--keep takes a new folder", f"{keep}, which holds something", "name another")
            keep.mkdir(mode=0o700, parents=True, exist_ok=True)
        yield _furnished(keep.resolve())
        return
    folder = Path(tempfile.mkdtemp(prefix="artesian-demo-"))
    try:
        yield _furnished(folder)
    finally:
        with undisturbed():
            shutil.rmtree(folder)


def _furnished(folder: Path) -> Path:
    with storage(folder):
        for name in ("store", "homes", "records", "logs"):
            (folder / name).mkdir(mode=0o700)
    return folder


def _interrupt(*_: Any) -> None:
    raise KeyboardInterrupt


def _write_kills(folder: Path, kills: list[Kill]) -> None:
    with storage(folder):
        (folder / "kills.json").write_text(json.dumps([asdict(kill) for kill in kills]))


def _read_kills(folder: Path) -> list[Kill]:
    path = folder / "kills.json"
    try:
        with storage(path):
            return [Kill(**kill) for kill in json.loads(path.read_text())]
    except (ValueError, TypeError):
        raise SettingError("kills.json tells of the kills", str(path), "name another folder") from None
