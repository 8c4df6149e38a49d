"""The command line: simulate and compare, serve and look after a store, and look around."""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

import artesian
from artesian.errors import ArtesianError, SettingError

if TYPE_CHECKING:
    from artesian.simulator.experiment import Experiment
    from artesian.simulator.run import Progress, Run

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Federated learning on tap: simulate, compare, and look around.",
    epilog="Start with: artesian demo. Then: artesian simulate digits-4 --out runs/first",
)
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
TRACEBACK = "ARTESIAN_TRACEBACK"  # set it to see a failure's whole traceback
KEYS = ("algorithm", "preset", "uploads", "settings")  # what makes runs the same but for their seed
UNITS = {"bytes_up": 1e-6, "bytes_down": 1e-6}
DIGITS = {"virtual_time": 0, "bytes_up": 1, "bytes_down": 1, "wall_seconds": 1}
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


def main() -> None:
    """Run a command; a failure is one sentence and an exit code, never a traceback."""
    try:
        app()
    except ArtesianError as error:
        err.print(f"error: {error}", style="red", markup=False, highlight=False)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        err.print("interrupted", style="yellow")
        sys.exit(130)
    except BrokenPipeError:
        sys.exit(1)
    except Exception as error:
        if os.environ.get(TRACEBACK):
            raise
        where = traceback.extract_tb(error.__traceback__)[-1]
        got = f"{type(error).__name__}: {error} ({Path(where.filename).name}, line {where.lineno})"
        err.print(f"error: something failed: {got}; set {TRACEBACK}=1 to see where", style="red", markup=False)
        sys.exit(1)


def _version(wanted: bool) -> None:
    if wanted:
        out.print(f"artesian {artesian.__version__}", highlight=False)
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print it.")] = False,
) -> None:
    """Federated learning on tap: simulate, compare, and look around."""


@app.command()
def simulate(
    source: Annotated[str, typer.Argument(metavar="FILE|PRESET", help="A TOML file, or a name from `presets`.")],
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Change a setting; may be repeated."),
    ] = None,
    seed: Annotated[int, typer.Option(help="The seed of the run.", min=0)] = 0,
    seeds: Annotated[int | None, typer.Option(help="Run seeds 0 to N-1 instead.", min=1)] = None,
    workers: Annotated[int, typer.Option(help="Worker processes; 0 trains in this one.", min=0)] = 0,
    folder: Annotated[
        Path | None, typer.Option("--out", help="Folder for the run; one below it per seed with --seeds.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="End each run with one JSON object.")] = False,
) -> None:
    """Run an experiment in virtual time.

    The same seed gives the same bits with any number of workers, interrupted and resumed or not. For example:

    artesian simulate digits-4 --set algorithm.name=fedbuff --set uploads=500 --seeds 3 --out runs/fedbuff
    """
    from artesian.experiments import load

    if resume and folder is None:
        raise SettingError("--resume goes on with the run in --out", "no --out", "give the folder")
    if seeds is not None and folder is not None and (folder / "config.json").exists():
        raise SettingError("--seeds writes a folder of runs", f"{folder}, which is a run", "give another --out")
    experiment = load(source, changes or ())
    chosen = range(seeds) if seeds is not None else [seed]
    summaries = []
    for number in chosen:
        place = folder / f"seed-{number}" if folder and seeds is not None else folder
        summary = _simulate(experiment, number, workers, place, resume, quiet=as_json)
        summaries.append(summary)
        if as_json:
            sys.stdout.write(json.dumps(summary) + "\n")
            sys.stdout.flush()
    if not as_json:
        _print_comparison(summaries)
        out.print(f"kept in {folder}" if folder else "not kept: give --out FOLDER to keep a run", highlight=False)


@app.command()
def demo(
    uploads: Annotated[int, typer.Option(help="How many uploads to simulate.", min=1)] = 1200,
    workers: Annotated[int, typer.Option(help="Worker processes; 0 trains in this one.", min=0)] = 0,
) -> None:
    """See it work: drifting clients, real digits in four rotations, one model back for every upload.

    Runs CDFL and, for comparison, FedBuff and training alone; then shows the mixtures found beside the true ones.
    """
    from artesian.experiments import load
    from artesian.simulator.run import simulate as run_simulation

    out.print(
        "Clients hold digits in four rotations, mixed differently in every cycle. Each trains when it wants\n"
        "to, uploads one model, and draws back one model: the clusters blended for what its data are now.\n"
    )
    summaries, found = [], None
    for name in ("cdfl", "fedbuff", "local"):
        experiment = load("digits-4", [f"algorithm.name={name}", f"uploads={uploads}"])
        with _progress(name) as progress:
            run = run_simulation(experiment, seed=0, workers=workers, progress=progress)
        assert run is not None
        summaries.append(dict(run.summary))
        found = found or run
    assert found is not None
    out.print(_mixtures(found))
    out.print("(with four clusters CDFL's default amplifier says 0.50 at most: see docs/algorithms/cdfl.md)\n")
    _print_comparison(summaries)
    down, clusters = found.summary["bytes_down"], len(found.models)
    out.print(
        f"One model down per upload: {down / 1e6:.1f} MB, where sending all {clusters} clusters would take "
        f"{clusters * down / 1e6:.1f} MB.\n"
        "Next: artesian presets, artesian simulate digits-4 --out runs/first, artesian simulate --help",
        highlight=False,
    )


@app.command()
def compare(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders, or folders of them.")],
    as_json: AsJson = False,
) -> None:
    """Put finished runs side by side: the mean over seeds, and the standard deviation."""
    from artesian.simulator.folder import read_json

    paths = dict.fromkeys(path.resolve() for run in runs for path in _finished(run))
    summaries = _unique(_summary(path, read_json(path)) for path in paths)
    if as_json:
        sys.stdout.write(json.dumps(_grouped(summaries)) + "\n")
    else:
        _print_comparison(summaries)


@app.command()
def algorithms(as_json: AsJson = False) -> None:
    """List the algorithms, with their settings and defaults."""
    rows = [_algorithm(kind) for kind in _algorithms().values()]
    if as_json:
        sys.stdout.write(json.dumps(rows) + "\n")
        return
    table = Table("name", "what it is", "pace", "settings and defaults", box=None)
    for row in rows:
        settings = ", ".join(f"{key}={_show(value)}" for key, value in row["settings"].items())
        table.add_row(row["name"], row["summary"], row["pace"], settings)
    out.print(table)


@app.command()
def presets(as_json: AsJson = False) -> None:
    """List the experiments that come with the package."""
    from artesian.experiments import presets as known

    if as_json:
        sys.stdout.write(json.dumps([{"name": n, "summary": s} for n, s in known().items()]) + "\n")
        return
    table = Table("preset", "what it is", box=None)
    for name, summary in known().items():
        table.add_row(name, summary)
    out.print(table)


@app.command()
def serve(
    source: Annotated[str, typer.Argument(metavar="MODULE:NAME", help="The federation, or a function that makes it.")],
    store: Annotated[Path, typer.Option("--store", help="The folder that keeps everything.")],
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port; 0 takes a free one.", min=0, max=65535)] = 8440,
    cert: Annotated[Path | None, typer.Option("--tls-cert", help="Certificate chain, for HTTPS.")] = None,
    key: Annotated[Path | None, typer.Option("--tls-key", help="Its private key.")] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="Plain HTTP beyond this machine.")] = False,
    changes: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a deployment setting.")
    ] = None,
) -> None:
    """Serve a federation over HTTP; every upload is on disk before it is answered.

    The first start makes an enrolment and an admin token and shows them once. For example:

    artesian serve app:federation --store store
    """
    from artesian.serving import serve as run_server

    run_server(source, store, host, port, cert, key, insecure, changes or ())


token_app = typer.Typer(no_args_is_help=True, help="Make, list, rotate and revoke the tokens of a store.")
app.add_typer(token_app, name="token")
StorePath = Annotated[Path, typer.Argument(metavar="STORE", help="The folder of the store.")]
TokenName = Annotated[str, typer.Argument(help="What the token is called.")]


@token_app.command("make")
def token_make(
    store: StorePath,
    name: TokenName,
    scope: Annotated[str, typer.Option(help="enrol lets clients join; admin sees the metrics.")] = "enrol",
) -> None:
    """Make a token, and show it this once."""
    if scope not in ("enrol", "admin"):
        raise SettingError("a scope is enrol or admin", repr(scope), "choose one")
    sys.stdout.write(_tokens(store).make(scope, name) + "\n")


@token_app.command("list")
def token_list(store: StorePath, as_json: AsJson = False) -> None:
    """List the tokens by name; their texts are nowhere kept."""
    rows = [{"name": t.name, "scope": t.scope, "revoked": t.revoked} for t in _tokens(store).all()]
    if as_json:
        sys.stdout.write(json.dumps(rows) + "\n")
        return
    table = Table("name", "scope", "state", box=None)
    for row in rows:
        table.add_row(str(row["name"]), str(row["scope"]), "revoked" if row["revoked"] else "living")
    out.print(table)


@token_app.command("rotate")
def token_rotate(store: StorePath, name: TokenName) -> None:
    """Give a token another text; the old one opens nothing any more."""
    sys.stdout.write(_tokens(store).rotate(name) + "\n")


@token_app.command("revoke")
def token_revoke(store: StorePath, name: TokenName) -> None:
    """From now on this token opens nothing; a running server notices at once."""
    _tokens(store).revoke(name)


@app.command()
def inspect(store: StorePath, as_json: AsJson = False) -> None:
    """Look into a store that no server holds: clusters, members, versions, last events."""
    from artesian.serving import describe

    told = describe(store)
    if as_json:
        sys.stdout.write(json.dumps(told) + "\n")
        return
    for key in ("name", "algorithm", "format", "events", "snapshot_at", "version"):
        out.print(f"{key:12} {told[key]}", highlight=False)
    clusters = Table("cluster", "updated at", "updates", "loss on its proxy", box=None)
    for row in told["clusters"]:
        clusters.add_row(row["name"], str(row["updated"]), str(row["updates"]), _show(row["loss"]))
    out.print(clusters)
    members = Table("member", "samples", "answered", "open task", "mixture", box=None)
    for row in told["members"][:20]:
        shares = " ".join(f"{k}={share:.2f}" for k, share in (row["mixture"] or {}).items())
        here = _show(row["open"]) if row["present"] else "left"
        members.add_row(row["client"], str(row["samples"]), str(row["answered"]), here, shares)
    out.print(members)
    if len(told["members"]) > 20:
        out.print(f"and {len(told['members']) - 20} more members (--json lists all)")
    out.print("last events: " + ", ".join(f"{e['kind']} {e['client']}" for e in told["last"]), highlight=False)


def _tokens(store: Path) -> Any:
    from artesian.server.guard import Tokens

    if not (store / "artesian.db").exists():
        raise SettingError("tokens belong to a store", f"no artesian.db at {store}", "serve it once first")
    return Tokens(store / "tokens.json")


def _simulate(
    experiment: Experiment, seed: int, workers: int, folder: Path | None, resume: bool, quiet: bool
) -> dict[str, Any]:
    from artesian.simulator.folder import read_json
    from artesian.simulator.run import simulate as run_simulation

    label = f"{experiment.name} {experiment.algorithm.name} seed {seed}"
    try:
        with _progress(label, quiet) as progress:
            run = run_simulation(experiment, seed=seed, workers=workers, out=folder, resume=resume, progress=progress)
    except KeyboardInterrupt:
        kept = f"; go on with --resume --out {folder}" if folder else "; nothing was kept, there was no --out"
        err.print(f"interrupted{kept}", style="yellow", highlight=False)
        sys.exit(130)
    if run is not None:
        return dict(run.summary)
    assert folder is not None
    err.print(f"{folder} had finished before: nothing to do", highlight=False)
    return read_json(folder / "summary.json")


@contextmanager
def _progress(label: str, quiet: bool = False) -> Iterator[Any]:
    """A live bar on a terminal, a plain line now and then elsewhere."""
    if err.is_terminal:
        with _bar(label) as show:
            yield show
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

        def show(progress: Progress) -> None:
            first.append(progress.uploads) if not first else None
            rate = (progress.uploads - first[0]) / max(time.monotonic() - began, 1e-9)
            bar.update(
                task,
                completed=progress.uploads,
                total=progress.total,
                rate=f"{rate:.0f}/s",
                accuracy=_accuracy(progress),
            )

        yield show


def _lines(label: str, quiet: bool) -> Any:
    began = said = time.monotonic()

    def show(progress: Progress) -> None:
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

    return show


def _accuracy(progress: Progress) -> str:
    return "" if progress.accuracy is None else f"accuracy {progress.accuracy:.3f}"


def _print_comparison(summaries: Sequence[Mapping[str, Any]]) -> None:
    """One table for every preset and length."""
    rows = _grouped(summaries)
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


def _grouped(summaries: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
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


def _mixtures(run: Run) -> Table:
    """The mixtures of a dozen clients, true and found."""
    names = list(run.models)
    table = Table("client", *(f"true {k}" for k in names), "", *(f"found {k}" for k in names), box=None)
    for client, (true, found) in list(run.mixtures.items())[:12]:
        shares = [f"{(found or {}).get(k, 0):.2f}" if found else "-" for k in names]
        table.add_row(client, *(f"{true.get(k, 0):.2f}" for k in names), "|", *shares)
    return table


def _summary(path: Path, told: Mapping[str, Any]) -> Mapping[str, Any]:
    """A summary that can be compared, or a word about why not."""
    numbers = [told.get(key, "") for key in (*COLUMNS, "uploads", "seed")]
    if not all(value is None or isinstance(value, (int, float)) for value in numbers):
        raise SettingError("compare takes summaries that simulate wrote", str(path), "run it again")
    return told


def _unique(summaries: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Each seed of the same settings once: a copy of a run is not another run."""
    found: dict[tuple[Any, ...], Mapping[str, Any]] = {}
    for summary in summaries:
        key = (*(summary.get(k) for k in KEYS), summary["seed"])
        if key in found:
            err.print(f"seed {summary['seed']} of {summary['algorithm']} is there twice: counted once", highlight=False)
        found.setdefault(key, summary)
    return list(found.values())


def _finished(path: Path) -> list[Path]:
    found = [path / "summary.json"] if (path / "summary.json").is_file() else sorted(path.glob("**/summary.json"))
    if not found:
        state = "unfinished: go on with --resume" if (path / "config.json").is_file() else "no run folder"
        raise SettingError("compare takes finished runs", f"{path} ({state})", "name a folder `simulate` wrote")
    return found


def _algorithms() -> Mapping[str, Any]:
    from artesian.algorithms import ALGORITHMS

    return ALGORITHMS


def _algorithm(kind: Any) -> dict[str, Any]:
    from dataclasses import fields

    module = sys.modules[kind.__module__].__doc__ or ""
    return {
        "name": kind.name,
        "summary": module.splitlines()[0].rstrip("."),
        "pace": type(kind().pace()).__name__.lower(),
        "settings": {f.name: f.default for f in fields(kind)},
    }


def _show(value: Any) -> str:
    return "none" if value is None else str(value)


if __name__ == "__main__":
    main()
