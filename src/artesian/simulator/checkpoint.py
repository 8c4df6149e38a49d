"""Resuming a run: the checkpoint that holds everything it needs, taken from a run and put back into one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from artesian.core import ClientId, Mixture, Notebook, Snapshot, Task
from artesian.errors import JournalDamaged
from artesian.recipes.accepting import Voices
from artesian.simulator.clock import Clock, Moment
from artesian.simulator.evaluation import UnscoredUpload
from artesian.simulator.spill import filled
from artesian.simulator.watching import KeptWatch
from artesian.storage.older import translated_notebook

if TYPE_CHECKING:
    from artesian.simulator.simulation import Simulation


@dataclass(frozen=True)
class Flight:
    """A training under way."""

    task: Task
    cycle: int


@dataclass(frozen=True)
class Totals:
    """The plain numbers of a run."""

    uploads: int = 0  # that brought a training
    estimates: int = 0  # that brought only a mixture
    bytes_up: int = 0
    bytes_down: int = 0
    late: int = 0  # uploads that came after their task had expired
    hostile: int = 0  # of the uploads, those of hostile clients
    turns: int = 0  # of clients that decide
    wall_seconds: float = 0.0
    notes: Mapping[str, float] = field(default_factory=dict)  # what folds noted, summed up
    refusals: Mapping[str, int] = field(default_factory=dict)  # uploads of hostile clients that were refused, by error


@dataclass(frozen=True)
class Checkpoint:
    """All a run needs to go on as if never stopped."""

    coordinator: Snapshot
    now: float
    sequence: int
    moments: tuple[Moment, ...]
    cycles: Mapping[ClientId, int]
    notebooks: Mapping[ClientId, Notebook]
    flights: Mapping[ClientId, Flight]
    entries: tuple[UnscoredUpload, ...]
    found: Mapping[ClientId, Mixture]
    true: Mapping[ClientId, Mixture]
    totals: Totals
    late_in_a_row: int  # trainings since the last accepted upload of an honest client
    journal: int  # records
    tables: Mapping[str, int]  # bytes
    used: Mapping[ClientId, Voices] = field(default_factory=dict)  # by clients that judge what they use
    watched: Mapping[ClientId, KeptWatch] = field(default_factory=dict)  # of clients that decide


def taken(run: Simulation) -> Checkpoint:
    """The checkpoint of a run at this moment."""
    assert run.journal
    return Checkpoint(
        coordinator=replace(run.coordinator.snapshot(tasks=False), open_tasks=run.open_tasks.slips),
        now=run.clock.now,
        sequence=run.clock.sequence,
        moments=run.clock.moments(),
        cycles=run.cycles,
        notebooks=run.notebooks.slips,
        flights=run.flights.slips,
        entries=tuple(run.evaluation.entries),
        found=run.evaluation.estimated,
        true=run.evaluation.true,
        totals=run.totals,
        late_in_a_row=run.late_in_a_row,
        journal=run.journal.count,
        tables={name: table.flush() for name, table in run.evaluation.tables.items()},
        used=run.used.slips,
        watched=run.lookout.kept() if run.lookout else {},
    )


def restore(run: Simulation, checkpoint: Checkpoint) -> None:
    """Put a run back where the checkpoint was taken; its coordinator is restored already."""
    assert run.journal
    if run.journal.count < checkpoint.journal:
        raise JournalDamaged(
            f"{run.journal.path} has {run.journal.count} records, but had {checkpoint.journal} before",
            "Restore the file",
        )
    run.journal.cut(checkpoint.journal)
    run.clock = Clock(checkpoint.now, checkpoint.sequence, checkpoint.moments)
    run.cycles, run.totals = dict(checkpoint.cycles), checkpoint.totals
    run.late_in_a_row = checkpoint.late_in_a_row
    run.notebooks.update({client: translated_notebook(book) for client, book in checkpoint.notebooks.items()})
    run.flights.update(checkpoint.flights)
    run.used.update(checkpoint.used)
    if run.lookout:
        run.lookout.restore({client: filled(watched) for client, watched in checkpoint.watched.items()})
    run.evaluation.entries = [filled(entry) for entry in checkpoint.entries]
    run.evaluation.estimated, run.evaluation.true = dict(checkpoint.found), dict(checkpoint.true)
