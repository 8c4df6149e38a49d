"""The ASGI application of a service: routes, refusals as JSON, request logging, CORS."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableMapping
from contextlib import asynccontextmanager, suppress
from typing import Any

from artesian.engine.coordinator import Coordinator
from artesian.engine.drawing import HEADER as MOVED
from artesian.errors import (
    BadFormat,
    Busy,
    MissingExtra,
    Refused,
    StorageError,
    StudyFailed,
    UnknownRoute,
    WorkerLost,
)
from artesian.server.auth import Auth, NoAuth
from artesian.server.crowding import Crowd, address_of
from artesian.server.keys import SigningKeys
from artesian.server.limits import too_many_refusals
from artesian.server.log import CROWDED, ERROR, PROBLEM, App, Logged, Receive, Scope, Send
from artesian.server.operator_routes import OPERATOR
from artesian.server.page_routes import PageHeaders
from artesian.server.routes import Routes
from artesian.server.service import Service
from artesian.server.settings import Settings
from artesian.server.statuses import FAILURES, STATUSES

try:
    from fastapi import FastAPI, Request
    from fastapi.middleware.cors import CORSMiddleware
    from fastapi.responses import JSONResponse
    from starlette.exceptions import HTTPException
    from starlette.routing import Match
except ModuleNotFoundError:
    raise MissingExtra("fastapi", "server") from None

Failure = Refused | StorageError | WorkerLost | StudyFailed
SHOWN = 300  # characters of each part of a refusal, which may repeat what a client sent
# to other origins' pages
EXPOSED = ["etag", "retry-after", "upload-offset", "repr-digest", "artesian-acknowledgement", MOVED]
DISK = "The server cannot use its disk", "Try again later; nothing has changed"  # a path is nobody's business


def create_app(
    served: Service | Coordinator,
    auth: Auth | None = None,
    settings: Settings | None = None,
    keys: SigningKeys | None = None,
    crowd: Crowd | None = None,
) -> FastAPI:
    """The application of a service; `keys` sign acknowledgements, `crowd` knows the connections.

    A bare coordinator, without `auth`, is for tests in process: anybody may call, and nothing is kept on disk. Without
    `settings`, clients may upload and draw as often as they like.
    """
    service = served if isinstance(served, Service) else Service(served)
    settings = settings or Settings(uploads_per_minute=None, draws_per_minute=None)
    routes = Routes(service, auth or NoAuth(), settings, keys, crowd)
    app = FastAPI(title="Artesian", lifespan=_lifespan(service), openapi_url=None, redirect_slashes=False)
    if settings.cors:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.cors,
            allow_methods=["*"],
            allow_headers=["*"],
            expose_headers=EXPOSED,
        )
    if settings.page:
        app.add_middleware(PageHeaders)
    refuse = _refuse(routes)
    app.add_middleware(Entrance, refuse=refuse, stopping=service.stopping)
    app.add_middleware(Logged, observe=routes.latencies.observe)
    kinds: tuple[type[Exception], ...] = (Refused, *FAILURES, HTTPException)
    for kind in kinds:
        app.add_exception_handler(kind, refuse)
    routes.add_to(app)
    return app


Refuse = Callable[[Request, Exception], Awaitable[JSONResponse]]


class Entrance:
    """Refuses what no route should see, and whatever is still unanswered when a server that stops has waited enough.

    No route should see one request too many, and a body whose end is stated in two ways.
    """

    def __init__(self, app: App, refuse: Refuse, stopping: threading.Event) -> None:
        self.app, self.refuse, self.stopping = app, refuse, stopping

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        begun = False

        async def sending(message: MutableMapping[str, Any]) -> None:
            nonlocal begun
            begun = True
            await send(message)

        refusal: Refused | None = scope.get(CROWDED) or _framing(scope["headers"])
        if refusal is None:
            try:
                await self.app(scope, receive, sending)
                return
            except asyncio.CancelledError:
                if begun or not self.stopping.is_set():
                    raise
                refusal = Busy("The server is stopping", "Try again later: what was taken is answered then")
        response = await self.refuse(Request(scope), refusal)
        response.headers["connection"] = "close"
        await response(scope, receive, send)


def _framing(headers: list[tuple[bytes, bytes]]) -> BadFormat | None:
    """The refusal of a request that one server could read as one, and another as two."""
    if {b"content-length", b"transfer-encoding"} <= {name.lower() for name, _ in headers}:
        return BadFormat("The request has a Content-Length and a Transfer-Encoding", "Send one of them")
    return None


def _refuse(routes: Routes) -> Refuse:
    async def refuse(request: Request, error: Exception) -> JSONResponse:
        headers: dict[str, str] = {}
        if isinstance(error, HTTPException):  # the router's own
            headers, error = _lower(error.headers), _no_route(error.status_code)
            if "allow" in headers:
                headers["allow"] = _methods(request)
        assert isinstance(error, Failure)
        if isinstance(error, Refused) and not isinstance(error, Busy):
            if routes.is_unwelcome(request):
                headers, error = {"connection": "close"}, too_many_refusals()
            routes.limits.refusals.spend(address_of(request.client))
        _count(routes.service, type(error).__name__)
        request.scope[ERROR] = type(error).__name__
        if not isinstance(error, Refused):
            request.scope[PROBLEM] = error.problem
        if isinstance(error, (Busy, WorkerLost, StudyFailed)):
            headers["retry-after"] = str(Busy.seconds)
        status = STATUSES[type(error)] if isinstance(error, Refused) else FAILURES[type(error)]
        return JSONResponse(_body(error, OPERATOR in request.scope), 405 if "allow" in headers else status, headers)

    return refuse


def _count(service: Service, reason: str) -> None:
    service.counts.refused += 1
    service.counts.reasons[reason] = service.counts.reasons.get(reason, 0) + 1


def _lower(headers: Mapping[str, str] | None) -> dict[str, str]:
    return {name.lower(): value for name, value in (headers or {}).items()}


def _body(error: Failure, operator: bool) -> dict[str, str]:
    """What a client reads: `rule` holds what happened; `got` is empty, and stays for older clients."""
    hidden = isinstance(error, StorageError) and not operator
    problem, remedy = DISK if hidden else (error.problem, error.remedy)
    return {"error": type(error).__name__, "rule": problem[:SHOWN], "got": "", "remedy": remedy[:SHOWN]}


def _methods(request: Request) -> str:
    """The methods that some route has for this path; the router's own header names those of one route."""
    fitting = (route for route in request.app.routes if route.matches(request.scope)[0] is not Match.NONE)
    return ", ".join(sorted({method for route in fitting for method in route.methods or ()}))


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
