"""The rules that policies are made of: reasons to refresh, and guards that hold a refresh back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from artesian.drift.policy import Policy, Situation
from artesian.errors import check

DAY = 86400.0
COUNTED = 1000  # refreshes that are remembered, at most
UNITS = {"w": 7 * DAY, "d": DAY, "h": 3600.0, "min": 60.0, "s": 1.0}
SIZES = {"GB": 10**9, "MB": 10**6, "kB": 10**3, "B": 1}


@dataclass(frozen=True)
class OnDrift(Policy):
    """Refresh when a detector found drift."""

    def wants(self, situation: Situation) -> str | None:
        drift = situation.drift
        return None if drift is None else f"{drift.detector} found drift: {drift.why}"

    def declines(self, situation: Situation) -> str:
        return "no drift was found"

    def __str__(self) -> str:
        return "drift"


@dataclass(frozen=True)
class Again(Policy):
    """Refresh again after a refresh that answered a drift, until there were so many: one is often too few."""

    refreshes: int = 3

    def __post_init__(self) -> None:
        check(self, {"refreshes is at least 2": self.refreshes >= 2})

    def wants(self, situation: Situation) -> str | None:
        if not 0 < situation.answers < self.refreshes:
            return None
        return f"the newest drift was answered by {situation.answers} of {self.refreshes} refreshes"

    def declines(self, situation: Situation) -> str:
        return "no drift waits for another refresh"

    def __str__(self) -> str:
        return f"again {self.refreshes}"


@dataclass(frozen=True)
class OnAge(Policy):
    """Refresh when the last refresh is so long ago, or there was none."""

    seconds: float

    def __post_init__(self) -> None:
        check(self, {"seconds is above 0": self.seconds > 0})

    def wants(self, situation: Situation) -> str | None:
        if situation.refreshed_at is None:
            return "it never refreshed"
        age = situation.now - situation.refreshed_at
        return f"the last refresh was {spoken(age)} ago" if age >= self.seconds else None

    def declines(self, situation: Situation) -> str:
        age = situation.now - (situation.refreshed_at or 0.0)
        return f"the last refresh was {spoken(age)} ago, not {spoken(self.seconds)}"

    def __str__(self) -> str:
        return f"age {written(self.seconds)}"


@dataclass(frozen=True)
class OnSamples(Policy):
    """Refresh when so many samples were seen since the last refresh."""

    samples: int

    def __post_init__(self) -> None:
        check(self, {"samples is at least 1": self.samples >= 1})

    def wants(self, situation: Situation) -> str | None:
        return f"{situation.samples} samples are new" if situation.samples >= self.samples else None

    def declines(self, situation: Situation) -> str:
        return f"{situation.samples} samples are new, not {self.samples}"

    def __str__(self) -> str:
        return f"samples {self.samples}"


@dataclass(frozen=True)
class Every(Policy):
    """Refresh after every so many batches."""

    batches: int = 1

    def __post_init__(self) -> None:
        check(self, {"batches is at least 1": self.batches >= 1})

    def wants(self, situation: Situation) -> str | None:
        return f"{_batches(situation.batches)} came in" if situation.batches >= self.batches else None

    def declines(self, situation: Situation) -> str:
        return f"{_batches(situation.batches)} came in, not {self.batches}"

    def __str__(self) -> str:
        return f"every {self.batches}"


@dataclass(frozen=True)
class OnRequest(Policy):
    """Refresh when somebody called for it."""

    def wants(self, situation: Situation) -> str | None:
        return "it was asked for" if situation.asked else None

    def declines(self, situation: Situation) -> str:
        return "nobody asked for it"

    def __str__(self) -> str:
        return "request"


@dataclass(frozen=True)
class Always(Policy):
    """Refresh at every batch."""

    def wants(self, situation: Situation) -> str | None:
        return "it always refreshes"

    def __str__(self) -> str:
        return "always"


@dataclass(frozen=True)
class Never(Policy):
    """Never refresh."""

    def wants(self, situation: Situation) -> str | None:
        return None

    def declines(self, situation: Situation) -> str:
        return "it never refreshes"

    def __str__(self) -> str:
        return "never"


@dataclass(frozen=True)
class Budget(Policy):
    """A guard: only so many refreshes, or so many bytes up and down, in any stretch of time of this length."""

    refreshes: int | None = None
    bytes_: int | None = None
    per: float = DAY

    def __post_init__(self) -> None:
        rules = {
            "refreshes or bytes_ is a number": self.refreshes is not None or self.bytes_ is not None,
            f"refreshes is from 1 to {COUNTED}": self.refreshes is None or 1 <= self.refreshes <= COUNTED,
            "bytes_ is at least 1": self.bytes_ is None or self.bytes_ >= 1,
            "per is above 0": self.per > 0,
        }
        check(self, rules)

    def wants(self, situation: Situation) -> str | None:
        return f"within the budget of {self._told}" if self._left(situation) else None

    def declines(self, situation: Situation) -> str:
        return f"the budget of {self._told} is used up"

    def __str__(self) -> str:
        return " and ".join(f"budget {amount}/{written(self.per)}" for amount in self._amounts)

    @property
    def _amounts(self) -> list[str]:
        counted = [] if self.refreshes is None else [str(self.refreshes)]
        return counted if self.bytes_ is None else [*counted, size_written(self.bytes_)]

    @property
    def _told(self) -> str:
        return f"{' and '.join(self._amounts)} per {spoken(self.per)}"

    def _left(self, situation: Situation) -> bool:
        since = situation.now - self.per
        made = sum(at > since for at in situation.refreshes)
        sent = sum(count for at, count in situation.sent if at > since)
        return (self.refreshes is None or made < self.refreshes) and (self.bytes_ is None or sent < self.bytes_)


@dataclass(frozen=True)
class AtLeastApart(Policy):
    """A guard: no refresh until so much time, or so many batches, passed since the last one."""

    seconds: float = 0.0
    batches: int = 0

    def __post_init__(self) -> None:
        rules = {
            "seconds is at least 0": self.seconds >= 0,
            "batches is at least 0": self.batches >= 0,
            "seconds or batches is above 0": self.seconds > 0 or self.batches > 0,
        }
        check(self, rules)

    def wants(self, situation: Situation) -> str | None:
        last = situation.refreshed_at
        if last is None:
            return "it is the first refresh"
        rested = situation.now - last >= self.seconds and situation.batches >= self.batches
        return "long enough after the last refresh" if rested else None

    def declines(self, situation: Situation) -> str:
        return f"the last refresh is less than {self._told} ago"

    def __str__(self) -> str:
        times = [] if not self.seconds else [f"apart {written(self.seconds)}"]
        return " and ".join(times if not self.batches else [*times, f"apart {self.batches} batches"])

    @property
    def _told(self) -> str:
        times = [] if not self.seconds else [spoken(self.seconds)]
        return " and ".join(times if not self.batches else [*times, _batches(self.batches)])


@dataclass(frozen=True)
class Confirmed(Policy):
    """A guard: drift was found in at least so many batches since the last refresh, or of the last `within` batches."""

    times: int = 2
    within: int | None = None  # None: since the last refresh

    def __post_init__(self) -> None:
        rules = {
            "times is at least 1": self.times >= 1,
            "within is at least times": self.within is None or self.within >= self.times,
        }
        check(self, rules)

    def wants(self, situation: Situation) -> str | None:
        found = self._found(situation)
        return f"drift was found {_times(found)}" if found >= self.times else None

    def declines(self, situation: Situation) -> str:
        return f"drift was found {_times(self._found(situation))}, and must be {_times(self.times)}"

    def __str__(self) -> str:
        return f"confirmed {self.times}" + ("" if self.within is None else f" of {self.within}")

    def _found(self, situation: Situation) -> int:
        since = 0 if self.within is None else situation.batches - self.within
        return sum(batch > since for batch in situation.alarms)


@dataclass(frozen=True)
class Allowed(Policy):
    """A guard: a function of yours says yes, such as one that knows the network is not metered."""

    ask: Callable[[], bool]
    name: str = ""  # what it is called in texts; that of the function where it is empty

    def wants(self, situation: Situation) -> str | None:
        return f"{self._name} allows it" if self.ask() else None

    def declines(self, situation: Situation) -> str:
        return f"{self._name} does not allow it"

    def __str__(self) -> str:
        return f"allowed {self._name}"

    @property
    def _name(self) -> str:
        return self.name or f"{self.ask.__module__}:{self.ask.__qualname__}"


@dataclass(frozen=True)
class OnCallback(Policy):
    """Refresh when a function of yours gives a reason for it; it is handed the situation."""

    reason: Callable[[Situation], str | None]

    def wants(self, situation: Situation) -> str | None:
        return self.reason(situation) or None


# amounts of time and bytes, as people write them


def written(seconds: float) -> str:
    """A time in the largest unit that it is a whole number of, as a policy's text has it: `7d`, `90min`, `0.5`."""
    whole = [(seconds / length, unit) for unit, length in UNITS.items() if unit != "s" and seconds % length == 0]
    return f"{whole[0][0]:g}{whole[0][1]}" if whole and seconds else f"{seconds:g}"


def spoken(seconds: float) -> str:
    """A time in its largest unit, rounded."""
    fits = next((unit for unit, length in UNITS.items() if seconds >= length and unit != "w"), "s")
    return f"{seconds / UNITS[fits]:.3g} {fits}"


def size_written(count: int) -> str:
    """So many bytes in the largest unit that they are a whole number of."""
    unit = next(unit for unit, size in SIZES.items() if count % size == 0)
    return f"{count // SIZES[unit]}{unit}"


def _batches(count: int) -> str:
    return "1 batch" if count == 1 else f"{count} batches"


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
