"""Settings that several methods share, with what follows from them: rounds, planned lengths, mixing rates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from artesian.algorithms.staleness import Rule, weigh
from artesian.core import Algorithm, Buffers, Forecast, Measured
from artesian.engine.pace import Rounds
from artesian.errors import SettingError, check


@dataclass(frozen=True, kw_only=True)
class InRounds(Algorithm):
    """A method whose clients are drawn in cohorts, one fold for each."""

    clients_per_round: int | None = None  # the cohort; None: everybody
    quorum: int | None = None  # how many must wait before a round begins; None: a full cohort
    patience: float | None = None  # how long a round waits for its last clients
    buffers: Buffers = "average"

    def pace(self) -> Rounds:
        return Rounds(self.clients_per_round, self.quorum, self.patience)


@dataclass(frozen=True, kw_only=True)
class WaitsForAll(Algorithm):
    """A method whose first round waits for all clients who are there from the start."""

    first_round: int | None = None  # how many the first round waits for; a simulation fills it in

    def planned(self, forecast: Forecast) -> Self:
        known = super().planned(forecast)
        return known if known.first_round is not None else replace(known, first_round=forecast.clients)


@dataclass(frozen=True, kw_only=True)
class InRoundsAfterAll(InRounds, WaitsForAll):
    """Rounds, the first of which waits for all."""

    def pace(self) -> Rounds:
        return replace(super().pace(), first=self.first_round)


@dataclass(frozen=True, kw_only=True)
class KnowsLength(Algorithm):
    """A method whose rule depends on the planned length, in the unit of its pace: what `State.rounds` counts."""

    horizon: int | None = None  # T, planned folds: rounds, or the folds of a stream; a simulation fills it in

    def planned(self, forecast: Forecast) -> Self:
        known = super().planned(forecast)
        folds = known.pace().rounds_in(forecast)
        return known if known.horizon is not None else replace(known, horizon=folds)

    def resumed(self, recorded: Mapping[str, Any]) -> Self:
        known = super().resumed(recorded)
        return known if known.horizon is not None else replace(known, horizon=recorded.get("horizon"))


@dataclass(frozen=True, kw_only=True)
class MixesUploads(Algorithm):
    """A method that moves a model towards every single upload, the less the later it comes."""

    alpha: float = 0.3  # alpha, mixing rate of a fresh upload
    staleness: Rule = "constant"  # s(t - tau), how lateness counts
    a: float = 1.0  # a of the rule
    b: float = 4.0  # b of the rule
    max_staleness: int | None = None  # later uploads change nothing; the client is still answered

    def check_mixing(self) -> None:
        """Refuse a rate, a rule or a limit that cannot be."""
        rules = {
            "alpha is in (0, 1]": 0 < self.alpha <= 1,
            "a and b are at least 0": self.a >= 0 and self.b >= 0,
            "max_staleness is at least 0": self.max_staleness is None or self.max_staleness >= 0,
        }
        check(self, rules)

    def rate(self, late: int) -> float:
        """alpha s(t - tau)."""
        return self.alpha * weigh(self.staleness, late, self.a, self.b)

    def too_late(self, late: int) -> bool:
        return self.max_staleness is not None and late > self.max_staleness


def only(measured: Sequence[Measured], method: str) -> Measured:
    """The upload of a fold that takes one at a time."""
    if len(measured) != 1:
        raise SettingError(f"{method} cannot fold {len(measured)} uploads at once", "Use the pace Stream(batch=1)")
    return measured[0]
