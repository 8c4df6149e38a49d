"""A toy federation as it is served: the application in process, a server process of its own, and clients."""

import asyncio
import http.client
import json
import os
import random
import signal
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
from launching import Launcher, launcher

from artesian.algorithms import CDFL
from artesian.core import Measured, Upload
from artesian.engine.coordinator import Coordinator
from artesian.recipes import recipe
from artesian.server.app import create_app
from artesian.server.auth import Auth, Tokens
from artesian.server.federation import Federation
from artesian.server.messages import decode_task
from artesian.server.service import Service
from artesian.server.settings import Settings
from artesian.storage.codec import digest, encode, to_tree
from artesian.storage.store import Store
from artesian.testing import ToyFederation as Toy
from artesian.testing import ToyModel, ToyWorld

MODEL, WORLD = ToyModel(), ToyWorld(8)
SECRET = "a secret of sixteen"
SEED = 20_260_801  # of every draw: which byte, which moment


def draws(*key: object) -> random.Random:
    """A generator that draws the same in every run."""
    return random.Random(repr((SEED, *key)))


def federation(algorithm=None, **options) -> Federation:
    proxies = {k: MODEL.learner(s.x, s.y) for k, s in WORLD.proxies(0).items()}
    return Federation(MODEL, algorithm or CDFL(), proxies, [MODEL.start(0), MODEL.start(1)], name="toy", **options)


def trained(client: str, data: bytes) -> Upload:
    """A client's answer to the task in these bytes."""
    task = decode_task(data)
    visit = WORLD.visit(0, client, task.number)
    learner = MODEL.learner(visit.train.x, visit.train.y)
    return recipe(task.recipe).fit(MODEL.layout, client, task, learner, {}).upload


def answer(client: str, data: bytes) -> bytes:
    """The same as it travels."""
    return encode("upload", trained(client, data))


class Server:
    """The whole application in process, with a store, tokens and settings."""

    def __init__(self, folder: Path, algorithm=None, settings: Settings | None = None, **options) -> None:
        own = {"defence": options.pop("defence")} if "defence" in options else {}
        self.store = Store(folder, federation(algorithm, **own).identity)
        self.service = Service.open(federation(algorithm, **own), self.store, **{"snapshot_every": 3, **options})
        self.tokens = Tokens(folder / "tokens.json")
        names = {token.name for token in self.tokens.all()}
        self.enrol = self.tokens.make("enrol", f"e{len(names)}")
        self.admin = self.tokens.make("admin", f"a{len(names)}")
        self.auth = Auth(self.tokens, self.store, self.service.coordinator.state.members)
        self.app = create_app(self.service, self.auth, settings)

    def ask(self, method: str, path: str, token: str = "", app=None, **body) -> httpx.Response:
        async def send() -> httpx.Response:
            transport = httpx.ASGITransport(app=app or self.app)
            headers = {"authorization": f"Bearer {token}"} if token else {}
            async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
                return await client.request(method, path, headers={**headers, **body.pop("headers", {})}, **body)

        return asyncio.run(send())

    def ask_slowly(
        self, method: str, path: str, token: str, body: bytes, meanwhile: Callable[[], object]
    ) -> httpx.Response:
        """A request whose body is complete only when `meanwhile` is done."""

        async def pieces() -> AsyncIterator[bytes]:
            yield body[:3]
            await asyncio.to_thread(meanwhile)
            yield body[3:]

        return self.ask(method, path, token, content=pieces(), headers={"content-length": str(len(body))})

    def join(self, client: str = "c0", secret: str = SECRET) -> httpx.Response:
        return self.ask("PUT", f"/v1/clients/{client}", self.enrol, json={"samples": 5, "secret": secret})

    def digest(self) -> str:
        return self.service.coordinator.digest()

    def close(self) -> None:
        self.service.close()


# stores without a server

IDENTITY = {"layout": "abc", "algorithm": "cdfl"}


def served(store: Store, algorithm=None, clients: int = 4) -> Toy:
    """A federation whose events go into a store: a new one, or the one that was there."""
    toy = Toy(algorithm or CDFL(), clients)
    latest = store.latest()
    done, snapshot = latest or (0, toy.coordinator.snapshot())
    toy.coordinator = Coordinator.restore(toy.algorithm, snapshot, open_tasks=store.open_tasks, **toy.options())
    if latest is None:
        store.save(toy.coordinator.snapshot(tasks=False))
    for event in store.events(done):
        toy.coordinator.replay(event)
    toy.coordinator.record = store.append
    return toy


def resumed(toy: Toy) -> Toy:
    """The clients ask for their tasks again."""
    for client in toy.world.names:
        toy.take(toy.coordinator.join(client, 10))
    return toy


def restored(folder: Path, algorithm=None) -> tuple[str, list[Measured]]:
    """What a server that starts here would go on with: the digest of its state, and every upload of its journal."""
    served = federation(algorithm)
    store = Store(folder, served.identity)
    try:
        service = Service.open(served, store)
        rebuilt = served.begin()
        uploads = []
        for event in store.events():
            rebuilt.replay(event)
            uploads += [event.measured] if event.measured else []
        found = service.coordinator.digest()
        assert found == rebuilt.digest(), "the journal, replayed from its first event, gives another state"
        return found, uploads
    finally:
        store.close()


# a server process

APP = """
from artesian.algorithms import CDFL
from artesian.server.federation import Federation
from artesian.testing import ToyModel, ToyWorld

MODEL, WORLD = ToyModel(), ToyWorld(8)


def make():
    proxies = {k: MODEL.learner(s.x, s.y) for k, s in WORLD.proxies(0).items()}
    return Federation(MODEL, CDFL(), proxies, [MODEL.start(0), MODEL.start(1)], name="toy")


def broken():
    raise RuntimeError("no data")


federation = make()
"""


BOUNDLESS = ("--set", "joins_per_minute=1e9", "--set", "refusals_per_minute=1e9")  # tests are in a hurry


class Web:
    """A server at a port of this machine, as its clients see it."""

    def __init__(self, port: int) -> None:
        self.port = port

    def up(self) -> bool:
        try:
            return self.request("GET", "/healthz")[0] == 200
        except OSError:
            return False

    def request(
        self,
        method: str,
        path: str,
        token: str = "",
        body: bytes | None = None,
        headers: dict[str, str] | None = None,
        seen: dict[str, str] | None = None,
    ) -> tuple[int, bytes]:
        """The status and the body of an answer; its headers go to `seen`."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        own = {"authorization": f"Bearer {token}"} if token else {}
        try:
            connection.request(method, path, body, {**own, **(headers or {})})
            reply = connection.getresponse()
            if seen is not None:
                seen |= {name.lower(): value for name, value in reply.getheaders()}
            return reply.status, reply.read()
        except http.client.HTTPException as error:
            raise OSError(str(error)) from None
        finally:
            connection.close()


class Process(Web):
    """A server process on a port of its own."""

    def __init__(self, folder: Path, *options: str, source: Launcher | None = None, app: str = APP, **environment):
        self.folder, self.source, self.options = folder, source or launcher(), options
        self._tokens: dict[str, str] = {}
        (folder / "served.py").write_text(app)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            super().__init__(probe.getsockname()[1])
        self.start(**environment)

    def start(self, **environment: str) -> None:
        words = ["serve", "served:federation", "--store", "store", "--port", str(self.port), "--show-token"]
        words += ["--set", "snapshot_every=7", "--set", "uploads_per_minute=0", *BOUNDLESS, *self.options]
        self.pid = self.source.start(words, self.folder, self.folder / "log", **environment)
        end = time.monotonic() + 60
        while not self.up():
            assert self.poll() is None and time.monotonic() < end, (self.folder / "log").read_text()
            time.sleep(0.01)

    def join(self, client: str, secret: str = SECRET) -> bytes:
        """The first task of a client."""
        body = json.dumps({"samples": 5, "secret": secret}).encode()
        status, task = self.request("PUT", f"/v1/clients/{client}", self.token("enrol"), body)
        assert status == 200, (status, task)
        return task

    def upload(self, client: str, task: bytes, secret: str = SECRET) -> bytes:
        """The task that answers a client's honest upload."""
        path = f"/v1/clients/{client}/uploads/{decode_task(task).number}"
        status, task = self.request("PUT", path, secret, answer(client, task))
        assert status == 200, (status, task)
        return task

    def token(self, scope: str) -> str:
        """The token of this scope that the first start showed."""
        if scope not in self._tokens:
            lines = (self.folder / "log").read_text().splitlines()
            self._tokens[scope] = next(line.split()[-1] for line in lines if line.startswith(f"{scope} token"))
        return self._tokens[scope]

    def poll(self) -> int | None:
        """The exit code, once it has one."""
        return self.source.poll(self.pid)

    def wait(self, seconds: float = 60.0) -> int:
        return self.source.wait(self.pid, seconds)

    def stop(self, number: int = signal.SIGKILL) -> int:
        os.kill(self.pid, number)
        return self.wait()

    def resident(self) -> float:
        """Its memory, in MB."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS"))) / 1024

    def files(self) -> int:
        """Its open file descriptors."""
        return len(os.listdir(f"/proc/{self.pid}/fd"))


class Client(threading.Thread):
    """Joins, uploads when it can, asks for its task before it sends again; writes down what was acknowledged."""

    def __init__(self, server: Process, name: str, stop: threading.Event) -> None:
        super().__init__()
        self.server, self.client, self.stopped = server, name, stop
        self.secret = f"secret of {name} is long"
        self.sent: dict[int, str] = {}  # the digest of every upload that was begun
        self.acknowledged: list[int] = []
        self.failed: Exception | None = None

    def run(self) -> None:
        try:
            while not self.stopped.is_set():
                try:
                    self.cycle()
                except OSError:
                    time.sleep(0.02)
        except Exception as error:
            self.failed = error

    def cycle(self) -> None:
        task = self.server.join(self.client, self.secret)
        while not self.stopped.is_set():
            upload = trained(self.client, task)
            self.sent[upload.number] = digest(to_tree(upload))
            path = f"/v1/clients/{self.client}/uploads/{upload.number}"
            status, task = self.server.request("PUT", path, self.secret, encode("upload", upload))
            assert status == 200, (status, task)
            self.acknowledged.append(upload.number)


@contextmanager
def clients(server: Process, count: int) -> Iterator[list[Client]]:
    """So many clients at work; in the end they stop, and none has seen anything odd."""
    stop = threading.Event()
    made = [Client(server, f"c{i}", stop) for i in range(count)]
    for client in made:
        client.start()
    try:
        yield made
    finally:
        stop.set()
        for client in made:
            client.join()
    assert not [client.failed for client in made if client.failed]


def until(holds: Callable[[], object], seconds: float = 60.0) -> None:
    """Wait for something that must come."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "what was waited for did not come"
        time.sleep(0.01)
