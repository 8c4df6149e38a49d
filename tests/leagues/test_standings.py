"""The tables of a league and its page, from summaries made by hand."""

import json
from functools import cache
from html.parser import HTMLParser

import pytest
from leagues.made import pair, plan, summary

from artesian.leagues.page import figure_text, html, markdown, overall_grid, sections, world_grid, write
from artesian.leagues.standings import Standings, figure, score_of, standings
from artesian.leagues.statistics import Spread

A, B = pair("w", "a"), pair("w", "b")
FAR_A, FAR_B = pair("v", "a", (0,)), pair("v", "b", (0,))
PLAN = plan(A, B, FAR_A, FAR_B)
FOUND = {
    A: {0: summary(0.90, kl=0.2, kl_uniform=0.5), 1: summary(0.92, kl=0.4, kl_uniform=0.5)},
    B: {0: summary(0.905), 1: summary(0.895)},
    FAR_A: {0: summary(0.5)},
    FAR_B: {0: summary(0.7)},
}


@cache
def whole() -> Standings:
    """Made for the first test that asks: its statistics import scipy, and every process that collects reads this."""
    return standings(PLAN, FOUND, {})


def test_a_world_has_means_and_standard_deviations() -> None:
    table = whole().worlds["w"]
    assert table.rows["a"]["client_after"].mean == pytest.approx(0.91)
    assert table.rows["a"]["client_after"].deviation == pytest.approx(0.02 / 2**0.5)
    assert table.rows["a"]["bytes_up"] == Spread(2000.0, 0.0, 2)  # of one upload
    assert "kl" not in table.rows["b"] and "client_accepted" not in table.rows["a"]
    assert table.best("client_after") == {"a"}
    assert table.near("client_after") == {"a", "b"}  # 0.91 - 0.014 is below 0.90
    assert table.best("wall_seconds") == table.near("kl_uniform") == set()
    assert table.best("kl") == {"a"}
    assert (table.ranks, table.leading) == ({"a": 1.0, "b": 2.0}, {"a", "b"})


def test_the_table_over_all_worlds() -> None:
    first, second = whole().overall["a"], whole().overall["b"]
    assert (first.ranks, first.mean, first.leading) == ({"w": 1.0, "v": 2.0}, 1.5, 1)
    assert (second.ranks, second.mean, second.leading) == ({"w": 2.0, "v": 1.0}, 1.5, 2)
    assert first.interval == (1.0, 2.0)
    assert first.against is None and second.against is not None
    assert (second.against.better, second.against.worse, second.against.even) == (1, 2, 0)
    assert second.p == second.against.p  # one comparison needs no correction
    assert (whole().first, whole().runs, whole().finished) == ("a", 6, 6)


def test_who_is_missing_has_no_rank() -> None:
    half = standings(PLAN, {A: {0: summary(0.9)}, FAR_A: FOUND[FAR_A], FAR_B: FOUND[FAR_B]}, {})
    assert half.worlds["w"].ranks == {"a": 1.0}
    assert half.overall["b"].ranks == {"v": 1.0}
    assert half.overall["b"].interval is None
    nothing = standings(PLAN, {}, {})
    assert nothing.overall["b"].mean is None
    assert "| b | - | - | - | - | - | - |" in markdown(list(sections(PLAN, nothing)))


def test_what_clients_end_up_with_is_what_they_accepted() -> None:
    assert score_of(summary(0.9)) == 0.9
    assert score_of(summary(0.9, client_accepted=None)) == 0.9
    assert score_of(summary(0.9, client_accepted=0.8)) == 0.8
    assert score_of({}) is None
    accepted = {A: {0: summary(0.9, client_accepted=0.6)}, B: {0: summary(0.7)}}
    assert standings(PLAN, accepted, {}).worlds["w"].ranks == {"a": 2.0, "b": 1.0}


def test_bytes_of_a_run_without_uploads_are_unknown() -> None:
    assert figure({"bytes_up": 5, "uploads": 0}, "bytes_up") is None
    assert figure({}, "kl") is None


def test_the_best_is_bold_and_what_is_near_is_marked() -> None:
    page = markdown(list(sections(PLAN, whole())))
    assert "| method | seeds | drawn | KL | KL even | kB up | kB down | seconds |" in page
    assert "| a | 2 | **91.0 ± 1.4** | **0.300 ± 0.141** | 0.500 ± 0.000 | **2.0 ± 0.0** |" in page
    assert "| b | 2 | 90.0 ± 0.7 ≈ | - | - | **2.0 ± 0.0** |" in page
    assert "| a | **1** | 2 | **1.50 (1.00 to 2.00)** | 1 of 2 | - | - |" in page
    assert "| b | 2 | **1** | **1.50 (1.00 to 2.00)** | 2 of 2 | 1 / 2 |" in page
    assert "* drawn: score of what clients draw" in page
    assert "6 of 6 runs have finished." in page


def test_who_waits_for_others_takes_longer() -> None:
    found = {A: {0: summary(0.9, virtual_time=20.0)}, B: {0: summary(0.9, virtual_time=200.0)}}
    table = standings(PLAN, found, {}).worlds["w"]
    assert (table.best("virtual_time"), table.near("virtual_time")) == ({"a"}, {"a"})
    grid = world_grid(table)
    column = grid.head.index("time")
    assert [row[column].text for row in grid.rows] == ["20.0", "200.0"]


def test_what_clients_choose_is_shown_where_they_do() -> None:
    judged = {"client_accepted": 0.8, "worse_drawn": 0.25, "worse_accepted": 0.01, "clients": 0.75}
    shares = [{"drawn": 0.5, "trained": 0.5}, {"drawn": 1.0}]
    runs = {seed: summary(0.7, won=won, **judged) for seed, won in enumerate(shares)}
    grid = world_grid(standings(PLAN, {A: runs, B: FOUND[B]}, {}).worlds["w"])
    assert grid.head[2:5] == ["drawn", "accepted", "clients"]
    cells = {name: [row[i].text for row in grid.rows] for i, name in enumerate(grid.head)}
    assert cells["worse, drawn"] == ["25.0 ± 0.0", "-"]
    assert cells["won"] == ["drawn 75, trained 25", "-"]
    assert set(grid.head[1:]) <= set(grid.meanings)


def test_errors_are_no_per_cents() -> None:
    assert figure_text(Spread(-0.012345, 0.0004, 2), "client_after", classifies=False) == "-0.01235 ± 0.00040"
    assert figure_text(Spread(-123.4, 1.26, 2), "cluster", classifies=False) == "-123.4 ± 1.3"
    assert figure_text(Spread(84.0, 4.0, 2), "bytes_up") == "0.084 ± 0.004"
    assert figure_text(Spread(0.0, 0.0, 1), "client_after", classifies=False) == "0.000"
    regression = pair("v", "a", classifies=False)
    mixed = plan(A, regression)
    result = standings(mixed, {A: FOUND[A], regression: {0: summary(-1.5)}}, {})
    page = markdown(list(sections(mixed, result)))
    assert "Scores are minus mean squared errors" in page
    assert "Mind: some worlds have accuracies and others squared errors" in page
    assert "| a | 1 of 2 | **-1.500** |" in page


def test_a_page_says_what_is_missing_uneven_and_failed() -> None:
    half = standings(PLAN, {A: FOUND[A], B: {0: summary(0.9)}}, {"w, b, seed 1": "The | disk\nis full."}, ["1", "2"])
    page = markdown(list(sections(PLAN, half)))
    for words in (
        "3 of 6 runs have finished.",
        "Compared by seed 0 alone: not all methods have finished others.",
        "the runs began with different versions of the code: 1, 2.",
        "| b | 1 of 2 |",
        "w, b, seed 1: The \\| disk is full.",
    ):
        assert words in page, words


def test_only_seeds_that_all_have_finished_are_compared() -> None:
    easy, hard = {0: summary(0.9), 1: summary(0.5)}, {0: summary(0.8)}  # b is worse, and had the easy seed alone
    table = standings(PLAN, {A: easy, B: hard}, {}).worlds["w"]
    assert (table.compared, table.uneven, table.ranks) == ((0,), False, {"a": 1.0, "b": 2.0})
    assert table.scores["a"] == Spread(0.9, 0.0, 1)
    assert "(of" not in markdown(list(sections(PLAN, standings(PLAN, {A: easy, B: hard}, {}))))
    assert standings(PLAN, {A: easy}, {}).worlds["w"].compared == (0, 1)  # b has none at all
    apart = standings(PLAN, {A: {0: summary(0.9)}, B: {1: summary(0.8)}}, {})
    assert (apart.worlds["w"].compared, apart.worlds["w"].uneven) == ((0, 1), True)
    assert "Mind: the seeds of the methods differ" in markdown(list(sections(PLAN, apart)))


class Texts(HTMLParser):
    """The cells of a page's tables."""

    def __init__(self) -> None:
        super().__init__()
        self.cells: list[str] = []
        self.inside = False

    def handle_starttag(self, tag, attrs) -> None:
        if tag in ("td", "th"):
            self.inside = True
            self.cells.append("")

    def handle_endtag(self, tag) -> None:
        self.inside = self.inside and tag not in ("td", "th")

    def handle_data(self, data) -> None:
        if self.inside:
            self.cells[-1] += data


def test_both_forms_have_the_same_cells() -> None:
    found = list(sections(PLAN, whole()))
    reader = Texts()
    reader.feed(html(found))
    rows = [line.strip("| ").split(" | ") for line in markdown(found).splitlines() if line.startswith("| ")]
    cells = [cell.strip("*") for row in rows for cell in row if not cell.startswith("---")]
    assert reader.cells == cells
    assert "<strong>91.0 ± 1.4</strong>" in html(found)
    assert overall_grid(whole()).head == ["method", "w", "v", "mean rank", "leads", "a won / lost", "p"]


def test_names_are_escaped() -> None:
    odd = pair("w", "<b>|*")
    page = html(list(sections(plan(odd), standings(plan(odd), {}, {}))))
    assert "<b>|" not in page and "&lt;b&gt;|*" in page
    assert "<b>\\|\\*" in markdown(list(sections(plan(odd), standings(plan(odd), {}, {}))))


def test_json_has_the_same_numbers() -> None:
    told = json.loads(json.dumps(whole().describe()))
    assert told["worlds"]["w"]["methods"]["a"]["client_after"][0] == pytest.approx(0.91)
    assert told["worlds"]["w"]["methods"]["b"]["kl"] is None
    assert told["worlds"]["v"]["methods"]["b"]["rank"] == 1.0
    assert told["overall"]["b"]["against"]["worse"] == 2
    assert told["overall"]["b"]["mean"] == 1.5
    assert (told["first"], told["runs"]) == ("a", 6)


def test_the_page_is_two_files(tmp_path) -> None:
    write(tmp_path, PLAN, whole())
    assert (tmp_path / "league.md").read_text().startswith("# League\n")
    assert (tmp_path / "league.html").read_text().startswith("<!doctype html>")
