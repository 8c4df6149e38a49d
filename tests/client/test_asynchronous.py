"""The same session for asyncio: clients side by side in one event loop, against a real server."""

import asyncio
import threading

import pytest
from homes import MODEL, WORLD, Home
from toyserver import Served

import artesian
from artesian.client.asynchronous import AsyncSession
from artesian.core import Upload
from artesian.errors import SettingError


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    made = Served(tmp_path_factory.mktemp("server"))
    yield made
    made.close()


def session(server, folder, name: str) -> AsyncSession:
    return artesian.connect_async(server.url, token=server.token, home=folder / name, client=name)


def learner(name: str, cycle: int = 0):
    visit = WORLD.visit(0, name, cycle)
    return MODEL.learner(visit.train.x, visit.train.y)


def test_clients_refresh_side_by_side(server, tmp_path) -> None:
    names = WORLD.names

    async def life(name: str) -> None:
        async with session(server, tmp_path, name) as client:
            for cycle in range(3):
                ((weight, _),) = await client.refresh(learner(name, cycle))
                assert weight == 1.0

    async def all_of_them() -> None:
        await asyncio.gather(*(life(name) for name in names))

    asyncio.run(all_of_them())
    assert {name: server.state.members[name].answered for name in names} == dict.fromkeys(names, 3)
    assert server.state.version == 3 * len(names)


def test_every_verb_is_there(server, tmp_path) -> None:
    async def life() -> None:
        client = session(server, tmp_path, "v0")
        with pytest.raises(SettingError, match="No model yet"):
            await client.held()
        task = await client.task(5)
        assert (task.number, client.client) == (1, "v0")
        assert (await client.draw() == task.models["blend"]).all()
        reply = await client.upload(Upload("v0", 1, 5, {"blend": task.models["blend"]}))
        assert reply.number == 2
        assert len(await client.held()) == 1
        await client.leave()
        await client.close()
        await client.close()
        with pytest.raises(RuntimeError):
            await client.held()

    asyncio.run(life())
    assert not server.state.members["v0"].present


def test_who_cancels_leaves_the_session_usable(tmp_path) -> None:
    home = Home(tmp_path)
    client = AsyncSession(home.session())
    slow, training, go_on = home.learner(), threading.Event(), threading.Event()

    class Slow(type(slow)):
        def train(self, *args, **options):
            training.set()
            go_on.wait(30)
            return super().train(*args, **options)

    async def life() -> None:
        async with client:
            under_way = asyncio.create_task(client.refresh(Slow(slow.layout, slow.x)))
            await asyncio.to_thread(training.wait, 30)
            queued = asyncio.create_task(client.refresh(slow))
            await asyncio.sleep(0)
            for waiting in (under_way, queued):
                waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await under_way
            go_on.set()
            await client.refresh(slow)  # after the first, which went on; the second never began

    asyncio.run(life())
    assert home.state.members["c0"].answered == 2
    home.close()


def test_a_client_watches_its_data(server, tmp_path) -> None:
    async def life() -> list[tuple[bool, str]]:
        seen = []
        async with session(server, tmp_path, "w0") as client:
            watch = await client.watch("every 2", [])
            for cycle in range(3):
                wanted = await watch.wants_refresh(learner(WORLD.names[0], cycle))
                seen.append((wanted, watch.decision.reason))
                if wanted:
                    record = await watch.refreshed(await client.refresh(learner(WORLD.names[0], cycle)))
                    assert record == watch.last and not watch.changed
            await watch.request()
            assert len(watch.history) == 2
        return seen

    first, second, third = asyncio.run(life())
    assert first == (True, "there is no model here yet")
    assert (second[0], third[0]) == (False, True)
    again = artesian.connect(server.url, token=server.token, home=tmp_path / "w0").watch("every 2", [])
    assert len(again.history) == 2
