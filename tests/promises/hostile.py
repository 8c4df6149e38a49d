"""One hostile client of twenty: what it sends in place of what it trained, in a small federation on real digits."""

from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from artesian.config.experiments import load, simulate
from artesian.core import ClientId, Evidence, Reply, Task, Upload, generator
from artesian.engine.defence import Defence
from artesian.params import Params, seal
from artesian.simulator.transports import Direct

HOSTILE = "c000"
FLOOD = 200  # uploads in a row, besides those that others see
SMALL = ["world.clients=20", "uploads=400", "start.trunk_epochs=4", "training.epochs=2"]
CHANGES = {
    "confluence": ["algorithm.first_pretend=8", "algorithm.pretend=4", "algorithm.pretend_window=24"],
    "fedavg": ["algorithm.clients_per_round=10"],
}
ALGORITHMS = ("confluence", "cdfl", "fedbuff", "fedasync", "fedavg")
ATTACKS = (
    "sign flip", "x10", "flip x10", "x1e6", "constant", "noise", "replayed cluster", "inflated samples", "flood",
)  # fmt: skip


def wrong(attack: str, change: np.ndarray, given: np.ndarray, first: np.ndarray, number: int) -> np.ndarray:
    """The change a hostile client sends in place of its own."""
    match attack:
        case "x10":
            return 10 * change
        case "flip x10":
            return -10 * change
        case "x1e6":
            return 1e6 * change
        case "constant":
            return 1.0 - given
        case "noise" | "flood":
            return generator(number, "attack").normal(0, 1, change.shape)
        case "replayed cluster":
            return first - given
        case _:
            return -change


@dataclass
class Attacked(Direct):
    """A transport on which one client lies."""

    attack: str = ""
    first: Params | None = None
    flooded: int = 0

    def join(self, client: ClientId, samples: int, changed: bool = False) -> list[Reply]:
        liar = client == HOSTILE and self.attack == "inflated samples"
        return super().join(client, 1 << 52 if liar else samples, changed)

    def upload(self, upload: Upload, evidence: Evidence | None = None) -> list[Reply]:
        if upload.client != HOSTILE or not self.attack:
            return super().upload(upload, evidence)
        replies = self._lie(upload)
        while self.attack == "flood" and self.flooded < FLOOD:
            own = [reply.task for reply in replies if reply.client == HOSTILE]
            if not own:
                break
            self.flooded += 1
            replies = [*(r for r in replies if r.client != HOSTILE), *self._lie(replace(upload, number=own[0].number))]
        return replies

    def _lie(self, upload: Upload) -> list[Reply]:
        (task,) = (reply.task for reply in self.coordinator.recorded(HOSTILE))
        return super().upload(self._twisted(upload, task))

    def _twisted(self, upload: Upload, task: Task) -> Upload:
        samples = 1 << 52 if self.attack == "inflated samples" else upload.samples
        return replace(upload, samples=samples, models={k: self._model(k, p, task) for k, p in upload.models.items()})

    def _model(self, name: str, params: Params, task: Task) -> Params:
        given, delta = task.models[name].astype(float), bool(task.settings.get("delta"))
        self.first = given if self.first is None else self.first
        change = params if delta else params - given
        lie = wrong(self.attack, change, given, self.first, task.number)
        return seal((lie if delta else given + lie).astype(np.float32))


def accuracy(algorithm: str, attack: str = "", defence: Defence | None = None, seed: int = 0) -> float:
    """How well the others do with what they drew, in the last half of a run."""
    changes = [*SMALL, f"algorithm.name={algorithm}", *CHANGES.get(algorithm, [])]
    experiment = replace(load("digits-2", changes), defence=defence)
    run = simulate(experiment, seed=seed, transport=lambda coordinator: Attacked(coordinator, attack))
    client, after = np.array(run.metrics["client"]), np.array(run.metrics["after"])
    late = np.arange(len(after)) >= len(after) // 2
    return float(after[late & (client != HOSTILE)].mean())


@cache
def peaceful(algorithm: str, seed: int = 0) -> float:
    """The same where nobody is hostile, and nobody is defended."""
    return accuracy(algorithm, seed=seed)
