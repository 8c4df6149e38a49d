"""A proof that cannot fail proves nothing: take each safeguard away, and the promise that rests on it must go red.

Left-out syncs, unpickled bodies, growth, leaks and odd file names are shown beside their own promises.
"""

import pytest
from promises.checks import lost_or_twice, untyped
from promises.federation import SECRET, Server, draws, trained
from promises.test_p03_refused_changes_nothing import Bench, check_refusals
from promises.test_p10_bad_credentials import check_routes
from promises.test_p13_tampering import check_cut, left_behind
from promises.test_p23_undone import check_forgotten, check_revoked, check_rollbacks

import artesian.engine.coordinator
import artesian.engine.rebuilding
import artesian.engine.reverting
import artesian.server.routes
from artesian.algorithms import CDFL
from artesian.server.auth import Auth
from artesian.server.limits import Limits
from artesian.server.service import Service
from artesian.storage.codec import digest, encode, to_tree
from artesian.storage.store import Store


def nothing(*_, **__) -> None:
    """A safeguard that is not there."""


def vast(self, settings, layout, models) -> None:
    """Limits without a limit on the size of a body."""
    real_limits(self, settings, layout, models)
    self.largest = 10**18


real_limits = Limits.__init__


@pytest.mark.parametrize(
    ("reason", "place", "name", "without"),
    [
        ("Conflict", artesian.engine.coordinator, "check_retry", nothing),
        ("TaskClosed", artesian.engine.coordinator, "check_retry", nothing),
        ("UnknownTask", artesian.engine.coordinator, "check_retry", nothing),
        ("BadMixture", artesian.engine.coordinator, "check_mixture", nothing),
        ("TooLarge", Limits, "__init__", vast),
        ("Busy", Limits, "count", nothing),
        ("Unauthorized", Auth, "client", nothing),
    ],
)
def test_without_a_check_its_refusal_is_missed(tmp_path, promise, monkeypatch, reason, place, name, without) -> None:
    promise("meta")
    monkeypatch.setattr(place, name, without)
    bench = Bench(tmp_path / "store")
    with pytest.raises((AssertionError, MemoryError)):
        check_refusals(bench, reason, 5)
    bench.server.close()


def test_without_the_credential_check_the_walk_over_the_routes_goes_red(tmp_path, promise, monkeypatch) -> None:
    promise("meta")
    server = Server(tmp_path / "store")
    monkeypatch.setattr(Auth, "client", nothing)
    with pytest.raises(AssertionError):
        check_routes(server, {"authorization": "Bearer wrong"})
    server.close()


def test_without_the_mark_a_cut_log_is_not_seen(tmp_path, promise, monkeypatch) -> None:
    promise("meta")
    crashed, rng = left_behind(tmp_path), draws("meta")
    monkeypatch.setattr(Store, "_check_mark", nothing)
    monkeypatch.setattr(Store, "_read_mark", lambda _: (0, ""))
    with pytest.raises(AssertionError, match="is another"):
        sum(check_cut(crashed, tmp_path, rng) for _ in range(40))


def test_a_server_that_forgets_an_event_is_seen(tmp_path, promise, monkeypatch) -> None:
    promise("meta")
    monkeypatch.setattr(Service, "_record", nothing)
    server = Server(tmp_path / "store")
    upload = trained("c0", server.join().content)
    assert server.ask("PUT", "/v1/clients/c0/uploads/1", SECRET, content=encode("upload", upload)).status_code == 200
    journal = [event.measured.upload for event in server.store.events() if event.measured]
    sent, key = {("c0", 1): digest(to_tree(upload))}, ("c0", 1)
    assert lost_or_twice(sent, [key], journal) == ["('c0', 1) was acknowledged and is lost"]
    assert lost_or_twice(sent, [key], [upload, upload]) == ["('c0', 1) is there 2 times"]
    assert lost_or_twice({}, [], [upload]) == ["('c0', 1) was never sent"]
    assert lost_or_twice({key: "another"}, [key], [upload]) == ["('c0', 1) has another body"]
    assert lost_or_twice(sent, [key], [upload]) == []
    server.close()


def test_an_untyped_answer_is_seen() -> None:
    for status, body in ((500, b"Internal Server Error"), (404, b'{"detail": "Not Found"}'), (400, b"")):
        assert untyped(status, body)
    assert untyped(400, b'{"error": "Conflict", "rule": "a", "got": "b", "remedy": "c"}')  # 409, by its kind


@pytest.mark.parametrize(
    ("place", "name", "without", "check"),
    [
        (artesian.engine.rebuilding.Rebuilding, "is_left_out", lambda *_: False, check_forgotten),
        (artesian.engine.coordinator.Coordinator, "sibling", lambda self, *_: self, check_rollbacks),
        (artesian.engine.reverting, "_reverted", lambda member, then: then or member, check_rollbacks),
    ],
)
def test_without_its_safeguard_nothing_is_undone(tmp_path, promise, monkeypatch, place, name, without, check) -> None:
    promise("meta")
    monkeypatch.setattr(place, name, without)
    with pytest.raises(AssertionError):
        check(tmp_path / "store", CDFL(), 40)


@pytest.mark.parametrize("place", [artesian.engine.coordinator, artesian.server.routes])
def test_without_the_check_of_its_standing_a_revoked_member_acts(tmp_path, promise, monkeypatch, place) -> None:
    """The routes and the engine both check: only without the routes' own is a request let in."""
    promise("meta")
    monkeypatch.setattr(artesian.server.routes, "check_welcome", nothing)
    monkeypatch.setattr(place, "check_welcome", nothing)
    server = Server(tmp_path / "store")
    with pytest.raises(AssertionError):
        check_revoked(server, "c0", SECRET)
    server.close()
