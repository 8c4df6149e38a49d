"""The command of a league: methods x worlds x seeds."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from artesian.cli.application import app
from artesian.cli.console import err, out, print_table
from artesian.errors import SettingError

if TYPE_CHECKING:
    from artesian.leagues.plan import LeaguePlan, Pair
    from artesian.leagues.running import LeagueProgress
    from artesian.leagues.standings import Standings
    from artesian.leagues.timing import Estimate, Timing


@app.command(rich_help_panel="Experiments")
def league(
    source: Annotated[Path, typer.Argument(metavar="FILE", help="The TOML file of the league.")],
    folder: Annotated[
        Path, typer.Option("--out", help="Folder of the league. Runs it holds are resumed, or kept if finished.")
    ],
    results: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="File with a line for every finished run. [default: results.jsonl in the folder]"
        ),
    ] = None,
    jobs: Annotated[
        int | None, typer.Option(help="Runs at once, each on one core. [default: as many as there are cores]", min=1)
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would run and how long it would take.")
    ] = False,
    show: Annotated[
        bool, typer.Option("--show", help="Print the tables of what has finished, and run nothing.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
) -> None:
    """Run methods x worlds x seeds, and write one page with the result.

    The same command resumes a league that was interrupted. Example:

    artesian league league.toml --out runs/league
    """
    from artesian.leagues.file import read
    from artesian.leagues.plan import planned
    from artesian.leagues.running import check_folder, cores, finished, forecast, run_league

    if dry_run and show:
        raise SettingError("--dry-run says what would run, and --show what has finished", "Give one of the two")
    check_folder(folder)
    plan, places = planned(read(source), to_run=not show), cores(jobs)
    if show:
        _print_result(finished(plan, folder, results), folder, as_json)
        for line in plan.missing:
            _say(line)
        return
    try:
        with _progress() as tell:
            if dry_run:
                told = forecast(plan, folder, places, _say, tell, results)
            else:
                result = run_league(plan, folder, places, _say, tell, results)
    except KeyboardInterrupt:
        kept = "Nothing was kept" if dry_run else "Go on with the same command"
        err.print(f"interrupted. {kept}.", style="yellow", highlight=False)
        sys.exit(130)
    if dry_run:
        _print_plan(plan, *told, as_json)
        return
    _print_result(result, folder, as_json)
    if result.failed:
        sys.exit(1)


def _print_plan(plan: LeaguePlan, found: Estimate, timings: Mapping[Pair, Timing], as_json: bool) -> None:
    from artesian.leagues.timing import duration

    seconds = {pair: timings[pair].seconds(pair.length) for pair in plan.pairs if pair in timings}
    if as_json:
        pairs = [_pair(pair, seconds.get(pair)) for pair in plan.pairs]
        counts = {"runs": found.runs, "finished": found.finished, "begun": found.begun, "jobs": found.jobs}
        untimed = [[pair.world, pair.method] for pair in found.untimed]
        sys.stdout.write(json.dumps({**counts, "seconds": found.seconds, "untimed": untimed, "pairs": pairs}) + "\n")
        return
    each = {pair: duration(taken) for pair, taken in seconds.items()}
    rows = [
        [p.world, p.method, p.algorithm, ", ".join(map(str, p.seeds)), f"{p.length} {p.unit}", each.get(p, "-")]
        for p in plan.pairs
    ]
    print_table(["world", "method", "algorithm", "seeds", "length", "each run"], rows)
    if len(each) < len(plan.pairs):
        out.print("-: not timed; the sum takes it from the same method and the same world", highlight=False)
    out.print(str(found), highlight=False)


def _pair(pair: Pair, seconds: float | None) -> dict[str, Any]:
    told: dict[str, Any] = {"world": pair.world, "method": pair.method, "algorithm": pair.algorithm}
    told |= {"seeds": list(pair.seeds), "length": pair.length, "unit": pair.unit, "settings": pair.settings[:8]}
    return {**told, "changes": list(pair.changes), "folder": str(pair.folder), "seconds": seconds}


def _print_result(result: Standings, folder: Path, as_json: bool) -> None:
    from artesian.leagues.page import overall_grid, world_grid

    if as_json:
        sys.stdout.write(json.dumps(result.describe()) + "\n")
    else:
        grids = {f"{t.world}, {t.length}": world_grid(t) for t in result.worlds.values()}
        for title, grid in {**grids, "all worlds": overall_grid(result)}.items():
            rows = [[f"*{cell.text}" if cell.best else cell.text for cell in row] for row in grid.rows]
            print_table(list(grid.head), rows, title=title)
        page = folder / "league.html"
        out.print(f"* is the best{f'; the page is {page}' if page.exists() else ''}", highlight=False)
    for run, message in result.failed.items():
        err.print(f"failed: {run}: {message}", style="red", markup=False, highlight=False)


# progress


@contextmanager
def _progress() -> Iterator[Callable[[LeagueProgress], None]]:
    """A live bar on a terminal; elsewhere the lines about runs that ended are enough."""
    if not err.is_terminal:
        yield lambda _: None
        return
    from rich.progress import BarColumn, Progress, TextColumn

    from artesian.leagues.running import progress_words

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[words]}"))
    with Progress(*columns, console=err) as bar:
        task, began = bar.add_task("league", total=1.0, words=""), time.monotonic()

        def report(progress: LeagueProgress) -> None:
            spent = time.monotonic() - began
            share = spent / (spent + progress.seconds) if progress.seconds else 0.0
            bar.update(task, completed=share, words=progress_words(progress))

        yield report


def _say(text: str) -> None:
    """A line for people, beside the results."""
    err.print(text, highlight=False, markup=False, soft_wrap=True)
