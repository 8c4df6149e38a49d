"""Nobody waits for somebody else's model: whatever is at work on one, others are answered meanwhile."""

import asyncio
import threading
from contextlib import AsyncExitStack

import httpx
import numpy as np
import pytest
from promises.federation import SECRET, Server, answer
from promises.federation import federation as toy

from artesian.algorithms import CDFL
from artesian.core import Upload
from artesian.engine.coordinator import Coordinator
from artesian.params import seal
from artesian.server import routes
from artesian.server.limits import Announced, Limits
from artesian.server.messages import decode_task
from artesian.server.routes import CHUNK, TaskResponse
from artesian.server.settings import Settings
from artesian.storage.codec import decode, encode, encode_parts
from artesian.storage.open_tasks import OpenTasks
from artesian.storage.store import Store

PLACES = {
    "digest and decoding": (routes, "read_upload"),
    "admitting": (Coordinator, "admit"),
    "measuring": (CDFL, "measure"),
    "folding": (CDFL, "fold"),
    "writing the event": (Store, "append"),
    "a snapshot": (Store, "save"),
    "encoding the answer": (routes, "task_pieces"),
}


class Gate:
    """A function that says when it was entered, and goes on when it is told."""

    def __init__(self, monkeypatch, owner, name: str) -> None:
        self.entered, self.go_on, self.threads = threading.Event(), threading.Event(), []
        function = getattr(owner, name)

        def gated(*args, **options):
            self.threads.append(threading.current_thread())
            self.entered.set()
            assert self.go_on.wait(60)
            return function(*args, **options)

        self.open = lambda: monkeypatch.setattr(owner, name, function)
        monkeypatch.setattr(owner, name, gated)


def asking(server: Server) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app=server.app), base_url="http://test")


def bearer(text: str, **more: str) -> dict[str, str]:
    return {"authorization": f"Bearer {text}", **more}


@pytest.mark.parametrize("place", PLACES)
def test_others_are_answered_whatever_an_upload_is_at(tmp_path, monkeypatch, place) -> None:
    server = Server(tmp_path / "store", snapshot_every=1)
    task = server.join("c0").content
    other = server.join("c1", SECRET)
    body = answer("c0", task)
    gate = Gate(monkeypatch, *PLACES[place])

    async def play() -> httpx.Response:
        async with asking(server) as http:
            upload = asyncio.create_task(http.put("/v1/clients/c0/uploads/1", content=body, headers=bearer(SECRET)))
            assert await asyncio.to_thread(gate.entered.wait, 60)
            if PLACES[place] == (routes, "task_pieces"):
                gate.open()  # a draw is encoded too; the upload's stays where it is
            assert (await http.get("/healthz")).status_code == 200
            same = bearer(SECRET, **{"if-none-match": other.headers["etag"]})
            assert (await http.get("/v1/clients/c1/task", headers=same)).status_code == 304
            drawn = await http.get("/v1/clients/c1/task", headers=bearer(SECRET))
            assert (drawn.status_code, drawn.content) == (200, other.content)
            assert (await http.head("/v1/clients/c1/uploads/1", headers=bearer(SECRET))).status_code == 200
            assert (await http.get("/v1/federation", headers=bearer(server.enrol))).status_code == 200
            assert not upload.done()
            gate.go_on.set()
            return await upload

    try:
        reply = asyncio.run(play())
    finally:
        gate.go_on.set()
        server.close()
    assert (reply.status_code, decode_task(reply.content).number) == (200, 2)
    assert threading.main_thread() not in gate.threads


def test_a_draw_that_reads_a_large_model_holds_nobody_up(tmp_path, monkeypatch) -> None:
    server = Server(tmp_path / "store")
    first = server.join("c0").content
    gate = Gate(monkeypatch, OpenTasks, "__getitem__")

    async def play() -> httpx.Response:
        async with asking(server) as http:
            draw = asyncio.create_task(http.get("/v1/clients/c0/task", headers=bearer(SECRET)))
            assert await asyncio.to_thread(gate.entered.wait, 60)
            assert (await http.get("/healthz")).status_code == 200
            joined = await http.put(
                "/v1/clients/c1", json={"samples": 5, "secret": SECRET}, headers=bearer(server.enrol)
            )
            assert joined.status_code == 200  # and the writer is free, too
            assert not draw.done()
            gate.go_on.set()
            return await draw

    try:
        assert asyncio.run(play()).content == first
    finally:
        gate.go_on.set()
        server.close()


@pytest.mark.parametrize("moment", ["gone", "older"])
def test_a_task_that_is_just_being_replaced_is_asked_of_the_writer(tmp_path, monkeypatch, moment) -> None:
    server = Server(tmp_path / "store")
    first = server.join("c0").content
    second = server.ask("PUT", "/v1/clients/c0/uploads/1", SECRET, content=answer("c0", first)).content
    recorded, asked = server.service.coordinator.recorded, []
    old = toy().begin()

    def just_now(client):
        asked.append(threading.current_thread().name)
        if len(asked) > 1:
            return recorded(client)
        return [] if moment == "gone" else old.join(client, 5)  # task 1, while the member has task 2

    monkeypatch.setattr(server.service.coordinator, "recorded", just_now)
    assert server.ask("GET", "/v1/clients/c0/task", SECRET).content == second
    assert len(asked) == 2 and asked[1].startswith("writer") and not asked[0].startswith("writer")
    server.close()


def test_between_two_pieces_of_an_answer_others_have_their_turn() -> None:
    order = []

    async def send(message) -> None:  # takes everything at once, as a fast client does
        order.append(len(message.get("body", b"")))

    async def other(done: asyncio.Event) -> None:
        while not done.is_set():
            order.append("other")
            await asyncio.sleep(0)

    async def play() -> None:
        done = asyncio.Event()
        beside = asyncio.create_task(other(done))
        pieces = [b"head", memoryview(bytes(3 * CHUNK + 1))]
        await TaskResponse(pieces, {"etag": '"tag"'}, AsyncExitStack())({}, None, send)
        done.set()
        await beside

    asyncio.run(play())
    sizes = [one for one in order if one != "other"]
    assert sizes == [0, 4, CHUNK, CHUNK, CHUNK, 1, 0]
    turns = [order[i + 1] for i, one in enumerate(order) if one == CHUNK]
    assert turns == ["other"] * 3


def test_a_model_is_not_copied_on_its_way_in_or_out() -> None:
    params = seal(np.arange(100_000, dtype=np.float32))
    upload = Upload("c0", 1, 5, {"k0": params})
    body = encode("upload", upload)

    async def stream():
        for at in range(0, len(body), 1000):
            yield body[at : at + 1000]

    limits = Limits(Settings(), toy().model.layout, 1)
    got = asyncio.run(limits.receive(Announced(len(body)), stream()))
    found = decode("upload", got, Upload)
    assert bytes(got) == body
    assert np.array_equal(found.params, params)
    assert np.shares_memory(found.params, np.frombuffer(got, np.uint8))
    assert np.shares_memory(np.frombuffer(encode_parts("upload", upload)[1], np.uint8), params)
