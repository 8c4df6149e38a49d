"""Worker processes of this machine. One that is lost is replaced, and its job is done again."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing import resource_tracker
from queue import SimpleQueue
from threading import Lock
from typing import Any

from artesian.execution.pool import TRIES, brief, could_not_start, lost_too_often, stopped
from artesian.execution.threads import ONE_THREAD
from artesian.execution.wires import PICKLES, Outcome, Wire
from artesian.execution.worker import ENDINGS, Setup, work

LOG = logging.getLogger("artesian.execution")
END_WITHIN = 5.0  # seconds in which a process that closed its channel has an exit code
_SPAWN = multiprocessing.get_context("spawn")
_starting = Lock()  # a process gets environment and signals of this one


class Lost(Exception):
    """A worker is gone, or cannot be used."""


class Processes:
    """In worker processes of one thread each; a thread here for each of them moves its jobs."""

    def __init__(self, setup: Setup, workers: int, wire: Wire = PICKLES) -> None:
        self.workers, self._setup, self._wire, self._closed = workers, setup, wire, False
        self._members: list[WorkerProcess] = []
        self._idle: SimpleQueue[WorkerProcess] = SimpleQueue()
        self._threads = ThreadPoolExecutor(workers, "worker")
        try:
            for _ in range(workers):
                self._members.append(self._hire())
                self._idle.put(self._members[-1])
        except BaseException:
            self.close()
            raise

    @property
    def pids(self) -> list[int]:
        """The process ids of the workers."""
        return [worker.pid for worker in self._members]

    def wait(self) -> None:
        for worker in list(self._members):
            try:
                error = worker.started()
            except Lost as lost:
                raise could_not_start(lost) from None
            if error is not None:
                raise could_not_start(error)

    def submit(self, job: Any) -> Future[Any]:
        if self._closed:
            raise stopped()
        return self._threads.submit(self._do, job)

    def close(self) -> None:
        self._closed = True
        for worker in list(self._members):
            worker.close()
        self._threads.shutdown()

    def _do(self, job: Any) -> Any:
        """Have a job done, by another worker where one is lost over it."""
        why = ""
        for _ in range(TRIES):
            worker = self._idle.get()
            try:
                return worker.ask(job).get()
            except Lost as lost:
                why = str(lost)
                worker = self._replaced(worker, why)
            finally:
                self._idle.put(worker)
        raise lost_too_often(why)

    def _replaced(self, worker: WorkerProcess, why: str) -> WorkerProcess:
        if self._closed:
            raise stopped()
        LOG.warning("A worker was lost, and another takes its place: %s", why)
        worker.close()
        try:
            fresh = self._hire()
        except OSError as error:  # it stays lost, and whoever takes it next tries again
            LOG.warning("No other worker could be started: %s", error)
            return worker
        self._members[self._members.index(worker)] = fresh
        if self._closed:
            fresh.close()
        return fresh

    def _hire(self) -> WorkerProcess:
        return WorkerProcess(self._setup, self._wire)


class WorkerProcess:
    """One worker process, as this process sees it."""

    def __init__(self, setup: Setup, wire: Wire) -> None:
        self._wire = wire
        self._greeting: Outcome | None = None
        self._channel, theirs = _SPAWN.Pipe()
        self._process = _SPAWN.Process(target=work, args=(setup, theirs, wire))
        with theirs, _start_of_a_worker():
            self._process.start()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def started(self) -> Exception | None:
        """Wait until it is set up; what went wrong there, if anything."""
        if self._greeting is None:
            self._greeting = self._outcome()
        return self._greeting.error

    def ask(self, job: Any) -> Outcome:
        """What came of a job; Lost where nobody can say."""
        if error := self.started():
            raise Lost(f"it could not start: {brief(error)}")
        try:
            self._wire.send(self._channel, job)
        except OSError:
            raise self._lost() from None
        return self._outcome()

    def close(self) -> None:
        """End it at once: it holds nothing that is worth saving."""
        self._process.kill()
        self._process.join()

    def _outcome(self) -> Outcome:
        try:
            return self._wire.outcome(self._channel)
        except (OSError, EOFError):
            raise self._lost() from None

    def _lost(self) -> Lost:
        self._process.join(END_WITHIN)
        return Lost(f"process {self.pid} ended with exit code {self._process.exitcode}")


@contextmanager
def _start_of_a_worker() -> Iterator[None]:
    """One thread for the process that starts now, and no Ctrl-C or SIGTERM before it can ignore them."""
    with _starting:
        resource_tracker.ensure_running()  # whose own start would let signals in again
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, ENDINGS)
        before = {name: os.environ.get(name) for name in ONE_THREAD}
        os.environ.update(ONE_THREAD)
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
