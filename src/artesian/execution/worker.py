"""The life of a worker process: it is set up once, then does one job after another until its pool is gone."""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from artesian.execution.wires import Outcome, Wire

Perform = Callable[[Any], Any]  # does one job
Setup = Callable[[], Perform]  # what every worker calls once; it is pickled, so it is found by its module and name

ENDINGS = (signal.SIGINT, signal.SIGTERM)  # the main process decides what they mean


def work(setup: Setup, channel: Connection, wire: Wire) -> None:
    """Do jobs until the channel ends. The first answer says whether the set-up worked."""
    for number in ENDINGS:
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_with_the_main_process, daemon=True).start()
    os.dup2(2, 1)  # standard output belongs to the main process
    started = Outcome.of(setup)
    wire.answer(channel, Outcome(error=started.error))
    if started.error is not None:
        return
    with suppress(EOFError, OSError):  # the pool is gone
        while True:
            wire.answer(channel, _done(started.result, channel, wire))


def _done(perform: Perform, channel: Connection, wire: Wire) -> Outcome:
    """What came of the next job."""
    try:
        job = wire.receive(channel)
    except (EOFError, OSError):
        raise
    except Exception as error:  # a job of a class that this process cannot import
        return Outcome(error=error)
    return Outcome.of(lambda: perform(job))


def _end_with_the_main_process() -> None:
    main = multiprocessing.parent_process()
    assert main is not None
    main.join()
    os._exit(1)


def peak_mb() -> float:
    """The peak memory of this process."""
    unit = 1024 * 1024 if sys.platform == "darwin" else 1024  # macOS counts bytes
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit


def shared_mb() -> float:
    """How much of this process's memory other processes map too, where the system says so."""
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) for line in status.splitlines() if line.startswith("RssShmem:")) / 1024
