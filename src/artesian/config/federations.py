"""Federations from names and files: `module:name` of the operator's own, or an experiment that is served."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from artesian.config.experiments import build, tables_of
from artesian.config.tables import apply, checked, parse_change, settings_of
from artesian.engine.defence import Defence
from artesian.errors import SettingError
from artesian.execution.pool import WorkerPool, open_pool
from artesian.execution.threads import single_threaded, stay_single_threaded
from artesian.execution.wires import PLAIN
from artesian.execution.worker import Perform
from artesian.params import Params
from artesian.plugins import imported
from artesian.server.federation import Federation
from artesian.server.measuring import measurer, proof
from artesian.server.serve import run, say
from artesian.server.service import Report
from artesian.server.settings import Settings
from artesian.server.tls import Tls
from artesian.simulator.experiment import Experiment
from artesian.simulator.pretraining import measuring_learners


def serve(
    source: str,
    folder: Path,
    host: str,
    port: int,
    tls: Tls | None = None,
    changes: Sequence[str] = (),
    show: Callable[[dict[str, str]], None] | None = None,
    accept_replay: bool = False,
) -> None:
    """Serve until stopped; then finish what is under way and take a snapshot."""
    say(f"loading {source}")
    federation, settings = load_served(source, changes, say)
    with (
        single_threaded(federation.model),  # a measurer each, and the bits of a simulation
        measuring_pool(federation, settings, source, changes) as pool,
    ):
        run(federation, settings, folder, host, port, tls, pool, show, accept_replay)


@contextmanager
def measuring_pool(
    federation: Federation, settings: Settings, source: str, changes: Sequence[str]
) -> Iterator[WorkerPool | None]:
    """The workers that measure uploads, started and not yet waited for; None: the server's own threads do it."""
    if settings.measure == "threads":
        yield None
        return
    place = str(Path(source).resolve()) if Path(source).is_file() else source
    setup = partial(set_up_measurer, place, tuple(changes), proof(federation))
    pool = open_pool(settings.measure, setup, settings.measurers, settings.ray_address, PLAIN)
    try:
        yield pool
    finally:
        pool.close()


def set_up_measurer(source: str, changes: Sequence[str], wanted: str) -> Perform:
    """Make this process a worker that measures uploads of a federation, which it builds itself."""
    federation, _ = load_served(source, changes)
    stay_single_threaded(federation.model)
    return measurer(federation, wanted)


def load_served(source: str, changes: Sequence[str] = (), report: Report | None = None) -> tuple[Federation, Settings]:
    """The federation of `module:name`, or of an experiment's file or preset, and how it is to be served.

    A change without a section is a deployment setting; one with a section changes the experiment. `report` shows
    lines of progress when the start models are pre-trained.
    """
    ours = [change for change in changes if "." not in change.partition("=")[0]]
    for change in ours:
        parse_change(change)  # one that is none is refused in its own words
    deployment = [f"server.{change}" for change in ours]
    others = [change for change in changes if change not in ours]
    if ":" in source:
        if others:
            raise SettingError(
                f"{others[0]} cannot change {source}", "Change its module; --set takes deployment settings here"
            )
        tables: dict[str, Any] = {}
        apply(tables, deployment)
        settings = settings_of(Settings, tables.get("server", {}), "the server")
        return load_federation(source), settings
    tables = tables_of(source, [*others, *deployment])
    experiment = build(tables)
    settings = settings_of(Settings, tables.get("server", {}), "the server")
    return serve_experiment(experiment, tables.get("federation", {}), report), settings


@dataclass(frozen=True)
class Serving:
    """The table [federation] of an experiment: what only matters where it is served."""

    name: str = ""
    seed: int = 0
    clip: float | None = None
    publish_after: int = 1
    defended: bool = True


def serve_experiment(
    experiment: Experiment, table: Mapping[str, Any] | None = None, report: Report | None = None
) -> Federation:
    """The federation whose clients an experiment simulates: its proxy sets, pre-training, algorithm and plan."""
    told = settings_of(Serving, table or {}, "federation")
    model, samples = experiment.model, experiment.world.proxies(told.seed)

    def start() -> list[Params]:
        with single_threaded(model):
            return experiment.start.from_samples(model, samples, told.seed, report)

    return checked(
        "federation",
        lambda: Federation(
            model,
            experiment.planned().algorithm,
            measuring_learners(model, samples, experiment.proxy_sample, told.seed),
            start,
            plan=experiment.training,
            clip=told.clip,
            publish_after=told.publish_after,
            defence=(experiment.defence or Defence()) if told.defended else None,
            name=told.name or experiment.name,
            seed=told.seed,
        ),
    )


def load_federation(source: str) -> Federation:
    """The federation of `module:name`: a value, or a function that makes one."""
    found = imported(source, {}, "federation")
    try:
        found = found() if callable(found) else found
    except Exception as error:  # the operator's own code may fail in any way
        raise SettingError(f"{source} failed ({type(error).__name__}: {error})", "Fix it, then serve again") from None
    if not isinstance(found, Federation):
        raise SettingError(
            f"{source} is a {type(found).__name__}, not a Federation",
            "Name a Federation, or a function without arguments that returns one",
        )
    return found
