"""Finished runs: found on disk, each seed once, and put into one row per method."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from artesian.errors import SettingError

COLUMNS = {
    "client_before": "before",
    "client_after": "after",
    "cluster": "cluster",
    "cluster_all": "cluster, all",
    "weighted_best": "clients, best",
    "client_accepted": "used",
    "in_use": "in use",
    "regret": "regret",
    "refreshes": "refreshes",
    "detection_delay": "delay",
    "missed_drifts": "missed",
    "false_alarm_rate": "false alarms",
    "worse_drawn": "worse drawn",
    "worse_accepted": "worse used",
    "kl": "KL",
    "kl_uniform": "KL even",
    "discrepancy": "discrepancy",
    "virtual_time": "time",
    "bytes_up": "MB up",
    "bytes_down": "MB down",
    "wall_seconds": "seconds",
}
JUDGED = ("client_accepted", "worse_drawn", "worse_accepted")  # where clients judge what they use, or the pool does
WATCHED = ("in_use", "regret", "refreshes", "detection_delay", "missed_drifts", "false_alarm_rate")  # clients decide
OPTIONAL = (
    "cluster_all",
    "weighted_best",
    "discrepancy",
    *JUDGED,
    *WATCHED,
)  # shown where a run has them: not every run does
KEYS = ("algorithm", "watch", "preset", "length", "settings")  # what makes runs the same but for their seed
MACHINE = ("wall_seconds",)  # what two runs of one seed may differ in
UNITS = {"bytes_up": 1e-6, "bytes_down": 1e-6}
DIGITS = {
    "refreshes": 0,
    "detection_delay": 1,
    "missed_drifts": 0,
    "virtual_time": 0,
    "bytes_up": 1,
    "bytes_down": 1,
    "wall_seconds": 1,
}
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
            say(f"{path.parent} is left out: {_repeated(summary, found[key])}")
        found.setdefault(key, Finished(path.parent, summary))
    for folder in dict.fromkeys(folder for place in places for folder in _unfinished(place)):
        say(f"{folder} is left out: it is unfinished; go on with --resume")
    return list(found.values())


def _summaries(place: Path) -> list[Path]:
    found = [place / "summary.json"] if (place / "summary.json").is_file() else sorted(place.glob("**/summary.json"))
    if not found:
        if (place / "config.json").is_file():
            raise SettingError(f"The run in {place} is unfinished", "Finish it: simulate ... --resume")
        raise SettingError(f"No finished run in {place}", "Name a folder that simulate wrote")
    return found


def _unfinished(place: Path) -> list[Path]:
    """Runs below a folder that have begun and not ended."""
    begun = [path.parent for path in sorted(place.glob("**/config.json")) if (path.parent / "metrics.csv").is_file()]
    return [folder for folder in begun if not (folder / "summary.json").is_file()]


def _repeated(summary: Summary, kept: Finished) -> str:
    """What a second run of the same seed says of the first: they should agree."""
    differs = [key for key in COLUMNS if key not in MACHINE and summary.get(key) != kept.summary.get(key)]
    told = f"{kept.folder} has seed {summary['seed']} of {summary['algorithm']} too"
    return f"{told}, and differs from it in {', '.join(differs)}" if differs else f"{told}, with the same result"


def _checked(path: Path, told: Summary) -> Summary:
    """A summary that can be compared, or a word about why not."""
    numbers = [told.get(key, None if key in OPTIONAL else "") for key in (*COLUMNS, "uploads", "seed")]
    if not all(value is None or isinstance(value, (int, float)) for value in numbers):
        raise SettingError(f"{path} is not a summary of a run", "Run it again")
    return told


def method(summary: Summary) -> Key:
    """What a run has in common with the other seeds of its method."""
    return tuple(length(summary) if key == "length" else summary.get(key) for key in KEYS)


def length(summary: Summary) -> str:
    """How long a run was to last: uploads, or rounds, whose uploads vary from seed to seed."""
    return summary.get("length") or f"{summary['uploads']} uploads"


def grouped(summaries: Sequence[Summary]) -> list[Row]:
    """One row per algorithm and settings: each number as [mean, standard deviation] over seeds.

    `lacking` counts the seeds that have no such number, where some have.
    """
    groups: dict[Key, list[Summary]] = {}
    for summary in _with_regret(summaries):
        groups.setdefault(method(summary), []).append(summary)
    return [_row(dict(zip(KEYS, group, strict=True)), members) for group, members in groups.items()]


def _with_regret(summaries: Sequence[Summary]) -> list[Summary]:
    """Runs whose clients decide, with the accuracy they lose against the run of an oracle, where there is one such."""
    oracles: dict[Key, list[Summary]] = {}
    for summary in summaries:
        if summary.get("watch") == "oracle":
            oracles.setdefault(_scene(summary), []).append(summary)
    return [_regretting(summary, oracles.get(_scene(summary), ())) for summary in summaries]


def _regretting(summary: Summary, oracles: Sequence[Summary]) -> Summary:
    if len(oracles) != 1 or summary.get("in_use") is None:
        return summary
    return {**summary, "regret": oracles[0]["in_use"] - summary["in_use"]}


def _scene(summary: Summary) -> Key:
    """What runs share that differ only in how clients decide."""
    return summary["algorithm"], summary.get("preset"), length(summary), summary["seed"]


def _row(row: Row, members: Sequence[Summary]) -> Row:
    values = {key: [m[key] for m in members if m.get(key) is not None] for key in COLUMNS}
    lacking = {key: len(members) - len(found) for key, found in values.items() if 0 < len(found) < len(members)}
    row |= {"seeds": len(members), "seed": sorted(m["seed"] for m in members), "lacking": lacking}
    return row | {key: _spread(found) for key, found in values.items()}


def tables(summaries: Sequence[Summary]) -> dict[str, dict[str, Row]]:
    """A table for every preset and length, under its title: the methods' rows, each under a label of its own."""
    found: dict[str, list[Row]] = {}
    for row in grouped(summaries):
        found.setdefault(f"{row['preset']}, {row['length']}", []).append(row)
    return {title: _labelled(rows) for title, rows in found.items()}


def uneven(rows: Mapping[str, Row]) -> str | None:
    """A word about methods whose seeds differ: then their clients and data do, too."""
    seeds = {label: ", ".join(map(str, row["seed"])) for label, row in rows.items()}
    if len(set(seeds.values())) < 2:
        return None
    told = "; ".join(f"{label} has {which}" for label, which in seeds.items())
    return f"seeds differ, and with them clients and data ({told})"


def _labelled(rows: Sequence[Row]) -> dict[str, Row]:
    """Rows of one algorithm stand together, in the order in which algorithms came."""
    order = list(dict.fromkeys(row["algorithm"] for row in rows))
    rows = sorted(rows, key=lambda row: order.index(row["algorithm"]))
    names = [_name(row) for row in rows]
    several = [names.count(name) > 1 for name in names]
    return {
        f"{name} {row['settings']}" if more else name: row for name, row, more in zip(names, rows, several, strict=True)
    }


def _name(row: Row) -> str:
    """The algorithm and, where clients decide, by what."""
    return f"{row['algorithm']} ({row['watch']})" if row["watch"] else str(row["algorithm"])


def columns(rows: Mapping[str, Row]) -> dict[str, str]:
    """What the columns of a table are called that has these rows; those which no row can fill may be left out."""
    return {
        key: title
        for key, title in COLUMNS.items()
        if key not in OPTIONAL or any(row[key] is not None for row in rows.values())
    }


def winners(summaries: Sequence[Summary]) -> dict[str, float]:
    """How often each candidate won, as a share of all refreshes: the mean over seeds; empty where nobody judged."""
    judged = [summary["won"] for summary in summaries if summary.get("won")]
    names = dict.fromkeys(name for won in judged for name in won)
    return {name: statistics.fmean(won.get(name, 0.0) for won in judged) for name in names}


def cells(row: Row, keys: Iterable[str] = tuple(COLUMNS)) -> list[str]:
    """The figures of a row as text, in the order of the columns."""
    return [_cell(row, key) for key in keys]


def _cell(row: Row, key: str) -> str:
    if row[key] is None:
        return "-"
    count, digits = row["seeds"] - row["lacking"].get(key, 0), DIGITS.get(key, 3)
    mean, spread = (_figure(value * UNITS.get(key, 1.0), digits) for value in row[key])
    told = f"{mean}±{spread}" if count > 1 else mean
    return f"{told} (of {count})" if key in row["lacking"] else told


def _figure(value: float, digits: int) -> str:
    """With so many digits after the point; what an attack blew up is only its size."""
    return f"{round(value, digits) + 0.0:.{digits}f}" if abs(value) < 1e9 else f"{value:.2e}"  # never -0.000


def _spread(values: Sequence[float]) -> list[float] | None:
    if not values:
        return None
    return [statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0]


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
