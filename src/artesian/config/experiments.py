"""Experiments from names and files: the tables of a TOML file become the values of an `Experiment`."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from artesian.algorithms import ALGORITHMS
from artesian.config.models import model_of
from artesian.config.tables import EXPERIMENT, apply, checked, known_keys, named, scaled, settings_of, whole
from artesian.core import Algorithm, Model, Plan, Recipe
from artesian.data.datasets import sets_by_name
from artesian.engine.coordinator import Coordinator
from artesian.engine.defence import Defence
from artesian.errors import SettingError, nearest
from artesian.simulator.drifting import Drifts
from artesian.simulator.experiment import Experiment
from artesian.simulator.fleet import Fleet
from artesian.simulator.pretraining import Start
from artesian.simulator.result import Run
from artesian.simulator.run import run_experiment
from artesian.simulator.shifts import Shift
from artesian.simulator.simulation import Progress
from artesian.simulator.transports import CoordinatorTransport, Direct
from artesian.simulator.watching import Watches
from artesian.simulator.worlds import WORLDS, World

COUNTS = ("uploads", "rounds", "evaluate_every", "evaluate_every_rounds", "snapshot_every", "proxy_sample")
NUMBERS = (*COUNTS, "tune", "pool_every", "turns")
MORE = ("evaluate", "export", "target", "recipes", "accept", "hold_back", "keep_training")
TABLES = (
    "algorithm",
    "algorithms",
    "world",
    "model",
    "fleet",
    "training",
    "start",
    "shift",
    "defence",
    "drift",
    "watch",
)
SERVING = ("federation", "server")  # of interest only where the experiment is served
DEFAULT = "confluence"  # the method of an experiment that names none


def presets() -> dict[str, str]:
    """The name of every preset, with a sentence that describes it."""
    folder = _presets_folder()
    files = sorted((f for f in folder.iterdir() if f.name.endswith(".toml")), key=lambda f: f.name)
    return {f.name.removesuffix(".toml"): _opening(f.read_text(encoding="utf-8")) for f in files}


def outlines() -> list[dict[str, Any]]:
    """Every preset as its file has it: what it is, its clients, how long it lasts, and which data; none are read."""
    found = sets_by_name()
    return [{"name": name, "summary": summary, **_outline(name, found)} for name, summary in presets().items()]


def _outline(name: str, found: Mapping[str, str]) -> dict[str, Any]:
    tables = tables_of(name, ())
    world = {**vars(WORLDS[tables["world"]["name"]]), **tables["world"]}  # not made: some look at their data
    sources = [world["data"]] if "data" in world else world.get("sources", ())
    data = [part for source in sources for part in source.split("+")]
    rounds, turns = tables.get("rounds"), tables.get("turns")
    return {
        "clients": world["clients"],
        "uploads": tables.get("uploads", Experiment.uploads) if rounds is None and turns is None else None,
        "rounds": rounds,
        "turns": turns,
        "data": data,
        "missing": [part for part in data if not found.get(part)],
    }


def load(source: str | Path, changes: Sequence[str] = ()) -> Experiment:
    """Read an experiment from a preset or a TOML file.

    Args:
        source: The name of a preset, or the path of a file.
        changes: Settings to change, such as `["algorithm.rho=0.2", "uploads=500"]`.

    >>> load("digits-2", ["uploads=500"]).uploads
    500
    """
    return build(tables_of(source, changes))


def tables_of(source: str | Path, changes: Sequence[str]) -> dict[str, Any]:
    """The tables of a file or a preset, with the changes applied."""
    name, text = _text(source)
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SettingError(f"{source} is not valid TOML: {error}", "Fix the file") from None
    if isinstance(changes, str):
        raise SettingError(f"changes must be a list, not {changes!r}", f"Write changes=[{changes!r}]")
    tables = scaled(tables, changes)
    apply(tables, changes, default=DEFAULT)
    if any(change.partition("=")[0].strip() == "uploads" for change in changes):
        _check_length(tables.get("turns"), tables.get("rounds"))
    return {"name": name, **tables}


def _check_length(turns: int | None, rounds: int | None) -> None:
    """Refuse uploads that somebody asked for where a run lasts something else; a preset's are only a default."""
    if turns is not None:
        raise SettingError(f"The run lasts {turns} turns, so uploads has no effect", "Set turns instead")
    if rounds is not None:
        raise SettingError(
            f"The run lasts {rounds} rounds, so uploads has no effect",
            "Set rounds instead, or remove it: --set rounds=",
        )


def build(tables: Mapping[str, Any]) -> Experiment:
    """The experiment these tables describe."""
    known_keys(tables, ("name", "scale", *NUMBERS, *MORE, *TABLES, *SERVING), EXPERIMENT)
    for table in (*TABLES, *SERVING):
        if not isinstance(tables.get(table, {}), dict):
            raise SettingError(f"{table} must be a table, not {tables[table]!r}", f"Write [{table}]")
    world: World = named(tables.get("world", {}), WORLDS, "world", "rotated")
    own = tables.get("algorithm", {})
    settings = {**_usual(tables.get("algorithms", {}), str(own.get("name", DEFAULT))), **own}
    algorithm: Algorithm = named(settings, ALGORITHMS, "algorithm", DEFAULT)
    return checked(
        "the experiment",
        lambda: Experiment(
            world=world,
            model=model_of(tables.get("model", {}), world),
            algorithm=algorithm,
            fleet=settings_of(Fleet, tables.get("fleet", {}), "fleet"),
            training=settings_of(Plan, tables.get("training", {}), "training"),
            start=settings_of(Start, tables.get("start", {}), "start"),
            shift=settings_of(Shift, tables.get("shift", {}), "shift"),
            defence=settings_of(Defence, tables["defence"], "defence") if "defence" in tables else None,
            drift=settings_of(Drifts, tables["drift"], "drift") if "drift" in tables else None,
            watch=settings_of(Watches, tables["watch"], "watch") if "watch" in tables else None,
            name=str(tables.get("name", "own")),
            **_plain_settings(tables),
        ),
    )


def _plain_settings(tables: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of an experiment that are in no table."""
    numbers = {name: whole(name, tables[name]) for name in NUMBERS if name in tables}
    for name in ("target", "hold_back"):
        if tables.get(name) is not None and type(tables[name]) not in (int, float):
            raise SettingError(f"{name} must be a number, not {tables[name]!r}")
    recipes = tables.get("recipes", [])
    if not isinstance(recipes, list) or not all(isinstance(name, str) and ":" in name for name in recipes):
        raise SettingError(f"recipes is {recipes!r}", 'Write a list of module:name, such as recipes = ["mine:SHRINK"]')
    plain = {name: tables[name] for name in MORE if name in tables}
    return numbers | plain | {"recipes": tuple(recipes)}


def _usual(tables: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """What the table [algorithms.NAME] says about the algorithm that was chosen."""
    for other, table in tables.items():
        if not isinstance(table, dict):
            raise SettingError(f"algorithms.{other} must be a table, not {table!r}", f"Write [algorithms.{other}]")
        if ":" not in other:
            known_keys([other], ALGORITHMS, "algorithms")
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
    drift: Drifts | None = None,
    watch: Watches | None = None,
    recipes: Sequence[Recipe | str] | None = None,
    tune: int | None = None,
    uploads: int | None = None,
    turns: int | None = None,
    changes: Sequence[str] = (),
    seed: int = 0,
    workers: int = 0,
    executor: str | None = None,
    ray_address: str | None = None,
    memory_limit: float = 1024,
    profile: bool = False,
    out: str | Path | None = None,
    resume: bool = False,
    progress: Callable[[Progress], None] | None = None,
    transport: Callable[[Coordinator], CoordinatorTransport] = Direct,
) -> Run:
    """Run an experiment in virtual time and return its result.

    Args:
        experiment: The name of a preset, a TOML file, or an `Experiment`. Without one: the preset `digits-4`.
        algorithm: An algorithm or its name, instead of the experiment's.
        world: Where clients' data come from, instead of the experiment's world.
        model: What is trained.
        fleet: When clients come, how long they train, when they leave.
        training: Optimiser, learning rate, epochs and batch size.
        start: How the first models are trained.
        shift: How clients' data change during the run.
        drift: How clients' data drift, each at moments of its own.
        watch: How clients decide when to refresh; without it they refresh all the time.
        uploads: How many uploads the run lasts.
        turns: How many turns of clients a run with a `watch` lasts.
        recipes: Client halves of your own that tasks may name: `Recipe` values, or `module:name`.
        tune: Epochs for which clients train what they drew on their own data before they use it.
        changes: Settings to change in a preset or file, such as `["fleet.late_share=0.2"]`.
        seed: Decides the clients, their data, the schedule and the first models.
        workers: How many processes train; 0 trains in this one.
        executor: Where trainings run: `inline`, `processes` or `ray`. The default follows from `workers`.
        ray_address: The cluster to use with `executor="ray"`.
        memory_limit: MB of what is kept for clients in memory; the rest goes to a file.
        profile: Add to the summary where the time went.
        out: A new folder to keep the run in, to be opened again with `open_run`.
        resume: Go on with the unfinished run in `out`.
        progress: A function that is called after every upload.
        transport: How clients reach the coordinator: directly, or through HTTP with `InProcess`.

    The same experiment and seed give the same result, bit by bit, whatever the executor, workers, memory limit and
    transport.

    >>> run = simulate("digits-2", uploads=40)
    >>> run.summary["uploads"]
    40
    """
    _check_arguments(seed=seed, workers=workers, uploads=uploads, turns=turns)
    if resume and out is None:
        raise SettingError("resume needs a folder", "Name the folder of the run: out=...")
    parts: dict[str, Any] = {"world": world, "model": model, "fleet": fleet, "training": training}
    parts |= {"start": start, "shift": shift, "recipes": None if recipes is None else tuple(recipes), "tune": tune}
    parts |= {"drift": drift, "watch": watch, "uploads": uploads, "turns": turns}
    given = {name: part for name, part in parts.items() if part is not None}
    if isinstance(experiment, Experiment):
        chosen = _replaced(experiment, algorithm, given, changes)
    else:
        chosen = _composed(experiment, algorithm, given, changes)
    if uploads is not None:
        _check_length(chosen.turns, chosen.rounds)
    folder = Path(out) if out is not None else None
    run = run_experiment(
        chosen,
        seed=seed,
        out=folder,
        resume=resume,
        progress=progress,
        transport=transport,
        workers=workers,
        executor=executor,
        ray_address=ray_address,
        memory_limit=memory_limit,
        profile=profile,
    )
    if run is None:
        raise SettingError(f"The run in {out} has finished already", "Open it with artesian.open_run")
    return run


def _replaced(
    experiment: Experiment, algorithm: Algorithm | str | None, given: dict[str, Any], changes: Sequence[str]
) -> Experiment:
    """An experiment with some of its parts replaced."""
    if changes:
        raise SettingError("changes work with presets and files, not with an Experiment", "Replace its parts instead")
    if algorithm is not None:
        given["algorithm"] = (
            named({"name": algorithm}, ALGORITHMS, "algorithm", DEFAULT) if isinstance(algorithm, str) else algorithm
        )
    return checked("the experiment", lambda: replace(experiment, **given))


def _composed(
    source: str | Path | None, algorithm: Algorithm | str | None, given: dict[str, Any], changes: Sequence[str]
) -> Experiment:
    """The experiment of a preset or file, its tables read with the parts that were given in mind."""
    if source is not None and not isinstance(source, (str, Path)):
        raise SettingError(
            f"{type(source).__name__} is not an experiment", "Name a preset or a file, or give an Experiment"
        )
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
        given["model"] = checked("the experiment", lambda: model_of(tables.get("model", {}), given["world"]))
    return checked("the experiment", lambda: replace(build(tables), **given))


def _check_arguments(**numbers: int | None) -> None:
    for name, number in numbers.items():
        if not (number is None and name in ("uploads", "turns")) and (type(number) is not int or number < 0):
            raise SettingError(f"{name} must be a whole number from 0 on, not {number!r}")


def _text(source: str | Path) -> tuple[str, str]:
    known = presets()
    if str(source) in known:
        return str(source), (_presets_folder() / f"{source}.toml").read_text(encoding="utf-8")
    path = Path(source)
    try:
        return path.stem, path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise SettingError(f"{path} is not a text file", "Name a TOML file or a preset") from None
    except FileNotFoundError:
        raise SettingError(f"No such file or preset: {source}", nearest(str(source), known)) from None
    except OSError as error:
        raise SettingError(f"{source} could not be read ({error.strerror})", "Name a TOML file or a preset") from None


def _presets_folder() -> Traversable:
    return resources.files("artesian.config") / "presets"


def _opening(text: str) -> str:
    return text.splitlines()[0].removeprefix("#").strip()
