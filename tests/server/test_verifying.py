"""`artesian verify`: says what is wrong, and whether a server can go on; writes nothing."""

import json
import sqlite3

import pytest
from promises.federation import federation
from server.test_replaying import Louder, Renamed, crashed, opened
from storage.test_reading import everything

from artesian.errors import StoreMismatch
from artesian.server.verifying import verify
from artesian.storage.reading import read_history


def problems(told) -> list[tuple[str, bool]]:
    return [(row["problem"], row["needed"]) for row in told["problems"]]


def test_a_sound_store_is_replayed_from_its_newest_snapshot(tmp_path) -> None:
    crashed(tmp_path)
    before, seen = everything(tmp_path), []
    told = verify(tmp_path, progress=lambda *counts: seen.append(counts))
    assert (told["sound"], told["events"], told["replayed"], told["snapshots"]) == (True, 4, 4, [0])
    assert seen[-1] == (told["arrays"], told["arrays"])
    assert everything(tmp_path) == before


def test_a_served_store_is_verified_too(tmp_path) -> None:
    crashed(tmp_path)
    service = opened(tmp_path)
    assert verify(tmp_path)["sound"]
    service.close()
    told = verify(tmp_path)
    assert (told["sound"], told["replayed"], told["snapshots"]) == (True, 0, [4])


def test_with_uploads_kept_the_replay_is_compared_with_the_newest_snapshot(tmp_path) -> None:
    crashed(tmp_path)
    opened(tmp_path, keep_uploads=True).close()
    told = verify(tmp_path)
    assert (told["sound"], told["replayed"], told["snapshots"]) == (True, 4, [0, 4])
    history = read_history(tmp_path)
    forge(tmp_path, history, lambda record: record["state"].update(version=9))
    told = verify(tmp_path)
    assert problems(told) == [("Replaying to event 4 gives another state than the snapshot there", False)]


def forge(folder, history, change) -> None:
    """Another snapshot, with digests that fit: whoever can write the folder can do that."""
    from artesian.storage.history import chained

    row = history.snapshots[-1]
    record = json.loads(row.record)
    change(record)
    text = json.dumps(record)
    with sqlite3.connect(folder / "artesian.db") as database:
        values = (text, chained(row.chain, text), row.events)
        database.execute("UPDATE snapshots SET record = ?, digest = ? WHERE events = ?", values)
    database.close()


def test_damaged_arrays_are_named_with_whether_they_are_needed(tmp_path) -> None:
    crashed(tmp_path)
    opened(tmp_path, keep_uploads=True).close()
    history = read_history(tmp_path)
    old, new = min(history.expected - history.needed), min(history.needed)
    paths = [tmp_path / "blobs" / f"{name}.safetensors" for name in (old, new)]
    paths[0].unlink()
    assert problems(verify(tmp_path))[0] == (f"The stored array is missing: {paths[0]}", False)
    paths[1].write_bytes(b"x")
    told = verify(tmp_path)
    assert sorted(problems(told), key=lambda pair: pair[1]) == [
        (f"The stored array is missing: {paths[0]}", False),
        (f"The stored array was altered: {paths[1]}", True),
    ]
    assert (told["sound"], told["replayed"]) == (False, 0)


@pytest.mark.parametrize(
    ("statement", "problem"),
    [
        ("UPDATE events SET record = record || ' ' WHERE number = 2", "event 2 does not follow from the one before"),
        ("DELETE FROM events WHERE number = 4", "the mark counts 4 events, the database holds 3"),
        ("UPDATE snapshots SET digest = 'x'", "the snapshot after event 0 was altered"),
        ("INSERT INTO secrets VALUES ('c0', 'a', 'b')", "a client's secret was altered"),
    ],
)
def test_a_damaged_database_is_described(tmp_path, statement, problem) -> None:
    crashed(tmp_path)
    with sqlite3.connect(tmp_path / "artesian.db") as database:
        assert database.execute(statement).rowcount
    database.close()
    told = verify(tmp_path)
    assert problem in [text for text, needed in problems(told) if needed]
    assert not told["sound"]


def test_other_code_is_said_to_differ(tmp_path) -> None:
    crashed(tmp_path)
    assert verify(tmp_path, Renamed())["sound"]
    ((problem, needed),) = problems(verify(tmp_path, Louder()))
    assert problem.startswith("Event 2 (upload of c0) now gives another cluster")
    assert problem.endswith("; other code replays it here")
    assert needed


def test_an_algorithm_that_is_not_ours_is_not_replayed_and_this_is_said(tmp_path, monkeypatch) -> None:
    crashed(tmp_path)
    monkeypatch.setattr("artesian.server.verifying.ALGORITHMS", {})
    told = verify(tmp_path)
    assert told["replayed"] == 0
    assert "cdfl is not one of Artesian's algorithms" in told["notes"][0]
    assert verify(tmp_path, federation().algorithm)["replayed"] == 4


def test_the_store_of_another_federation_is_refused(tmp_path) -> None:
    crashed(tmp_path)
    with pytest.raises(StoreMismatch, match="of another federation: its name is "):
        verify(tmp_path, identity={**read_history(tmp_path).about, "name": "other"})


@pytest.mark.parametrize("name", ["tokens.json", "keys.json"])
def test_tokens_and_keys_that_cannot_be_read_are_problems(tmp_path, name) -> None:
    crashed(tmp_path)
    assert verify(tmp_path)["notes"] != []  # no keys were made
    (tmp_path / name).write_text("{")
    (found,) = problems(verify(tmp_path))
    assert str(tmp_path / name) in found[0] and found[1]
