"""What an operator serves: a few lines of their own Python make one of these."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite
from typing import Any

from artesian.core import Algorithm, ClusterId, Learner, Model, Plan, derive
from artesian.engine.coordinator import Coordinator
from artesian.engine.defence import Defence
from artesian.engine.hyper_parameters import hyper_parameters
from artesian.errors import check
from artesian.params import Params


@dataclass(frozen=True)
class Federation:
    """A model, an algorithm, and the server's own data."""

    model: Model
    algorithm: Algorithm
    proxies: Mapping[ClusterId, Learner] = field(default_factory=dict)  # one per cluster, where the algorithm asks
    start: Sequence[Params] | Callable[[], Sequence[Params]] = ()  # one per cluster; none: a single fresh one
    plan: Plan = field(default_factory=Plan)  # what tasks propose
    clip: float | None = None  # the largest norm of an upload's change; larger ones are clipped
    publish_after: int = 1  # how many clients must have changed a cluster before others see it
    name: str = "federation"
    seed: int = 0
    defence: Defence | None = field(default_factory=Defence)  # what one member may do to the others; None: anything

    def __post_init__(self) -> None:
        rules = {
            "clip is above 0 and finite": self.clip is None or (isfinite(self.clip) and self.clip > 0),
            "publish_after is at least 1": self.publish_after >= 1,
        }
        check(self, rules)
        if Model not in type(self.model).__mro__:
            raise ValueError(f"{type(self.model).__name__} is not a model: let its class inherit artesian.Model")
        self.algorithm.check_plan(self.plan)

    @property
    def identity(self) -> dict[str, Any]:
        """What a store must agree with: with another model or algorithm it is another federation."""
        return {
            "name": self.name,
            "algorithm": self.algorithm.name,
            "layout": self.model.layout.digest,
            "seed": self.seed,
        }

    @property
    def settings(self) -> dict[str, Any]:
        """What may change from one start of the server to the next."""
        return hyper_parameters(self.algorithm, self.plan.settings, self.clip, self.publish_after, self.defence)

    def resumed(self, recorded: Mapping[str, Any]) -> dict[str, Any]:
        """The settings with which a store goes on that recorded these: what follows from the run stays as it was."""
        return replace(self, algorithm=self.algorithm.resumed(recorded["algorithm"])).settings

    def options(self) -> dict[str, Any]:
        """What a coordinator of this federation is made with."""
        own = {"proxies": self.proxies, "plan": self.plan, "clip": self.clip, "publish_after": self.publish_after}
        return own | {"defence": self.defence}

    def begin(self, **options: Any) -> Coordinator:
        """The coordinator of a federation nobody has joined."""
        given = self.start() if callable(self.start) else self.start  # made only for a store that is empty
        start = list(given) or [self.model.start(derive(self.seed, "initial"))]
        return Coordinator.start(self.algorithm, self.model.layout, start, self.seed, **self.options(), **options)
