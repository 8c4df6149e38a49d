"""Scores of clients on their own test data, worked out again only where the models or the data changed."""

from __future__ import annotations

import hashlib
import weakref
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from artesian.core import ClientId, Ensemble
from artesian.params import Params
from artesian.simulator.executor import Promise
from artesian.simulator.jobs import Place, Score


@dataclass(frozen=True)
class ScoredClient:
    """A client's newest score, and what it was made from."""

    cycle: int  # the data: the first cycle seen that has them
    models: bytes  # a digest of the ensemble
    size: float  # of the test data
    score: Promise[float]


class ClientScores:
    """The newest score of every client."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self._newest: dict[ClientId, ScoredClient] = {}
        self._digests = Digests()

    def of(
        self, client: ClientId, cycle: int, ensemble: Ensemble, scorer: Callable[[Score], Promise[float]]
    ) -> ScoredClient:
        """What a client scores with these models on its test data of this cycle."""
        models, before = self._digests.of(ensemble), self._newest.get(client)
        if before is None or self._changed(client, before.cycle, cycle):
            size = float(len(self.place.visit(client, cycle).test))
            score = scorer(Score(ensemble, client=client, cycle=cycle, again=True))
            self._newest[client] = ScoredClient(cycle, models, size, score)
        elif before.models != models:
            score = scorer(Score(ensemble, client=client, cycle=before.cycle, again=True))
            self._newest[client] = ScoredClient(before.cycle, models, before.size, score)
        return self._newest[client]

    def _changed(self, client: ClientId, before: int, now: int) -> bool:
        """Whether data differ; where clients tune, the cycle decides the order of their batches, too."""
        world = self.place.world
        if before == now or self.place.tune is not None:
            return before != now
        return not world.held and (world.turns == "client" or world.changed(self.place.seed, client, before, now))


class Digests:
    """Digests of ensembles; that of a model which many clients share is computed once."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[weakref.ref[Params], bytes]] = {}

    def of(self, ensemble: Ensemble) -> bytes:
        whole = hashlib.blake2b(digest_size=16)
        for weight, params in ensemble:
            whole.update(np.float64(weight).tobytes() + self._of_model(params))
        return whole.digest()

    def _of_model(self, params: Params) -> bytes:
        known = self._known.get(id(params))
        if known is not None and known[0]() is params:
            return known[1]
        found = hashlib.blake2b(np.ascontiguousarray(params).data, digest_size=16).digest()
        place = id(params)
        self._known[place] = weakref.ref(params, lambda _: self._known.pop(place, None)), found
        return found
