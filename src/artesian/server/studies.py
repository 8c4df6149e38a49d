"""Studies beside the uploads: one at a time, in a thread of its own, which never holds up the end of the server."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress

from artesian.engine.workbench import Found
from artesian.errors import StudyFailed
from artesian.server.log import STUDIES

GRACE = 2.0  # seconds within which a study that is asked to end nearly always has


class Studies:
    """Begins the studies that a coordinator asks for; whoever needs a result waits for it."""

    def __init__(self) -> None:
        self.made = self.failed = 0
        self.seconds = 0.0  # in all of them together
        self.report: Callable[[Found, float], None] | None = None  # called with every result, and the seconds it took
        self._thread: threading.Thread | None = None
        self._result: Future[Found] = Future()
        self._stopping = False

    def __call__(self, work: Callable[[], Found]) -> Callable[[], Found]:
        """Begin a study, once the one before it is over; what is returned waits for its result."""
        result: Future[Found] = Future()
        if self._stopping:
            result.set_exception(_stopped())
            return result.result
        thread = threading.Thread(target=self._make, args=(work, result, self._thread), name="study", daemon=True)
        self._thread, self._result = thread, result
        thread.start()
        return result.result

    def at_once(self, work: Callable[[], Found]) -> Callable[[], Found]:
        """A study that is made where its result is asked for: before anybody is served."""

        def result() -> Found:
            began = time.perf_counter()
            found = work()
            self.made += 1
            self._spent(began)
            return found

        return result

    def stop(self) -> None:
        """End the study under way, at its next line of Python. It is made again when the server goes on."""
        self._stopping = True
        thread = self._thread
        if thread is not None and thread.is_alive():
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(SystemExit))
            with suppress(InvalidStateError):  # it is over just now
                self._result.set_exception(_stopped())

    def close(self) -> None:
        """Stop, and wait a moment for it."""
        self.stop()
        if self._thread is not None:
            self._thread.join(GRACE)

    def _make(self, work: Callable[[], Found], result: Future[Found], before: threading.Thread | None) -> None:
        if before is not None:
            before.join()
        began = time.perf_counter()
        with suppress(InvalidStateError):  # nobody waits any more
            try:
                found = work()
            except BaseException as error:  # whatever it is, whoever waits gets it
                self.failed += 1
                result.set_exception(self._failure(error, self._spent(began)))
            else:
                self.made += 1
                seconds = self._spent(began)
                result.set_result(found)
                self._tell(found, seconds)

    def _spent(self, began: float) -> float:
        seconds = time.perf_counter() - began
        self.seconds += seconds
        return seconds

    def _tell(self, found: Found, seconds: float) -> None:
        if self.report is not None:
            self.report(found, seconds)

    def _failure(self, error: BaseException, seconds: float) -> StudyFailed:
        if not self._stopping:
            STUDIES.error("study failed", exc_info=error, extra={"fields": {"seconds": round(seconds, 3)}})
        failure = StudyFailed(
            "The server failed in a calculation that this upload needs", "Send it again later; its log says why"
        )
        failure.__cause__ = error
        return failure


def _stopped() -> StudyFailed:
    return StudyFailed("The server stops before a calculation is done that this upload needs", "Send it again later")
