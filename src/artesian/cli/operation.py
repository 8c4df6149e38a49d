"""Commands that run a federation: demo, serve, client."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from artesian.cli.application import app
from artesian.cli.console import err, say_waiting, show
from artesian.errors import ArtesianError, SettingError


@app.command(rich_help_panel="Federations")
def demo(
    clients: Annotated[int, typer.Option(help="Number of client processes.", min=1, max=40)] = 12,
    seconds: Annotated[float, typer.Option(help="How long clients come and go, in seconds.", min=1, max=60)] = 30,
    keep: Annotated[
        Path | None, typer.Option("--keep", metavar="FOLDER", help="Keep the store and the records in a new folder.")
    ] = None,
    check: Annotated[
        Path | None,
        typer.Option("--check", metavar="FOLDER", help="Only repeat the final check on a kept folder."),
    ] = None,
    stay: Annotated[bool, typer.Option("--stay", help="Go on until Ctrl-C, then check.")] = False,
) -> None:
    """Watch a federation at work: a server, a dozen clients whose data drift, and a crash in the middle.

    It prints the address of the live page and a token to sign in with; --stay keeps the page up. The server is
    killed with SIGKILL while clients are busy, and started again on the same store and port. At the end the demo
    checks that the store holds every upload a client saw acknowledged; if not, the exit code is 1.
    """
    from artesian.demo import check_extras

    check_extras()
    from artesian.demo import conductor

    try:
        conductor.check(check) if check else conductor.perform(clients, seconds, keep, stay)
    except KeyboardInterrupt:
        err.print("interrupted: every process of the demo has ended", style="yellow")
        sys.exit(130)


@app.command(rich_help_panel="Federations")
def serve(
    source: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:NAME|FILE|PRESET",
            help="A federation in your code or a function that returns one; or an experiment's TOML file or preset.",
        ),
    ],
    store: Annotated[Path, typer.Option("--store", help="Folder to keep everything in.")],
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.", min=0, max=65535)] = 8440,
    cert: Annotated[Path | None, typer.Option("--tls-cert", help="Certificate chain in PEM format, for HTTPS.")] = None,
    key: Annotated[Path | None, typer.Option("--tls-key", help="Private key of the certificate.")] = None,
    client_ca: Annotated[
        Path | None,
        typer.Option("--tls-client-ca", help="Serve only clients with a certificate of this authority, in PEM format."),
    ] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="Allow plain HTTP beyond this machine.")] = False,
    show_token: Annotated[
        bool, typer.Option("--show-token", help="At the first start, make two tokens and show them.")
    ] = False,
    token_file: Annotated[
        Path | None,
        typer.Option("--token-file", metavar="FILE", help="At the first start, make two tokens and write them here."),
    ] = None,
    measure: Annotated[
        str | None,
        typer.Option("--measure", help="What measures uploads: threads (default), processes or ray."),
    ] = None,
    measurers: Annotated[int | None, typer.Option(help="Uploads measured at once; 2 by default.", min=1)] = None,
    ray_address: Annotated[
        str | None,
        typer.Option(
            "--ray-address", help="Address of a Ray cluster; by default RAY_ADDRESS, or a cluster of its own."
        ),
    ] = None,
    accept_replay: Annotated[
        bool,
        typer.Option("--accept-replay", help="Go on although this code replays the store to other answers."),
    ] = False,
    changes: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Change a deployment setting, or SECTION.KEY of an experiment; without VALUE, remove it. Repeatable.",
        ),
    ] = None,
) -> None:
    """Serve a federation over HTTP. Every upload is on disk before it is answered.

    Clients need an enrolment token: --show-token, --token-file or artesian token make. The live page is at the
    server's address: open it in a browser, and sign in with an admin token. Examples:

    artesian serve app:federation --store store --show-token

    artesian serve digits-4 --store store --set snapshot_every=50 --set federation.clip=5

    artesian serve app:federation --store store --measure processes --measurers 4
    """
    from artesian.config.federations import serve as run_server
    from artesian.server.tls import tls_of

    tls = tls_of(host, cert, key, client_ca, insecure)
    chosen = {"measure": measure, "measurers": measurers, "ray_address": ray_address}
    ours = [f"{key}={json.dumps(value)}" for key, value in chosen.items() if value is not None]
    show = tokens_shown(show_token, token_file)
    run_server(source, store, host, port, tls, [*(changes or ()), *ours], show, accept_replay)


@app.command(rich_help_panel="Federations")
def client(
    url: Annotated[str, typer.Argument(metavar="URL", help="Where the server is, such as https://host:8440.")],
    home: Annotated[Path, typer.Option("--home", help="This client's own folder; it keeps it the same client.")],
    token: Annotated[str | None, typer.Option(envvar="ARTESIAN_TOKEN", help="The enrolment token, to join.")] = None,
    learner: Annotated[
        str | None, typer.Option(metavar="MODULE:NAME", help="A learner, or a function that makes one each time.")
    ] = None,
    name: Annotated[str | None, typer.Option("--client", help="Name of the client; made up if left out.")] = None,
    times: Annotated[
        int | None, typer.Option(help="Number of refreshes, or looks with --when; 1 without --every.", min=1)
    ] = None,
    every: Annotated[
        float | None, typer.Option(help="Refresh, or look, every so many seconds, until stopped.", min=0)
    ] = None,
    when: Annotated[
        str | None,
        typer.Option("--when", metavar="POLICY", help="Refresh only then, such as 'drift or age 7d'."),
    ] = None,
    detectors: Annotated[
        list[str] | None,
        typer.Option(
            "--detector", metavar="NAME", help="What looks for drift, with --when: ks by default. Repeatable."
        ),
    ] = None,
    tune: Annotated[int, typer.Option(help="Epochs to train the answer on before using it.", min=0)] = 0,
    accept: Annotated[
        str, typer.Option(metavar="better|always", help="Use the best model on data held back, or always the answer.")
    ] = "better",
    hold_back: Annotated[float, typer.Option(metavar="SHARE", help="Share of the data to hold back.")] = 0.2,
    keep_training: Annotated[
        bool, typer.Option("--keep-training", help="Train on what is in use, where it beats what a refresh brings.")
    ] = False,
    report: Annotated[
        bool, typer.Option("--report", help="Tell the server how the last refresh changed this client's score.")
    ] = False,
    recipes: Annotated[
        list[str] | None, typer.Option("--recipe", metavar="MODULE:NAME", help="A recipe of your own; may be repeated.")
    ] = None,
    samples: Annotated[int, typer.Option(help="Number of samples to state when joining without a learner.", min=0)] = 0,
    model: Annotated[Path | None, typer.Option("--out", help="File to write the model to after a refresh.")] = None,
    held: Annotated[bool, typer.Option("--held", help="Only show what is in --home, without the server.")] = False,
    leave: Annotated[bool, typer.Option("--leave", help="Leave the federation at the end.")] = False,
    patience: Annotated[float, typer.Option(help="Seconds to keep trying on a bad network.", min=0)] = 60.0,
    ca: Annotated[
        Path | None,
        typer.Option("--ca", metavar="FILE", help="Certificates to trust, in PEM format."),
    ] = None,
    certificate: Annotated[
        Path | None,
        typer.Option("--cert", metavar="FILE", help="This client's certificate and its key, in one PEM file."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON lines.")] = False,
) -> None:
    """Run one client: train, upload, draw back. Without a learner, only draw.

    Stopped or killed at any point, the same command continues where it was. Examples:

    artesian client http://127.0.0.1:8440 --home homes/c07 --learner app:learner --every 3600

    artesian client http://127.0.0.1:8440 --home homes/c07 --learner app:learner --every 60
    --when "(drift or age 7d) and budget 10/day" --detector adwin --detector "ks part=logits level=0.001"

    artesian client http://127.0.0.1:8440 --home homes/c07 --out model.safetensors
    """
    from artesian.client.loop import check_token, describe, draws, learner_maker, refreshes, session_of, write_model
    from artesian.client.transport import Transport
    from artesian.client.watch import Watch

    if held and not (home / "identity.json").exists():
        raise SettingError(f"No client lives in {home}", "Name the folder of a client: --home FOLDER")
    # what costs least is judged first, and the user's own code run last
    transport = Transport(url, patience, ca, certificate)
    transport.notify = say_waiting
    if not held:
        check_token(token, home)
    _check_when(when, detectors, learner)
    make = learner_maker(learner) if learner else None
    with _stoppable(home), session_of(transport, token, home, held, name, recipes or ()) as session:
        if make is not None and not held:
            often = times if every is not None else times or 1
            complain = _complain if every is not None else None
            options: dict[str, Any] = {"accept": accept, "hold_back": hold_back, "tune": tune, "report": report}
            options |= {"keep_training": keep_training}
            if when is not None:
                options["watch"] = Watch(when, detectors or ["ks"], client=session)
            steps = refreshes(session, make, often, every or 0.0, complain, out=model, **options)
        else:
            steps = draws(session, samples, model) if not (held or leave) else iter([describe(session)] if held else [])
        for told in steps:
            _tell_client(told, as_json)
        if held and model is not None:
            write_model(session, session.held(), model)
        if leave:
            session.leave()


@contextmanager
def _stoppable(home: Path) -> Iterator[None]:
    """Ctrl-C and a polite kill end a client between any two of its steps."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    except KeyboardInterrupt:
        err.print(f"interrupted; the same command goes on from {home}", style="yellow", highlight=False)
        sys.exit(130)
    finally:
        signal.signal(signal.SIGTERM, before)


def _check_when(when: str | None, detectors: list[str] | None, learner: str | None) -> None:
    """Refuse what has no effect, and a policy or detector that is not understood, before anything is done."""
    if when is None and detectors:
        raise SettingError("--detector has an effect only with --when", "Add --when drift")
    if when is not None and learner is None:
        raise SettingError("--when needs a learner, whose data it watches", "Add --learner MODULE:NAME")
    if when is not None:
        from artesian.drift.watch import Watching

        Watching(when, detectors or ())


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


def tokens_shown(on_screen: bool, file: Path | None) -> Callable[[dict[str, str]], None] | None:
    """What is done with the first tokens: shown, written to a file that only its owner reads, or none are made."""
    from artesian.server.serve import say_tokens
    from artesian.storage.files import write_file

    def keep(made: dict[str, str]) -> None:
        assert file is not None
        if file.exists():
            raise SettingError(f"{file} is there already", "Remove it, or name another --token-file")
        write_file(file, json.dumps(made).encode(), private=True)

    if file is not None:
        return keep
    return say_tokens if on_screen else None
