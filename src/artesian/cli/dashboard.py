"""The command that shows runs on a live page."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Annotated

import typer

from artesian.cli.application import app
from artesian.cli.console import err, out


@app.command(rich_help_panel="Experiments")
def dashboard(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN...", help="Folders of runs, finished or not, or folders that hold such folders."),
    ],
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.", min=0, max=65535)] = 0,
    browser: Annotated[bool, typer.Option("--open/--no-open", help="Open the page in a browser.")] = True,
) -> None:
    """Show runs on a live page: curves, clients, mixtures, gains. Several runs are laid over each other.

    The page follows a run that is still going on. It is served to this machine alone, at an address with a random key,
    until Ctrl-C; the folders are only read. Examples:

    artesian dashboard runs/first

    artesian dashboard runs/confluence runs/fedbuff --no-open

    The page of a federation that is served is at its own address: see artesian serve.
    """
    from artesian.report.following import followed
    from artesian.report.live_page import RunsPage

    found = followed(runs)
    page = RunsPage(found, port)
    for run in found:
        out.print(
            f"{run.name}: {'going on' if run.chronicle.about.live else 'finished'}", highlight=False, markup=False
        )
    out.print(f"the page is at {page.url}", highlight=False, markup=False, soft_wrap=True)
    out.print("Ctrl-C ends it", highlight=False)
    if browser:
        _show(page.url)
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        page.serve()
    except KeyboardInterrupt:
        err.print("the page has ended")
    finally:
        signal.signal(signal.SIGTERM, before)


def _show(url: str) -> None:
    """Open a browser, where there is one; the address is printed in any case."""
    import webbrowser

    try:
        webbrowser.open(url)
    except webbrowser.Error:
        return
