"""A pool of workers: jobs go in, results come out, the same bits wherever they are worked out.

A job is a pure function of what it is given, so a lost worker costs nothing but time: it is replaced, and the job is
done again.
"""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any, Protocol

from artesian.errors import ArtesianError, SettingError, WorkerLost, nearest
from artesian.execution.wires import PICKLES, Wire
from artesian.execution.worker import Setup

EXECUTORS = ("inline", "processes", "ray")
TRIES = 3  # workers that one job may lose


class WorkerPool(Protocol):
    """Workers that are set up once and then do jobs, each one at a time."""

    workers: int  # 0: this process does the work

    def wait(self) -> None:
        """Wait until every worker is set up; raise what keeps one from it."""
        ...

    def submit(self, job: Any) -> Future[Any]:
        """Have a job done. The future ends with its result, its own error, or WorkerLost."""
        ...

    def close(self) -> None:
        """End the workers at once; jobs that are not done fail with WorkerLost."""
        ...


class Inline:
    """In this process, at once."""

    workers = 0

    def __init__(self, setup: Setup) -> None:
        self._perform = setup()

    def wait(self) -> None:
        pass

    def submit(self, job: Any) -> Future[Any]:
        done: Future[Any] = Future()
        try:
            done.set_result(self._perform(job))
        except Exception as error:
            done.set_exception(error)
        return done

    def close(self) -> None:
        pass


def open_pool(
    executor: str, setup: Setup, workers: int, ray_address: str | None = None, wire: Wire = PICKLES
) -> WorkerPool:
    """The pool of that name. `wire` is how jobs travel to worker processes; Ray always pickles them itself."""
    if executor == "inline":
        return Inline(setup)
    if executor == "processes":
        from artesian.execution.processes import Processes

        return Processes(setup, workers, wire)
    if executor == "ray":
        from artesian.execution.ray import RayTasks

        return RayTasks(setup, workers, ray_address)
    raise unknown_executor(executor)


def unknown_executor(name: str) -> SettingError:
    """The error for a name that is not in EXECUTORS."""
    return SettingError(f"There is no executor {name!r}", nearest(name, EXECUTORS).capitalize())


def could_not_start(error: Exception) -> ArtesianError:
    """What to raise when a worker could not be set up: its own error where that is one of ours."""
    if isinstance(error, ArtesianError):
        return error
    return WorkerLost(f"A worker could not start: {brief(error)}", "Fix what it says, then start again")


def stopped() -> WorkerLost:
    """The error of a job that its pool no longer does."""
    return WorkerLost("The workers were stopped", "Try again later")


def lost_too_often(why: str) -> WorkerLost:
    """The error of a job that cost a worker at every try."""
    return WorkerLost(f"One job lost {TRIES} workers. The last: {why}", "Check memory, or use fewer workers")


def brief(error: BaseException) -> str:
    """The kind of an error and the last line it says, for messages that may be long."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1][:200]}" if lines else type(error).__name__
