"""How much of the past is kept: bounds as a text, and the snapshots that follow from them."""

import pytest

from artesian.errors import SettingError
from artesian.storage.retention import ALL, NOTHING, Recorded, Retention, kept_snapshots


def recorded(count: int, size: int = 10) -> list[Recorded]:
    return [Recorded(number, "c0", True, (), size) for number in range(1, count + 1)]


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("all", ALL),
        ("none", NOTHING),
        ("1000 uploads, 4 GB", Retention(uploads=1000, bytes=4 * 10**9)),
        ("20 events", Retention(events=20)),
        ("1 upload", Retention(uploads=1)),
        ("64 bytes", Retention(bytes=64)),
        ("2 MB,7 events", Retention(bytes=2 * 10**6, events=7)),
    ],
)
def test_bounds_are_a_text(text, meant) -> None:
    assert Retention.of(text) == meant


@pytest.mark.parametrize("text", ["", "many", "1000", "4 gb", "-1 uploads", "1 upload and 2 events"])
def test_other_texts_are_refused(text) -> None:
    with pytest.raises(SettingError, match="retain is not an amount"):
        Retention.of(text)


def test_snapshots_stay_from_which_all_is_within_bounds() -> None:
    taken, past = dict.fromkeys([0, 10, 20, 30], 0), recorded(30)
    assert kept_snapshots(taken, past, 30, Retention(uploads=15)) == [20]
    assert kept_snapshots(taken, past, 30, Retention(bytes=200)) == [10, 20]
    assert kept_snapshots(taken, past, 30, Retention(events=30)) == [0, 10, 20]
    assert kept_snapshots(taken, past, 30, Retention(uploads=30, bytes=100)) == [20]
    assert kept_snapshots(taken, past, 30, NOTHING) == []
    assert kept_snapshots({**taken, 20: 99}, past, 30, Retention(bytes=200)) == [20]  # its own models count, too


def test_the_number_of_snapshots_is_bounded() -> None:
    kept: list[int] = []
    for last in range(10, 5000, 10):
        kept = [*kept_snapshots(dict.fromkeys(kept, 0), [], last, ALL), last]
        assert len(kept) <= 18
        assert kept[0] == 10


def test_where_other_code_took_over_a_snapshot_stays_however_near_others_are() -> None:
    taken = dict.fromkeys([0, 1, 2, 3, 50, 51], 0)
    assert kept_snapshots(taken, [], 80, ALL) == [0, 50]
    assert kept_snapshots(taken, [], 80, ALL, turns={2, 51, 99}) == [0, 2, 50, 51]
    assert kept_snapshots(taken, recorded(80), 80, Retention(uploads=30), turns={2, 51}) == [50, 51]
