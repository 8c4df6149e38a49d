"""Draws between uploads over HTTP: an ETag, how far the model moved, the usual refusals, and no trace in the store."""

import asyncio

import httpx
import pytest
from promises.federation import SECRET, Server, answer

from artesian.algorithms import CDFL, FedAvg, Local
from artesian.engine.drawing import Moved, fresh_task
from artesian.server import draws
from artesian.server.app import create_app
from artesian.server.draws import Draws, Offer
from artesian.server.messages import decode_task
from artesian.server.service import Service
from artesian.server.settings import Settings
from artesian.storage.codec import encode
from artesian.testing import ToyFederation


class Pair(Server):
    """c0 and c1 have joined a server with a store and secrets; c0 uploads."""

    def __init__(self, folder) -> None:
        super().__init__(folder)
        self.tasks = {name: self.join(name).content for name in ("c0", "c1")}

    def draw(self, client: str, held: str = ""):
        headers = {"if-none-match": held} if held else {}
        return self.ask("GET", f"/v1/clients/{client}/model", SECRET, headers=headers)

    def upload(self, client: str):
        number = decode_task(self.tasks[client]).number
        path = f"/v1/clients/{client}/uploads/{number}"
        return self.ask("PUT", path, SECRET, content=answer(client, self.tasks[client]))


class Bare:
    """The same without store and secrets."""

    def __init__(self, algorithm=None, **settings) -> None:
        self.federation = ToyFederation(algorithm or CDFL(), 3)
        self.service = Service(self.federation.coordinator)
        self.app = create_app(self.service, settings=Settings(**settings) if settings else None)
        for name in ("c0", "c1"):
            self.federation.take(self.federation.coordinator.join(name, 10))

    def draw(self, client: str, held: str = "") -> httpx.Response:
        headers = {"if-none-match": held} if held else {}

        async def send() -> httpx.Response:
            transport = httpx.ASGITransport(app=self.app)
            async with httpx.AsyncClient(transport=transport, base_url="http://test") as client_of:
                return await client_of.get(f"/v1/clients/{client}/model", headers=headers)

        return asyncio.run(send())

    def upload(self, client: str) -> None:
        self.federation.take(self.federation.coordinator.receive(self.federation.upload_of(client)))


@pytest.fixture
def server(tmp_path):
    made = Pair(tmp_path)
    yield made
    made.close()


@pytest.fixture
def bare():
    return Bare()


def model(data: bytes) -> bytes:
    (only,) = decode_task(data).models.values()
    return only.tobytes()


def test_a_draw_is_the_model_of_now_and_leaves_no_trace(server) -> None:
    server.upload("c0")
    before, events = server.digest(), server.store.count
    drawn = server.draw("c1")
    assert (drawn.status_code, drawn.headers["content-type"]) == (200, "application/vnd.safetensors")
    assert decode_task(drawn.content).number == 0
    assert model(drawn.content) != model(server.tasks["c1"])
    assert (server.digest(), server.store.count) == (before, events)
    assert server.ask("GET", "/v1/clients/c1/task", SECRET).content == server.tasks["c1"]  # open, as it was given
    assert server.service.counts.draws == 1


def test_before_any_fold_nothing_moved(bare) -> None:
    drawn = bare.draw("c1")
    assert drawn.headers["artesian-moved"] == "distance=0, versions=0"
    assert model(drawn.content) == model(encode("task", bare.federation.tasks["c1"]))


def test_a_tag_says_that_nothing_changed_until_a_fold(bare, monkeypatch) -> None:
    tag = bare.draw("c1").headers["etag"]
    with monkeypatch.context() as patch:  # what is known is not worked out again
        patch.setattr(Draws, "draw", None)
        again = bare.draw("c1", held=f'"another", {tag}')
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
    bare.upload("c0")
    changed = bare.draw("c1", held=tag)
    assert changed.status_code == 200
    assert changed.headers["etag"] != tag


def test_a_draw_is_worked_out_beside_the_writer_from_a_copy(bare, monkeypatch) -> None:
    """Others may join meanwhile: the writer changes its own table of members in place."""
    seen = []

    def watched(algorithm, state, desk, client):
        seen.append(state.members)
        return fresh_task(algorithm, state, desk, client)

    monkeypatch.setattr(draws, "fresh_task", watched)
    assert bare.draw("c1").status_code == 200
    (members,) = seen
    assert members == bare.service.coordinator.state.members
    assert members is not bare.service.coordinator.state.members


def test_a_star_asks_how_far_it_moved_and_brings_no_model(bare) -> None:
    bare.upload("c0")
    bare.upload("c0")
    told = bare.draw("c1", held="*")
    assert (told.status_code, told.content) == (304, b"")
    moved = Moved.of(told.headers["artesian-moved"])
    assert moved.versions == 2
    assert 0 < moved.distance < 2
    assert bare.draw("c1").headers["artesian-moved"] == told.headers["artesian-moved"]
    assert bare.draw("c1", held=told.headers["etag"]).status_code == 304
    bare.upload("c1")
    assert bare.draw("c1").headers["artesian-moved"] == "distance=0, versions=0"


def test_a_rollback_makes_other_offers(server) -> None:
    first = server.draw("c1").headers["etag"]
    server.upload("c0")
    later = server.draw("c1").headers["etag"]
    reply = server.ask("POST", "/v1/rollback", server.admin, json={"to": 2})
    assert reply.status_code == 200
    assert server.draw("c1").headers["etag"] == first != later


def test_who_may_not_draw_is_told_why(server) -> None:
    assert server.ask("GET", "/v1/clients/c1/model").status_code == 401
    assert server.ask("GET", "/v1/clients/c1/model", "the secret of somebody else").status_code == 401
    assert server.ask("GET", "/v1/clients/stranger/model", SECRET).json()["error"] == "Unauthorized"
    server.ask("DELETE", "/v1/clients/c1", SECRET)
    left = server.draw("c1")
    assert (left.status_code, left.json()["rule"]) == (404, "Client c1 is not in the federation")
    server.ask("POST", "/v1/members/c0/revoke", server.admin, json={})
    assert (server.draw("c0").status_code, server.draw("c0").json()["error"]) == (401, "Unauthorized")


def test_a_method_without_anything_to_draw_says_so() -> None:
    server = Bare(Local())
    for held in ("", "*"):
        refused = server.draw("c0", held)
        assert (refused.status_code, refused.json()["error"]) == (404, "NothingToDraw")
        assert "its clients share nothing, and each uses its own model" in refused.json()["rule"]


def test_whoever_waits_for_a_round_draws_too() -> None:
    server = Bare(FedAvg(clients_per_round=3))
    drawn = server.draw("c0")
    assert drawn.status_code == 200
    assert "artesian-moved" not in drawn.headers  # it was given nothing yet
    assert server.draw("c0", held=drawn.headers["etag"]).status_code == 304


def test_draws_have_a_rate() -> None:
    server = Bare(draws_per_minute=2)
    assert [server.draw("c0", held="*").status_code for _ in range(3)] == [304, 304, 429]
    refused = server.draw("c0")
    assert refused.json()["rule"] == "More than 2 draws a minute from this client"
    assert "retry-after" in refused.headers
    assert server.draw("c1").status_code == 200
    with pytest.raises(ValueError, match="draws_per_minute must be 0, or at least 1"):
        Settings(draws_per_minute=0.5)


@pytest.mark.parametrize(
    ("header", "named"), [('"a"', True), ('W/"a"', True), ('"b", "a"', True), ("*", True), ('"b"', False), ("", False)]
)
def test_a_tag_among_others_is_found(header, named) -> None:
    assert Offer(1, '"a"', Moved()).is_named_in(header) is named
