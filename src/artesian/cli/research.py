"""Commands of a researcher: simulate, compare and report, and look around."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Column, Table
from rich.text import Text

from artesian.cli.application import AsJson, app
from artesian.cli.console import err, out, print_comparison, print_profile, progress_of, show
from artesian.errors import SettingError, nearest

if TYPE_CHECKING:
    from artesian.simulator.experiment import Experiment

RunPaths = Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders, or folders of them.")]


@app.command(rich_help_panel="Experiments")
def simulate(
    source: Annotated[str, typer.Argument(metavar="FILE|PRESET", help="A TOML file, or a name from `presets`.")],
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Change a setting; may be repeated."),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="The seed of the run; 0 where there is none.", min=0)] = None,
    seeds: Annotated[int | None, typer.Option(help="Run seeds 0 to N-1; not with --seed.", min=1)] = None,
    workers: Annotated[int, typer.Option(help="Worker processes; 0 trains in this one.", min=0)] = 0,
    executor: Annotated[
        str | None, typer.Option(help="inline, processes or ray; processes where there are workers.")
    ] = None,
    ray_address: Annotated[
        str | None,
        typer.Option("--ray-address", help="A Ray cluster; by default RAY_ADDRESS, or one of the run's own."),
    ] = None,
    memory_limit: Annotated[
        float, typer.Option("--memory-limit", help="MB of vectors kept for clients; more go into a file.", min=0)
    ] = 1024,
    folder: Annotated[
        Path | None, typer.Option("--out", help="Folder for the run; one below it per seed with --seeds.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out.")] = False,
    profile: Annotated[bool, typer.Option("--profile", help="Say where the time went.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="End each run with one JSON object.")] = False,
) -> None:
    """Run an experiment in virtual time.

    The same seed gives the same bits with any number of workers, interrupted and resumed or not. For example:

    artesian simulate digits-4 --set algorithm.name=fedbuff --set uploads=500 --seeds 3 --out runs/fedbuff
    """
    from artesian.config.experiments import load

    if resume and folder is None:
        raise SettingError("--resume needs a folder", "Name the folder of the run: --out FOLDER")
    if seed is not None and seeds is not None:
        problem = f"--seed {seed} runs one seed, --seeds {seeds} runs seeds 0 to {seeds - 1}"
        raise SettingError(problem, "Leave one of the two out")
    if seeds is not None and folder is not None and (folder / "config.json").exists():
        raise SettingError(f"{folder} holds a run, and --seeds writes a folder of runs", "Give another --out")
    experiment = load(source, changes or ())
    means: dict[str, Any] = {
        "workers": workers,
        "executor": executor,
        "ray_address": ray_address,
        "memory_limit": memory_limit,
    }
    chosen = range(seeds) if seeds is not None else [seed or 0]
    summaries = []
    for number in chosen:
        place = folder / f"seed-{number}" if folder and seeds is not None else folder
        summary = _simulate(experiment, number, means, place, resume, profile, quiet=as_json)
        summaries.append(summary)
        if as_json:
            sys.stdout.write(json.dumps(summary) + "\n")
            sys.stdout.flush()
        elif "profile" in summary:
            print_profile(summary["profile"])
    if not as_json:
        print_comparison(summaries)
        out.print(f"kept in {folder}" if folder else "not kept: give --out FOLDER to keep a run", highlight=False)


@app.command(rich_help_panel="Experiments")
def compare(
    runs: RunPaths,
    as_json: AsJson = False,
) -> None:
    """Put finished runs side by side: the mean over seeds, and the standard deviation."""
    from artesian.report.runs import finished, grouped

    summaries = [run.summary for run in finished(runs, _say)]
    if as_json:
        sys.stdout.write(json.dumps(grouped(summaries)) + "\n")
    else:
        print_comparison(summaries)


@app.command(rich_help_panel="Experiments")
def report(
    runs: RunPaths,
    target: Annotated[Path, typer.Option("--out", help="The page; an older report there is replaced.")] = Path(
        "report.html"
    ),
) -> None:
    """Write finished runs as one page of HTML: tables, curves, settings, and where the time went.

    The page needs no other file and no network. Make runs with --profile to see where their time went. For example:

    artesian report runs --out report.html
    """
    from artesian.report.page import write
    from artesian.report.runs import finished

    found = finished(runs, _say)
    write(found, target)
    out.print(f"{len(found)} run{'s' if len(found) > 1 else ''} in {target}", highlight=False)


@app.command(rich_help_panel="Experiments")
def algorithms(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Tell this one alone, and more of it.")] = None,
    as_json: AsJson = False,
) -> None:
    """List the algorithms, with their settings and defaults, or tell one."""
    known = _algorithms()
    if name is not None and name not in known:
        raise SettingError(f"No algorithm is called {name!r}", nearest(name, known))
    rows = [_algorithm(kind) for kind in known.values() if name in (None, kind.name)]
    if as_json:
        sys.stdout.write(json.dumps(rows if name is None else rows[0]) + "\n")
    elif name is None:
        _print_algorithms(rows)
    else:
        _print_algorithm(rows[0])


def _print_algorithms(rows: list[dict[str, Any]]) -> None:
    table = Table("name", "what it is", "pace", "settings and defaults", box=None)
    for row in rows:
        settings = ", ".join(f"{key}={show(value)}" for key, value in row["settings"].items())
        table.add_row(row["name"], row["summary"], row["pace"], settings)
    out.print(table)
    out.print("one of them: artesian algorithms NAME", highlight=False)


def _print_algorithm(row: dict[str, Any]) -> None:
    out.print(f"{row['name']}: {row['summary']}.\n\n{row['about']}\n\npace: {row['pace']}", highlight=False)
    table = Table("setting", "default", box=None)
    for key, value in row["settings"].items():
        table.add_row(key, show(value))
    out.print(table)
    out.print(f"what they mean, and the method: {row['page']}", highlight=False)


@app.command(rich_help_panel="Experiments")
def presets(as_json: AsJson = False) -> None:
    """List the experiments that come with the package, and whether their data are here."""
    from artesian.config.experiments import outlines

    rows = outlines()
    if as_json:
        sys.stdout.write(json.dumps(rows) + "\n")
        return
    table = Table("preset", "what it is", "clients", "lasts", "data", box=None)
    for row in rows:
        lasts = f"{row['rounds']:,} rounds" if row["rounds"] else f"{row['uploads']:,} uploads"
        table.add_row(row["name"], row["summary"], str(row["clients"]), lasts, _presence(row))
    out.print(table)
    if any(row["missing"] for row in rows):
        out.print("where data are looked for: artesian data", highlight=False)


def _presence(row: Mapping[str, Any]) -> str:
    if not row["data"]:
        return "none needed"
    return f"not found: {', '.join(row['missing'])}" if row["missing"] else "here"


@app.command(rich_help_panel="Experiments")
def data(as_json: AsJson = False) -> None:
    """List the data sets that were found, and where; of the others, which files were looked for.

    Sets are looked for in the folder ARTESIAN_DATA points at, and where Debian puts them.
    """
    from artesian.data.datasets import VARIABLE, available, wanted

    found = available()
    if as_json:
        sys.stdout.write(json.dumps(found) + "\n")
        return
    table = Table("data", Column("where", overflow="fold"), box=None)
    for name, place in found.items():
        table.add_row(name, Text(place or f"not found: {' or '.join(wanted(name))}"))
    out.print(table)
    folder = os.environ.get(VARIABLE)
    out.print(
        f"{VARIABLE} is {folder or 'not set: let it name the folder of your data'}", highlight=False, markup=False
    )


def _simulate(
    experiment: Experiment,
    seed: int,
    means: Mapping[str, Any],
    folder: Path | None,
    resume: bool,
    profile: bool,
    quiet: bool,
) -> dict[str, Any]:
    from artesian.simulator.folder import read_json
    from artesian.simulator.run import simulate as run_simulation

    label = f"{experiment.name} {experiment.algorithm.name} seed {seed}"
    try:
        with progress_of(label, quiet) as progress:
            run = run_simulation(
                experiment, seed=seed, out=folder, resume=resume, progress=progress, profile=profile, **means
            )
    except KeyboardInterrupt:
        kept = f"; go on with --resume --out {folder}" if folder else "; nothing was kept, there was no --out"
        err.print(f"interrupted{kept}", style="yellow", highlight=False)
        sys.exit(130)
    if run is not None:
        return dict(run.summary)
    assert folder is not None
    err.print(f"{folder} had finished before: nothing to do", highlight=False)
    return read_json(folder / "summary.json")


def _say(text: str) -> None:
    err.print(text, highlight=False, markup=False, soft_wrap=True)


def _algorithms() -> Mapping[str, Any]:
    from artesian.algorithms import ALGORITHMS

    return ALGORITHMS


def _algorithm(kind: Any) -> dict[str, Any]:
    from dataclasses import fields

    alone = [k.__module__ for k in _algorithms().values()].count(kind.__module__) == 1
    module = sys.modules[kind.__module__].__doc__ or ""
    told = module if alone else kind.__doc__ or ""  # a method and its other form differ
    return {
        "name": kind.name,
        "summary": told.splitlines()[0].rstrip("."),
        "about": " ".join(module.split("\n\n")[1].split()),
        "pace": type(kind().pace()).__name__.lower(),
        "settings": {f.name: f.default for f in fields(kind)},
        "page": f"docs/algorithms/{kind.name.replace('+', '-plus')}.md",
    }
