"""The ASGI application of a service: routes, refusals as JSON, request logging, CORS."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

from artesian.engine.coordinator import Coordinator
from artesian.errors import Busy, MissingExtra, Refused, StorageError, StudyFailed, UnknownRoute, WorkerLost
from artesian.server.auth import Auth, NoAuth
from artesian.server.log import ERROR, Logged
from artesian.server.routes import Routes
from artesian.server.service import Service
from artesian.server.settings import Settings
from artesian.server.statuses import FAILURES, STATUSES

try:
    from fastapi import FastAPI, Request
    from fastapi.middleware.cors import CORSMiddleware
    from fastapi.responses import JSONResponse
    from starlette.exceptions import HTTPException
except ModuleNotFoundError:
    raise MissingExtra("fastapi", "server") from None

Failure = Refused | StorageError | WorkerLost | StudyFailed
SHOWN = 300  # characters of each part of a refusal, which may repeat what a client sent
EXPOSED = ["etag", "retry-after", "upload-offset", "repr-digest"]  # headers that pages of other origins may read
DISK = "The server cannot use its disk", "Try again later; nothing has changed"  # a path is nobody's business


def create_app(served: Service | Coordinator, auth: Auth | None = None, settings: Settings | None = None) -> FastAPI:
    """The application of a service.

    A bare coordinator, without `auth`, is for tests in process: anybody may call, and nothing is kept on disk. Without
    `settings`, clients may upload as often as they like.
    """
    service = served if isinstance(served, Service) else Service(served)
    settings = settings or Settings(uploads_per_minute=None)
    app = FastAPI(title="Artesian", lifespan=_lifespan(service), openapi_url=None, redirect_slashes=False)
    if settings.cors:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.cors,
            allow_methods=["*"],
            allow_headers=["*"],
            expose_headers=EXPOSED,
        )
    app.add_middleware(Logged)
    kinds: tuple[type[Exception], ...] = (Refused, *FAILURES, HTTPException)
    for kind in kinds:
        app.add_exception_handler(kind, _refuse(service))
    Routes(service, auth or NoAuth(), settings).add_to(app)
    return app


def _refuse(service: Service) -> Callable[[Request, Exception], Awaitable[JSONResponse]]:
    async def refuse(request: Request, error: Exception) -> JSONResponse:
        headers: dict[str, str] = {}
        if isinstance(error, HTTPException):  # the router's own
            headers, error = dict(error.headers or {}), _no_route(error.status_code)
        assert isinstance(error, Failure)
        service.counts.refused += 1
        request.scope[ERROR] = type(error).__name__
        if isinstance(error, (Busy, WorkerLost, StudyFailed)):
            headers["retry-after"] = str(Busy.seconds)
        status = STATUSES[type(error)] if isinstance(error, Refused) else FAILURES[type(error)]
        return JSONResponse(_body(error), 405 if "allow" in headers else status, headers)

    return refuse


def _body(error: Failure) -> dict[str, str]:
    """What a client reads: `rule` holds what happened; `got` is empty, and stays for older clients."""
    problem, remedy = DISK if isinstance(error, StorageError) else (error.problem, error.remedy)
    return {"error": type(error).__name__, "rule": problem[:SHOWN], "got": "", "remedy": remedy[:SHOWN]}


def _no_route(status: int) -> UnknownRoute:
    problem = "This route does not support this method" if status == 405 else "No such route"
    return UnknownRoute(problem, "GET /v1/openapi.json lists all routes")


def _lifespan(service: Service) -> Callable[[FastAPI], Any]:
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
