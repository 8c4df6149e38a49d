"""What the demo serves, and the world its clients live in: the preset `digits-4`, with fewer clients.

`artesian serve artesian.demo.federation:federation` serves it without the rest of the demo.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from io import FileIO

from artesian.config.experiments import load
from artesian.config.federations import serve_experiment
from artesian.server.federation import Federation
from artesian.simulator.experiment import Experiment

SEED = 0
DATA = "ARTESIAN_DEMO_DATA"  # a file with the digits, so that no process needs scikit-learn; not set: scikit-learn's


def experiment(clients: int = 12) -> Experiment:
    """The preset with this many clients, but one for each rotation at least."""
    data = json.dumps(os.environ.get(DATA, "digits"), ensure_ascii=False)
    return load("digits-4", [f"world.clients={max(clients, 4)}", f"world.data={data}"])


def federation() -> Federation:
    """One proxy set and one pre-trained start for each rotation."""
    return serve_experiment(experiment(), {"name": "demo", "seed": SEED})


def tied() -> Federation:
    """The same, served by a process that ends when the one that started it does."""
    end_with(FileIO(0, closefd=False), lambda: None)
    return federation()


def end_with(pipe: FileIO, told: Callable[[], None]) -> None:
    """Call `told` for every line of a pipe; when its other end is gone, this process ends at once."""

    def follow() -> None:
        while pipe.readline():
            told()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()
