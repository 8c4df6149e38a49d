"""The live page in process: who gets in, what it is told, and that no other site can act through a browser."""

import asyncio
import json

import pytest
from promises.federation import SECRET, Server, answer, trained
from starlette.requests import ClientDisconnect

from artesian.core import Act
from artesian.dashboard.assets import HEADERS, assets
from artesian.errors import Busy
from artesian.server import limits, page_routes
from artesian.server.limits import Limits
from artesian.server.messages import decode_task
from artesian.server.operating import Operator
from artesian.server.page_facts import PageFacts
from artesian.server.page_routes import COOKIE, CSRF, PageRoutes
from artesian.server.page_sessions import IDLE, LONGEST, PageSessions
from artesian.server.settings import Settings
from artesian.storage.codec import encode, to_tree

OWN = {"origin": "http://test"}


@pytest.fixture
def server(tmp_path):
    made = Server(tmp_path / "store")
    yield made
    made.close()


def login(server: Server, token: str | None = None, **headers) -> tuple[dict, str, str]:
    """The headers of a browser that signed in, its CSRF token, and the cookie as it was set."""
    body = {"token": server.admin if token is None else token}
    reply = server.ask("POST", "/page/login", headers={**OWN, **headers}, json=body)
    assert reply.status_code == 200, reply.text
    cookie = reply.headers["set-cookie"]
    return {"cookie": cookie.partition(";")[0], **OWN}, reply.json()["csrf"], cookie


def upload(server: Server, client: str = "c0", **changes) -> None:
    task = server.join(client).content
    number = decode_task(task).number
    body = encode("upload", {**to_tree(trained(client, task)), **changes}) if changes else answer(client, task)
    reply = server.ask("PUT", f"/v1/clients/{client}/uploads/{number}", SECRET, content=body)
    assert reply.status_code == 200, reply.text


def routes_of(server: Server, **settings) -> PageRoutes:
    chosen, coordinator = Settings(**settings), server.service.coordinator
    limits = Limits(chosen, coordinator.state.layout, 1)
    return PageRoutes(server.service, server.auth, chosen, limits, Operator(server.service))


def test_the_page_is_served_to_anybody_and_tells_nothing(server) -> None:
    server.join("c0")
    for path, asset in assets().items():
        reply = server.ask("GET", f"/{path}")
        assert (reply.status_code, reply.content) == (200, asset.body)
        assert reply.headers["content-type"] == asset.kind
        assert {name: reply.headers[name] for name in HEADERS} == dict(HEADERS)
        again = server.ask("GET", f"/{path}", headers={"if-none-match": asset.tag})
        assert (again.status_code, again.content) == (304, b"")


def test_other_routes_have_no_headers_of_the_page(server) -> None:
    assert "content-security-policy" not in server.ask("GET", "/healthz").headers


def test_a_wrong_token_opens_nothing(server) -> None:
    for token in ("wrong", "", server.enrol, SECRET):
        reply = server.ask("POST", "/page/login", headers=OWN, json={"token": token})
        assert (reply.status_code, reply.json()["error"]) == (401, "Unauthorized")
        assert "set-cookie" not in reply.headers


@pytest.mark.parametrize("body", [b"", b"[]", b'{"token": 5}', b'"x"', b'{"token": "\\u00fc"}'])
def test_a_login_that_is_no_login_is_refused(server, body) -> None:
    assert server.ask("POST", "/page/login", headers=OWN, content=body).status_code == 400


def test_guesses_are_limited_like_other_refusals(tmp_path) -> None:
    server = Server(tmp_path / "store", settings=Settings(refusals_per_minute=2))
    guess = lambda token: server.ask("POST", "/page/login", headers=OWN, json={"token": token})  # noqa: E731
    assert [guess("wrong").status_code for _ in range(3)] == [401, 401, 429]
    assert guess(server.admin).status_code == 429  # a stranger's good guess is not checked, either
    server.close()


def test_the_cookie_is_for_the_page_alone(server) -> None:
    headers, _, cookie = login(server)
    told = cookie.lower()
    assert "httponly" in told
    assert "samesite=strict" in told
    assert "secure" not in told
    assert "path" not in told  # so that it goes to /page below whatever prefix, and to nothing else
    assert "domain" not in told
    for path in ("/v1/members", "/v1/federation", "/metrics"):
        assert server.ask("GET", path, headers=headers).status_code == 401


def test_the_cookie_is_secure_where_the_operator_says_so(tmp_path) -> None:
    server = Server(tmp_path / "store", settings=Settings(secure_cookie=True))
    assert "secure" in login(server)[2].lower()
    server.close()


def test_the_cookie_is_secure_over_tls(server) -> None:
    reply = server.ask(
        "POST", "https://test/page/login", headers={"origin": "https://test"}, json={"token": server.admin}
    )
    assert "secure" in reply.headers["set-cookie"].lower()


def test_the_session_opens_the_page(server) -> None:
    headers, csrf, _ = login(server)
    told = server.ask("GET", "/page/session", headers=headers)
    assert told.json() == {"csrf": csrf, "by": "a0", "acts": True}
    assert told.headers["cache-control"] == "no-store"
    assert server.ask("GET", "/page/clients/c0", headers=headers).json() == []
    assert server.ask("GET", "/page/session", server.admin).status_code == 401  # a bearer token opens /v1, not this


def test_an_act_needs_cookie_token_and_origin(server) -> None:
    server.join("c0")
    headers, csrf, _ = login(server)
    act = lambda told: server.ask("POST", "/page/members/c0/quarantine", headers=told, json={"why": "odd"})  # noqa: E731
    for bad in (
        {**headers},
        {**headers, CSRF: "wrong"},
        {**headers, CSRF: csrf, "origin": "http://evil.example"},
        {"cookie": headers["cookie"], CSRF: csrf},
        {**headers, CSRF: csrf, "sec-fetch-site": "cross-site"},
        {**headers, CSRF: csrf, "sec-fetch-site": "same-site"},
        {CSRF: csrf, **OWN},
    ):
        assert act(bad).status_code == 401, bad
    assert not server.service.coordinator.member("c0").quarantined
    done = act({**headers, CSRF: csrf})
    assert (done.status_code, done.json()["member"]["standing"]) == (200, "quarantined")


def test_an_act_is_written_down_under_the_tokens_name(server) -> None:
    server.join("c0")
    headers, csrf, _ = login(server)
    own = {**headers, CSRF: csrf}
    assert server.ask("POST", "/page/members/c0/revoke", headers=own, json={"why": "lost"}).status_code == 200
    event = list(server.store.events())[-1]
    assert (event.kind, event.act) == ("revoke", Act("a0", "lost"))
    assert server.ask("POST", "/page/members/nobody/revoke", headers=own, json={}).status_code == 404
    assert server.ask("POST", "/page/rollback", headers=own, json={"to": "x"}).status_code == 400
    assert server.ask("POST", "/page/rollback", headers=own, json={"to": 1, "why": "a test"}).status_code == 200
    said = ["revoked by a0: lost", "rolled back to the state after event 1 by a0: a test"]
    again = PageFacts(server.service)  # as after a restart
    for facts in (routes_of(server).facts, again):
        assert [notice["text"] for notice in facts.chronicle.facts()["notices"] if notice["kind"] == "act"][:2] == said


def test_forgetting_on_the_page_forgets_on_the_page(tmp_path) -> None:
    server = Server(tmp_path / "store", keep_uploads=True)
    upload(server)
    headers, csrf, _ = login(server)
    assert [told["number"] for told in server.ask("GET", "/page/clients/c0", headers=headers).json()] == [1]
    done = server.ask("POST", "/page/members/c0/forget", headers={**headers, CSRF: csrf}, json={"why": "asked"})
    assert done.status_code == 200, done.text
    assert server.ask("GET", "/page/clients/c0", headers=headers).json() == []
    server.close()


def test_signing_out_ends_the_session(server) -> None:
    headers, csrf, _ = login(server)
    assert server.ask("POST", "/page/logout", headers=headers).status_code == 401  # nobody else's page signs out
    assert server.ask("POST", "/page/logout", headers={**headers, CSRF: csrf}).status_code == 204
    assert server.ask("GET", "/page/session", headers=headers).status_code == 401


@pytest.mark.parametrize("change", ["revoke", "rotate"])
def test_a_session_ends_with_its_token(server, change) -> None:
    headers, _, _ = login(server)
    assert server.ask("GET", "/page/session", headers=headers).status_code == 200
    server.tokens.revoke("a0") if change == "revoke" else server.tokens.rotate("a0")
    assert server.ask("GET", "/page/session", headers=headers).status_code == 401


def test_sessions_end_when_they_are_idle_or_old() -> None:
    now = [0.0]
    sessions = PageSessions(lambda _: "same", lambda: now[0])
    idle, _ = sessions.begin("a")
    now[0] = IDLE + 1
    assert sessions.find(idle) is None
    busy, _ = sessions.begin("a")
    began = now[0]
    while now[0] - began + IDLE / 2 <= LONGEST:
        now[0] += IDLE / 2
        assert sessions.find(busy) is not None
    now[0] += IDLE / 2
    assert sessions.find(busy) is None


def test_sessions_are_bounded_in_number(monkeypatch) -> None:
    monkeypatch.setattr("artesian.server.page_sessions.MOST", 2)
    sessions = PageSessions(lambda _: "same")
    keys = [sessions.begin("a")[0] for _ in range(3)]
    assert [sessions.find(key) is not None for key in keys] == [False, True, True]


def test_the_page_can_be_switched_off(tmp_path) -> None:
    server = Server(tmp_path / "store", settings=Settings(page=False))
    assert [server.ask("GET", path).status_code for path in ("/", "/page/app.js", "/page/session")] == [404] * 3
    assert server.service.observe is None
    server.close()


# what it is told


def read(server: Server, routes: PageRoutes, key: str, messages: int) -> list[dict]:
    """The first messages of a stream."""

    async def follow() -> list[dict]:
        found, stream = [], routes._stream(key)
        async for chunk in stream:
            if chunk.startswith(b"event: "):
                found.append(json.loads(chunk.split(b"data: ", 1)[1]))
            if len(found) == messages:
                break
        await stream.aclose()
        return found

    return asyncio.run(follow())


def test_the_stream_begins_with_everything(server) -> None:
    upload(server, "c0")
    routes = routes_of(server)
    key, _ = routes.sessions.begin("a0")
    (told,) = read(server, routes, key, 1)
    assert (told["whole"], told["about"]["name"], told["about"]["algorithm"]) == (True, "toy", "cdfl")
    assert (told["totals"]["members"], told["totals"]["version"]) == (1, 1)
    assert told["clusters"] == ["k0", "k1"]
    (row,) = told["members"]
    assert (row["client"], row["answered"], row["standing"], row["present"]) == ("c0", 1, "member", True)
    assert sum(row["mixture"].values()) == pytest.approx(1, abs=0.002)


def test_uploads_are_noted_with_staleness_and_what_the_client_reports(server) -> None:
    routes = routes_of(server)
    first = {name: server.join(name).content for name in ("c0", "c1")}  # both tasks are of version 0
    for name, task in first.items():
        body = encode("upload", {**to_tree(trained(name, task)), "metrics": REPORT})
        assert server.ask("PUT", f"/v1/clients/{name}/uploads/1", SECRET, content=body).status_code == 200
    (one,), (two,) = (routes.facts.chronicle.history(name) for name in first)
    assert (one["staleness"], two["staleness"]) == (0, 1)
    assert (one["before"], one["after"], one["drift"]) == (0.5, 0.75, 1.0)
    told = routes.facts.chronicle.facts()
    assert told["staleness"] == [("0", 1), ("1", 1)]
    assert {"loss/k0", "loss/k1", "uploads"} <= set(told["series"])
    assert [notice["kind"] for notice in told["notices"]] == ["membership", "membership", "drift", "drift"]


REPORT = {"score_before": 0.5, "score_after": 0.75, "drift": 1.0}


def test_nothing_is_looked_up_while_nobody_watches(server) -> None:
    routes = routes_of(server)
    upload(server)
    assert "totals" not in routes.facts.chronicle.facts()
    assert routes.facts.chronicle.facts()["members"] == []
    routes.facts.refresh()
    assert routes.facts.chronicle.facts()["totals"]["members"] == 1


def test_only_members_that_changed_are_told_again(server) -> None:
    routes = routes_of(server)
    upload(server, "c0")
    upload(server, "c1")
    mark, _ = routes._news(0)
    routes.facts._fresh_until = 0.0
    server.ask("DELETE", "/v1/clients/c1", SECRET)
    _, message = routes._news(mark)
    told = json.loads(message.split(b"data: ", 1)[1])
    assert [(row["client"], row["present"]) for row in told["members"]] == [("c1", False)]


def test_a_failed_snapshot_is_an_alarm(server) -> None:
    routes = routes_of(server)
    server.service.counts.snapshots_failed += 1
    routes.facts.refresh()
    (notice,) = routes.facts.chronicle.facts()["notices"]
    assert (notice["kind"], notice["text"]) == ("alarm", "A snapshot could not be written: check the disk")


def test_clusters_are_scored_on_their_proxy_sets_while_somebody_watches(server) -> None:
    routes = routes_of(server)
    asyncio.run(routes.facts.scores.update())
    clusters, proxies = server.service.coordinator.state.clusters, server.service.coordinator.proxies
    found = routes.facts.chronicle.facts()["series"]
    for k, cluster in clusters.items():
        wanted = proxies[k].score(((1.0, cluster.params),))
        assert found[f"accuracy/{k}"]["points"][0][1] == pytest.approx(wanted, rel=1e-4)
    asyncio.run(routes.facts.scores.update())  # not again so soon
    assert routes.facts.chronicle.facts()["series"] == found


def test_a_stream_ends_when_the_server_stops_and_when_the_session_does(server, monkeypatch) -> None:
    monkeypatch.setattr(page_routes, "TICK", 0.001)
    routes = routes_of(server)
    key, _ = routes.sessions.begin("a0")

    async def follow(end) -> list[bytes]:
        found = []
        async for chunk in routes._stream(key):
            found.append(chunk)
            end()
        return found

    assert b"event: over" in asyncio.run(follow(lambda: routes.sessions.end(key)))[-1]
    key, _ = routes.sessions.begin("a0")
    assert asyncio.run(follow(server.service.stopping.set))[0].startswith(b"retry")
    assert routes.watching == 0


def test_watchers_are_bounded_also_when_they_come_at_once(server) -> None:
    routes = routes_of(server, watchers=1)
    key, _ = routes.sessions.begin("a0")

    class Asked:
        cookies = {COOKIE: key}  # noqa: RUF012
        headers: dict[str, str] = {}  # noqa: RUF012

    async def gone(_) -> None:
        raise OSError

    async def ask() -> None:
        first = await routes.events(Asked())
        with pytest.raises(Busy, match="Too many browsers follow the page"):
            await routes.events(Asked())  # though the stream of the first has not begun
        with pytest.raises(ClientDisconnect):
            await first({"type": "http", "asgi": {"spec_version": "2.4"}}, None, gone)
        await routes.events(Asked())  # and there is room again

    asyncio.run(ask())


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_another_page_cannot_use_up_the_watchers(server, site) -> None:
    headers, _, _ = login(server)
    for path in ("/page/session", "/page/clients/c0", "/page/events"):
        reply = server.ask("GET", path, headers={**headers, "sec-fetch-site": site})
        assert (reply.status_code, reply.json()["rule"]) == (401, "The request does not come from the page itself")
    assert server.ask("GET", "/page/session", headers={**headers, "sec-fetch-site": "same-origin"}).status_code == 200


@pytest.mark.parametrize("origin", ["http://[", "http://[::1", "null", "", "//"])
def test_an_origin_that_is_none_is_refused(server, origin) -> None:
    reply = server.ask("POST", "/page/login", headers={"origin": origin}, json={"token": server.admin})
    assert (reply.status_code, reply.json()["error"]) == (401, "Unauthorized")


def test_logins_that_trickle_make_room_for_others(server, monkeypatch) -> None:
    monkeypatch.setattr(limits, "STRANGERS", 2)
    own = routes_of(server).limits

    async def trickle(first: bytes):
        yield first
        await asyncio.Event().wait()

    async def at_once():
        yield b"whole"

    async def receive() -> list[str]:
        slow = [asyncio.create_task(own.receive_from_stranger(trickle(b"x"))) for _ in range(5)]
        await asyncio.sleep(0)
        assert await own.receive_from_stranger(at_once()) == b"whole"
        told = await asyncio.gather(*slow[:4], return_exceptions=True)
        assert not slow[4].done()  # of two places, whoever was quick took one and gave it back
        slow[4].cancel()
        await asyncio.wait(slow[4:])
        return list(map(str, told))

    told = asyncio.run(receive())
    assert told == ["Too many slow requests without a credential are under way. Try again later."] * 4
    assert not own._strangers


def test_a_page_that_cannot_note_an_upload_costs_it_nothing(server, caplog) -> None:
    def fails(event, version) -> None:
        raise RuntimeError("a mistake of the page")

    server.service.observe = fails
    upload(server)
    assert server.service.coordinator.state.members["c0"].answered == 1
    assert "the live page could not note an event" in caplog.text


def test_a_restart_does_not_empty_the_page(tmp_path) -> None:
    first = Server(tmp_path / "store")
    upload(first, "c0", metrics=REPORT)
    first.close()
    again = Server(tmp_path / "store")
    routes = routes_of(again)
    (told,) = routes.facts.chronicle.history("c0")
    assert (told["number"], told["before"], told["after"]) == (1, 0.5, 0.75)
    series = routes.facts.chronicle.facts()["series"]
    assert [count for _, _, count in series["uploads"]["points"]] == [1]
    assert series["loss/k0"]["points"][0][1] > 0
    again.close()
