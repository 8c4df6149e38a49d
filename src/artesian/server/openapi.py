"""The OpenAPI description: what each route takes and returns, in one table."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any

from artesian.errors import MissingExtra
from artesian.server.statuses import FAILURES, STATUSES

try:
    from fastapi import Path, Query, Response
except ModuleNotFoundError:
    raise MissingExtra("fastapi", "server") from None

MEDIA = "application/vnd.safetensors"
BINARY = {"schema": {"type": "string", "format": "binary"}}
Number = Annotated[str, Path(json_schema_extra={"type": "integer", "minimum": 0, "maximum": 10**15 - 1})]
Seconds = Annotated[str, Query(json_schema_extra={"type": "number", "minimum": 0, "default": 0})]


REFUSAL = {
    "title": "Refusal",
    "description": "A request was refused: the kind of error, what happened (`rule`), what to do; `got` is empty.",
    "type": "object",
    "required": ["error", "rule", "got", "remedy"],
    "properties": {name: {"title": name.capitalize(), "type": "string"} for name in ("error", "rule", "got", "remedy")},
}
REFUSED = {"application/json": {"schema": {"$ref": "#/components/schemas/Refusal"}}}


TASK_HEADERS = {"etag": {"schema": {"type": "string"}, "description": "SHA-256 of the body", "required": True}}
TASK = {"description": "a task", "content": {MEDIA: BINARY}, "headers": TASK_HEADERS}
SIGNED = {
    "artesian-acknowledgement": {
        "schema": {"type": "string"},
        "description": "signed: which event the upload became; only where the server keeps a store",
    }
}
MOVED = {
    "artesian-moved": {
        "schema": {"type": "string"},
        "description": "distance=D, versions=N: how far this client's model moved since its open task was made",
    }
}
MODEL = {**TASK, "description": "a task to use, and not to answer", "headers": {**TASK_HEADERS, **MOVED}}
JOIN = {
    "type": "object",
    "required": ["samples", "secret"],
    "properties": {
        "samples": {"type": "integer", "minimum": 0, "maximum": (1 << 53) - 1},
        "changed": {"type": "boolean", "description": "whether the client's data changed"},
        "secret": {"type": "string", "minLength": 16, "maxLength": 200, "pattern": "^[ -~]*$"},
    },
}
HERE = {
    "description": "how much of it the server has",
    "headers": {
        "upload-offset": {"schema": {"type": "integer"}, "description": "bytes", "required": True},
        "repr-digest": {"schema": {"type": "string"}, "description": "of the whole body, as it was announced"},
    },
}
PLAIN: dict[str, str] = {"type": "object"}
ABOUT_MEMBER = {
    "type": "object",
    "required": ["client", "samples", "answered", "number", "open", "present", "standing", "mixture"],
}
WHY = {"type": "string", "maxLength": 500, "description": "kept in the journal with the name of the token"}
REASON = {"application/json": {"schema": {"type": "object", "properties": {"why": WHY}}}}
TO = {"type": "integer", "minimum": 0, "maximum": (1 << 53) - 1, "description": "the event whose state comes back"}
BACK = {"application/json": {"schema": {"type": "object", "required": ["to"], "properties": {"to": TO, "why": WHY}}}}
DONE = {200: {"content": {"application/json": {"schema": {"type": "object", "required": ["event"]}}}}}
STATUS = {"application/json": {"schema": {"type": "object", "required": ["status"]}}}

# route: its successful responses, the statuses of its refusals, its request body
ROUTES: Mapping[str, tuple[Mapping[int, Any], tuple[int, ...], Mapping[str, Any]]] = {
    "federation": ({200: {"content": {"application/json": {"schema": PLAIN}}}}, (400, 401, 429), {}),
    "join": ({200: TASK, 202: {}}, (400, 401, 408, 413, 415, 422, 429, 507), {"application/json": {"schema": JOIN}}),
    "task": ({200: TASK, 204: {}, 304: {}}, (400, 401, 404, 429, 507), {}),
    "model": ({200: MODEL, 304: {"headers": {**TASK_HEADERS, **MOVED}}}, (400, 401, 404, 429, 507), {}),
    "upload": (
        {200: {**TASK, "headers": {**TASK_HEADERS, **SIGNED}}, 202: {"headers": SIGNED}},
        (400, 401, 404, 408, 409, 413, 415, 422, 429, 503, 507),
        {MEDIA: BINARY},
    ),
    "offset": ({200: HERE}, (400, 401, 429), {}),
    "leave": ({204: {}}, (400, 401, 404, 429, 503, 507), {}),
    "public_keys": ({200: {"content": {"application/json": {"schema": PLAIN}}}}, (400, 401, 429), {}),
    "description": ({200: {"content": {"application/json": {"schema": PLAIN}}}}, (400, 401, 429), {}),
    "metrics": ({200: {"content": {"text/plain": {"schema": {"type": "string"}}}}}, (400, 401, 429), {}),
    "members": (
        {200: {"content": {"application/json": {"schema": {"type": "array", "items": ABOUT_MEMBER}}}}},
        (400, 401, 429),
        {},
    ),
    "member": ({200: {"content": {"application/json": {"schema": ABOUT_MEMBER}}}}, (400, 401, 404, 429), {}),
    "standing": (DONE, (400, 401, 404, 408, 413, 415, 422, 429, 503, 507), REASON),
    "rollback": (DONE, (400, 401, 408, 410, 413, 415, 422, 429, 503, 507), BACK),
    "forget": (DONE, (400, 401, 404, 408, 410, 413, 415, 422, 429, 503, 507), REASON),
    "models": ({200: {"content": {MEDIA: BINARY}}}, (400, 401, 429), {}),
    "healthy": ({200: {"content": STATUS}}, (), {}),
    "ready": ({200: {"content": STATUS}, 503: {"description": "stopping", "content": STATUS}}, (), {}),
}
WORDS = {200: "done", 202: "no task yet: a round is open", 204: "none", 304: "the same as before"}


def described(name: str) -> dict[str, Any]:
    """The arguments that describe a route to FastAPI."""
    good, refusals, takes = ROUTES[name]
    responses = {status: {"description": WORDS.get(status, ""), **told} for status, told in good.items()}
    responses |= {status: {"description": _errors(status), "content": REFUSED} for status in refusals}
    extra: dict[str, Any] = {"requestBody": {"required": True, "content": takes}} if takes else {}
    if 401 in refusals:
        extra["security"] = [{"bearer": []}]
    return {
        "responses": responses,
        "response_class": Response,
        "status_code": min(good),
        "openapi_extra": extra,
    }


def completed(description: dict[str, Any]) -> dict[str, Any]:
    """FastAPI's description with bearer tokens and our refusals, and without its own validation errors."""
    components = description.setdefault("components", {})
    components["securitySchemes"] = {"bearer": {"type": "http", "scheme": "bearer"}}
    components.setdefault("schemas", {})["Refusal"] = REFUSAL
    for path in description["paths"].values():
        for told in path.values():  # FastAPI's own refusals, which no route of ours sends
            if told["responses"].get("422", {}).get("description") == "Validation Error":
                del told["responses"]["422"]
    for unused in ("HTTPValidationError", "ValidationError"):
        components["schemas"].pop(unused, None)
    return description


@cache
def _errors(status: int) -> str:
    known = [*STATUSES.items(), *FAILURES.items()]
    return ", ".join(sorted(kind.__name__ for kind, own in known if own == status))
