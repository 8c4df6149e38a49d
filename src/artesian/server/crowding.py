"""Who is connected, and who has to go: a silent connection never keeps another one out, and a probe always gets in."""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Hashable
from typing import Protocol

from artesian.errors import Busy
from artesian.server.settings import Settings

SPARE = 32  # connections beyond the limits that are let in: a probe may be among them


class Closable(Hashable, Protocol):
    """A connection that can be ended."""

    def evict(self) -> None:
        """End the connection, which waits for a request, to make room."""


class Crowd:
    """The connections of a server by address: those that wait for a request, the longest first, and busy ones."""

    def __init__(self, settings: Settings) -> None:
        self.most, self.most_of_one = settings.connections, settings.connections_per_address
        self.evicted = 0  # idle connections closed to make room
        self.bad = 0  # requests that were not HTTP
        self._idle: dict[str, dict[Closable, None]] = {}
        self._busy: Counter[str] = Counter()
        self._open = 0

    def __len__(self) -> int:
        return self._open

    def arrive(self, one: Closable, address: str) -> None:
        """A new connection. Beyond the limits, the one that has waited longest has to go."""
        self._open += 1
        self.rest(one, address)
        idle = self._idle[address]
        if len(idle) + self._busy[address] > self.most_of_one + SPARE:
            self._evict(address)
        elif self._open > self.most + SPARE:
            self._evict(max(self._idle, key=lambda name: len(self._idle[name])))

    def begin(self, one: Closable, address: str, is_probe: bool) -> Busy | None:
        """A request has arrived; what refuses it if too many are under way."""
        self._forget(one, address)
        if not is_probe and self._busy[address] >= self.most_of_one:
            return Busy("Too many requests of this address are under way", "Try again later")
        if not is_probe and self._busy.total() >= self.most:
            return Busy("Too many requests are under way", "Try again later")
        self._busy[address] += 1
        return None

    def end(self, address: str) -> None:
        """A request that began is over."""
        self._busy[address] -= 1
        if not self._busy[address]:
            del self._busy[address]

    def rest(self, one: Closable, address: str) -> None:
        """The connection waits for a request."""
        self._idle.setdefault(address, {})[one] = None

    def leave(self, one: Closable, address: str) -> None:
        """The connection is gone."""
        self._open -= 1
        self._forget(one, address)

    def _forget(self, one: Closable, address: str) -> None:
        if idle := self._idle.get(address):
            idle.pop(one, None)
            if not idle:
                del self._idle[address]

    def _evict(self, address: str) -> None:
        oldest = next(iter(self._idle[address]))
        self._forget(oldest, address)
        self.evicted += 1
        oldest.evict()


def address_of(peer: tuple[str, int] | None) -> str:
    """What limits count as one address: an IPv4 address, or the network of an IPv6 address."""
    if peer is None:
        return ""
    try:
        found = ipaddress.ip_address(peer[0].partition("%")[0])
    except ValueError:
        return peer[0][:100]
    if isinstance(found, ipaddress.IPv6Address):
        return str(found.ipv4_mapped or ipaddress.ip_network((found, 64), strict=False).network_address)
    return str(found)
