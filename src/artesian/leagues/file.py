"""The file of a league: its methods, its worlds and its seeds, checked."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from artesian.config.experiments import MORE, NUMBERS, TABLES
from artesian.config.tables import known_keys
from artesian.errors import SettingError, nearest

OWN = ("seeds", "methods", "set", "method", "world")  # the keys that are a league's own
EXPERIMENT = tuple(name for name in ("scale", *NUMBERS, *MORE, *TABLES) if name not in OWN)  # settings of every run
METHOD = ("set", "except")
WORLD = ("preset", "file", "set", "seeds", "methods", "except", "method")


@dataclass(frozen=True)
class Method:
    """One competitor: what it changes in the experiment of every world, and where it does not take part."""

    name: str
    changes: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()  # names of worlds


@dataclass(frozen=True)
class Venue:
    """One world of a league: an experiment with changes, its seeds, and who takes part."""

    name: str
    source: str  # a preset, or the path of a file
    seeds: tuple[int, ...]
    methods: tuple[str, ...]
    changes: tuple[str, ...] = ()
    own: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # changes of a method in this world alone


@dataclass(frozen=True)
class League:
    """What a league's file says."""

    methods: tuple[Method, ...]
    worlds: tuple[Venue, ...]
    changes: tuple[str, ...] = ()  # of every experiment

    def describe(self) -> dict[str, Any]:
        """Everything, as JSON values."""
        return {
            "set": list(self.changes),
            "methods": {m.name: {"set": list(m.changes), "except": list(m.absent)} for m in self.methods},
            "worlds": {w.name: _described(w) for w in self.worlds},
        }


def _described(world: Venue) -> dict[str, Any]:
    own = {name: list(changes) for name, changes in world.own.items()}
    told = {"source": world.source, "seeds": list(world.seeds), "methods": list(world.methods)}
    return {**told, "set": list(world.changes), "method": own}


def read(source: str | Path | Mapping[str, Any]) -> League:
    """The league of a TOML file, or of a mapping with the same keys."""
    if isinstance(source, Mapping):
        return league_of(source, Path())
    path = Path(source)
    try:
        return league_of(tomllib.loads(path.read_text(encoding="utf-8")), path.parent)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingError(f"{path} is not valid TOML: {error}", "Fix the file") from None
    except OSError as error:
        raise SettingError(f"{path} could not be read ({error.strerror})", "Name the file of a league") from None


def league_of(tables: Mapping[str, Any], folder: Path) -> League:
    """The league these tables describe; files that they name are below this folder."""
    known_keys(tables, (*OWN, *EXPERIMENT), "the league")
    methods = {name: _method(name, table) for name, table in _named(tables, "method", "the league").items()}
    worlds = _named(tables, "world", "the league")
    for kind, found in (("method", methods), ("world", worlds)):
        if not found:
            raise SettingError(f"The league has no {kind}", f"Write a table [{kind}.NAME] for each")
    order = _names(tables, "methods", "the league", methods) or tuple(methods)
    seeds = _seeds(tables, "the league") or (0,)
    shared = {key: value for key, value in tables.items() if key in EXPERIMENT}
    for method in methods.values():
        _check_names(method.absent, worlds, "world", f"the method {method.name!r}")
    return League(
        tuple(methods[name] for name in order),
        tuple(_world(name, table, seeds, order, methods, folder) for name, table in worlds.items()),
        (*_flat(shared), *_changes(tables, "the league")),
    )


def _method(name: str, table: Mapping[str, Any]) -> Method:
    where = f"the method {name!r}"
    known_keys(table, METHOD, where)
    return Method(name, _changes(table, where), _texts(table, "except", where))


def _world(
    name: str,
    table: Mapping[str, Any],
    seeds: tuple[int, ...],
    order: Sequence[str],
    methods: Mapping[str, Method],
    folder: Path,
) -> Venue:
    where = f"the world {name!r}"
    known_keys(table, WORLD, where)
    wanted = _names(table, "methods", where, methods) or tuple(order)
    absent = _names(table, "except", where, methods)
    here = tuple(m for m in order if m in wanted and m not in absent and name not in methods[m].absent)
    own = {}
    for method, its in _named(table, "method", where).items():
        _check_names([method], methods, "method", where)
        known_keys(its, ("set",), f"the method {method!r} in {where}")
        own[method] = _changes(its, f"the method {method!r} in {where}")
    return Venue(name, _source(name, table, folder), _seeds(table, where) or seeds, here, _changes(table, where), own)


def _source(name: str, table: Mapping[str, Any], folder: Path) -> str:
    """The preset or file of a world; without either, the preset that has its name."""
    if "preset" in table and "file" in table:
        raise SettingError(f"The world {name!r} has a preset and a file", "Leave one of the two out")
    given = table.get("file", table.get("preset", name))
    if not isinstance(given, str):
        raise SettingError(f"The world {name!r} has {given!r} as its preset or file", "Write a text")
    return str(folder / given) if "file" in table else given


# the parts of a table


def _named(table: Mapping[str, Any], key: str, where: str) -> Mapping[str, Mapping[str, Any]]:
    """The tables below a key, by their names."""
    found = table.get(key, {})
    if not isinstance(found, Mapping) or not all(isinstance(one, Mapping) for one in found.values()):
        raise SettingError(f"{key} of {where} must hold tables", f"Write [{key}.NAME]")
    return found


def _names(table: Mapping[str, Any], key: str, where: str, known: Mapping[str, Any]) -> tuple[str, ...]:
    found = _texts(table, key, where)
    _check_names(found, known, "method", where)
    return found


def _check_names(names: Sequence[str], known: Mapping[str, Any], kind: str, where: str) -> None:
    for name in names:
        if name not in known:
            raise SettingError(f"No {kind} is called {name!r}, which {where} names", nearest(name, known))
    if len(set(names)) < len(names):
        raise SettingError(f"{where[0].upper()}{where[1:]} names a {kind} twice", "Name each once")


def _texts(table: Mapping[str, Any], key: str, where: str) -> tuple[str, ...]:
    found = table.get(key, [])
    if not isinstance(found, list | tuple) or not all(isinstance(text, str) for text in found):
        raise SettingError(f"{key} of {where} must be a list of texts, not {found!r}", f'Write {key} = ["..."]')
    return tuple(found)


def _changes(table: Mapping[str, Any], where: str) -> tuple[str, ...]:
    return _texts(table, "set", where)


def _seeds(table: Mapping[str, Any], where: str) -> tuple[int, ...]:
    found = table.get("seeds", [])
    sound = isinstance(found, list | tuple) and all(type(seed) is int and seed >= 0 for seed in found)
    if not sound or len(set(found)) < len(found) or ("seeds" in table and not found):
        problem = f"seeds of {where} must be different whole numbers from 0 on, not {found!r}"
        raise SettingError(problem, "Write a list, such as seeds = [0, 1, 2]")
    return tuple(found)


def _flat(settings: Mapping[str, Any], before: str = "") -> Iterator[str]:
    """Settings as changes: `tune=2`, `training.rate=0.1`."""
    for key, value in settings.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{before}{key}.")
        else:
            yield f"{before}{key}={json.dumps(value, default=str)}"
