"""The service: who may do what, limits, durable answers, and a real server killed under real clients."""

import asyncio
import http.client
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import httpx
import numpy as np
import pytest

from artesian.algorithms import CDFL, FedAvg, FedBuff
from artesian.codec import encode
from artesian.core import Notebook, Upload
from artesian.errors import Busy, SettingError, StorageError, StoreDamaged, StoreMismatch, TooSlow, Unauthorized
from artesian.params import seal
from artesian.recipes import recipe
from artesian.server.app import create_app, decode_task
from artesian.server.federation import Federation
from artesian.server.guard import Guard, Tokens, fingerprint
from artesian.server.intake import Announced, Intake
from artesian.server.service import Service
from artesian.server.settings import Settings
from artesian.server.store import SNAPSHOTS, Store
from artesian.serving import describe, first_tokens, load_federation
from artesian.testing import ToyModel, ToyWorld

MODEL, WORLD = ToyModel(), ToyWorld(8)
SECRET = "a secret of sixteen"


def federation(algorithm=None, **options) -> Federation:
    proxies = {k: MODEL.learner(s.x, s.y) for k, s in WORLD.proxies(0).items()}
    return Federation(MODEL, algorithm or CDFL(), proxies, [MODEL.start(0), MODEL.start(1)], name="toy", **options)


class Server:
    """The whole application in process, with a store, tokens and settings."""

    def __init__(self, folder: Path, algorithm=None, settings: Settings | None = None) -> None:
        self.store = Store(folder, federation(algorithm).identity)
        self.service = Service.open(federation(algorithm), self.store, snapshot_every=3)
        self.tokens = Tokens(folder / "tokens.json")
        names = {token.name for token in self.tokens.all()}
        self.enrol = self.tokens.make("enrol", f"e{len(names)}")
        self.admin = self.tokens.make("admin", f"a{len(names)}")
        self.app = create_app(self.service, Guard(self.tokens, self.store), settings)

    def ask(self, method: str, path: str, token: str = "", **body) -> httpx.Response:
        async def send() -> httpx.Response:
            transport = httpx.ASGITransport(app=self.app)
            headers = {"authorization": f"Bearer {token}"} if token else {}
            async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
                return await client.request(method, path, headers={**headers, **body.pop("headers", {})}, **body)

        return asyncio.run(send())

    def join(self, client: str = "c0", secret: str = SECRET) -> httpx.Response:
        return self.ask("PUT", f"/v1/clients/{client}", self.enrol, json={"samples": 5, "secret": secret})

    def close(self) -> None:
        self.service.close()


@pytest.fixture
def server(tmp_path):
    served = Server(tmp_path / "store")
    yield served
    served.close()


def answer(client: str, data: bytes) -> bytes:
    """A client's upload to the task in these bytes."""
    task = decode_task(data)
    visit = WORLD.visit(0, client, task.number)
    learner = MODEL.learner(visit.train.x, visit.train.y)
    fit = recipe(task.recipe).fit(MODEL.layout, client, task, learner, Notebook())
    return encode("upload", fit.upload)


def test_a_client_joins_uploads_and_survives_a_restart(tmp_path) -> None:
    server = Server(tmp_path / "store")
    task = server.join()
    reply = server.ask("PUT", "/v1/clients/c0/uploads/1", SECRET, content=answer("c0", task.content))
    assert reply.status_code == 200
    before = server.service.coordinator.digest()
    server.close()
    again = Server(tmp_path / "store")
    assert again.service.coordinator.digest() == before
    assert again.ask("GET", "/v1/clients/c0/task", SECRET).content == reply.content
    retry = again.ask("PUT", "/v1/clients/c0/uploads/1", SECRET, content=answer("c0", task.content))
    assert retry.content == reply.content
    assert again.join().content == reply.content  # with the same secret
    again.close()


BAD = [
    {},
    {"authorization": ""},
    {"authorization": "Bearer"},
    {"authorization": "Bearer "},
    {"authorization": "Bearer wrong"},
    {"authorization": f"Basic {SECRET}"},
    {"authorization": SECRET},
    {"authorization": f"Bearer {SECRET} more"},
    {"authorization": f"Bearer {SECRET[:-1]}"},
    {"authorization": f"Bearer {fingerprint(SECRET)}"},
    {"authorization": "Bearer artesian_enrol_"},
    {"authorization": "Bearer null"},
    {"authorization": "Bearer ' OR 1=1 --"},
]
OPEN = {"/healthz", "/readyz"}


@pytest.mark.parametrize("headers", BAD, ids=str)
def test_every_route_but_the_probes_answers_401_to_a_bad_credential(server, headers) -> None:
    server.join()
    before = server.service.coordinator.digest()
    walked = 0
    for route in server.app.routes:
        path = route.path.replace("{client}", "c0").replace("{number}", "1")
        for method in route.methods:
            status = server.ask(method, path, headers=headers, content=b"{}").status_code
            assert status == (200 if route.path in OPEN else 401), (method, path)
            walked += 1
    assert walked >= 8
    assert server.service.coordinator.digest() == before


@pytest.mark.parametrize(
    "path", ["/v1/clients/c0/uploads/abc", "/v1/clients/c0/uploads/-1", f"/v1/clients/c0/uploads/{'9' * 5000}"]
)
def test_a_malformed_number_tells_strangers_nothing_and_members_what_is_wrong(server, path) -> None:
    task = server.join().content
    assert server.ask("PUT", path, content=b"x").status_code == 401
    told = server.ask("PUT", path, SECRET, content=answer("c0", task))
    assert (told.status_code, told.json()["error"]) == (400, "BadFormat")


@pytest.mark.parametrize("wait", ["abc", "nan", "inf", "-1"])
def test_a_malformed_wait_tells_strangers_nothing_and_members_what_is_wrong(server, wait) -> None:
    server.join()
    assert server.ask("GET", f"/v1/clients/c0/task?wait={wait}").status_code == 401
    told = server.ask("GET", f"/v1/clients/c0/task?wait={wait}", SECRET)
    assert (told.status_code, told.json()["error"]) == (400, "BadFormat")


def test_nobody_acts_as_another_and_tokens_do_not_act_as_clients(server) -> None:
    task = server.join("c0", SECRET).content
    server.join("c1", "another secret of mine")
    for credential in ("another secret of mine", server.enrol, server.admin):
        assert server.ask("GET", "/v1/clients/c0/task", credential).status_code == 401
        assert server.ask("PUT", "/v1/clients/c0/uploads/1", credential, content=answer("c0", task)).status_code == 401
        assert server.ask("DELETE", "/v1/clients/c0", credential).status_code == 401
    assert server.join("c0", "not the secret it was").status_code == 401
    assert server.join("c2", "short").status_code == 401
    assert server.ask("GET", "/metrics", server.enrol).status_code == 401
    assert server.service.coordinator.state.version == 0


def test_a_refused_join_leaves_no_secret_behind(server) -> None:
    body = {"samples": -1, "secret": "the secret of a liar"}
    assert server.ask("PUT", "/v1/clients/c0", server.enrol, json=body).status_code == 422
    assert server.join("c0", SECRET).status_code == 200
    assert server.join("c1", "geheimnis mit ümlaut").status_code == 401


def test_two_first_joins_at_once_are_one_client(server) -> None:
    async def both() -> list[int]:
        transport = httpx.ASGITransport(app=server.app)
        headers = {"authorization": f"Bearer {server.enrol}"}
        async with httpx.AsyncClient(transport=transport, base_url="http://test", headers=headers) as http:
            bodies = [{"samples": 5, "secret": secret} for secret in (SECRET, "the secret of another")]
            replies = await asyncio.gather(*(http.put("/v1/clients/c0", json=body) for body in bodies))
        return sorted(reply.status_code for reply in replies)

    assert asyncio.run(both()) == [200, 401]


def test_a_revoked_or_rotated_token_opens_nothing_at_once(server) -> None:
    (enrol,) = (t.name for t in server.tokens.all() if t.scope == "enrol")
    fresh = server.tokens.rotate(enrol)
    assert server.join().status_code == 401
    server.enrol = fresh
    assert server.join().status_code == 200
    server.tokens.revoke(enrol)
    assert server.join().status_code == 401


def test_tokens_are_kept_as_hashes_and_named_once(tmp_path) -> None:
    tokens = Tokens(tmp_path / "tokens.json")
    text = tokens.make("enrol", "mine")
    assert text not in (tmp_path / "tokens.json").read_text()
    assert Tokens(tmp_path / "tokens.json").allows(text, "enrol")
    assert not tokens.allows(text, "admin")
    with pytest.raises(SettingError, match="used once"):
        tokens.make("admin", "mine")
    with pytest.raises(SettingError, match="did you mean 'mine'"):
        tokens.revoke("min")
    (tmp_path / "tokens.json").write_text("{")
    with pytest.raises(StorageError, match="holds tokens"):
        Tokens(tmp_path / "tokens.json").all()


def test_secrets_appear_nowhere_on_disk_or_in_answers(tmp_path) -> None:
    server = Server(tmp_path / "store")
    said = [server.join().text]
    said += [server.ask("GET", "/metrics", server.admin).text, server.ask("GET", "/v1/clients/c0/task", "x" * 30).text]
    server.close()
    files = b"".join(path.read_bytes() for path in (tmp_path / "store").rglob("*") if path.is_file())
    for secret in (SECRET, server.enrol, server.admin):
        assert secret.encode() not in files
        assert not any(secret in text for text in said)


def test_metrics_and_the_description_are_for_those_who_may(server) -> None:
    server.join()
    told = server.ask("GET", "/metrics", server.admin).text
    assert "artesian_members 1.0" in told
    assert "artesian_open_tasks 1.0" in told
    paths = server.ask("GET", "/v1/openapi.json", server.enrol).json()["paths"]
    assert "/v1/clients/{client}/uploads/{number}" in paths
    assert server.ask("GET", "/v1/federation", server.enrol).json()["algorithm"] == "cdfl"


def test_a_body_that_is_too_large_missing_its_length_or_lying_is_refused(server) -> None:
    task = server.join().content
    path, body = "/v1/clients/c0/uploads/1", answer("c0", task)
    large = server.ask("PUT", path, SECRET, headers={"content-length": "999999999"}, content=b"x")
    assert (large.status_code, large.json()["error"]) == (413, "TooLarge")

    async def chunks():
        yield body

    assert server.ask("PUT", path, SECRET, content=chunks()).status_code == 400  # no length
    short = server.ask("PUT", path, SECRET, headers={"content-length": str(len(body) + 5)}, content=body)
    assert short.status_code == 400
    over = server.ask("PUT", path, SECRET, headers={"content-length": str(len(body) - 5)}, content=body)
    assert over.status_code == 400
    huge = server.ask("PUT", "/v1/clients/c9", server.enrol, content=b"x" * 100_000)
    assert huge.status_code == 413
    assert server.service.coordinator.state.version == 0


def test_a_slow_body_runs_out_of_time() -> None:
    async def drip():
        yield b"a"
        await asyncio.sleep(5)

    intake = Intake(Settings(grace=0.05, slowest=1e9), MODEL.layout, 1)
    with pytest.raises(TooSlow, match="1 of 10 bytes in time"):
        asyncio.run(intake.receive(Announced(10), drip()))
    assert intake.in_flight == 0


def test_bytes_in_flight_are_bounded() -> None:
    intake, most = Intake(Settings(bytes_in_flight=100), MODEL.layout, 1), 0

    async def slow():
        nonlocal most
        await asyncio.sleep(0.05)
        most = max(most, intake.in_flight)
        yield b"x" * 80

    async def one(client: str):
        async with intake.one(client, 80):
            return await intake.receive(Announced(80), slow())

    async def all_at_once():
        return await asyncio.gather(one("a"), one("b"), one("c"), one("a"), return_exceptions=True)

    *taken, second = asyncio.run(all_at_once())
    assert taken == [b"x" * 80] * 3  # one after the other
    assert "one upload at a time" in str(second)
    assert (most, intake.in_flight) == (80, 0)


def test_who_finds_no_room_in_time_is_told_to_come_back_and_leaves_no_trace() -> None:
    intake = Intake(Settings(bytes_in_flight=100, grace=0.05), MODEL.layout, 1)

    async def both():
        async with intake.room(80):
            with pytest.raises(Busy, match="fit into memory"):
                async with intake.room(80):
                    raise AssertionError("there is no room")
            waiting = asyncio.create_task(enter(80))
            await asyncio.sleep(0)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
        assert intake.in_flight == 0
        await enter(300)  # alone, anything fits

    async def enter(length):
        async with intake.room(length):
            assert intake.in_flight == length

    asyncio.run(both())
    assert intake.in_flight == 0


def test_a_client_that_comes_too_often_is_told_when_to_come_back(tmp_path) -> None:
    server = Server(tmp_path / "store", settings=Settings(uploads_per_minute=2))
    body = server.join().content
    seen = []
    for number in range(1, 4):
        reply = server.ask("PUT", f"/v1/clients/c0/uploads/{number}", SECRET, content=answer("c0", body))
        seen.append(reply.status_code)
        body = reply.content
    assert seen == [200, 200, 429]
    assert int(reply.headers["retry-after"]) > 0
    server.close()


def test_a_full_disk_is_507_changes_nothing_and_passes(server, monkeypatch) -> None:
    task = server.join().content
    before = server.service.coordinator.digest()

    def no_space(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", no_space)
        reply = server.ask("PUT", "/v1/clients/c0/uploads/1", SECRET, content=answer("c0", task))
        assert (reply.status_code, reply.json()["error"]) == (507, "StorageError")
        assert server.service.coordinator.digest() == before
        assert server.ask("GET", "/v1/clients/c0/task", SECRET).content == task  # reads are still served
    assert server.ask("PUT", "/v1/clients/c0/uploads/1", SECRET, content=answer("c0", task)).status_code == 200


def test_rounds_work_behind_the_guard(tmp_path) -> None:
    server = Server(tmp_path / "store", FedAvg(clients_per_round=2))
    assert server.join("c0").status_code == 202
    assert server.join("c1", "another secret of mine").status_code == 200
    task = server.ask("GET", "/v1/clients/c0/task?wait=5", SECRET).content
    assert server.ask("PUT", "/v1/clients/c0/uploads/1", SECRET, content=answer("c0", task)).status_code == 202
    assert server.ask("GET", "/v1/clients/c0/task", SECRET).status_code == 204
    assert server.ask("DELETE", "/v1/clients/c0", SECRET).status_code == 204
    server.close()


def test_a_round_goes_on_without_whoever_is_out_of_patience(tmp_path) -> None:
    server = Server(tmp_path / "store", FedAvg(clients_per_round=2, quorum=1, patience=0.2))
    task = server.join("c0").content  # a cohort of one begins at once
    server.join("c1", "another secret of mine")

    async def watched() -> None:
        watching = asyncio.create_task(server.service.watch())
        await asyncio.sleep(0.6)
        watching.cancel()

    asyncio.run(watched())
    assert server.service.coordinator.state.members["c0"].receipt is None
    late = server.ask("PUT", "/v1/clients/c0/uploads/1", SECRET, content=answer("c0", task))
    assert (late.status_code, late.json()["error"]) == (409, "TaskClosed")
    assert [event.kind for event in server.store.events()].count("expiry") >= 1
    before = server.service.coordinator.digest()
    server.close()
    again = Server(tmp_path / "store", FedAvg(clients_per_round=2, quorum=1, patience=0.2))
    assert again.service.coordinator.digest() == before
    again.close()


def test_a_store_that_lost_its_snapshot_is_not_begun_afresh(tmp_path) -> None:
    server = Server(tmp_path / "store")
    server.join()
    server.close()
    store = Store(tmp_path / "store", federation().identity)
    store._db.execute(SNAPSHOTS.delete())
    store._db.commit()
    blobs = len(list((tmp_path / "store" / "blobs").iterdir()))
    with pytest.raises(StoreDamaged, match="none for 1 events"):
        Service.open(federation(), store)
    assert len(list((tmp_path / "store" / "blobs").iterdir())) == blobs
    store.close()


def test_a_client_that_sends_the_largest_numbers_blocks_nobody(tmp_path) -> None:
    server = Server(tmp_path / "store", FedBuff(buffer_size=3))
    bodies = {name: server.join(name, f"the secret of {name} here").content for name in ("evil", "c0")}
    for turn in range(9):
        name = "evil" if turn < 5 else "c0"
        task = decode_task(bodies[name])
        large = seal(np.full(MODEL.layout.size, 9.9e17, np.float32))
        upload = Upload(name, task.number, 1, {"k0": large if name == "evil" else task.models["k0"] * np.float32(0)})
        path = f"/v1/clients/{name}/uploads/{task.number}"
        reply = server.ask("PUT", path, f"the secret of {name} here", content=encode("upload", upload))
        assert reply.status_code == 200, reply.text
        bodies[name] = reply.content
    server.close()


@pytest.mark.parametrize("shape", [[1] * 65, [0, 2**62, 4], [2**63, 0]])
def test_a_shape_that_cannot_be_is_refused(server, shape) -> None:
    server.join()
    text = json.dumps({"format": 1, "kind": "upload", "body": {}})
    head = {"__metadata__": {"artesian": text}, "x": {"dtype": "F32", "shape": shape, "data_offsets": [0, 0]}}
    data = json.dumps(head).encode()
    body = len(data).to_bytes(8, "little") + data
    assert server.ask("PUT", "/v1/clients/c0/uploads/1", SECRET, content=body).status_code == 400


def test_odd_joins_names_and_metrics_are_refused(server) -> None:
    assert server.ask("PUT", "/v1/clients/c0", server.enrol, content=b"[" * 16000).status_code == 422
    odd = {"samples": 5, "secret": [None, None, None]}
    assert server.ask("PUT", "/v1/clients/c0", server.enrol, json=odd).status_code == 422
    task = decode_task(server.join().content)
    many = {f"m{i}": 1.0 for i in range(65)}
    upload = Upload("c0", 1, 5, {"blend": task.models["blend"]}, metrics=many)
    path = "/v1/clients/c0/uploads/1"
    assert server.ask("PUT", path, SECRET, content=encode("upload", upload)).status_code == 422
    tensors = replace(upload, metrics={}, models={f"k{i}": task.models["blend"] for i in range(3)})
    told = server.ask("PUT", path, SECRET, content=encode("upload", tensors))
    assert "2 tensors at most" in told.json()["rule"]


def test_another_federation_is_refused_and_a_store_describes_itself(tmp_path) -> None:
    server = Server(tmp_path / "store")
    server.join()
    server.close()
    with pytest.raises(StoreMismatch, match="another algorithm"):
        Store(tmp_path / "store", federation(FedAvg()).identity)
    told = describe(tmp_path / "store")
    assert (told["name"], told["events"], told["members"][0]["client"]) == ("toy", 1, "c0")
    assert told["last"] == [{"kind": "join", "client": "c0"}]
    assert (tmp_path / "store").stat().st_mode & 0o077 == 0
    with pytest.raises(SettingError, match=r"folder with artesian\.db"):
        describe(tmp_path)


def test_the_first_start_makes_tokens_and_later_ones_do_not(tmp_path, capsys) -> None:
    tokens = first_tokens(tmp_path)
    shown = capsys.readouterr().err
    assert [token.scope for token in tokens.all()] == ["enrol", "admin"]
    assert tokens.allows(shown.splitlines()[0].split()[-1], "enrol")
    first_tokens(tmp_path)
    assert capsys.readouterr().err == ""


def test_a_federation_is_a_value_or_a_function(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    (tmp_path / "served.py").write_text(APP)
    assert load_federation("served:federation").name == "toy"
    assert load_federation("served:make").name == "toy"
    with pytest.raises(SettingError, match="is a Federation"):
        load_federation("served:MODEL")
    with pytest.raises(SettingError, match="makes a Federation"):
        load_federation("served:broken")
    with pytest.raises(SettingError, match="imported"):
        load_federation("served:nothing")


def test_guards_compare_whole_secrets(tmp_path) -> None:
    store = Store(tmp_path, {"a": 1})
    guard = Guard(Tokens(tmp_path / "tokens.json"), store)
    assert guard.is_new("ann", SECRET)
    guard.keep("ann", SECRET)
    assert not guard.is_new("ann", SECRET)
    guard.client(SECRET, "ann")
    for wrong in ("", SECRET + "x", SECRET[:-1]):
        with pytest.raises(Unauthorized):
            guard.client(wrong, "ann")
    with pytest.raises(Unauthorized):
        guard.client("", "nobody")
    store.close()


# a real server

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


class Process:
    """A server process on a port of its own."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.folder = folder
        (folder / "served.py").write_text(APP)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.options = options
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-m", "artesian.cli", "serve", "served:federation", "--store", "store"]
        command += ["--port", str(self.port), "--set", "snapshot_every=7", *self.options]
        self.log = open(self.folder / "log", "ab")  # noqa: SIM115
        self.process = subprocess.Popen(command, cwd=self.folder, stderr=self.log, stdout=self.log)
        end = time.monotonic() + 30
        while not self._up():
            assert self.process.poll() is None, (self.folder / "log").read_text()
            assert time.monotonic() < end
            time.sleep(0.02)

    def _up(self) -> bool:
        try:
            return self.request("GET", "/healthz")[0] == 200
        except OSError:
            return False

    def request(self, method: str, path: str, token: str = "", body: bytes | None = None) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        try:
            connection.request(method, path, body, {"authorization": f"Bearer {token}"} if token else {})
            reply = connection.getresponse()
            return reply.status, reply.read()
        except http.client.HTTPException as error:
            raise OSError(str(error)) from None
        finally:
            connection.close()

    def enrolment(self) -> str:
        text = (self.folder / "log").read_text()
        return next(line.split()[-1] for line in text.splitlines() if line.startswith("enrol token"))

    def stop(self, number: int = signal.SIGKILL) -> int:
        self.process.send_signal(number)
        code = self.process.wait(timeout=30)
        self.log.close()
        return code


class Client(threading.Thread):
    """Joins, uploads when it can, asks for its task before it sends again; writes down what was acknowledged."""

    def __init__(self, server: Process, name: str, enrolment: str, stop: threading.Event) -> None:
        super().__init__()
        self.server, self.client, self.enrolment, self.stopped = server, name, enrolment, stop
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
        joined = json.dumps({"samples": 5, "secret": f"secret of {self.client} is long"}).encode()
        status, task = self.server.request("PUT", f"/v1/clients/{self.client}", self.enrolment, joined)
        assert status == 200, (status, task)
        while not self.stopped.is_set():
            body, number = answer(self.client, task), decode_task(task).number
            path = f"/v1/clients/{self.client}/uploads/{number}"
            status, task = self.server.request("PUT", path, f"secret of {self.client} is long", body)
            assert status == 200, (status, task)
            self.acknowledged.append(number)


def test_killed_again_and_again_under_clients_the_server_loses_nothing(tmp_path) -> None:
    """Six lives of a real server under four clients: every acknowledged upload is in the store, none twice."""
    server, stop = Process(tmp_path), threading.Event()
    clients = [Client(server, f"c{i}", server.enrolment(), stop) for i in range(4)]
    try:
        for client in clients:
            client.start()
        for life in range(6):
            time.sleep(0.3 + 0.05 * life)
            server.stop()
            server.start()
        time.sleep(0.3)
    finally:
        stop.set()
        for client in clients:
            client.join()
        code = server.stop(signal.SIGTERM)
    assert code == 0
    assert not [client.failed for client in clients if client.failed]
    told = {member["client"]: member["answered"] for member in describe(tmp_path / "store")["members"]}
    assert sum(len(client.acknowledged) for client in clients) > 20
    for client in clients:
        assert len(set(client.acknowledged)) == len(client.acknowledged)
        assert max(client.acknowledged) <= told[client.client] <= max(client.acknowledged) + 1
    store = Store(tmp_path / "store", federation().identity)
    uploads = [(e.client, e.measured.upload.number) for e in events_without_arrays(store) if e.kind == "upload"]
    assert len(set(uploads)) == len(uploads)
    assert {(c.client, n) for c in clients for n in c.acknowledged} <= set(uploads)
    store.close()


def events_without_arrays(store: Store):
    """Raw uploads are gone after a snapshot; who uploaded what is not."""
    from artesian.codec import from_tree, gather
    from artesian.core import Event
    from artesian.server.store import EVENTS

    blank = MODEL.start(0)
    for record in store._db.execute(EVENTS.select().order_by(EVENTS.c.number)):
        yield from_tree(Event, gather(json.loads(record.record), "$blob", lambda _: blank))


def test_two_servers_do_not_share_a_store(tmp_path) -> None:
    server = Process(tmp_path)
    command = [sys.executable, "-m", "artesian.cli", "serve", "served:federation", "--store", "store", "--port", "0"]
    told = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert told.returncode == 2
    assert "held by another" in told.stderr
    assert server.stop(signal.SIGTERM) == 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--host", "0.0.0.0"], "plain HTTP stays on this machine"),
        (["--tls-cert", "x"], "go together"),
        (["--set", "snapshot_evry=3"], "did you mean 'snapshot_every'?"),
        (["--set", "snapshot_every=0"], "at least 1"),
    ],
)
def test_a_server_that_is_asked_for_the_wrong_thing_says_so(tmp_path, options, words) -> None:
    (tmp_path / "served.py").write_text(APP)
    command = [sys.executable, "-m", "artesian.cli", "serve", "served:federation", "--store", "store", *options]
    told = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert told.returncode == 2, told.stderr
    assert words in " ".join(told.stderr.split())
    assert not (tmp_path / "store").exists()


def test_https_with_a_certificate(tmp_path) -> None:
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    made += [
        "-addext",
        "subjectAltName=IP:127.0.0.1",
        "-keyout",
        str(tmp_path / "key.pem"),
        "-out",
        str(tmp_path / "cert.pem"),
    ]
    subprocess.run(made, check=True, capture_output=True)
    (tmp_path / "served.py").write_text(APP)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [
        sys.executable,
        "-m",
        "artesian.cli",
        "serve",
        "served:federation",
        "--store",
        "store",
        "--port",
        str(port),
    ]
    command += ["--tls-cert", "cert.pem", "--tls-key", "key.pem"]
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.DEVNULL)
    try:
        context = ssl.create_default_context(cafile=str(tmp_path / "cert.pem"))
        end = time.monotonic() + 30
        while True:
            try:
                assert httpx.get(f"https://127.0.0.1:{port}/healthz", verify=context).status_code == 200
                break
            except httpx.TransportError:
                assert time.monotonic() < end
                time.sleep(0.05)
        with pytest.raises(httpx.TransportError):
            httpx.get(f"http://127.0.0.1:{port}/healthz")
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=30)


def test_federations_without_start_models_begin_with_a_fresh_one(tmp_path) -> None:
    single = replace(federation(FedAvg()), start=(), proxies={})
    assert list(single.begin().state.clusters) == ["k0"]
    assert single.settings["algorithm"]["clients_per_round"] == 10
