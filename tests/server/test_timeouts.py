"""Connections of a real uvicorn: no wait without an end, uploads that go on where they broke off, lines in the log."""

import asyncio
import base64
import hashlib
import json
import logging
import socket
import threading
import time
from pathlib import Path

import httpx
import numpy as np
import pytest
import uvicorn
from starlette.datastructures import Headers

from artesian.algorithms import CDFL, FedAvg
from artesian.core import Upload
from artesian.errors import UnknownEncoding
from artesian.learners.arrays import LinearRegression
from artesian.server.app import create_app
from artesian.server.auth import Auth, Tokens
from artesian.server.crowding import SPARE, Crowd
from artesian.server.federation import Federation
from artesian.server.limits import check_encoding
from artesian.server.log import CONNECTIONS, REQUESTS, _Json, _Text
from artesian.server.messages import decode_task
from artesian.server.service import Service
from artesian.server.settings import Settings
from artesian.server.timeouts import connections
from artesian.storage.codec import encode
from artesian.storage.store import Store

SECRET = "a secret of sixteen"
FEATURES = 2_000_000  # 8 MB: more than a socket's buffers take


class Served:
    """A server with a large model, in a thread."""

    def __init__(self, folder: Path, algorithm, features: int, **settings) -> None:
        model = LinearRegression(features)
        few = model.learner(np.zeros((1, features), np.float32), np.zeros(1, np.float32))
        start = [model.start(i) for i in range(2)]
        federation = Federation(model, algorithm, {"k0": few, "k1": few}, start)
        store = Store(folder, federation.identity)
        self.service, limits = Service.open(federation, store), Settings(**settings)
        tokens = Tokens(folder / "tokens.json")
        self.enrol, self.admin = tokens.make("enrol", "e"), tokens.make("admin", "a")
        crowd = Crowd(limits)
        app = create_app(self.service, Auth(tokens, store), limits, crowd=crowd)
        config = uvicorn.Config(app, http=connections(limits, crowd), ws="none", log_config=None, timeout_keep_alive=1)
        self.server = uvicorn.Server(config)
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.port = self.socket.getsockname()[1]
        self.thread = threading.Thread(target=lambda: asyncio.run(self._run()))
        self.thread.start()
        until(lambda: self.server.started)
        self.url = f"http://127.0.0.1:{self.port}"

    async def _run(self) -> None:
        self.loop = asyncio.get_running_loop()
        await self.server.serve(sockets=[self.socket])

    def ask(self, method: str, path: str, token: str = SECRET, **options) -> httpx.Response:
        headers = {"authorization": f"Bearer {token}", **options.pop("headers", {})}
        return httpx.request(method, self.url + path, headers=headers, timeout=30, **options)

    def join(self) -> bytes:
        return self.ask("PUT", "/v1/clients/c0", self.enrol, json={"samples": 5, "secret": SECRET}).content

    def connect(self, data: bytes = b"") -> socket.socket:
        opened = socket.create_connection(("127.0.0.1", self.port), timeout=20)
        opened.sendall(data)
        return opened

    def stop(self) -> None:
        self.server.should_exit = True
        asyncio.run_coroutine_threadsafe(self.service.stop(), self.loop)  # long polls end
        self.thread.join(timeout=20)
        assert not self.thread.is_alive()


def until(holds, seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.fixture
def serve(tmp_path):
    opened = []

    def make(algorithm=None, features: int = FEATURES, **settings) -> Served:
        opened.append(Served(tmp_path / f"store{len(opened)}", algorithm or CDFL(), features, **settings))
        return opened[-1]

    yield make
    for served in opened:
        served.stop()


def head(method: str, path: str, *lines: str) -> bytes:
    return "\r\n".join([f"{method} {path} HTTP/1.1", "host: x", *lines, "", ""]).encode()


AUTHORIZED = f"authorization: Bearer {SECRET}"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"GET /healthz HT",
        head("GET", "/healthz") + b"GET /healthz HTTP/1.1\r\nho",
        head("GET", "/healthz", "content-length: 100000") + b"x" * 10,
    ],
    ids=["idle", "half a head", "half a second head", "a body nobody asked for"],
)
def test_who_sends_no_whole_request_is_cut_off(serve, data) -> None:
    served = serve(features=5, grace=0.2)
    opened = served.connect(data)
    try:
        while opened.recv(1 << 16):
            pass
    except ConnectionResetError:
        pass
    opened.close()
    assert served.ask("GET", "/healthz").status_code == 200


def test_a_body_must_keep_its_pace_from_the_start(serve) -> None:
    served = serve(grace=0.3)
    served.join()
    path = "/v1/clients/c0/uploads/1"
    opened = served.connect(head("PUT", path, AUTHORIZED, "content-length: 8000000") + b"x" * 100)
    began = time.monotonic()
    told = b""
    while b"}" not in told and (chunk := opened.recv(1 << 16)):
        told += chunk
    assert b" 408 " in told
    assert b"Only 100 of 8000000 bytes arrived in time" in told
    assert time.monotonic() - began < 8000000 / 20000 / 10  # not when the whole body would have been late
    opened.close()


def test_who_never_reads_its_answer_is_cut_off_and_holds_no_room(serve) -> None:
    served = serve(grace=0.3, slowest=1e9)
    served.join()
    assert served.ask("GET", "/metrics", served.admin).status_code == 200  # a first, slow check of the credential
    opened = socket.socket()
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    opened.connect(("127.0.0.1", served.port))
    opened.sendall(head("GET", "/v1/clients/c0/task", AUTHORIZED))

    def in_flight() -> float:
        told = served.ask("GET", "/metrics", served.admin).text
        return next(float(line.split()[1]) for line in told.splitlines() if line.startswith("artesian_bytes_in"))

    until(lambda: in_flight() > 0)
    until(lambda: in_flight() == 0)
    received = 0
    try:
        while chunk := opened.recv(1 << 20):
            received += len(chunk)
    except ConnectionResetError:
        pass
    assert received < FEATURES * 4
    opened.close()


def test_a_silent_connection_makes_room_and_a_busy_one_does_not(serve) -> None:
    served = serve(FedAvg(clients_per_round=2), features=5, connections=3, grace=30)
    silent = [served.connect() for _ in range(3 + SPARE)]
    until(lambda: len(served.server.server_state.connections) == 3 + SPARE)
    served.join()  # in place of the one that was silent longest
    assert silent[0].recv(1) == b""
    polls = [served.connect(head("GET", "/v1/clients/c0/task?wait=20", AUTHORIZED)) for _ in range(3)]
    until(lambda: len(served.server.server_state.tasks) == 3)
    told = served.ask("GET", "/v1/federation", served.enrol)
    assert (told.status_code, told.json()["error"], told.headers["connection"]) == (429, "Busy", "close")
    assert int(told.headers["retry-after"]) > 0
    assert served.ask("GET", "/healthz").status_code == served.ask("GET", "/readyz").status_code == 200
    for opened in (*silent, *polls):
        opened.close()


def test_an_address_and_a_client_have_limits_of_their_own(serve) -> None:
    served = serve(FedAvg(clients_per_round=2), features=5, connections_per_address=3, requests_per_client=2)
    served.join()
    polls = [served.connect(head("GET", "/v1/clients/c0/task?wait=20", AUTHORIZED)) for _ in range(2)]
    until(lambda: len(served.server.server_state.tasks) == 2)
    third = served.ask("GET", "/v1/clients/c0/task?wait=20")
    assert (third.status_code, third.json()["rule"]) == (429, "Too many requests of this client are under way")
    slow = head("PUT", "/v1/clients/c1", f"authorization: Bearer {served.enrol}", "content-length: 50")
    polls.append(served.connect(slow))
    until(lambda: len(served.server.server_state.tasks) == 3)
    fourth = served.ask("GET", "/v1/federation", served.enrol)
    assert (fourth.status_code, fourth.json()["rule"]) == (429, "Too many requests of this address are under way")
    assert served.ask("GET", "/healthz").status_code == 200
    for opened in polls:
        opened.close()


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"\x16\x03\x01 not HTTP\r\n\r\n", b" 400 "),
        (head("PUT", "/v1/clients/c0/uploads/1", AUTHORIZED, "transfer-encoding: chunked") + b"zz\r\n", b" 400 "),
        (head("GET", "/healthz", "content-length: 5", "content-length: 6"), b" 400 "),
    ],
    ids=["no HTTP", "a malformed chunk", "two lengths"],
)
def test_bytes_that_are_not_http_are_one_line_with_the_address(serve, caplog, data, status) -> None:
    served = serve(features=5)
    with caplog.at_level(logging.INFO):
        opened = served.connect(data)
        told = b""
        while chunk := opened.recv(1 << 16):
            told += chunk
        opened.close()
    assert status in told
    lines = [_Text().format(record) for record in caplog.records if record.name == CONNECTIONS.name]
    assert len(lines) == 1 and 'bad request address="127.0.0.1"' in lines[0]
    assert "Traceback" not in caplog.text
    assert "artesian_bad_requests 1.0" in served.ask("GET", "/metrics", served.admin).text


def test_a_body_whose_end_is_told_in_two_ways_is_refused_and_the_connection_closed(serve) -> None:
    served = serve(features=5)
    both = head("PUT", "/v1/clients/c0/uploads/1", AUTHORIZED, "content-length: 4", "transfer-encoding: chunked")
    opened = served.connect(both + b"0\r\n\r\nGET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")
    told = b""
    try:
        while chunk := opened.recv(1 << 16):
            told += chunk
    except ConnectionResetError:
        pass
    opened.close()
    assert told.startswith(b"HTTP/1.1 400") and told.count(b"HTTP/1.1") == 1
    assert b"Content-Length and a Transfer-Encoding" in told


def test_a_compressed_body_and_a_wrong_method_get_their_own_status(serve) -> None:
    served = serve(features=5)
    served.join()
    told = served.ask("PUT", "/v1/clients/c0/uploads/1", content=b"x", headers={"content-encoding": "gzip"})
    assert (told.status_code, told.json()["error"]) == (415, "UnknownEncoding")
    wrong = served.ask("POST", "/v1/federation")
    assert (wrong.status_code, wrong.json()["error"], wrong.headers["allow"]) == (405, "UnknownRoute", "GET")
    assert served.ask("GET", "/v2").status_code == 404
    several = served.ask("PATCH", "/v1/clients/c0")
    assert (several.status_code, several.headers["allow"]) == (405, "DELETE, PUT")
    assert served.ask("POST", "/v1/clients/c0/uploads/1").headers["allow"] == "HEAD, PUT"


def test_every_content_encoding_that_is_said_counts() -> None:
    check_encoding(Headers(raw=[(b"content-encoding", b"identity")]))
    with pytest.raises(UnknownEncoding):
        check_encoding(Headers(raw=[(b"content-encoding", b"identity"), (b"content-encoding", b"gzip")]))


def test_joins_and_refusals_of_an_address_are_rare(serve) -> None:
    served = serve(features=5, joins_per_minute=2, refusals_per_minute=4)
    served.join()
    served.join()
    third = served.ask("PUT", "/v1/clients/c2", served.enrol, json={"samples": 5, "secret": SECRET})
    assert (third.status_code, third.headers["retry-after"]) == (429, "5")
    said = [served.ask("GET", "/v1/clients/c0/task", f"wrong {turn}").status_code for turn in range(6)]
    assert said == [401] * 4 + [429] * 2
    assert served.ask("GET", "/v2", "wrong").status_code == 429
    assert served.ask("GET", "/v1/clients/c0/task").status_code == 200  # its secret was checked before
    assert served.ask("GET", "/healthz").status_code == 200


def test_latencies_statuses_and_reasons_are_in_the_metrics(serve) -> None:
    served = serve(features=5)
    task = decode_task(served.join())
    assert "artesian_newest_upload_age_seconds" not in served.ask("GET", "/metrics", served.admin).text
    body = encode("upload", Upload("c0", 1, 5, {"blend": task.models["blend"]}))
    assert served.ask("PUT", "/v1/clients/c0/uploads/1", content=body).status_code == 200
    assert served.ask("GET", "/v1/clients/c0/task", "wrong").status_code == 401
    told = served.ask("GET", "/metrics", served.admin).text
    for line in (
        'artesian_request_seconds_count{route="/v1/clients/{client}/uploads/{number}"} 1.0',
        'artesian_responses_total{route="/v1/clients/{client}/task",status="401"} 1.0',
        'artesian_refusals_by_reason{reason="Unauthorized"} 1.0',
        'artesian_cluster_loss{cluster="k0"}',
        "artesian_newest_upload_age_seconds",
        "artesian_connections ",
        "artesian_connections_evicted 0.0",
    ):
        assert line in told, line


def announced(body: bytes) -> str:
    return f"repr-digest: sha-256=:{base64.b64encode(hashlib.sha256(body).digest()).decode()}:"


def test_an_upload_goes_on_where_it_broke_off(serve) -> None:
    served = serve()
    task = decode_task(served.join())
    body = encode("upload", Upload("c0", 1, 5, {"blend": task.models["blend"]}))
    path, cut = "/v1/clients/c0/uploads/1", 3_000_000
    assert served.ask("HEAD", path).headers["upload-offset"] == "0"
    opened = served.connect(head("PUT", path, AUTHORIZED, f"content-length: {len(body)}", announced(body)))
    opened.sendall(body[:cut])
    opened.close()
    until(lambda: served.ask("HEAD", path).headers["upload-offset"] == str(cut))
    told = served.ask("HEAD", path)
    assert f"repr-digest: {told.headers['repr-digest']}" == announced(body)
    name, _, digest = announced(body).partition(": ")
    rest = {name: digest, "content-range": f"bytes {cut}-{len(body) - 1}/{len(body)}"}
    elsewhere = {name: digest, "content-range": f"bytes {cut + 1}-{len(body) - 1}/{len(body)}"}
    wrong = served.ask("PUT", path, content=body[cut + 1 :], headers=elsewhere)
    assert (wrong.status_code, wrong.json()["error"]) == (409, "Conflict")
    other = {**rest, **dict([announced(b"another").split(": ", 1)])}
    assert served.ask("PUT", path, content=body[cut:], headers=other).status_code == 409
    reply = served.ask("PUT", path, content=body[cut:], headers=rest)
    assert reply.status_code == 200, reply.text
    assert decode_task(reply.content).number == 2
    assert served.ask("HEAD", path).headers["upload-offset"] == "0"
    again = served.ask("PUT", path, content=body[cut:], headers=rest)
    assert again.status_code == 409  # the part is gone
    assert (
        served.ask("PUT", path, content=body, headers={name: digest}).content == reply.content
    )  # a retry of the whole
    assert served.service.counts.uploads == 1


def test_a_body_that_is_not_the_one_announced_is_refused(serve) -> None:
    served = serve(features=5)
    task = decode_task(served.join())
    body = encode("upload", Upload("c0", 1, 5, {"blend": task.models["blend"]}))
    path = "/v1/clients/c0/uploads/1"
    told = served.ask("PUT", path, content=body, headers=dict([announced(b"another").split(": ", 1)]))
    assert (told.status_code, told.json()["error"]) == (400, "BadFormat")
    for header, text in (
        ("repr-digest", "md5=:abc:"),
        ("repr-digest", f"sha-256=:{'=' * 44}:"),
        ("content-range", "bytes 0-5/6"),
        ("content-range", f"bytes 1-{len(body)}/{len(body)}"),
        ("content-range", "bytes 5-1/2"),
        ("content-range", "chapters 1-2/3"),
    ):
        told = served.ask("PUT", path, content=body, headers={header: text})
        assert (told.status_code, told.json()["error"]) == (400, "BadFormat"), (header, text)
    assert served.service.counts.uploads == 0


def test_a_known_tag_is_answered_without_the_model(serve) -> None:
    served = serve(features=5)
    served.join()
    first = served.ask("GET", "/v1/clients/c0/task")
    again = served.ask("GET", "/v1/clients/c0/task", headers={"if-none-match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert served.ask("GET", "/v1/clients/c0/task", headers={"if-none-match": '"x"'}).content == first.content


def test_a_long_poll_is_sent_home_when_the_server_stops(serve) -> None:
    served = serve(FedAvg(clients_per_round=2), features=5)
    served.join()
    found: list[httpx.Response] = []
    waiting = threading.Thread(target=lambda: found.append(served.ask("GET", "/v1/clients/c0/task?wait=50")))
    waiting.start()
    until(lambda: served.server.server_state.tasks)
    began = time.monotonic()
    served.service.stopping.set()
    served.ask("PUT", "/v1/clients/c1", served.enrol, json={"samples": -1, "secret": SECRET})
    assert served.ask("GET", "/readyz").status_code == 503
    served.ask("PUT", "/v1/clients/c0", served.enrol, json={"samples": 5, "secret": SECRET})  # whoever changes wakes it
    waiting.join()
    assert found[0].status_code == 204
    assert time.monotonic() - began < 20


def test_every_request_is_one_line_without_secrets(serve, caplog) -> None:
    served = serve(features=5)
    with caplog.at_level(logging.INFO, REQUESTS.name):
        served.join()
        served.ask("GET", "/v1/clients/c0/task?wait=0&token=abc", "not the secret of c0")
        served.ask("GET", "/healthz")
        until(lambda: len(caplog.records) == 2)
    joined, refused = (json.loads(_Json().format(record)) for record in caplog.records)
    assert (joined["method"], joined["route"], joined["client"], joined["status"]) == (
        "PUT",
        "/v1/clients/{client}",
        "c0",
        200,
    )
    assert joined["sent"] > 100
    assert (refused["status"], refused["error"]) == (401, "Unauthorized")
    text = _Text().format(caplog.records[1])
    assert 'error="Unauthorized"' in text
    for secret in (SECRET, "not the secret", "token=abc", served.enrol):
        assert secret not in text + json.dumps([joined, refused])
    error = logging.LogRecord("x", logging.ERROR, "x", 1, "it failed", None, None)
    error.exc_info = (ValueError, ValueError("why"), None)
    assert "ValueError: why" in json.loads(_Json().format(error))["traceback"]
    assert "ValueError: why" in _Text().format(error)
