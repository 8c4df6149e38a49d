"""What people see: progress bars and tables of runs."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from artesian.simulator.run import Progress

WIDE = 140  # columns, where no terminal says how many there are
out = Console(soft_wrap=True, width=None if sys.stdout.isatty() else WIDE)
err = Console(stderr=True, soft_wrap=True)

COLUMNS = {
    "client_before": "before",
    "client_after": "after",
    "cluster": "cluster",
    "kl": "KL",
    "kl_uniform": "KL even",
    "virtual_time": "time",
    "bytes_up": "MB up",
    "bytes_down": "MB down",
    "wall_seconds": "seconds",
}
KEYS = ("algorithm", "preset", "uploads", "settings")  # what makes runs the same but for their seed
UNITS = {"bytes_up": 1e-6, "bytes_down": 1e-6}
DIGITS = {"virtual_time": 0, "bytes_up": 1, "bytes_down": 1, "wall_seconds": 1}


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
        TextColumn("{task.fields[accuracy]}"),
    )
    began = time.monotonic()
    with Bar(*columns, console=err) as bar:
        task = bar.add_task(label, total=None, rate="", accuracy="")
        first: list[int] = []

        def tell(progress: Progress) -> None:
            first.append(progress.uploads) if not first else None
            rate = (progress.uploads - first[0]) / max(time.monotonic() - began, 1e-9)
            bar.update(
                task,
                completed=progress.uploads,
                total=progress.total,
                rate=f"{rate:.0f}/s",
                accuracy=_accuracy(progress),
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
            f"{label}: {progress.uploads}/{progress.total} uploads, {rate:.0f}/s, {left:.0f} s left, "
            f"{_accuracy(progress)}",
            highlight=False,
        )

    return tell


def _accuracy(progress: Progress) -> str:
    return "" if progress.accuracy is None else f"accuracy {progress.accuracy:.3f}"


def print_comparison(summaries: Sequence[Mapping[str, Any]]) -> None:
    """One table for every preset and length."""
    rows = grouped(summaries)
    for preset, uploads in dict.fromkeys((row["preset"], row["uploads"]) for row in rows):
        table = Table("algorithm", "seeds", *COLUMNS.values(), box=None, title_justify="left")
        table.title = f"{preset}, {uploads} uploads"
        here = [row for row in rows if (row["preset"], row["uploads"]) == (preset, uploads)]
        names = [row["algorithm"] for row in here]
        for row in here:
            cells = [_pair(row[key], UNITS.get(key, 1.0), DIGITS.get(key, 3)) for key in COLUMNS]
            several = names.count(row["algorithm"]) > 1
            label = f"{row['algorithm']} {row['settings']}" if several else row["algorithm"]
            table.add_row(label, str(row["seeds"]), *cells)
        out.print(table)


def print_profile(profile: Mapping[str, Mapping[str, float]]) -> None:
    """Where the time went: a row for every part that took any, this process and the workers apart."""
    table = Table("part", box=None)
    for who in profile:
        table.add_column(f"{who}, s", justify="right")
        table.add_column("share", justify="right")
    wholes = {who: sum(parts.values()) for who, parts in profile.items()}
    for part in [*profile["main"], "together"]:
        spent = {who: wholes[who] if part == "together" else parts[part] for who, parts in profile.items()}
        if any(spent.values()):
            table.add_row(part, *(cell for who in profile for cell in _portion(spent[who], wholes[who])))
    out.print(table)


def _portion(seconds: float, whole: float) -> tuple[str, str]:
    return (f"{seconds:.2f}", f"{seconds / whole:.1%}") if seconds else ("-", "-")


def grouped(summaries: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One row per algorithm and settings: each number as [mean, standard deviation] over seeds."""
    groups: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for summary in summaries:
        groups.setdefault(tuple(summary.get(key) for key in KEYS), []).append(summary)
    rows = []
    for group, members in groups.items():
        row: dict[str, Any] = {**dict(zip(KEYS, group, strict=True)), "seeds": len(members)}
        for key in COLUMNS:
            row[key] = _spread([m[key] for m in members if m.get(key) is not None])
        rows.append(row)
    return rows


def _spread(values: Sequence[float]) -> list[float] | None:
    if not values:
        return None
    return [statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0]


def _pair(pair: Sequence[float] | None, unit: float, digits: int) -> str:
    if pair is None:
        return "-"
    mean, spread = (value * unit for value in pair)
    return f"{mean:.{digits}f}±{spread:.{digits}f}" if spread else f"{mean:.{digits}f}"


def show(value: Any) -> str:
    return "none" if value is None else str(value)
