"""What the clients wrote down: one file for each, a line for everything sent and everything acknowledged."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from artesian.core import ClientId, Mixture
from artesian.errors import StorageError
from artesian.simulator.evaluation import divergence
from artesian.storage.files import storage

RECENT = 5  # refreshes of every client that figures are taken over


@dataclass(frozen=True)
class Refresh:
    """One acknowledged upload, as its client saw it."""

    acknowledged: int  # the upload's number
    before: float  # accuracy of what the client had before
    after: float  # of what it uses since, on the same test data
    true: Mixture
    estimated: Mixture | None
    up: int  # bytes of bodies so far
    down: int
    held_back: tuple[float, float] | None = None  # before and after, on samples that the client itself held back


@dataclass(frozen=True)
class Figures:
    """The federation in numbers; accuracies and divergences over everybody's latest refreshes."""

    uploads: int
    before: float
    after: float
    divergence: float | None  # of the estimated mixtures from the true ones
    even: float  # of an even guess from the true ones
    up: int
    down: int
    drawn: int  # models that came down
    held_back: tuple[float, float] | None = None  # before and after, on samples that clients themselves held back


@dataclass
class Records:
    """The files of a folder, read on whenever `read` is called."""

    folder: Path
    refreshes: dict[ClientId, list[Refresh]] = field(default_factory=dict)
    sending: dict[ClientId, int] = field(default_factory=dict)  # numbers sent and not acknowledged yet
    _places: dict[Path, int] = field(default_factory=dict)  # how far each file was read

    def read(self) -> None:
        """Take in what was written since."""
        for path in sorted(self.folder.glob("*.jsonl")):
            for line in self._lines(path):
                try:
                    self._take(path.stem, json.loads(line))
                except (TypeError, KeyError, ValueError):
                    problem = f"{path} holds {line[:60].decode(errors='replace')!r}, which no client of the demo writes"
                    raise StorageError(problem, "Restore the file") from None

    @property
    def acknowledged(self) -> list[tuple[ClientId, int]]:
        """The identity of every upload a client saw acknowledged."""
        return [(client, refresh.acknowledged) for client, seen in self.refreshes.items() for refresh in seen]

    def figures(self) -> Figures | None:
        """What it comes to so far; None before the first refresh."""
        if not self.refreshes:
            return None
        latest = [refresh for seen in self.refreshes.values() for refresh in seen[-RECENT:]]
        estimated = [divergence(r.true, r.estimated) for r in latest if r.estimated is not None]
        judged = [r.held_back for r in latest if r.held_back is not None]
        last, uploads = [seen[-1] for seen in self.refreshes.values()], len(self.acknowledged)
        return Figures(
            uploads=uploads,
            before=fmean(r.before for r in latest),
            after=fmean(r.after for r in latest),
            divergence=fmean(estimated) if estimated else None,
            even=fmean(divergence(r.true, dict.fromkeys(r.true, 1 / len(r.true))) for r in latest),
            up=sum(r.up for r in last),
            down=sum(r.down for r in last),
            drawn=uploads + len(last),  # one for every upload, and the first
            held_back=(fmean(b for b, _ in judged), fmean(a for _, a in judged)) if judged else None,
        )

    def _lines(self, path: Path) -> Iterator[bytes]:
        """The whole lines not read yet; one that is still being written waits."""
        with storage(path), open(path, "rb") as file:
            file.seek(self._places.get(path, 0))
            whole, newline, _ = file.read().rpartition(b"\n")
        self._places[path] = self._places.get(path, 0) + len(whole) + len(newline)
        yield from whole.splitlines()

    def _take(self, client: ClientId, told: dict[str, Any]) -> None:
        if "sending" in told:
            self.sending[client] = int(told["sending"])
            return
        self.refreshes.setdefault(client, []).append(Refresh(**told))
        self.sending.pop(client, None)
