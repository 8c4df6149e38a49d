"""The routes, one-to-one with the engine's verbs. Every route says who may use it; only the probes are open."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from typing import Any

from artesian.core import Task, Upload
from artesian.engine.admission import check_client
from artesian.engine.coordinator import Coordinator
from artesian.errors import (
    FAILURES,
    STATUSES,
    BadClient,
    BadFormat,
    Busy,
    Conflict,
    MissingExtra,
    Refused,
    StorageError,
    Unauthorized,
    UnknownRoute,
    WorkerLost,
)
from artesian.server.auth import Auth
from artesian.server.limits import Announced, Limits
from artesian.server.log import ERROR, Logged, Receive, Scope, Send
from artesian.server.openapi import MEDIA, Number, Seconds, completed, described
from artesian.server.partial_uploads import PartialUploads
from artesian.server.service import Service
from artesian.server.settings import Settings
from artesian.storage.codec import FORMAT, decode, encode_parts, to_json, to_tree

try:
    from fastapi import FastAPI, Request, Response
    from fastapi.middleware.cors import CORSMiddleware
    from fastapi.responses import JSONResponse, PlainTextResponse
    from starlette.exceptions import HTTPException
except ModuleNotFoundError:
    raise MissingExtra("fastapi", "server") from None

SHOWN = 300  # characters of what a client sent that a refusal repeats
CHUNK = 1 << 18  # bytes of an answer handed to a connection at once, so that one nobody takes is not copied whole


def create_app(served: Service | Coordinator, auth: Auth | None = None, settings: Settings | None = None) -> FastAPI:
    """The application of a service.

    A bare coordinator, without a auth, is for tests in process: it trusts whoever calls, and keeps nothing.
    """
    service = served if isinstance(served, Service) else Service(served)
    settings = settings or Settings()
    coordinator = service.coordinator
    layout = coordinator.state.layout
    limits = Limits(settings, layout, coordinator.algorithm.models_sent(coordinator.state))
    parts = PartialUploads(service.store.folder / "parts", settings.part_bytes) if service.store else None
    tags: dict[str, tuple[int, str]] = {}  # of the task each client was last shown
    app = FastAPI(title="Artesian", lifespan=_closing(service), openapi_url=None, redirect_slashes=False)
    if settings.cors:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.cors,
            allow_methods=["*"],
            allow_headers=["*"],
            expose_headers=["etag", "retry-after", "upload-offset", "repr-digest"],
        )
    app.add_middleware(Logged)
    for kind in (Refused, StorageError, WorkerLost, HTTPException):
        app.add_exception_handler(kind, _refuse(service))

    @app.get("/v1/federation", **described("federation"))
    async def federation(request: Request) -> Response:
        """What is served: format, algorithm, recipes, clusters, layout."""
        if auth:
            auth.anybody(_credential(request))
        state = coordinator.state
        told = {
            "format": FORMAT,
            "algorithm": coordinator.algorithm.name,
            "recipes": sorted(service.coordinator.algorithm.recipes),
            "clusters": list(state.clusters),
            "version": state.version,
            "largest_upload": limits.largest,
            "layout": layout.to_json(),
            "layout_digest": layout.digest,
        }
        body = to_json(told).encode()
        return Response(body, 200, {"etag": _tag(body)}, "application/json")

    @app.put("/v1/clients/{client}", **described("join"))
    async def join(client: str, request: Request) -> Response:
        """Join, or say again that one is here; the answer is the task, or 202 until a round begins."""
        if auth:
            auth.enrolment(_credential(request))
        samples, changed, secret = _joining(await limits.receive_small(request.stream()), auth is not None)
        check_client(client, samples)
        if auth:
            await service.run(lambda: auth.admit(client, secret))
        async with AsyncExitStack() as held:
            await held.enter_async_context(limits.room(limits.model * models(client)))
            return await answer(client, await service.join(client, samples, changed), 202, held)

    @app.get("/v1/clients/{client}/task", **described("task"))
    async def task(client: str, request: Request, wait: Seconds = "0") -> Response:
        """The open task; waits for one, and is 204 if none came."""
        if auth:
            auth.client(_credential(request), client)
        number = await service.wait(client, min(_seconds(wait), settings.longest_wait))
        if number is None:
            return Response(status_code=204)
        known, tag = tags.get(client, (0, ""))
        if known == number and request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers={"etag": tag})
        async with AsyncExitStack() as held:
            await held.enter_async_context(limits.room(limits.model * models(client)))
            return await answer(client, await service.task(client), 204, held)

    @app.put("/v1/clients/{client}/uploads/{number}", **described("upload"))
    async def upload(client: str, number: Number, request: Request) -> Response:
        """An upload: 200 with the next task, 202 while a round is open; a retry gets the recorded answer."""
        if auth:
            auth.client(_credential(request), client)
        at = _number(number)
        limits.count(client)
        announced = limits.announced(request.headers)
        async with AsyncExitStack() as held:
            await held.enter_async_context(limits.one(client, announced.total + limits.model * models(client)))
            body = await receive(client, at, announced, request)
            upload = await asyncio.to_thread(
                _opened, body, announced, coordinator.algorithm.models_sent(coordinator.state)
            )
            del body
            _check_address(upload, client, at)
            return await answer(client, await service.upload(upload), 202, held)

    async def receive(client: str, number: int, announced: Announced, request: Request) -> memoryview:
        """The whole body, from the part that is here already on; what breaks off is kept."""
        if parts is None:
            if announced.start:
                raise Conflict("a continued upload begins where the server's part ends", "none", "send the whole")
            return await limits.receive(announced, request.stream())
        head = b""
        if announced.start:
            head = await asyncio.to_thread(parts.take, client, number, announced.digest, announced.start)
        keep = partial(parts.keep, client, number, announced.digest) if announced.digest else None
        body = await limits.receive(announced, request.stream(), head, keep)
        if parts.find(client, number):
            await asyncio.to_thread(parts.drop, client)
        return body

    def models(client: str) -> int:
        """How many models an answer to this client carries, going by its open task."""
        member = coordinator.state.members.get(client)
        return max(1, len(member.receipt.models)) if member and member.receipt else 1

    async def answer(client: str, task: Task | None, waiting: int, held: AsyncExitStack) -> Response:
        """The task, in room that is held until its last byte is on its way; or a status where there is none."""
        if task is None:
            return Response(status_code=waiting)
        pieces, tag = await asyncio.to_thread(_encoded, task)
        tags[client] = task.number, tag
        return TaskResponse(pieces, tag, held.pop_all())

    @app.head("/v1/clients/{client}/uploads/{number}", **described("offset"))
    async def offset(client: str, number: Number, request: Request) -> Response:
        """How much of an upload that broke off is here."""
        if auth:
            auth.client(_credential(request), client)
        part = parts.find(client, _number(number)) if parts else None
        headers = {"upload-offset": str(part.size if part else 0)}
        if part:
            headers["repr-digest"] = f"sha-256=:{base64.b64encode(bytes.fromhex(part.digest)).decode()}:"
        return Response(headers=headers)

    @app.delete("/v1/clients/{client}", **described("leave"))
    async def leave(client: str, request: Request) -> Response:
        """Leave."""
        if auth:
            auth.client(_credential(request), client)
        await service.leave(client)
        return Response(status_code=204)

    @app.get("/v1/openapi.json", **described("description"))
    async def description(request: Request) -> JSONResponse:
        """This interface in OpenAPI's words."""
        if auth:
            auth.anybody(_credential(request))
        return JSONResponse(completed(app.openapi()))

    @app.get("/healthz", **described("healthy"))
    async def healthy() -> JSONResponse:
        """The process is there."""
        return JSONResponse({"status": "ok"})

    @app.get("/readyz", **described("ready"))
    async def ready() -> JSONResponse:
        """The state is restored, and uploads are taken; 503 once the server is stopping."""
        stopping = service.stopping.is_set()
        return JSONResponse({"status": "stopping" if stopping else "ready"}, 503 if stopping else 200)

    @app.get("/metrics", **described("metrics"))
    async def metrics(request: Request) -> PlainTextResponse:
        """Counters for Prometheus."""
        if auth:
            auth.admin(_credential(request))
        return PlainTextResponse(_metrics(service, limits))

    return app


class TaskResponse(Response):
    """A task on its way, in pieces; when the last is handed over, what was held for it is let go.

    Between two of them others have their turn, however fast this client reads.
    """

    def __init__(self, pieces: Sequence[bytes | memoryview], tag: str, held: AsyncExitStack) -> None:
        super().__init__(b"", 200, {"etag": tag, "content-length": str(sum(map(len, pieces)))}, MEDIA)
        self.pieces, self.held = pieces, held

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self.held:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            for piece in self.pieces:
                for at in range(0, len(piece), CHUNK):
                    await send({"type": "http.response.body", "body": bytes(piece[at : at + CHUNK]), "more_body": True})
                    await asyncio.sleep(0)
            await send({"type": "http.response.body", "body": b"", "more_body": False})


def encode_task(task: Task) -> bytes:
    """A task as it travels: without the memo and what it says to the server."""
    return b"".join(_pieces(task))


def _pieces(task: Task) -> list[bytes | memoryview]:
    told = {**to_tree(task), "memo": None}
    return encode_parts("task", {name: part for name, part in told.items() if name not in ("returns", "estimates")})


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


def _encoded(task: Task) -> tuple[list[bytes | memoryview], str]:
    pieces = _pieces(task)
    return pieces, _tag(*pieces)


def _tag(*pieces: bytes | memoryview) -> str:
    """The ETag of an answer: whoever receives it can tell whether it is whole."""
    found = hashlib.sha256()
    for piece in pieces:
        found.update(piece)
    return f'"{found.hexdigest()}"'


def _opened(body: memoryview, announced: Announced, models: int) -> Upload:
    """The upload in a body, if it is the body that was announced."""
    if announced.digest and hashlib.sha256(body).hexdigest() != announced.digest:
        raise BadFormat("a body has the digest that was announced", "other bytes", "send the whole again")
    return decode("upload", body, Upload, most=models)


def _check_address(upload: Upload, client: str, number: int) -> None:
    if (upload.client, upload.number) != (client, number):
        raise BadFormat(
            "an upload is sent to its own address",
            f"client {upload.client}, number {upload.number} at {client}, {number}",
            "put it there",
        )


def _refuse(service: Service) -> Callable[[Request, Exception], Awaitable[JSONResponse]]:
    async def handler(request: Request, error: Exception) -> JSONResponse:
        headers: dict[str, str] = {}
        if isinstance(error, HTTPException):  # the router's own
            headers, error = dict(error.headers or {}), _no_route()
        assert isinstance(error, (Refused, StorageError, WorkerLost))
        service.counts.refused += 1
        request.scope[ERROR] = type(error).__name__
        problem = "The server could not use its disk" if isinstance(error, StorageError) else error.problem  # no paths
        told = {"rule": problem, "got": "", "remedy": error.remedy}
        body = {"error": type(error).__name__, **{key: text[:SHOWN] for key, text in told.items()}}
        status = STATUSES[type(error)] if isinstance(error, Refused) else FAILURES[type(error)]
        if isinstance(error, (Busy, WorkerLost)):
            headers["retry-after"] = str(Busy.seconds)
        return JSONResponse(body, 405 if "allow" in headers else status, headers)

    return handler


def _no_route() -> UnknownRoute:
    return UnknownRoute("an address is one that is served, with a method it has", "another", "see /v1/openapi.json")


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


def _joining(data: bytes, guarded: bool) -> tuple[int, bool, str]:
    """The number of samples, whether the data are others than before and, behind a auth, the secret."""
    try:
        body = json.loads(data)
        secret, changed = body["secret"] if guarded else "", body.get("changed", False)
        if not isinstance(secret, str) or not isinstance(changed, bool):
            raise TypeError("a secret is a text, and changed true or false")
        return body["samples"], changed, secret
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        wanted = '{"samples": n, "secret": "..."}' if guarded else '{"samples": n}'
        raise BadClient(f"a join says {wanted}", "no such JSON", "send it") from None


def _metrics(service: Service, limits: Limits) -> str:
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
        ("bytes_in_flight", "bytes of bodies being received", limits.in_flight),
    ):
        Gauge(f"artesian_{name}", text, registry=registry).set(value)
    return generate_latest(registry).decode()
