"""The routes, one-to-one with the engine's verbs, as an ASGI application to be called in process.

It trusts whoever calls it: no tokens, no limits, nothing durable. It is how algorithms prove that they behave
behind HTTP as they do in the simulator, and not a service to expose.
"""

from __future__ import annotations

import asyncio
from typing import Any

from artesian.codec import FORMAT, decode, encode, to_tree
from artesian.core import Reply, Task, Upload
from artesian.engine import Coordinator
from artesian.errors import STATUSES, BadClient, BadFormat, MissingExtra, Refused
from artesian.recipes import RECIPES

try:
    from fastapi import FastAPI, Request, Response
    from fastapi.responses import JSONResponse
except ModuleNotFoundError:
    raise MissingExtra("fastapi", "server") from None

MEDIA = "application/vnd.safetensors"


def create_app(coordinator: Coordinator) -> FastAPI:
    """The application that serves this coordinator."""
    app = FastAPI(title="Artesian", openapi_url=None)
    changed = asyncio.Condition()

    async def announce(replies: list[Reply]) -> None:
        """Wake the long polls of whoever got a task."""
        if replies:
            async with changed:
                changed.notify_all()

    @app.exception_handler(Refused)
    async def refuse(request: Request, error: Refused) -> JSONResponse:
        body = {"error": type(error).__name__, "rule": error.rule, "got": error.got, "remedy": error.remedy}
        return JSONResponse(body, STATUSES[type(error)])

    @app.get("/v1/federation")
    async def federation() -> dict[str, Any]:
        state = coordinator.state
        return {
            "format": FORMAT,
            "algorithm": coordinator.algorithm.name,
            "recipes": sorted(RECIPES),
            "clusters": list(state.clusters),
            "version": state.version,
            "layout": state.layout.to_json(),
            "layout_digest": state.layout.digest,
        }

    @app.put("/v1/clients/{client}")
    async def join(client: str, request: Request) -> Response:
        replies = coordinator.join(client, await _samples(request))
        await announce(replies)
        return _answer(client, replies, waiting=202)

    @app.get("/v1/clients/{client}/task")
    async def task(client: str, request: Request, wait: float = 0.0) -> Response:
        coordinator.member(client)  # refuses a stranger
        async with changed:
            try:
                async with asyncio.timeout(max(0.0, min(wait, 60.0))):
                    await changed.wait_for(lambda: coordinator.recorded(client))
            except TimeoutError:
                return Response(status_code=204)
        reply = _answer(client, coordinator.recorded(client), waiting=204)
        if request.headers.get("if-none-match") == reply.headers.get("etag"):
            return Response(status_code=304)
        return reply

    @app.put("/v1/clients/{client}/uploads/{number}")
    async def upload(client: str, number: int, request: Request) -> Response:
        received = decode("upload", await request.body(), Upload)
        if (received.client, received.number) != (client, number):
            raise BadFormat(
                "an upload is sent to its own address",
                f"client {received.client}, number {received.number} at {client}, {number}",
                "put it there",
            )
        replies = coordinator.receive(received)
        await announce(replies)
        return _answer(client, replies, waiting=202)

    @app.delete("/v1/clients/{client}")
    async def leave(client: str) -> Response:
        await announce(coordinator.leave(client))
        return Response(status_code=204)

    @app.get("/healthz")
    async def healthy() -> dict[str, str]:
        return {"status": "ok"}

    def _answer(client: str, replies: list[Reply], waiting: int) -> Response:
        own = [reply.task for reply in replies if reply.client == client]
        if not own:
            return Response(status_code=waiting)
        receipt = coordinator.state.members[client].receipt
        tag = f'"{receipt.digest}"' if receipt else '""'
        return Response(encode_task(own[0]), 200, {"etag": tag}, MEDIA)

    return app


def encode_task(task: Task) -> bytes:
    """A task as it travels: without the memo, which stays on the server."""
    return encode("task", {**to_tree(task), "memo": None})


def decode_task(data: bytes) -> Task:
    """The task of a message."""
    return decode("task", data, Task)


async def _samples(request: Request) -> int:
    try:
        body = await request.json()
        return body["samples"]
    except (ValueError, KeyError, TypeError):
        raise BadClient('a join says {"samples": n}', "no such JSON", "send the number of samples") from None
