"""The results file: what it holds, what it refuses, and what a kill leaves of it."""

import json
from dataclasses import replace
from typing import Any

import pytest
from leagues.made import finish, line, pair, plan, summary

from artesian.errors import ResumeMismatch, StorageError
from artesian.leagues.plan import PlannedRun
from artesian.leagues.results import FILE, Result, Results, read_results

A, B = pair("w", "a"), pair("w", "b")
PLAN = plan(A, B)
FIRST, SECOND, THIRD = PlannedRun(A, 0), PlannedRun(B, 0), PlannedRun(A, 1)


def test_a_folder_that_finished_without_a_line_gets_one(tmp_path) -> None:
    finish(tmp_path / FIRST.folder, FIRST, json.dumps(summary(0.7)))
    results = Results(PLAN, tmp_path)
    assert FIRST in results and SECOND not in results
    assert not (tmp_path / FILE).exists()  # before `write`
    results.write()
    results.write()
    (found,) = read_results(tmp_path / FILE)
    assert found == Result("w", "a", 0, A.experiment, "0.1.0", None, summary(0.7))


def test_a_line_wins_over_a_folder(tmp_path) -> None:
    finish(tmp_path / FIRST.folder, FIRST, json.dumps(summary(0.7)))
    (tmp_path / FILE).write_text(line(FIRST, artesian="0.3.0", commit="c" * 40 + "-dirty"))
    results = Results(PLAN, tmp_path)
    results.write()
    assert results.summaries == {A: {0: summary(0.5)}}
    assert results.versions == ["0.3.0 (cccccccccc-dirty)"]
    assert len(read_results(tmp_path / FILE)) == 1


def test_a_folder_with_a_line_is_not_looked_at(tmp_path) -> None:
    (tmp_path / FILE).write_text(line(FIRST))
    finish(tmp_path / FIRST.folder, FIRST, "no JSON")
    assert FIRST in Results(PLAN, tmp_path)
    finish(tmp_path / SECOND.folder, PlannedRun(B, 1))
    with pytest.raises(ResumeMismatch, match="was begun with seed = 1, and now it is 0"):
        Results(PLAN, tmp_path)


def test_results_have_the_order_of_the_plan(tmp_path) -> None:
    told = [(THIRD, "3"), (SECOND, "2"), (FIRST, "1")]
    (tmp_path / FILE).write_text("".join(line(run, artesian=version) for run, version in told))
    results = Results(PLAN, tmp_path)
    assert results.versions == ["1 (no commit)", "2 (no commit)", "3 (no commit)"]
    assert [(one.method, list(runs)) for one, runs in results.summaries.items()] == [("a", [0, 1]), ("b", [0])]


def test_of_two_lines_for_a_run_the_first_counts(tmp_path) -> None:
    (tmp_path / FILE).write_text(line(FIRST) + line(FIRST, summary=summary(0.9)))
    assert Results(PLAN, tmp_path).summaries == {A: {0: summary(0.5)}}


@pytest.mark.parametrize("length", [1, 40, -2])
def test_a_line_that_a_kill_cut_short_is_dropped_and_written_again(tmp_path, length) -> None:
    (tmp_path / FILE).write_text(line(FIRST) + line(SECOND)[:length])
    results = Results(PLAN, tmp_path)
    assert FIRST in results and SECOND not in results
    finish(tmp_path / SECOND.folder, SECOND, json.dumps(summary(0.5)))
    assert results.see(SECOND)
    results.write()
    assert [json.loads(text) for text in (tmp_path / FILE).read_text().splitlines()] == [
        json.loads(line(FIRST)),
        json.loads(line(SECOND)),
    ]


def test_a_whole_line_without_its_end_is_kept(tmp_path) -> None:
    (tmp_path / FILE).write_text(line(FIRST) + "\n" + line(SECOND).rstrip())
    finish(tmp_path / THIRD.folder, THIRD, json.dumps(summary(0.5)))
    results = Results(PLAN, tmp_path)
    assert SECOND in results
    results.write()
    assert [(result.method, result.seed) for result in read_results(tmp_path / FILE)] == [("a", 0), ("b", 0), ("a", 1)]


def without(settings: dict[str, Any], table: str, name: str) -> dict[str, Any]:
    """Settings as a version recorded them that had one less."""
    return {**settings, table: {key: value for key, value in settings[table].items() if key != name}}


def test_other_settings_are_refused(tmp_path) -> None:
    others = {**A.experiment, "algorithm": {**A.experiment["algorithm"], "beta0": 0.3}}
    (tmp_path / FILE).write_text(line(SECOND) + line(FIRST, experiment=others))
    with pytest.raises(ResumeMismatch) as error:
        Results(PLAN, tmp_path)
    assert str(error.value) == (
        f"{tmp_path / FILE} has a result of w, a, seed 0 with experiment.algorithm.beta0 = 0.3, and now it is "
        "0.025. Name another file with --results, rename the method, or remove the line."
    )


@pytest.mark.parametrize(("table", "name"), [("algorithm", "beta0"), ("world", "data"), ("fleet", "latency")])
def test_a_setting_that_is_newer_than_a_line_counts_as_its_default(tmp_path, table, name) -> None:
    (tmp_path / FILE).write_text(line(FIRST, experiment=without(A.experiment, table, name)))
    assert FIRST in Results(PLAN, tmp_path)


def test_a_setting_that_is_newer_than_a_line_must_have_its_default(tmp_path) -> None:
    changed = PlannedRun(pair("w", "a", changes=("algorithm.beta0=0.3",)), 0)
    (tmp_path / FILE).write_text(line(changed, experiment=without(A.experiment, "algorithm", "beta0")))
    with pytest.raises(ResumeMismatch, match=r"with experiment\.algorithm\.beta0 = 0\.025, and now it is 0\.3"):
        Results(plan(changed.pair), tmp_path)


def test_a_world_older_than_shuffling_was_not_shuffled(tmp_path) -> None:
    ordered = PlannedRun(pair("w", "a", changes=("world.shuffled=false",)), 0)
    (tmp_path / FILE).write_text(line(ordered, experiment=without(A.experiment, "world", "shuffled")))
    assert ordered in Results(plan(ordered.pair), tmp_path)


def test_a_setting_that_follows_from_the_run_stays_as_the_line_has_it(tmp_path) -> None:
    recorded = {**A.experiment, "algorithm": {**A.experiment["algorithm"], "horizon": 7}}
    (tmp_path / FILE).write_text(line(FIRST, experiment=recorded))
    assert FIRST in Results(PLAN, tmp_path)


def test_equal_settings_load_no_experiment(tmp_path) -> None:
    (tmp_path / FILE).write_text(line(FIRST) + line(SECOND))
    nowhere = [replace(one, source="nothing") for one in (A, B)]
    assert len(Results(plan(*nowhere), tmp_path).summaries) == 2


def test_lines_of_other_leagues_stay(tmp_path) -> None:
    others = line(PlannedRun(pair("v", "a"), 0)) + line(PlannedRun(A, 7), experiment={})
    (tmp_path / FILE).write_text(others)
    finish(tmp_path / FIRST.folder, FIRST, json.dumps(summary(0.5)))
    results = Results(PLAN, tmp_path)
    results.write()
    assert results.summaries == {A: {0: summary(0.5)}}
    text = (tmp_path / FILE).read_text()
    assert text.startswith(others) and len(text.splitlines()) == 3


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("<<<<<<< ours\n", "Line 2 of .* is not valid JSON"),
        ('{"world": "w"}\n', "Line 2 of .* is not a result: result lacks the field"),
        (line(SECOND, seed="0"), "Line 2 of .* is not a result: result/seed must be a value of type int"),
        (line(SECOND, experiment="0" * 64), "Line 2 of .* is not a result: result/experiment must be a mapping"),
        (line(SECOND, summary=None), "Line 2 of .* is not a result: result/summary must be a mapping"),
    ],
)
def test_a_damaged_line_is_named(tmp_path, text, words) -> None:
    (tmp_path / FILE).write_text(line(FIRST) + text + line(THIRD))
    with pytest.raises(StorageError, match=words):
        read_results(tmp_path / FILE)


def test_a_file_that_cannot_be_written_is_noticed_before_anything_runs(tmp_path) -> None:
    results = Results(PLAN, tmp_path, tmp_path / "more" / "kept.jsonl")
    results.write()
    assert (tmp_path / "more" / "kept.jsonl").read_bytes() == b""
    (tmp_path / "file").touch()
    with pytest.raises(StorageError):
        Results(PLAN, tmp_path, tmp_path / "file" / "kept.jsonl").write()
