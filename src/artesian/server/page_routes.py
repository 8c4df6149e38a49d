"""The live page's own routes: its files, signing in and out, the stream of facts, an operator's acts.

A cookie counts here and nowhere else: the routes under /v1 take bearer tokens alone, so that no other site's page can
make a browser act there. An act needs the cookie, the session's own token in a header, and the page's own origin.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from secrets import compare_digest
from typing import Any, get_args
from urllib.parse import urlsplit

from artesian.core import Act
from artesian.dashboard.assets import HEADERS, Asset, assets
from artesian.dashboard.streaming import HEADERS as STREAMED
from artesian.dashboard.streaming import HERE, KIND, OPENING, framed
from artesian.engine.standing import Standing
from artesian.errors import BadFormat, Busy, MissingExtra, Unauthorized
from artesian.server.auth import Auth, NoAuth
from artesian.server.crowding import address_of
from artesian.server.limits import Limits, check_encoding, too_many_refusals
from artesian.server.log import App, Receive, Scope, Send
from artesian.server.operating import Operator
from artesian.server.operator_routes import act_in, event_in
from artesian.server.page_facts import PageFacts
from artesian.server.page_sessions import PageSession, PageSessions
from artesian.server.service import Service
from artesian.server.settings import Settings

try:
    from fastapi import FastAPI, Request, Response
    from fastapi.responses import JSONResponse, StreamingResponse
except ModuleNotFoundError:
    raise MissingExtra("fastapi", "server") from None

COOKIE = "artesian_page"
CSRF = "artesian-csrf"  # the header that every act shows
OTHERS = ("cross-site", "same-site")  # what a browser says of a request that another page, or another port's, made
TICK = 1.0  # seconds between two messages of a stream
QUIET = 15  # ticks without news after which a stream shows that it is alive
JsonRoute = Callable[..., Awaitable[JSONResponse]]


class PageRoutes:
    """Every request of the live page."""

    def __init__(
        self, service: Service, auth: Auth | NoAuth, settings: Settings, limits: Limits, operator: Operator
    ) -> None:
        self.service, self.auth, self.settings, self.limits, self.operator = service, auth, settings, limits, operator
        self.facts, self.sessions = PageFacts(service), PageSessions(auth.admin_proof)
        self.watching = 0  # streams under way
        self._scoring: set[asyncio.Task[None]] = set()

    def add_to(self, app: FastAPI) -> None:
        """Put the page's routes into an application; they are no part of its description."""
        for path, asset in assets().items():
            self._add(app, "GET", f"/{path}", _sending(asset))
        self._add(app, "POST", "/page/login", self.login)
        self._add(app, "POST", "/page/logout", self.logout)
        self._add(app, "GET", "/page/session", self.session)
        self._add(app, "GET", "/page/events", self.events)
        self._add(app, "GET", "/page/clients/{client}", self.history)
        self._add(app, "POST", "/page/rollback", self.rollback)
        self._add(app, "POST", "/page/members/{client}/forget", self.forget)
        for kind in get_args(Standing):
            self._add(app, "POST", f"/page/members/{{client}}/{kind}", self._judging(kind))

    def _add(self, app: FastAPI, method: str, path: str, route: Callable[..., Any]) -> None:
        app.add_api_route(path, route, methods=[method], include_in_schema=False, response_model=None)

    async def login(self, request: Request) -> JSONResponse:
        """Exchange an admin token for a session."""
        check_origin(request)
        check_encoding(request.headers)
        token = _token_in(await self.limits.receive_from_stranger(request.stream()))
        if self.limits.refusals.is_spent(address_of(request.client)) and not self.auth.knows(token):
            raise too_many_refusals()
        key, made = self.sessions.begin(await self._admin(token))
        response = JSONResponse(_about(made))
        secure = request.url.scheme == "https" or self.settings.secure_cookie
        # without a path it goes to the page's own routes alone, also below the prefix of a proxy
        response.set_cookie(COOKIE, key, path=None, secure=secure, httponly=True, samesite="strict")
        return response

    async def logout(self, request: Request) -> Response:
        """End a session; its streams end, too."""
        self._acting(request)
        self.sessions.end(request.cookies.get(COOKIE, ""))
        response = Response(status_code=204)
        response.delete_cookie(COOKIE, path=None)  # type: ignore[arg-type]
        return response

    async def session(self, request: Request) -> JSONResponse:
        """Who is signed in, and what its acts must show."""
        return JSONResponse(_about(self._session(request)), headers={"cache-control": "no-store"})

    async def history(self, client: str, request: Request) -> JSONResponse:
        """The last uploads of one client."""
        self._session(request)
        return JSONResponse(self.facts.chronicle.history(client), headers={"cache-control": "no-store"})

    async def events(self, request: Request) -> StreamingResponse:
        """All that the page shows, and then what changes."""
        self._session(request)
        if self.watching >= self.settings.watchers:
            raise Busy("Too many browsers follow the page", "Close one, or raise the setting watchers")
        self.watching += 1  # in the same moment: of many who ask at once, none slips in
        stream = self._stream(request.cookies.get(COOKIE, ""))
        return Followed(stream, self._unwatched, headers=STREAMED, media_type=KIND)

    async def forget(self, client: str, request: Request) -> JSONResponse:
        """Take all that a member uploaded out of the state, and drop its record."""
        act, _ = await self._act(request)
        return JSONResponse(await self.operator.forget(client, act))

    async def rollback(self, request: Request) -> JSONResponse:
        """Bring back the state after an event."""
        act, body = await self._act(request, "to")
        return JSONResponse(await self.operator.rollback(event_in(body), act))

    # inside

    async def _admin(self, token: str) -> str:
        """The name of an admin token, refused in the words of the page."""
        try:
            return await self.auth.admin(token)
        except Unauthorized:
            remedy = "Check it, or make another with artesian token make STORE NAME --scope admin"
            raise Unauthorized("This is not a valid admin token", remedy) from None

    def _judging(self, kind: Standing) -> JsonRoute:
        async def judge(client: str, request: Request) -> JSONResponse:
            act, _ = await self._act(request)
            return JSONResponse(await self.operator.change_standing(kind, client, act))

        return judge

    def _session(self, request: Request) -> PageSession:
        if request.headers.get("sec-fetch-site") in OTHERS:
            raise _not_from_the_page()  # it could not read the answer, and yet use up the watchers
        found = self.sessions.find(request.cookies.get(COOKIE, ""))
        if found is None:
            raise Unauthorized("Nobody is signed in to the page", "Sign in with an admin token")
        return found

    def _acting(self, request: Request) -> PageSession:
        """The session of a request that changes something: sent by the page itself, and by nobody else's."""
        found = self._session(request)
        check_origin(request)
        if not compare_digest(request.headers.get(CSRF, "").encode(), found.csrf.encode()):
            raise Unauthorized("The request does not show the session's own token", "Reload the page, and try again")
        return found

    async def _act(self, request: Request, *more: str) -> tuple[Act, dict[str, Any]]:
        """Who acts and why, and the body; who it is was checked before the body is read."""
        by = self._acting(request).by
        return await act_in(request, self.limits, by, *more)

    async def _stream(self, key: str) -> AsyncIterator[bytes]:
        yield OPENING
        mark = quiet = 0
        while not self.service.stopping.is_set():
            if self.sessions.find(key) is None:
                yield framed({}, "over")
                return
            self._score()
            mark, message = await asyncio.to_thread(partial(self._news, mark))
            quiet = 0 if message else quiet + 1
            if message or quiet % QUIET == 0:
                yield message or HERE
            await asyncio.sleep(TICK)

    def _unwatched(self) -> None:
        self.watching -= 1

    def _news(self, since: int) -> tuple[int, bytes]:
        """What changed after a mark, and the newest mark."""
        self.facts.refresh()
        if since and self.facts.chronicle.mark == since:
            return since, b""
        told = self.facts.chronicle.facts(since)
        return told["mark"], framed(told)

    def _score(self) -> None:
        """Scores are worked out beside the stream, which does not wait for them."""
        task = asyncio.create_task(self.facts.scores.update())
        self._scoring.add(task)
        task.add_done_callback(self._scoring.discard)


class Followed(StreamingResponse):
    """A stream, and what to do when it is over, however it ends."""

    def __init__(self, content: AsyncIterator[bytes], ended: Callable[[], None], **options: Any) -> None:
        super().__init__(content, **options)
        self._ended = ended

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._ended()


class PageHeaders:
    """An application whose page a browser may neither frame nor extend: strict headers on all that belongs to it."""

    def __init__(self, app: App) -> None:
        self.app = app
        self._headers = [(name.encode(), value.encode()) for name, value in HEADERS.items()]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not (scope["path"] == "/" or scope["path"].startswith("/page")):
            await self.app(scope, receive, send)
            return

        async def sending(message: Any) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *self._headers]
            await send(message)

        await self.app(scope, receive, sending)


def check_origin(request: Request) -> None:
    """Refuse what another site's page has a browser send."""
    site, origin = request.headers.get("sec-fetch-site"), _host_in(request.headers.get("origin", ""))
    own = site == "same-origin" if site is not None else bool(origin) and origin == request.headers.get("host")
    if not own:
        raise _not_from_the_page()


def _not_from_the_page() -> Unauthorized:
    return Unauthorized("The request does not come from the page itself", "Use the page at the server's address")


def _host_in(origin: str) -> str:
    """Host and port of an origin; empty where it is none."""
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return ""


def _sending(asset: Asset) -> Callable[[Request], Awaitable[Response]]:
    async def send(request: Request) -> Response:
        if request.headers.get("if-none-match") == asset.tag:
            return Response(status_code=304, headers={"etag": asset.tag})
        return Response(asset.body, 200, asset.headers)

    return send


def _about(session: PageSession) -> dict[str, Any]:
    return {"csrf": session.csrf, "by": session.by, "acts": True}


def _token_in(data: bytes) -> str:
    try:
        token = json.loads(data)["token"]
        if isinstance(token, str) and token.isascii() and len(token) <= 500:
            return token.strip()
    except KeyError:
        return ""  # no credential, and answered like that
    except (ValueError, TypeError, RecursionError):
        pass
    raise BadFormat("The body is not the expected JSON", 'Send {"token": "artesian_admin_..."}')
