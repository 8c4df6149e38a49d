"""What the demo shows: a live screen on a terminal, plain lines now and then elsewhere, one screen at the end."""

from __future__ import annotations

import time
from dataclasses import dataclass

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
PLAIN = ("uploads", "accuracy", "mixtures")  # figures of a plain line; the last screen has all
ROWS = 12  # clients in the table at most


@dataclass(frozen=True)
class Screen:
    """Shows a demo with these clusters, each of so many bytes."""

    clusters: tuple[ClusterId, ...]
    model_bytes: int

    def figures(self, figures: Figures) -> dict[str, str]:
        """The figures in words."""
        estimated = "-" if figures.divergence is None else f"{figures.divergence:.2f}"
        judged = "-" if figures.held_back is None else "{:.3f} before, {:.3f} after".format(*figures.held_back)
        saved = (len(self.clusters) - 1) * self.model_bytes * figures.drawn
        return {
            "uploads": f"{figures.uploads} acknowledged",
            "accuracy": f"{figures.before:.3f} before a refresh, {figures.after:.3f} after it",
            "held back": f"{judged}, on the samples by which each client chose what it uses",
            "mixtures": f"KL {estimated} from the true ones, {figures.even:.2f} for an even guess",
            "bytes": f"{figures.up / 1e6:.1f} MB up, {figures.down / 1e6:.1f} MB down; all {len(self.clusters)} "
            f"clusters down: {(figures.down + saved) / 1e6:.1f} MB, so {saved / 1e6:.1f} MB saved",
        }

    def mixtures(self, records: Records) -> Table:
        """What every client's data are now, beside what the server knows of them."""
        first, *rest = self.clusters
        names = (f"true {first}", *rest, "", f"est. {first}", *rest)
        table = Table("client", "uploads", *names, "before", "after", box=None, padding=(0, 1, 0, 0))
        for client, seen in sorted(records.refreshes.items())[:ROWS]:
            last = seen[-1]
            shares = (*self._shares(last.true), "|", *self._shares(last.estimated))
            table.add_row(client, str(len(seen)), *shares, f"{last.before:.2f}", f"{last.after:.2f}")
        if len(records.refreshes) > ROWS:
            table.add_row(f"and {len(records.refreshes) - ROWS} more")
        return table

    def close(self, records: Records, figures: Figures, kill: str, audit: Audit) -> None:
        """The last screen: mixtures, and what it all came to."""
        told = self.figures(figures)
        replay = f"as a replay of all {audit.events} events gives it, bit by bit"
        rows = {
            "accuracy": f"{told['accuracy']} (last {RECENT} refreshes of each)",
            "held back": told["held back"],
            "mixtures": told["mixtures"],
            "bytes": told["bytes"],
            "kills": kill,
            "acknowledged": f"{audit.acknowledged} uploads: {audit.stored} in the store, {audit.folds} folds",
            "lost": f"{len(audit.lost)} acknowledged uploads lost, {len(audit.twice)} applied twice",
            "state": replay if audit.replayed else f"NOT {replay}",
            "next": "artesian simulate digits-4; artesian serve --help",
        }
        out.print(self.mixtures(records), "")
        for key, text in rows.items():
            style = "bold red" if key in ("lost", "state") and audit.complaints else None
            out.print(f"{key:13} {text}", style=style, highlight=False, markup=False) if text else None

    def _shares(self, mixture: Mixture | None) -> list[str]:
        return ["-" if mixture is None else f"{mixture.get(k, 0.0):.2f}" for k in self.clusters]


class DemoProgress:
    """Follows a demo of so many seconds on standard error."""

    def __init__(self, screen: Screen, seconds: float) -> None:
        self.screen, self.seconds = screen, seconds
        self.began = self._said = time.monotonic()
        self.live = Live(console=err, transient=True, auto_refresh=False)

    def tell(self, text: str) -> None:
        """Something happened."""
        err.print(f"{time.monotonic() - self.began:5.1f} s  {text}", highlight=False, markup=False)

    def show(self, records: Records, busy: float) -> None:
        """How it stands, after clients were busy for so long."""
        figures = records.figures()
        words = self.screen.figures(figures) if figures else {}
        if err.is_terminal:
            bar = Table.grid(padding=(0, 1))
            bar.add_row(ProgressBar(total=self.seconds, completed=min(busy, self.seconds), width=50), f"{busy:.0f} s")
            lines = "\n".join(f"{key:9} {text}" for key, text in words.items()) or "waiting for the first uploads"
            table = self.screen.mixtures(records) if words else ""
            self.live.update(Group(bar, Text(lines), table), refresh=True)
        elif words and time.monotonic() - self._said >= EVERY:
            self._said = time.monotonic()
            self.tell("; ".join(f"{key} {words[key]}" for key in PLAIN))
