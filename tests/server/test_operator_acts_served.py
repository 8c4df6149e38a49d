"""What an operator does over HTTP while the server serves: each act is an event, and takes effect at once."""

import asyncio
import json
import time
from dataclasses import replace

import httpx
import pytest
from promises.federation import MODEL, Server, answer, federation
from safetensors.numpy import load

from artesian.algorithms import FedAvg
from artesian.core import Member
from artesian.engine.defence import Defence
from artesian.errors import ReplayDiffers, Unauthorized
from artesian.server import operating
from artesian.server.app import create_app
from artesian.server.auth import Auth
from artesian.server.messages import decode_task
from artesian.server.metrics import cluster_losses
from artesian.server.models_file import start_from
from artesian.server.tokens import Tokens
from artesian.server.verifying import verify
from artesian.storage.copying import copy_store
from artesian.storage.reading import read_history
from artesian.storage.retention import ALL, Retention
from artesian.storage.store import Store

NEW = "another secret of a wiped one"


def secret(client: str) -> str:
    return f"the secret of {client} is long"


class Busy(Server):
    """A server with a few members at work."""

    def __init__(self, folder, algorithm=None, clients: int = 4, **options) -> None:
        super().__init__(folder, algorithm, **{"retain": ALL, **options})
        self.tasks = {}
        for client in (f"c{i}" for i in range(clients)):
            self.come(client)

    def come(self, client: str, own: str = "") -> None:
        reply = self.join(client, own or secret(client))
        if reply.status_code == 200:
            self.tasks[client] = reply.content

    def upload(self, client: str, own: str = ""):
        number = decode_task(self.tasks[client]).number
        path = f"/v1/clients/{client}/uploads/{number}"
        reply = self.ask("PUT", path, own or secret(client), content=answer(client, self.tasks[client]))
        if reply.status_code == 200:
            self.tasks[client] = reply.content
        return reply

    def fetch(self, client: str):
        reply = self.ask("GET", f"/v1/clients/{client}/task", secret(client))
        self.tasks[client] = reply.content
        return reply

    def act(self, path: str, **body):
        return self.ask("POST", path, self.admin, json={"why": "a test", **body})

    def work(self, times: int) -> None:
        for turn in range(times):
            assert self.upload(sorted(self.tasks)[turn % len(self.tasks)]).status_code == 200


@pytest.fixture
def busy(tmp_path):
    made = Busy(tmp_path / "store")
    yield made
    if not made.store._db.closed:  # a test that lets it crash has closed its store
        made.close()


def test_a_revoked_member_gets_401_at_its_next_request_and_returns_when_it_is_reset(busy) -> None:
    busy.work(4)
    told = busy.act("/v1/members/c1/revoke").json()
    assert told["member"]["standing"] == "revoked"
    assert told["event"] == busy.store.count
    event = list(busy.store.events())[-1]
    assert (event.kind, event.client, event.act.by, event.act.why) == ("revoke", "c1", "a0", "a test")
    for reply in (busy.upload("c1"), busy.fetch("c1"), busy.join("c1", secret("c1")), busy.join("c1", NEW)):
        assert (reply.status_code, reply.json()["error"]) == (401, "Unauthorized")
        assert "revoked client c1" in reply.json()["rule"]
    number = busy.service.coordinator.member("c1").number
    assert busy.act("/v1/members/c1/revoke").json()["event"] is None  # it is so already
    assert busy.act("/v1/members/c1/reset").json()["member"]["standing"] == "reset"
    old = busy.fetch("c1")
    assert (old.status_code, old.json()["rule"]) == (401, "The operator reset client c1")
    assert busy.join("c1", "short").status_code == 401
    reply = busy.join("c1", NEW)
    assert (reply.status_code, decode_task(reply.content).number) == (200, number + 1)
    assert busy.fetch("c1").status_code == 401  # with the old secret
    assert busy.ask("GET", "/v1/clients/c1/task", NEW).status_code == 200


def test_acts_survive_a_restart(tmp_path) -> None:
    first = Busy(tmp_path / "store")
    first.work(4)
    first.act("/v1/members/c1/revoke")
    first.act("/v1/members/c2/quarantine")
    first.act("/v1/members/c3/reset")
    before = first.digest()
    first.store.close()  # as a crash does
    again = Server(tmp_path / "store", retain=ALL)
    assert again.digest() == before
    assert again.ask("GET", "/v1/clients/c1/task", secret("c1")).status_code == 401
    assert again.join("c3", NEW).status_code == 200
    again.close()


def test_uploads_in_quarantine_are_recorded_and_answered_and_not_folded(busy) -> None:
    busy.work(4)
    busy.act("/v1/members/c1/quarantine")
    version, count = busy.service.coordinator.state.version, busy.store.count
    reply = busy.upload("c1")
    assert (reply.status_code, decode_task(reply.content).number) == (200, 3)
    assert (busy.service.coordinator.state.version, busy.store.count) == (version, count + 1)
    assert busy.store.last(1)[0]["set_aside"] == {"c1/2": "its member is in quarantine"}
    busy.act("/v1/members/c1/release")
    busy.upload("c1")
    assert busy.service.coordinator.state.version == version + 1


def test_members_are_listed_and_shown_to_the_operator_alone(busy) -> None:
    busy.work(4)
    rows = busy.ask("GET", "/v1/members", busy.admin).json()
    assert [row["client"] for row in rows] == ["c0", "c1", "c2", "c3"]
    known = {"client", "samples", "answered", "number", "open", "present", "set_aside", "standing", "mixture"}
    assert set(rows[0]) == known
    assert busy.ask("GET", "/v1/members/c1", busy.admin).json() == rows[1]
    assert busy.ask("GET", "/v1/members/nobody", busy.admin).status_code == 404
    for token in (busy.enrol, secret("c0"), ""):
        assert busy.ask("GET", "/v1/members", token).status_code == 401
        assert busy.ask("POST", "/v1/rollback", token, json={"to": 1}).status_code == 401


@pytest.mark.parametrize(
    "body",
    [
        b'{"why": "ok\\n99 2026-11-19 a0 release c1"}',  # what looks like another act where it is shown
        b'{"why": "\\u001b[2K"}',
        b'{"to": 3}',  # only a rollback goes back to an event
    ],
)
def test_a_decision_with_an_odd_body_is_refused(busy, body) -> None:
    before = busy.store.count
    reply = busy.ask("POST", "/v1/members/c1/quarantine", busy.admin, content=body)
    assert (reply.status_code, reply.json()["error"], busy.store.count) == (400, "BadFormat", before)


@pytest.mark.parametrize("body", [b"[]", b"1", b'{"why": 5}', b'{"why": "' + b"x" * 501 + b'"}', b"{", b'{"to": "1"}'])
def test_an_act_with_an_odd_body_is_refused_and_changes_nothing(busy, body) -> None:
    before = busy.digest()
    reply = busy.ask("POST", "/v1/rollback", busy.admin, content=body)
    assert (reply.status_code, reply.json()["error"]) == (400, "BadFormat")
    assert busy.digest() == before


def test_a_rollback_brings_back_a_state_and_clients_fetch_their_task_again(busy) -> None:
    busy.work(5)
    event, wanted = busy.store.count, busy.service.coordinator.state
    busy.work(9)
    late = busy.join("c7", secret("c7"))
    told = busy.act("/v1/rollback", to=event).json()
    assert told == {"event": busy.store.count, "to": event, "version": wanted.version}
    state = busy.service.coordinator.state
    assert {k: c.params.tobytes() for k, c in state.clusters.items()} == {
        k: c.params.tobytes() for k, c in wanted.clusters.items()
    }
    assert "c7" in state.members
    reply = busy.upload("c0")
    assert (reply.status_code, reply.json()["error"]) == (409, "TaskClosed")
    assert decode_task(busy.fetch("c7").content).number == decode_task(late.content).number + 1
    for client in ("c0", "c1", "c2", "c3"):
        busy.fetch(client)
    busy.work(6)
    before = busy.digest()
    busy.store.close()
    again = Server(busy.store.folder, retain=ALL)
    assert again.digest() == before
    again.close()


def test_a_rollback_brings_back_what_members_had_spent(busy) -> None:
    busy.work(5)
    event, then = busy.store.count, dict(busy.service.coordinator.state.members)
    busy.work(9)
    busy.act("/v1/rollback", to=event)
    coordinator = busy.service.coordinator
    assert coordinator.desk.ledger.uploads == 5
    assert {c: (m.spent, m.spent_at) for c, m in coordinator.state.members.items()} == {
        c: (m.spent, m.spent_at) for c, m in then.items()
    }


def test_a_past_that_this_code_answers_in_another_way_is_not_brought_back(busy, monkeypatch) -> None:
    busy.work(5)
    before = busy.digest()

    def differs(*_) -> None:
        raise ReplayDiffers("Event 5 (upload of c0) now gives another cluster k0; it was written by artesian 0", "Wait")

    monkeypatch.setattr(operating, "replay", differs)
    reply = busy.act("/v1/rollback", to=6)
    assert (reply.status_code, reply.json()["error"]) == (410, "NotRetained")
    assert "now gives another cluster k0" in reply.json()["rule"]
    assert busy.digest() == before


@pytest.mark.heavy
@pytest.mark.parametrize("retain", [ALL, Retention(uploads=6)], ids=["all", "bounded"])
def test_a_store_with_acts_in_its_past_is_sound_and_so_is_its_backup(tmp_path, retain) -> None:
    busy = Busy(tmp_path / "store", retain=retain, snapshot_every=3)
    busy.work(11)
    event = busy.store.count - 1
    busy.act("/v1/members/c3/quarantine")
    assert busy.act("/v1/rollback", to=event).status_code == 200
    for client in busy.tasks:
        busy.fetch(client)
    busy.work(8)
    check_sound(tmp_path, "first")
    busy.come("c9")
    busy.work(2)
    assert busy.upload("c9").status_code == 200
    assert busy.act("/v1/members/c9/forget").status_code == 200
    check_sound(tmp_path, "second")
    busy.close()
    check_sound(tmp_path, "third")
    history = read_history(tmp_path / "store")
    gone = [row for row in history.events if history.is_gone(row)]
    assert [json.loads(row.record)["client"] for row in gone] == ["c9"]
    assert len(history.snapshots) > 2


def check_sound(folder, name: str) -> None:
    """The store is sound, and so is a copy of it, of which nothing is missing."""
    told = verify(folder / "store")
    assert (told["sound"], told["problems"]) == (True, [])
    assert told["replayed"] > 0
    assert copy_store(folder / "store", folder / name).left_out == ()
    assert verify(folder / name)["sound"]


def test_a_token_that_is_used_up_takes_a_reset_member_and_counts_no_forgotten_one(busy) -> None:
    busy.enrol = busy.tokens.make("enrol", "narrow", joins=1)
    assert busy.join("c8", secret("c8")).status_code == 200
    assert busy.join("c9", secret("c9")).status_code == 401
    busy.act("/v1/members/c8/reset")
    assert busy.join("c8", NEW).status_code == 200
    assert busy.join("c9", secret("c9")).status_code == 401
    busy.act("/v1/members/c8/forget")
    assert "narrow" not in busy.store.enrolments().values()
    assert busy.join("c9", secret("c9")).status_code == 200
    assert busy.join("c8", NEW).status_code == 401


def test_whoever_was_reset_or_forgotten_while_it_joined_keeps_no_empty_hash(busy) -> None:
    known = busy.store.secrets()["c1"]
    with pytest.raises(Unauthorized, match="reset client c1"):
        busy.auth.admit("c1", secret("c1"), "", None, reset=True)
    assert busy.store.secrets()["c1"] == known
    busy.store.drop_secret("c1")
    busy.auth.drop("c1")
    with pytest.raises(Unauthorized):
        busy.auth.admit("c1", secret("c1"), "", None)
    busy.auth.upgrade("c1", secret("c1"), "scrypt$1$00$00")  # of a request that came before
    assert "c1" not in busy.store.secrets()
    assert busy.fetch("c1").status_code == 401


def test_a_half_sent_upload_does_not_hold_up_the_next_secret(busy) -> None:
    number = decode_task(busy.tasks["c1"]).number
    own = []

    def take_over() -> None:
        busy.act("/v1/members/c1/reset")
        busy.come("c1", NEW)
        own.append(busy.upload("c1", NEW).status_code)

    path = f"/v1/clients/c1/uploads/{number}"
    stolen = busy.ask_slowly("PUT", path, secret("c1"), answer("c1", busy.tasks["c1"]), take_over)
    assert (stolen.status_code, own) == (401, [200])


def test_a_long_poll_ends_once_another_secret_is_the_clients(tmp_path, monkeypatch) -> None:
    busy = Busy(tmp_path / "store", FedAvg(clients_per_round=3), clients=2)
    transport = httpx.ASGITransport(app=busy.app)

    async def both() -> httpx.Response:
        waiting, wait = asyncio.Event(), busy.service.wait

        async def noticed(*arguments):
            waiting.set()
            return await wait(*arguments)

        monkeypatch.setattr(busy.service, "wait", noticed)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
            old, admin = ({"authorization": f"Bearer {token}"} for token in (secret("c1"), busy.admin))
            poll = asyncio.create_task(http.get("/v1/clients/c1/task?wait=20", headers=old))
            await waiting.wait()
            await http.post("/v1/members/c1/reset", headers=admin, json={})
            enrol, body = {"authorization": f"Bearer {busy.enrol}"}, {"samples": 5, "secret": NEW}
            await http.put("/v1/clients/c1", headers=enrol, json=body)
            return await poll

    assert asyncio.run(both()).status_code == 401
    busy.close()


@pytest.mark.parametrize("way", ["revoked", "expired", "rotated"])
def test_a_join_under_way_is_refused_once_its_token_is_not_valid(busy, way) -> None:
    token = busy.tokens.make("enrol", "brief", expires=time.time() + 3600)

    def end() -> None:
        if way == "revoked":
            busy.tokens.revoke("brief")
        elif way == "rotated":
            busy.tokens.rotate("brief")
        else:
            busy.auth._clock = lambda: time.time() + 7200

    body = json.dumps({"samples": 5, "secret": secret("c8")}).encode()
    reply = busy.ask_slowly("PUT", "/v1/clients/c8", token, body, end)
    assert (reply.status_code, reply.json()["rule"]) == (401, "This enrolment token is not valid any more")
    assert "c8" not in busy.store.secrets() and busy.service.coordinator.known("c8") is None


def test_losses_of_clusters_are_known_at_the_start_and_after_a_rollback(tmp_path) -> None:
    """Not only once an upload was judged: an operator who looks, or an alert, sees no gap."""
    busy = Busy(tmp_path / "store", defence=Defence())
    assert set(cluster_losses(busy.service.coordinator)) == {"k0", "k1"}
    busy.work(6)
    busy.act("/v1/rollback", to=busy.store.count - 2)
    assert set(busy.service.coordinator.judge.losses(busy.service.coordinator.state)) == {"k0", "k1"}
    busy.close()


def test_what_lies_beyond_retention_is_said(tmp_path) -> None:
    busy = Busy(tmp_path / "store", retain=Retention(uploads=6))
    busy.work(20)
    first = busy.store.snapshots()[0]
    assert first > 10
    reply = busy.act("/v1/rollback", to=first - 1)
    assert (reply.status_code, reply.json()["error"]) == (410, "NotRetained")
    assert f"only those after the events {first} to {busy.store.count} can" in reply.json()["rule"]
    assert busy.act("/v1/rollback", to=busy.store.count + 1).status_code == 410
    reply = busy.act("/v1/members/c1/forget")
    assert (reply.status_code, reply.json()["error"]) == (410, "NotRetained")
    assert f"uploaded before event {first}" in reply.json()["rule"]
    assert busy.act("/v1/rollback", to=first).status_code == 200
    busy.close()


def test_the_disk_is_bounded_by_retention(tmp_path) -> None:
    busy, most = Busy(tmp_path / "store", retain=Retention(uploads=6)), 0
    for _ in range(8):
        busy.work(6)
        most = max(most, len(list((tmp_path / "store" / "blobs").iterdir())))
    assert most < 40  # 48 uploads, three arrays or so for each
    busy.close()


def test_a_forgotten_member_leaves_no_record_no_secret_and_no_upload(busy) -> None:
    busy.work(12)
    names = blobs_of(busy.store, "c1")
    assert names
    wanted = fed_without(busy, "c1")
    told = busy.act("/v1/members/c1/forget").json()
    assert (told["event"], told["left_out"]) == (busy.store.count, 0)
    state = busy.service.coordinator.state
    assert {k: c.params.tobytes() for k, c in state.clusters.items()} == wanted
    assert "c1" not in state.members
    assert "c1" not in busy.store.secrets()
    assert not names & {path.stem for path in (busy.store.folder / "blobs").iterdir()}
    assert busy.fetch("c1").status_code == 401
    assert busy.act("/v1/members/c1/forget").status_code == 404
    reply = busy.act("/v1/rollback", to=busy.store.count - 1)
    assert (reply.status_code, reply.json()["error"]) == (410, "NotRetained")  # it would bring the member back
    before = busy.digest()
    busy.store.close()
    again = Server(busy.store.folder, retain=ALL)
    assert again.digest() == before
    back = again.join("c1", NEW)
    assert decode_task(back.content).number == 5
    again.close()


def test_one_after_another_can_be_forgotten(busy) -> None:
    busy.work(16)
    wanted = fed_without(busy, "c1", "c3")
    assert busy.act("/v1/members/c1/forget").status_code == 200
    assert busy.act("/v1/members/c3/forget").status_code == 200
    state = busy.service.coordinator.state
    assert {k: c.params.tobytes() for k, c in state.clusters.items()} == wanted
    assert sorted(state.members) == ["c0", "c2"]


def test_uploads_between_two_forgettings_count(busy) -> None:
    busy.work(8)
    busy.act("/v1/members/c1/forget")
    del busy.tasks["c1"]
    for client in busy.tasks:
        busy.fetch(client)
    busy.work(6)
    told = busy.act("/v1/members/c3/forget").json()
    assert told["left_out"] == 0
    assert told["version"] == 4 + 4  # of c0 and c2, before and after


def fed_without(busy: Busy, *gone: str) -> dict[str, bytes]:
    """The clusters of a federation that only ever saw what the others uploaded."""
    made = federation().begin()
    for event in busy.store.events():
        if event.client not in gone:
            made.join(event.client, event.samples) if event.kind == "join" else made.upload(event.measured)
    return {k: c.params.tobytes() for k, c in made.state.clusters.items()}


def blobs_of(store: Store, client: str) -> set[str]:
    """The arrays that only the uploads of this client need."""
    own, others = set(), set()
    for event in store.last(store.count):
        for name in names(event):
            (own if event["client"] == client else others).add(name)
    return own - others


def names(tree) -> set[str]:
    if isinstance(tree, dict):
        return {tree["$blob"]} if set(tree) == {"$blob"} else set().union(*(names(item) for item in tree.values()))
    return set().union(*map(names, tree)) if isinstance(tree, list) else set()


def test_rounds_can_be_rolled_back_and_a_member_of_them_forgotten(tmp_path) -> None:
    busy = Busy(tmp_path / "store", FedAvg(clients_per_round=2))
    for _ in range(12):
        client = next(name for name in sorted(busy.service.coordinator.state.members) if opened(busy, name))
        busy.fetch(client)
        assert busy.upload(client).status_code in (200, 202)
    event = busy.store.count - 5
    assert busy.act("/v1/rollback", to=event).status_code == 200
    told = busy.act("/v1/members/c1/forget").json()
    assert told["left_out"] == 0
    reply = busy.act("/v1/members/c2/forget")  # the rounds of before went with c1's uploads
    assert (reply.status_code, reply.json()["error"]) == (410, "NotRetained")
    before = busy.digest()
    busy.store.close()
    again = Server(busy.store.folder, FedAvg(clients_per_round=2), retain=ALL)
    assert again.digest() == before
    again.close()


def opened(busy: Busy, client: str) -> bool:
    return busy.service.coordinator.member(client).receipt is not None


def test_a_crash_just_after_a_forgetting_loses_nothing_of_it(tmp_path, monkeypatch) -> None:
    busy = Busy(tmp_path / "store")
    busy.work(8)
    theirs = blobs_of(busy.store, "c1")
    with monkeypatch.context() as patch:
        patch.setattr(Store, "drop_snapshots_of", broken)
        with pytest.raises(RuntimeError, match="a crash"):
            busy.act("/v1/members/c1/forget")
    before = busy.digest()
    busy.store.close()
    store = Store(tmp_path / "store", federation().identity)
    assert "c1" in store.secrets()
    store.close()
    again = Server(tmp_path / "store", retain=ALL)
    assert again.digest() == before
    assert "c1" not in again.store.secrets()
    assert theirs and not theirs & {path.stem for path in (tmp_path / "store" / "blobs").iterdir()}
    again.close()


@pytest.mark.parametrize("step", ["save", "drop_snapshots_of", "purge", "drop_secret"])
def test_a_crash_just_after_a_second_forgetting_needs_nothing_of_the_first(tmp_path, monkeypatch, step) -> None:
    busy = Busy(tmp_path / "store")
    busy.work(8)
    busy.act("/v1/members/c1/forget")
    for client in ("c0", "c2", "c3"):
        busy.fetch(client)
    del busy.tasks["c1"]
    busy.work(5)
    with monkeypatch.context() as patch:
        patch.setattr(Store, step, broken)
        with pytest.raises(RuntimeError, match="a crash"):
            busy.act("/v1/members/c2/forget")
    before = busy.digest()
    busy.store.close()
    again = Server(tmp_path / "store", retain=ALL)
    assert again.digest() == before
    assert set(again.store.secrets()) == {"c0", "c3"}
    again.close()


def broken(*_, **__) -> None:
    raise RuntimeError("a crash")


def test_a_server_without_a_store_has_no_past(tmp_path) -> None:
    coordinator = federation().begin()
    coordinator.join("c0", 5)
    store = Store(tmp_path, {"a": 1})
    tokens = Tokens(tmp_path / "tokens.json")
    admin = tokens.make("admin", "a")
    app = create_app(coordinator, Auth(tokens, store))
    asked = Server.ask
    reply = asked(None, "POST", "/v1/rollback", admin, app=app, json={"to": 0})
    assert (reply.status_code, reply.json()["rule"]) == (410, "This server keeps no journal")
    store.close()


def test_the_models_are_exported_by_cluster_and_say_nothing_about_clients(busy, tmp_path) -> None:
    busy.work(6)
    data = busy.ask("GET", "/v1/models", busy.admin).content
    tensors, state = load(data), busy.service.coordinator.state
    assert sorted(tensors) == ["k0/mean", "k0/steps", "k0/weight", "k1/mean", "k1/steps", "k1/weight"]
    assert (tensors["k1/weight"] == MODEL.layout.unpack(state.clusters["k1"].params)["weight"]).all()
    head = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"]
    assert (head["version"], head["event"]) == (str(state.version), str(busy.store.count))
    assert not any(client in text for text in head.values() for client in state.members)
    path = tmp_path / "models.safetensors"
    path.write_bytes(data)
    started = replace(federation(), start=start_from(path, MODEL)).begin()
    assert {k: c.params.tobytes() for k, c in started.state.clusters.items()} == {
        k: c.params.tobytes() for k, c in state.clusters.items()
    }


def test_a_member_has_one_standing() -> None:
    from artesian.server.operating import describe_member, standing_of

    assert describe_member("c0", None) is None
    assert standing_of(Member(1)) == "member"
    assert standing_of(Member(1, quarantined=True, revoked=True)) == "revoked"
