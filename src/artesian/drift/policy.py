"""When a client refreshes: small rules over what it knows at one moment, composed with `|`, `&` and `~`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from artesian.drift.detector import Drift


@dataclass(frozen=True)
class Situation:
    """What a client knows when it decides. Times are seconds, or units of virtual time in the simulator."""

    now: float
    drift: Drift | None = None  # found in the newest batch, or found before and not answered by a refresh yet
    refreshed_at: float | None = None  # None: never
    samples: int = 0  # seen since the last refresh
    batches: int = 0  # seen since the last refresh
    refreshes: tuple[float, ...] = ()  # when the refreshes were that a budget may have to count
    sent: tuple[tuple[float, int], ...] = ()  # when, and how many bytes up and down
    asked: bool = False  # somebody called for a refresh
    alarms: tuple[int, ...] = ()  # in which batches since the last refresh drift was found, counted from 1
    answers: int = 0  # refreshes since the newest drift was found, with the one that answered it; 0: there was none


class Policy(Protocol):
    """A rule: the reason to refresh now, or None. Subclass it to inherit the rest."""

    def wants(self, situation: Situation) -> str | None:
        """Why the client refreshes now; None where it does not."""
        ...

    def declines(self, situation: Situation) -> str:
        """Why it does not refresh now, where it does not."""
        return "nothing calls for a refresh"

    def __or__(self, other: Policy) -> AnyOf:
        return AnyOf((*_parts(self, AnyOf), *_parts(other, AnyOf)))

    def __and__(self, other: Policy) -> AllOf:
        return AllOf((*_parts(self, AllOf), *_parts(other, AllOf)))

    def __invert__(self) -> Unless:
        return Unless(self)


@dataclass(frozen=True)
class AnyOf(Policy):
    """Refresh when one of these rules says so."""

    rules: tuple[Policy, ...]

    def wants(self, situation: Situation) -> str | None:
        return " and ".join(said for rule in self.rules if (said := rule.wants(situation))) or None

    def declines(self, situation: Situation) -> str:
        return ", and ".join(rule.declines(situation) for rule in self.rules)

    def __str__(self) -> str:
        return " or ".join(map(str, self.rules))


@dataclass(frozen=True)
class AllOf(Policy):
    """Refresh when all of these rules say so: a reason, and the guards around it."""

    rules: tuple[Policy, ...]

    def wants(self, situation: Situation) -> str | None:
        said = [rule.wants(situation) for rule in self.rules]
        return None if None in said or not said else "; ".join(filter(None, said))

    def declines(self, situation: Situation) -> str:
        """What speaks for a refresh, and what against it."""
        said = [(rule.wants(situation), rule) for rule in self.rules]
        against = ", and ".join(rule.declines(situation) for reason, rule in said if reason is None)
        first = said[0][0] if said else None  # a guard alone is no reason, so only the first is reported
        return f"{first}, but {against}" if first else against or "there is no rule"

    def __str__(self) -> str:
        return " and ".join(f"({rule})" if isinstance(rule, AnyOf) else str(rule) for rule in self.rules)


@dataclass(frozen=True)
class Unless(Policy):
    """Refresh when this rule does not say so."""

    rule: Policy

    def wants(self, situation: Situation) -> str | None:
        return None if self.rule.wants(situation) else self.rule.declines(situation)

    def declines(self, situation: Situation) -> str:
        return self.rule.wants(situation) or "nothing calls for a refresh"

    def __str__(self) -> str:
        text = str(self.rule)
        return f"not ({text})" if " and " in text or " or " in text else f"not {text}"


def any_of(*rules: Policy) -> AnyOf:
    """The same as `|` between them."""
    return AnyOf(rules)


def all_of(*rules: Policy) -> AllOf:
    """The same as `&` between them."""
    return AllOf(rules)


def _parts(rule: Policy, kind: type[AnyOf] | type[AllOf]) -> tuple[Policy, ...]:
    """The rules that one of this kind is made of; any other is one itself."""
    return rule.rules if isinstance(rule, kind) else (rule,)
