"""What the server and the clients of the demo share: the world of the preset `digits-4`, with fewer clients."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from io import FileIO
from pathlib import Path

import numpy as np

from artesian.config.experiments import load
from artesian.data.datasets import images
from artesian.simulator.experiment import Experiment

SEED = 0


def write_digits(path: Path) -> None:
    """The digits as a file: the processes of the demo read it, and need not load scikit-learn each."""
    digits = images("digits")
    np.savez(path, x=digits.x, y=digits.y)


def experiment(clients: int = 12, data: str = "digits") -> Experiment:
    """The preset, with so many clients, but one for each rotation at least, and the digits from there."""
    return load("digits-4", [f"world.clients={max(clients, 4)}", f"world.data={json.dumps(data, ensure_ascii=False)}"])


def listen(pipe: FileIO, told: Callable[[], None]) -> None:
    """Call `told` for every line of a pipe; when its other end is gone, so is this process, at once."""

    def follow() -> None:
        while pipe.readline():
            told()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()
