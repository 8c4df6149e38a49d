"""The benchmarks' own logic: options, tables, ratios. Nothing is timed."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.heavy  # they start whole measurements, small as they are

FOLDER = Path(__file__).parent.parent / "benchmarks"
SCRIPTS = ("w1", "peers", "scaling", "simulator", "service", "page")


@pytest.fixture(autouse=True)
def _importable(monkeypatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))


def outcome(seconds, stamps, changed=0.0):
    from measuring import Outcome

    return Outcome(seconds, 100.0, {"stamps": stamps, "changed": changed})


def took(seconds, peak_mb, proportional_mb):
    from measuring import Outcome

    return Outcome(seconds, peak_mb, proportional_mb=proportional_mb)


@pytest.mark.parametrize("script", SCRIPTS)
def test_every_script_explains_itself(script) -> None:
    done = subprocess.run([sys.executable, FOLDER / f"{script}.py", "--help"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "--repeats" in done.stdout


def test_the_capacity_of_a_server_is_measured_by_whoever_measures(capsys, monkeypatch) -> None:
    import capacity

    monkeypatch.setattr(sys, "argv", ["capacity.py", "--help"])
    with pytest.raises(SystemExit, match="0"):
        capacity.main()
    assert "--seconds" in capsys.readouterr().out
    assert {case.measure for case in capacity.CASES} == {"threads", "processes"}
    assert capacity.Case("2.3 MB", "cdfl", "processes", 4).options == ["--measure", "processes", "--measurers", "4"]


def test_detectors_are_told_in_rows(capsys, monkeypatch) -> None:
    pytest.importorskip("river", reason="river is not installed")
    import drift_detectors

    monkeypatch.setattr(sys, "argv", ["drift_detectors.py", "--help"])
    with pytest.raises(SystemExit, match="0"):
        drift_detectors.main()
    assert "--streams" in capsys.readouterr().out
    assert drift_detectors.delay_cell([50, None, 100, 150]) == "100 (75%)"
    assert drift_detectors.delay_cell([None, None]) == "never"
    found = drift_detectors.Quiet(alarms=[1, 0, 1, 0], tests=40, samples=6000, seconds=0.5, batches=100, state=1234)
    told = ["labels", "0.01", "0.0500 ± 0.0289", "0.333", "0.500", "5.00", "1,234"]
    assert drift_detectors.quiet_row("labels", found) == told


@pytest.mark.parametrize("option", [["--updates", "1"], ["--repeats", "0"], ["--workers", "x"]])
def test_options_that_make_no_sense_are_refused(option, capsys) -> None:
    from w1 import options

    with pytest.raises(SystemExit):
        options("").parse_args(option)
    assert option[0] in capsys.readouterr().err


@pytest.mark.parametrize("script", ["w1_run", "scaling_run"])
def test_a_measurement_refuses_what_it_does_not_know(script) -> None:
    done = subprocess.run([sys.executable, FOLDER / f"{script}.py", "nothing"], capture_output=True, text=True)
    assert done.returncode == 1
    assert "ORDER is JSON" in done.stderr


def test_figures_read_the_same_way() -> None:
    from measuring import number, rate, spread, table

    assert [number(value) for value in (0.123, 12.34, 1234.5)] == ["0.12", "12.3", "1,234"]
    assert spread([3.0]) == "3.00"
    assert spread([1.0, 30.0, 2.0]) == "2.00 (1.00..30.0)"
    assert rate([10.0, 12.0, 11.0]) == 1.0
    with pytest.raises(ValueError, match="two updates"):
        rate([1.0])
    assert table(("way", "s"), [["a", "1"]]) == "| way | s |\n| --- | ---: |\n| a | 1 |"
    with pytest.raises(ValueError, match="2 cells"):
        table(("way", "s"), [["a"]])


def test_the_processor_is_read_from_its_first_core() -> None:
    from measuring import processor

    text = "model name\t: Good\nflags\t\t: fpu fma avx2\n\nmodel name\t: Other\nflags\t\t: fpu\n"
    assert processor(text) == ("Good", ["avx2", "fma"])
    assert processor("") == ("unknown processor", [])


def test_the_last_line_of_a_process_is_what_it_tells() -> None:
    from measuring import run

    found = run([sys.executable, "-c", "print('words'); print('{\"a\": 1}')"], os.environ, 60)
    assert found.failure == ""
    assert found.told == {"a": 1}


def test_memory_is_that_of_all_processes_with_the_mark() -> None:
    from measuring import MARK, Sampler

    code = "room = b'x' * 30_000_000; input()"
    env, sampler = {**os.environ, MARK: "mine"}, Sampler("mine", every=0.01)
    children = [subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, env=env) for _ in range(2)]
    try:
        with sampler:
            assert sampler.reached(60, patience=60)
            deadline = time.monotonic() + 60
            while sampler.proportional_mb < 60 and time.monotonic() < deadline:
                time.sleep(0.01)
    finally:
        for child in children:
            child.communicate(b"\n")
    with Sampler("another", every=0.01) as other:
        pass
    assert other.peak_mb == other.proportional_mb == 0
    assert 60 <= sampler.proportional_mb < sampler.peak_mb  # both have Python's own pages, and those are shared


def test_a_process_that_fails_or_hangs_is_told_of() -> None:
    from measuring import run

    assert run([sys.executable, "-c", "raise SystemExit('no such luck')"], os.environ, 60).failure == "no such luck"
    assert "no answer" in run([sys.executable, "-c", "print('words')"], os.environ, 60).failure
    endless = ["sh", "-c", "sleep 600 & sleep 600"]  # both end with the measurement, or this would wait for them
    assert run(endless, os.environ, 1).failure == "not done after 1 s"


def test_ratios_are_those_of_neighbours() -> None:
    from w1 import Bench, Pair, describe, ratio_line

    pair = Pair()
    pair.runs["artesian"] = [outcome(10.0, [0, 1, 2]), outcome(20.0, [0, 2, 4]), outcome(10.0, [0, 1, 2])]
    pair.runs["bare"] = [outcome(5.0, [0, 0.5, 1]), outcome(20.0, [0, 2, 4]), outcome(8.0, [0, 0.8, 1.6])]
    assert pair.ratios() == pytest.approx([0.5, 1.0, 0.8])
    assert pair.whole_ratios() == pytest.approx([0.5, 1.0, 0.8])
    assert ratio_line(pair) == "ratio_to_bare=0.80"
    text = describe(Bench(Path(), 3), {"plain": pair})
    assert "| plain, artesian | 1.00 (0.50..1.00) | 1,250 | 10.0 (10.0..20.0) | 0.30 (0.15..0.30) |" in text
    assert "| plain | 0.80 (0.50..1.00) | 0.80 (0.50..1.00) |" in text


def test_the_bare_loop_looks_at_as_many_clusters_as_the_simulator() -> None:
    from w1_run import Order, looks

    assert sum(looks(turn, 1.83) for turn in range(100)) == 183
    assert {looks(turn, 0.0) for turn in range(10)} == {0}
    with pytest.raises(ValueError, match="two updates"):
        Order(updates=1)


def test_only_tuned_processes_are_told_to_keep_memory(monkeypatch) -> None:
    from w1 import surroundings

    monkeypatch.setenv("MALLOC_TOP_PAD_", "5")
    assert "MALLOC_TOP_PAD_" not in surroundings("plain")
    assert surroundings("tuned")["MALLOC_TOP_PAD_"] == str(1 << 28)
    assert surroundings("plain")["OMP_NUM_THREADS"] == "1"


def test_random_images_stand_in_for_missing_ones(tmp_path, monkeypatch) -> None:
    import numpy as np
    import w1

    from artesian.data.datasets import images
    from artesian.errors import MissingData

    def missing(name):
        raise MissingData("There are no images", "Get some")

    monkeypatch.setattr(w1, "images", missing)
    assert "random" in w1.write_images(tmp_path / "images.npz")
    with np.load(tmp_path / "images.npz") as file:
        assert file["x"].shape == (70_000, 28, 28)
    assert images(str(tmp_path / "images.npz")).y.max() == 9


def test_a_peer_that_fails_is_named_with_the_reason() -> None:
    from measuring import Outcome
    from peers import describe, rounds
    from w1 import Bench

    assert rounds(100) == (10, 10)
    assert rounds(4) == (1, 4)
    assert rounds(25) == (3, 10)
    found = {
        ("artesian", "plain"): [Outcome(10.0, 50.0, proportional_mb=40.0)],
        ("Flower 1.41.0", "plain"): [Outcome(600.0, 9.0, failure="not done after 600 s")],
    }
    text = describe(Bench(Path(), 100), found, {"pfl-research": "no matching distribution"})
    assert "| artesian, plain | 10.0 | 10.0 | 12,500 | 50.0 | 40.0 |" in text
    assert "| Flower 1.41.0, plain: not done after 600 s | - | - | - | - | - |" in text
    assert "| pfl-research: not installed, no matching distribution | - | - | - | - | - |" in text


def test_a_benchmark_that_is_ended_ends_what_it_measures(tmp_path) -> None:
    note = tmp_path / "pid"
    child = f"import os, time; open({str(note)!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    script = f"import os, sys, measuring; measuring.run([sys.executable, '-c', {child!r}], os.environ, 600)"
    bench = subprocess.Popen([sys.executable, "-c", script], cwd=FOLDER)
    deadline = time.monotonic() + 60
    while not (note.exists() and note.read_text()) and time.monotonic() < deadline:
        time.sleep(0.05)
    bench.terminate()
    assert bench.wait(30) == 128 + signal.SIGTERM
    with pytest.raises(ProcessLookupError):
        os.kill(int(note.read_text()), 0)


def test_peers_are_compared_neighbour_by_neighbour() -> None:
    from measuring import Outcome
    from peers import ratios

    found = {
        ("artesian", "plain"): [took(10.0, 50.0, 40.0), took(20.0, 50.0, 40.0)],
        ("naive", "plain"): [took(20.0, 25.0, 20.0), took(20.0, 25.0, 20.0)],
        ("Flower 1.41.0", "plain"): [took(30.0, 100.0, 100.0), took(60.0, 200.0, 100.0)],
        ("pfl-research 0.6", "plain"): [Outcome(1.0, 1.0, failure="killed")],
    }
    assert ratios(25, found) == [
        ["naive, plain", "1.50 (1.00..2.00)", "2.00 (2.00..2.00)", "2.00 (2.00..2.00)"],
        ["Flower 1.41.0, plain", "2.50 (2.50..2.50)", "0.38 (0.25..0.50)", "0.40 (0.40..0.40)"],
    ]  # Flower made 30 updates where 25 were asked for


def test_growth_and_parts_are_shares_of_the_right_whole() -> None:
    from scaling import growth_row, parts_row, spread_small

    assert growth_row([3.0], [5.0], [2.0], [2.5]) == ["3.00", "1.50", "5.00", "2.00", "0.60", "0.75"]
    part = {"training": 60.0, "measuring": 25.0, "appraising": 5.0, "folding": 10.0, "distances": 2.0, "changed": 1.0}
    assert parts_row([part]) == ["60.0", "30.0", "10.0", "2.00", "1.00", "10.0"]
    assert spread_small([0.001, 0.003, 0.002]) == "0.002 (0.001..0.003)"


def test_the_small_measurements_run() -> None:
    for way, order, parts in (
        ("clients", {"name": "fedasync", "count": 5, "uploads": 10}, {"joining", "upload", "mb"}),
        ("journal", {"events": 150}, {"append", "append_synced", "opening", "resuming"}),
    ):
        command = [sys.executable, str(FOLDER / "scaling_run.py"), way, json.dumps(order)]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        assert parts <= set(found)
        assert all(found[part] > 0 for part in parts)


def test_both_networks_are_the_same_function() -> None:
    torch = pytest.importorskip("torch")
    import w1
    from w1_work import DATA, PARAMETERS, SAMPLES, network

    from artesian.learners.networks import cnn

    assert (w1.DATA, w1.SAMPLES) == (DATA, SAMPLES)
    plain, tuned = network("plain"), network("tuned")
    tuned.load_state_dict(plain.state_dict())
    x = torch.rand(3, 1, 28, 28)
    assert torch.allclose(plain(x), tuned(x), atol=1e-6)
    assert sum(p.numel() for p in plain.parameters()) == PARAMETERS
    assert {n: p.shape for n, p in cnn().named_parameters()} == {n: p.shape for n, p in plain.named_parameters()}


def test_every_row_of_a_papers_table_changes_known_settings() -> None:
    from papers import PAPERS

    from artesian.algorithms import ALGORITHMS
    from artesian.config.experiments import tables_of

    for paper in PAPERS.values():
        for row in paper.rows.values():
            algorithm = tables_of(paper.preset, [*paper.changes, *row.changes])["algorithm"]
            own = {key: value for key, value in algorithm.items() if key != "name"}
            assert ALGORITHMS[algorithm["name"]](**own)


def test_a_papers_table_shows_means_and_how_many_seeds_have_a_figure(tmp_path) -> None:
    from papers import record, recorded, shown

    results = tmp_path / "papers.jsonl"
    summary = {"clients": 0.5, "clients_best": 0.5, "clusters": 4, "transfers": 12100.0, "wall_seconds": 9}
    record("casa-mnist", "CASA", 0, {**summary, "time_to_target": 21.0}, results)
    record("casa-mnist", "CASA", 1, {**summary, "clients": 0.7, "time_to_target": None}, results)
    assert list(recorded(results)) == [("casa-mnist", "CASA", 0), ("casa-mnist", "CASA", 1)]
    assert "wall_seconds" not in results.read_text()
    line = next(line for line in shown("casa-mnist", results) if line.startswith("| CASA |"))
    assert line == ("| CASA | 0.600 ± 0.141 | 0.500 | 21.0 (1 of 2) | 4.0 | - | - | - | 12,100 | 2 | 99.52 / 2.80 |")


def test_the_attack_table_has_every_cell_and_what_it_is_compared_with() -> None:
    from attacks import DEFENCES, METHODS, Cell, cells

    from artesian.config.experiments import load
    from artesian.simulator.attacks import ATTACKS

    wanted = cells(["nothing"], METHODS, ATTACKS, [1, 2, 5], [0, 1])
    assert len(wanted) == len(set(wanted)) == 2 * 5 * (1 + 3 * 9)
    assert wanted[:5] == [Cell("nothing", method, "none", 0, 0) for method in METHODS]
    for cell in (one for one in wanted if one.seed == 0):
        fleet = load("digits-4", cell.settings).fleet
        assert fleet.hostile_share == cell.hostile / 20
        assert not cell.hostile or fleet.attack == cell.attack
    assert DEFENCES["nothing"] == []


def test_robust_rules_are_not_run_where_uploads_are_folded_one_by_one(tmp_path) -> None:
    from attacks import AVERAGING, METHODS, Cell, cells, record, run_all, shown

    from artesian.algorithms import ALGORITHMS
    from artesian.engine.pace import Stream

    streams = {name for name in METHODS if ALGORITHMS[name]().pace() == Stream(1)}
    assert streams == set(METHODS) - set(AVERAGING["robust"])
    cell = Cell("robust", "fedasync", "inflated-samples", 5, 0)
    assert cell.run == Cell("defaults", "fedasync", "inflated-samples", 5, 0)
    assert Cell("robust", "fedbuff", "x10", 5, 0).run == Cell("robust", "fedbuff", "x10", 5, 0)
    wanted, results = cells(["robust"], ["cdfl", "fedavg"], ["x10"], [1], [0]), tmp_path / "attacks.jsonl"
    for each in wanted:
        record(each.run, {"client_after": 0.875 - 0.125 * each.hostile}, results)
    assert "| x10 | 12.5 | 12.5 |" in shown(wanted, results)
    run_all(wanted, 1, tmp_path / "runs", results)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("method", ["confluence", "cdfl", "fedasync"])
def test_robust_rules_give_the_bits_of_the_defaults_where_uploads_are_folded_one_by_one(tmp_path, method) -> None:
    from attacks import DEFENCES, Cell

    from artesian.config.experiments import simulate

    for defence in ("defaults", "robust"):
        settings = Cell(defence, method, "inflated-samples", 2, 0).settings
        assert set(DEFENCES[defence]) <= set(settings)
        changes = [*settings, "uploads=40", "evaluate_every=20", "world.clients=20"]
        simulate("digits-2", changes=changes, seed=0, out=tmp_path / defence)
    left, right = (
        {
            path.name: path.read_bytes()
            for path in [*(tmp_path / defence / "final").iterdir(), tmp_path / defence / "metrics.csv"]
        }
        for defence in ("defaults", "robust")
    )
    assert left == right and len(left) > 1


def test_the_attack_table_shows_points_lost(tmp_path) -> None:
    from attacks import cells, record, recorded, run_all, shown

    results = tmp_path / "attacks.jsonl"
    wanted = cells(["nothing"], ["cdfl", "fedavg"], ["x10", "flood"], [1], [0, 1])
    for cell in wanted[:4] + wanted[6:8]:  # both without attacker, x10; then without attacker again
        lost = 0.125 if cell.hostile else 0.0
        honest = {} if cell.hostile or cell.method == "fedavg" else {"uploads": 200, "notes": {"set_aside": 3.0}}
        record(cell, {"client_after": 0.875 - lost, "hostile": 4, "wall_seconds": 9, **honest}, results)
    record(wanted[4], {"ended": "NotFinite: The model holds nan."}, results)
    assert list(recorded(results)) == [*wanted[:4], *wanted[6:8], wanted[4]]
    assert [line for line in shown(wanted, results) if line.startswith("| ")] == [
        "| attack | cdfl | fedavg |",
        "| none: accuracy | 87.5 | 87.5 |",
        "| none: set aside, % | 1.5 | - |",
        "| x10 | 12.5 | 12.5 |",
        "| flood | ended | - |",
        "| the most in a single run | ended | 12.5 |",
    ]
    both = [*wanted, *cells(["defaults"], ["cdfl", "fedavg"], ["x10", "flood"], [1], [0, 1])]
    for cell in both[len(wanted) :]:
        record(cell, {"client_after": 0.875 + 0.0001 * cell.hostile}, results)
    assert "| x10 | 12.5, 0.0 | 12.5, 0.0 |" in shown(both, results)
    run_all(wanted[:4], 1, tmp_path / "runs", results)  # all of it has ended
    assert not (tmp_path / "runs").exists()


def test_rules_of_choosing_see_the_same_runs(capsys, monkeypatch) -> None:
    import choices

    from artesian.config.experiments import simulate

    set_ = [part for change in ("uploads=60", "world.clients=10") for part in ("--set", change)]
    words = ["choices.py", "digits-2", "--methods", "fedbuff", "--seeds", "7", "--json", *set_]
    monkeypatch.setattr(sys, "argv", words)
    choices.main()
    found = {line["rule"]: line for line in map(json.loads, capsys.readouterr().out.splitlines())}
    assert set(found) == set(choices.RULES)
    assert found["always trained"]["worse"] == 0  # than itself
    assert len({line["used"] for line in found.values()}) > 2
    # the rule that clients have is among them, and finds what a run without the others finds
    assert choices.RULES["1, 0.5, 2"] == choices.MARGINS
    run = simulate("digits-2", algorithm="fedbuff", changes=["uploads=60", "world.clients=10", "accept=better"], seed=7)
    used = run.metrics["accepted"][30:]
    assert found["1, 0.5, 2"]["used"] == pytest.approx(sum(used) / len(used))


def test_central_training_goes_on_from_its_last_cycle(tmp_path, capsys, monkeypatch) -> None:
    import central

    def lines(cycles: int, folder: str) -> list[dict]:
        options = ["--cycles", str(cycles), "--each", "--runs", str(tmp_path / folder), "--set", "world.clients=4"]
        monkeypatch.setattr(sys, "argv", ["central.py", "digits-2", *options])
        central.main()
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    whole = lines(2, "whole")
    assert [*lines(1, "halves"), *lines(2, "halves")] == whole
    assert [line["cycle"] for line in whole] == [1, 2]
    assert all(0.5 < line[which] <= 1 for line in whole for which in ("all", "each"))


def test_central_training_sees_what_clients_train_on() -> None:
    import central

    from artesian.config.experiments import load
    from artesian.recipes.accepting import held_back

    experiment = load("digits-2", ["world.clients=3"])
    found = list(central.drawn(experiment, 0, 5, 0.2))
    visits = [experiment.world.visit(0, client, 5) for client in experiment.world.names]
    for (samples, cluster), visit, client in zip(found, visits, experiment.world.names, strict=True):
        rows = held_back(len(visit.train), 0.2, client)
        assert len(samples) == len(cluster) == len(visit.train) - len(rows)
        first = round(visit.mixture["k0"] * len(visit.train))
        assert (cluster == 0).sum() == first - (rows < first).sum()


def test_the_tables_of_the_league_are_those_of_its_results() -> None:
    """In one world: A .9 and B .9 tie for first, C is 10 points behind; with a second seed only B is left."""
    import league_tables

    scores = {("A", 0): 0.9, ("B", 0): 0.9, ("C", 0): 0.8, ("B", 1): 0.7}
    known = {
        (world, method, seed): {"client_accepted": score, "worse_accepted": 0.02}
        for world in league_tables.WORLDS
        for (method, seed), score in scores.items()
    }
    (*_, row) = league_tables.used_table(known, ["A"], [0])
    assert row == "| A | " + " | ".join([".900 (2.0%)"] * 9) + " |"
    ranks = list(league_tables.rank_table(known, ["A", "B", "C"], [0]))[2:]
    ties = ", ".join(["1.5"] * 9)
    assert ranks == [
        f"| A | {ties} | 1.5 | 0.00, 0.0 |",
        f"| B | {ties} | 1.5 | 0.00, 0.0 |",
        f"| C | {', '.join(['3'] * 9)} | 3.0 | 10.00, 10.0 |",
    ]
    (only,) = list(league_tables.rank_table(known, ["A", "B", "C"], [0, 1]))[2:]
    assert only.startswith("| B | 1, 1, ")
