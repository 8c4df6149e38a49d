"""The report: finished runs as one HTML page that needs nothing else, no script and no other file."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from artesian.errors import SettingError
from artesian.recipes.accepting import CANDIDATES
from artesian.report.curves import AXES, Axis, Curve, of_clusters, of_uploads
from artesian.report.exported import first_and_last, mixtures
from artesian.report.plots import bars, heatmaps, lines, mixture_panels
from artesian.report.runs import Finished, Row, cells, columns, method, profiled, tables, uneven, winners
from artesian.simulator.folder import read_json
from artesian.simulator.profiling import PARTS
from artesian.storage.files import storage, write_file

MARK = "<!doctype html><!-- a report of artesian -->"
STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 78rem; margin: 2rem auto; padding: 0 1rem; color: #1b1b1b;
  background: #fff }
table { border-collapse: collapse; margin: 1rem 0; display: block; overflow-x: auto; font-size: 13px }
th, td { padding: .2rem .5rem; border-bottom: 1px solid #ddd; text-align: right; white-space: nowrap }
th:first-child, td:first-child, .words th, .words td { text-align: left }
figure { margin: 1rem 0 } figure svg { max-width: 100%; height: auto } figcaption, .note { color: #555 }
pre { background: #f6f6f6; padding: .7rem; overflow-x: auto; font-size: 12px }
"""
MEANINGS = """Before is the score of what clients had trained, after that of what they draw back, each on test data of
their own mixture, in each client's last cycle; used is that of what they use, where they judge what they draw. Worse
is the share of refreshes after which that did worse on the whole evaluation pool than what they had trained: by more
than 0.01, or by more than 1% where a model predicts numbers. Cluster is the score of the clusters on their own
distributions, of the last evaluations; cluster, all is the same over all of them. Clients, best is the best of all
evaluations of the clients on their own test data, weighted by size. A score is an accuracy, or minus the squared error
where a model predicts numbers. KL is the divergence of the estimated from the true mixture, in nats, beside that of
guessing evenly for the same clients. Discrepancy is the distance of what clients trained from the models of their
clusters, over all uploads. Time is that of the simulated world; MB are millions of bytes of models sent; seconds are
those the run took. Means over seeds, with the standard deviation where there are several; (of n) where only n of them
have a number."""
CAPTIONS = {
    "uploads": "Each point is the mean of the uploads since the one before; clusters at every evaluation.",
    "time": "Each point is the mean since the one before in virtual time.",
    "cycle": "Clients in their first cycle, their second and so on, as far as half of them came; clusters at the mean "
    "number of uploads of a client.",
}
SHADES = "Means over seeds, shaded by one standard deviation. A gap is where nothing was estimated."
SCORES = (
    "Every cluster on the test data of every distribution, at the first and the last evaluation, of the first seed."
)
SHARES = """Estimated against true shares of every cluster, at the last upload of every client, of all seeds; and over
uploads, the share of the distribution that a client has most of."""
BEFORE, AFTER = "what clients trained (before)", "what clients draw back (after)"
UNITS = {BEFORE: "score", AFTER: "score", "clusters": "score", "KL of the estimated mixture": "nats"}


def page(runs: Sequence[Finished], axis: Axis = "uploads") -> str:
    """All runs: a section for every preset and length, with curves along an axis."""
    titled = tables([run.summary for run in runs])
    sections = [_section(title, rows, runs, axis) for title, rows in titled.items()]
    count = f"{len(runs)} runs" if len(runs) > 1 else "One run"
    head = f'<meta charset="utf-8"><title>Artesian: {count}</title><style>{STYLE}</style>'
    begin = f'{MARK}\n<html lang="en"><head>{head}</head>\n<body>\n<h1>{count}</h1>'
    return "\n".join([begin, *sections, _origin(runs), "</body></html>\n"])


def write(runs: Sequence[Finished], target: Path, axis: Axis = "uploads") -> None:
    """Write the page; a file that is no report is left alone."""
    with storage(target):
        if target.exists() and not (target.is_file() and target.read_bytes().startswith(MARK.encode())):
            raise SettingError(f"{target} exists and is not a report", "Give another --out")
        target.parent.mkdir(parents=True, exist_ok=True)
    write_file(target, page(runs, axis).encode())


def _section(title: str, rows: Mapping[str, Row], runs: Sequence[Finished], axis: Axis) -> str:
    members = {label: [run for run in runs if method(run.summary) == method(row)] for label, row in rows.items()}
    shown = columns(rows)
    figures = [[label, str(row["seeds"]), *cells(row, shown)] for label, row in rows.items()]
    found = _table(("method", "seeds", *shown.values()), figures)
    seeds = [f"<p>Mind: {escape(told)}.</p>"] if (told := uneven(rows)) else []
    learnt = [label for label, row in rows.items() if row["cluster"] is not None]
    note = f'<p class="note">{MEANINGS}</p>'
    parts = [f"<h2>{escape(title)}</h2>", found, *seeds, note, *_winners(members), _curves(members, learnt, axis)]
    estimating = [label for label, row in rows.items() if row["kl"] is not None]
    parts += [*_scores(members), *_mixtures(members, estimating)]
    return "\n".join([*parts, *_differences(members), *_times(members)])


def _winners(members: Mapping[str, Sequence[Finished]]) -> Iterator[str]:
    """Which of their models clients used, where they judged them."""
    every = {label: winners([run.summary for run in runs]) for label, runs in members.items()}
    found = {label: won for label, won in every.items() if won}
    if found:
        names = [name for name in CANDIDATES if any(name in won for won in found.values())]
        rows = [[label, *(f"{won.get(name, 0.0):.3f}" for name in names)] for label, won in found.items()]
        yield "<p>After so many refreshes, as a share of all, clients used what they had drawn, trained and so on:</p>"
        yield _table(("method", *names), rows)


def _curves(members: Mapping[str, Sequence[Finished]], learnt: Sequence[str], axis: Axis) -> str:
    """`learnt` are the methods whose clusters ever changed."""
    lasted = {label: {run.folder: int(run.summary["uploads"]) for run in runs} for label, runs in members.items()}

    def over(column: str) -> dict[str, Curve]:
        return {label: of_uploads(runs, column, axis) for label, runs in lasted.items()}

    before, after, clusters, divergence = UNITS
    evaluated = {label: of_clusters(lasted[label], axis) for label in learnt}
    panels = {before: over("before"), after: over("after"), clusters: evaluated, divergence: over("kl")}
    return _figure(lines(panels, UNITS, AXES[axis], alike=(before, after)), f"{CAPTIONS[axis]} {SHADES}")


def _scores(members: Mapping[str, Sequence[Finished]]) -> Iterator[str]:
    """Every cluster on every distribution, where that was exported."""
    found = {
        f"{label}, upload {scores.upload}": scores
        for label, runs in members.items()
        for scores in first_and_last(runs[0].folder)
    }
    if found:
        yield f"<h3>Clusters and distributions</h3>{_figure(heatmaps(found), SCORES)}"


def _mixtures(members: Mapping[str, Sequence[Finished]], labels: Sequence[str]) -> Iterator[str]:
    """Estimated mixtures against true ones, where these were exported."""
    every = {label: mixtures([run.folder for run in members[label]]) for label in labels}
    found = {label: one for label, one in every.items() if one is not None}
    if found:
        yield f"<h3>Mixtures</h3>{_figure(mixture_panels(found), SHARES)}"


def _differences(members: Mapping[str, Sequence[Finished]]) -> Iterator[str]:
    """In which settings the methods differ, and all settings of each."""
    whole = {label: _experiment(runs[0]) for label, runs in members.items()}
    flat = {label: dict(_flat(settings)) for label, settings in whole.items()}
    keys = dict.fromkeys(key for settings in flat.values() for key in settings)
    rows = [[key, *(_told(s.get(key, "-")) for s in flat.values())] for key in keys if _differs(key, flat.values())]
    yield "<h3>Settings</h3>"
    if rows:
        yield "<p>The methods differ in these settings, besides those that only one algorithm has:</p>"
        yield _table(("setting", *flat), rows)
    elif len(flat) > 1:
        yield "<p>Of all settings, the methods differ in their algorithms alone.</p>"
    for label, settings in whole.items():
        text = json.dumps(settings, indent=2)
        yield f"<details><summary>{escape(label)}: all settings</summary><pre>{escape(text)}</pre></details>"


def _differs(key: str, all_settings: Iterable[Mapping[str, Any]]) -> bool:
    """Has a setting several values? Those of algorithms are compared within one algorithm."""
    values: dict[Any, set[str]] = {}
    for settings in all_settings:
        group = settings.get("algorithm.name") if key.startswith("algorithm.") else None
        values.setdefault(group, set()).add(_told(settings.get(key, "-")))
    return any(len(found) > 1 for found in values.values())


def _experiment(run: Finished) -> Mapping[str, Any]:
    found = read_json(run.folder / "config.json").get("experiment")
    if not isinstance(found, dict):
        raise SettingError(f"config.json in {run.folder} has no experiment", "Restore the file")
    return found


def _flat(settings: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in settings.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{before}{key}.")
        else:
            yield f"{before}{key}", value


def _told(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _times(members: Mapping[str, Sequence[Finished]]) -> Iterator[str]:
    """Where the time went, of the runs that were asked."""
    yield "<h3>Where the time went</h3>"
    several = any(len(runs) > 1 for runs in members.values())
    told = {
        f"{label}, seed {run.summary['seed']}" if several else label: run.summary["profile"]
        for label, runs in members.items()
        for run in runs
        if any(sum(parts.values()) for parts in run.summary.get("profile", {}).values())
    }
    if not told:
        yield "<p>Not known: no run was made with <code>--profile</code>.</p>"
        return
    pieces = {
        label if len(profile) == 1 else f"{label}: {who}": parts
        for label, profile in told.items()
        for who, parts in profile.items()
        if sum(parts.values())
    }
    yield _figure(bars(pieces), "Shares of the time of each process; workers of a run are taken together.")
    yield _table(("part", "what it is"), PARTS.items(), "words")
    for label, profile in told.items():
        head = (label, *(cell for who in profile for cell in (f"{who}, s", "share")))
        rows = [[part, *(cell for pair in row for cell in pair)] for part, row in profiled(profile).items()]
        yield f"<details><summary>{escape(label)}</summary>{_table(head, rows)}</details>"


def _origin(runs: Sequence[Finished]) -> str:
    """What can be looked up: one row for every run."""
    rows = []
    folders = [run.folder for run in runs]
    above = Path(os.path.commonpath(folders)) if len(set(folders)) > 1 else folders[0].parent
    for run in runs:
        told, config = run.summary, read_json(run.folder / "config.json")
        how = f"{told['executor']}, {told['workers']}" if told.get("workers") else str(told.get("executor", "-"))
        rows.append(
            [
                str(told["algorithm"]),
                str(told["preset"]),
                str(told["seed"]),
                str(told["settings"]),
                how,
                f"{told['wall_seconds']:.1f}",
                f"{told['peak_mb']:.0f}" if told.get("peak_mb") else "-",
                str(config.get("artesian")),
                _commit(config.get("commit") or "-"),
                str(run.folder.relative_to(above)),
            ]
        )
    head = ("run", "preset", "seed", "settings", "executor", "seconds", "peak MB", "artesian", "commit", "folder")
    return f"<h2>The runs</h2>\n{_table(head, rows)}"


def _commit(name: str) -> str:
    return f"{name[:10]}-dirty" if name.endswith("-dirty") else name[:10]


def _table(head: Sequence[str], rows: Iterable[Sequence[str]], kind: str = "figures") -> str:
    """A table of figures, or of words."""
    top = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    lines = "\n".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table class={kind}>\n<tr>{top}</tr>\n{lines}\n</table>"


def _figure(svg: str, caption: str) -> str:
    return f"<figure>{svg}<figcaption>{escape(caption)}</figcaption></figure>"
