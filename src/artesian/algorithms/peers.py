"""Who is like whom: buffers of other clients' models within a budget, and the similarities they lead to.

While a client trains, its buffer collects models of its peers; when it uploads, it is compared with them and the buffer
is emptied. A model is stored once, however many buffers hold it, and is gone with the last entry that refers to it.
Everything with a row per client is an array, so a thousand clients cost milliseconds.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal, Self

import numpy as np

from artesian.core import ClientId, Tree
from artesian.params import Layout, Params, chunks, norm

Unit = Literal["models", "entries"]  # what a budget counts: distinct stored models, or entries of all buffers


@dataclass
class Peers:
    """A working copy: made of a memory, written to during one fold, and turned into the next memory."""

    clients: list[ClientId]  # in order of arrival: the rows and columns below
    similarity: np.ndarray  # cosine of every pair; NaN: not known
    entries: np.ndarray  # [owner, peer]: the number of the peer's model in the owner's buffer; 0: none
    rates: np.ndarray  # per client (a_c, a_i) of its last upload; 0 before the first
    models: dict[str, Params]  # the stored models by number
    born: np.ndarray  # by number: the version at which it was stored
    norms: np.ndarray  # by number: its length
    held: np.ndarray  # by number: how many entries refer to it; 0: the number is free

    @staticmethod
    def nothing() -> dict[str, Tree]:
        """The memory before anybody came; number 0 is no model."""
        return Peers(
            [],
            np.zeros((0, 0), np.float32),
            np.zeros((0, 0), np.int32),
            np.zeros((0, 2)),
            {},
            np.zeros(1, np.int64),
            np.zeros(1),
            np.zeros(1, np.int64),
        ).memory()

    @classmethod
    def of(cls, memory: Mapping[str, Tree], present: Collection[ClientId]) -> Self:
        """What is remembered of those present: strangers come at the end, and whoever is gone is forgotten."""
        arrays = {name: memory[name].copy() for name in ("similarity", "entries", "rates", "born", "norms", "held")}
        peers = cls(list(memory["clients"]), models=dict(memory["models"]), **arrays)
        if len(peers.clients) != len(present) or not all(client in present for client in peers.clients):
            peers._seat(present)
        return peers

    def memory(self) -> dict[str, Tree]:
        """The tree to be kept."""
        return dict(vars(self))

    def place(self, client: ClientId) -> int:
        """The row of a client."""
        return self.clients.index(client)

    def buffer(self, owner: ClientId) -> dict[ClientId, Params]:
        """The models of others that a client's buffer holds."""
        row = self.entries[self.place(owner)]
        return {self.clients[peer]: self.models[str(row[peer])] for peer in np.flatnonzero(row)}

    def compare(self, layout: Layout, client: ClientId, vector: Params) -> int:
        """Fill in the cosines of a client with all in its buffer, and empty that; how many are undefined."""
        own, size = self.place(client), norm(layout, vector)
        row = self.entries[own].copy()
        undefined = 0
        for peer in np.flatnonzero(row):
            scale = size * self.norms[row[peer]]
            cosine = _dot(layout, vector, self.models[str(row[peer])]) / scale if scale else np.nan
            if np.isfinite(cosine):
                self.similarity[own, peer] = self.similarity[peer, own] = cosine
            else:
                undefined += 1
        self.entries[own] = 0
        self.held[row[row > 0]] -= 1  # a number stands once in a row
        self._forget()
        return undefined

    def all_known(self, client: ClientId, places: np.ndarray) -> bool:
        """Are all pairs among these places known? Those of one client are looked at first."""
        if np.isnan(self.similarity[self.place(client), places]).any():
            return False
        return not np.isnan(self.similarity[np.ix_(places, places)]).any()

    def offer(self, layout: Layout, client: ClientId, vector: Params, takers: np.ndarray, version: int) -> None:
        """Put a model into the buffers of `takers` that hold none of this client."""
        own = self.place(client)
        column = self.entries[:, own]
        takers = takers & (column == 0)
        takers[own] = False
        if not takers.any():
            return
        number = self._free_number()
        column[takers] = number
        self.models[str(number)] = vector
        self.born[number], self.norms[number] = version, norm(layout, vector)
        self.held[number] = np.count_nonzero(takers)

    def prune(self, budget: int, unit: Unit) -> None:
        """Keep what is worth most: pairs not yet known, then slow owners, then older models, then by client id."""
        if unit == "entries":
            self._prune_entries(budget)
        else:
            self._prune_models(budget)
        self._forget()

    def part(self, groups: np.ndarray) -> None:
        """Drop entries across groups; an owner of group -1, who belongs nowhere yet, keeps all."""
        apart = (groups[:, None] != groups[None, :]) & (groups[:, None] >= 0)
        self.entries[apart] = 0
        self._count()
        self._forget()

    def forget(self, clients: Collection[ClientId]) -> None:
        """Make all pairs among these clients unknown again; their buffers stay."""
        places = [place for place, client in enumerate(self.clients) if client in set(clients)]
        self.similarity[np.ix_(places, places)] = np.nan
        np.fill_diagonal(self.similarity, 1)

    def _prune_models(self, budget: int) -> None:
        """A model is worth what its best entry is; surplus models go with all their entries."""
        stored = np.flatnonzero(self.held)
        if len(stored) <= budget:
            return
        best = np.full(len(self.held), np.iinfo(np.int32).max, np.int32)
        np.minimum.at(best, self.entries.ravel().astype(np.intp), self._worth().ravel())
        surplus = stored[np.lexsort((self.born[stored], best[stored]))][budget:]
        for number in surplus:
            self.entries[self.entries == number] = 0
        self.held[surplus] = 0

    def _prune_entries(self, budget: int) -> None:
        if self.held.sum() <= budget:
            return
        owners, peers = np.nonzero(self.entries)
        numbers = self.entries[owners, peers]
        names = np.argsort(np.argsort(self.clients))
        order = np.lexsort((names[owners], self.born[numbers], self._worth()[owners, peers]))[budget:]
        self.entries[owners[order], peers[order]] = 0
        self.held -= np.bincount(numbers[order], minlength=len(self.held))

    def _worth(self) -> np.ndarray:
        """Smaller is better: the owner's rank by its rate, and a known pair behind all that are not."""
        _, ranks = np.unique(self.rates[:, 1], return_inverse=True)
        slow_first = ranks.astype(np.int32)[:, None]
        known_last = slow_first + np.int32(len(self.clients))
        worth: np.ndarray = np.where(np.isnan(self.similarity), slow_first, known_last)
        return worth

    def _seat(self, present: Collection[ClientId]) -> None:
        """Rows for exactly those present."""
        here = set(present)
        old = [place for place, client in enumerate(self.clients) if client in here]
        staying = [self.clients[place] for place in old]
        self.clients = staying + sorted(here.difference(staying))
        count, kept = len(self.clients), len(old)
        for name, empty in (("similarity", np.nan), ("entries", 0)):
            square = getattr(self, name)
            fresh = np.full((count, count), empty, square.dtype)
            fresh[:kept, :kept] = square[np.ix_(old, old)]
            setattr(self, name, fresh)
        np.fill_diagonal(self.similarity, 1)
        rates = np.zeros((count, 2))
        rates[:kept] = self.rates[old]
        self.rates = rates
        self._count()
        self._forget()

    def _free_number(self) -> int:
        free = np.flatnonzero(self.held[1:] == 0)
        if len(free):
            return int(free[0]) + 1
        self.born, self.norms, self.held = (np.append(column, 0) for column in (self.born, self.norms, self.held))
        return len(self.held) - 1

    def _count(self) -> None:
        """Count the entries of every stored model anew."""
        self.held = np.bincount(self.entries.ravel(), minlength=len(self.held))
        self.held[0] = 0

    def _forget(self) -> None:
        """Let go of models that no entry refers to, and of numbers at the end that stand for none."""
        if np.count_nonzero(self.held) < len(self.models):
            self.models = {number: model for number, model in self.models.items() if self.held[int(number)]}
        last = int(np.flatnonzero(self.held)[-1]) + 1 if self.models else 1
        if last < len(self.held):
            self.born, self.norms, self.held = (part[:last].copy() for part in (self.born, self.norms, self.held))


def _dot(layout: Layout, a: Params, b: Params) -> float:
    return sum(float(np.multiply(a[p], b[p], dtype=np.float64).sum()) for p in chunks(layout.trainable))
