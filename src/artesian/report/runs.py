"""Finished runs: found on disk, each seed once, and put into one row per method."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from artesian.errors import SettingError

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
Summary = Mapping[str, Any]
Row = dict[str, Any]
Key = tuple[Any, ...]


@dataclass(frozen=True)
class Finished:
    """A run with its summary."""

    folder: Path
    summary: Summary


def finished(places: Sequence[Path], say: Callable[[str], None]) -> list[Finished]:
    """Every finished run at or below these folders, each seed of the same settings once: a copy is not another run."""
    from artesian.simulator.folder import read_json

    paths = dict.fromkeys(path.resolve() for place in places for path in _summaries(place))
    found: dict[Key, Finished] = {}
    for path in paths:
        summary = _checked(path, read_json(path))
        key = (*method(summary), summary["seed"])
        if key in found:
            say(f"seed {summary['seed']} of {summary['algorithm']} is there twice: counted once")
        found.setdefault(key, Finished(path.parent, summary))
    return list(found.values())


def _summaries(place: Path) -> list[Path]:
    found = [place / "summary.json"] if (place / "summary.json").is_file() else sorted(place.glob("**/summary.json"))
    if not found:
        state = "unfinished: go on with --resume" if (place / "config.json").is_file() else "no run folder"
        raise SettingError(
            "compare and report take finished runs", f"{place} ({state})", "name a folder `simulate` wrote"
        )
    return found


def _checked(path: Path, told: Summary) -> Summary:
    """A summary that can be compared, or a word about why not."""
    numbers = [told.get(key, "") for key in (*COLUMNS, "uploads", "seed")]
    if not all(value is None or isinstance(value, (int, float)) for value in numbers):
        raise SettingError("compare and report take summaries that simulate wrote", str(path), "run it again")
    return told


def method(summary: Summary) -> Key:
    """What a run has in common with the other seeds of its method."""
    return tuple(summary.get(key) for key in KEYS)


def grouped(summaries: Sequence[Summary]) -> list[Row]:
    """One row per algorithm and settings: each number as [mean, standard deviation] over seeds."""
    groups: dict[Key, list[Summary]] = {}
    for summary in summaries:
        groups.setdefault(method(summary), []).append(summary)
    rows = []
    for group, members in groups.items():
        row: Row = {**dict(zip(KEYS, group, strict=True)), "seeds": len(members)}
        for key in COLUMNS:
            row[key] = _spread([m[key] for m in members if m.get(key) is not None])
        rows.append(row)
    return rows


def tables(summaries: Sequence[Summary]) -> dict[str, dict[str, Row]]:
    """A table for every preset and length, under its title: the methods' rows, each under a label of its own."""
    found: dict[str, list[Row]] = {}
    for row in grouped(summaries):
        found.setdefault(f"{row['preset']}, {row['uploads']} uploads", []).append(row)
    return {title: _labelled(rows) for title, rows in found.items()}


def _labelled(rows: Sequence[Row]) -> dict[str, Row]:
    names = [row["algorithm"] for row in rows]
    several = [names.count(name) > 1 for name in names]
    return {
        f"{row['algorithm']} {row['settings']}" if more else row["algorithm"]: row
        for row, more in zip(rows, several, strict=True)
    }


def cells(row: Row) -> list[str]:
    """The figures of a row as text, in the order of the columns."""
    return [_pair(row[key], UNITS.get(key, 1.0), DIGITS.get(key, 3)) for key in COLUMNS]


def _spread(values: Sequence[float]) -> list[float] | None:
    if not values:
        return None
    return [statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0]


def _pair(pair: Sequence[float] | None, unit: float, digits: int) -> str:
    if pair is None:
        return "-"
    mean, spread = (value * unit for value in pair)
    return f"{mean:.{digits}f}±{spread:.{digits}f}" if spread else f"{mean:.{digits}f}"


# where the time went


def profiled(profile: Mapping[str, Mapping[str, float]]) -> dict[str, list[tuple[str, str]]]:
    """A row for every part that took any time: seconds and share, of this process and of the workers."""
    wholes = {who: sum(parts.values()) for who, parts in profile.items()}
    rows = {}
    for part in [*profile["main"], "together"]:
        spent = {who: wholes[who] if part == "together" else parts[part] for who, parts in profile.items()}
        if any(spent.values()):
            rows[part] = [_portion(spent[who], wholes[who]) for who in profile]
    return rows


def _portion(seconds: float, whole: float) -> tuple[str, str]:
    return (f"{seconds:.2f}", f"{seconds / whole:.1%}") if seconds else ("-", "-")
