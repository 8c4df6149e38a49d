"""The routes, one-to-one with the engine's verbs. Each one first checks who calls; only the probes are open."""

from __future__ import annotations

import asyncio
import base64
import hashlib
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from functools import partial

from artesian.core import Task
from artesian.engine.admission import check_client, check_name, check_welcome
from artesian.errors import BadClient, BadFormat, MissingExtra, StorageError
from artesian.server.auth import Auth, Bearer, NoAuth, was_reset
from artesian.server.crowding import Crowd, address_of
from artesian.server.draws import Draws
from artesian.server.keys import SigningKeys
from artesian.server.limits import Limits, check_encoding, too_many_refusals
from artesian.server.log import Receive, Scope, Send
from artesian.server.messages import etag, read_object, read_upload, task_pieces
from artesian.server.metrics import Latencies, metrics_text
from artesian.server.openapi import MEDIA, Number, Seconds, completed, described
from artesian.server.operator_routes import OperatorRoutes
from artesian.server.page_routes import PageRoutes
from artesian.server.partial_uploads import PartialUploads
from artesian.server.service import Service
from artesian.server.settings import Settings
from artesian.storage.acknowledgement import HEADER, Acknowledgement
from artesian.storage.codec import FORMAT, to_json

try:
    from fastapi import FastAPI, Request, Response
    from fastapi.responses import JSONResponse, PlainTextResponse
except ModuleNotFoundError:
    raise MissingExtra("fastapi", "server") from None

CHUNK = 1 << 18  # bytes of a response handed to a connection at once, so that one nobody reads is not copied whole


class Routes:
    """Every request of a service."""

    def __init__(
        self,
        service: Service,
        auth: Auth | NoAuth,
        settings: Settings,
        keys: SigningKeys | None = None,
        crowd: Crowd | None = None,
    ) -> None:
        self.service, self.auth, self.settings, self.keys, self.crowd = service, auth, settings, keys, crowd
        self.latencies = Latencies()
        self.coordinator = service.coordinator
        self.limits = Limits(settings, self.coordinator.state.layout, self._models())
        folder = service.store.folder / "parts" if service.store else None
        self.partial_uploads = PartialUploads(folder, settings.part_bytes if folder else 0)
        self.draws = Draws(service)
        self._tags: dict[str, tuple[int, str]] = {}  # number and ETag of the task each client was last sent

    def add_to(self, app: FastAPI) -> None:
        """Put every route into an application."""
        for method, path, route in (
            ("GET", "/v1/federation", self.federation),
            ("PUT", "/v1/clients/{client}", self.join),
            ("GET", "/v1/clients/{client}/task", self.task),
            ("GET", "/v1/clients/{client}/model", self.model),
            ("PUT", "/v1/clients/{client}/uploads/{number}", self.upload),
            ("HEAD", "/v1/clients/{client}/uploads/{number}", self.offset),
            ("DELETE", "/v1/clients/{client}", self.leave),
            ("GET", "/v1/keys", self.public_keys),
            ("GET", "/v1/openapi.json", self.description),
            ("GET", "/healthz", self.healthy),
            ("GET", "/readyz", self.ready),
            ("GET", "/metrics", self.metrics),
        ):
            app.add_api_route(path, route, methods=[method], **described(route.__name__))
        acts = OperatorRoutes(self.service, self.auth, self.limits, self.credential)
        acts.add_to(app)
        if self.settings.page:
            PageRoutes(self.service, self.auth, self.settings, self.limits, acts.operator).add_to(app)

    async def federation(self, request: Request) -> Response:
        """What is served: format, algorithm, recipes, clusters, layout."""
        await self.auth.anybody(self.credential(request))
        state = self.coordinator.state
        about = {
            "format": FORMAT,
            "algorithm": self.coordinator.algorithm.name,
            "recipes": sorted(self.coordinator.algorithm.recipes),
            "clusters": list(state.clusters),
            "version": state.version,
            "largest_upload": self.limits.largest,
            "layout": state.layout.to_json(),
            "layout_digest": state.layout.digest,
        }
        body = to_json(about).encode()
        return Response(body, 200, {"etag": etag(body)}, "application/json")

    async def join(self, client: str, request: Request) -> Response:
        """Join, or repeat it; the response is the task, or 202 until a round begins."""
        token = await self.auth.enrolment(self.credential(request))
        self.limits.join(address_of(request.client))
        check_encoding(request.headers)
        body = await self.limits.receive_small(request.stream())
        samples, changed, secret = _joining(body, self.auth.needs_secret)
        check_client(client, samples)
        if self.coordinator.known(client) is None:
            check_name(client)
        prepared = await self.auth.prepared(client, secret, self._is_reset(client))
        await self.service.run(lambda: self.auth.admit(client, secret, prepared, token, self._is_reset(client)))
        async with AsyncExitStack() as held:
            await held.enter_async_context(self.limits.room(self._response_bytes(client)))
            return await self._respond(client, await self.service.join(client, samples, changed), 202, held)

    async def task(self, client: str, request: Request, wait: Seconds = "0") -> Response:
        """The open task; waits for one, and is 204 if none came."""
        bearer = await self._check_client(request, client)
        with self.limits.request(bearer):
            welcome = partial(self.auth.is_still, bearer)
            number = await self.service.wait(client, min(_seconds(wait), self.settings.longest_wait), welcome)
        self._check_still(bearer)
        if number is None:
            return Response(status_code=204)
        known, tag = self._tags.get(client, (0, ""))
        if known == number and request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers={"etag": tag})
        async with AsyncExitStack() as held:
            await held.enter_async_context(self.limits.room(self._response_bytes(client)))
            task = await self.service.task(client)
            self._check_still(bearer)
            return await self._respond(client, task, 204, held)

    async def model(self, client: str, request: Request) -> Response:
        """What the client may use now, without answering its task; 304 if it has that, or says `If-None-Match: *`."""
        bearer = await self._check_client(request, client)
        self.limits.draw(client)
        held_at_home = request.headers.get("if-none-match", "")
        with self.limits.request(bearer):
            offer = self.draws.known(client)
            if offer is not None and offer.is_named_in(held_at_home):
                return Response(status_code=304, headers=offer.headers)
            async with AsyncExitStack() as held:
                await held.enter_async_context(self.limits.room(2 * self._response_bytes(client)))  # and its task
                offer, pieces = await self.draws.draw(client)
                self._check_still(bearer)
                if offer.is_named_in(held_at_home):
                    return Response(status_code=304, headers=offer.headers)
                self.service.counts.draws += 1
                return TaskResponse(pieces, offer.headers, held.pop_all())

    async def upload(self, client: str, number: Number, request: Request) -> Response:
        """An upload: 200 with the next task, 202 while a round is open; a retry gets the recorded response."""
        bearer = await self._check_client(request, client)
        at = _number(number)
        check_encoding(request.headers)
        async with AsyncExitStack() as held:
            held.enter_context(self.limits.request(bearer))
            entered = self.limits.upload(bearer, request.headers, self._response_bytes(client))
            announced = await held.enter_async_context(entered)
            body = await self.partial_uploads.receive(client, at, announced, request.stream(), self.limits)
            upload = await asyncio.to_thread(read_upload, body, announced.digest, client, at, self._models())
            task = await self.service.upload(upload, partial(self._check_still, bearer))
            signed = await self._acknowledged(client, at, announced.digest, body)
            return await self._respond(client, task, 202, held, signed)

    async def offset(self, client: str, number: Number, request: Request) -> Response:
        """How much of an upload that broke off is here."""
        await self._check_client(request, client)
        part = self.partial_uploads.find(client, _number(number))
        headers = {"upload-offset": str(part.size if part else 0)}
        if part:
            headers["repr-digest"] = f"sha-256=:{base64.b64encode(bytes.fromhex(part.digest)).decode()}:"
        return Response(headers=headers)

    async def leave(self, client: str, request: Request) -> Response:
        """Leave."""
        bearer = await self._check_client(request, client)
        await self.service.leave(client, partial(self._check_still, bearer))
        return Response(status_code=204)

    async def public_keys(self, request: Request) -> JSONResponse:
        """The public keys of acknowledgements, newest first, as a JSON Web Key Set."""
        await self.auth.anybody(self.credential(request))
        return JSONResponse(self.keys.published() if self.keys else {"keys": []})

    async def description(self, request: Request) -> JSONResponse:
        """This interface in OpenAPI's words."""
        await self.auth.anybody(self.credential(request))
        return JSONResponse(completed(request.app.openapi()))

    async def healthy(self) -> JSONResponse:
        """The process is alive."""
        return JSONResponse({"status": "ok"})

    async def ready(self) -> JSONResponse:
        """The state is restored, and uploads are accepted; 503 once the server is stopping."""
        stopping = self.service.stopping.is_set()
        return JSONResponse({"status": "stopping" if stopping else "ready"}, 503 if stopping else 200)

    async def metrics(self, request: Request) -> PlainTextResponse:
        """Counters for Prometheus."""
        await self.auth.admin(self.credential(request))
        return PlainTextResponse(metrics_text(self.service, self.limits, self.latencies, self.crowd))

    def credential(self, request: Request) -> str:
        """The credential of a request; an address that was refused too often must show one that is known as valid."""
        text = credential_of(request)
        if self.is_unwelcome(request):
            raise too_many_refusals()
        return text

    def is_unwelcome(self, request: Request) -> bool:
        """Whether it comes from an address that was refused too often, without a credential known as valid."""
        return self.limits.refusals.is_spent(address_of(request.client)) and not self.auth.knows(credential_of(request))

    # inside

    async def _check_client(self, request: Request, client: str) -> Bearer:
        """Only the client itself, as long as it is welcome; a secret that an older version hashed is hashed anew."""
        secret = self.credential(request)
        bearer = await self.auth.client(secret, client)
        self._check_still(bearer)
        if made := await self.auth.upgraded(client, secret):
            with suppress(StorageError):  # the next request tries again
                await self.service.run(lambda: self.auth.upgrade(client, secret, made))
        return bearer

    def _check_still(self, bearer: Bearer) -> None:
        """Refuse a client that was expelled, or whose secret was replaced, since its request began."""
        if self._is_reset(bearer.client) or not self.auth.is_still(bearer):
            raise was_reset(bearer.client)

    def _is_reset(self, client: str) -> bool:
        """Whether a client has a new secret to bring; one that was revoked is refused."""
        member = self.coordinator.known(client)
        check_welcome(client, member)
        return member is not None and member.reset

    async def _acknowledged(self, client: str, number: int, digest: str, body: memoryview) -> dict[str, str]:
        """The header with the signed acknowledgement of an upload that was taken; none without a store."""
        taken = await self.service.taken(client, number)
        if self.keys is None or taken is None:
            return {}
        digest = digest or (await asyncio.to_thread(hashlib.sha256, body)).hexdigest()
        told = Acknowledgement(self.service.name, client, number, digest, taken.event, taken.chain, taken.time)
        return {HEADER: self.keys.sign(told)}

    def _models(self) -> int:
        """How many models an upload may carry now."""
        return self.coordinator.algorithm.models_sent(self.coordinator.state)

    def _response_bytes(self, client: str) -> int:
        """How many bytes a response to this client takes, going by its open task."""
        member = self.coordinator.state.members.get(client)
        models = max(1, len(member.receipt.models)) if member and member.receipt else 1
        return self.limits.model * models

    async def _respond(
        self,
        client: str,
        task: Task | None,
        waiting: int,
        held: AsyncExitStack,
        signed: Mapping[str, str] | None = None,
    ) -> Response:
        """The task, in memory that is reserved until its last byte is sent; or the status `waiting` without one."""
        if task is None:
            return Response(status_code=waiting, headers=signed)
        pieces, tag = await asyncio.to_thread(task_pieces, task)
        self._tags[client] = task.number, tag
        return TaskResponse(pieces, {"etag": tag, **(signed or {})}, held.pop_all())


class TaskResponse(Response):
    """A task sent in pieces; after the last one, the memory reserved for it is released.

    Between two pieces other requests have their turn, however fast this client reads.
    """

    def __init__(self, pieces: Sequence[bytes | memoryview], headers: Mapping[str, str], held: AsyncExitStack) -> None:
        super().__init__(b"", 200, {**headers, "content-length": str(sum(map(len, pieces)))}, MEDIA)
        self.pieces, self.held = pieces, held

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self.held:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            for piece in self.pieces:
                for at in range(0, len(piece), CHUNK):
                    await send({"type": "http.response.body", "body": bytes(piece[at : at + CHUNK]), "more_body": True})
                    await asyncio.sleep(0)
            await send({"type": "http.response.body", "body": b"", "more_body": False})


def credential_of(request: Request) -> str:
    """The bearer token of a request; empty where there is none."""
    kind, _, text = request.headers.get("authorization", "").partition(" ")
    return text.strip() if kind.lower() == "bearer" and text.isascii() else ""


def _number(text: str) -> int:
    """The task number of an address, read once the credential was checked."""
    if not (text.isascii() and text.isdigit() and len(text) <= 15):
        raise BadFormat(f"Not a task number: {text[:40]!r}", "Send the upload to .../uploads/NUMBER")
    return int(text)


def _seconds(text: str) -> float:
    """How long a long poll may wait."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise BadFormat(f"Not a number of seconds to wait: {text[:40]!r}", "Use a number from 0 on, or leave it out")
    return seconds


def _joining(data: bytes, needs_secret: bool) -> tuple[int, bool, str]:
    """The number of samples, whether the client's data changed and, where clients have one, the secret."""
    try:
        body = read_object(data, ("samples", "changed", "secret"))
        secret, changed = body["secret"] if needs_secret else "", body.get("changed", False)
        if not isinstance(secret, str) or not isinstance(changed, bool):
            raise TypeError("a secret is a text, and changed is true or false")
        return body["samples"], changed, secret
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        wanted = '{"samples": 100, "secret": "..."}' if needs_secret else '{"samples": 100}'
        raise BadClient("The body of the join is not the expected JSON", f"Send {wanted}") from None
