"""The page of a league: one content, as Markdown and as HTML."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from math import floor, log10
from pathlib import Path

from artesian.leagues.plan import LeaguePlan
from artesian.leagues.standings import FIGURES, OverallRow, Standings, WorldTable
from artesian.leagues.statistics import Spread
from artesian.report.page import MARK, STYLE
from artesian.storage.files import write_file

NEAR = " ≈"  # behind a figure within one standard deviation of the best
TITLES = {
    "client_after": "drawn",
    "client_accepted": "accepted",
    "clients": "clients",
    "cluster": "clusters",
    "kl": "KL",
    "kl_uniform": "KL even",
    "worse_drawn": "worse, drawn",
    "worse_accepted": "worse, accepted",
    "bytes_up": "kB up",
    "bytes_down": "kB down",
    "virtual_time": "time",
    "wall_seconds": "seconds",
}
WON = "of what clients chose between, the share that each candidate won, in per cent"
SCORES = ("client_after", "client_accepted", "clients", "cluster")
SHARES = ("worse_drawn", "worse_accepted")
TIMES = ("virtual_time", "wall_seconds")
MEANINGS = {
    "client_after": "score of what clients draw (tuned, where the method tunes it), each on test data of its own "
    "mixture, in its last cycle",
    "client_accepted": "the same of what clients use after they chose: what they drew (tuned or not), what they "
    "trained, the mean of the two, or what they used before",
    "clients": "mean score of all clients on their own test data at the end of the run",
    "cluster": "score of the clusters on their own distributions, over the last evaluations",
    "kl": "divergence of the estimated from the true mixture, in nats",
    "kl_uniform": "the same for an even mixture: what guessing gives",
    "worse_drawn": "share of refreshes, in per cent, in which what a client drew (tuned, where the method tunes it) "
    "was worse than what it trained, by more than a point or 1% of a squared error; every `pool_every`-th refresh is "
    "judged, on the test data of all distributions by the client's true mixture",
    "worse_accepted": "the same of what clients accepted",
    "bytes_up": "kilobytes of models that clients sent for each upload",
    "bytes_down": "kilobytes of models that clients received for each upload; a gate, of a few, is not counted",
    "virtual_time": "how long the run took in the time of its clients: who waits for others takes longer",
    "wall_seconds": "how long a run took on one core",
}
BOLD = (
    f"bold is the best mean; {NEAR.strip()} marks every mean that is behind it by at most one standard deviation of "
    "the best method's seeds"
)
OVERALL = {
    "a world": "rank of the method there by what clients end up with (accepted, otherwise drawn); ties share a rank",
    "mean rank": "over the worlds in which the method took part, with the 95% interval of a bootstrap over worlds",
    "leads": "worlds in which the method is first or within one standard deviation of the first",
    "won / lost": "runs with the same world and seed in which the first method of the file did better / worse than "
    "this one",
    "p": "two-sided, of the paired test of those runs, with Holm's correction for the number of methods",
}


@dataclass(frozen=True)
class Cell:
    """One figure of a table."""

    text: str
    best: bool = False


@dataclass(frozen=True)
class Grid:
    """A table, and a line about each of its columns."""

    head: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    meanings: Mapping[str, str]


@dataclass(frozen=True)
class Section:
    """A part of the page: its heading, lines of text, and a table."""

    title: str
    lines: Sequence[str] = ()
    grid: Grid | None = None


def write(folder: Path, plan: LeaguePlan, result: Standings) -> None:
    """Write league.md and league.html."""
    found = list(sections(plan, result))
    write_file(folder / "league.md", markdown(found).encode(), sync=False)
    write_file(folder / "league.html", html(found).encode(), sync=False)


# the content


def sections(plan: LeaguePlan, result: Standings) -> Iterator[Section]:
    """All parts of the page."""
    yield Section("League", list(_opening(result)))
    for table in result.worlds.values():
        yield Section(f"{table.world}, {table.length}", list(_notes(table)), world_grid(table))
    yield Section("All worlds", list(_overall_notes(result)), overall_grid(result))
    yield Section("Settings", ["What each world and method changes; a later row counts."], _settings(plan))
    if result.failed:
        yield Section("Failed runs", [f"{run}: {message}" for run, message in result.failed.items()])


def _opening(result: Standings) -> Iterator[str]:
    yield f"{result.finished} of {result.runs} runs have finished."
    if result.finished < result.runs:
        yield "Figures and ranks may change with the runs that are missing."
    if len(result.versions) > 1:
        yield f"Mind: the runs began with different versions of the code: {', '.join(result.versions)}."


def _notes(table: WorldTable) -> Iterator[str]:
    if table.uneven:
        yield "Mind: the seeds of the methods differ, and with them clients and data."
    elif any(len(seeds) > len(table.compared) for seeds in table.seeds.values()):
        numbers = ", ".join(map(str, table.compared))
        yield f"Compared by seed {numbers} alone: not all methods have finished others."
    if not table.classifies:
        yield "Scores are minus mean squared errors: higher is better."


def world_grid(table: WorldTable) -> Grid:
    """The methods in one world."""
    shown = [name for name in FIGURES if table.figures(name)]
    rows = [
        [
            Cell(method),
            Cell(_count(table, method)),
            *(figure_cell(table, method, name) for name in shown),
            *([_won(table, method)] if table.won else []),
        ]
        for method in table.rows
    ]
    scale = " (per cent)" if table.classifies else ""
    meanings = {TITLES[name]: MEANINGS[name] + (scale if name in SCORES else "") for name in shown}
    meanings |= {"won": WON} if table.won else {}
    seeds = {"seeds": "finished runs; figures are mean ± standard deviation over seeds that all methods have finished"}
    return Grid(["method", "seeds", *meanings], rows, {**seeds, **meanings, "bold, ≈": BOLD})


def _won(table: WorldTable, method: str) -> Cell:
    shares = table.won.get(method, {})
    return Cell(", ".join(f"{name} {100 * share:.0f}" for name, share in shares.items()) or "-")


def _count(table: WorldTable, method: str) -> str:
    done, wanted = len(table.seeds[method]), len(table.planned)
    return str(done) if done == wanted else f"{done} of {wanted}"


def figure_cell(table: WorldTable, method: str, name: str) -> Cell:
    """One figure of one method."""
    found = table.rows[method].get(name)
    if found is None:
        return Cell("-")
    text = figure_text(found, name, table.classifies)
    if found.count < len(set(table.compared) & set(table.seeds[method])):
        text += f" (of {found.count})"
    first = method in table.best(name)
    return Cell(text if first or method not in table.near(name) else text + NEAR, first)


def figure_text(found: Spread, name: str, classifies: bool = True) -> str:
    """Mean and standard deviation: scores of classifiers in per cent, others as they are."""
    if name in SHARES or (name in SCORES and classifies):
        factor, digits = 100.0, 1
    elif name in SCORES:
        factor, digits = 1.0, _digits(found.mean)
    elif name.startswith("bytes"):
        factor, digits = 1e-3, 1 if found.mean >= 1000 else 3
    else:
        factor, digits = 1.0, 1 if name in TIMES else 3
    mean, deviation = (f"{round(value * factor, digits) + 0.0:.{digits}f}" for value in (found.mean, found.deviation))
    return f"{mean} ± {deviation}" if found.count > 1 else mean


def _digits(value: float) -> int:
    """Decimals that show four digits of a number."""
    return 3 if value == 0 else max(0, 3 - floor(log10(abs(value))))


def overall_grid(result: Standings) -> Grid:
    """All methods over all worlds."""
    means = [row.mean for row in result.overall.values() if row.mean is not None]
    against = f"{result.first} won / lost"
    head = ["method", *result.worlds, "mean rank", "leads", against, "p"]
    rows = [
        [
            Cell(method),
            *(_rank(row, name) for name in result.worlds),
            Cell(_mean_rank(row), bool(means) and row.mean == min(means)),
            Cell(f"{row.leading} of {len(row.ranks)}" if row.ranks else "-"),
            *_test(row),
        ]
        for method, row in result.overall.items()
    ]
    return Grid(head, rows, OVERALL)


def _rank(row: OverallRow, world: str) -> Cell:
    rank = row.ranks.get(world)
    return Cell("-" if rank is None else f"{rank:g}", rank == 1)


def _mean_rank(row: OverallRow) -> str:
    if row.mean is None:
        return "-"
    told = f"{row.mean:.2f}"
    return f"{told} ({row.interval[0]:.2f} to {row.interval[1]:.2f})" if row.interval else told


def _test(row: OverallRow) -> tuple[Cell, Cell]:
    if row.against is None or row.p is None:
        return Cell("-"), Cell("-")
    return Cell(f"{row.against.better} / {row.against.worse}"), Cell("< 0.001" if row.p < 0.001 else f"{row.p:.3f}")


def _overall_notes(result: Standings) -> Iterator[str]:
    yield (
        f"The paired test is the {result.test} test of {result.first} against each other method. Runs of one world "
        "are not independent of each other, so a p-value is rather too small."
    )
    if len({table.classifies for table in result.worlds.values()}) > 1:
        yield "Mind: some worlds have accuracies and others squared errors, and the test compares their differences."


def _settings(plan: LeaguePlan) -> Grid:
    league = plan.league
    rows = [("every run", league.changes)]
    rows += [(f"{w.name}: {w.source}", w.changes) for w in league.worlds]
    rows += [(m.name, m.changes) for m in league.methods]
    rows += [(f"{name} in {w.name}", changes) for w in league.worlds for name, changes in w.own.items()]
    return Grid(["what", "set"], [[Cell(name), Cell(", ".join(changes) or "-")] for name, changes in rows], {})


# the two forms


def markdown(found: Sequence[Section]) -> str:
    """The page as Markdown."""
    parts = []
    for i, section in enumerate(found):
        parts.append(f"{'##' if i else '#'} {section.title}")
        parts += [_escaped(line) for line in section.lines]
        if section.grid is not None:
            parts.append(_markdown_grid(section.grid))
            parts += ["\n".join(f"* {name}: {told}." for name, told in section.grid.meanings.items())]
    return "\n\n".join(part for part in parts if part) + "\n"


def _markdown_grid(grid: Grid) -> str:
    ruler = "---:" if grid.meanings else "---"
    lines = [[_escaped(name) for name in grid.head], ["---", *[ruler] * (len(grid.head) - 1)]]
    lines += [[f"**{_escaped(c.text)}**" if c.best else _escaped(c.text) for c in row] for row in grid.rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _escaped(text: str) -> str:
    """A text that neither ends a cell nor its line."""
    return " ".join(text.split()).replace("|", "\\|").replace("*", "\\*")


def html(found: Sequence[Section]) -> str:
    """The page as one HTML file that needs nothing else."""
    head = f'<meta charset="utf-8"><title>Artesian: league</title><style>{STYLE}</style>'
    parts = [f'{MARK}\n<html lang="en"><head>{head}</head>\n<body>']
    for i, section in enumerate(found):
        level = "h2" if i else "h1"
        parts.append(f"<{level}>{escape(section.title)}</{level}>")
        parts += [f"<p>{escape(line)}</p>" for line in section.lines]
        if section.grid is not None:
            parts.append(_html_grid(section.grid))
            told = "".join(f"<li>{escape(name)}: {escape(text)}.</li>" for name, text in section.grid.meanings.items())
            parts += [f'<ul class="note">{told}</ul>'] * bool(told)
    return "\n".join([*parts, "</body></html>\n"])


def _html_grid(grid: Grid) -> str:
    top = "".join(f"<th>{escape(name)}</th>" for name in grid.head)
    rows = ["".join(f"<td>{_html_cell(cell)}</td>" for cell in row) for row in grid.rows]
    lines = "\n".join(f"<tr>{row}</tr>" for row in rows)
    kind = "figures" if grid.meanings else "words"
    return f"<table class={kind}>\n<tr>{top}</tr>\n{lines}\n</table>"


def _html_cell(cell: Cell) -> str:
    return f"<strong>{escape(cell.text)}</strong>" if cell.best else escape(cell.text)
