"""What the live page knows of one federation or run: bounded, and told as a whole or as what changed since.

A server notes what happens as it happens; a run folder is read into the same. The page has one renderer for both. Each
change has a mark: whoever watches remembers the newest mark it was sent, and asks for what came after it.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from math import isfinite
from typing import Any, Literal

from artesian.core import ClientId, ClusterId, Mixture
from artesian.dashboard.series import Series

RECENT = 500  # uploads whose staleness is shown
NOTICES = 60  # of one kind
MEMBERS = 2000  # that are shown: those who were heard of last
EXCHANGES = 40  # of one client
CURVES = 200  # those that had a new point last
MOVED = 0.3  # how much of a mixture has to change between two uploads to be a notice: total variation
Kind = Literal["drift", "aside", "alarm", "act", "clusters", "membership"]
Facts = dict[str, Any]


@dataclass(frozen=True)
class About:
    """What a page is about."""

    key: str  # tells sources of one page apart
    name: str
    algorithm: str
    clock: Literal["wall", "virtual"]  # are times seconds since 1970, or a simulation's?
    live: bool = True  # may more come?


@dataclass(frozen=True)
class Exchange:
    """One upload of a client, as the page shows it."""

    time: float
    client: ClientId
    number: int
    staleness: int | None  # None where it is not known any more
    mixture: Mixture | None = None
    before: float | None = None  # score before the last refresh that the client reports, or a run measured
    after: float | None = None  # score after it
    drift: float | None = None  # what the client reports of a change of its data; 0: none
    aside: str = ""  # why it was not folded

    @property
    def told(self) -> Facts:
        """Itself as the page gets it, without what is unknown."""
        own = {key: value for key, value in asdict(self).items() if value is not None and value != ""}
        return own | ({"mixture": rounded(self.mixture)} if self.mixture is not None else {})


class Chronicle:
    """Everything the page shows of one source. All methods may be called from any thread."""

    def __init__(self, about: About, step: float = 5.0) -> None:
        """`step` is the finest resolution of curves, in the unit of the source's clock."""
        self.about, self.step = about, step
        self._mark = 0
        self._lock = threading.RLock()
        self._series: dict[str, Series] = {}
        self._members: dict[ClientId, tuple[int, Facts]] = {}  # mark and row; the newest change is last
        self._gone: deque[tuple[int, ClientId]] = deque(maxlen=RECENT)
        self._exchanges: dict[ClientId, deque[Exchange]] = {}
        self._notices: dict[Kind, deque[tuple[int, Facts]]] = {}
        self._noticed = 0
        self._staleness: deque[int] = deque(maxlen=RECENT)
        self._tables: dict[str, tuple[int, Any]] = {}  # small things that are sent whole

    # what happens

    def upload(self, exchange: Exchange) -> None:
        """A client uploaded."""
        with self._lock:
            self._count("uploads", exchange.time, 1.0)
            if exchange.staleness is not None:
                self._staleness.append(exchange.staleness)
                self._tables["staleness"] = self._next(), None
            before = self._exchanges.pop(exchange.client, None) or deque(maxlen=EXCHANGES)
            self._note_drift(exchange, before[-1] if before else None)
            before.append(exchange)
            self._exchanges[exchange.client] = before
            if len(self._exchanges) > MEMBERS:
                del self._exchanges[next(iter(self._exchanges))]

    def measure(self, what: Literal["loss", "accuracy"], cluster: ClusterId, time: float, value: float) -> None:
        """A number of a cluster; what is not finite cannot be drawn."""
        if isfinite(value):
            with self._lock:
                self._count(f"{what}/{cluster}", time, value)

    def notice(self, kind: Kind, time: float, text: str, client: ClientId = "") -> None:
        """Something an operator should see."""
        with self._lock:
            self._noticed += 1
            told = {"number": self._noticed, "kind": kind, "time": time, "text": text, "client": client}
            self._notices.setdefault(kind, deque(maxlen=NOTICES)).append((self._next(), told))

    def member(self, client: ClientId, row: Mapping[str, Any]) -> None:
        """What is known of a member now."""
        with self._lock:
            self._members.pop(client, None)
            self._members[client] = self._next(), {"client": client, **row, **self._newest(client)}
            if len(self._members) > MEMBERS:
                self._gone.append((self._next(), next(iter(self._members))))
                del self._members[next(iter(self._members))]

    def forget(self, client: ClientId) -> None:
        """A member is no more, and neither is its history."""
        with self._lock:
            self._exchanges.pop(client, None)
            if self._members.pop(client, None) is not None:
                self._gone.append((self._next(), client))

    def table(self, name: str, value: Any) -> None:
        """Something small that is shown as it is now, such as the totals."""
        with self._lock:
            if self._tables.get(name, (0, None))[1] != value:
                self._tables[name] = self._next(), value

    # what it reports

    @property
    def mark(self) -> int:
        """That of the newest change."""
        return self._mark

    def facts(self, since: int = 0) -> Facts:
        """What changed after a mark; everything without one."""
        with self._lock:
            told: Facts = {"source": self.about.key, "mark": self._mark, "whole": not since}
            told |= {"about": asdict(self.about)} if not since else {}
            told |= {name: self._table(name, value) for name, (at, value) in self._tables.items() if at > since}
            changed = {name: series.since(since) for name, series in self._series.items()}
            told["series"] = {name: found for name, found in changed.items() if found is not None}
            told["members"] = [row for at, row in self._newest_members(since)]
            gone = (client for at, client in self._gone if at > since and client not in self._members)
            told["gone"] = list(gone) if since else []
            notices = [notice for held in self._notices.values() for at, notice in held if at > since]
            told["notices"] = sorted(notices, key=lambda notice: int(notice["number"]))
            return {key: value for key, value in told.items() if not since or value not in ([], {})}

    def history(self, client: ClientId) -> list[Facts]:
        """The last uploads of a client, the newest last."""
        with self._lock:
            return [exchange.told for exchange in self._exchanges.get(client, ())]

    # inside

    def _next(self) -> int:
        self._mark += 1
        return self._mark

    def _count(self, name: str, time: float, value: float) -> None:
        held = self._series.pop(name) if name in self._series else Series(self.step)
        self._series[name] = held  # the newest change is last
        held.add(time, value, self._next())
        if len(self._series) > CURVES:
            del self._series[next(iter(self._series))]

    def _newest(self, client: ClientId) -> Facts:
        """What the last uploads of a client add to its row."""
        known = self._exchanges.get(client)
        if not known:
            return {}
        row: Facts = {"last": known[-1].time, "staleness": known[-1].staleness or 0}
        scored = next((e for e in reversed(known) if e.before is not None and e.after is not None), None)
        if scored is not None:
            row |= {"before": scored.before, "after": scored.after}
        return row

    def _newest_members(self, since: int) -> Iterator[tuple[int, Facts]]:
        for at, row in reversed(self._members.values()):
            if at <= since:
                return
            yield at, row

    def _table(self, name: str, value: Any) -> Any:
        return distribution(self._staleness) if name == "staleness" else value

    def _note_drift(self, exchange: Exchange, before: Exchange | None) -> None:
        if exchange.drift:
            self.notice("drift", exchange.time, "reports that its data changed", exchange.client)
        elif before is not None and (way := moved(before.mixture, exchange.mixture)) >= MOVED:
            self.notice("drift", exchange.time, f"mixture moved by {way:.2f} since its last upload", exchange.client)


def moved(before: Mixture | None, after: Mixture | None) -> float:
    """How much of a mixture changed, from 0 to 1; nothing where one is not known."""
    if not before or not after:
        return 0.0
    return sum(abs(before.get(k, 0.0) - after.get(k, 0.0)) for k in {*before, *after}) / 2


def rounded(mixture: Mixture | None) -> dict[ClusterId, float] | None:
    """Shares as precise as a screen."""
    return None if mixture is None else {k: round(share, 3) for k, share in mixture.items()}


def distribution(staleness: Iterator[int] | deque[int]) -> list[tuple[str, int]]:
    """How many uploads had a staleness of 0, 1, 2, 3 to 4, 5 to 8, and so on."""
    counts = Counter(max(0, found - 1).bit_length() + 1 if found > 1 else found for found in staleness)
    return [(_bucket(place), counts[place]) for place in range(max(counts, default=-1) + 1)]


def _bucket(place: int) -> str:
    """The name of a bucket: place 2 holds 2, place 3 holds 3 to 4, place 4 holds 5 to 8."""
    if place < 3:
        return str(place)
    return f"{2 ** (place - 2) + 1}-{2 ** (place - 1)}"
