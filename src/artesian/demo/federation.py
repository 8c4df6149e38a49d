"""What the demo's server serves and what its clients hold: the world of the preset `digits-4`, with fewer clients."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from io import FileIO
from pathlib import Path

import numpy as np

from artesian.core import ClusterId, Learner
from artesian.experiments import load
from artesian.server.federation import Federation
from artesian.simulator.data import images
from artesian.simulator.executors import single_threaded
from artesian.simulator.experiment import Experiment

DATA = "ARTESIAN_DEMO_DATA"  # a file with the digits; not set, scikit-learn's own
SEED = 0


def write_digits(path: Path) -> None:
    """The digits as a file: the processes of the demo read it, and need not load scikit-learn each."""
    digits = images("digits")
    np.savez(path, x=digits.x, y=digits.y)


def experiment(clients: int = 12, data: str = "digits") -> Experiment:
    """The preset, with so many clients and the digits from there."""
    return load("digits-4", [f"world.clients={clients}", f"world.data={json.dumps(data, ensure_ascii=False)}"])


def federation() -> Federation:
    """One proxy set and one pre-trained start for each rotation."""
    chosen = experiment(data=os.environ.get(DATA, "digits"))
    model, samples = chosen.model, chosen.world.proxies(SEED)
    proxies: dict[ClusterId, Learner] = {k: model.learner(s.x, s.y) for k, s in samples.items()}
    x, y = (np.concatenate([getattr(s, part) for s in samples.values()]) for part in "xy")
    with single_threaded():
        start = chosen.start.models(model, proxies, model.learner(x, y), SEED)
    return Federation(model, chosen.algorithm, proxies, start, plan=chosen.training, name="demo", seed=SEED)


def tied() -> Federation:
    """The same, served by a process that ends when the one that started it does."""
    listen(FileIO(0, closefd=False), lambda: None)
    return federation()


def listen(pipe: FileIO, told: Callable[[], None]) -> None:
    """Call `told` for every line of a pipe; when its other end is gone, so is this process, at once."""

    def follow() -> None:
        while pipe.readline():
            told()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()
