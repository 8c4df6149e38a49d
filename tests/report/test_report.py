"""The report: curves by hand, a page that stands alone, and what it refuses."""

import json
import re
import shutil
import sys
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from artesian import cli
from artesian.errors import MissingExtra, SettingError, StorageError
from artesian.recipes.accepting import CANDIDATES
from artesian.report.curves import AXES, Curve, chosen_axis, of_clusters, of_uploads, read
from artesian.report.exported import first_and_last, mixtures
from artesian.report.runs import cells, columns, grouped, profiled, tables, winners

pytest.importorskip("matplotlib", reason="figures need the extra report")
from artesian.report.page import MARK, page, write
from artesian.report.plots import bars, heatmaps, lines, mixture_panels
from artesian.report.runs import finished

QUICK = [
    "--set",
    "algorithm.name=cdfl",
    "--set",
    "uploads=20",
    "--set",
    "world.clients=6",
    "--set",
    "evaluate_every=10",
]
NOBODY = print


def metrics(folder: Path, rows: list[str]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "metrics.csv").write_text("\n".join(["upload,client,after,kl", *rows]) + "\n")
    return folder


def test_a_point_is_the_mean_since_the_one_before_and_seeds_spread(tmp_path) -> None:
    one = metrics(tmp_path / "a", ["1,c0,0.2,", "2,c1,0.4,", "3,c0,0.6,", "4,c1,,"])
    two = metrics(tmp_path / "b", ["1,c0,0.4,", "2,c1,0.6,", "3,c0,0.6,", "4,c1,0.6,"])
    curve = of_uploads({one: 4}, "after")
    assert curve.x.tolist() == [1, 2, 3, 4]
    np.testing.assert_allclose(curve.mean, [0.2, 0.4, 0.6, np.nan])
    assert not curve.deviation.any()
    both = of_uploads({one: 4, two: 4}, "after")
    np.testing.assert_allclose(both.mean, [0.3, 0.5, 0.6, 0.6])
    np.testing.assert_allclose(both.deviation, [0.2 / 2**0.5, 0.2 / 2**0.5, 0.0, 0.0], atol=1e-12)
    assert of_uploads({one: 4, two: 4}, "kl").empty
    assert not both.empty


def test_seeds_of_rounds_may_last_differently(tmp_path) -> None:
    one, two = metrics(tmp_path / "a", ["1,c0,0.2,", "2,c1,0.4,"]), metrics(tmp_path / "b", ["1,c0,0.4,"])
    curve = of_uploads({one: 2, two: 1}, "after")
    np.testing.assert_allclose(curve.mean, [0.3, 0.4])


def test_a_band_stays_where_values_can_be() -> None:
    x = np.arange(2.0)
    low, high = Curve(x, np.array([0.1, 0.5]), np.array([0.2, 0.2])).band
    np.testing.assert_allclose([low, high], [[0.0, 0.3], [0.3, 0.7]])
    low, _ = Curve(x, np.array([-0.1, 0.5]), np.array([0.2, 0.2])).band
    np.testing.assert_allclose(low, [-0.3, 0.3])


def test_a_long_run_has_forty_points(tmp_path) -> None:
    many = metrics(tmp_path, [f"{i},c0,{i % 2},0" for i in range(1, 401)])
    curve = of_uploads({many: 400}, "after")
    assert curve.x.tolist() == list(range(10, 401, 10))
    assert curve.mean.tolist() == [0.5] * 40


def test_clusters_are_averaged_at_every_look(tmp_path) -> None:
    (tmp_path / "clusters.csv").write_text("upload,time,cluster,accuracy\n10,1,k0,0.5\n10,1,k1,0.7\n20,2,k0,0.9\n")
    curve = of_clusters({tmp_path: 20})
    assert curve.x.tolist() == [10, 20]
    np.testing.assert_allclose(curve.mean, [0.6, 0.9])


def timed(folder: Path, name: str, rows: list[str]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text("\n".join(rows) + "\n")
    return folder


def test_a_curve_may_run_along_time(tmp_path) -> None:
    rows = ["upload,time,client,after", "1,0,a,0.2", "2,0.5,b,0.4", "3,40,a,0.6", "4,80,b,0.8", "5,80,c,1.0"]
    curve = of_uploads({timed(tmp_path, "metrics.csv", rows): 5}, "after", "time")
    assert curve.x.tolist() == [2, 40, 80]  # forty steps of two; nothing happened in the others
    np.testing.assert_allclose(curve.mean, [0.3, 0.6, 0.9])
    timed(tmp_path, "clusters.csv", ["upload,time,cluster,accuracy", "2,0.5,k0,0.5", "2,0.5,k1,0.7", "5,80,k0,0.9"])
    curve = of_clusters({tmp_path: 5}, "time")
    assert curve.x.tolist() == [2, 80]
    np.testing.assert_allclose(curve.mean, [0.6, 0.9])


def test_a_run_in_which_no_time_passes_has_one_point(tmp_path) -> None:
    curve = of_uploads({timed(tmp_path, "metrics.csv", ["upload,time,client,after", "1,0,a,0.2"]): 1}, "after", "time")
    assert (curve.x.tolist(), curve.mean.tolist()) == ([1], [0.2])


def test_a_curve_may_run_along_the_cycles_of_each_client(tmp_path) -> None:
    """Clients a, b and c upload three, two and one times: two of three came to the second cycle, one to the third."""
    one = metrics(tmp_path / "a", ["1,a,0.1,", "2,a,0.5,", "3,b,0.3,", "4,a,0.9,", "5,c,,", "6,b,0.7,"])
    curve = of_uploads({one: 6}, "after", "cycle")
    assert curve.x.tolist() == [1, 2]
    np.testing.assert_allclose(curve.mean, [0.2, 0.6])  # (a + b) / 2: c has no number
    timed(one, "clusters.csv", ["upload,time,cluster,accuracy", "3,1,k0,0.5", "6,2,k0,0.7"])
    curve = of_clusters({one: 6}, "cycle")
    assert curve.x.tolist() == [1, 2]  # uploads of each of three clients
    np.testing.assert_allclose(curve.mean, [0.5, 0.7])


def test_an_axis_has_a_name() -> None:
    assert [chosen_axis(name) for name in AXES] == ["uploads", "time", "cycle"]
    with pytest.raises(SettingError, match=r"There is no axis 'rounds'\. Name one of uploads, time, cycle"):
        chosen_axis("rounds")


@pytest.mark.heavy
def test_panels_that_are_alike_have_one_scale() -> None:
    x = np.arange(3.0)
    low, high = Curve(x, np.array([0.1, 0.2, 0.3]), np.zeros(3)), Curve(x, np.array([0.7, 0.8, 0.9]), np.zeros(3))
    units = {"one": "score", "two": "score"}
    apart = lines({"one": {"a": low}, "two": {"a": high}}, units, "time")
    alike = lines({"one": {"a": low}, "two": {"a": high}}, units, "time", alike=("one", "two"))
    assert ">time</text>" in apart
    assert apart.count(">0.5</text>") + apart.count(">0.50</text>") == 0  # between the two
    assert alike.count(">0.4</text>") == 2
    four = lines({name: {"a": low} for name in "abcd"}, dict.fromkeys("abcd", "score"))
    assert 'height="460.8pt"' in four and 'width="604.8pt"' in four  # two by two


# what runs exported


def test_scores_are_those_of_the_first_and_the_last_evaluation(tmp_path) -> None:
    rows = ["upload,time,cluster,distribution,accuracy"]
    rows += ["5,1,k0,d0,0.1", "5,1,k0,d1,0.2"]
    rows += ["9,2,k1,d0,0.3", "9,2,k1,d1,0.4", "9,2,k2,d0,0.5", "9,2,k2,d1,0.6"]
    first, last = first_and_last(timed(tmp_path, "distributions.csv", rows))
    assert (first.upload, first.clusters, first.values.tolist()) == (5, ("k0",), [[0.1, 0.2]])
    assert (last.clusters, last.distributions) == (("k1", "k2"), ("d0", "d1"))
    assert last.values.tolist() == [[0.3, 0.4], [0.5, 0.6]]
    assert first_and_last(tmp_path / "none") == []
    drawn = heatmaps({"a, 5": first, "a, 9": last})
    assert all(f">{text}</text>" in drawn for text in ("a, 5", "k2", "d1", "0.6", "distribution"))


def test_mixtures_are_those_of_the_last_upload_and_the_largest_share(tmp_path) -> None:
    rows = ["upload,time,client,cluster,true,estimated"]
    rows += ["1,1,a,k0,0.9,0.5", "1,1,a,k1,0.1,0.5", "2,2,b,k0,0.2,", "2,2,b,k1,0.8,"]
    rows += ["3,3,a,k0,0.3,0.4", "3,3,a,k1,0.7,0.6"]
    found = mixtures([timed(tmp_path, "shares.csv", rows)])
    assert (found.true.tolist(), found.estimated.tolist()) == ([0.3, 0.7], [0.4, 0.6])  # nothing is known of b
    true, estimated = found.largest
    np.testing.assert_allclose(true.mean, [0.9, 0.8, 0.7])
    np.testing.assert_allclose(estimated.mean, [0.5, np.nan, 0.6])
    assert ">m: largest true share</text>" in mixture_panels({"m": found})
    assert mixtures([tmp_path / "none"]) is None


@pytest.mark.heavy
def test_the_page_shows_what_was_exported_along_any_axis(runs, tmp_path) -> None:
    simulate(tmp_path / "cdfl", "--set", "export=true")
    simulate(tmp_path / "fedbuff", "--set", "algorithm.name=fedbuff", "--set", "export=true")
    target = tmp_path / "page.html"
    told = CliRunner().invoke(cli.app, ["report", str(tmp_path), "--out", str(target), "--axis", "cycle"])
    assert told.exit_code == 0, told.output
    text = target.read_text()
    assert ">cycle of each client</text>" in text
    assert ">what clients trained (before)</text>" in text and ">what clients draw back (after)</text>" in text
    assert ">fedbuff, upload 20</text>" in text
    assert ">cdfl: largest true share</text>" in text and ">fedbuff: largest true share</text>" not in text
    plain = page(finished([runs], NOBODY))
    assert "<h3>Mixtures</h3>" not in plain and "<h3>Clusters and distributions</h3>" not in plain


def test_a_damaged_table_is_named(tmp_path) -> None:
    with pytest.raises(StorageError, match=re.escape("metrics.csv")):
        read(metrics(tmp_path, ["1,c0,much,"]) / "metrics.csv", "after", 1)
    with pytest.raises(StorageError, match="'loss'"):
        read(tmp_path / "metrics.csv", "loss", 1)
    with pytest.raises(StorageError, match=re.escape("clusters.csv")):
        of_clusters({tmp_path: 1})


def test_a_table_cut_short_is_named(tmp_path) -> None:
    rows = ["1,c0,0.5,", "2,c0,0.5,"]
    assert len(read(metrics(tmp_path, rows) / "metrics.csv", "after", 2)[0]) == 2
    with pytest.raises(StorageError, match=r"metrics\.csv ends at upload 1, but its run had 2\. Restore"):
        read(metrics(tmp_path, rows[:1]) / "metrics.csv", "after", 2)
    with pytest.raises(StorageError, match="ends at upload 0, but its run had 2"):
        read(metrics(tmp_path, []) / "metrics.csv", "after", 2)
    with pytest.raises(StorageError, match="numbers under 'upload' and 'after'"):
        read(metrics(tmp_path, [rows[0], "2,c0"]) / "metrics.csv", "after", 2)


def test_a_profile_is_seconds_and_shares() -> None:
    profile = {
        "main": {"training": 3.0, "waiting": 0.0, "other": 1.0},
        "workers": {"training": 0.0, "waiting": 0.0, "other": 2.0},
    }
    assert profiled(profile) == {
        "training": [("3.00", "75.0%"), ("-", "-")],
        "other": [("1.00", "25.0%"), ("2.00", "100.0%")],
        "together": [("4.00", "100.0%"), ("2.00", "100.0%")],
    }


def test_figures_are_the_same_bytes_and_escape_what_they_are_told() -> None:
    curve = Curve(np.arange(3.0), np.array([0.1, 0.2, 0.3]), np.full(3, 0.05))
    nothing = Curve(np.arange(3.0), np.full(3, np.nan), np.zeros(3))
    units = {"left": "score", "right": "nats", "empty": ""}
    first, second = (lines({"left": {"a<b> $x$": curve}, "right": {"a<b> $x$": nothing}}, units) for _ in range(2))
    assert first == second
    assert "a&lt;b&gt; $x$" in first
    assert "left" in first
    assert "right" not in first  # nothing to show
    assert "score" in first and "nats" not in first
    assert lines({"empty": {"a": nothing}}, units).startswith("<svg")
    assert "training" in bars({"one": {"training": 2.0, "idle": 0.0}})
    assert "idle" not in bars({"one": {"training": 2.0, "idle": 0.0}})


def simulate(folder: Path, *more: str) -> None:
    told = CliRunner().invoke(cli.app, ["simulate", "digits-2", *QUICK, *more, "--out", str(folder)])
    assert told.exit_code == 0, told.output


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    place = tmp_path_factory.mktemp("runs")
    simulate(place / "cdfl", "--seeds", "2", "--profile")
    simulate(place / "fedbuff", "--set", "algorithm.name=fedbuff", "--set", "training.epochs=2")
    return place


@pytest.fixture(scope="module")
def text(runs) -> str:
    """The page of all of them."""
    return page(finished([runs], NOBODY))


class Seen(HTMLParser):
    """What a browser would see: tags in order, cells of tables, and whatever a page would fetch."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.rows: list[list[str]] = []
        self.fetched: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ("meta", "br"):
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        self.fetched += [f"{tag} {value}" for name, value in attrs if name in ("src", "href") and value]
        if tag in ("script", "link", "iframe", "img"):
            self.fetched.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.fetched += [f"{tag} {value}" for name, value in attrs if name in ("src", "href") and value]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in ("td", "th"):
            self.rows[-1].append(data)


@pytest.mark.heavy
def test_the_page_stands_alone_and_says_what_compare_says(runs, text) -> None:
    seen = Seen(text)
    assert seen.open == []
    assert [one for one in seen.fetched if not one.split()[-1].startswith("#")] == []
    compared = CliRunner().invoke(cli.app, ["compare", str(runs)]).stdout.splitlines()
    for name in ("cdfl", "fedbuff"):
        (line,) = [line.split() for line in compared if line.split()[:1] == [name]]
        assert line in seen.rows
    assert ["training.epochs", "5", "2"] in seen.rows
    assert ["method", "seeds", "before"] in [row[:3] for row in seen.rows]
    assert [row[-1] for row in seen.rows if row[1] == "digits-2"] == ["cdfl/seed-0", "cdfl/seed-1", "fedbuff"]
    assert "Mind: seeds differ, and with them clients and data (cdfl has 0, 1; fedbuff has 0)." in text
    assert "seeds differ" in " ".join(" ".join(compared).split())
    assert page(finished([runs], NOBODY)) == text


def test_the_page_shows_where_the_time_went(runs, text) -> None:
    seen = Seen(text)
    assert ["training", "drawing a client's data and following its task's recipe"] in seen.rows
    heads = [row[0] for row in seen.rows if row[1:3] == ["main, s", "share"]]
    assert heads == ["cdfl, seed 0", "cdfl, seed 1"]
    wholes = [row for row in seen.rows if row[0] == "together"]
    assert [row[2] for row in wholes] == ["100.0%", "100.0%"]
    profile = json.loads((runs / "cdfl" / "seed-0" / "summary.json").read_text())["profile"]["main"]
    (_, training, _) = [row for row in seen.rows if row[0] == "training"]
    assert training[1] == f"{profile['training']:.2f}"
    alone = page(finished([runs / "fedbuff"], NOBODY))
    assert "no run was made with <code>--profile</code>" in alone
    assert "<h1>One run</h1>" in alone


def test_the_command_writes_a_page_and_replaces_only_reports(runs, tmp_path) -> None:
    target = tmp_path / "new" / "page.html"
    for _ in range(2):
        told = CliRunner().invoke(cli.app, ["report", str(runs), "--out", str(target)])
        assert told.exit_code == 0, told.output
        assert "3 runs in" in told.stdout
        assert target.read_text().startswith(MARK)
    assert [path.name for path in target.parent.iterdir()] == ["page.html"]
    mine = tmp_path / "mine.html"
    mine.write_text("my own words")
    for other in (mine, tmp_path):
        with pytest.raises(SettingError, match="is not a report"):
            write(finished([runs], NOBODY), other)
    assert mine.read_text() == "my own words"


@pytest.mark.heavy
def test_two_settings_of_one_algorithm_are_told_apart(runs, tmp_path) -> None:
    simulate(tmp_path / "bold", "--set", "algorithm.beta0=0.5")
    seen = Seen(page(finished([runs / "cdfl", tmp_path / "bold"], NOBODY)))
    (row,) = [row for row in seen.rows if row[0].startswith("algorithm.")]
    assert row == ["algorithm.beta0", "0.025", "0.5"]
    alone = page(finished([runs / "cdfl"], NOBODY))
    assert "differ" not in alone
    simulate(tmp_path / "fedasync", "--set", "algorithm.name=fedasync")
    assert "differ in their algorithms alone" in page(finished([runs / "cdfl", tmp_path / "fedasync"], NOBODY))


def test_a_method_that_learns_no_cluster_has_no_curve_of_them(runs, tmp_path) -> None:
    simulate(tmp_path / "local", "--set", "algorithm.name=local")
    assert ">clusters</text>" not in page(finished([tmp_path / "local"], NOBODY))
    assert ">clusters</text>" in page(finished([runs / "fedbuff"], NOBODY))


def test_what_is_left_out_is_told(runs, tmp_path) -> None:
    shutil.copytree(runs / "cdfl", tmp_path / "again")
    changed = tmp_path / "again" / "seed-1" / "summary.json"
    changed.write_text(json.dumps(json.loads(changed.read_text()) | {"client_after": 0.5, "wall_seconds": 9.0}))
    shutil.copytree(runs / "fedbuff", tmp_path / "half")
    (tmp_path / "half" / "summary.json").unlink()
    told: list[str] = []
    assert len(finished([runs / "cdfl", tmp_path], told.append)) == 2
    again, kept = tmp_path.resolve() / "again", runs.resolve() / "cdfl"
    assert told == [
        f"{again}/seed-0 is left out: {kept}/seed-0 has seed 0 of cdfl too, with the same result",
        f"{again}/seed-1 is left out: {kept}/seed-1 has seed 1 of cdfl too, and differs from it in client_after",
        f"{tmp_path}/half is left out: it is unfinished; go on with --resume",
    ]


def summary(seed: int, algorithm: str = "cdfl", settings: str = "a", **more) -> dict:
    numbers = dict.fromkeys(("client_before", "client_after", "cluster", "kl", "kl_uniform"), 0.5)
    numbers |= dict.fromkeys(("virtual_time", "bytes_up", "bytes_down", "wall_seconds"), 4e6)
    return {"algorithm": algorithm, "preset": "p", "settings": settings, "seed": seed, "uploads": 9, **numbers, **more}


def test_seeds_of_one_length_share_a_row_however_many_uploads_its_rounds_had() -> None:
    rows = grouped([summary(0, uploads=82, length="2 rounds"), summary(1, uploads=80, length="2 rounds")])
    assert [(row["length"], row["seeds"], row["seed"]) for row in rows] == [("2 rounds", 2, [0, 1])]
    assert list(tables([summary(0), summary(0, uploads=8)])) == ["p, 9 uploads", "p, 8 uploads"]  # older summaries


def test_a_row_says_how_many_seeds_have_a_number() -> None:
    (row,) = grouped([summary(0), summary(1, cluster=None), summary(2, cluster=None, client_after=0.8)])
    assert row["lacking"] == {"cluster": 2}
    assert cells(row)[:3] == ["0.500±0.000", "0.600±0.173", "0.500 (of 1)"]
    (row,) = grouped([summary(0, kl=None)])
    assert cells(row)[:4] == ["0.500", "0.500", "0.500", "-"]


def test_a_figure_that_only_newer_runs_have_is_a_column_where_one_has_it() -> None:
    (older,) = tables([summary(0)]).values()
    assert "cluster_all" not in columns(older)
    (rows,) = tables([summary(0), summary(0, "local", cluster_all=0.25)]).values()
    shown = columns(rows)
    assert list(shown)[2:5] == ["cluster", "cluster_all", "kl"]
    assert [cells(row, shown)[3] for row in rows.values()] == ["-", "0.250"]


def test_what_clients_use_is_shown_where_they_judge_it() -> None:
    figures = {"client_accepted": 0.6, "worse_drawn": 0.25, "worse_accepted": 0.0}
    runs = [summary(0, **figures, won={"drawn": 0.75, "trained": 0.25}), summary(1, **figures, won={"drawn": 1.0})]
    (rows,) = tables(runs).values()
    shown = {key: title for key, title in columns(rows).items() if key in figures}
    assert shown == {"client_accepted": "used", "worse_drawn": "worse drawn", "worse_accepted": "worse used"}
    assert [cells(row, shown) for row in rows.values()] == [["0.600±0.000", "0.250±0.000", "0.000±0.000"]]
    assert winners(runs) == {"drawn": 0.875, "trained": 0.125}
    assert winners([summary(0)]) == {}


def test_the_page_shows_which_models_clients_used(tmp_path) -> None:
    simulate(tmp_path / "judged", "--set", "accept=better", "--set", "pool_every=5")
    told = Seen(page(finished([tmp_path / "judged"], NOBODY)))
    heads = [row for row in told.rows if row[0] == "method"]
    assert {"used", "worse drawn", "worse used"} <= set(heads[0])
    assert set(heads[1][1:]) <= set(CANDIDATES)
    (shares,) = (row[1:] for row in told.rows if row[0] == "cdfl" and len(row) == len(heads[1]))
    assert sum(map(float, shares)) == pytest.approx(1, abs=0.01)


def test_rows_of_one_algorithm_stand_together() -> None:
    (rows,) = tables([summary(0), summary(0, "local"), summary(0, settings="b")]).values()
    assert list(rows) == ["cdfl a", "cdfl b", "local"]


def test_names_cannot_become_markup(runs, tmp_path) -> None:
    simulate(tmp_path / "odd", "--set", "name=<script>alert(1)</script>")
    text = page(finished([tmp_path / "odd"], NOBODY))
    assert "<script" not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;, 20 uploads" in text


def test_without_matplotlib_the_pip_command_is_told(runs, tmp_path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtra, match=re.escape("pip install 'artesian[report]'")):
        write(finished([runs], NOBODY), tmp_path / "page.html")
    assert not (tmp_path / "page.html").exists()


def test_what_is_no_finished_run_is_refused(tmp_path) -> None:
    told = CliRunner().invoke(cli.app, ["report", str(tmp_path), "--out", str(tmp_path / "page.html")])
    assert "No finished run in" in str(told.exception)
    assert tables([]) == {}


def test_a_figure_that_an_attack_blew_up_is_only_its_size() -> None:
    row = {"seeds": 1, "lacking": {}, "discrepancy": [1966754315079567360.0, 0.0], "kl": [0.1254, 0.0]}
    assert cells(row, ["discrepancy", "kl"]) == ["1.97e+18", "0.125"]
