"""The workers' side: what a process does that the main process sends trainings and scores to."""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from artesian.core import Model
from artesian.errors import MissingExtra
from artesian.execution.shared_memory import Made, take_over
from artesian.simulator.jobs import Done, Job, Place, Work
from artesian.simulator.parcel import Parcel
from artesian.simulator.stopwatch import Seconds, Stopwatch

T = TypeVar("T")
ENDINGS = (signal.SIGINT, signal.SIGTERM)  # how a run is asked to end: the main process's business


@dataclass(frozen=True)
class Answer(Generic[T]):
    """What a worker sends back."""

    found: T
    spent: Seconds  # where its time went
    packing: float  # what it took to pack the question, as the parcel said
    peak: float  # its largest memory so far, in MB, without what it shares with others


@contextmanager
def single_threaded(model: Model | None = None) -> Iterator[None]:
    """Linear algebra on one thread in this process, and the model's own too: the same bits as in a worker."""
    with threads_limited(), getattr(model, "one_thread", nullcontext)():
        yield


def threads_limited() -> Any:
    """Linear algebra on one thread from here on, until the result is left as a context."""
    try:
        from threadpoolctl import threadpool_limits
    except ModuleNotFoundError:
        raise MissingExtra("threadpoolctl", "sim") from None
    return threadpool_limits(1)


_place: Place | None = None  # of this worker process
_limits = ExitStack()  # held for its life


def settle_in(place: Place, data: Made) -> None:
    """Make this process a worker at that place, with data that were made elsewhere."""
    global _place
    take_over(data)
    _place = place
    _limits.enter_context(single_threaded(place.model))
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def settle_in_process(place: Place, data: Made) -> None:
    """The same for a process of the run's own: it lives until the main process dismisses it, or dies."""
    for number in ENDINGS:
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_with_the_main_process, daemon=True).start()
    settle_in(place, data)


def _end_with_the_main_process() -> None:
    main = multiprocessing.parent_process()
    assert main is not None
    main.join()
    os._exit(1)


def do(parcel: Parcel[Work]) -> Parcel[Answer[Done | float]]:
    """What a worker does with what it is sent."""
    assert _place is not None
    spent, work = Stopwatch(), parcel.content
    found = _place.perform(work, spent) if isinstance(work, Job) else _place.score(work, spent)
    seconds = spent.seconds
    seconds["moving"] += parcel.unpacking
    return Parcel(Answer(found, seconds, parcel.packing, peak_mb() - _shared_mb()))


def peak_mb() -> float:
    """Peak memory of this process."""
    unit = 1024 * 1024 if sys.platform == "darwin" else 1024  # macOS counts bytes
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit


def _shared_mb() -> float:
    """How much of this process's memory are pages that the others map too, where the system tells."""
    try:
        told = Path("/proc/self/status").read_text()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) for line in told.splitlines() if line.startswith("RssShmem:")) / 1024
