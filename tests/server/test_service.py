"""The service: who may do what, limits, durable answers; what it promises is proven in tests/promises."""

import asyncio
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
from dataclasses import replace

import httpx
import numpy as np
import pytest
from launching import launcher
from promises.federation import APP, MODEL, SECRET, Process, Server, answer, federation

from artesian.algorithms import FedAvg, FedBuff
from artesian.cli.operation import tokens_shown
from artesian.config.federations import load_federation
from artesian.core import Upload
from artesian.errors import Busy, SettingError, StorageError, StoreDamaged, StoreMismatch, TooSlow, Unauthorized
from artesian.params import seal
from artesian.server.auth import Auth, Tokens
from artesian.server.limits import Announced, Limits
from artesian.server.messages import decode_task
from artesian.server.serve import describe, first_tokens, say_tokens
from artesian.server.service import Service
from artesian.server.settings import Settings
from artesian.storage.codec import encode
from artesian.storage.store import Store
from artesian.storage.tables import SNAPSHOTS


@pytest.fixture
def server(tmp_path):
    served = Server(tmp_path / "store")
    yield served
    served.close()


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
    assert Tokens(tmp_path / "tokens.json").all()[0].may_be(text)
    with pytest.raises(SettingError, match="a token named 'mine' already"):
        tokens.make("admin", "mine")
    with pytest.raises(SettingError, match="Did you mean 'mine'"):
        tokens.revoke("min")
    (tmp_path / "tokens.json").write_text("{")
    with pytest.raises(StorageError, match="Cannot read the tokens"):
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

    limits = Limits(Settings(grace=0.05, slowest=1e9), MODEL.layout, 1)
    with pytest.raises(TooSlow, match="1 of 10 bytes arrived in time"):
        asyncio.run(limits.receive(Announced(10), drip()))
    assert limits.in_flight == 0


def test_bytes_in_flight_are_bounded() -> None:
    limits, most = Limits(Settings(bytes_in_flight=100), MODEL.layout, 1), 0

    async def slow():
        nonlocal most
        await asyncio.sleep(0.05)
        most = max(most, limits.in_flight)
        yield b"x" * 80

    async def one(client: str):
        async with limits.one(client, 80):
            return await limits.receive(Announced(80), slow())

    async def all_at_once():
        return await asyncio.gather(one("a"), one("b"), one("c"), one("a"), return_exceptions=True)

    *taken, second = asyncio.run(all_at_once())
    assert taken == [b"x" * 80] * 3  # one after the other
    assert "Another upload of this client" in str(second)
    assert (most, limits.in_flight) == (80, 0)


def test_who_finds_no_room_in_time_is_told_to_come_back_and_leaves_no_trace() -> None:
    limits = Limits(Settings(bytes_in_flight=100, grace=0.05), MODEL.layout, 1)

    async def both():
        async with limits.room(80):
            with pytest.raises(Busy, match="fill the memory"):
                async with limits.room(80):
                    raise AssertionError("there is no room")
            waiting = asyncio.create_task(enter(80))
            await asyncio.sleep(0)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
        assert limits.in_flight == 0
        await enter(300)  # alone, anything fits

    async def enter(length):
        async with limits.room(length):
            assert limits.in_flight == length

    asyncio.run(both())
    assert limits.in_flight == 0


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
        async with asyncio.timeout(60):
            while "expiry" not in [event.kind for event in server.store.events()]:
                await asyncio.sleep(0.05)
        watching.cancel()

    asyncio.run(watched())
    assert server.service.coordinator.state.members["c0"].receipt is None
    late = server.ask("PUT", "/v1/clients/c0/uploads/1", SECRET, content=answer("c0", task))
    assert (late.status_code, late.json()["error"]) == (409, "TaskClosed")
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
    with pytest.raises(StoreDamaged, match="No snapshot in a store of 1 events"):
        Service.open(federation(), store)
    assert len(list((tmp_path / "store" / "blobs").iterdir())) == blobs
    store.close()


def test_a_client_that_sends_the_largest_numbers_blocks_nobody(tmp_path) -> None:
    server = Server(tmp_path / "store", FedBuff(buffer_size=3), defence=None)
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
    assert "may hold 2" in told.json()["rule"]


def test_another_federation_is_refused_and_a_store_describes_itself(tmp_path) -> None:
    server = Server(tmp_path / "store")
    server.join()
    server.close()
    with pytest.raises(StoreMismatch, match="another federation: its algorithm is"):
        Store(tmp_path / "store", federation(FedAvg()).identity)
    told = describe(tmp_path / "store")
    assert (told["name"], told["events"], told["members"][0]["client"]) == ("toy", 1, "c0")
    assert told["last"] == [{"kind": "join", "client": "c0", "at": told["last_at"]}]
    assert told["first_at"] == told["last_at"] == pytest.approx(time.time(), abs=60)
    assert set(told["written_by"]) == {"artesian", "numpy", "algorithm"}
    assert (tmp_path / "store").stat().st_mode & 0o077 == 0
    with pytest.raises(SettingError, match="No store at"):
        describe(tmp_path)


def test_the_first_start_makes_tokens_and_later_ones_do_not(tmp_path, capsys) -> None:
    assert first_tokens(tmp_path, None).all() == []
    tokens = first_tokens(tmp_path, say_tokens)
    shown = capsys.readouterr().err
    assert [token.scope for token in tokens.all()] == ["enrol", "admin"]
    assert tokens.all()[0].may_be(shown.splitlines()[0].split()[-1])
    first_tokens(tmp_path, say_tokens)
    assert capsys.readouterr().err == ""


def test_tokens_that_cannot_be_shown_are_none(tmp_path) -> None:
    """The next start makes others: nobody could ever learn the text of these."""

    def fail(made) -> None:
        raise StorageError("No such file or directory: nowhere/tokens", "Check the folder")

    with pytest.raises(StorageError, match="nowhere"):
        first_tokens(tmp_path, fail)
    assert first_tokens(tmp_path, None).all() == []


def test_a_file_that_is_there_is_not_overwritten_by_tokens(tmp_path) -> None:
    (tmp_path / "mine").write_text("precious")
    with pytest.raises(SettingError, match=r"mine is there already\. Remove it, or name another --token-file"):
        first_tokens(tmp_path, tokens_shown(False, tmp_path / "mine"))
    assert (tmp_path / "mine").read_text() == "precious" and first_tokens(tmp_path, None).all() == []
    first_tokens(tmp_path, tokens_shown(False, tmp_path / "new"))
    assert set(json.loads((tmp_path / "new").read_text())) == {"enrol", "admin"}
    first_tokens(tmp_path, tokens_shown(False, tmp_path / "new"))  # a later start makes none, and writes nothing


def test_tokens_that_cannot_be_read_stop_the_start(tmp_path) -> None:
    (tmp_path / "tokens.json").write_text("{")
    with pytest.raises(StorageError, match=r"Cannot read the tokens in .* or remove it and make new tokens"):
        first_tokens(tmp_path, None)


def test_a_federation_is_a_value_or_a_function(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    (tmp_path / "served.py").write_text(APP)
    assert load_federation("served:federation").name == "toy"
    assert load_federation("served:make").name == "toy"
    with pytest.raises(SettingError, match="not a Federation"):
        load_federation("served:MODEL")
    with pytest.raises(SettingError, match="failed"):
        load_federation("served:broken")
    with pytest.raises(SettingError, match="imported"):
        load_federation("served:nothing")


def test_guards_compare_whole_secrets(tmp_path) -> None:
    store = Store(tmp_path, {"a": 1})
    auth = Auth(Tokens(tmp_path / "tokens.json"), store)
    made = asyncio.run(auth.prepared("ann", SECRET))
    auth.admit("ann", SECRET, made, None)
    assert asyncio.run(auth.prepared("ann", SECRET)) == ""
    asyncio.run(auth.client(SECRET, "ann"))
    for wrong in ("", SECRET + "x", SECRET[:-1]):
        with pytest.raises(Unauthorized):
            asyncio.run(auth.client(wrong, "ann"))
    with pytest.raises(Unauthorized):
        asyncio.run(auth.client("", "nobody"))
    store.close()


# a real server


@pytest.mark.heavy
def test_two_servers_do_not_share_a_store(tmp_path) -> None:
    server = Process(tmp_path)
    told = launcher().run("serve", "served:federation", "--store", "store", "--port", "0", cwd=tmp_path, timeout=60)
    assert told.returncode == 2
    assert "Another server uses this store" in " ".join(told.stderr.split())
    assert server.stop(signal.SIGTERM) == 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--host", "0.0.0.0"], "Plain HTTP at 0.0.0.0"),
        (["--tls-cert", "x"], "Only one of --tls-cert and --tls-key"),
        (["--tls-cert", "no.pem", "--tls-key", "key.pem"], "No such file: no.pem. Check --tls-cert."),
        (["--tls-cert", "served.py", "--tls-key", "key.pem"], "No such file: key.pem. Check --tls-key."),
        (["--tls-cert", "served.py", "--tls-key", "served.py"], "are not a certificate and its key"),
        (
            ["--tls-client-ca", "served.py"],
            "Only TLS can ask clients for certificates. Give --tls-cert and --tls-key, too",
        ),
        (["--set", "snapshot_evry=3"], "Did you mean 'snapshot_every'?"),
        (["--set", "snapshot_every=0"], "at least 1"),
    ],
)
def test_a_server_that_is_asked_for_the_wrong_thing_says_so(tmp_path, options, words) -> None:
    (tmp_path / "served.py").write_text(APP)
    told = launcher().run("serve", "served:federation", "--store", "store", *options, cwd=tmp_path, timeout=60)
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
    words = ["serve", "served:federation", "--store", "store", "--port", str(port)]
    words += ["--tls-cert", "cert.pem", "--tls-key", "key.pem"]
    process = launcher().start(words, tmp_path, tmp_path / "log")
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
        os.kill(process, signal.SIGTERM)
        launcher().wait(process, 30)


def test_federations_without_start_models_begin_with_a_fresh_one(tmp_path) -> None:
    single = replace(federation(FedAvg()), start=(), proxies={})
    assert list(single.begin().state.clusters) == ["k0"]
    assert single.settings["algorithm"]["clients_per_round"] == 10
