"""What people see: progress bars and tables of runs."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from artesian.report.runs import COLUMNS, cells, profiled, tables, uneven

if TYPE_CHECKING:
    from artesian.simulator.run import Progress

WIDE = 140  # columns, where no terminal says how many there are
out = Console(soft_wrap=True, width=None if sys.stdout.isatty() else WIDE)
err = Console(stderr=True, soft_wrap=True)


@contextmanager
def progress_of(label: str, quiet: bool = False) -> Iterator[Any]:
    """A live bar on a terminal, a plain line now and then elsewhere."""
    if err.is_terminal:
        with _bar(label) as tell:
            yield tell
    else:
        yield _lines(label, quiet)


@contextmanager
def _bar(label: str) -> Iterator[Any]:
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[score]}"),
    )
    began = time.monotonic()
    with Bar(*columns, console=err) as bar:
        task = bar.add_task(label, total=None, rate="", score="")
        first: list[int] = []

        def tell(progress: Progress) -> None:
            first.append(progress.uploads) if not first else None
            rate = (progress.uploads - first[0]) / max(time.monotonic() - began, 1e-9)
            bar.update(
                task,
                completed=progress.uploads,
                total=progress.total,
                rate=f"{rate:.0f}/s",
                score=_score(progress),
            )

        yield tell


def _lines(label: str, quiet: bool) -> Any:
    began = said = time.monotonic()

    def tell(progress: Progress) -> None:
        nonlocal said
        now = time.monotonic()
        done = progress.uploads == progress.total
        if now - said < 5 and not (done and not quiet):
            return
        said = now
        rate = progress.uploads / max(now - began, 1e-9)
        left = (progress.total - progress.uploads) / max(rate, 1e-9)
        err.print(
            f"{label}: {progress.uploads}/{progress.total} {progress.unit}, {rate:.0f}/s, {left:.0f} s left, "
            f"{_score(progress)}",
            highlight=False,
        )

    return tell


def _score(progress: Progress) -> str:
    return "" if progress.accuracy is None else f"{progress.measure} {progress.accuracy:.3f}"


def print_comparison(summaries: Sequence[Mapping[str, Any]]) -> None:
    """One table for every preset and length."""
    for title, rows in tables(summaries).items():
        table = Table("algorithm", "seeds", *COLUMNS.values(), box=None, title_justify="left", title=title)
        for label, row in rows.items():
            table.add_row(label, str(row["seeds"]), *cells(row))
        out.print(table)
        if told := uneven(rows):
            out.print(told, highlight=False, markup=False)


def print_profile(profile: Mapping[str, Mapping[str, float]]) -> None:
    """Where the time went, this process and the workers apart."""
    table = Table("part", box=None)
    for who in profile:
        table.add_column(f"{who}, s", justify="right")
        table.add_column("share", justify="right")
    for part, row in profiled(profile).items():
        table.add_row(part, *(cell for pair in row for cell in pair))
    out.print(table)


def show(value: Any) -> str:
    return "none" if value is None else str(value)
