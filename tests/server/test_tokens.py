"""Tokens and secrets: slow hashes that cost once, expiry, quotas that survive a kill, older hashes upgraded."""

import asyncio
import json
from dataclasses import asdict

import pytest
from promises.federation import SECRET, Server

from artesian.errors import Busy, SettingError, Unauthorized
from artesian.server import hashing
from artesian.server.auth import Auth, check_secret
from artesian.server.hashing import Hashes, fingerprint, is_older, matches, slow_hash
from artesian.server.tokens import Token, Tokens, described, seconds_of
from artesian.storage.reading import read_enrolments
from artesian.storage.store import Store


@pytest.fixture
def slow_hashes() -> None:
    """As slow as those of a server."""


@pytest.mark.usefixtures("slow_hashes")
def test_a_hash_is_salted_and_matches_its_text_alone() -> None:
    one, two = slow_hash("a text"), slow_hash("a text")
    assert one != two
    assert matches("a text", one) and matches("a text", two)
    for wrong in ("", "a tex", "a text "):
        assert not matches(wrong, one)
    assert matches("a text", fingerprint("a text")) and not matches("a", fingerprint("a text"))
    assert is_older(fingerprint("a text")) and not is_older(one)
    for broken in ("scrypt$", "scrypt$14$zz$00", "scrypt$14$00", one[:-2]):
        assert not matches("a text", broken)


@pytest.mark.usefixtures("slow_hashes")
def test_a_text_is_checked_slowly_once(monkeypatch) -> None:
    made, slow = slow_hash("a text"), []
    monkeypatch.setattr(hashing, "matches", lambda text, _: slow.append(text) or text == "a text")
    hashes = Hashes()

    async def ask() -> list[bool]:
        return [await hashes.match(text, made) for text in ("wrong", "a text", "a text", "wrong")]

    assert asyncio.run(ask()) == [False, True, True, False]
    assert slow == ["wrong", "a text"]  # once it matched, every other text is wrong
    assert hashes.has_matched("a text") and not hashes.has_matched("wrong")


@pytest.mark.usefixtures("slow_hashes")
def test_too_many_slow_checks_at_once_are_refused(monkeypatch) -> None:
    monkeypatch.setattr(hashing, "WAITING", 2)
    hashes, made = Hashes(), slow_hash("a text")

    async def ask() -> list:
        return await asyncio.gather(*(hashes.match("wrong", made) for _ in range(4)), return_exceptions=True)

    assert [type(found) for found in asyncio.run(ask())] == [bool, bool, Busy, Busy]


@pytest.mark.parametrize(
    "secret", ["short", "x" * 16, "abababababababab", "abcdefgabcdefgabcdefg", "ü" * 20, "y" * 201]
)
def test_a_weak_secret_is_refused(tmp_path, secret) -> None:
    server = Server(tmp_path / "store")
    assert server.join(secret=secret).status_code == 401
    with pytest.raises(Unauthorized):
        check_secret(secret)
    assert server.store.secrets() == {}
    server.close()


@pytest.mark.usefixtures("slow_hashes")
def test_a_member_with_a_weak_secret_of_an_older_version_stays_and_its_hash_is_upgraded(tmp_path) -> None:
    server = Server(tmp_path / "store")
    server.join()
    server.store.replace_secret("c0", fingerprint("x" * 16))
    server.auth = Auth(server.tokens, server.store)
    server.close()
    again = Server(tmp_path / "store")
    assert is_older(again.store.secrets()["c0"])
    assert again.ask("GET", "/v1/clients/c0/task", "y" * 16).status_code == 401
    assert is_older(again.store.secrets()["c0"])
    for _ in range(2):
        assert again.ask("GET", "/v1/clients/c0/task", "x" * 16).status_code == 200
    assert not is_older(again.store.secrets()["c0"])
    assert again.join(secret="x" * 16).status_code == 200
    again.close()
    third = Server(tmp_path / "store")
    assert third.ask("GET", "/v1/clients/c0/task", "x" * 16).status_code == 200
    third.close()


def test_a_token_of_an_older_version_is_taken_and_upgraded(tmp_path) -> None:
    server = Server(tmp_path / "store")
    older = {"name": "old", "scope": "enrol", "hash": fingerprint("an old token"), "revoked": False}
    kept = [asdict(token) for token in server.tokens.all()]
    server.tokens.path.write_text(json.dumps({"format": 1, "tokens": [*kept, older]}))
    body = {"samples": 5, "secret": SECRET}
    assert server.ask("PUT", "/v1/clients/c0", "an old toke", json=body).status_code == 401
    for _ in range(2):
        assert server.ask("PUT", "/v1/clients/c0", "an old token", json=body).status_code == 200
    assert not is_older(next(token for token in server.tokens.all() if token.name == "old").hash)
    server.close()


def test_a_token_expires(tmp_path) -> None:
    store, tokens, now = Store(tmp_path, {"a": 1}), Tokens(tmp_path / "tokens.json"), [1000.0]
    text = tokens.make("enrol", "spring", expires=1060.0)
    auth = Auth(tokens, store, clock=lambda: now[0])
    assert asyncio.run(auth.enrolment(text)).name == "spring"
    now[0] = 1060.0
    with pytest.raises(Unauthorized, match="not a valid enrolment token"):
        asyncio.run(auth.enrolment(text))
    assert described(tokens.all(), {}, now[0])[0]["state"] == "expired"
    store.close()


def test_a_quota_is_counted_by_members_and_survives_a_kill(tmp_path) -> None:
    server = Server(tmp_path / "store")
    twice = server.tokens.make("enrol", "twice", joins=2)

    def join(client: str, at: Server, secret: str = SECRET) -> int:
        return at.ask("PUT", f"/v1/clients/{client}", twice, json={"samples": 5, "secret": secret}).status_code

    assert [join("a", server), join("a", server), join("a", server, "another secret")] == [200, 200, 401]
    left = {row["name"]: row["left"] for row in described(server.tokens.all(), read_enrolments(tmp_path / "store"), 0)}
    assert left["twice"] == 1
    server.store.close()  # no orderly end
    again = Server(tmp_path / "store")
    assert [join("b", again), join("c", again), join("a", again)] == [200, 401, 200]
    told = again.ask("PUT", "/v1/clients/c", twice, json={"samples": 5, "secret": SECRET}).json()
    assert told["rule"] == "This enrolment token has let 2 clients join"
    row = next(r for r in described(again.tokens.all(), again.store.enrolments(), 0) if r["name"] == "twice")
    assert (row["state"], row["joined"], row["left"]) == ("used up", 2, 0)
    assert set(again.store.secrets()) == {"a", "b"}
    again.close()


def test_two_clients_at_once_do_not_share_a_single_use(tmp_path) -> None:
    server = Server(tmp_path / "store")
    once = server.tokens.make("enrol", "once", joins=1)

    async def both() -> list[int]:
        import httpx

        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=server.app), base_url="http://test") as http:
            asked = [
                http.put(f"/v1/clients/{name}", json={"samples": 5, "secret": SECRET}, headers=bearer(once))
                for name in "abc"
            ]
            return sorted(answer.status_code for answer in await asyncio.gather(*asked))

    assert asyncio.run(both()) == [200, 401, 401]
    server.close()


def bearer(text: str) -> dict[str, str]:
    return {"authorization": f"Bearer {text}"}


def test_durations_have_units() -> None:
    assert [seconds_of(text) for text in ("90s", "30m", "12h", "7d", "2w")] == [90, 1800, 43200, 604800, 1209600]
    for wrong in ("", "7", "d", "-1d", "1.5h", "7 d"):
        with pytest.raises(SettingError, match="Not a duration"):
            seconds_of(wrong)
    for wrong in ("0d", "5001w", "999999999999s"):
        with pytest.raises(SettingError, match=r"is no time to expire in\. Choose one from 1s to 5000w"):
            seconds_of(wrong)


@pytest.mark.parametrize("name", ["", "  ", "a\nb"])
def test_a_token_has_a_name_that_can_be_read(tmp_path, name) -> None:
    with pytest.raises(SettingError, match="cannot be the name of a token"):
        Tokens(tmp_path / "tokens.json").make("admin", name)


def test_a_token_may_only_be_the_text_its_hint_says() -> None:
    token = Token("n", "enrol", "").rehashed("the text")
    assert token.may_be("the text") and not token.may_be("another")
