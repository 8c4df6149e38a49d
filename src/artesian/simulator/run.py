"""Run an experiment: check it, open its folder, let its simulation run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from artesian.engine.coordinator import Coordinator
from artesian.simulator.checkpoint import Checkpoint
from artesian.simulator.executor import Means
from artesian.simulator.experiment import Experiment
from artesian.simulator.folder import RunFolder, configuration, read_json
from artesian.simulator.provenance import provenance
from artesian.simulator.result import Run
from artesian.simulator.simulation import Progress, Simulation
from artesian.simulator.transports import CoordinatorTransport, Direct


def run_experiment(
    experiment: Experiment,
    *,
    seed: int = 0,
    out: Path | None = None,
    resume: bool = False,
    progress: Callable[[Progress], None] | None = None,
    transport: Callable[[Coordinator], CoordinatorTransport] = Direct,
    profile: bool = False,
    opening: Callable[[], None] | None = None,
    **means: Any,
) -> Run | None:
    """Run an experiment, in a folder if `out` is given; None if the run to resume had finished before.

    With `profile`, the summary says where the time went. `opening` is called once all is checked, before anything is
    trained. `means` are the fields of `Means`: workers and so on.
    """
    Means(**means)  # a wrong choice is refused before there is a folder
    begun = out / "config.json" if resume and out is not None and (out / "config.json").exists() else None
    if begun is not None:
        experiment = experiment.resumed(read_json(begun).get("experiment", {}))
    experiment = experiment.planned()
    experiment.check_run(seed)
    folder = None
    if out is not None:
        config = configuration(experiment.describe(), seed, provenance(experiment))
        if begun is not None:
            folder = RunFolder.reopen(out, config, experiment.defaults())
            if folder.summary is not None:
                folder.close()
                return None
        else:
            folder = RunFolder.create(out, config)
    spill = Means(**means).spill(folder.path if folder else None)
    if opening is not None:
        opening()
    try:
        return Simulation(
            experiment,
            seed,
            folder=folder,
            checkpoint=folder.load(Checkpoint, spill) if folder and resume else None,
            spill=spill,
            transport=transport,
            progress=progress,
            profile=profile,
            **means,
        ).run()
    finally:
        if folder:
            folder.close()
