"""A real application in process, a wire to it that can be cut, and a client's home: what the client's tests share."""

import asyncio
import threading
from pathlib import Path

import httpx

from artesian.algorithms import CDFL
from artesian.client.session import Session
from artesian.client.transport import Transport
from artesian.server.app import create_app
from artesian.server.auth import Auth, Tokens
from artesian.server.federation import Federation
from artesian.server.service import Service
from artesian.storage.store import Store
from artesian.testing import ToyModel, ToyWorld

MODEL, WORLD = ToyModel(), ToyWorld(4)


class Web:
    """The application on an event loop of its own."""

    def __init__(self, app) -> None:
        self.http = httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://test")
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever)
        self.thread.start()

    def request(self, *arguments, **options) -> httpx.Response:
        asked = self.http.request(*arguments, **options)
        return asyncio.run_coroutine_threadsafe(asked, self.loop).result()

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self.http.aclose(), self.loop).result()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()


class Wire(httpx.BaseTransport):
    """The application behind a wire that can be cut before or after a request goes through, or lie."""

    def __init__(self, client: Web) -> None:
        self.client, self.cut, self.after, self.spoil, self.seen = client, 0, 0, None, []

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        self.seen.append((request.method, request.url.path))
        if self.cut:
            self.cut -= 1
            raise httpx.ConnectError("cut")
        told = self.client.request(
            request.method, str(request.url.raw_path, "ascii"), headers=dict(request.headers), content=request.read()
        )
        if self.after:
            self.after -= 1
            raise httpx.ReadError("cut after it was taken")
        body = self.spoil(told.content) if self.spoil else told.content
        kept = {name: told.headers[name] for name in ("etag", "retry-after", "artesian-moved") if name in told.headers}
        return httpx.Response(told.status_code, headers=kept, content=body)


class Home:
    """A server, a wire to it, and a client's home."""

    def __init__(self, folder: Path, algorithm=None, model=MODEL, secrets: bool = True, **options) -> None:
        """Without `secrets` anybody may act as anybody, and no time is spent on hashing."""
        self.folder, self.model = folder, model
        proxies = {k: model.learner(s.x, s.y) for k, s in WORLD.proxies(0).items()}
        self.federation = served = Federation(
            model, algorithm or CDFL(), proxies, [model.start(0), model.start(1)], **options
        )
        self.store = Store(folder / "store", served.identity)
        self.service = Service.open(served, self.store)
        self.tokens = Tokens(folder / "store" / "tokens.json")
        self.token = self.tokens.make("enrol", f"e{len(self.tokens.all())}")
        self.web = Web(create_app(self.service, Auth(self.tokens, self.store) if secrets else None))
        self.wire = Wire(self.web)

    def close(self) -> None:
        self.web.close()
        self.service.close()

    @property
    def state(self):
        return self.service.coordinator.state

    def session(self, name: str = "c0", patience: float = 5.0, recipes=()) -> Session:
        transport = Transport("http://test", patience, transport=self.wire)
        return Session(transport, self.token, self.folder / name, name, recipes)

    def learner(self, name: str = "c0", cycle: int = 0):
        visit = WORLD.visit(0, name, cycle)
        return self.model.learner(visit.train.x, visit.train.y)
