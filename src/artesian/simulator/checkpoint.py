"""What a run carries on: trainings under way, totals, and the checkpoint that holds everything."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from artesian.core import ClientId, Mixture, Notebook, Snapshot, Task
from artesian.simulator.clock import Moment
from artesian.simulator.evaluation import UnscoredUpload


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
    wall_seconds: float = 0.0
    notes: Mapping[str, float] = field(default_factory=dict)  # what folds noted, summed up


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
    late_in_a_row: int
    journal: int  # records
    tables: Mapping[str, int]  # bytes
