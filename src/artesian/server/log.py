"""One log line per request, bad connection and study, as JSON or as text; credentials and bodies never appear in it."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Literal

from artesian.server.crowding import address_of

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
Form = Literal["json", "text", "off"]
Observe = Callable[[str, int, float], None]  # route, status, seconds

REQUESTS = logging.getLogger("artesian.requests")
STUDIES = logging.getLogger("artesian.studies")
CLUSTERS = logging.getLogger("artesian.clusters")
CONNECTIONS = logging.getLogger("artesian.connections")
DEFENCE = logging.getLogger("artesian.defence")
PAGE = logging.getLogger("artesian.page")
METHODS = ("GET", "HEAD", "PUT", "DELETE", "POST", "PATCH", "OPTIONS")
PROBES = ("/healthz", "/readyz")
ERROR = "artesian.error"  # the key of the scope under which the application puts the refusal's name
PROBLEM = "artesian.problem"  # and what happened, where the server itself failed
CROWDED = "artesian.crowded"  # that under which a connection puts the refusal of a request that is one too many
REPEATED = ("Invalid HTTP request received.", "Unsupported upgrade request.")  # uvicorn's lines; ours say who it was


def start_logging(form: Form) -> None:
    """Send every log line of the process to standard error in this form; `off` leaves warnings, as text."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Json() if form == "json" else _Text())
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    for log in (REQUESTS, STUDIES, CLUSTERS, DEFENCE):
        log.setLevel(logging.WARNING if form == "off" else logging.INFO)
    logging.getLogger("uvicorn.error").addFilter(_is_ours)


def _is_ours(record: logging.LogRecord) -> bool:
    return not record.getMessage().startswith(REPEATED)


class Logged:
    """An application that logs each request when it is over, and has its duration observed."""

    def __init__(self, app: App, observe: Observe) -> None:
        self.app, self.observe = app, observe

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in PROBES:
            await self.app(scope, receive, send)
            return
        told = {"status": 0, "received": 0, "sent": 0}

        async def receiving() -> MutableMapping[str, Any]:
            message = await receive()
            told["received"] += len(message.get("body", b""))
            return message

        async def sending(message: MutableMapping[str, Any]) -> None:
            told["status"] = message.get("status", told["status"])
            told["sent"] += len(message.get("body", b""))
            await send(message)

        began = time.perf_counter()
        try:
            await self.app(scope, receiving, sending)
        finally:
            fields = _fields(scope) | told | {"ms": _since(began)}
            self.observe(fields["route"], told["status"], fields["ms"] / 1000)
            level = logging.WARNING if PROBLEM in scope else logging.INFO
            REQUESTS.log(level, "request", extra={"fields": fields | _who(scope, told["status"])})


def _who(scope: Scope, status: int) -> dict[str, str]:
    """The address of whoever sent a request that was refused."""
    return {"address": address_of(scope.get("client"))} if status >= 400 else {}


def _fields(scope: Scope) -> dict[str, Any]:
    """What a line says about a request: its route as declared, never its query or its headers."""
    route, path = scope.get("route"), scope.get("path_params", {})
    method = scope["method"] if scope["method"] in METHODS else "unknown"
    found = {"method": method, "route": getattr(route, "path", "unknown")}
    found |= {key: str(path[key])[:200] for key in ("client", "number") if key in path and _is_one(key, path[key])}
    return found | {name: scope[key] for name, key in (("error", ERROR), ("problem", PROBLEM)) if key in scope}


def _is_one(key: str, told: str) -> bool:
    """Whether it may be logged: text in the place of a number may be anything, even a secret."""
    return key != "number" or (told.isascii() and told.isdigit())


def _since(began: float) -> float:
    return round((time.perf_counter() - began) * 1000, 1)


class _Json(logging.Formatter):
    """A record as one JSON object on one line."""

    def format(self, record: logging.LogRecord) -> str:
        told: dict[str, Any] = {"time": _when(record), "level": record.levelname.lower(), "event": record.getMessage()}
        told |= getattr(record, "fields", {})
        if record.exc_info:
            told["traceback"] = self.formatException(record.exc_info)
        return json.dumps(told)


class _Text(logging.Formatter):
    """A record as text."""

    def format(self, record: logging.LogRecord) -> str:
        fields = " ".join(f"{key}={json.dumps(value)}" for key, value in getattr(record, "fields", {}).items())
        line = f"{_when(record)} {record.levelname.lower()} {record.getMessage()} {fields}".rstrip()
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def _when(record: logging.LogRecord) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z"
