"""The deployment settings of a server: limits, and how it keeps its store. What is learnt is set in the federation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from artesian.errors import check
from artesian.storage.retention import ALL, Retention


@dataclass(frozen=True)
class Settings:
    """What a server allows, and how it keeps its store."""

    snapshot_every: int = 100  # folds between two snapshots
    keep_uploads: bool = False  # keep raw uploads after a snapshot stands for them
    retain: str = "1000 uploads, 4 GB"  # what is kept to roll back and forget: bounds that all hold, "all" or "none"
    measure: Literal["threads", "processes", "ray"] = "threads"  # who measures uploads
    measurers: int = 2  # uploads measured at once
    ray_address: str | None = None  # of a cluster; None: as RAY_ADDRESS says, or one of the server's own
    bytes_in_flight: int = 1 << 29  # of bodies and responses under way, all together
    part_bytes: int = 1 << 30  # of uploads that broke off, kept on disk to be continued
    connections: int = 1000  # at once; one that waits for a request makes room for a new one
    connections_per_address: int = 256  # of them; behind a proxy, as many as there may be in all
    requests_per_client: int = 8  # of one client at once, long polls included
    joins_per_minute: float = 600.0  # from one address
    refusals_per_minute: float = 300.0  # to one address; then 429 to whoever has not shown a valid credential
    slowest: float = 20_000.0  # bytes per second at which a body must arrive, and a response be read
    grace: float = 10.0  # seconds on top of that, and for the headers of a request
    uploads_per_minute: float | None = 60.0  # of one client, in the long run; 0 or None: as many as it likes
    upload_burst: int = 20  # uploads of one client at once, before it has to slow down
    draws_per_minute: float | None = 60.0  # of one client between its uploads; 0 or None: as many as it likes
    longest_wait: float = 60.0  # seconds of a long poll
    cors: tuple[str, ...] = ()  # origins whose pages may call the server
    page: bool = True  # a live page at / for whoever has an admin token
    watchers: int = 8  # browsers that follow the live page at once
    secure_cookie: bool = False  # the page's cookie travels over HTTPS only; with TLS or a proxy that says so, always
    log: Literal["json", "text", "off"] = "json"  # one line for every request, on standard error

    def __post_init__(self) -> None:
        rules = {
            "snapshot_every, measurers and connections are at least 1": min(
                self.snapshot_every, self.measurers, self.connections
            )
            >= 1,
            "connections_per_address and requests_per_client are at least 1": min(
                self.connections_per_address, self.requests_per_client
            )
            >= 1,
            "joins_per_minute and refusals_per_minute are at least 1": min(
                self.joins_per_minute, self.refusals_per_minute
            )
            >= 1,
            "part_bytes is at least 0": self.part_bytes >= 0,
            "bytes_in_flight, slowest and grace are positive": min(self.bytes_in_flight, self.slowest, self.grace) > 0,
            "uploads_per_minute is at least 0": self.uploads_per_minute is None or self.uploads_per_minute >= 0,
            "upload_burst is at least 1": self.upload_burst >= 1,
            "draws_per_minute is 0, or at least 1": not self.draws_per_minute or self.draws_per_minute >= 1,
            "ray_address has an effect only with measure = ray": self.ray_address is None or self.measure == "ray",
            "longest_wait is at least 0": self.longest_wait >= 0,
            "watchers is at least 1": self.watchers >= 1,
        }
        check(self, rules)
        Retention.of(self.retain)

    @property
    def retention(self) -> Retention:
        """How much of the past is kept."""
        return ALL if self.keep_uploads else Retention.of(self.retain)
