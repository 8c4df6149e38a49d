"""What an operator serves: a few lines of their own Python make one of these."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, is_dataclass
from typing import Any

from artesian.core import Algorithm, ClusterId, Learner, Model, Plan, derive
from artesian.engine import Coordinator
from artesian.params import Params


@dataclass(frozen=True)
class Federation:
    """A model, an algorithm, and the server's own data."""

    model: Model
    algorithm: Algorithm
    proxies: Mapping[ClusterId, Learner] = field(default_factory=dict)  # one per cluster, where the algorithm asks
    start: Sequence[Params] = ()  # one model per cluster; none: a single fresh one
    plan: Plan = field(default_factory=Plan)  # what tasks propose
    name: str = "federation"
    seed: int = 0

    @property
    def identity(self) -> dict[str, Any]:
        """What a store must agree with: another model or algorithm is another federation."""
        return {
            "name": self.name,
            "algorithm": self.algorithm.name,
            "layout": self.model.layout.digest,
            "seed": self.seed,
        }

    @property
    def settings(self) -> dict[str, Any]:
        """What may change from one start of the server to the next."""
        hyper: dict[str, Any] = asdict(self.algorithm) if is_dataclass(self.algorithm) else {}
        return {"algorithm": hyper, "plan": asdict(self.plan)}

    def options(self) -> dict[str, Any]:
        """What a coordinator of this federation is made with."""
        return {"proxies": self.proxies, "plan": self.plan}

    def begin(self) -> Coordinator:
        """The coordinator of a federation nobody has joined."""
        start = list(self.start) or [self.model.start(derive(self.seed, "initial"))]
        return Coordinator.start(self.algorithm, self.model.layout, start, self.seed, **self.options())
