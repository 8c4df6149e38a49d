"""Recipes by name: built-in ones, registered ones, a client's own; and what a client does without one."""

import pickle
import sys

import pytest

from artesian import recipes
from artesian.core import Recipe
from artesian.errors import SettingError
from artesian.recipes import BUILT_IN, by_name, recipe, register, registered
from artesian.recipes.train import TRAIN

MINE = Recipe("mine", TRAIN.fit, TRAIN.use)


@pytest.fixture(autouse=True)
def _forgotten(monkeypatch) -> None:
    monkeypatch.setattr(recipes, "_registered", {})


def test_built_in_recipes_are_known_by_name() -> None:
    assert all(recipe(name).name == name for name in BUILT_IN)
    assert recipe("train") is TRAIN


def test_a_registered_recipe_is_known_everywhere_in_this_process() -> None:
    assert register(MINE) is MINE
    assert recipe("mine") is MINE
    assert registered() == (MINE,)


def test_a_clients_own_recipe_is_known_only_to_it() -> None:
    assert recipe("mine", {"mine": MINE}) is MINE
    with pytest.raises(SettingError, match=r"This client has no recipe 'mine'.*connect.*--recipe"):
        recipe("mine")


def test_a_recipe_by_module_and_name_is_known_by_its_own_name_too() -> None:
    own = by_name([f"{__name__}:MINE"])
    assert own == {"mine": MINE, f"{__name__}:MINE": MINE}


def test_what_a_task_names_is_never_imported(tmp_path, monkeypatch) -> None:
    (tmp_path / "evil_recipe.py").write_text("raise SystemExit('imported')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(SettingError, match="no recipe 'evil_recipe:RUN'"):
        recipe("evil_recipe:RUN", {"mine": MINE})
    assert "evil_recipe" not in sys.modules


def test_workers_find_a_recipes_functions_by_their_names() -> None:
    assert pickle.loads(pickle.dumps(MINE)) == MINE
    with pytest.raises(SettingError, match=r"Workers cannot find .*<lambda> of the recipe 'odd' by its name"):
        pickle.dumps(Recipe("odd", lambda *arguments: TRAIN.fit(*arguments), TRAIN.use))


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        (Recipe("train", TRAIN.fit, TRAIN.use), "The recipe 'train' is built in. Give your own another name"),
        (f"{__name__}:BUILT_IN", "is not a recipe. Pass artesian.Recipe"),
        (7, "7 is not a recipe"),
        ("no_such_module:MINE", "no_such_module"),
    ],
)
def test_what_is_no_recipe_of_ones_own_is_refused(entry, words) -> None:
    with pytest.raises(SettingError, match=words):
        by_name([entry])
