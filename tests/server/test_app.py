"""The routes in process: statuses, typed refusals, and nothing changed by what is refused."""

import asyncio

import httpx
import numpy as np
import pytest
from promises.federation import SECRET, Server, trained

from artesian.algorithms import FedAsync, FedAvg
from artesian.errors import Refused
from artesian.params import Layout
from artesian.server.app import create_app
from artesian.server.messages import decode_task
from artesian.server.statuses import STATUSES
from artesian.storage.codec import FORMAT, encode, to_tree
from artesian.testing import ToyFederation


class Served:
    """A toy federation behind the application."""

    def __init__(self, algorithm=None, clients: int = 2) -> None:
        self.federation = ToyFederation(algorithm or FedAsync(), clients)
        self.coordinator = self.federation.coordinator
        self.app = create_app(self.coordinator)

    def http(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(transport=httpx.ASGITransport(app=self.app), base_url="http://test")

    def ask(self, method: str, path: str, **body) -> httpx.Response:
        async def send() -> httpx.Response:
            async with self.http() as http:
                return await http.request(method, path, **body)

        return asyncio.run(send())

    def join(self, client: str = "c0") -> httpx.Response:
        response = self.ask("PUT", f"/v1/clients/{client}", json={"samples": 5})
        if response.status_code == 200:
            self.federation.tasks[client] = decode_task(response.content)
        return response


def test_a_client_joins_uploads_retries_and_leaves() -> None:
    served = Served()
    first = served.join()
    assert first.status_code == 200
    assert first.headers["content-type"] == "application/vnd.safetensors"
    assert served.join().content == first.content  # repeating it is harmless
    body = encode("upload", served.federation.upload_of("c0"))
    reply = served.ask("PUT", "/v1/clients/c0/uploads/1", content=body)
    assert reply.status_code == 200
    assert decode_task(reply.content).number == 2
    assert served.coordinator.state.version == 1
    assert served.ask("PUT", "/v1/clients/c0/uploads/1", content=body).content == reply.content
    assert served.coordinator.state.version == 1
    assert served.ask("DELETE", "/v1/clients/c0").status_code == 204
    assert served.ask("GET", "/v1/clients/c0/task").status_code == 204


def test_a_task_has_a_tag_and_no_memo() -> None:
    served = Served()
    served.join()
    got = served.ask("GET", "/v1/clients/c0/task")
    assert got.status_code == 200
    assert decode_task(got.content).memo is None
    again = served.ask("GET", "/v1/clients/c0/task", headers={"if-none-match": got.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


def test_a_round_answers_202_and_the_long_poll_wakes() -> None:
    served = Served(FedAvg(clients_per_round=2))
    assert served.join("c0").status_code == 202

    async def both() -> tuple[httpx.Response, httpx.Response]:
        async with served.http() as http:
            poll = asyncio.create_task(http.get("/v1/clients/c0/task?wait=30"))
            await asyncio.sleep(0)
            joined = await http.put("/v1/clients/c1", json={"samples": 5})
            return await poll, joined

    woken, joined = asyncio.run(both())
    assert (woken.status_code, joined.status_code) == (200, 200)
    served.federation.tasks["c0"] = decode_task(woken.content)
    upload = encode("upload", served.federation.upload_of("c0"))
    assert served.ask("PUT", "/v1/clients/c0/uploads/1", content=upload).status_code == 202


def test_the_federation_describes_itself() -> None:
    served = Served()
    told = served.ask("GET", "/v1/federation").json()
    assert (told["format"], told["algorithm"], told["version"]) == (FORMAT, "fedasync", 0)
    assert told["recipes"] == ["train"]  # those its tasks name
    assert Layout.from_json(told["layout"]).digest == told["layout_digest"]
    assert served.ask("GET", "/healthz").json() == {"status": "ok"}


def spoil(upload, **changes) -> bytes:
    return encode("upload", {**to_tree(upload), **changes})


@pytest.mark.parametrize(
    ("path", "make", "error", "status"),
    [
        ("/v1/clients/c0/uploads/1", lambda _: b"", "BadFormat", 400),
        ("/v1/clients/c0/uploads/1", lambda u: encode("task", u), "BadFormat", 400),
        ("/v1/clients/c0/uploads/2", lambda u: encode("upload", u), "BadFormat", 400),
        ("/v1/clients/c9/uploads/1", lambda u: spoil(u, client="c9"), "UnknownClient", 404),
        ("/v1/clients/c0/uploads/7", lambda u: spoil(u, number=7), "UnknownTask", 404),
        ("/v1/clients/c0/uploads/1", lambda u: spoil(u, samples=-1), "BadClient", 422),
        ("/v1/clients/c0/uploads/1", lambda u: spoil(u, models={}), "WrongModels", 422),
        ("/v1/clients/c0/uploads/1", lambda u: spoil(u, models={"k0": np.zeros(2, np.float32)}), "WrongShape", 422),
        ("/v1/clients/c0/uploads/1", lambda u: spoil(u, models={"k0": u.params * np.float32("nan")}), "NotFinite", 422),
        ("/v1/clients/c0/uploads/1", lambda u: spoil(u, mixture={"k0": 2.0}), "BadMixture", 422),
        (
            "/v1/clients/c0/uploads/1",
            lambda u: encode("upload", u).replace(b'format\\":1', b'format\\":9'),
            "UnknownFormat",
            400,
        ),
    ],
)
def test_a_refusal_has_a_status_and_says_rule_got_and_remedy(path, make, error, status) -> None:
    served = Served()
    served.join()
    body = make(served.federation.upload_of("c0"))
    before = served.coordinator.digest()
    response = served.ask("PUT", path, content=body)
    assert (response.status_code, response.json()["error"]) == (status, error)
    assert response.json()["rule"]
    assert response.json()["remedy"]
    assert served.coordinator.digest() == before


def test_another_body_under_the_same_identity_is_a_conflict() -> None:
    served = Served()
    served.join()
    upload = served.federation.upload_of("c0")
    served.ask("PUT", "/v1/clients/c0/uploads/1", content=encode("upload", upload))
    response = served.ask("PUT", "/v1/clients/c0/uploads/1", content=spoil(upload, samples=99))
    assert (response.status_code, response.json()["error"]) == (409, "Conflict")


def test_strangers_and_bad_joins_are_refused() -> None:
    served = Served()
    assert served.ask("GET", "/v1/clients/nobody/task").status_code == 404
    assert served.ask("DELETE", "/v1/clients/nobody").status_code == 404
    for body in (b"", b"[]", b'{"samples": "many"}', b'{"samples": -3}', b'{"other": 1}'):
        assert served.ask("PUT", "/v1/clients/c0", content=body).status_code == 422
    assert served.coordinator.state.members == {}


def test_every_refusal_has_a_status() -> None:
    def leaves(kind):
        below = kind.__subclasses__()
        return [leaf for sub in below for leaf in leaves(sub)] if below else [kind]

    assert set(leaves(Refused)) == set(STATUSES)
    assert all(400 <= status < 500 for status in STATUSES.values())


def test_a_failure_of_the_disk_is_explained_to_operators_and_in_the_log(tmp_path, caplog) -> None:
    server = Server(tmp_path / "store")
    server.ask(
        "PUT", "/v1/clients/c0/uploads/1", SECRET, content=encode("upload", trained("c0", server.join().content))
    )
    for path in (tmp_path / "store" / "blobs").glob("*.safetensors"):
        path.write_bytes(b"damaged")
    caplog.set_level("WARNING", "artesian.requests")
    told = server.ask("POST", "/v1/members/c0/forget", server.admin, json={})
    assert told.status_code == 507
    assert told.json()["rule"].startswith("The stored array was altered: ")
    assert told.json()["remedy"] == "Restore the file from a backup"
    fields = caplog.records[-1].fields
    assert (fields["error"], fields["problem"]) == ("StorageError", told.json()["rule"])
    (tmp_path / "store" / "tokens.json").write_text("{")
    stranger = server.ask("GET", "/v1/members", server.admin)  # nobody's credential can be checked
    assert stranger.json()["rule"] == "The server cannot use its disk"
    assert "tokens.json" in caplog.records[-1].fields["problem"]
    server.close()


@pytest.mark.parametrize(
    "body",
    [
        b'{"samples": 3, "samples": 4, "secret": "a secret of sixteen"}',
        b'{"samples": 3, "secret": "a secret of sixteen", "extra": 1}',
        b'["samples", "secret"]',
    ],
)
def test_a_join_with_doubled_or_unknown_keys_is_refused(tmp_path, body) -> None:
    server = Server(tmp_path / "store")
    told = server.ask("PUT", "/v1/clients/c0", server.enrol, content=body)
    assert (told.status_code, told.json()["error"]) == (422, "BadClient")
    assert not server.service.coordinator.state.members
    server.close()


@pytest.mark.parametrize("body", [b'{"wy": "misspelt"}', b'{"why": "a", "why": "b"}'])
def test_an_act_with_doubled_or_unknown_keys_is_refused(tmp_path, body) -> None:
    server = Server(tmp_path / "store")
    server.join()
    told = server.ask("POST", "/v1/members/c0/quarantine", server.admin, content=body)
    assert (told.status_code, told.json()["error"]) == (400, "BadFormat")
    assert server.store.count == 1
    server.close()


@pytest.mark.parametrize("name", ["%ff", "%20", "%20c0", "c0%20"])
def test_a_newcomer_whose_name_looks_like_another_is_refused(tmp_path, name) -> None:
    server = Server(tmp_path / "store")
    told = server.ask("PUT", f"/v1/clients/{name}", server.enrol, json={"samples": 3, "secret": SECRET})
    assert (told.status_code, told.json()["error"]) == (422, "BadClient")
    server.close()


def test_a_secret_that_no_header_can_carry_is_refused(tmp_path) -> None:
    server = Server(tmp_path / "store")
    told = server.join(secret=f"{SECRET} ")
    assert told.status_code == 401 and "spaces at its ends" in told.json()["rule"]
    server.close()
