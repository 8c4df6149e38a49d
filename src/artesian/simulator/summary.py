"""What a finished run leaves behind: its summary, tables, models and mixtures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from artesian.algorithms.estimators import Estimates
from artesian.execution.worker import peak_mb
from artesian.simulator.detection import detection
from artesian.simulator.result import Run

if TYPE_CHECKING:
    from artesian.simulator.simulation import Simulation


def result_of(simulation: Simulation) -> Run:
    """What a finished run leaves behind; its folder, if it has one, is closed with it."""
    state, scores = simulation.coordinator.state, simulation.evaluation
    params = {k: cluster.params for k, cluster in state.clusters.items()}
    models = {k: state.layout.unpack(vector) for k, vector in params.items()}
    mixtures = {client: (true, scores.estimated.get(client)) for client, true in sorted(scores.true.items())}
    summary = _summary(simulation)
    if simulation.folder:
        for table in scores.tables.values():
            table.flush()
        simulation.folder.finish(summary, models, mixtures)
    tables: dict[str, Any] = {name: table.arrays() for name, table in scores.tables.items()}
    return Run(
        summary,
        **tables,
        models=models,
        params=params,
        mixtures=mixtures,
        folder=simulation.folder.path if simulation.folder else None,
        matrices=scores.export.matrices() if scores.export else {},
    )


def _summary(simulation: Simulation) -> dict[str, Any]:
    """The figures of a run, in the order in which they are shown."""
    totals = simulation.totals
    return {
        "algorithm": simulation.experiment.algorithm.name,
        "preset": simulation.experiment.name,
        "settings": simulation.experiment.digest[:8],
        "seed": simulation.seed,
        "length": simulation.experiment.length,
        "uploads": totals.uploads,
        "rounds": simulation.coordinator.state.rounds,
        "estimates": totals.estimates,
        **simulation.evaluation.summary(simulation.coordinator, totals.uploads, simulation.experiment.target),
        **_summary_of_turns(simulation),
        "bytes_up": totals.bytes_up,
        "bytes_down": totals.bytes_down,
        "transfers": (totals.bytes_up + totals.bytes_down) / (4 * simulation.coordinator.state.layout.size),
        "virtual_time": simulation.clock.now,
        "versions": simulation.coordinator.state.version,
        "late_uploads": totals.late,
        "notes": dict(totals.notes),
        **_told_apart(simulation),
        **(_summary_of_hostile(simulation) if simulation.experiment.fleet.hostile_share else {}),
        "executor": simulation.means.name,
        "workers": simulation.means.workers,
        "wall_seconds": round(totals.wall_seconds, 3),
        "peak_mb": round(peak_mb() + simulation.executor.peak_mb(), 1),
        **({"profile": _profile(simulation)} if simulation.profile else {}),
    }


def _told_apart(simulation: Simulation) -> dict[str, Any]:
    """Which clusters the estimate of mixtures cannot tell apart, where there are such."""
    algorithm, memory = simulation.coordinator.algorithm, simulation.coordinator.state.memory
    known = algorithm.calibration(memory) if isinstance(algorithm, Estimates) else None
    return {"alike": [list(pair) for pair in known.alike]} if known is not None and known.alike else {}


def _summary_of_turns(simulation: Simulation) -> dict[str, Any]:
    """What clients decided by, and what that was worth."""
    watch, table = simulation.experiment.watch, simulation.evaluation.turns
    if watch is None or table is None:
        return {}
    return {"watch": watch.words, **detection(table, detects=watch.detector is not None)}


def _summary_of_hostile(simulation: Simulation) -> dict[str, Any]:
    """How many clients attacked, how many of their uploads were accepted, and how many refused by which error."""
    refusals = dict(simulation.totals.refusals)
    told = {"hostile": len(simulation.place.hostile), "hostile_uploads": simulation.totals.hostile}
    return {**told, "hostile_refused": sum(refusals.values()), "refusals": refusals}


def _profile(simulation: Simulation) -> dict[str, Any]:
    """Where the time of this session went, part by part."""
    main = simulation.spent.seconds
    ran = sum(main.values()) - main["starting"]
    idle = simulation.means.workers * ran - sum(simulation.theirs.values())
    workers = simulation.theirs | {"waiting": max(0.0, idle)}
    told = {"main": main} | ({"workers": workers} if simulation.means.workers else {})
    return {who: {part: round(spent, 3) for part, spent in parts.items()} for who, parts in told.items()}
