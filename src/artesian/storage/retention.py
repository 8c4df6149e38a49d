"""How much of the past a store keeps, so that an operator can go back to it: uploads, bytes, events."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from artesian.errors import SettingError

UNITS = {"bytes": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
BOUND = re.compile(r"(\d{1,15}) ?(uploads?|events?|bytes|kB|MB|GB|TB)")
PARTS = 8  # into which snapshots divide the past that is kept


@dataclass(frozen=True)
class Retention:
    """At most so many uploads, bytes of arrays and events before the newest snapshot; None: no bound."""

    uploads: int | None = None
    bytes: int | None = None
    events: int | None = None

    @classmethod
    def of(cls, text: str) -> Self:
        """From `all`, `none`, or bounds that must all hold: `1000 uploads, 4 GB`."""
        if text in ("all", "none"):
            return cls() if text == "all" else cls(0, 0, 0)
        bounds: dict[str, int] = {}
        for part in text.split(","):
            match = BOUND.fullmatch(part.strip())
            if match is None:
                raise SettingError(
                    f"retain is not an amount: {part.strip()!r}", 'Use "1000 uploads, 4 GB", "all" or "none"'
                )
            name = match[2] if match[2] in UNITS else match[2].rstrip("s") + "s"
            bounds["bytes" if name in UNITS else name] = int(match[1]) * UNITS.get(name, 1)
        return cls(**bounds)

    @property
    def unbounded(self) -> bool:
        """Whether everything is kept."""
        return self == Retention()

    def allows(self, uploads: int, size: int, events: int) -> bool:
        """Whether so much may be kept."""
        pairs = ((self.uploads, uploads), (self.bytes, size), (self.events, events))
        return all(most is None or many <= most for most, many in pairs)


ALL, NOTHING = Retention(), Retention(0, 0, 0)


@dataclass(frozen=True)
class Recorded:
    """What an event of the journal keeps on disk."""

    number: int
    client: str
    upload: bool
    names: tuple[str, ...]  # of its arrays
    size: int  # of them, in bytes


def kept_snapshots(
    taken: Mapping[int, int],
    past: Iterable[Recorded],
    last: int,
    retain: Retention,
    turns: Collection[int] = (),
) -> list[int]:
    """Which older snapshots stay: those from which all that came since is within bounds, and not too near together.

    `taken` says how many bytes the arrays of each take, by the event that it follows; those at `turns` may be near.
    """
    events, kept = list(past), list[int]()
    for at in sorted(taken):
        since = [event for event in events if event.number > at]
        size = sum(event.size for event in since) + sum(own for other, own in taken.items() if at <= other < last)
        if at < last and retain.allows(sum(event.upload for event in since), size, last - at):
            kept.append(at)
    return sorted({*_thinned(kept, last), *(at for at in kept if at in turns)})


def _thinned(kept: Sequence[int], last: int) -> list[int]:
    """The first, and of the others about one in every eighth of the way to the last."""
    found: list[int] = []
    for at in kept:
        if not found or at - found[-1] >= (last - found[0]) / PARTS:
            found.append(at)
    return found
