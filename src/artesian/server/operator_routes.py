"""The operator's routes: members, rollback, forgetting, models. All of them need an admin token."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from typing import Any, get_args

from artesian.core import Act
from artesian.engine.standing import Standing
from artesian.errors import BadFormat, MissingExtra
from artesian.server.auth import Auth, NoAuth
from artesian.server.limits import Limits, check_encoding
from artesian.server.messages import read_object
from artesian.server.models_file import models_file
from artesian.server.openapi import MEDIA, described
from artesian.server.operating import Operator, checked_why, describe_member
from artesian.server.service import Service

try:
    from fastapi import FastAPI, Request, Response
    from fastapi.responses import JSONResponse
except ModuleNotFoundError:
    raise MissingExtra("fastapi", "server") from None

OPERATOR = "artesian.operator"  # the key of the scope of a request that came with an admin token
Judge = Callable[[str, Request], Awaitable[JSONResponse]]


class OperatorRoutes:
    """Every request of an operator but the metrics."""

    def __init__(
        self, service: Service, auth: Auth | NoAuth, limits: Limits, credential: Callable[[Request], str]
    ) -> None:
        """`credential` finds the credential of a request, and refuses an address that was refused too often."""
        self.service, self.auth, self.limits, self.credential = service, auth, limits, credential
        self.operator = Operator(service, auth.drop)  # the one of this server: acts take turns

    def add_to(self, app: FastAPI) -> None:
        """Put the operator's routes into an application."""
        for method, path, route in (
            ("GET", "/v1/members", self.members),
            ("GET", "/v1/members/{client}", self.member),
            ("POST", "/v1/members/{client}/forget", self.forget),
            ("POST", "/v1/rollback", self.rollback),
            ("GET", "/v1/models", self.models),
        ):
            app.add_api_route(path, route, methods=[method], **described(route.__name__))
        for kind in get_args(Standing):
            path = f"/v1/members/{{client}}/{kind}"
            app.add_api_route(path, self._judging(kind), methods=["POST"], name=kind, **described("standing"))

    async def members(self, request: Request) -> JSONResponse:
        """Every member: what it answered, whether it is here, its standing and mixture."""
        await self._admin(request)
        members = await self.service.run(lambda: dict(self.service.coordinator.state.members))
        return JSONResponse([describe_member(client, member) for client, member in sorted(members.items())])

    async def member(self, client: str, request: Request) -> JSONResponse:
        """One member."""
        await self._admin(request)
        return JSONResponse(describe_member(client, self.service.coordinator.member(client)))

    async def forget(self, client: str, request: Request) -> JSONResponse:
        """Take all that a member uploaded out of the state, and drop its record."""
        act, _ = await self._act(request)
        return JSONResponse(await self.operator.forget(client, act))

    async def rollback(self, request: Request) -> JSONResponse:
        """Bring back the state after an event."""
        act, body = await self._act(request, "to")
        return JSONResponse(await self.operator.rollback(event_in(body), act))

    async def models(self, request: Request) -> Response:
        """Every cluster under its ordinary parameter names."""
        await self._admin(request)
        state, event, about = await self.service.run(self._now)
        return Response(models_file(state, event, about), 200, media_type=MEDIA)

    def _now(self) -> tuple[Any, int, dict[str, Any]]:
        store, coordinator = self.service.store, self.service.coordinator
        about = {"algorithm": coordinator.algorithm.name, "layout": coordinator.state.layout.digest}
        return coordinator.state, store.count if store else 0, about

    def _judging(self, kind: Standing) -> Judge:
        async def judge(client: str, request: Request) -> JSONResponse:
            act, _ = await self._act(request)
            return JSONResponse(await self.operator.change_standing(kind, client, act))

        judge.__doc__ = f"{kind.capitalize()} a member."
        return judge

    async def _act(self, request: Request, *more: str) -> tuple[Act, dict[str, Any]]:
        """Who acts and why, and the body; the credential is checked before the body is read."""
        return await act_in(request, self.limits, await self._admin(request), *more)

    async def _admin(self, request: Request) -> str:
        """The name of the operator's token; whoever shows one may read everything about a failure."""
        name = await self.auth.admin(self.credential(request))
        request.scope[OPERATOR] = True
        return name


async def act_in(request: Request, limits: Limits, by: str, *more: str) -> tuple[Act, dict[str, Any]]:
    """The act that the body of a request asks for, and the body, which may have `more` keys than `why`."""
    check_encoding(request.headers)
    body = _json(await limits.receive_small(request.stream()), ("why", *more))
    return Act(by, checked_why(body.get("why", ""))), body


def _json(data: bytes, known: Collection[str]) -> dict[str, Any]:
    """The body of an act: a JSON object, whose `why` is a text."""
    try:
        body = read_object(data or b"{}", known)
        body.get("why", "").encode()
        return body
    except (ValueError, AttributeError, RecursionError):
        keys = ", ".join(known)
        raise BadFormat("The body is not the expected JSON", f"Send an object with no other keys than {keys}") from None


def event_in(body: dict[str, Any]) -> int:
    """The event that a rollback goes back to."""
    to = body.get("to")
    if type(to) is not int or not 0 <= to < 1 << 53:
        raise BadFormat(f"Not the number of an event: {repr(to)[:40]}", 'Send {"to": 40, "why": "..."}')
    return to
