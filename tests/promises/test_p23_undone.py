"""P23: every act of a member can be undone: forgotten, rolled back, revoked. The chain and the numbers only grow."""

import signal
import threading
import time
from contextlib import suppress
from dataclasses import replace

import pytest
from promises.checks import lost_or_twice
from promises.federation import Client, Process, Server, draws, federation, trained, until

from artesian.algorithms import CDFL, FedBuff
from artesian.core import Event
from artesian.engine.coordinator import Coordinator
from artesian.server.messages import decode_task, encode_task
from artesian.server.service import Service
from artesian.storage.codec import digest, encode, to_tree
from artesian.storage.failpoints import NAMES
from artesian.storage.retention import ALL
from artesian.storage.store import Store

MEMBERS = 20
ALGORITHMS = {"cdfl": CDFL(), "fedbuff": FedBuff(buffer_size=3)}


class Working(Server):
    """A server in process whose members upload in an order drawn at random."""

    def __init__(self, folder, algorithm=None, members: int = MEMBERS) -> None:
        super().__init__(folder, algorithm, snapshot_every=40, retain=ALL)
        self.names, self.coordinator = [f"c{i}" for i in range(members)], self.service.coordinator
        for name in self.names:
            self.auth.keep(name, f"the secret of {name} is long")
            self.coordinator.join(name, 5)

    def work(self, uploads: int, rng) -> None:
        for _ in range(uploads):
            name = rng.choice([name for name in self.names if name in self.coordinator.state.members])
            if rng.random() < 0.05:
                self.coordinator.leave(name)
                self.coordinator.join(name, 5)
            (reply,) = self.coordinator.recorded(name)
            self.service._then_snapshot(lambda reply=reply: self.send(reply))

    def send(self, reply) -> None:
        self.coordinator.receive(trained(reply.client, encode_task(reply.task)))

    def act(self, path: str, **body):
        reply = self.ask("POST", path, self.admin, json=body)
        assert reply.status_code == 200, reply.text
        return reply.json()

    def numbers(self) -> dict[str, int]:
        known = self.coordinator.state.members | self.coordinator.desk.retired
        return {client: member.number for client, member in known.items()}

    def chain(self) -> list[str]:
        return [encode("record", record).hex() for record in self.store.last(self.store.count)]


def essence(coordinator: Coordinator) -> dict[str, str]:
    """Everything that a fold can change, and what is known of every member; not the tasks that are open."""
    state, desk = coordinator.state, coordinator.desk
    members = {client: replace(member, receipt=None, number=0) for client, member in state.members.items()}
    parts = to_tree(replace(state, members=members)) | {"pending": to_tree(desk.pending)}
    return {name: digest(part) for name, part in parts.items()}


def fed_the_others(algorithm, events: list[Event], gone: str) -> Coordinator:
    """A federation that is fed every other member's recorded uploads in the same order."""
    made = federation(algorithm).begin()
    for event in events:
        if event.kind == "forget":
            made.rollback(made.snapshot(tasks=False))  # open tasks were replaced
        if event.client == gone:
            continue
        if event.kind == "join":
            made.join(event.client, event.samples)
        elif event.kind == "leave":
            made.leave(event.client)
        else:
            made.upload(event.measured)
    return made


def only_grew(server: Working, chain: list[str], numbers: dict[str, int]) -> list[str]:
    """What is wrong if a record of the past was changed, or a task's number went back."""
    now = server.numbers()
    wrong = [] if server.chain()[: len(chain)] == chain else ["the chain was rewritten"]
    return wrong + [
        f"{client} went back to {now.get(client)}" for client, n in numbers.items() if now.get(client, 0) < n
    ]


def check_forgotten(folder, algorithm, uploads: int, gone: str = "c7") -> None:
    server, rng = Working(folder, algorithm), draws("forgotten", algorithm.name)
    server.work(uploads, rng)
    events, chain, numbers = list(server.store.events()), server.chain(), server.numbers()
    assert sum(event.kind == "upload" and event.client == gone for event in events) > 0
    told = server.act(f"/v1/members/{gone}/forget", why="asked to be forgotten")
    wanted = fed_the_others(algorithm, events, gone)
    assert essence(server.coordinator) == essence(wanted)
    assert told["left_out"] == 0
    assert only_grew(server, chain, numbers) == []
    server.work(5, rng)  # and it goes on
    before = server.digest()
    server.store.close()
    again = Server(folder, algorithm, retain=ALL)
    assert again.digest() == before
    again.close()


@pytest.mark.heavy
@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_forgotten_member_was_never_folded(tmp_path, promise, name) -> None:
    check_forgotten(tmp_path / "store", ALGORITHMS[name], promise("forgotten"))


def check_rollbacks(folder, algorithm, times: int) -> None:
    server, rng, states = Working(folder, algorithm, members=6), draws("rollbacks", algorithm.name), {}
    for _ in range(times):
        for _ in range(rng.randint(1, 6)):
            server.work(1, rng)
            states[server.store.count] = essence_of_state(server)
        to, chain, numbers = rng.choice(sorted(states)), server.chain(), server.numbers()
        server.act("/v1/rollback", to=to, why="a test")
        assert essence_of_state(server) == states[to], f"the state after event {to} is another"
        assert only_grew(server, chain, numbers) == []
        states[server.store.count] = states[to]
    before = server.digest()
    server.store.close()
    again = Server(folder, algorithm, retain=ALL)
    assert again.digest() == before
    again.close()


def essence_of_state(server: Working) -> str:
    """Clusters, memory, counters, mixtures and what waits for a fold."""
    state, desk = server.coordinator.state, server.coordinator.desk
    mixtures = {client: member.mixture for client, member in state.members.items()}
    return digest(to_tree([replace(state, members={}, present=0), mixtures, desk.pending]))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_any_state_comes_back(tmp_path, promise, name) -> None:
    check_rollbacks(tmp_path / "store", ALGORITHMS[name], -(-promise("rollbacks") // len(ALGORITHMS)))


def check_revoked(server: Server, client: str, secret: str) -> None:
    """The very next request of a revoked member is a 401, whatever it asks for."""
    task = server.join(client, secret)
    assert task.status_code == 200
    reply = server.ask("POST", f"/v1/members/{client}/revoke", server.admin, json={"why": "stolen"})
    assert reply.status_code == 200
    before = server.digest()
    upload = encode("upload", trained(client, task.content))
    for method, path, body in (
        ("PUT", f"/v1/clients/{client}/uploads/1", upload),
        ("GET", f"/v1/clients/{client}/task", None),
        ("HEAD", f"/v1/clients/{client}/uploads/1", None),
        ("DELETE", f"/v1/clients/{client}", None),
    ):
        assert server.ask(method, path, secret, content=body).status_code == 401, (method, path)
    assert server.join(client, secret).status_code == 401
    assert server.join(client, "another secret of sixteen").status_code == 401
    assert server.digest() == before


def test_a_revoked_member_is_out_at_its_next_request(tmp_path, promise) -> None:
    server = Server(tmp_path / "store")
    for turn in range(promise("acts")):
        check_revoked(server, f"c{turn}", f"the secret of number {turn}")
    server.close()


def check_replaced(server: Server, client: str, secret: str) -> None:
    """What a stolen secret began before its owner came back under the same name is a 401, too, and changes nothing."""
    new = f"{secret}, renewed"
    task = server.join(client, secret).content
    number = decode_task(task).number + 1  # the owner's next task: whoever guesses it has an upload that fits
    path, body = (
        f"/v1/clients/{client}/uploads/{number}",
        encode("upload", replace(trained(client, task), number=number)),
    )
    before = []

    def replace_secret() -> None:
        for act in ("revoke", "reset"):
            server.ask("POST", f"/v1/members/{client}/{act}", server.admin, json={"why": "stolen"})
        assert server.join(client, new).status_code == 200
        before.append(server.digest())

    reply = server.ask_slowly("PUT", path, secret, body, replace_secret)
    assert reply.status_code == 401, reply.status_code
    assert server.digest() == before[0]
    task = server.ask("GET", f"/v1/clients/{client}/task", new).content
    assert decode_task(task).number == number
    assert server.ask("PUT", path, new, content=encode("upload", trained(client, task))).status_code == 200


def test_what_a_stolen_secret_began_is_refused(tmp_path, promise) -> None:
    server = Server(tmp_path / "store")
    for turn in range(promise("replaced")):
        check_replaced(server, f"c{turn}", f"the secret of number {turn}")
    server.close()


class Stubborn(Client):
    """A client that notes how often it is told that it is out, or that its task was replaced, and begins again."""

    refused = replaced = 0

    def cycle(self) -> None:
        try:
            super().cycle()
        except AssertionError as error:
            status = error.args[0][0]
            if status not in (401, 404, 409):  # 404: forgotten while its upload was measured
                raise
            self.refused += status == 401
            self.replaced += status == 409
            time.sleep(0.01)


@pytest.mark.heavy
def test_acts_under_load_lose_nothing_of_the_others(tmp_path, promise) -> None:
    """Members are revoked one after the other while all of them upload; a kill -9 after that brings none back."""
    count = min(promise("acts"), 6)
    server, stop = Process(tmp_path, "--set", "keep_uploads=true", "--set", "log=off"), threading.Event()
    made = [Stubborn(server, f"c{i}", stop) for i in range(count + 2)]
    for client in made:
        client.start()
    for out in made[:count]:
        until(lambda out=out: len(out.acknowledged) > 2)
        status, _ = server.request("POST", f"/v1/members/{out.client}/revoke", server.token("admin"), b"{}")
        assert status == 200
        seen = len(out.acknowledged)
        until(lambda out=out: out.refused)
        assert len(out.acknowledged) <= seen + 1  # at most the one whose answer was on its way
    server.stop()
    server.start()
    until(lambda: all(client.refused > 1 for client in made[:count]))
    stop.set()
    for client in made:
        client.join()
    server.stop()
    assert not [client.failed for client in made if client.failed]
    store = Store(tmp_path / "store", federation().identity)
    journal = [event.measured for event in store.events() if event.measured]
    store.close()
    sent = {(c.client, number): mark for c in made for number, mark in c.sent.items()}
    assert lost_or_twice(sent, [(c.client, n) for c in made for n in c.acknowledged], journal) == []


@pytest.mark.heavy
def test_forgetting_under_load_is_exact(tmp_path, promise) -> None:
    """What comes while a member's uploads are taken out is in the state, too; it comes back as a newcomer."""
    times, stop = promise("forgetting-load"), threading.Event()
    server = Process(tmp_path, "--set", "keep_uploads=true", "--set", "log=off")
    made = [Stubborn(server, f"c{i}", stop) for i in range(5)]
    for client in made:
        client.start()
    for _ in range(times):
        wanted = len(made[0].acknowledged) + 8
        until(lambda wanted=wanted: len(made[0].acknowledged) >= wanted)
        status, told = server.request("POST", "/v1/members/c0/forget", server.token("admin"), b"{}")
        assert status == 200, told
    until(lambda wanted=wanted: len(made[0].acknowledged) > wanted + 2)
    stop.set()
    for client in made:
        client.join()
    server.stop()
    assert not [client.failed for client in made if client.failed]
    assert made[0].acknowledged == sorted(set(made[0].acknowledged))  # no number twice
    store = Store(tmp_path / "store", federation().identity)
    events = store.numbered(0, store.count)
    store.close()
    forgettings = [(number, event) for number, event in events if event.kind == "forget"]
    assert len(forgettings) == times
    last, event = forgettings[-1]
    wanted = fed_the_others(CDFL(), [e for n, e in events if n < last], "c0")
    assert digest(to_tree(event.act.snapshot.state.clusters)) == digest(to_tree(wanted.state.clusters))


ACTS = {"forget": ("/v1/members/c1/forget", b"{}"), "rollback": ("/v1/rollback", b'{"to": 7}')}
POINTS = [name for name in NAMES if name != "between-change-and-answer"]


@pytest.mark.heavy
def test_an_act_that_is_cut_short_happened_or_did_not(tmp_path, promise) -> None:
    """Killed at any point of an act, the server starts again; the act is whole or missing, and can be repeated."""
    cases = [(act, point) for point in POINTS for act in ACTS]
    for act, point in draws("act-deaths").sample(cases, promise("act-deaths")):
        folder = tmp_path / f"{act}-{point}"
        folder.mkdir()
        server = Process(folder, "--set", "log=off", "--set", "snapshot_every=5")
        tasks = {name: server.join(name) for name in ("c0", "c1", "c2")}
        for turn in range(9):
            tasks[f"c{turn % 3}"] = server.upload(f"c{turn % 3}", tasks[f"c{turn % 3}"])
        assert server.stop(signal.SIGTERM) == 0
        wanted = outcome(folder / "store", act)
        server.start(ARTESIAN_FAILPOINT=f"{point}:1")
        path, body = ACTS[act]
        with suppress(OSError):  # it died before it could answer
            server.request("POST", path, server.token("admin"), body)
        assert server.wait() == -signal.SIGKILL, point
        server.start()
        status, _ = server.request("POST", path, server.token("admin"), body)
        assert status == 200 or (act, status) == ("forget", 404), point
        assert server.stop(signal.SIGTERM) == 0
        store = Store(folder / "store", federation().identity)
        state = Service.open(federation(), store).coordinator.state
        assert digest(to_tree(state.clusters)) == wanted, point
        assert ("c1" in store.secrets()) == (act == "rollback")
        store.close()


def outcome(folder, act: str) -> str:
    """The clusters that an act must give, from the journal as it was before."""
    store = Store(folder, federation().identity)
    events = list(store.events())
    store.close()
    if act == "rollback":
        events = events[:7]
    return digest(to_tree(fed_the_others(CDFL(), events, "c1" if act == "forget" else "").state.clusters))
