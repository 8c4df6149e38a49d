"""A league at work: processes that finish, fail and stop; and whole leagues, interrupted and resumed."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from threading import Event
from typing import ClassVar

import pytest
from leagues.made import finish, pair, plan, summary
from typer.testing import CliRunner

import artesian
from artesian import cli
from artesian.cli import league as command
from artesian.errors import ResumeMismatch, RunExists, RunLocked, SettingError
from artesian.leagues import running, single_run
from artesian.leagues.file import read
from artesian.leagues.plan import PlannedRun, planned
from artesian.leagues.results import FILE as RESULTS
from artesian.leagues.results import Results, read_results
from artesian.leagues.running import (
    LeagueProgress,
    Runner,
    SingleRun,
    check_folder,
    cores,
    forecast,
    opened,
    progress_words,
    run_league,
)
from artesian.leagues.timing import Timing
from artesian.simulator.simulation import Progress

A, B = pair("w", "a"), pair("w", "b")
PLAN = plan(A, B)


class Scripted:
    """A run without a process: it does as its method's script says."""

    scripts: ClassVar[dict[str, str]] = {}
    began: ClassVar[list[str]] = []

    def __init__(self, run: PlannedRun, folder: Path) -> None:
        self.run, self.folder, self.stopped = run, folder, Event()
        self.began.append(str(run))

    def follow(self, hear):
        script = self.scripts.get(self.run.pair.method, "finish")
        for done in (1, 5, 10):
            hear({"done": done})
        if script == "wait":
            assert self.stopped.wait(10)
            return None
        if script == "warn":
            hear({"warning": "Mind this."})
        if script == "fail":
            return "The disk is full."
        finish(self.folder, self.run, json.dumps(summary(0.5 + 0.1 * self.run.seed)))
        return None

    def stop(self) -> None:
        self.stopped.set()

    kill = stop


@pytest.fixture
def scripted(monkeypatch):
    monkeypatch.setattr(running, "SingleRun", Scripted)
    monkeypatch.setattr(Scripted, "scripts", {})
    monkeypatch.setattr(Scripted, "began", [])
    return Scripted


def test_every_run_is_timed_then_run_and_the_page_grows(scripted, tmp_path) -> None:
    said: list[str] = []
    told: list[LeagueProgress] = []
    found = run_league(PLAN, tmp_path / "league", 2, said.append, told.append)
    assert (found.finished, found.runs, found.failed) == (4, 4, {})
    assert said[0] == "timing 2 pairs of world and method: the first seconds of a run of each"
    assert any(line.startswith("4 runs (2 finished, 2 to begin): about 0 s with 2 at once") for line in said)
    assert sum("finished (" in line for line in said) == 4
    assert told[-1].finished == 4
    assert "4 of 4 runs" in (tmp_path / "league" / "league.md").read_text()
    assert set(json.loads((tmp_path / "league" / "timings.json").read_text())) == {"w/a", "w/b"}
    assert json.loads((tmp_path / "league" / "league.json").read_text())["worlds"]["w"]["methods"] == ["a", "b"]
    scripted.began.clear()
    assert run_league(PLAN, tmp_path / "league", 2, said.append).finished == 4
    assert (scripted.began, said[-1]) == ([], "4 runs (4 finished): nothing is left")


def test_a_failed_run_is_named_and_the_others_go_on(scripted, tmp_path) -> None:
    scripted.scripts["a"] = "fail"
    found = run_league(PLAN, tmp_path, 1)
    assert found.failed == dict.fromkeys(("w, a, seed 0", "w, a, seed 1"), "The disk is full.")
    assert found.finished == 2
    assert "w, a, seed 0: The disk is full." in (tmp_path / "league.md").read_text()
    assert scripted.began.count("w, a, seed 0") == 1  # not tried again before the next session


def test_warnings_are_said_once(scripted, tmp_path) -> None:
    scripted.scripts |= {"a": "warn", "b": "warn"}
    said: list[str] = []
    run_league(PLAN, tmp_path, 2, said.append)
    assert said.count("warning: Mind this.") == 1


def test_an_interrupted_league_stops_the_runs_under_way(scripted, tmp_path) -> None:
    scripted.scripts["a"] = "wait"
    runner = Runner(PLAN.runs, Results(PLAN, tmp_path), 2, {}, print)

    def interrupt(progress: LeagueProgress) -> None:
        if progress.finished == 1 and progress.under_way:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        runner.run([PlannedRun(A, 0), PlannedRun(B, 0)], interrupt, lambda _: None)
    assert (runner.under_way, len(runner.left)) == ({}, 3)
    assert runner.failed == {}


def test_a_fault_of_our_own_ends_all_runs(scripted, tmp_path) -> None:
    scripted.scripts["a"] = "wait"

    def fail(progress: LeagueProgress) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        Runner(PLAN.runs, Results(PLAN, tmp_path), 2, {}, print).run(PLAN.runs, fail, lambda _: None)


def test_a_forecast_writes_nothing_to_the_folder(scripted, tmp_path) -> None:
    scripted.scripts["a"] = "fail"
    said: list[str] = []
    found, timings = forecast(PLAN, tmp_path / "league", 2, said.append)
    assert (found.waiting, found.jobs, set(timings)) == (4, 2, {A, B})
    assert said == ["w, a, seed 0: The disk is full."]
    assert not (tmp_path / "league").exists()


def test_lines_are_added_as_runs_end(scripted, tmp_path) -> None:
    lines: list[int] = []

    def say(text: str) -> None:
        if "finished (" in text:
            lines.append(len(read_results(tmp_path / RESULTS)))

    run_league(PLAN, tmp_path, 1, say)
    assert lines == [1, 2, 3, 4]
    assert all(result.experiment == A.experiment for result in read_results(tmp_path / RESULTS))


def test_a_league_goes_on_from_its_results_alone(scripted, tmp_path) -> None:
    whole = run_league(PLAN, tmp_path / "whole", 2)
    file = tmp_path / "elsewhere" / "kept.jsonl"
    file.parent.mkdir()
    lines = (tmp_path / "whole" / RESULTS).read_text().splitlines(keepends=True)
    file.write_text("".join(line for line in lines if json.loads(line)["method"] == "a"))
    scripted.began.clear()
    found, _ = forecast(PLAN, tmp_path / "new", 2, file=file)
    assert str(found).startswith("4 runs (2 finished, 2 to begin): ")
    assert not (tmp_path / "new").exists()
    half = run_league(PLAN, tmp_path / "new", 2, file=file)
    assert set(scripted.began) == {"w, b, seed 0", "w, b, seed 1"}
    assert half.describe() == whole.describe()
    assert (tmp_path / "new" / "league.md").read_bytes() == (tmp_path / "whole" / "league.md").read_bytes()
    assert sorted(file.read_text().splitlines()) == sorted(line.strip() for line in lines)
    assert not (tmp_path / "new" / RESULTS).exists()
    scripted.began.clear()
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / RESULTS).write_bytes(file.read_bytes())  # nothing else is needed
    assert run_league(PLAN, tmp_path / "copy", 2).describe() == whole.describe()
    assert (scripted.began, list((tmp_path / "copy").rglob("summary.json"))) == ([], [])


def test_a_refused_league_leaves_its_record_as_it_was(scripted, tmp_path) -> None:
    run_league(PLAN, tmp_path, 2)
    before = (tmp_path / "league.json").read_bytes(), (tmp_path / RESULTS).read_bytes()
    with pytest.raises(ResumeMismatch):
        run_league(plan(pair("w", "a", changes=("uploads=5",))), tmp_path, 2)
    assert ((tmp_path / "league.json").read_bytes(), (tmp_path / RESULTS).read_bytes()) == before


def test_time_left_counts_the_start_of_runs_to_come(tmp_path) -> None:
    runner = Runner(PLAN.runs, Results(PLAN, tmp_path), 1, {A: Timing(2.0, 0.5)}, print)
    assert runner.progress().seconds == 14.0  # two runs of 2 + 10 * 0.5; the other pair is not timed yet


def test_progress_in_words() -> None:
    assert progress_words(LeagueProgress(3, 1, 9, (), 200.0)) == "3/9 runs, 1 failed, 3 min left"
    assert progress_words(LeagueProgress(0, 0, 9, (), 5.0, timing=True)) == "0/9 runs, timing"


def test_a_folder_that_is_no_league_is_refused(tmp_path) -> None:
    (tmp_path / "notes.txt").touch()
    with pytest.raises(RunExists, match="exists and is not the folder of a league"):
        check_folder(tmp_path)
    check_folder(tmp_path / "new")
    with opened(tmp_path / "new", PLAN), pytest.raises(RunLocked), opened(tmp_path / "new", PLAN):
        pass
    with opened(tmp_path / "new", PLAN):
        pass


def test_jobs_are_cores_unless_asked_for() -> None:
    assert (cores(None), cores(3)) == (os.cpu_count(), 3)
    with pytest.raises(SettingError, match="jobs must be a whole number from 1 on, not 0"):
        cores(0)


# one run


def test_a_run_says_how_far_it_is_now_and_then_and_at_its_end() -> None:
    said: list[int] = []
    now = 0.0
    report = single_run.throttled(lambda done: said.append(done), lambda: now)
    for done, now in enumerate((0.0, 0.05, 0.2, 0.25, 0.29), 1):  # noqa: B007 (the clock reads it)
        report(Progress(done, 5, None))
    assert said == [1, 3, 5]


def test_a_run_that_fails_says_why_in_one_line() -> None:
    assert single_run._words(SettingError("No such file", "Name another")) == "No such file. Name another."
    with pytest.raises(ZeroDivisionError) as caught:
        _ = 1 / 0
    told = single_run._words(caught.value)
    assert told.startswith("ZeroDivisionError: division by zero (test_running.py, line ")


@pytest.mark.heavy
def test_a_process_that_dies_is_a_failure_with_its_last_words(tmp_path) -> None:
    quick = ("uploads=100000", "world.clients=4", "start.trunk_epochs=0")
    endless = PlannedRun(pair("w", "a", changes=quick), 0)
    single, heard = SingleRun(endless, tmp_path / "run"), []

    def kill(words) -> None:
        heard.append(words)
        os.kill(single._process.pid, signal.SIGKILL)

    assert single.follow(kill) == "Its process ended with code -9."
    assert heard[0] == {"done": 1}
    wrong = SingleRun(PlannedRun(pair("w", "a", source="nothing", experiment={}), 0), tmp_path / "wrong")
    assert wrong.follow(heard.append).startswith("No such file or preset: nothing.")


# whole leagues

TINY = {
    "seeds": [0, 1],
    "uploads": 20,
    "set": ["world.clients=4", "training.epochs=1", "start.trunk_epochs=1"],
    "method": {
        "CDFL": {"set": ["algorithm.name=cdfl"]},
        "FedBuff": {"set": ["algorithm.name=fedbuff", "algorithm.buffer_size=2"]},
    },
    "world": {"small": {"preset": "digits-2"}},
}
FILE = """
seeds = [0, 1]
uploads = {uploads}
set = ["world.clients=4", "training.epochs=1", "start.trunk_epochs=1"]
[method.CDFL]
set = ["algorithm.name=cdfl"]
[method.FedBuff]
set = ["algorithm.name=fedbuff", "algorithm.buffer_size=2"]
[world.small]
preset = "digits-2"
"""


def figures(folder: Path) -> dict[str, dict]:
    """The summaries of a league's runs, without what the machine decides."""
    found = {}
    for path in sorted(folder.rglob("summary.json")):
        told = json.loads(path.read_text())
        found[str(path.parent.relative_to(folder))] = {k: told[k] for k in told if k not in ("wall_seconds", "peak_mb")}
    return found


@pytest.mark.heavy
def test_a_league_in_python(tmp_path) -> None:
    found = artesian.league(TINY, out=tmp_path / "league", results=tmp_path / "kept.jsonl", jobs=2)
    assert (found.finished, found.failed) == (4, {})
    alone = artesian.simulate("digits-2", algorithm="cdfl", changes=[*TINY["set"], "uploads=20"], seed=1)
    told = json.loads((tmp_path / "league" / "small" / "CDFL" / "seed-1" / "summary.json").read_text())
    assert told["client_after"] == alone.summary["client_after"]
    assert set(found.overall) == {"CDFL", "FedBuff"}
    assert found.overall["FedBuff"].against is not None
    (line, *_), config = read_results(tmp_path / "kept.jsonl"), "small/{}/seed-{}/config.json"
    begun = json.loads((tmp_path / "league" / config.format(line.method, line.seed)).read_text())
    assert line.experiment == begun["experiment"]
    said: list[str] = []
    again = artesian.league(TINY, out=tmp_path / "new", results=tmp_path / "kept.jsonl", say=said.append)
    assert (again, said) == (found, ["4 runs (4 finished): nothing is left"])
    with pytest.raises(ResumeMismatch, match=r"a result of small, .* with experiment\.uploads = 20, and now it is 21"):
        artesian.league({**TINY, "uploads": 21}, out=tmp_path / "new", results=tmp_path / "kept.jsonl")


@pytest.mark.heavy
def test_a_league_that_was_interrupted_has_the_bits_of_runs_that_were_not(tmp_path) -> None:
    file = tmp_path / "league.toml"
    file.write_text(FILE.format(uploads=200))
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    for run in planned(read(file)).runs:
        artesian.simulate(run.pair.source, changes=run.pair.changes, seed=run.seed, out=whole / run.folder)
    words = [sys.executable, "-m", "artesian.cli", "league", str(file), "--jobs", "2", "--out"]
    process = subprocess.Popen([*words, str(broken)], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    while not list(broken.rglob("metrics.csv")):
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    told = process.communicate(timeout=60)[1]
    assert process.returncode == 130, told
    assert "interrupted. Go on with the same command." in told
    assert len(figures(broken)) < 4
    done = subprocess.run([*words, str(broken), "--json"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["finished"] == 4
    assert figures(broken) == figures(whole)


def test_the_command_prints_tables_json_and_failures(scripted, tmp_path) -> None:
    file = tmp_path / "league.toml"
    file.write_text(FILE.format(uploads=20))
    words = ["league", str(file), "--out", str(tmp_path / "league")]
    told = CliRunner().invoke(cli.app, [*words, "--dry-run"])
    assert "small\tFedBuff\tfedbuff\t0, 1\t20 uploads\t" in told.stdout
    assert "4 runs (4 to begin): about " in told.stdout
    plan_of = json.loads(CliRunner().invoke(cli.app, [*words, "--dry-run", "--json"]).stdout)
    assert (plan_of["runs"], plan_of["pairs"][1]["folder"]) == (4, "small/FedBuff")
    assert not (tmp_path / "league").exists()
    scripted.scripts["CDFL"] = "fail"
    failed = CliRunner().invoke(cli.app, words)
    assert failed.exit_code == 1
    assert "failed: small, CDFL, seed 1: The disk is full." in failed.stderr
    scripted.scripts.clear()
    told = CliRunner().invoke(cli.app, words)
    assert told.exit_code == 0, told.output
    assert "all worlds" in told.stdout and "CDFL\t1.5\t*1.50\t1 of 1\t-\t-" in told.stdout
    told = CliRunner().invoke(cli.app, [*words, "--json"])
    assert json.loads(told.stdout)["overall"]["CDFL"]["mean"] == 1.5
    scripted.began.clear()
    elsewhere = [*words[:-1], str(tmp_path / "new"), "--results", str(tmp_path / "league" / RESULTS)]
    plan_of = json.loads(CliRunner().invoke(cli.app, [*elsewhere, "--dry-run", "--json"]).stdout)
    assert (plan_of["runs"], plan_of["finished"]) == (4, 4)
    assert CliRunner().invoke(cli.app, [*elsewhere, "--show", "--json"]).stdout == told.stdout
    shown = CliRunner().invoke(cli.app, [*elsewhere, "--show"]).stdout
    assert "CDFL\t1.5\t*1.50\t1 of 1\t-\t-" in shown and "the page is" not in shown
    assert not (tmp_path / "new").exists()
    both = CliRunner().invoke(cli.app, [*elsewhere, "--show", "--dry-run"])
    assert str(both.exception) == "--dry-run says what would run, and --show what has finished. Give one of the two."
    assert CliRunner().invoke(cli.app, [*elsewhere, "--json"]).stdout == told.stdout
    assert scripted.began == []


def test_the_command_refuses_a_wrong_file_in_a_sentence(tmp_path) -> None:
    file = tmp_path / "league.toml"
    file.write_text(FILE.format(uploads=20) + "[method.Odd]\nsets = []\n")
    told = CliRunner().invoke(cli.app, ["league", str(file), "--out", str(tmp_path / "league")])
    assert isinstance(told.exception, SettingError)
    assert str(told.exception) == "The method 'Odd' has no setting 'sets'. Did you mean 'set'?"
    assert not (tmp_path / "league").exists()


def test_an_interrupted_command_says_how_to_go_on(monkeypatch, tmp_path) -> None:
    def interrupted(*_) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(running, "run_league", interrupted)
    file = tmp_path / "league.toml"
    file.write_text(FILE.format(uploads=20))
    told = CliRunner().invoke(command.app, ["league", str(file), "--out", str(tmp_path / "league")])
    assert told.exit_code == 130
    assert "interrupted. Go on with the same command." in told.stderr
