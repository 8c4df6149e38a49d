"""The command line: simulate and compare, serve and look after a store, be a client, and look around."""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

import artesian
from artesian.display import COLUMNS, KEYS, err, grouped, out, print_comparison, print_profile, progress_of, show
from artesian.errors import ArtesianError, FellBack, SettingError

if TYPE_CHECKING:
    from artesian.simulator.experiment import Experiment

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Federated learning on tap: simulate, compare, and look around.",
    epilog="Start with: artesian demo. Then: artesian simulate digits-4 --out runs/first",
)
TRACEBACK = "ARTESIAN_TRACEBACK"  # set it to see a failure's whole traceback
_python_shows = warnings.showwarning
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


def main() -> None:
    """Run a command; a failure is one sentence and an exit code, never a traceback."""
    warnings.showwarning = _show_warning
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


def _show_warning(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
    """A sentence of ours without the place it comes from; others as Python shows them."""
    if issubclass(category, FellBack):
        err.print(f"warning: {message}", style="yellow", markup=False, highlight=False)
    else:
        _python_shows(message, category, *where, **more)


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
    from artesian.experiments import load

    if resume and folder is None:
        raise SettingError("--resume goes on with the run in --out", "no --out", "give the folder")
    if seeds is not None and folder is not None and (folder / "config.json").exists():
        raise SettingError("--seeds writes a folder of runs", f"{folder}, which is a run", "give another --out")
    experiment = load(source, changes or ())
    means: dict[str, Any] = {
        "workers": workers,
        "executor": executor,
        "ray_address": ray_address,
        "memory_limit": memory_limit,
    }
    chosen = range(seeds) if seeds is not None else [seed]
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


@app.command()
def demo(
    clients: Annotated[int, typer.Option(help="How many client processes.", min=1, max=40)] = 12,
    seconds: Annotated[float, typer.Option(help="How long clients come and go.", min=1, max=60)] = 30,
    keep: Annotated[
        Path | None, typer.Option("--keep", metavar="FOLDER", help="Keep store and records in a new folder.")
    ] = None,
    check: Annotated[
        Path | None, typer.Option("--check", metavar="FOLDER", help="Only repeat the closing check on a kept folder.")
    ] = None,
) -> None:
    """See it work: a server, a dozen client processes whose data drift, and a kill in the middle.

    The server is killed with SIGKILL while clients are busy, and started again on the same store and port. At the
    end every upload that a client saw acknowledged is looked for in the store; if one is missing, the exit code is 1.
    """
    from artesian.demo import check_extras

    check_extras()
    from artesian.demo import conductor

    try:
        conductor.check(check) if check else conductor.perform(clients, seconds, keep)
    except KeyboardInterrupt:
        err.print("interrupted: every process of the demo has ended", style="yellow")
        sys.exit(130)


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
        sys.stdout.write(json.dumps(grouped(summaries)) + "\n")
    else:
        print_comparison(summaries)


@app.command()
def algorithms(as_json: AsJson = False) -> None:
    """List the algorithms, with their settings and defaults."""
    rows = [_algorithm(kind) for kind in _algorithms().values()]
    if as_json:
        sys.stdout.write(json.dumps(rows) + "\n")
        return
    table = Table("name", "what it is", "pace", "settings and defaults", box=None)
    for row in rows:
        settings = ", ".join(f"{key}={show(value)}" for key, value in row["settings"].items())
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
def data(as_json: AsJson = False) -> None:
    """List the data sets that were found, and where.

    Sets are looked for in the folder ARTESIAN_DATA points at, and where Debian puts them.
    """
    from artesian.simulator.data import available

    found = available()
    if as_json:
        sys.stdout.write(json.dumps(found) + "\n")
        return
    table = Table("data", "where", box=None)
    for name, place in found.items():
        table.add_row(name, place or "not found")
    out.print(table)


@app.command()
def serve(
    source: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:NAME|FILE|PRESET",
            help="The federation, or a function that makes it; or an experiment's TOML file or preset.",
        ),
    ],
    store: Annotated[Path, typer.Option("--store", help="The folder that keeps everything.")],
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port; 0 takes a free one.", min=0, max=65535)] = 8440,
    cert: Annotated[Path | None, typer.Option("--tls-cert", help="Certificate chain, for HTTPS.")] = None,
    key: Annotated[Path | None, typer.Option("--tls-key", help="Its private key.")] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="Plain HTTP beyond this machine.")] = False,
    measure: Annotated[
        str | None, typer.Option("--measure", help="Who measures uploads: threads (the default), processes or ray.")
    ] = None,
    measurers: Annotated[int | None, typer.Option(help="Uploads measured at once; 2 by default.", min=1)] = None,
    ray_address: Annotated[
        str | None,
        typer.Option("--ray-address", help="A Ray cluster; by default RAY_ADDRESS, or one of the server's own."),
    ] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Change a deployment setting, or SECTION.KEY of an experiment."
        ),
    ] = None,
) -> None:
    """Serve a federation over HTTP; every upload is on disk before it is answered.

    The first start makes an enrolment and an admin token and shows them once. For example:

    artesian serve app:federation --store store

    artesian serve digits-4 --store store --set snapshot_every=50 --set federation.clip=5

    artesian serve app:federation --store store --measure processes --measurers 4
    """
    from artesian.serving import serve as run_server

    chosen = {"measure": measure, "measurers": measurers, "ray_address": ray_address}
    ours = [f"{key}={json.dumps(value)}" for key, value in chosen.items() if value is not None]
    run_server(source, store, host, port, cert, key, insecure, [*(changes or ()), *ours])


@app.command()
def client(
    url: Annotated[str, typer.Argument(metavar="URL", help="Where the server is, such as https://host:8440.")],
    home: Annotated[Path, typer.Option("--home", help="This client's own folder; it keeps it the same client.")],
    token: Annotated[str | None, typer.Option(envvar="ARTESIAN_TOKEN", help="The enrolment token, to join.")] = None,
    learner: Annotated[
        str | None, typer.Option(metavar="MODULE:NAME", help="A learner, or a function that makes one each time.")
    ] = None,
    name: Annotated[str | None, typer.Option("--client", help="The client's name; made up if left out.")] = None,
    times: Annotated[int | None, typer.Option(help="How many refreshes; 1 without --every.", min=1)] = None,
    every: Annotated[float | None, typer.Option(help="Refresh every so many seconds, until stopped.", min=0)] = None,
    samples: Annotated[int, typer.Option(help="Samples to tell when joining without a learner.", min=0)] = 0,
    model: Annotated[Path | None, typer.Option("--out", help="Write the model here, after every refresh.")] = None,
    held: Annotated[bool, typer.Option("--held", help="Only show what is at home; ask nobody.")] = False,
    leave: Annotated[bool, typer.Option("--leave", help="Leave the federation, in the end.")] = False,
    patience: Annotated[float, typer.Option(help="Seconds to keep trying on a bad network.", min=0)] = 60.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON lines.")] = False,
) -> None:
    """Run one client: train, upload, draw back. Without a learner, only draw.

    Stopped or killed anywhere, the same command goes on where it was. For example:

    artesian client http://127.0.0.1:8440 --home homes/c07 --learner app:learner --every 3600

    artesian client http://127.0.0.1:8440 --home homes/c07 --out model.safetensors
    """
    from artesian.refreshing import describe, draws, learner_maker, refreshes, session_of, write_model

    if held and not (home / "identity.json").exists():
        raise SettingError("--held shows the home of a client", f"none at {home}", "give its --home")
    make = learner_maker(learner) if learner else None
    with _stoppable(home), session_of(url, token, home, held, client=name, patience=patience) as session:
        if make is not None and not held:
            often = times if every is not None else times or 1
            steps = refreshes(session, make, often, every or 0.0, _complain if every is not None else None)
        else:
            steps = draws(session, samples) if not (held or leave) else iter([describe(session)] if held else [])
        for told in steps:
            _tell_client(told, as_json)
            if model is not None:
                write_model(session, model)
        if leave:
            session.leave()


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
        clusters.add_row(row["name"], str(row["updated"]), str(row["updates"]), show(row["loss"]))
    out.print(clusters)
    members = Table("member", "samples", "answered", "open task", "mixture", box=None)
    for row in told["members"][:20]:
        shares = " ".join(f"{k}={share:.2f}" for k, share in (row["mixture"] or {}).items())
        here = show(row["open"]) if row["present"] else "left"
        members.add_row(row["client"], str(row["samples"]), str(row["answered"]), here, shares)
    out.print(members)
    if len(told["members"]) > 20:
        out.print(f"and {len(told['members']) - 20} more members (--json lists all)")
    out.print("last events: " + ", ".join(f"{e['kind']} {e['client']}" for e in told["last"]), highlight=False)


@contextmanager
def _stoppable(home: Path) -> Iterator[None]:
    """Ctrl-C and a polite kill end a client between any two of its steps."""
    logging.getLogger("stamina").addHandler(logging.NullHandler())  # it would tell of every retry
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    except KeyboardInterrupt:
        err.print(f"interrupted; the same command goes on from {home}", style="yellow", highlight=False)
        sys.exit(130)
    finally:
        signal.signal(signal.SIGTERM, before)


def _complain(error: ArtesianError) -> None:
    err.print(f"error: {error}; going on", style="red", markup=False, highlight=False)


def _tell_client(told: Mapping[str, Any], as_json: bool) -> None:
    def text(value: Any) -> str:
        if isinstance(value, Mapping):
            return " ".join(f"{key}={text(item)}" for key, item in value.items())
        return f"{value:.4f}" if isinstance(value, float) else show(value)

    line = json.dumps(told) if as_json else ", ".join(f"{key} {text(value)}" for key, value in told.items())
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _tokens(store: Path) -> Any:
    from artesian.server.guard import Tokens

    if not (store / "artesian.db").exists():
        raise SettingError("tokens belong to a store", f"no artesian.db at {store}", "serve it once first")
    return Tokens(store / "tokens.json")


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

    alone = [k.__module__ for k in _algorithms().values()].count(kind.__module__) == 1
    about = sys.modules[kind.__module__].__doc__ if alone else kind.__doc__  # a method and its other form differ
    return {
        "name": kind.name,
        "summary": (about or "").splitlines()[0].rstrip("."),
        "pace": type(kind().pace()).__name__.lower(),
        "settings": {f.name: f.default for f in fields(kind)},
    }


if __name__ == "__main__":
    main()
