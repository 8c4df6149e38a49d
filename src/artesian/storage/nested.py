"""Replace all values of one kind inside dataclasses, mappings and lists."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass, replace
from functools import cache
from typing import Any

LEAVES = frozenset((str, int, float, bool, type(None)))  # most of any value, and never what is replaced


def swapped(value: Any, kind: type, swap: Callable[[Any], Any]) -> Any:
    """A value in which everything of a kind is replaced; what holds nothing of that kind stays the same object."""
    form: Any = type(value)
    if form in LEAVES:
        return value
    if isinstance(value, kind):
        return swap(value)
    if names := _names(form):
        after = _changed([(name, getattr(value, name)) for name in names], kind, swap)
        return replace(value, **after) if after else value
    if isinstance(value, (dict, Mapping)):
        after = _changed(value.items(), kind, swap)
        return {**value, **after} if after else value
    if isinstance(value, (list, tuple)):
        items = [swapped(item, kind, swap) for item in value]
        same = all(one is two for one, two in zip(items, value, strict=True))
        return value if same else type(value)(items)
    return value


def _changed(items: Iterable[tuple[Any, Any]], kind: type, swap: Callable[[Any], Any]) -> dict[Any, Any]:
    """The items in which something is replaced, by their keys."""
    found = {}
    for key, item in items:
        if type(item) not in LEAVES and (after := swapped(item, kind, swap)) is not item:
            found[key] = after
    return found


@cache
def _names(kind: type) -> tuple[str, ...]:
    """The fields of a dataclass; none of anything else."""
    return tuple(f.name for f in fields(kind)) if is_dataclass(kind) else ()
