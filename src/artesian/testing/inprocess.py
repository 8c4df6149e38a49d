"""The simulator's clients over HTTP, without a network."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx

from artesian import errors
from artesian.core import ClientId, Evidence, Reply, Upload
from artesian.engine.coordinator import Coordinator
from artesian.errors import ArtesianError
from artesian.simulator.transports import CoordinatorTransport
from artesian.storage.codec import encode


class InProcess(CoordinatorTransport):
    """A transport that speaks HTTP to the application without a network: every byte is encoded and decoded."""

    def __init__(self, coordinator: Coordinator) -> None:
        from artesian.server.app import create_app
        from artesian.server.messages import decode_task
        from artesian.server.service import Service

        self.coordinator = coordinator
        self._service = Service(coordinator)
        self._decode = decode_task
        self._waiting: set[ClientId] = set()
        self._runner = asyncio.Runner()
        transport = httpx.ASGITransport(app=create_app(self._service), raise_app_exceptions=True)
        self._http = httpx.AsyncClient(transport=transport, base_url="http://in-process")

    def join(self, client: ClientId, samples: int, changed: bool = False) -> list[Reply]:
        body = {"samples": samples, "changed": changed}
        return self._answers(client, self._send("PUT", f"/v1/clients/{client}", json=body))

    def upload(self, upload: Upload, evidence: Evidence | None = None) -> list[Reply]:
        path = f"/v1/clients/{upload.client}/uploads/{upload.number}"
        return self._answers(upload.client, self._send("PUT", path, content=encode("upload", upload)))

    def leave(self, client: ClientId) -> list[Reply]:
        self._send("DELETE", f"/v1/clients/{client}")
        self._waiting.discard(client)
        return self._polled()

    def expire(self, client: ClientId, number: int) -> list[Reply]:
        """Patience is the server's own business: no client asks for it."""
        self.coordinator.expire(client, number)
        return self._polled()

    def close(self) -> None:
        """Let go of the event loop."""
        self._runner.run(self._http.aclose())
        self._runner.close()
        self._service.close()

    def _answers(self, client: ClientId, response: httpx.Response) -> list[Reply]:
        if response.status_code != 200:
            self._waiting.add(client)
            return self._polled()
        self._waiting.discard(client)
        own = Reply(client, self._decode(response.content))
        return sorted([own, *self._polled()], key=lambda reply: reply.client)

    def _polled(self) -> list[Reply]:
        """The tasks of whoever was waiting and has one now; whoever waits still would only hear so."""
        replies = []
        for client in sorted(self._waiting.difference(self.coordinator.desk.waiting)):
            response = self._send("GET", f"/v1/clients/{client}/task")
            if response.status_code == 200:
                self._waiting.discard(client)
                replies.append(Reply(client, self._decode(response.content)))
        return replies

    def _send(self, method: str, path: str, **body: Any) -> httpx.Response:
        response = self._runner.run(self._http.request(method, path, **body))
        if response.is_error:
            told = response.json()
            kind: type[ArtesianError] = getattr(errors, told["error"])
            raise kind(told["rule"], told["remedy"])
        return response
