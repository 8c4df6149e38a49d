"""What the demo's server serves: `artesian serve artesian.demo.federation:federation`."""

from __future__ import annotations

import os
from io import FileIO

from artesian.config.federations import serve_experiment
from artesian.demo.world import SEED, experiment, listen
from artesian.server.federation import Federation

DATA = "ARTESIAN_DEMO_DATA"  # a file with the digits; not set, scikit-learn's own


def federation() -> Federation:
    """One proxy set and one pre-trained start for each rotation."""
    return serve_experiment(experiment(data=os.environ.get(DATA, "digits")), {"name": "demo", "seed": SEED})


def tied() -> Federation:
    """The same, served by a process that ends when the one that started it does."""
    listen(FileIO(0, closefd=False), lambda: None)
    return federation()
