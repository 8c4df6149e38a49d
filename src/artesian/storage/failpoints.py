"""Named places where tests can kill a server: between any two durable steps."""

from __future__ import annotations

import os
import signal

VARIABLE = "ARTESIAN_FAILPOINT"  # "name:N": die on the Nth hit of this place
_hits: dict[str, int] = {}

NAMES = (
    "before-blobs",
    "between-blobs-and-event",
    "between-event-and-commit",
    "between-commit-and-mark",
    "between-mark-and-change",
    "between-change-and-answer",
    "between-blobs-and-snapshot",
    "between-snapshot-and-cleaning",
)


def reach(name: str) -> None:
    """Kill this process here, if the environment says so."""
    wanted, _, hits = os.environ.get(VARIABLE, "").partition(":")
    if wanted == name:
        _hits[name] = _hits.get(name, 0) + 1
        if _hits[name] == int(hits or 1):
            os.kill(os.getpid(), signal.SIGKILL)
