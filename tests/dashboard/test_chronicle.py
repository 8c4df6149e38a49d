"""What the page knows: curves in bounded memory, facts as a whole and as changes."""

import json

from artesian.dashboard import chronicle
from artesian.dashboard.chronicle import About, Chronicle, Exchange, distribution, moved
from artesian.dashboard.series import Series
from artesian.dashboard.streaming import framed


def made(step: float = 5.0) -> Chronicle:
    return Chronicle(About("s", "toy", "cdfl", "wall"), step)


def upload(client: str = "c0", number: int = 1, time: float = 0.0, **more) -> Exchange:
    return Exchange(time, client, number, more.pop("staleness", 0), **more)


def test_a_series_holds_the_mean_and_the_count_of_every_step() -> None:
    series = Series(5.0)
    for mark, (time, value) in enumerate([(0, 2.0), (4.9, 4.0), (5.0, 10.0)], 1):
        series.add(time, value, mark)
    assert series.since(0) == {"step": 5.0, "whole": True, "points": [[0.0, 3.0, 2], [5.0, 10.0, 1]]}
    assert series.since(2) == {"step": 5.0, "whole": False, "points": [[5.0, 10.0, 1]]}
    assert series.since(3) is None


def test_a_series_that_is_full_becomes_coarser_and_is_told_as_a_whole() -> None:
    series = Series(1.0, most=4)
    for mark in range(1, 6):  # 0 to 4: five steps, of which 0+1, 2+3 and 4 become three
        series.add(mark - 1, float(mark), mark)
    assert series.since(4) == {"step": 2.0, "whole": True, "points": [[0.0, 1.5, 2], [2.0, 3.5, 2], [4.0, 5.0, 1]]}


def test_a_series_never_has_more_steps_than_it_may() -> None:
    series = Series(1.0, most=10)
    for i in range(1000):
        series.add(float(i), 1.0, i + 1)
    told = series.since(0)
    assert told["step"] == 128.0  # 1000 / 128 = 7.8; at 64 they would be 15.6
    assert sum(count for _, _, count in told["points"]) == 1000


def test_staleness_is_told_in_buckets_that_double() -> None:
    assert distribution(iter([0, 0, 1, 2, 3, 4, 5, 8, 9])) == [
        ("0", 2),
        ("1", 1),
        ("2", 1),
        ("3-4", 2),
        ("5-8", 2),
        ("9-16", 1),
    ]
    assert distribution(iter([])) == []


def test_how_far_a_mixture_moved() -> None:
    assert moved({"k0": 1.0}, {"k0": 0.25, "k1": 0.75}) == 0.75
    assert moved({"k0": 1.0}, None) == 0.0


def test_everything_comes_first_and_then_only_what_changed() -> None:
    here = made()
    here.member("c0", {"samples": 5})
    here.member("c1", {"samples": 7})
    whole = here.facts()
    assert (whole["whole"], whole["about"]["name"]) == (True, "toy")
    assert [row["client"] for row in whole["members"]] == ["c1", "c0"]
    here.member("c0", {"samples": 6})
    here.measure("loss", "k0", 7.0, 0.5)
    change = here.facts(whole["mark"])
    assert change["members"] == [{"client": "c0", "samples": 6}]
    assert change["series"] == {"loss/k0": {"step": 5.0, "whole": False, "points": [[5.0, 0.5, 1]]}}
    assert "about" not in change
    assert "notices" not in change
    assert set(here.facts(here.mark)) == {"source", "mark"} | {"whole"}


def test_a_member_has_what_its_last_uploads_say() -> None:
    here = made()
    here.upload(upload(time=3.0, number=1, staleness=4, before=0.5, after=0.75))
    here.upload(upload(time=9.0, number=2, staleness=1))
    here.member("c0", {"samples": 5})
    (row,) = here.facts()["members"]
    assert row == {"client": "c0", "samples": 5, "last": 9.0, "staleness": 1, "before": 0.5, "after": 0.75}
    assert [told["number"] for told in here.history("c0")] == [1, 2]


def test_drift_is_noticed_where_it_is_reported_and_where_a_mixture_moves_far() -> None:
    here = made()
    here.upload(upload(number=1, mixture={"k0": 1.0}))
    here.upload(upload(number=2, mixture={"k0": 0.75, "k1": 0.25}))  # 0.25 is not far
    here.upload(upload(number=3, mixture={"k0": 0.25, "k1": 0.75}))
    here.upload(upload(number=4, mixture={"k0": 0.25, "k1": 0.75}, drift=1.0))
    texts = [notice["text"] for notice in here.facts()["notices"]]
    assert texts == ["mixture moved by 0.50 since its last upload", "reports that its data changed"]


def test_joins_do_not_push_alarms_out() -> None:
    here = made()
    here.notice("alarm", 0.0, "look")
    for i in range(10 * chronicle.NOTICES):
        here.notice("membership", float(i), "joined", f"c{i}")
    kinds = [notice["kind"] for notice in here.facts()["notices"]]
    assert (kinds[0], len(kinds)) == ("alarm", chronicle.NOTICES + 1)


def test_memory_is_bounded_however_many_come(monkeypatch) -> None:
    monkeypatch.setattr(chronicle, "MEMBERS", 3)
    here = made()
    for i in range(5):
        here.upload(upload(f"c{i}"))
        here.member(f"c{i}", {})
    assert [row["client"] for row in here.facts()["members"]] == ["c4", "c3", "c2"]
    assert here.history("c0") == []
    assert here.facts(1)["gone"] == ["c0", "c1"]


def test_whoever_is_forgotten_leaves_no_trace_but_its_name_among_the_gone() -> None:
    here = made()
    here.upload(upload("c0"))
    here.member("c0", {})
    before = here.mark
    here.forget("c0")
    assert (here.history("c0"), here.facts()["members"], here.facts(before)["gone"]) == ([], [], ["c0"])


def test_what_is_not_finite_is_not_drawn() -> None:
    here = made()
    here.measure("loss", "k0", 0.0, float("nan"))
    assert here.facts()["series"] == {}


def test_an_event_is_one_line_of_json_whatever_a_client_is_called() -> None:
    text = framed({"client": "a\nb<script>"}).decode()
    assert text.startswith("event: facts\ndata: ")
    assert text.count("\n") == 3
    assert json.loads(text.splitlines()[1].removeprefix("data: ")) == {"client": "a\nb<script>"}


def test_curves_are_bounded_in_number(monkeypatch) -> None:
    monkeypatch.setattr(chronicle, "CURVES", 2)
    told = made()
    for cluster in ("k0", "k1", "k0", "k2"):  # clusters come and go
        told.measure("loss", cluster, 0.0, 1.0)
    assert sorted(told.facts()["series"]) == ["loss/k0", "loss/k2"]


def test_whoever_was_forgotten_and_joined_again_is_not_gone() -> None:
    told = made()
    told.member("c0", {})
    mark = told.mark
    told.forget("c0")
    assert told.facts(mark)["gone"] == ["c0"]
    told.member("c0", {})
    assert "gone" not in told.facts(mark)
