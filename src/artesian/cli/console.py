"""What people see: progress, and tables that fit the terminal or are plain rows in a pipe."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.cells import cell_len
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from artesian.report.runs import cells, columns, profiled, tables, uneven

if TYPE_CHECKING:
    from artesian.simulator.simulation import Progress

GAP = 2  # spaces between two columns
NARROWEST = 24  # of a column of words, which may be wrapped
out = Console(soft_wrap=True)
err = Console(stderr=True, soft_wrap=True)


# progress


@contextmanager
def progress_of(label: str, quiet: bool = False) -> Iterator[Any]:
    """A live bar on a terminal, a plain line every five seconds elsewhere."""
    if err.is_terminal:
        with _bar(label) as report:
            yield report
    else:
        yield _lines(label, quiet)


@contextmanager
def count_of(label: str) -> Iterator[Callable[[int, int], None]]:
    """Shows how many things are done: a live bar on a terminal, a plain line every five seconds elsewhere."""
    if err.is_terminal:
        from rich.progress import Progress as Bar

        with Bar(console=err, transient=True) as bar:
            task = bar.add_task(label)
            yield lambda done, total: bar.update(task, completed=done, total=total)
        return
    said = time.monotonic()

    def report(done: int, total: int) -> None:
        nonlocal said
        if time.monotonic() - said >= 5:
            said = time.monotonic()
            err.print(f"{label}: {done}/{total}", highlight=False)

    yield report


def say_waiting(line: str) -> None:
    """Why nothing happens just now."""
    err.print(line, style="yellow", highlight=False, markup=False)


def say_age(what: str, event: int, count: int) -> None:
    """That what is shown of a store is from its newest snapshot, where events came after that."""
    if event < count:
        said = f"{what} as they were after event {event} of {count}, at the newest snapshot"
        err.print(f"{said}; start and stop the server for later", style="yellow", highlight=False, markup=False)


@dataclass
class Speed:
    """How fast a run is, from the first report on: a resumed run does not count what it did before."""

    began: float | None = None
    first: int = 0
    each: float | None = None  # seconds for one upload or round; None while nothing is known

    def update(self, done: int) -> None:
        """So much is done now."""
        now = time.monotonic()
        if self.began is None:
            self.began, self.first = now, done
        elif done > self.first:
            self.each = (now - self.began) / (done - self.first)

    def words(self, unit: str) -> str:
        """Uploads in a second, or seconds for an upload; nothing while nothing is known."""
        if self.each is None:
            return ""
        return f"{1 / max(self.each, 1e-9):.0f}/s" if self.each <= 1 else f"{self.each:.1f} s/{unit.removesuffix('s')}"


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
    speed = Speed()
    with Bar(*columns, console=err) as bar:
        task = bar.add_task(label, total=None, rate="", score="")

        def report(progress: Progress) -> None:
            speed.update(progress.uploads)
            rate, score = speed.words(progress.unit), _score(progress)
            bar.update(task, completed=progress.uploads, total=progress.total, rate=rate, score=score)

        yield report


def _lines(label: str, quiet: bool) -> Any:
    said, speed = time.monotonic(), Speed()

    def report(progress: Progress) -> None:
        nonlocal said
        speed.update(progress.uploads)
        now, done = time.monotonic(), progress.uploads == progress.total
        if now - said < 5 and not (done and not quiet):
            return
        said = now
        err.print(f"{label}: {progress_line(progress, speed)}", highlight=False)

    return report


def progress_line(progress: Progress, speed: Speed) -> str:
    """How far a run is, as a line of text."""
    done = f"{progress.uploads}/{progress.total} {progress.unit}"
    left = "" if speed.each is None else f"{(progress.total - progress.uploads) * speed.each:.0f} s left"
    return ", ".join(part for part in (done, speed.words(progress.unit), left, _score(progress)) if part)


def _score(progress: Progress) -> str:
    return "" if progress.accuracy is None else f"{progress.measure} {progress.accuracy:.3f}"


# tables


def print_table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], words: Collection[str] = (), title: str = ""
) -> None:
    """A table: on a terminal as wide as that allows, elsewhere rows with a tab between two cells.

    Columns in `words` may be wrapped. Where there is no room, whole columns are left out, the last ones first.
    """
    if not out.is_terminal:
        lines = [title] * bool(title) + ["\t".join(row) for row in (columns, *rows)]
        sys.stdout.write("".join(f"{line}\n" for line in lines))
        return
    shown = columns_that_fit(columns, rows, words, out.width)
    heads = [Column(name, no_wrap=name not in words, overflow="fold") for name in columns[:shown]]
    table = Table(*heads, box=None, pad_edge=False, title_justify="left", title=title or None)
    for row in rows:
        table.add_row(*map(Text, row[:shown]))
    out.print(table)
    if shown < len(columns):
        out.print(f"no room for: {', '.join(columns[shown:])}", style="dim", highlight=False)


def columns_that_fit(columns: Sequence[str], rows: Sequence[Sequence[str]], words: Collection[str], width: int) -> int:
    """How many columns have room in a terminal of this width: one at least."""
    used = 0
    for i, name in enumerate(columns):
        natural = max(cell_len(text) for text in (name, *(row[i] for row in rows)))
        used += (min(natural, NARROWEST) if name in words else natural) + GAP
        if used - GAP > width:
            return max(i, 1)
    return len(columns)


def print_comparison(summaries: Sequence[Mapping[str, Any]]) -> None:
    """One table for every preset and length."""
    for title, rows in tables(summaries).items():
        shown = columns(rows)
        figures = [[label, str(row["seeds"]), *cells(row, shown)] for label, row in rows.items()]
        print_table(["algorithm", "seeds", *shown.values()], figures, title=title)
        if note := uneven(rows):
            out.print(note, highlight=False, markup=False)


def print_profile(profile: Mapping[str, Mapping[str, float]]) -> None:
    """Where the time went, this process and the workers apart."""
    columns = ["part", *(head for who in profile for head in (f"{who}, s", "share"))]
    rows = [[part, *(cell for pair in row for cell in pair)] for part, row in profiled(profile).items()]
    print_table(columns, rows)


def printable(text: str) -> str:
    """A text that cannot move the cursor or begin a line."""
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text)


def show(value: Any) -> str:
    """A value as text; nothing is `none`."""
    return "none" if value is None else str(value)
