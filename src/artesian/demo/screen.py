"""What the demo shows: a live screen on a terminal, plain lines now and then elsewhere, one screen at the end."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Self

from rich.console import Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from artesian.cli.console import err, out
from artesian.core import ClusterId, Mixture
from artesian.demo.audit import Audit
from artesian.demo.records import RECENT, Figures, Records

EVERY = 5.0  # seconds between two plain lines
ROWS = 12  # clients in the table at most


@dataclass(frozen=True)
class Kill:
    """One SIGKILL of the server."""

    cut: int  # uploads on their way, without an answer
    down: float  # seconds until it answered again

    def __str__(self) -> str:
        return f"uploads on their way: {self.cut}; answering again after {self.down:.1f} s"


@dataclass(frozen=True)
class Repository:
    """What a server of this kind keeps: so many clusters, each of so many bytes."""

    clusters: tuple[ClusterId, ...]
    model_bytes: int

    def all_down(self, figures: Figures) -> int:
        """Bytes that would have come down if every answer had carried all clusters."""
        return figures.down + (len(self.clusters) - 1) * self.model_bytes * figures.drawn


class Screen:
    """Follows a demo on standard error."""

    def __init__(self, repository: Repository, seconds: float) -> None:
        self.repository, self.seconds = repository, seconds
        self.began = self._said = time.monotonic()
        self._live = Live(console=err, transient=True, auto_refresh=False) if err.is_terminal else None

    def __enter__(self) -> Self:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.stop()

    def tell(self, text: str) -> None:
        """Something happened."""
        err.print(f"{time.monotonic() - self.began:5.1f} s  {text}", highlight=False, markup=False)

    def show(self, records: Records, busy: float) -> None:
        """How it stands, after clients were busy for so long."""
        figures = records.figures()
        if self._live:
            self._live.update(self._view(records, figures, busy), refresh=True)
        elif figures and time.monotonic() - self._said >= EVERY:
            self._said = time.monotonic()
            self.tell("; ".join(f"{key} {text}" for key, text in lines(figures, self.repository).items()))

    def _view(self, records: Records, figures: Figures | None, busy: float) -> Any:
        bar = Table.grid(padding=(0, 1))
        bar.add_row(ProgressBar(total=self.seconds, completed=min(busy, self.seconds), width=50), f"{busy:.0f} s")
        if figures is None:
            return Group(bar, Text("waiting for the first uploads"))
        told = [Text(f"{key:9} {text}") for key, text in lines(figures, self.repository).items()]
        return Group(bar, *told, mixtures(records, self.repository.clusters))


def lines(figures: Figures, repository: Repository) -> dict[str, str]:
    """The figures in words."""
    found = "-" if figures.divergence is None else f"{figures.divergence:.2f}"
    whole = repository.all_down(figures)
    return {
        "uploads": f"{figures.uploads} acknowledged",
        "accuracy": f"{figures.before:.3f} trained by clients, {figures.after:.3f} drawn back",
        "mixtures": f"KL {found} from the true ones, {figures.even:.2f} for an even guess",
        "bytes": f"{figures.up / 1e6:.1f} MB up, {figures.down / 1e6:.1f} MB down; all {len(repository.clusters)} "
        f"clusters down: {whole / 1e6:.1f} MB, so {(whole - figures.down) / 1e6:.1f} MB saved",
    }


def mixtures(records: Records, clusters: tuple[ClusterId, ...]) -> Table:
    """What every client's data are now, beside what the server found."""
    first, *rest = clusters
    table = Table("client", "uploads", f"true {first}", *rest, "", f"found {first}", *rest, "before", "after", box=None)
    table.padding = (0, 1, 0, 0)
    for client, seen in sorted(records.refreshes.items())[:ROWS]:
        last = seen[-1]
        shares = (*_shares(last.true, clusters), "|", *_shares(last.found, clusters))
        table.add_row(client, str(len(seen)), *shares, f"{last.before:.2f}", f"{last.after:.2f}")
    if len(records.refreshes) > ROWS:
        table.add_row(f"and {len(records.refreshes) - ROWS} more")
    return table


def _shares(mixture: Mixture | None, clusters: tuple[ClusterId, ...]) -> list[str]:
    return ["-" if mixture is None else f"{mixture.get(k, 0.0):.2f}" for k in clusters]


def close(records: Records, figures: Figures, repository: Repository, kills: list[Kill], audit: Audit) -> None:
    """The last screen: mixtures, and what it all came to."""
    told = lines(figures, repository)
    replay = f"as a replay of all {audit.events} events gives it, bit by bit"
    rows = {
        "accuracy": f"{told['accuracy']} (last {RECENT} refreshes of each)",
        "mixtures": f"{told['mixtures']}\nshares of 0.50 at most by CDFL's default amplifier: docs/algorithms/cdfl.md",
        "bytes": told["bytes"],
        "kills": f"{len(kills)} with SIGKILL: {', '.join(map(str, kills))}",
        "acknowledged": f"{audit.acknowledged} uploads: {audit.stored} in the store, {audit.folds} folds",
        "lost": f"{len(audit.lost)} acknowledged uploads lost, {len(audit.twice)} applied twice",
        "state": replay if audit.replayed else f"NOT {replay}",
        "next": "docs/how-to/serve-a-federation.md\nartesian simulate digits-4; artesian serve --help",
    }
    out.print(mixtures(records, repository.clusters))
    out.print()
    for key, text in rows.items():
        style = "bold red" if key in ("lost", "state") and audit.complaints else None
        for line in text.splitlines():
            out.print(f"{key:13} {line}", style=style, highlight=False, markup=False)
            key = ""
