"""The file of a league and its plan: who runs where, with which settings, and what is refused before anything runs."""

import re
from pathlib import Path

import pytest

from artesian.config.experiments import simulate
from artesian.errors import ResumeMismatch, SettingError
from artesian.leagues.file import League, Method, Venue, league_of, read
from artesian.leagues.plan import PlannedRun, changes_of, check_begun, planned, safe

FILE = """
seeds = [3, 4]
uploads = 20
set = ["world.clients=4"]
methods = ["FedBuff + tune", "FedAsync"]

[training]
rate = 0.02

[method.FedAsync]
set = ["algorithm.name=fedasync"]
[method."FedBuff + tune"]
set = ["algorithm.name=fedbuff", "tune=1"]
except = ["digits-4"]
[method.spare]

[world.small]
preset = "digits-2"
set = ["uploads=10"]
seeds = [3]
[world.small.method.FedAsync]
set = ["algorithm.alpha=0.5"]

[world.digits-4]
"""


def written(folder: Path, text: str = FILE) -> Path:
    (folder / "league.toml").write_text(text)
    return folder / "league.toml"


def test_a_file_is_read_as_it_says(tmp_path) -> None:
    found = read(written(tmp_path))
    assert found.changes == ("uploads=20", "training.rate=0.02", "world.clients=4")
    buff = Method("FedBuff + tune", ("algorithm.name=fedbuff", "tune=1"), ("digits-4",))
    assert found.methods == (buff, Method("FedAsync", ("algorithm.name=fedasync",)))
    small, large = found.worlds
    own = {"FedAsync": ("algorithm.alpha=0.5",)}
    assert small == Venue("small", "digits-2", (3,), ("FedBuff + tune", "FedAsync"), ("uploads=10",), own)
    assert large == Venue("digits-4", "digits-4", (3, 4), ("FedAsync",))


def test_a_file_of_a_world_is_beside_the_file_of_the_league(tmp_path) -> None:
    league = read(written(tmp_path, '[method.a]\n[world.w]\nfile = "mine.toml"\n'))
    assert league.worlds[0].source == str(tmp_path / "mine.toml")
    assert league.worlds[0].seeds == (0,)


def test_the_last_change_counts() -> None:
    league = League((Method("m", ("c=3",)),), (), ("a=1",))
    world = Venue("w", "digits-2", (0,), ("m",), ("b=2",), {"m": ("d=4",)})
    assert changes_of(league, world, "m") == ('name="w"', "a=1", "b=2", "c=3", "d=4")


SOUND = {"method": {"a": {}, "b": {}}, "world": {"w": {"preset": "digits-2"}}}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"seed": [1]}, "The league has no setting 'seed'. Did you mean 'seeds'?"),
        ({"seeds": [1, 1]}, "seeds of the league must be different whole numbers from 0 on, not [1, 1]"),
        ({"seeds": []}, "seeds of the league must be different whole numbers"),
        ({"seeds": 3}, "Write a list, such as seeds = [0, 1, 2]"),
        ({"methods": ["a", "c"]}, "No method is called 'c', which the league names"),
        ({"methods": ["a", "a"]}, "The league names a method twice"),
        ({"set": "tune=1"}, "set of the league must be a list of texts, not 'tune=1'"),
        ({"method": {}}, "The league has no method"),
        ({"world": {}}, "The league has no world"),
        ({"world": {"w": 3}}, "world of the league must hold tables"),
        ({"method": {"a": {"sets": []}}}, "The method 'a' has no setting 'sets'. Did you mean 'set'?"),
        ({"method": {"a": {"except": ["v"]}}}, "No world is called 'v', which the method 'a' names"),
        ({"world": {"w": {"presets": "x"}}}, "The world 'w' has no setting 'presets'. Did you mean 'preset'?"),
        (
            {"world": {"w": {"except": ["aa"]}}},
            "No method is called 'aa', which the world 'w' names. Did you mean 'a'?",
        ),
        ({"world": {"w": {"preset": "x", "file": "y"}}}, "The world 'w' has a preset and a file"),
        ({"world": {"w": {"preset": 3}}}, "The world 'w' has 3 as its preset or file"),
        ({"world": {"w": {"method": {"c": {}}}}}, "No method is called 'c'"),
        (
            {"world": {"w": {"method": {"a": {"except": []}}}}},
            "The method 'a' in the world 'w' has no setting 'except'",
        ),
    ],
)
def test_mistakes_in_a_file_are_named(change, words) -> None:
    with pytest.raises(SettingError) as error:
        league_of(SOUND | change, Path())
    assert words in str(error.value)


def test_a_file_that_is_none(tmp_path) -> None:
    with pytest.raises(SettingError, match="could not be read"):
        read(tmp_path / "nothing.toml")
    with pytest.raises(SettingError, match="is not valid TOML"):
        read(written(tmp_path, "seeds = ["))


def test_a_plan_runs_the_first_seed_of_all_pairs_first(tmp_path) -> None:
    plan = planned(read(written(tmp_path)))
    assert [str(run) for run in plan.runs] == [
        "small, FedBuff + tune, seed 3",
        "small, FedAsync, seed 3",
        "digits-4, FedAsync, seed 3",
        "digits-4, FedAsync, seed 4",
    ]
    assert plan.runs[0].folder == Path("small/FedBuff-+-tune/seed-3")
    first, second, third = plan.pairs
    assert [pair.length for pair in plan.pairs] == [10, 10, 20]
    assert (first.algorithm, first.unit, first.classifies) == ("fedbuff", "uploads", True)
    assert len({pair.settings for pair in (first, second, third)}) == 3


def test_scores_of_regressions_are_no_accuracies() -> None:
    plan = planned(league_of({"method": {"a": {}}, "world": {"fedsoft-linear": {}}}, Path()))
    assert (plan.pairs[0].classifies, plan.pairs[0].unit) == (False, "rounds")


def test_what_cannot_run_is_refused_together_and_before_anything_runs() -> None:
    methods = {"a": {"set": ["algorithm.name=fedbuff", "algorithm.buffer_size=50"]}, "b": {"set": ["algorithm.x=1"]}}
    tables = {"uploads": 20, "method": methods, "world": {"digits-2": {}}}
    with pytest.raises(SettingError) as error:
        planned(league_of(tables, Path()))
    text = str(error.value)
    assert "\n  a in digits-2: A fold needs 50 uploads, but the run has 20 in all." in text
    assert "\n  b in digits-2: " in text
    assert text.endswith('leave them out: except = ["..."].')
    shown = planned(league_of({**tables, "method": {"a": methods["a"]}}, Path()), to_run=False)
    assert [pair.method for pair in shown.pairs] == ["a"]  # no world is built to show what has finished
    told = planned(
        league_of({**tables, "world": {"digits-2": {}, "digits-4": {"methods": ["a"]}}}, Path()), to_run=False
    )
    assert [(pair.world, pair.method) for pair in told.pairs] == [("digits-2", "a"), ("digits-4", "a")]
    assert [line.partition(": ")[0] for line in told.missing] == ["digits-2 is not shown"]
    methods["a"]["except"] = methods["b"]["except"] = ["digits-2"]
    with pytest.raises(SettingError, match="no method in any world"):
        planned(league_of(tables, Path()))


def test_a_method_that_sets_no_algorithm_is_what_its_name_says_or_refused() -> None:
    worlds = {"digits-2": {}, "fedsoft-linear": {}}
    with pytest.raises(SettingError, match="'FedBuff' would run confluence in digits-2: it sets no algorithm"):
        planned(league_of({"method": {"FedBuff": {}}, "world": worlds}, Path()))
    with pytest.raises(SettingError, match="'usual' would run confluence in digits-2 and fedsoft in fedsoft-linear"):
        planned(league_of({"method": {"usual": {}}, "world": worlds}, Path()))
    own = {"fedsoft-linear": {"method": {"usual": {"set": ["algorithm.name=ifca"]}}}}
    found = planned(league_of({"method": {"usual": {}}, "world": worlds | own}, Path()))
    assert [pair.algorithm for pair in found.pairs] == ["confluence", "ifca"]


def test_names_that_would_share_a_folder_are_refused() -> None:
    assert safe("FedBuff + tune (2)") == "FedBuff-+-tune-2"
    with pytest.raises(SettingError, match="'a b' and 'A-b' would share the folder a-b"):
        planned(league_of({**SOUND, "method": {"a b": {}, "A-b": {}}}, Path()))
    with pytest.raises(SettingError, match="cannot be the name of a folder"):
        planned(league_of({**SOUND, "method": {"...": {}}}, Path()))


def test_changed_settings_of_runs_that_have_begun_are_refused(tmp_path) -> None:
    tables = {"uploads": 4, "set": ["world.clients=4", "start.trunk_epochs=0"], "method": {"a": {}}}
    tables["world"] = {"w": {"preset": "digits-2"}}
    (pair,) = planned(league_of(tables, Path())).pairs
    run = PlannedRun(pair, 0)
    simulate(pair.source, changes=pair.changes, out=tmp_path / run.folder)
    more = {**tables, "seeds": [0, 1], "method": {"a": {}, "b": {}}}
    check_begun(planned(league_of(more, Path())).runs, tmp_path)  # more of everything is fine
    with pytest.raises(ResumeMismatch, match=r"was begun with experiment\.uploads = 4, and now it is 5"):
        check_begun(planned(league_of({**tables, "uploads": 5}, Path())).runs, tmp_path)


def test_the_example_is_the_one_that_the_how_to_shows() -> None:
    root = Path(__file__).parents[2]
    example = (root / "examples" / "league.toml").read_text()
    (shown,) = re.findall(r"```toml\n(.*?)```", (root / "docs" / "how-to" / "league.md").read_text(), re.S)
    assert example.endswith(shown)
    assert len(planned(read(root / "examples" / "league.toml")).runs) == 12
