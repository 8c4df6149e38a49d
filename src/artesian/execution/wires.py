"""How jobs and results travel between this process and its worker processes.

`PICKLES` carries any Python value between processes of one program. `PLAIN` carries trees as JSON text and raw arrays,
and nothing is unpickled: it is for jobs that hold what came from a network.
"""

from __future__ import annotations

import json
import logging
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from multiprocessing.connection import Connection
from typing import Any, Protocol

import numpy as np

from artesian import errors
from artesian.core import Tree
from artesian.errors import ArtesianError
from artesian.params import seal
from artesian.storage.codec import contiguous, gather, scatter, to_tree

LOG = logging.getLogger("artesian.execution")


@dataclass(frozen=True)
class Outcome:
    """What came of a job: a result, or the error it ended with."""

    result: Any = None
    error: Exception | None = None

    @classmethod
    def of(cls, work: Callable[[], Any]) -> Outcome:
        """Do some work, and keep the error it may end with."""
        try:
            return cls(work())
        except Exception as error:
            return cls(error=error)

    def get(self) -> Any:
        """The result; or raise the error."""
        if self.error is not None:
            raise self.error
        return self.result


class Wire(Protocol):
    """Writes and reads jobs and outcomes. Reading raises EOFError where the other side is gone."""

    def send(self, channel: Connection, job: Any) -> None: ...
    def receive(self, channel: Connection) -> Any: ...
    def answer(self, channel: Connection, outcome: Outcome) -> None: ...
    def outcome(self, channel: Connection) -> Outcome: ...


class Pickles:
    """Any value, between processes of one program. Unexpected errors bring the worker's traceback as a note."""

    def send(self, channel: Connection, job: Any) -> None:
        channel.send(job)

    def receive(self, channel: Connection) -> Any:
        return channel.recv()

    def answer(self, channel: Connection, outcome: Outcome) -> None:
        if outcome.error is not None and not isinstance(outcome.error, ArtesianError):
            outcome.error.add_note("In a worker:\n" + "".join(traceback.format_exception(outcome.error)))
        try:
            channel.send(outcome)
        except OSError:
            raise
        except Exception as error:  # a result or an error that cannot be pickled
            what = outcome.error or error
            channel.send(Outcome(error=RuntimeError(f"{type(what).__name__}: {what}")))

    def outcome(self, channel: Connection) -> Outcome:
        outcome: Outcome = channel.recv()
        return outcome


class Plain:
    """Trees of JSON values and arrays. Errors of ours arrive as they are, others as RuntimeError."""

    def send(self, channel: Connection, job: Any) -> None:
        arrays: list[np.ndarray] = []

        def put(path: str, array: np.ndarray) -> Tree:
            arrays.append(contiguous(array))
            return {"$array": len(arrays) - 1}

        body = scatter(to_tree(job), put)
        head = {"body": body, "arrays": [(array.dtype.str, array.shape) for array in arrays]}
        channel.send_bytes(json.dumps(head).encode())
        for array in arrays:
            if array.nbytes:
                channel.send_bytes(array.reshape(-1).view(np.uint8).data)

    def receive(self, channel: Connection) -> Any:
        head = json.loads(channel.recv_bytes())
        arrays = [_array(channel, np.dtype(dtype), shape) for dtype, shape in head["arrays"]]
        return gather(head["body"], "$array", lambda at: arrays[int(at)])

    def answer(self, channel: Connection, outcome: Outcome) -> None:
        error = outcome.error
        if error is None:
            self.send(channel, {"result": outcome.result})
        elif isinstance(error, ArtesianError):
            self.send(channel, {"error": type(error).__name__, "words": [error.problem, error.remedy]})
        else:
            LOG.error("A job failed in a worker", exc_info=error)
            self.send(channel, {"error": "", "words": [f"{type(error).__name__}: {error}"[:300]]})

    def outcome(self, channel: Connection) -> Outcome:
        tree = self.receive(channel)
        return Outcome(error=_error(tree)) if "error" in tree else Outcome(tree["result"])


PICKLES, PLAIN = Pickles(), Plain()


def _array(channel: Connection, dtype: np.dtype[Any], shape: list[int]) -> np.ndarray:
    data = np.empty(prod(shape) * dtype.itemsize, np.uint8)
    if data.nbytes:
        channel.recv_bytes_into(data.data)
    return seal(data.view(dtype).reshape(shape))


def _error(tree: Tree) -> Exception:
    kind = getattr(errors, tree["error"], None) if tree["error"] else None
    if isinstance(kind, type) and issubclass(kind, ArtesianError) and kind.__init__ is ArtesianError.__init__:
        return kind(*tree["words"])
    return RuntimeError(f"A job failed in a worker: {tree['words'][0]}")
