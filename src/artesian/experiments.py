"""Experiments from names and files: the tables of a TOML file become the values of an `Experiment`."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from functools import partial
from importlib import resources
from math import isqrt
from pathlib import Path
from typing import Any, TypeVar, cast

from pydantic import TypeAdapter, ValidationError

from artesian.algorithms import ALGORITHMS
from artesian.core import Algorithm, Model, Plan
from artesian.engine import Coordinator
from artesian.errors import SettingError, nearest
from artesian.learners.arrays import MODELS
from artesian.learners.networks import NETWORKS, REGRESSIONS
from artesian.simulator import run as simulator
from artesian.simulator.experiment import Experiment
from artesian.simulator.fleet import Fleet
from artesian.simulator.link import Direct, Link
from artesian.simulator.result import Run
from artesian.simulator.run import Progress
from artesian.simulator.shifts import Shift
from artesian.simulator.start import Start
from artesian.simulator.world import WORLDS, World

T = TypeVar("T")
VERBS = {
    "algorithm": ("name", "init", "task", "fold", "pace"),
    "world": ("names", "visit", "proxies", "tests"),
    "model": ("layout", "start", "learner"),
}  # what each kind of value must have at least
NUMBERS = ("uploads", "rounds", "evaluate_every", "snapshot_every")
MORE = ("evaluate", "target")
USUAL = "small"  # the scale of a file as it is
OPTIONS = ("device", "loss", "task", "share", "frozen", "shape", "scale")  # of a torch model, beside its network's own
TABLES = ("algorithm", "algorithms", "world", "model", "fleet", "training", "start", "shift")
SERVING = ("federation", "server")  # of interest only where the experiment is served


def presets() -> dict[str, str]:
    """Every preset inside the package, with the sentence it begins with."""
    folder = resources.files("artesian") / "presets"
    files = sorted((f for f in folder.iterdir() if f.name.endswith(".toml")), key=lambda f: f.name)
    return {f.name.removesuffix(".toml"): _opening(f.read_text(encoding="utf-8")) for f in files}


def load(source: str | Path, changes: Sequence[str] = ()) -> Experiment:
    """The experiment of a file or a preset, with `section.key=value` changes applied."""
    return build(tables_of(source, changes))


def tables_of(source: str | Path, changes: Sequence[str]) -> dict[str, Any]:
    """The tables of a file or a preset, with the changes applied."""
    name, text = _text(source)
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SettingError("an experiment is a TOML file", f"{error} in {source}", "mend the file") from None
    tables = _scaled(tables, changes)
    if isinstance(changes, str):
        raise SettingError("changes are a list of section.key=value", repr(changes), "put it into a list")
    for change in changes:
        _apply(tables, change)
    return {"name": name, **tables}


def _scaled(tables: dict[str, Any], changes: Sequence[str]) -> dict[str, Any]:
    """The tables at the scale that is asked for: what [scales.NAME] says stands above the rest."""
    scales = tables.pop("scales", {})
    asked = [value for place, value in map(parse_change, changes) if place == "scale"] if scales else []
    scale = asked[-1] if asked else tables.get("scale")
    if scale is None or (scale == USUAL and scale not in scales):
        return tables
    if scale not in scales:
        raise SettingError("scale is one the experiment has", repr(scale), nearest(str(scale), [USUAL, *scales]))
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


def build(tables: Mapping[str, Any]) -> Experiment:
    """The experiment these tables describe."""
    _known(tables, ("name", "scale", *NUMBERS, *MORE, *TABLES, *SERVING), "the experiment")
    for table in (*TABLES, *SERVING):
        if not isinstance(tables.get(table, {}), dict):
            raise SettingError(f"{table} is a table", repr(tables[table]), f"write [{table}]")
    world: World = _named(tables.get("world", {}), WORLDS, "world", "rotated")
    own = tables.get("algorithm", {})
    settings = {**_usual(tables.get("algorithms", {}), str(own.get("name", "cdfl"))), **own}
    algorithm: Algorithm = _named(settings, ALGORITHMS, "algorithm", "cdfl")
    return checked(
        "the experiment",
        lambda: Experiment(
            world=world,
            model=_model(tables.get("model", {}), world),
            algorithm=algorithm,
            fleet=settings_of(Fleet, tables.get("fleet", {}), "fleet"),
            training=settings_of(Plan, tables.get("training", {}), "training"),
            start=settings_of(Start, tables.get("start", {}), "start"),
            shift=settings_of(Shift, tables.get("shift", {}), "shift"),
            name=str(tables.get("name", "own")),
            **_plain_settings(tables),
        ),
    )


def _plain_settings(tables: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of an experiment that are in no table."""
    numbers = {name: _whole(name, tables[name]) for name in NUMBERS if name in tables}
    target = tables.get("target")
    if target is not None and type(target) not in (int, float):
        raise SettingError("target is a number", repr(target), "mend it")
    return numbers | {name: tables[name] for name in MORE if name in tables}


def _usual(tables: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """What the table [algorithms.NAME] says about the algorithm that was chosen."""
    for other, table in tables.items():
        if not isinstance(table, dict):
            raise SettingError(f"algorithms.{other} is a table", repr(table), f"write [algorithms.{other}]")
        if ":" not in other:
            _known([other], ALGORITHMS, "algorithms")
            settings_of(ALGORITHMS[other], table, f"algorithms.{other}")
    return tables.get(name, {})


def simulate(
    experiment: str | Path | Experiment | None = None,
    *,
    algorithm: Algorithm | str | None = None,
    world: World | None = None,
    model: Model | None = None,
    fleet: Fleet | None = None,
    training: Plan | None = None,
    start: Start | None = None,
    shift: Shift | None = None,
    uploads: int | None = None,
    changes: Sequence[str] = (),
    seed: int = 0,
    workers: int = 0,
    executor: str | None = None,
    ray_address: str | None = None,
    memory_limit: float = 1024,
    out: str | Path | None = None,
    resume: bool = False,
    progress: Callable[[Progress], None] | None = None,
    link: Callable[[Coordinator], Link] = Direct,
) -> Run:
    """Run an experiment and return what it found.

    `experiment` is a preset's name, a TOML file or an `Experiment`; the other arguments replace its parts.
    Without one, the rotated digits are the world. `out` is a folder to keep the run in; `link` is how clients
    reach the coordinator. `executor` is inline, processes or ray: by default processes, or inline without `workers`.
    What is kept for clients beyond `memory_limit` MB lies in a file. None of these changes what a run finds.

    >>> run = simulate("digits-2", uploads=40)
    >>> run.summary["uploads"]
    40
    """
    _check_arguments(seed=seed, workers=workers, uploads=uploads)
    if resume and out is None:
        raise SettingError("resume goes on with the run in out", "no out", "give the folder")
    parts: dict[str, Any] = {"world": world, "model": model, "fleet": fleet, "training": training}
    parts |= {"start": start, "shift": shift}
    given = {name: part for name, part in {**parts, "uploads": uploads}.items() if part is not None}
    if isinstance(experiment, Experiment):
        chosen = _replaced(experiment, algorithm, given, changes)
    else:
        chosen = _composed(experiment, algorithm, given, changes)
    folder = Path(out) if out is not None else None
    run = simulator.simulate(
        chosen,
        seed=seed,
        out=folder,
        resume=resume,
        progress=progress,
        link=link,
        workers=workers,
        executor=executor,
        ray_address=ray_address,
        memory_limit=memory_limit,
    )
    if run is None:
        raise SettingError("a run to resume is unfinished", f"{out}, finished before", "read its summary.json")
    return run


def _replaced(
    experiment: Experiment, algorithm: Algorithm | str | None, given: dict[str, Any], changes: Sequence[str]
) -> Experiment:
    """An experiment with some of its parts replaced."""
    if changes:
        raise SettingError("changes are for presets and files", "an Experiment", "replace its parts instead")
    if algorithm is not None:
        given["algorithm"] = (
            _named({"name": algorithm}, ALGORITHMS, "algorithm", "cdfl") if isinstance(algorithm, str) else algorithm
        )
    return checked("the experiment", lambda: replace(experiment, **given))


def _composed(
    source: str | Path | None, algorithm: Algorithm | str | None, given: dict[str, Any], changes: Sequence[str]
) -> Experiment:
    """The experiment of a preset or file, its tables read with the parts that were given in mind."""
    if source is not None and not isinstance(source, (str, Path)):
        raise SettingError("an experiment is a preset, a file or an Experiment", type(source).__name__, "name one")
    if isinstance(algorithm, str):
        changes = [f"algorithm.name={algorithm}", *changes]
        algorithm = None
    tables = tables_of(source or "digits-4", changes)
    if source is None:
        tables["name"] = "own"
    if algorithm is not None:
        given["algorithm"] = algorithm
        tables.pop("algorithm", None)  # its settings are those of the value
    if "world" in given and "model" not in given:
        given["model"] = checked("the experiment", lambda: _model(tables.get("model", {}), given["world"]))
    return checked("the experiment", lambda: replace(build(tables), **given))


def _check_arguments(**numbers: int | None) -> None:
    for name, number in numbers.items():
        if not (number is None and name == "uploads") and (type(number) is not int or number < 0):
            raise SettingError(f"{name} is a whole number from 0 on", repr(number), "mend the argument")


def _text(source: str | Path) -> tuple[str, str]:
    known = presets()
    if str(source) in known:
        return str(source), (resources.files("artesian") / "presets" / f"{source}.toml").read_text(encoding="utf-8")
    path = Path(source)
    try:
        return path.stem, path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise SettingError("an experiment is a TOML file", f"{path}, which is not text", "name another") from None
    except OSError as error:
        raise SettingError(
            "an experiment is a file or a preset", f"{source} ({error.strerror})", nearest(str(source), known)
        ) from None


def _opening(text: str) -> str:
    return text.splitlines()[0].removeprefix("#").strip()


def parse_change(change: str) -> tuple[str, Any]:
    """`section.key=value`, where the value is TOML, or plain text."""
    place, equals, text = change.partition("=")
    if not equals or not all(part.strip() for part in place.split(".")):
        raise SettingError("--set takes section.key=value", change, "for example --set world.clusters=4")
    try:
        return place.strip(), tomllib.loads(f"x = {text}")["x"]
    except tomllib.TOMLDecodeError:
        return place.strip(), text.strip()


def _apply(tables: dict[str, Any], change: str) -> None:
    place, value = parse_change(change)
    *path, last = [part.strip() for part in place.split(".")]
    table = tables
    for part in path:
        table = table.setdefault(part, {})
        if not isinstance(table, dict):
            raise SettingError("--set takes section.key=value", change, f"{part} is a value, not a section")
    table[last] = value


def _named(settings: Mapping[str, Any], known: Mapping[str, Any], what: str, default: str) -> Any:
    """The object a table describes: its `name` is one of ours or `module:name`, the rest are its fields."""
    name = settings.get("name", default)
    rest = {key: value for key, value in settings.items() if key != "name"}
    if not isinstance(name, str):
        raise SettingError(f"{what}.name is a text", repr(name), nearest(str(name), known))
    kind = known.get(name) or imported(name, known, what)
    return _verified(_made(kind, rest, what), name, what)


def _verified(value: Any, name: str, what: str) -> Any:
    """The value, if it has the verbs of its kind."""
    if missing := [verb for verb in VERBS[what] if not hasattr(value, verb)]:
        got = f"{type(value).__name__} without {missing[0]}"
        raise SettingError(f"{name} is what a {what} must be", got, "see the how-to")
    return value


def _made(kind: Any, rest: dict[str, Any], what: str) -> Any:
    """A class filled in, a ready value with fields changed, or what a function returns."""
    if inspect.isclass(kind):
        return settings_of(kind, rest, what)
    if is_dataclass(kind):  # a ready value: the table changes its fields
        _known(rest, [f.name for f in fields(kind)], what)
        return checked(what, lambda: replace(kind, **rest))  # type: ignore[type-var]
    return checked(what, lambda: kind(**rest))


def imported(name: str, known: Mapping[str, Any], what: str) -> Any:
    """What `module:name` stands for; modules are found from the present folder too."""
    module, colon, attribute = name.partition(":")
    if not colon:
        raise SettingError(f"{what}.name is known, or module:name", repr(name), nearest(name, known))
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        return getattr(importlib.import_module(module), attribute)
    except Exception as error:  # the user's module may fail in any way
        got = f"{name} ({type(error).__name__}: {error})"
        raise SettingError(f"{what}.name can be imported", got, "check the path and the module") from None


def _model(settings: Mapping[str, Any], world: World) -> Model:
    """The model of a table, shaped to fit the world's data."""
    name = settings.get("name", "mlp")
    framework = settings.get("framework", "numpy" if name in MODELS else "torch")
    rest = {key: value for key, value in settings.items() if key not in ("name", "framework")}
    if framework not in ("numpy", "torch"):
        raise SettingError("model.framework is numpy or torch", repr(framework), "mend the value")
    if isinstance(name, str) and ":" in name:
        return _own_model(name, rest, world)
    if framework == "torch" and name in NETWORKS:
        task = "regression" if name in REGRESSIONS else "classification"
        return _network(NETWORKS[name], _fitted(NETWORKS[name], rest, world), {"task": task, **rest}, world)
    known = MODELS if framework == "numpy" and "framework" in settings else {**NETWORKS, **MODELS}
    return _array_model(name, rest, world, known)


def _array_model(name: Any, rest: dict[str, Any], world: World, known: Mapping[str, Any]) -> Model:
    kind = MODELS.get(name)
    shape = {f.name: getattr(world, f.name) for f in fields(kind) if f.name in ("features", "classes")} if kind else {}
    _check_fit(rest, shape)
    model: Model = _named({"name": name, **rest, **shape}, known, "model", "mlp")
    return model


def _own_model(name: str, rest: dict[str, Any], world: World) -> Model:
    """A model of the user's, or a network of theirs: a class or function that gives an nn.Module."""
    kind = imported(name, {**NETWORKS, **MODELS}, "model")
    if is_dataclass(kind) or not callable(kind):
        return cast(Model, _verified(_made(kind, rest, "model"), name, "model"))
    named = _parameters(kind)
    own = {key: value for key, value in rest.items() if key not in OPTIONS or key in named}
    missing = [key for key, parameter in named.items() if parameter.default is parameter.empty and key not in own]
    own |= {key: _of_data(key, world) for key in missing if key in ("features", "classes", "channels", "size")}
    made = checked("model", lambda: kind(**own))
    if not _is_module(made):
        _known(set(rest) - set(own), named, "model")
        return cast(Model, _verified(made, name, "model"))
    shape = {"shape": world.shape} if hasattr(world, "shape") else {}
    return _network(kind, own, {**shape, **{k: v for k, v in rest.items() if k not in own}}, world)


def _network(make: Callable[..., Any], own: dict[str, Any], settings: Mapping[str, Any], world: World) -> Model:
    """A torch model: `own` are the settings of the network, the options among `settings` the rest."""
    from artesian.learners.torch import TorchModel

    options = {key: settings[key] for key in OPTIONS if key in settings}
    if isinstance(loss := options.get("loss"), str):
        options["loss"] = imported(loss, {}, "model.loss")
        if inspect.isclass(options["loss"]):
            options["loss"] = checked("model.loss", lambda: options["loss"](reduction="none"))
    if "channels" in _parameters(make) and "shape" not in options:
        options["shape"] = _image(world)
    checked("model", lambda: make(**own))
    return checked("model", lambda: TorchModel(partial(make, **own), **options))


def _fitted(make: Callable[..., Any], rest: Mapping[str, Any], world: World) -> dict[str, Any]:
    """The settings of a network of ours, its sizes taken from the data."""
    named = _parameters(make)
    own = {key: value for key, value in rest.items() if key not in OPTIONS}
    _known(own, [*named, *OPTIONS], "model")
    sizes = {key: _of_data(key, world) for key in ("features", "classes", "channels", "size") if key in named}
    _check_fit(own, sizes)
    return {**own, **sizes}


def _check_fit(settings: Mapping[str, Any], sizes: Mapping[str, int]) -> None:
    for key, value in sizes.items():
        if settings.get(key, value) != value:
            raise SettingError(f"model.{key} is the data's: {value}", repr(settings[key]), "leave it out")


def _of_data(key: str, world: World) -> int:
    """A size that a network wants to know."""
    if key in ("features", "classes"):
        return int(getattr(world, key))
    channels, height, width = _image(world)
    if key == "size" and height != width:
        raise SettingError("the network takes square images", f"{height} x {width}", "crop them")
    return channels if key == "channels" else height


def _image(world: World) -> tuple[int, int, int]:
    """Channels, height and width: the world's `shape`, or what its number of features suggests."""
    if (shape := getattr(world, "shape", None)) is not None:
        return tuple(shape)
    for channels in (1, 3):
        side = isqrt(world.features // channels)
        if channels * side * side == world.features:
            return channels, side, side
    raise SettingError("the network takes images", f"{world.features} numbers a sample", "give the world a shape")


def _parameters(make: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(make).parameters
    except (TypeError, ValueError):
        return {}


def _is_module(value: Any) -> bool:
    """Whether a value is an nn.Module; without torch loaded, nothing is."""
    if "torch" not in sys.modules:
        return False
    from artesian.learners.torch import is_network

    return is_network(value)


def settings_of(kind: type[T], table: Mapping[str, Any], where: str) -> T:
    """A dataclass from a table: unknown keys and wrong values are the user's mistakes, and say so."""
    if not is_dataclass(kind):
        return checked(where, lambda: kind(**table))
    _known(table, [f.name for f in fields(kind) if f.init], where)
    return checked(where, lambda: TypeAdapter(kind).validate_python(dict(table)))


def _known(keys: Any, known: Any, where: str) -> None:
    for key in keys:
        if key not in known:
            raise SettingError(f"{where} has no setting of this name", repr(key), nearest(key, known))


def checked(where: str, make: Callable[[], T]) -> T:
    """What `make` makes; a value it refuses is the user's mistake, and says so."""
    try:
        return make()
    except ValidationError as error:
        first = error.errors()[0]
        if not first["loc"]:
            rule = first["msg"].removeprefix("Value error, ")
            raise SettingError(f"[{where}] {rule}", "", f"see the settings of {where}") from None
        place = ".".join([where, *(str(part) for part in first["loc"][:1])])
        raise SettingError(f"{place}: {first['msg']}", repr(first["input"]), f"see the settings of {where}") from None
    except (ValueError, TypeError, AttributeError) as error:
        raise SettingError(f"[{where}] {error}", "", "mend the value") from None


def _whole(name: str, value: Any) -> int:
    if type(value) is not int:
        raise SettingError(f"{name} is a whole number", repr(value), "mend the value")
    return value
