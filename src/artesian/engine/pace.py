"""When to fold, and whom to answer: a stream (asynchronous) or rounds (synchronous)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from artesian.core import ClientId, Desk, Forecast, Pace, State

Select = Callable[[State, Sequence[ClientId]], Sequence[ClientId]]


@dataclass(frozen=True)
class Stream(Pace):
    """Asynchronous: every upload is answered at once; every `batch` uploads are folded together."""

    batch: int = 1
    patience: float | None = None

    def __post_init__(self) -> None:
        if self.batch < 1:
            raise ValueError(f"a stream folds one upload at least, not {self.batch}")
        _check_patience(self.patience)

    def folds(self, desk: Desk) -> bool:
        return len(desk.pending) >= self.batch

    def answers(self, desk: Desk, state: State) -> Sequence[ClientId]:
        return desk.waiting


@dataclass(frozen=True)
class Rounds(Pace):
    """Synchronous: once `quorum` clients wait, a cohort of `size` is drawn; when the last of it has uploaded,
    left or run out of `patience`, one fold closes the round."""

    size: int | None  # None: everybody who waits
    quorum: int | None = None  # None: as many as the cohort
    patience: float | None = None
    select: Select | None = None  # None: uniformly, from (seed, version)
    first: int | None = None  # how many must wait before the very first round; None: the quorum

    def __post_init__(self) -> None:
        for name, number in {"size": self.size, "quorum": self.quorum, "first": self.first}.items():
            if number is not None and number < 1:
                raise ValueError(f"a round needs one client at least, not {name} {number}")
        _check_patience(self.patience)

    @property
    def in_rounds(self) -> bool:
        return True

    @property
    def clients_needed(self) -> int:
        return self.quorum or self.size or 1

    def rounds_in(self, forecast: Forecast) -> int | None:
        """As planned, or the uploads over those of a full round: the cohort, or everybody who is there."""
        cohort = min(self.size or forecast.clients, forecast.clients)
        full = None if forecast.uploads is None else max(1, forecast.uploads // cohort)
        return forecast.rounds or full

    def folds(self, desk: Desk) -> bool:
        return bool(desk.pending) and desk.open == 0

    def answers(self, desk: Desk, state: State) -> Sequence[ClientId]:
        wanted = self.clients_needed
        if desk.issued == 0:
            wanted = max(wanted, self.first or 0)
        if desk.open or desk.pending or len(desk.waiting) < wanted:
            return ()
        ready = sorted(desk.waiting)
        if self.select is not None:
            return self.select(state, ready)
        if self.size is None:
            return ready
        chosen = state.rng("cohort", desk.issued).choice(len(ready), min(self.size, len(ready)), replace=False)
        return [ready[i] for i in sorted(chosen.tolist())]


def _check_patience(patience: float | None) -> None:
    if patience is not None and not patience > 0:
        raise ValueError(f"patience is a positive time, not {patience}")
