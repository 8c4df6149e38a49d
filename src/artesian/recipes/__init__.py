"""The client halves of all algorithms, by name, and a place to register your own.

The server never ships code. A task names a recipe; a client that does not have it refuses the task.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from artesian.core import Recipe
from artesian.errors import SettingError, nearest
from artesian.plugins import imported
from artesian.recipes.alone_local import ALONE
from artesian.recipes.correct_scaffold import CORRECT
from artesian.recipes.em_fedem import EM
from artesian.recipes.match_flexcfl import MATCH
from artesian.recipes.pick_ifca import PICK
from artesian.recipes.soft_fedsoft import SOFT
from artesian.recipes.split_fedrep import SPLIT
from artesian.recipes.train import TRAIN
from artesian.recipes.twin_ditto import TWIN

BUILT_IN: Mapping[str, Recipe] = {
    made.name: made for made in (ALONE, TRAIN, MATCH, SOFT, PICK, EM, CORRECT, TWIN, SPLIT)
}
_registered: dict[str, Recipe] = {}


def register(own: Recipe) -> Recipe:
    """Make a recipe of your own known to every client and simulation of this process."""
    _registered.update(by_name([own]))
    return own


def registered() -> tuple[Recipe, ...]:
    """The recipes that were registered, without the built-in ones."""
    return tuple(_registered.values())


def recipe(name: str, own: Mapping[str, Recipe] | None = None) -> Recipe:
    """The recipe a task names: a client's own, a registered or a built-in one. No name is ever imported here."""
    known = {**BUILT_IN, **_registered, **(own or {})}
    if name not in known:
        raise SettingError(
            f"This client has no recipe {name!r}, which the task asks for ({nearest(name, known)})",
            "Install the package that has it, then pass it: connect(..., recipes=['module:name']), "
            "or artesian client --recipe module:name",
        )
    return known[name]


def by_name(recipes: Iterable[Recipe | str]) -> dict[str, Recipe]:
    """A user's own recipes by the names that tasks may call them: values, or `module:name`, which is imported."""
    found: dict[str, Recipe] = {}
    for entry in recipes:
        made = imported(entry, {}, "recipe") if isinstance(entry, str) else entry
        if not isinstance(made, Recipe):
            raise SettingError(f"{entry!r} is not a recipe", "Pass artesian.Recipe(name, fit, use)")
        if made.name in BUILT_IN:
            raise SettingError(f"The recipe {made.name!r} is built in", "Give your own another name")
        found[made.name] = made
        if isinstance(entry, str):
            found[entry] = made
    return found
