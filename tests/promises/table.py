"""How often each promise is put to the test, in one place; and the table that a run of them ends with."""

import os
from collections.abc import Iterable
from dataclasses import dataclass

import pytest

FULL = os.environ.get("ARTESIAN_PROMISES") == "full"
STRICT = os.environ.get("ARTESIAN_PROMISES_STRICT") == "1"


@dataclass(frozen=True)
class Row:
    """One line of the table: what is done, how often in the ordinary tests, how often before a release."""

    promise: str
    what: str
    quick: int
    full: int

    @property
    def count(self) -> int:
        return self.full if FULL else self.quick


ROWS = {
    "kills": Row("P1", "kill -9 of a server under 8 clients", 6, 200),
    "fail-points": Row("P1", "deaths of a server at a named fail point", 8, 24),
    "writers": Row("P1", "kill -9 of a process that writes a store", 50, 2000),
    "syncs": Row("P1", "acknowledgements whose system calls were traced", 20, 1000),
    "syncs-doctored": Row("P1", "servers with a sync left out, each seen", 3, 3),
    "identities": Row("P2", "uploads sent four times each, across restarts", 125, 5000),
    "refusals": Row("P3", "refused requests, of every kind of refusal", 80, 1600),
    "restarts": Row("P4", "restarts that gave the same bytes", 4, 100),
    "rebuilds": Row("P4", "rebuilds from the first event that gave the same bytes", 2, 20),
    "studies": Row("P4", "kill -9 of a server under 4 clients, with studies under way", 3, 50),
    "flood": Row("P6", "requests of one hostile client, ten at a time on each connection", 2000, 100_000),
    "slow": Row("P7", "connections that are silent, slow or never read", 60, 1200),
    "mutations-http": Row("P8", "mutated bodies sent to a server", 300, 10_000),
    "mutations-decode": Row("P8", "mutated bodies decoded in process", 2000, 200_000),
    "examples": Row("P9", "requests made up from the server's own description", 200, 6000),
    "credentials": Row("P10", "bad credentials on every route", 16, 16),
    "sequences": Row("P11", "sequences of acts under all credentials (20 or 50 steps)", 10, 200),
    "canaries": Row("P12", "secrets used everywhere and searched everywhere", 20, 200),
    "flips": Row("P13", "stores with a byte flipped", 50, 1000),
    "cuts": Row("P13", "stores with their log cut short", 50, 1000),
    "handshakes": Row("P14", "ways to open a connection to a server with TLS", 15, 15),
    "paths": Row("P15", "ids and numbers that look like paths", 100, 2000),
    "budgets": Row("P16", "sequences of 60 uploads of one member, made to do harm", 8, 200),
    "limits": Row("P17", "limits on file sizes under a running server", 6, 100),
    "disk": Row("P17", "fill points of a small disk", 0, 200),
    "backups": Row("P18", "backups of a server under 6 clients", 4, 50),
    "backups-snapshots": Row("P18", "backups while every upload takes a snapshot", 3, 50),
    "shutdowns": Row("P19", "SIGTERM under 4 clients and long polls", 3, 100),
    "stops": Row("P19", "SIGTERM at the moment a server says that it serves", 3, 50),
    "meta": Row("meta", "safeguards taken away, each missed by its promise", 30, 30),
    "flat": Row("P20", "uploads after which memory and files are as before", 300, 5000),
    "hostile": Row("P22", "runs with one hostile client of twenty", 16, 136),
    "floods": Row("P22", "runs in which one of twenty uploads a hundred times as often as the others", 2, 12),
    "forgotten": Row("P23", "uploads, after which one member of twenty was forgotten", 100, 500),
    "rollbacks": Row("P23", "rollbacks to an event drawn at random", 6, 200),
    "replaced": Row("P23", "uploads under way when the secret that began them was replaced", 3, 50),
    "acts": Row("P23", "members revoked between two requests, under load", 3, 50),
    "act-deaths": Row("P23", "deaths of a server at a named fail point of a rollback or a forgetting", 4, 14),
    "forgetting-load": Row("P23", "members forgotten while five clients upload", 1, 10),
    "formats": Row("P24", "stores of every format that gave the same replies", 7, 7),
    "formats-altered": Row("P24", "stores of every format replayed by altered code, each refused", 7, 7),
    "altered": Row("P24", "stores replayed by altered code, each refused", 4, 40),
    "silent": Row("P25", "silent sockets from eight addresses, beside pollers and one member's long polls", 1100, 5000),
    "forged": Row("P26", "acknowledgements altered or forged", 300, 20_000),
    "start": Row("start", "starts of the server by its command", 1, 1),
}


@pytest.fixture
def promise(request):
    """`promise("kills")` says how often, and puts this test's outcome into that row of the table."""

    def count(key: str) -> int:
        request.node.user_properties.append(("promise", key))
        return ROWS[key].count

    return count


@pytest.fixture
def figure(request):
    """`figure("1.2 s to start")` is shown in the table."""
    return lambda text: request.node.user_properties.append(("figure", text))


def lacks(what: str) -> None:
    """This machine cannot run the test: skipped and listed, or failed where everything has to run."""
    pytest.fail(f"not run: {what}") if STRICT else pytest.skip(what)


def needs(holds: object, what: str) -> None:
    """The test needs this of the machine."""
    if not holds:
        lacks(what)


def lines(reports: Iterable[pytest.TestReport]) -> list[str]:
    """The table of a run: promise, what was done, count, failures, seconds, figures; then what was not run."""
    failures, seconds, figures, skipped = {}, {}, {}, []
    for report in reports:
        told = dict(report.user_properties)
        key = told.get("promise")
        if key is None:
            continue
        if report.skipped:
            skipped.append(f"{ROWS[key].promise} {ROWS[key].what}: {report.longrepr[2].removeprefix('Skipped: ')}")
            continue
        if report.failed or report.when == "call":
            failures[key] = failures.get(key, 0) + report.failed
        if report.when == "call":
            seconds[key] = seconds.get(key, 0.0) + report.duration
            figures.setdefault(key, []).extend(text for name, text in report.user_properties if name == "figure")
    rows = [("promise", "what was done", "count", "failures", "seconds", "")]
    for key in (key for key in ROWS if key in failures):
        row, more = ROWS[key], "; ".join(figures.get(key, ()))
        rows.append((row.promise, row.what, f"{row.count:,}", str(failures[key]), f"{seconds.get(key, 0.0):.1f}", more))
    widths = [max(len(row[i]) for row in rows) for i in range(6)]
    text = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return [*text, *(f"not run: {line}" for line in skipped)] if len(rows) > 1 or skipped else []
