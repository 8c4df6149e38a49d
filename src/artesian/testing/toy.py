"""A federation small enough to check every rule on: three weights, one running mean, one exact counter."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from artesian.core import (
    Algorithm,
    ClientId,
    ClusterId,
    Ensemble,
    Event,
    Learner,
    Model,
    Notebook,
    Plan,
    Pull,
    Reply,
    Snapshot,
    Task,
    Upload,
    generator,
)
from artesian.data.datasets import Samples
from artesian.engine.coordinator import Coordinator
from artesian.engine.pace import Rounds
from artesian.params import Layout, Params, seal
from artesian.recipes import recipe
from artesian.recipes.kept_optimizers import follow
from artesian.simulator.worlds import Visit, World
from artesian.storage.codec import decode, encode

WIDTH = 3  # features of the toy


@dataclass(frozen=True)
class ToyLearner:
    """Learns the mean of its samples; counts its trainings; keeps a running statistic."""

    layout: Layout
    x: np.ndarray

    @property
    def samples(self) -> int:
        return len(self.x)

    @property
    def histogram(self) -> tuple[int, ...]:
        """All samples have the label 0."""
        return (self.samples,)

    def part(self, rows: np.ndarray) -> ToyLearner:
        """The same with these samples alone."""
        return ToyLearner(self.layout, self.x[rows])

    def joined(self, others: Sequence[ToyLearner]) -> ToyLearner:
        """The same with the samples of these after its own."""
        return ToyLearner(self.layout, np.concatenate([self.x, *(other.x for other in others)]))

    def arrays(self) -> tuple[np.ndarray, np.ndarray]:
        """All samples have the label 0."""
        return self.x, np.zeros(self.samples, np.int64)

    def losses(self, params: Params) -> np.ndarray:
        return np.square(self.x - params[:WIDTH]).sum(axis=1)

    def score(self, ensemble: Ensemble) -> float:
        return -float(sum(weight * self.losses(params).mean() for weight, params in ensemble))

    def train(
        self,
        params: Params,
        *,
        seed: int,
        plan: Plan,
        pulls: Sequence[Pull] = (),
        weights: np.ndarray | None = None,
        mask: np.ndarray | None = None,
        correction: Params | None = None,
    ) -> Params:
        arrays = self.layout.unpack(params)
        target = self.x.mean(axis=0) + generator(seed, "noise").normal(0, 0.01, WIDTH)
        pull = sum(strength * (arrays["weight"] - anchor[:WIDTH]) for strength, anchor in pulls)
        pull = pull if correction is None else pull + correction[:WIDTH]
        arrays["weight"] += (0.5 * (target - arrays["weight"]) - 0.1 * pull).astype(np.float32)
        arrays["mean"] += np.float32(0.1) * (self.x.mean() - arrays["mean"])
        arrays["steps"] += 1
        trained = self.layout.pack(arrays)
        return trained if mask is None else seal(np.where(mask, trained, params))


@dataclass(frozen=True)
class ToyModel(Model):
    """Three weights, one running mean, one counter of trainings beyond float32's whole numbers."""

    @cached_property
    def layout(self) -> Layout:
        return Layout.of(self._arrays(np.zeros(WIDTH, np.float32)), trainable=["weight"])

    def start(self, seed: int) -> Params:
        weight = generator(seed, "toy").normal(0, 1, WIDTH).astype(np.float32)
        return self.layout.pack(self._arrays(weight))

    def learner(self, x: np.ndarray, y: np.ndarray) -> ToyLearner:
        return ToyLearner(self.layout, x)

    def _arrays(self, weight: np.ndarray) -> dict[str, np.ndarray]:
        mean, steps = np.zeros(1, np.float32), np.array(2**53 + 1, np.int64)
        return {"weight": weight, "mean": mean, "steps": steps}


@dataclass(frozen=True)
class ToyWorld(World):
    """Clusters of points; client i lives in cluster i mod K."""

    name: ClassVar[str] = "toy"
    clients: int = 4
    clusters: int = 2

    @property
    def names(self) -> list[ClientId]:
        return [f"c{i}" for i in range(self.clients)]

    @property
    def features(self) -> int:
        return WIDTH

    @property
    def classes(self) -> int:
        return 1

    def visit(self, seed: int, client: ClientId, cycle: int) -> Visit:
        main = int(client[1:]) % self.clusters
        rng = generator(seed, "toy", client, cycle)
        data = self._points(rng, main, int(rng.integers(5, 20)))
        return Visit(data, data, {f"k{i}": float(i == main) for i in range(self.clusters)})

    def proxies(self, seed: int) -> Mapping[ClusterId, Samples]:
        return {f"k{i}": self._points(generator(seed, "proxy", i), i, 20) for i in range(self.clusters)}

    def tests(self, seed: int) -> Mapping[ClusterId, Samples]:
        return {f"k{i}": self._points(generator(seed, "test", i), i, 20) for i in range(self.clusters)}

    def _points(self, rng: np.random.Generator, cluster: int, count: int) -> Samples:
        x = rng.normal(2.0 * cluster, 0.5, (count, WIDTH)).astype(np.float32)
        return Samples(x, np.zeros(count, np.int64))


@dataclass
class ToyFederation:
    """A toy federation: a coordinator, and clients that follow recipes."""

    algorithm: Algorithm
    clients: int
    clusters: int = 2
    record: Callable[[Event], None] | None = None
    model: Model = field(default_factory=ToyModel)
    tasks: dict[ClientId, Task] = field(default_factory=dict)
    notebooks: dict[ClientId, Notebook] = field(default_factory=dict)
    steps: int = 0

    def __post_init__(self) -> None:
        self.world = ToyWorld(self.clients, self.clusters)
        start = [self.model.start(i) for i in range(self.clusters)]
        self.coordinator = Coordinator.start(self.algorithm, self.model.layout, start, 7, **self.options())

    def options(self) -> dict[str, Any]:
        """What a coordinator of this federation is made with."""
        proxies: dict[ClusterId, Learner] = {k: self.model.learner(s.x, s.y) for k, s in self.world.proxies(0).items()}
        pace = self.algorithm.pace()
        if isinstance(pace, Rounds) and (pace.size or 0) > self.clients:
            pace = replace(pace, size=self.clients, quorum=None)
        return {"proxies": proxies, "pace": pace, "record": self.record}

    def join_all(self) -> None:
        for client in self.world.names:
            self.take(self.coordinator.join(client, 10))

    def take(self, replies: Sequence[Reply]) -> None:
        self.tasks.update({reply.client: reply.task for reply in replies})

    def upload_of(self, client: ClientId) -> Upload:
        """The answer of a client to its open task."""
        task = self.tasks[client]
        visit = self.world.visit(0, client, task.number)
        learner = self.model.learner(visit.train.x, visit.train.y)
        book = self.notebooks.get(client, {})
        fit = follow(recipe(task.recipe), self.model.layout, client, task, learner, book)
        self.notebooks[client] = fit.notebook
        return fit.upload

    def step(self, watch: Callable[[ToyFederation, Upload], None] | None = None) -> Upload:
        """One upload, of a client drawn from those with a task; `watch` sees it before it is sent."""
        ready = sorted(self.tasks)
        client = ready[int(generator(0, "step", self.steps).integers(len(ready)))]
        self.steps += 1
        upload = self.upload_of(client)
        if watch:
            watch(self, upload)
        del self.tasks[client]
        self.take(self.coordinator.receive(upload))
        return upload

    def restart(self) -> None:
        """Go on from bytes alone."""
        data = encode("snapshot", self.coordinator.snapshot())
        snapshot = decode("snapshot", data, Snapshot)
        self.coordinator = Coordinator.restore(self.algorithm, snapshot, **self.options())
