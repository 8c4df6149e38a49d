"""The routes, one-to-one with the engine's verbs. Every route says who may use it; only the probes are open."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

from artesian.admission import check_client
from artesian.codec import FORMAT, decode, encode, to_tree
from artesian.core import Task, Upload
from artesian.engine import Coordinator
from artesian.errors import STATUSES, BadClient, BadFormat, Busy, MissingExtra, Refused, StorageError, Unauthorized
from artesian.recipes import RECIPES
from artesian.server.guard import Guard
from artesian.server.intake import Intake
from artesian.server.service import Service
from artesian.server.settings import Settings

try:
    from fastapi import FastAPI, Request, Response
    from fastapi.middleware.cors import CORSMiddleware
    from fastapi.responses import JSONResponse, PlainTextResponse
except ModuleNotFoundError:
    raise MissingExtra("fastapi", "server") from None

MEDIA = "application/vnd.safetensors"


def create_app(served: Service | Coordinator, guard: Guard | None = None, settings: Settings | None = None) -> FastAPI:
    """The application of a service.

    A bare coordinator, without a guard, is for tests in process: it trusts whoever calls, and keeps nothing.
    """
    service = served if isinstance(served, Service) else Service(served)
    settings = settings or Settings()
    coordinator = service.coordinator
    layout = coordinator.state.layout
    intake = Intake(settings, layout, max(1, len(coordinator.state.clusters)))
    app = FastAPI(title="Artesian", lifespan=_closing(service), openapi_url=None)
    if settings.cors:
        app.add_middleware(CORSMiddleware, allow_origins=settings.cors, allow_methods=["*"], allow_headers=["*"])
    for kind in (Refused, StorageError):
        app.add_exception_handler(kind, _refuse(service))

    @app.get("/v1/federation")
    async def federation(request: Request) -> dict[str, Any]:
        """What is served: format, algorithm, recipes, clusters, layout."""
        if guard:
            guard.anybody(_credential(request))
        state = coordinator.state
        return {
            "format": FORMAT,
            "algorithm": coordinator.algorithm.name,
            "recipes": sorted(RECIPES),
            "clusters": list(state.clusters),
            "version": state.version,
            "largest_upload": intake.largest,
            "layout": layout.to_json(),
            "layout_digest": layout.digest,
        }

    @app.put("/v1/clients/{client}")
    async def join(client: str, request: Request) -> Response:
        """Join, or say again that one is here; the answer is the task, or 202 until a round begins."""
        if guard:
            guard.enrolment(_credential(request))
        samples, secret = _joining(await intake.receive_small(request.stream()), guard is not None)
        check_client(client, samples)
        if guard:
            await service.run(lambda: guard.admit(client, secret))
        return await _answer(await service.join(client, samples), waiting=202)

    @app.get("/v1/clients/{client}/task")
    async def task(client: str, request: Request, wait: str = "0") -> Response:
        """The open task; waits for one, and is 204 if none came."""
        if guard:
            guard.client(_credential(request), client)
        given = await service.wait(client, min(_seconds(wait), settings.longest_wait))
        reply = await _answer(given, waiting=204)
        tag = reply.headers.get("etag")
        if tag and request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers={"etag": tag})
        return reply

    @app.put("/v1/clients/{client}/uploads/{number}")
    async def upload(client: str, number: str, request: Request) -> Response:
        """An upload: 200 with the next task, 202 while a round is open; a retry gets the recorded answer."""
        if guard:
            guard.client(_credential(request), client)
        intake.count(client)
        with intake.one(client, request.headers) as length:
            return await take(client, _number(number), await intake.receive(length, request.stream()))

    async def take(client: str, number: int, body: bytes) -> Response:
        models = max(1, len(coordinator.state.clusters))
        received = await asyncio.to_thread(decode, "upload", body, Upload, most=models)
        if (received.client, received.number) != (client, number):
            raise BadFormat(
                "an upload is sent to its own address",
                f"client {received.client}, number {received.number} at {client}, {number}",
                "put it there",
            )
        return await _answer(await service.upload(received), waiting=202)

    @app.delete("/v1/clients/{client}")
    async def leave(client: str, request: Request) -> Response:
        """Leave."""
        if guard:
            guard.client(_credential(request), client)
        await service.leave(client)
        return Response(status_code=204)

    @app.get("/v1/openapi.json")
    async def description(request: Request) -> dict[str, Any]:
        """This interface in OpenAPI's words."""
        if guard:
            guard.anybody(_credential(request))
        return app.openapi()

    @app.get("/healthz")
    async def healthy() -> dict[str, str]:
        """The process is there."""
        return {"status": "ok"}

    @app.get("/readyz")
    async def ready() -> dict[str, str]:
        """The state is restored, and uploads are taken."""
        return {"status": "ready"}

    @app.get("/metrics")
    async def metrics(request: Request) -> PlainTextResponse:
        """Counters for Prometheus."""
        if guard:
            guard.admin(_credential(request))
        return PlainTextResponse(_metrics(service, intake))

    return app


def encode_task(task: Task) -> bytes:
    """A task as it travels: without the memo, which stays on the server."""
    return encode("task", {**to_tree(task), "memo": None})


def decode_task(data: bytes) -> Task:
    """The task of a message."""
    return decode("task", data, Task)


def _number(text: str) -> int:
    """A task's number in an address, read once the credential was checked."""
    if not (text.isascii() and text.isdigit() and len(text) <= 15):
        raise BadFormat("an upload's address ends with its number", repr(text)[:40], "put it there")
    return int(text)


def _seconds(text: str) -> float:
    """How long a long poll may wait."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise BadFormat("wait is a number of seconds", repr(text)[:40], "leave it out")
    return seconds


async def _answer(task: Task | None, waiting: int) -> Response:
    if task is None:
        return Response(status_code=waiting)
    body, tag = await asyncio.to_thread(_encoded, task)
    return Response(body, 200, {"etag": f'"{tag}"'}, MEDIA)


def _encoded(task: Task) -> tuple[bytes, str]:
    body = encode_task(task)
    return body, hashlib.sha256(body).hexdigest()


def _refuse(service: Service) -> Callable[[Request, Exception], Awaitable[JSONResponse]]:
    async def handler(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, (Refused, StorageError))
        service.counts.refused += 1
        got = error.got if isinstance(error, Refused) else ""  # no paths of ours
        body = {"error": type(error).__name__, "rule": error.rule, "got": got, "remedy": error.remedy}
        status = STATUSES[type(error)] if isinstance(error, Refused) else 507
        headers = {"retry-after": str(error.seconds)} if isinstance(error, Busy) else {}
        return JSONResponse(body, status, headers)

    return handler


def _closing(service: Service) -> Callable[[FastAPI], Any]:
    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        watching = asyncio.create_task(service.watch())
        try:
            yield
            watching.cancel()
            with suppress(asyncio.CancelledError):
                await watching
        finally:
            service.close()

    return lifespan


def _credential(request: Request) -> str:
    kind, _, text = request.headers.get("authorization", "").partition(" ")
    if kind.lower() != "bearer" or not text or not text.isascii():
        raise Unauthorized("this needs a credential", "none", "send Authorization: Bearer ...")
    return text.strip()


def _joining(data: bytes, guarded: bool) -> tuple[int, str]:
    """The number of samples and, behind a guard, the secret."""
    try:
        body = json.loads(data)
        secret = body["secret"] if guarded else ""
        if not isinstance(secret, str):
            raise TypeError("a secret is a text")
        return body["samples"], secret
    except (ValueError, KeyError, TypeError, RecursionError):
        wanted = '{"samples": n, "secret": "..."}' if guarded else '{"samples": n}'
        raise BadClient(f"a join says {wanted}", "no such JSON", "send it") from None


def _metrics(service: Service, intake: Intake) -> str:
    from prometheus_client import CollectorRegistry, Gauge, generate_latest

    state, desk = service.coordinator.state, service.coordinator.desk
    registry = CollectorRegistry()
    for name, text, value in (
        ("version", "folds so far", state.version),
        ("members", "clients present", state.present),
        ("open_tasks", "tasks given and not answered", desk.open),
        ("pending_uploads", "uploads received and not folded", len(desk.pending)),
        ("uploads", "uploads taken since the start", service.counts.uploads),
        ("refusals", "requests refused since the start", service.counts.refused),
        ("clipped", "uploads clipped since the start", service.counts.clipped),
        ("snapshots", "snapshots written since the start", service.counts.snapshots),
        ("bytes_in_flight", "bytes of bodies being received", intake.in_flight),
    ):
        Gauge(f"artesian_{name}", text, registry=registry).set(value)
    return generate_latest(registry).decode()
