"""One run of a league, in a process of its own: `python -m artesian.leagues.single_run JOB`.

The job is JSON: source, changes, seed, folder. Lines of JSON on standard output say how far the run is, what it warns
of, and why it failed. Whatever the run itself prints goes to standard error.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

from artesian.config.experiments import load
from artesian.errors import ArtesianError, ChangedSince, FellBack, StartedAfresh
from artesian.simulator.run import run_experiment
from artesian.simulator.simulation import Progress

BETWEEN = 0.1  # seconds between two lines
INTERRUPTED = 130  # the exit code of a run that took a snapshot and stopped
Say = Callable[..., None]


def main() -> None:
    """Run the job that the command line holds, and say how it goes."""
    job, say = json.loads(sys.argv[1]), _channel()
    warnings.showwarning = _warning(say)
    try:
        run(job, say)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except BrokenPipeError:
        sys.exit(1)  # nobody is left who asked for this run
    except Exception as error:
        say(error=_words(error))
        sys.exit(1)


def run(job: dict[str, Any], say: Say) -> None:
    """The run itself, begun or resumed; nothing where it had finished before."""
    experiment = load(job["source"], job["changes"])
    run_experiment(experiment, seed=job["seed"], out=Path(job["folder"]), resume=True, progress=throttled(say))


def throttled(say: Say, clock: Callable[[], float] = time.monotonic) -> Callable[[Progress], None]:
    """Say how far the run is, now and then, and always at its end."""
    said: float | None = None

    def report(progress: Progress) -> None:
        nonlocal said
        if said is None or clock() - said >= BETWEEN or progress.uploads == progress.total:
            said = clock()
            say(done=progress.uploads)

    return report


def _channel() -> Say:
    """Lines to whoever started this process; what else would be printed there goes to standard error."""
    lines: TextIO = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    os.dup2(2, 1)

    def say(**words: Any) -> None:
        lines.write(json.dumps(words) + "\n")

    return say


def _warning(say: Say) -> Callable[..., None]:
    """Warnings of ours are for the user; others go where Python shows them."""
    python_shows = warnings.showwarning

    def show(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
        if issubclass(category, (ChangedSince, FellBack, StartedAfresh)):
            say(warning=str(message))
        else:
            python_shows(message, category, *where, **more)

    return show


def _words(error: Exception) -> str:
    if isinstance(error, ArtesianError):
        return str(error)
    where = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({Path(where.filename).name}, line {where.lineno})"


if __name__ == "__main__":
    main()
