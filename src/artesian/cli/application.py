"""The application itself: its help, its version, and how a failure is shown."""

from __future__ import annotations

import os
import sys
import traceback
import warnings
from pathlib import Path
from typing import Annotated, Any

import typer

import artesian
from artesian.cli.console import err, out
from artesian.errors import ArtesianError, ChangedSince, FellBack, StartedAfresh

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Federated learning on tap: simulate and compare algorithms, serve a federation, run its clients.",
    epilog="Try it: artesian demo, then artesian simulate digits-4 --out runs/first",
)
TRACEBACK = "ARTESIAN_TRACEBACK"  # set it to see a failure's whole traceback
_python_shows = warnings.showwarning
StorePath = Annotated[Path, typer.Argument(metavar="STORE", help="Folder of the store.")]
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
        what = f"{type(error).__name__}: {error} ({Path(where.filename).name}, line {where.lineno})"
        err.print(f"error: {what}. Set {TRACEBACK}=1 to see the traceback.", style="red", markup=False)
        sys.exit(1)


def _show_warning(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
    """A sentence of ours without the place it comes from; others as Python shows them."""
    if issubclass(category, (ChangedSince, FellBack, StartedAfresh)):
        err.print(f"warning: {message}", style="yellow", markup=False, highlight=False)
    else:
        _python_shows(message, category, *where, **more)


def _version(wanted: bool) -> None:
    if wanted:
        out.print(f"artesian {artesian.__version__}", highlight=False)
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Federated learning on tap: simulate and compare algorithms, serve a federation, run its clients."""
