"""Synthetic(alpha, beta): every client has a linear model and a distribution of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from artesian.core import ClientId, ClusterId, generator
from artesian.data.datasets import Samples
from artesian.errors import check
from artesian.simulator.worlds.dealing import held_rules
from artesian.simulator.worlds.visit import Visit, World, numbered


@dataclass(frozen=True)
class Synthetic(World):
    """y = argmax(W x + b), W, b ~ N(u, 1), u ~ N(0, alpha); x ~ N(v, diag(j^-1.2)), v ~ N(B, 1), B ~ N(0, beta).

    `alpha` and `beta` are variances. Sizes are samples_min + a lognormal draw. Every client is a distribution of its
    own, so there is one true group for all; the server's sets have samples of all clients in turn. Nothing changes with
    the cycle.
    """

    name: ClassVar[str] = "synthetic"
    held: ClassVar[bool] = True
    personal: ClassVar[bool] = True  # what serves all clients says nothing of one
    clients: int = 100
    alpha: float = 1.0  # how much clients' models differ
    beta: float = 1.0  # how much their inputs do
    features: int = 60
    classes: int = 10
    log_mean: float = 4.0  # of a client's size, beyond samples_min
    log_spread: float = 2.0
    samples_min: int = 50
    samples_per_client: int | None = None
    test_share: float = 0.25
    proxy_samples: int = 500
    test_samples: int = 2000

    def __post_init__(self) -> None:
        check(
            self,
            {
                "clients is at least 1": self.clients >= 1,
                "classes is at least 2, features at least 1": self.classes >= 2 and self.features >= 1,
                "alpha and beta are finite and not below 0": 0 <= self.alpha < 1e9 and 0 <= self.beta < 1e9,
                "log_mean is from 0 to 20, log_spread from 0 to 10": (
                    0 <= self.log_mean <= 20 and 0 <= self.log_spread <= 10
                ),
                **held_rules(self.test_share, self.samples_min, self.samples_per_client),
                "proxy_samples and test_samples are at least 1": min(self.proxy_samples, self.test_samples) >= 1,
            },
        )

    @property
    def names(self) -> Sequence[ClientId]:
        return numbered(self.clients)

    def proxies(self, seed: int) -> Mapping[ClusterId, Samples]:
        return {"k0": self._of_all(seed, "proxy", self.proxy_samples)}

    def tests(self, seed: int) -> Mapping[ClusterId, Samples]:
        return {"k0": self._of_all(seed, "test", self.test_samples)}

    def visit(self, seed: int, client: ClientId, cycle: int) -> Visit:
        rng = generator(seed, "visit", client)
        size = self.samples_min + int(min(rng.lognormal(self.log_mean, self.log_spread), 1e6))
        size = min(size, self.samples_per_client or size)
        tests = max(1, int(size * self.test_share))
        both = self._draw(seed, client, rng, size)
        return Visit(Samples(both.x[tests:], both.y[tests:]), Samples(both.x[:tests], both.y[:tests]), {"k0": 1.0})

    def _draw(self, seed: int, client: ClientId, rng: np.random.Generator, count: int) -> Samples:
        """Samples of this client's distribution."""
        own = generator(seed, "client", client)
        u, centre = own.normal(0, self.alpha**0.5), own.normal(0, self.beta**0.5)
        weights, bias = own.normal(u, 1, (self.features, self.classes)), own.normal(u, 1, self.classes)
        means = own.normal(centre, 1, self.features)
        spread = np.arange(1, self.features + 1) ** -0.6  # the root of j^-1.2
        x = (means + spread * rng.normal(0, 1, (count, self.features))).astype(np.float32)
        return Samples(x, (x @ weights + bias).argmax(axis=1))

    def _of_all(self, seed: int, purpose: str, count: int) -> Samples:
        """So many samples, of all clients in turn."""
        each = [count // self.clients + (i < count % self.clients) for i in range(self.clients)]
        parts = [
            self._draw(seed, c, generator(seed, purpose, c), n) for c, n in zip(self.names, each, strict=True) if n
        ]
        return Samples(np.concatenate([part.x for part in parts]), np.concatenate([part.y for part in parts]))
