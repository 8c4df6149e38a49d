"""A proof that cannot fail proves nothing: take each safeguard away, and the promise that rests on it must go red.

Left-out syncs, unpickled bodies, growth, leaks, odd file names and crowds are shown beside their own promises.
"""

import sqlite3
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from math import inf

import numpy as np
import pytest
from promises.checks import lost_or_twice, untyped
from promises.federation import SECRET, Server, draws, trained
from promises.test_p03_refused_changes_nothing import Bench, check_refusals
from promises.test_p10_bad_credentials import check_routes
from promises.test_p12_secrets import leaks
from promises.test_p13_tampering import check_cut, left_behind
from promises.test_p16_bounded_influence import ALGORITHMS, check_sequence
from promises.test_p18_backups import check_backup
from promises.test_p22_one_of_twenty import check_attack, check_flood
from promises.test_p23_undone import check_forgotten, check_replaced, check_revoked, check_rollbacks
from promises.test_p24_same_answers import check_altered
from promises.test_p26_acknowledged import check_forgeries
from server.test_tokens import test_a_quota_is_counted_by_members_and_survives_a_kill as check_quota

import artesian.engine.coordinator
import artesian.engine.rebuilding
import artesian.engine.reverting
import artesian.server.hashing
import artesian.server.replaying
import artesian.server.routes
import artesian.storage.acknowledgement
import artesian.storage.copying
from artesian.algorithms import CDFL, FedAsync
from artesian.core import Measured, Receipt
from artesian.engine.defence import Defence
from artesian.errors import Refused, StorageError, TooFar
from artesian.params import seal
from artesian.server.auth import Auth, Bearer
from artesian.server.limits import Limits
from artesian.server.service import Service
from artesian.storage.codec import digest, encode, to_tree
from artesian.storage.store import Store
from artesian.testing import ToyFederation

pytestmark = pytest.mark.heavy  # all together they are


def nothing(*_, **__) -> None:
    """A safeguard that is not there."""


async def nobody_asked(self, credential, client) -> Bearer:
    """A credential check that is not there."""
    return Bearer(client)


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
        ("Unauthorized", Auth, "client", nobody_asked),
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
    monkeypatch.setattr(Auth, "client", nobody_asked)
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


def test_without_comparing_digests_altered_code_is_not_seen(tmp_path, promise, monkeypatch) -> None:
    promise("meta")
    monkeypatch.setattr(artesian.server.replaying, "different", lambda *_: [])
    with pytest.raises(AssertionError, match="other answers, unseen"):
        check_altered(tmp_path, "cdfl", draws("meta"))


def test_without_holding_the_arrays_they_vanish_under_a_backup(tmp_path, promise, monkeypatch) -> None:
    promise("meta")
    monkeypatch.setattr(artesian.storage.copying, "shared", nullcontext)
    server = Server(tmp_path / "store")
    with pytest.raises(AssertionError, match="dropped under the hands of a backup"):
        check_backup(server, tmp_path)
    server.close()


def test_without_taking_it_again_a_backup_lacks_what_vanished(tmp_path, promise, monkeypatch) -> None:
    promise("meta")
    monkeypatch.setattr(artesian.storage.copying, "shared", nullcontext)
    real = artesian.storage.copying._copy_arrays
    monkeypatch.setattr(artesian.storage.copying, "_copy_arrays", lambda *told: ("", real(*told)[1]))
    server = Server(tmp_path / "store")
    with pytest.raises(StorageError, match="The stored array is missing"):
        check_backup(server, tmp_path)
    server.close()


def test_without_its_log_a_backup_lacks_what_was_acknowledged(tmp_path, promise, monkeypatch) -> None:
    promise("meta")
    server = Server(tmp_path / "store", keep_uploads=True)
    database, log = tmp_path / "store" / "artesian.db", tmp_path / "store" / "artesian.db-wal"
    server.service._save()
    with sqlite3.connect(database) as other:
        other.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # what comes from here on is only in the log
    other.close()
    monkeypatch.setattr(artesian.storage.copying, "connection", without_log)
    monkeypatch.setattr(artesian.storage.copying, "behind", lambda *_: "")
    with pytest.raises(AssertionError, match="an acknowledged event is missing"):
        check_backup(server, tmp_path)
    assert log.stat().st_size
    server.close()


@contextmanager
def without_log(folder):
    """A connection that reads the database alone."""
    view = sqlite3.connect(f"file:{folder / 'artesian.db'}?immutable=1", uri=True)
    yield view
    view.close()


def test_a_server_that_forgets_an_event_is_seen(tmp_path, promise, monkeypatch) -> None:
    promise("meta")
    monkeypatch.setattr(Service, "_record", nothing)
    server = Server(tmp_path / "store")
    upload = trained("c0", server.join().content)
    assert server.ask("PUT", "/v1/clients/c0/uploads/1", SECRET, content=encode("upload", upload)).status_code == 200
    journal = [event.measured for event in server.store.events() if event.measured]
    told = Measured(upload, Receipt(1, 0, "train", ()))
    sent, key = {("c0", 1): digest(to_tree(upload))}, ("c0", 1)
    assert lost_or_twice(sent, [key], journal) == ["('c0', 1) was acknowledged and is lost"]
    assert lost_or_twice(sent, [key], [told, told]) == ["('c0', 1) is there 2 times"]
    assert lost_or_twice({}, [], [told]) == ["('c0', 1) was never sent"]
    assert lost_or_twice({key: "another"}, [key], [told]) == ["('c0', 1) has another body"]
    assert lost_or_twice(sent, [key], [told]) == []
    server.close()


def test_without_the_signature_check_a_forged_acknowledgement_is_taken(tmp_path, promise, monkeypatch) -> None:
    promise("meta")
    monkeypatch.setattr(artesian.storage.acknowledgement, "_is_signed", lambda *_: True)
    with pytest.raises(AssertionError, match="was taken for genuine"):
        check_forgeries(tmp_path, 30, draws("meta"))


def test_a_server_that_counts_no_joins_is_seen(tmp_path, promise, monkeypatch) -> None:
    promise("meta")
    monkeypatch.setattr(Store, "enrolments", lambda _: {})
    with pytest.raises(AssertionError):
        check_quota(tmp_path)


def test_a_server_that_keeps_secrets_as_they_are_is_seen(tmp_path, promise, monkeypatch) -> None:
    promise("meta")
    monkeypatch.setattr(artesian.server.hashing, "slow_hash", lambda text: text)
    server = Server(tmp_path / "store")
    server.join()
    server.close()
    kept = {str(path): path.read_bytes() for path in (tmp_path / "store").rglob("*") if path.is_file()}
    assert leaks([SECRET + SECRET], kept) == [] and leaks(["x" * 16 + SECRET], kept)


def test_without_the_budget_one_member_moves_a_cluster_too_far(promise, monkeypatch) -> None:
    promise("meta")
    monkeypatch.setattr(Defence, "left", lambda *_: inf)
    with pytest.raises(AssertionError, match="moved a cluster by"):
        check_sequence(ALGORITHMS["fedasync"], 60, draws("meta"))


def test_without_refusals_an_absurd_upload_is_not_seen(promise) -> None:
    promise("meta")
    federation = ToyFederation(FedAsync(), 2)
    federation.coordinator.defence = Defence(refuse=0.0)
    federation.join_all()
    upload = federation.upload_of("c0")
    lie = {k: seal(params + np.float32(1e9)) for k, params in upload.models.items()}
    assert federation.coordinator.receive(replace(upload, models=lie))
    federation.coordinator.defence = Defence()
    upload = federation.upload_of("c1")
    lie = {k: seal(params + np.float32(1e9)) for k, params in upload.models.items()}
    with pytest.raises(TooFar):
        federation.coordinator.receive(replace(upload, models=lie))


@pytest.mark.parametrize(("algorithm", "attack"), [("fedasync", "flood"), ("fedbuff", "constant")])
def test_without_a_defence_one_of_twenty_wrecks_a_federation(promise, algorithm, attack) -> None:
    promise("meta")
    with pytest.raises((AssertionError, Refused)):
        check_attack(algorithm, attack, None)


@pytest.mark.parametrize("algorithm", ["fedasync", "cdfl"])
def test_without_a_pace_members_who_flood_wreck_a_federation(promise, algorithm) -> None:
    promise("meta")
    with pytest.raises(AssertionError, match="a flood costs"):
        check_flood(algorithm, replace(Defence(), pace=0.0))


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


def test_without_the_check_of_its_secret_a_thief_goes_on(tmp_path, promise, monkeypatch) -> None:
    """Its upload has the number of the owner's task, so that nothing but the secret tells them apart."""
    promise("meta")
    monkeypatch.setattr(Auth, "is_still", lambda *_: True)
    server = Server(tmp_path / "store")
    with pytest.raises(AssertionError, match="200"):
        check_replaced(server, "c0", SECRET)
    server.close()


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
