"""Server-sent events: facts as text that a browser follows."""

from __future__ import annotations

import json
from typing import Any

KIND = "text/event-stream"
HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no"}  # no proxy holds events back
OPENING = b"retry: 2000\n\n"  # milliseconds after which a browser comes back
HERE = b": here\n\n"  # keeps proxies from closing a silent connection


def framed(facts: Any, event: str = "facts") -> bytes:
    """One event."""
    text = json.dumps(facts, separators=(",", ":"), allow_nan=False)
    return f"event: {event}\ndata: {text}\n\n".encode()
