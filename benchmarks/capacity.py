"""What a server can take: uploads a second by model, cores and measurers, with memory and disk; and who waits for whom.

Run `python benchmarks/capacity.py`; `--quick` tries it out. Every row is a fresh `artesian serve`, a fresh store and
a process of clients that replay prepared uploads over loopback (see `service.py`, whose federations these are). Memory
is the sum of what the server and its measurers hold, at its highest; disk is what the server writes for an upload, and
what its store holds of it until a snapshot drops it.

The second table is how a server grows with its members: each is remembered, and a snapshot writes all of them down. The
third is about everybody else: one process asks for `/healthz` and, as a client that has nothing to send,
for its task, again and again, while others upload 45 MB models. An answer "unchanged" is a few bytes; a draw is the
whole model.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from measuring import HERE, MARK, Sampler, cores, machine, number, say, table
from service import LIMIT, _address, _disk, _end
from service_server import PROXY, ROOM, SIZE

from artesian.execution.threads import ONE_THREAD

EVERY = 0.02  # seconds between two small requests


@dataclass(frozen=True)
class Case:
    """One row: what is served, and by whom uploads are measured."""

    size: str
    way: str
    measure: str = "threads"
    measurers: int = 2
    cores: int = 2
    clients: int = 8

    @property
    def options(self) -> list[str]:
        return ["--measure", self.measure, "--measurers", str(self.measurers)]


CASES = (
    Case("40 kB", "null", cores=1),
    Case("40 kB", "null"),
    Case("40 kB", "cdfl"),
    Case("40 kB", "cdfl", "processes"),
    Case("2.3 MB", "null", cores=1),
    Case("2.3 MB", "null"),
    Case("2.3 MB", "cdfl", cores=1),
    Case("2.3 MB", "cdfl"),
    Case("2.3 MB", "cdfl", "processes", 1),
    Case("2.3 MB", "cdfl", "processes"),
    Case("2.3 MB", "cnn", measurers=1),
    Case("2.3 MB", "cnn"),
    Case("2.3 MB", "cnn", "processes", 1),
    Case("2.3 MB", "cnn", "processes"),
    Case("45 MB", "null", clients=4),
    Case("45 MB", "cdfl", clients=4),
    Case("45 MB", "cdfl", "processes", clients=4),
)
BESIDE = (
    Case("45 MB", "null", clients=4),
    Case("45 MB", "cdfl", clients=4),
    Case("45 MB", "cdfl", "processes", clients=4),
)


@dataclass(frozen=True)
class Served:
    """A server that runs."""

    port: int
    token: str
    pid: int
    store: Path
    sampler: Sampler

    def written(self) -> int:
        """Bytes the server has sent to its disk."""
        lines = Path(f"/proc/{self.pid}/io").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("write_bytes"))


@contextmanager
def serving(case: Case, folder: Path, samples: int) -> Iterator[Served]:
    """A fresh server, on so many cores, watched."""
    mark, store, log = uuid.uuid4().hex, folder / "store", folder / "log"
    command = [sys.executable, "-m", "artesian.cli", "serve", f"service_server:{case.way}", "--store", str(store)]
    command += ["--show-token", "--port", "0", "--set", f"bytes_in_flight={ROOM}", "--set", "log=off"]
    command += ["--set", "uploads_per_minute=0", *case.options]
    allowed = ",".join(map(str, sorted(os.sched_getaffinity(0))[: case.cores]))
    sampler = Sampler(mark)
    with log.open("w") as said:
        process = subprocess.Popen(
            ["taskset", "-c", allowed, *command],
            cwd=HERE,
            env=environment(case.size, samples) | {MARK: mark},
            stdout=said,
            stderr=said,
        )
    try:
        with sampler:
            port, token = _address(process, log)
            yield Served(port, token, process.pid, store, sampler)
    finally:
        _end(process)
        shutil.rmtree(store, ignore_errors=True)


def environment(size: str, samples: int) -> dict[str, str]:
    """One size, and the surroundings of workers."""
    return {**os.environ, **ONE_THREAD, SIZE: size, PROXY: str(samples)}


def load(case: Case, served: Served, seconds: float, samples: int) -> subprocess.Popen[str]:
    """The clients, as a process."""
    order: dict[str, Any] = {"size": case.size, "kind": "service", "port": served.port, "token": served.token}
    order |= {"clients": case.clients, "seconds": seconds, "least": 1, "most": LIMIT}
    return subprocess.Popen(
        [sys.executable, str(HERE / "service_load.py"), json.dumps(order)],
        env=environment(case.size, samples),
        stdout=subprocess.PIPE,
        text=True,
    )


def told(process: subprocess.Popen[str]) -> dict[str, float]:
    """What the clients saw."""
    out, _ = process.communicate(timeout=4 * LIMIT)
    if process.returncode:
        raise SystemExit("a measurement failed")
    found: dict[str, float] = json.loads(out)
    return found


def throughput(case: Case, folder: Path, seconds: float, samples: int) -> list[str]:
    """The row of a case."""
    say(f"{case.size}, {case.way}, {case.measurers} {case.measure}, {case.cores} cores")
    with serving(case, folder, samples) as served:
        before = served.written()
        found = told(load(case, served, seconds, samples))
        uploads = _uploads(served.store)
        disk = (served.written() - before) / uploads / 1e6
        held = sum(path.stat().st_size for path in served.store.rglob("*") if path.is_file()) / 1e6
        peak = served.sampler.peak_mb
    figures = [number(value) for value in (found["rate"], found["p50"], found["p99"], peak, disk, held)]
    return [case.size, case.way, case.measure, str(case.measurers), str(case.cores), *figures, str(uploads)]


def _uploads(store: Path) -> int:
    import sqlite3

    database = sqlite3.connect(f"file:{store / 'artesian.db'}?mode=ro", uri=True)
    try:
        found: int = database.execute('SELECT count(*) FROM events WHERE record LIKE \'%"kind":"upload"%\'').fetchone()[
            0
        ]
        return found
    finally:
        database.close()


# how it grows with its members


def members(count: int, folder: Path) -> list[str]:
    """The row of a federation with so many members who all have their first task."""
    say(f"{count} members")
    out = subprocess.run(
        [sys.executable, str(Path(__file__).resolve()), "--members", str(count), "--folder", str(folder)],
        env=environment("40 kB", 0),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    ).stdout
    found = json.loads(out)
    return [f"{count:,}", *(number(found[key]) for key in ("resident", "snapshot", "computing", "record", "start"))]


def grow(count: int, folder: Path) -> dict[str, float]:
    """What so many members cost: resident MB, seconds of a snapshot, MB, and seconds to start from it."""
    from service_server import null

    from artesian.server.service import Service
    from artesian.storage.store import Store

    served = null()
    store = Store(folder / "members", served.identity)
    service = Service.open(served, store)
    service.coordinator.record = lambda _: None  # the snapshot stands for them
    before = _resident()
    for i in range(count):
        service.coordinator.join(f"client-{i:08d}", 100)
    resident = _resident() - before
    began, worked = time.perf_counter(), time.process_time()
    store.save(service.coordinator.snapshot(tasks=False))
    snapshot, computing = time.perf_counter() - began, time.process_time() - worked
    record = sum(path.stat().st_size for path in store.folder.glob("artesian.db*")) / 1e6
    service.close()
    began = time.perf_counter()
    Service.open(served, Store(folder / "members", served.identity)).close()
    found = {"resident": resident, "snapshot": snapshot, "computing": computing, "record": record}
    return found | {"start": time.perf_counter() - began}


def _resident() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


# who waits for whom


class Bystander(threading.Thread):
    """Asks for the same thing again and again, on one connection; `seen` are its latencies."""

    def __init__(self, served: Served, path: str, headers: dict[str, str], every: float) -> None:
        super().__init__()
        self.connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=LIMIT)
        self.path, self.headers, self.every = path, headers, every
        self.seen: list[float] = []
        self.stop, self.failure = threading.Event(), ""

    def run(self) -> None:
        buffer = bytearray(1 << 18)
        try:
            while not self.stop.wait(self.every):
                began = time.perf_counter()
                self.connection.request("GET", self.path, headers=self.headers)
                answer = self.connection.getresponse()
                while answer.readinto(buffer):  # piece by piece, or it would hold up the others of this process
                    pass
                self.seen.append(time.perf_counter() - began)
                if answer.status >= 400:
                    raise ValueError(f"status {answer.status}")
        except Exception as error:
            self.failure = f"{type(error).__name__}: {error}"
        finally:
            self.connection.close()

    def end(self) -> list[float]:
        self.stop.set()
        self.join()
        if self.failure:
            raise SystemExit(f"a bystander failed: {self.failure}")
        return self.seen


def member(served: Served) -> tuple[str, dict[str, str], str]:
    """A client that joined and has nothing to send: its address, its headers, and the tag of its task."""
    name, secret = "bystander", "b" * 32
    connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=LIMIT)
    body = json.dumps({"samples": 100, "secret": secret})
    connection.request("PUT", f"/v1/clients/{name}", body, {"authorization": f"Bearer {served.token}"})
    answer = connection.getresponse()
    answer.read()
    connection.close()
    return f"/v1/clients/{name}/task", {"authorization": f"Bearer {secret}"}, answer.headers["etag"]


def beside(case: Case, folder: Path, seconds: float, samples: int) -> list[list[str]]:
    """The rows of small requests, at rest and while others upload."""
    say(f"beside {case.size}, {case.way}, {case.measurers} {case.measure}")
    rows = []
    with serving(case, folder, samples) as served:
        path, headers, tag = member(served)
        for busy in (False, True):
            asking = [
                Bystander(served, "/healthz", {}, EVERY),
                Bystander(served, path, headers | {"if-none-match": tag}, EVERY),
                Bystander(served, path, headers, 0.5),
            ]
            clients = load(case, served, seconds, samples) if busy else None
            if clients is not None:
                _until_folded(served)
            for one in asking:
                one.start()
            rate = number(told(clients)["rate"]) if clients is not None else "none"
            if clients is None:
                time.sleep(min(seconds, 3.0))
            for name, one in zip(("health", "task, unchanged", "draw of 45 MB"), asking, strict=True):
                seen = np.array(one.end()) * 1000
                figures = [number(float(np.percentile(seen, q))) for q in (50, 99, 100)]
                rows.append([case.way, case.measure, rate, name, *figures, str(len(seen))])
    return rows


def _until_folded(served: Served) -> None:
    """The clients have begun."""
    end = time.monotonic() + LIMIT
    while not _uploads(served.store) and time.monotonic() < end:
        time.sleep(0.05)


HEAD = [
    "model",
    "way",
    "measure",
    "measurers",
    "cores",
    "uploads/s",
    "p50 ms",
    "p99 ms",
    "memory MB",
    "written MB",
    "store MB",
    "uploads",
]
MEMBERS_HEAD = ["members", "memory MB", "snapshot s", "computing s", "database MB", "stop and start s"]
BESIDE_HEAD = ["way", "measure", "uploads/s", "request", "p50 ms", "p99 ms", "longest ms", "requests"]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two short rows; writes no results")
    parser.add_argument("--only", choices=["throughput", "members", "beside"], help="one of the three tables")
    parser.add_argument("--members", type=int, help="only grow so many members in this process, and say what they cost")
    parser.add_argument("--seconds", type=float, default=6.0, help="of each measurement, at least (default 6)")
    parser.add_argument("--samples", type=int, default=250, help="of each of the four proxy sets (default 250)")
    parser.add_argument("--folder", type=Path, default=HERE, help="on a disk, for the stores (default: beside this)")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "capacity.md", help="where results are written")
    return parser.parse_args()


def main() -> None:
    options = _options()
    if options.members is not None:
        with tempfile.TemporaryDirectory(prefix=".members-", dir=options.folder.resolve()) as folder:
            print(json.dumps(grow(options.members, Path(folder))))
        return
    cases, others = (CASES[4:5], BESIDE[:1]) if options.quick else (CASES, BESIDE)
    seconds = 1.0 if options.quick else options.seconds
    sections = [
        "# What a server can take\n",
        machine("benchmarks/capacity.py"),
        f"Stores on {_disk(options.folder.resolve())}.",
    ]
    with tempfile.TemporaryDirectory(prefix=".capacity-", dir=options.folder.resolve()) as folder:
        place = Path(folder)
        if options.only in (None, "throughput"):
            rows = [throughput(case, place, seconds, options.samples) for case in _fitting(cases)]
            sections.append("## Uploads a second\n\n" + table(HEAD, rows))
            print(sections[-1], flush=True)
        if options.only in (None, "members"):
            counts = (1000,) if options.quick else (1000, 10_000)
            sections.append("## Members\n\n" + table(MEMBERS_HEAD, [members(count, place) for count in counts]))
            print(sections[-1], flush=True)
        if options.only in (None, "beside"):
            rows = [row for case in others for row in beside(case, place, seconds, options.samples)]
            sections.append("## Small requests beside 45 MB uploads\n\n" + table(BESIDE_HEAD, rows))
            print(sections[-1], flush=True)
    if not options.quick and options.only is None:
        options.out.write_text("\n\n".join(sections) + "\n")
        say(f"written to {options.out}")


def _fitting(cases: Sequence[Case]) -> list[Case]:
    """Those this machine has the cores for."""
    return [case for case in cases if case.cores <= cores()]


if __name__ == "__main__":
    main()
