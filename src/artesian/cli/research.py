"""Commands of a researcher: simulate, compare, report, and list what there is."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from artesian.cli.application import AsJson, app
from artesian.cli.console import err, out, print_comparison, print_profile, print_table, progress_of, show
from artesian.errors import SettingError, nearest

if TYPE_CHECKING:
    from artesian.simulator.experiment import Experiment

RunPaths = Annotated[
    list[Path], typer.Argument(metavar="RUN...", help="Folders of finished runs, or folders that hold such folders.")
]


def complete_sources(incomplete: str) -> list[tuple[str, str]]:
    """Presets and TOML files that begin with what was typed, for the shell."""
    from artesian.config.experiments import presets

    files = {path.name: "" for path in sorted(Path().glob("*.toml"))}
    return [(name, text) for name, text in (presets() | files).items() if name.startswith(incomplete)]


def complete_algorithms(incomplete: str) -> list[tuple[str, str]]:
    """Algorithms that begin with what was typed, for the shell."""
    rows = [_algorithm(kind) for name, kind in _algorithms().items() if name.startswith(incomplete)]
    return [(row["name"], row["summary"]) for row in rows]


@app.command(rich_help_panel="Experiments")
def simulate(
    source: Annotated[
        str,
        typer.Argument(
            metavar="FILE|PRESET",
            help="A TOML file, or a preset: see `artesian presets`.",
            autocompletion=complete_sources,
        ),
    ],
    changes: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="SECTION.KEY=VALUE",
            help="Change a setting; repeatable, the last wins. Without VALUE: remove it, so that its default counts.",
        ),
    ] = None,
    algorithm: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Short for --set algorithm.name=NAME: see `artesian algorithms`.",
            autocompletion=complete_algorithms,
        ),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the run; 0 by default.", min=0)] = None,
    seeds: Annotated[int | None, typer.Option(help="Run seeds 0 to N-1, one after the other.", min=1)] = None,
    workers: Annotated[int, typer.Option(help="Worker processes. With 0, this process trains.", min=0)] = 0,
    executor: Annotated[
        str | None,
        typer.Option(
            help="Where trainings run: inline, processes or ray. [default: processes with workers, else inline]"
        ),
    ] = None,
    ray_address: Annotated[
        str | None,
        typer.Option(
            "--ray-address", help="Address of a Ray cluster; by default RAY_ADDRESS, or a cluster of its own."
        ),
    ] = None,
    memory_limit: Annotated[
        float,
        typer.Option(
            "--memory-limit", help="Memory in MB for the models kept for clients; the rest is kept in a file.", min=0
        ),
    ] = 1024,
    folder: Annotated[
        Path | None,
        typer.Option("--out", help="Folder to keep the run in; with --seeds, one below it per seed."),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the run in --out; start it if there is none.")
    ] = False,
    profile: Annotated[bool, typer.Option("--profile", help="Show where the time went.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per run instead of a table.")] = False,
) -> None:
    """Run an experiment in virtual time.

    The same seed gives the same result, bit by bit, with any number of workers, resumed or not. Examples:

    artesian simulate digits-4 --set uploads=500

    artesian simulate digits-4 --algorithm fedbuff --set uploads=500 --seeds 3 --out runs/fedbuff
    """
    from artesian.config.experiments import load
    from artesian.simulator.result import alike_words

    if resume and folder is None:
        raise SettingError("--resume needs a folder", "Name the folder of the run: --out FOLDER")
    if seed is not None and seeds is not None:
        problem = f"--seed {seed} runs one seed, --seeds {seeds} runs seeds 0 to {seeds - 1}"
        raise SettingError(problem, "Leave one of the two out")
    if seeds is not None and folder is not None and (folder / "config.json").exists():
        raise SettingError(f"{folder} holds a run, and --seeds writes a folder of runs", "Give another --out")
    named = [f"algorithm.name={algorithm}"] if algorithm is not None else []
    experiment = load(source, [*named, *(changes or ())])
    means: dict[str, Any] = {
        "workers": workers,
        "executor": executor,
        "ray_address": ray_address,
        "memory_limit": memory_limit,
    }
    chosen = range(seeds) if seeds is not None else [seed or 0]
    places = {number: folder / f"seed-{number}" if folder and seeds is not None else folder for number in chosen}
    if not resume:
        _check_new(places.values())

    @cache
    def opening() -> None:
        """Said once, before the first run that begins."""
        for line in experiment.opening(chosen[0]):
            _say(line)

    summaries = []
    for number, place in places.items():
        more = {**means, "out": place, "resume": resume, "profile": profile}
        summary = _run_seed(experiment, number, more, None if as_json else opening)
        summaries.append(summary)
        if as_json:
            sys.stdout.write(json.dumps(summary) + "\n")
            sys.stdout.flush()
        elif "profile" in summary:
            print_profile(summary["profile"])
    if not as_json:
        print_comparison(summaries)
        for told in summaries:
            if words := alike_words(told):
                out.print(f"seed {told['seed']}: {words}", highlight=False)
        out.print(f"kept in {folder}" if folder else "not kept: use --out FOLDER to keep a run", highlight=False)


@app.command(rich_help_panel="Experiments")
def compare(
    runs: RunPaths,
    as_json: AsJson = False,
) -> None:
    """Compare finished runs: mean and standard deviation over seeds.

    Example:

    artesian compare runs
    """
    from artesian.report.runs import finished, grouped

    summaries = [run.summary for run in finished(runs, _say)]
    if as_json:
        sys.stdout.write(json.dumps(grouped(summaries)) + "\n")
    else:
        print_comparison(summaries)


@app.command(rich_help_panel="Experiments")
def report(
    runs: RunPaths,
    target: Annotated[Path, typer.Option("--out", help="The page to write. An older report there is replaced.")] = Path(
        "report.html"
    ),
    axis: Annotated[
        str, typer.Option(help="What curves run along: uploads, time, or cycle, each client's own trainings.")
    ] = "uploads",
) -> None:
    """Write a report on finished runs: one HTML page with tables, curves and settings.

    The page needs no other file and no network. Runs made with --profile also show where their time went. Example:

    artesian report runs --out report.html
    """
    from artesian.report.curves import chosen_axis
    from artesian.report.page import write
    from artesian.report.runs import finished

    along = chosen_axis(axis)
    found = finished(runs, _say)
    write(found, target, along)
    out.print(f"{len(found)} run{'s' if len(found) > 1 else ''} in {target}", highlight=False)


@app.command(rich_help_panel="Experiments")
def algorithms(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="Show one algorithm in detail.", autocompletion=complete_algorithms),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the algorithms with their settings and defaults, or show one in detail.

    Example:

    artesian algorithms cdfl
    """
    known = _algorithms()
    if name is not None and name not in known:
        raise SettingError(f"No algorithm is called {name!r}", nearest(name, known))
    rows = [_algorithm(kind) for key, kind in sorted(known.items()) if name in (None, key)]
    if as_json:
        sys.stdout.write(json.dumps(rows if name is None else rows[0]) + "\n")
    elif name is None:
        _print_algorithms(rows)
    else:
        _print_algorithm(rows[0])


def _print_algorithms(rows: list[dict[str, Any]]) -> None:
    settings = [", ".join(f"{key}={show(value)}" for key, value in row["settings"].items()) for row in rows]
    listed = [[row["name"], row["pace"], row["summary"], told] for row, told in zip(rows, settings, strict=True)]
    columns = ["name", "pace", "what it is", "settings and defaults"]
    print_table(columns, listed, words=columns[2:])
    out.print("one in detail: artesian algorithms NAME", highlight=False)


def _print_algorithm(row: dict[str, Any]) -> None:
    out.print(f"{row['name']}: {row['summary']}.\n\n{row['about']}\n\npace: {row['pace']}", highlight=False)
    print_table(["setting", "default"], [[key, show(value)] for key, value in row["settings"].items()])
    out.print(f"more about it: python -m pydoc {row['module']}", highlight=False)


@app.command(rich_help_panel="Experiments")
def presets(as_json: AsJson = False) -> None:
    """List the experiments that come with the package, and whether their data are on this machine."""
    from artesian.config.experiments import outlines

    rows = outlines()
    if as_json:
        sys.stdout.write(json.dumps(rows) + "\n")
        return
    listed = [[row["name"], str(row["clients"]), _length(row), _presence(row), row["summary"]] for row in rows]
    columns = ["preset", "clients", "lasts", "data", "what it is"]
    print_table(columns, listed, words=columns[3:])
    if any(row["missing"] for row in rows):
        out.print("where data are searched for: artesian data", highlight=False)


def _length(row: Mapping[str, Any]) -> str:
    unit = next(unit for unit in ("turns", "rounds", "uploads") if row[unit])
    return f"{row[unit]:,} {unit}"


def _presence(row: Mapping[str, Any]) -> str:
    if not row["data"]:
        return "none needed"
    return f"not found: {', '.join(row['missing'])}" if row["missing"] else "here"


@app.command(rich_help_panel="Experiments")
def data(as_json: AsJson = False) -> None:
    """List the datasets on this machine, and where each was searched for.

    They are searched for in the folder ARTESIAN_DATA names, and where Debian installs them.
    """
    from artesian.data.datasets import available, wanted
    from artesian.data.mnist import VARIABLE

    found = available()
    if as_json:
        sys.stdout.write(json.dumps(found) + "\n")
        return
    rows = [[name, place or f"not found: {' or '.join(wanted(name))}"] for name, place in found.items()]
    print_table(["data", "where"], rows, words=["where"])
    folder = os.environ.get(VARIABLE)
    out.print(f"{VARIABLE} is {folder or 'not set: set it to the folder of your data'}", highlight=False, markup=False)


def _check_new(places: Iterable[Path | None]) -> None:
    """Refuse a folder that holds something before the first of several runs, not before the last."""
    from artesian.simulator.folder import RunFolder

    for place in places:
        if place is not None:
            RunFolder.check_new(place)


def _run_seed(
    experiment: Experiment, seed: int, options: Mapping[str, Any], opening: Callable[[], None] | None
) -> dict[str, Any]:
    """One run; without an `opening` it says nothing."""
    from artesian.simulator.folder import read_json
    from artesian.simulator.run import run_experiment

    folder = options["out"]
    label = f"{experiment.name} {experiment.algorithm.name} seed {seed}"
    try:
        with progress_of(label, opening is None) as progress:
            run = run_experiment(experiment, seed=seed, progress=progress, opening=opening, **options)
    except KeyboardInterrupt:
        kept = f"Continue it with --resume --out {folder}" if folder else "Nothing was kept: there was no --out"
        err.print(f"interrupted. {kept}.", style="yellow", highlight=False)
        sys.exit(130)
    if run is not None:
        return dict(run.summary)
    assert folder is not None
    err.print(f"The run in {folder} has finished already: nothing to do.", highlight=False)
    return read_json(folder / "summary.json")


def _say(text: str) -> None:
    """A line for people, beside the results."""
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
        "module": kind.__module__,
    }
