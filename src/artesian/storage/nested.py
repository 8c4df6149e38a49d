"""Replace all values of one kind inside dataclasses, mappings and lists."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

LEAVES = frozenset((str, int, float, bool, type(None)))  # most of any value, and never what is replaced


def swapped(value: Any, kind: type, swap: Callable[[Any], Any]) -> Any:
    """A value in which everything of a kind is replaced; what holds nothing of that kind stays the same object."""
    if type(value) in LEAVES:
        return value
    if isinstance(value, kind):
        return swap(value)
    if is_dataclass(value) and not isinstance(value, type):
        before = {f.name: getattr(value, f.name) for f in fields(value)}
        after = swapped(before, kind, swap)
        return value if after is before else replace(value, **_different(before, after))
    if isinstance(value, Mapping):
        after = {key: swapped(item, kind, swap) for key, item in value.items()}
        return after if _different(value, after) else value
    if isinstance(value, (list, tuple)):
        items = [swapped(item, kind, swap) for item in value]
        same = all(one is two for one, two in zip(items, value, strict=True))
        return value if same else type(value)(items)
    return value


def _different(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    return {key: item for key, item in after.items() if item is not before[key]}
