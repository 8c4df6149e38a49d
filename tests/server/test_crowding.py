"""Who has to go when too many are connected, and what counts as one address; rates."""

import pytest

from artesian.errors import Busy
from artesian.server import rates
from artesian.server.crowding import SPARE, Crowd, address_of
from artesian.server.rates import Rate
from artesian.server.settings import Settings


class Link:
    """A connection that notes whether it was closed."""

    def __init__(self, crowd: Crowd, address: str) -> None:
        self.crowd, self.address, self.closed = crowd, address, False
        crowd.arrive(self, address)

    def evict(self) -> None:
        self.closed = True
        self.crowd.leave(self, self.address)


def test_the_one_that_waited_longest_of_the_most_crowded_address_goes() -> None:
    crowd = Crowd(Settings(connections=4, connections_per_address=1000))
    honest = Link(crowd, "a")
    silent = [Link(crowd, "b") for _ in range(3 + SPARE)]
    assert not any(link.closed for link in silent)
    Link(crowd, "a")
    assert [link.closed for link in (honest, *silent[:2])] == [False, True, False]
    assert (len(crowd), crowd.evicted) == (4 + SPARE, 1)


def test_an_address_makes_room_among_its_own() -> None:
    crowd = Crowd(Settings(connections=1000, connections_per_address=2))
    other, mine = Link(crowd, "a"), [Link(crowd, "b") for _ in range(3 + SPARE)]
    assert [other.closed, mine[0].closed, mine[1].closed] == [False, True, False]


def test_busy_connections_stay_and_probes_get_in() -> None:
    crowd = Crowd(Settings(connections=3, connections_per_address=2))
    busy = [Link(crowd, "a"), Link(crowd, "a"), Link(crowd, "b")]
    assert [crowd.begin(link, link.address, False) for link in busy] == [None, None, None]
    assert isinstance(crowd.begin(Link(crowd, "a"), "a", False), Busy)
    assert isinstance(crowd.begin(Link(crowd, "c"), "c", False), Busy)
    assert crowd.begin(Link(crowd, "a"), "a", True) is None
    crowd.end("a")
    crowd.end("a")
    assert crowd.begin(Link(crowd, "a"), "a", False) is None
    for _ in range(100):
        Link(crowd, "a")
    assert not any(link.closed for link in busy)
    assert len(crowd) <= 6 + SPARE


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        (None, ""),
        (("10.1.2.3", 5), "10.1.2.3"),
        (("2001:db8:1:2:3:4:5:6", 5), "2001:db8:1:2::"),
        (("fe80::1%eth0", 5), "fe80::"),
        (("::ffff:10.1.2.3", 5), "10.1.2.3"),
        (("testclient", 5), "testclient"),
    ],
)
def test_an_address_is_one_host_or_one_network(peer, address) -> None:
    assert address_of(peer) == address


def test_an_allowance_fills_up_again_within_a_minute(monkeypatch) -> None:
    now = [0.0]
    rate = Rate(60, lambda: now[0])
    for _ in range(60):
        rate.take("a", "too often")
    with pytest.raises(Busy, match="too often"):
        rate.take("a", "too often")
    assert not rate.is_spent("b")
    rate.spend("a")
    now[0] = 1.0
    rate.take("a", "too often")
    assert rate.is_spent("a")
    monkeypatch.setattr(rates, "MOST", 3)
    now[0] = 120.0
    for name in "bcdef":
        rate.spend(name)
    assert len(rate._left) <= 5 and "a" not in rate._left
