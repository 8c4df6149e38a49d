"""What version 0.1 wrote to disk, in the words of this version: trees whose fields have other names now, or more."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from artesian.core import Desk, Notebook, Receipt, Snapshot, Tree

ESTIMATING = ("soft", "pick", "em", "match")  # recipes whose answers held a mixture before tasks said so
IN_ORDER = ("rotated", "label-groups", "few-classes", "linear", "digit-world")  # worlds that were never shuffled
NOTEBOOK = {"own", "mixture", "histogram", "origin", "directions"}  # its fields when it was the same for all recipes


def translated(kind: type[Any], tree: Mapping[str, Tree]) -> Mapping[str, Tree]:
    """The fields of a stored value of this type as they are called now."""
    return TRANSLATIONS[kind](tree) if kind in TRANSLATIONS else tree


def translated_notebook(notebook: Notebook) -> Notebook:
    """A notebook as recipes have it now: only with what is written in it."""
    if set(notebook) != NOTEBOOK:
        return notebook
    return {name: entry for name, entry in notebook.items() if entry is not None and not _empty(entry)}


def settings_before(experiment: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that a recorded world lacks since they are newer, as they were then: not as their default."""
    world = experiment.get("world", {})
    return {"shuffled": False} if world.get("name") in IN_ORDER and "shuffled" not in world else {}


def _receipt(tree: Mapping[str, Tree]) -> Mapping[str, Tree]:
    return tree if "estimates" in tree else {**tree, "estimates": tree.get("recipe") in ESTIMATING}


def _desk(tree: Mapping[str, Tree]) -> Mapping[str, Tree]:
    return renamed(tree, "given", "issued")


def _snapshot(tree: Mapping[str, Tree]) -> Mapping[str, Tree]:
    return renamed(tree, "given", "open_tasks")


def renamed(tree: Mapping[str, Tree], before: str, now: str) -> Mapping[str, Tree]:
    """A tree one of whose fields has another name now."""
    return {now if name == before else name: item for name, item in tree.items()} if before in tree else tree


def _empty(entry: Tree) -> bool:
    return isinstance(entry, (dict, list, tuple)) and not entry


TRANSLATIONS: Mapping[type[Any], Callable[[Mapping[str, Tree]], Mapping[str, Tree]]] = {
    Desk: _desk,
    Receipt: _receipt,
    Snapshot: _snapshot,
}
