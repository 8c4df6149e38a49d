"""How clusters start: a blend in weight space needs models that share a trunk."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from artesian.core import ClusterId, Learner, Model, Plan, derive, generator
from artesian.data.datasets import Samples
from artesian.errors import SettingError, check
from artesian.params import Params


def proxy_learners(model: Model, samples: Mapping[ClusterId, Samples]) -> dict[ClusterId, Learner]:
    """Every proxy set with this model."""
    return {k: model.learner(s.x, s.y) for k, s in samples.items()}


def measuring_learners(
    model: Model, samples: Mapping[ClusterId, Samples], size: int | None, seed: int
) -> dict[ClusterId, Learner]:
    """The proxy sets uploads are measured on: whole, or a sample of so many from each."""
    check_size(samples, size)
    return proxy_learners(model, {k: _some(s, size, seed, k) for k, s in samples.items()})


def check_size(samples: Mapping[ClusterId, Samples], size: int | None) -> None:
    """Refuse a sample that is larger than every proxy set: it would be no sample."""
    if size is None:
        return
    if not samples:
        raise SettingError(f"proxy_sample is {size}, but there are no proxy sets", "Leave it out")
    largest = max(map(len, samples.values()))
    if size > largest:
        problem = f"proxy_sample is {size}, but the largest proxy set has {largest} samples"
        raise SettingError(problem, "Lower it, or leave it out")


def _some(samples: Samples, size: int | None, seed: int, cluster: ClusterId) -> Samples:
    if size is None or size >= len(samples):
        return samples
    rows = np.sort(generator(seed, "proxy-sample", cluster).choice(len(samples), size, replace=False))
    return Samples(samples.x[rows], samples.y[rows])


@dataclass(frozen=True)
class Start:
    """Pre-training on the server's proxy sets."""

    kind: Literal["shared", "apart"] = "shared"  # a trunk trained on all proxies first, or none
    trunk_epochs: int = 10  # on all proxies together, when shared
    epochs: int = 2  # on each cluster's own
    optimizer: Literal["sgd", "adam"] = "adam"
    rate: float = 0.005
    trunk_rate: float | None = None  # of the trunk; None: the same
    decay: float = 0.0  # weight decay
    batch: int = 32

    def __post_init__(self) -> None:
        rules = {
            "trunk_epochs is at least 0": self.trunk_epochs >= 0,
            "epochs is at least 0": self.epochs >= 0,
            "rate is above 0": self.rate > 0,
            "trunk_rate is above 0": self.trunk_rate is None or self.trunk_rate > 0,
            "decay is at least 0": self.decay >= 0,
            "batch is at least 1": self.batch >= 1,
        }
        check(self, rules)

    def models(
        self,
        model: Model,
        proxies: Mapping[ClusterId, Learner],
        everything: Learner,
        seed: int,
        report: Callable[[str], None] | None = None,
    ) -> list[Params]:
        """One model per cluster, from one common initialisation; `report` shows lines of progress."""
        report = report or _ignore
        trunk = model.start(derive(seed, "initial"))
        if self._shared_epochs:
            report(f"pre-training one model on all proxy sets: {self.trunk_epochs} epochs")
            plan = self._plan(self.trunk_epochs, self.trunk_rate or self.rate)
            trunk = everything.train(trunk, seed=derive(seed, "trunk"), plan=plan)
        if not self.epochs:
            return [trunk for _ in proxies]
        plan, trained = self._plan(self.epochs, self.rate), []
        for k, proxy in proxies.items():
            trained.append(proxy.train(trunk, seed=derive(seed, "start", k), plan=plan))
            report(f"pre-training {len(proxies)} clusters: {len(trained)}/{len(proxies)}")
        return trained

    @property
    def _shared_epochs(self) -> int:
        """Of the trunk, where there is one."""
        return self.trunk_epochs if self.kind == "shared" else 0

    def check_data(self, samples: Mapping[ClusterId, Samples]) -> None:
        """Refuse to pre-train without proxy sets."""
        if not samples and (self._shared_epochs or self.epochs):
            raise SettingError(
                "There are no proxy sets to pre-train on", "Set start.trunk_epochs and start.epochs to 0"
            )

    def words(self, sizes: Sequence[int]) -> str:
        """What is pre-trained on which data, where the proxy sets have these sizes."""
        sets = f"the server's {len(sizes)} proxy sets" if len(sizes) > 1 else "the server's proxy set"
        trunk = self._shared_epochs
        together = f"one model on {sets} ({sum(sizes)} samples, {trunk} epochs)"
        each = f"a model for each cluster on its own proxy set ({self.epochs} epochs)"
        if trunk and self.epochs:
            return f"pre-training: {together}, and from it {each}"
        if trunk or self.epochs:
            return f"pre-training: {together if trunk else each}"
        return "no pre-training: the start is one random model"

    def from_samples(
        self,
        model: Model,
        samples: Mapping[ClusterId, Samples],
        seed: int,
        report: Callable[[str], None] | None = None,
    ) -> list[Params]:
        """The same, from the proxy sets themselves; without any, one random model."""
        self.check_data(samples)
        if not samples:
            return [model.start(derive(seed, "initial"))]
        x, y = (np.concatenate(part) for part in zip(*((s.x, s.y) for s in samples.values()), strict=True))
        return self.models(model, proxy_learners(model, samples), model.learner(x, y), seed, report)

    def _plan(self, epochs: int, rate: float) -> Plan:
        return Plan(self.optimizer, rate, epochs, self.batch, decay=self.decay)


def _ignore(line: str) -> None:
    pass
