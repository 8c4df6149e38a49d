"""From the tables of a TOML file to values: names become objects, settings are checked, changes and scales applied."""

from __future__ import annotations

import inspect
import json
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from functools import lru_cache
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from artesian.errors import SettingError, nearest
from artesian.plugins import imported

T = TypeVar("T")
VERBS = {
    "algorithm": ("name", "init", "task", "fold", "pace"),
    "world": ("names", "visit", "proxies", "tests"),
    "model": ("layout", "start", "learner"),
}  # what each kind of value must have at least
USUAL = "small"  # the scale of a file as it is
EXPERIMENT = "the experiment"
OPTIONS = {  # what is no part of an experiment, and what to do instead
    name: f"That is an option of the run, not of the experiment: {how}"
    for name, how in {
        "seed": "--seed, or seed= in Python",
        "seeds": "--seeds",
        "workers": "--workers, or workers= in Python",
        "executor": "--executor, or executor= in Python",
        "out": "--out, or out= in Python",
    }.items()
}
UNSET = object()  # the value of a change that has none: the setting is removed, and its default counts
WORDS = {
    "bool_type": "true or false",
    "float_type": "a number",
    "int_type": "a whole number",
    "string_type": "a text",
    "tuple_type": "a list",
}  # what a value should have been, by pydantic's name for the mistake


def parse_change(change: str) -> tuple[str, Any]:
    """`section.key=value`, where the value is TOML, or plain text, or nothing: UNSET."""
    place, equals, text = change.partition("=")
    if not equals or not all(part.strip() for part in place.split(".")):
        raise SettingError(f"{change!r} is not a change", "Write section.key=value, such as --set world.clusters=4")
    place = ".".join(part.strip() for part in place.split("."))
    if not text.strip():
        return place, UNSET
    try:
        return place, tomllib.loads(f"x = {text}")["x"]
    except tomllib.TOMLDecodeError:
        return place, text.strip()


def apply(tables: dict[str, Any], changes: Sequence[str], default: str = "") -> None:
    """Set and remove what these changes say, one after the other; `default` is the algorithm where none is named."""
    parsed = [parse_change(change) for change in changes]
    names = [value for place, value in parsed if place == "algorithm.name"]
    own = tables.get("algorithm", {})
    name = names[-1] if names else own.get("name", default) if isinstance(own, dict) else default  # refused later
    for place, value in parsed:
        if value is not UNSET:
            _set(tables, place, value)
        elif not sum(_removed(tables, where) for where in _places(place, default if name is UNSET else name)):
            raise SettingError(f"Nothing sets {place}, so its default counts already", "Leave this change out")


def _places(place: str, algorithm: str) -> list[str]:
    """Where a setting may stand: one of the algorithm also in the table [algorithms.NAME]."""
    section, _, key = place.partition(".")
    return [place, f"algorithms.{algorithm}.{key}"] if section == "algorithm" and key else [place]


def _set(tables: dict[str, Any], place: str, value: Any) -> None:
    *path, last = place.split(".")
    for part in path:
        tables = tables.setdefault(part, {})
        if not isinstance(tables, dict):
            raise SettingError(f"{place} is not a setting: {part} is a value, not a section", "Name the setting itself")
    tables[last] = value


def _removed(tables: dict[str, Any], place: str) -> bool:
    """Whether there was such a setting; it is gone now."""
    *path, last = place.split(".")
    for part in path:
        tables = tables.get(part, {})
        if not isinstance(tables, dict):
            return False
    return tables.pop(last, UNSET) is not UNSET


def scaled(tables: dict[str, Any], changes: Sequence[str]) -> dict[str, Any]:
    """The tables at the scale that is asked for: what [scales.NAME] says stands above the rest."""
    scales = tables.pop("scales", {})
    asked = [value for place, value in map(parse_change, changes) if place == "scale"]
    scale = asked[-1] if asked else tables.get("scale")
    if scale is None or scale is UNSET or (scale == USUAL and scale not in scales):
        return tables
    if scale not in scales:
        raise SettingError(f"The experiment has no scale {scale!r}", nearest(str(scale), [USUAL, *scales]))
    return _merged(tables, scales[scale])


def _merged(tables: dict[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Tables with others laid above them; one that names something else is replaced whole."""
    merged = dict(tables)
    for key, value in above.items():
        old = merged.get(key)
        nested = (
            isinstance(value, dict) and isinstance(old, dict) and value.get("name", old.get("name")) == old.get("name")
        )
        merged[key] = _merged(old or {}, value) if nested else value
    return merged


def named(settings: Mapping[str, Any], known: Mapping[str, Any], what: str, default: str) -> Any:
    """The object a table describes: its `name` is one of ours or `module:name`, the rest are its fields."""
    name = settings.get("name", default)
    rest = {key: value for key, value in settings.items() if key != "name"}
    if not isinstance(name, str):
        raise SettingError(f"{what}.name must be a text, not {name!r}", nearest(str(name), known))
    kind = known.get(name) or imported(name, known, what)
    _check_belongs(rest, name, kind, known, what)
    return verified(value_of(kind, rest, what), name, what)


def _check_belongs(rest: Mapping[str, Any], name: str, kind: Any, known: Mapping[str, Any], what: str) -> None:
    """Refuse a setting that this one lacks and others have; one that nobody has may be misspelt."""
    for key in rest:
        others = sorted(other for other, its in known.items() if key in _setting_names(its))
        if others and is_dataclass(kind) and key not in _setting_names(kind):
            own = ", ".join(sorted(_setting_names(kind))) or "none"
            problem = f"The {what} {name} has no setting {key!r}"
            raise SettingError(problem, f"It is a setting of {', '.join(others)}; those of {name} are: {own}")


def _setting_names(kind: Any) -> set[str]:
    return {f.name for f in fields(kind) if f.init} if is_dataclass(kind) else set()


def verified(value: Any, name: str, what: str) -> Any:
    """The value, if it has the verbs of its kind."""
    if missing := [verb for verb in VERBS[what] if not hasattr(value, verb)]:
        article = "an" if what == "algorithm" else "a"
        problem = f"{name} is not {article} {what}: {type(value).__name__} has no {missing[0]}"
        raise SettingError(problem, f"{article.capitalize()} {what} has {', '.join(VERBS[what])}")
    return value


def value_of(kind: Any, rest: dict[str, Any], what: str) -> Any:
    """A class filled in, a ready value with fields changed, or what a function returns."""
    if inspect.isclass(kind):
        return settings_of(kind, rest, what)
    if is_dataclass(kind):  # a ready value: the table changes its fields
        known_keys(rest, [f.name for f in fields(kind)], what)
        return checked(what, lambda: replace(kind, **rest))  # type: ignore[type-var]
    return checked(what, lambda: kind(**rest))


def settings_of(kind: type[T], table: Mapping[str, Any], where: str) -> T:
    """A dataclass from a table: unknown keys and wrong values are the user's mistakes, and say so.

    Nothing is converted but whole numbers to others: a table is read as strictly as JSON.
    """
    if not is_dataclass(kind):
        return checked(where, lambda: kind(**table))
    known_keys(table, [f.name for f in fields(kind) if f.init], where)
    text = json.dumps(dict(table), default=str)
    return checked(where, lambda: _adapter(kind).validate_json(text, strict=True))


@lru_cache(maxsize=256)
def _adapter(kind: Any) -> TypeAdapter[Any]:
    """What reads the tables of a dataclass; making it takes longer than reading many."""
    return TypeAdapter(kind)


def known_keys(keys: Any, known: Any, where: str) -> None:
    for key in keys:
        if key not in known:
            place = _place(where)
            remedy = OPTIONS.get(key) if where == EXPERIMENT else None
            raise SettingError(f"{place[0].upper()}{place[1:]} has no setting {key!r}", remedy or nearest(key, known))


def checked(where: str, make: Callable[[], T]) -> T:
    """What `make` makes; a value it refuses is the user's mistake, and says so."""
    try:
        return make()
    except ValidationError as error:
        raise _mistake(where, error.errors()) from None
    except (ValueError, TypeError, AttributeError) as error:
        raise SettingError(f"In {_place(where)}: {error}") from None


def _mistake(where: str, errors: Sequence[Any]) -> SettingError:
    """The first wrong value of a table: a broken rule, or all the kinds that it could be of."""
    first = errors[0]
    if not first["loc"]:
        return SettingError(f"In {_place(where)}: {first['msg'].removeprefix('Value error, ')}")
    same = [error for error in errors if error["loc"][0] == first["loc"][0]]
    same = [error for error in same if isinstance(error["loc"][-1], int)] or same  # rather what is wrong in a list
    path = [str(part) for part in same[0]["loc"] if part == first["loc"][0] or type(part) is int]
    place = ".".join([where.removeprefix("the "), *path])
    kinds = [WORDS.get(error["type"]) or error.get("ctx", {}).get("expected") for error in same]
    if not all(kinds):
        return SettingError(f"{place}: {first['msg']}, not {same[0]['input']!r}")
    return SettingError(f"{place} must be {' or '.join(dict.fromkeys(kinds))}, not {same[0]['input']!r}")


def _place(where: str) -> str:
    """Where a setting stands: a table of the file, or what has no table."""
    return where if " " in where else f"[{where}]"


def whole(name: str, value: Any) -> int:
    if type(value) is not int:
        raise SettingError(f"{name} must be a whole number, not {value!r}")
    return value
