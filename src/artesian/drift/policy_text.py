"""Policies as text, for the command line and TOML files: `(drift or age 7d) and budget 10/day`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from artesian.drift.policy import AllOf, AnyOf, Policy, Unless
from artesian.drift.rules import (
    DAY,
    SIZES,
    UNITS,
    Again,
    Allowed,
    Always,
    AtLeastApart,
    Budget,
    Confirmed,
    Every,
    Never,
    OnAge,
    OnDrift,
    OnRequest,
    OnSamples,
)
from artesian.errors import SettingError, nearest
from artesian.plugins import imported

WORDS = re.compile(r"[()]|[^\s()]+")
JOINING = ("and", "or", "not", "(", ")")
AMOUNT = re.compile(r"(\d+(?:\.\d+)?)([A-Za-z]*)")
PERIODS = {"minute": 60.0, "hour": 3600.0, "day": DAY, "week": 7 * DAY}
Arguments = Sequence[str]


def policy(text: str) -> Policy:
    """The policy that a text describes, such as `drift` or `(drift or age 7d) and budget 10/day`."""
    if not isinstance(text, str):
        raise SettingError(f"A policy is a text, not {text!r}", 'Write it as "drift or age 7d"')
    reader = _Reader(text)
    found = reader.any_of()
    if reader.word:
        raise reader.complaint(f"{reader.word!r} comes where and, or, or nothing is expected")
    return found


class _Reader:
    """The words of a text, read from left to right: `and` binds more strongly than `or`."""

    def __init__(self, text: str) -> None:
        self.text, self._words = text, WORDS.findall(text)

    @property
    def word(self) -> str:
        """The next one; empty at the end."""
        return self._words[0] if self._words else ""

    def any_of(self) -> Policy:
        rules = [self.all_of()]
        while self._took("or"):
            rules.append(self.all_of())
        return rules[0] if len(rules) == 1 else AnyOf(tuple(rules))

    def all_of(self) -> Policy:
        rules = [self.one()]
        while self._took("and"):
            rules.append(self.one())
        return rules[0] if len(rules) == 1 else AllOf(tuple(rules))

    def one(self) -> Policy:
        """A rule with its arguments, or what stands in brackets."""
        if self._took("not"):
            return Unless(self.one())
        if self._took("("):
            inside = self.any_of()
            if not self._took(")"):
                raise self.complaint("a closing bracket is missing")
            return inside
        return self._rule()

    def complaint(self, problem: str, remedy: str = "") -> SettingError:
        known = f"Rules are {', '.join(sorted(RULES))}; join them with and, or, not and brackets"
        return SettingError(f"The policy {self.text!r} is not understood: {problem}", remedy or known)

    def _rule(self) -> Policy:
        if not self.word or self.word in JOINING:
            raise self.complaint(f"a rule is missing before {self.word!r}" if self.word else "a rule is missing")
        name = self._words.pop(0)
        if name not in RULES:
            raise self.complaint(f"there is no rule {name!r}", nearest(name, RULES))
        arguments = []
        while self.word and self.word not in JOINING:
            arguments.append(self._words.pop(0))
        try:
            return RULES[name](arguments)
        except ValueError as error:
            given = " ".join([name, *arguments])
            raise self.complaint(f"{given!r} ({error})", f"Write it as {FORMS[name]}") from None

    def _took(self, word: str) -> bool:
        return self.word == word and bool(self._words.pop(0))


def _plain(rule: Callable[[], Policy]) -> Callable[[Arguments], Policy]:
    def made(arguments: Arguments) -> Policy:
        if arguments:
            raise ValueError(f"{arguments[0]!r} is one word too many")
        return rule()

    return made


def _age(arguments: Arguments) -> Policy:
    return OnAge(seconds_in(_only(arguments)))


def _again(arguments: Arguments) -> Policy:
    return Again(_whole(_only(arguments)))


def _samples(arguments: Arguments) -> Policy:
    return OnSamples(_whole(_only(arguments)))


def _every(arguments: Arguments) -> Policy:
    number, *unit = arguments or [""]
    if unit not in ([], ["batches"], ["batch"]):
        raise ValueError(f"{unit[0]!r} is not batches")
    return Every(_whole(number))


def _budget(arguments: Arguments) -> Policy:
    amount, slash, per = _only(arguments).partition("/")
    if not slash:
        raise ValueError(f"{amount!r} does not say per what")
    seconds = PERIODS[per] if per in PERIODS else seconds_in(per)
    if amount.isdecimal():
        return Budget(refreshes=int(amount), per=seconds)
    return Budget(bytes_=round(_amount(amount, SIZES, "bytes")), per=seconds)


def _apart(arguments: Arguments) -> Policy:
    if len(arguments) == 2 and arguments[1] in ("batches", "batch"):
        return AtLeastApart(batches=_whole(arguments[0]))
    return AtLeastApart(seconds=seconds_in(_only(arguments)))


def _confirmed(arguments: Arguments) -> Policy:
    if len(arguments) == 3 and arguments[1] == "of":
        return Confirmed(_whole(arguments[0]), _whole(arguments[2]))
    return Confirmed(_whole(_only(arguments)))


def _allowed(arguments: Arguments) -> Policy:
    name = _only(arguments)
    return Allowed(imported(name, {}, "function"), name)


def _only(arguments: Arguments) -> str:
    if len(arguments) != 1:
        raise ValueError("it takes one word" if arguments else "it lacks an amount")
    return arguments[0]


def _whole(text: str) -> int:
    if not text.isdecimal():
        raise ValueError(f"{text!r} is not a whole number")
    return int(text)


def seconds_in(text: str) -> float:
    """A time such as `7d`, `12h`, `30min` or `90s`; a number alone is seconds, or units of virtual time."""
    return _amount(text, UNITS, "time")


def _amount(text: str, units: Mapping[str, float], what: str) -> float:
    found = AMOUNT.fullmatch(text)
    if not found or (found[2] and found[2] not in units):
        raise ValueError(f"{text!r} is not {what} in {', '.join(units)}")
    return float(found[1]) * units.get(found[2], 1.0)


RULES: dict[str, Callable[[Arguments], Policy]] = {
    "drift": _plain(OnDrift),
    "again": _again,
    "age": _age,
    "samples": _samples,
    "every": _every,
    "request": _plain(OnRequest),
    "always": _plain(Always),
    "never": _plain(Never),
    "budget": _budget,
    "apart": _apart,
    "confirmed": _confirmed,
    "allowed": _allowed,
}
FORMS = {
    "drift": "drift",
    "again": "again 3",
    "age": "age 7d",
    "samples": "samples 500",
    "every": "every 5",
    "request": "request",
    "always": "always",
    "never": "never",
    "budget": "budget 10/day or budget 50MB/week",
    "apart": "apart 6h or apart 3 batches",
    "confirmed": "confirmed 2 or confirmed 2 of 10",
    "allowed": "allowed MODULE:NAME",
}
