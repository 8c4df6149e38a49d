"""The service under load: refreshes per second and latencies, and what of a refresh is the server's own.

Run `python benchmarks/service.py`; `--quick` tries it out in a minute or two. Every figure comes from a fresh server
process with a fresh store, and a process of clients that replay prepared uploads over loopback, so no training is
timed. The ways are measured in turn, three times over, and the tables show medians. They are:

* `cdfl`: CDFL with four clusters behind `artesian serve`. Estimating is real: a numpy perceptron with exactly the
  parameters that travel looks at four proxy sets (`--samples` each). It multiplies once per parameter and sample;
  a convolutional network of the same size multiplies several times as often, so this is the hard case for the goal.
* `cnn`: the same with the benchmark's convolutional network in torch, of 582,026 parameters too, and four proxy sets of
  1,000 images: what CDFL costs with a real network. Left out where torch is missing.
* `null`: an algorithm that measures and folds nothing, behind `artesian serve`; `null, no store`: without a store.
* `echo`: the smallest application that reads a body in full and sends it back.

The server's own share is what a refresh takes at one client beyond estimating (`measure` for the upload, and looking
anew at the clusters it changed) done in a loop without a server.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from service_server import PROXY, ROOM, SIZE, Spent, model_of

from artesian.execution.threads import ONE_THREAD

HERE = Path(__file__).resolve().parent
WAYS = ("cdfl", "cnn", "null", "null, no store", "echo")
SERVED = ("cdfl", "cnn", "null")  # by `artesian serve`
CLIENTS = {"2.3 MB": (1, 8, 64), "45 MB": (1, 8, 16)}
GOAL = 0.25  # of a refresh, at 2.3 MB
LIMIT = 90.0  # seconds no single measurement goes beyond
PACKAGES = ("artesian", "numpy", "safetensors", "starlette", "fastapi", "uvicorn", "sqlalchemy")
Found = dict[str, float]


@dataclass(frozen=True)
class Bench:
    """How to measure, and where the stores are."""

    folder: Path
    samples: int
    seconds: float
    repeats: int
    least: int

    def environment(self, size: str) -> dict[str, str]:
        """The same for all processes: one size, and the surroundings of workers, so that memory costs all alike."""
        return {**os.environ, **ONE_THREAD, SIZE: size, PROXY: str(self.samples)}

    def load(self, size: str, way: str, clients: int) -> Found:
        """A fresh server, and so many clients."""
        with self.serving(size, way) as (port, token):
            return self.replay(size, way, clients, port, token)

    def replay(self, size: str, way: str, clients: int, port: int, token: str, least: int | None = None) -> Found:
        """What so many clients see of a server."""
        kind = "echo" if way == "echo" else "service"
        order: dict[str, Any] = {"size": size, "kind": kind, "port": port, "token": token}
        order |= {
            "clients": clients,
            "seconds": self.seconds,
            "least": least or (self.least if clients <= 8 else 1),
            "most": LIMIT,
        }
        return self.ask(size, [str(HERE / "service_load.py"), json.dumps(order)])

    def estimate(self, size: str, way: str) -> Found:
        """The estimation alone."""
        return self.ask(size, [str(HERE / "service_server.py"), "estimate", way, str(self.seconds)])

    def profile(self, size: str) -> dict[str, Any]:
        """The parts of every refresh of one client, and how long the client thought it took."""
        out = self.folder / "profile.json"
        with self.serving(size, "cdfl", out) as (port, token):
            seen = self.replay(size, "cdfl", 1, port, token, self.least * 50)
        return {**json.loads(out.read_text()), "seen": seen}

    def ask(self, size: str, command: list[str]) -> Found:
        """The answer of a process that ends by itself."""
        done = subprocess.run(
            [sys.executable, *command],
            env=self.environment(size),
            stdout=subprocess.PIPE,
            text=True,
            timeout=4 * LIMIT,
        )
        if done.returncode:
            raise SystemExit(f"a measurement failed: {' '.join(command)[:200]}")
        found: Found = json.loads(done.stdout)
        return found

    @contextmanager
    def serving(self, size: str, way: str, profile: Path | None = None) -> Iterator[tuple[int, str]]:
        """A server process: its port, and the token to join with."""
        store, log = self.folder / "store", self.folder / "log"
        script = str(HERE / "service_server.py")
        serve = ["serve", f"service_server:{way}", "--store", str(store), "--show-token", "--port", "0"]
        serve += ["--set", f"bytes_in_flight={ROOM}", "--set", "uploads_per_minute=0"]
        if profile:
            command = [script, "profile", str(profile), *serve]
        elif way in SERVED:
            command = ["-m", "artesian.cli", *serve]
        else:
            command = [script, "echo" if way == "echo" else "bare"]
        with log.open("w") as said:
            process = subprocess.Popen(
                [sys.executable, *command], cwd=HERE, env=self.environment(size), stdout=said, stderr=said
            )
        try:
            yield _address(process, log)
        finally:
            _end(process)
            shutil.rmtree(store, ignore_errors=True)


def _address(process: subprocess.Popen[bytes], log: Path) -> tuple[int, str]:
    """The port a server says it listens at, and its enrolment token."""
    until = time.monotonic() + LIMIT
    while time.monotonic() < until and process.poll() is None:
        words = log.read_text().split()
        address = next((word for word in words if word.startswith("http://127.0.0.1:")), "")
        if address and log.read_text().endswith("\n"):
            token = next((word for word in words if word.startswith("artesian_enrol_")), "")
            return int(address.rpartition(":")[2]), token
        time.sleep(0.05)
    raise SystemExit(f"a server did not start:\n{log.read_text()[-2000:]}")


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ask a server to stop, and see that it does."""
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(LIMIT)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


# the tables


def measure(bench: Bench, size: str, counts: tuple[int, ...]) -> str:
    """All ways in turn, again and again: the section of one size."""
    runs: dict[tuple[str, int], list[Found]] = {}
    ways = WAYS if size == "2.3 MB" and find_spec("torch") else tuple(way for way in WAYS if way != "cnn")
    alone: dict[str, list[Found]] = {way: [] for way in ("cdfl", "cnn") if way in ways}
    for repeat in range(bench.repeats):
        for clients in counts:
            for way in _measured(ways, clients):
                _say(f"{size}, {way}, {clients} clients, run {repeat + 1} of {bench.repeats}")
                runs.setdefault((way, clients), []).append(bench.load(size, way, clients))
        for way, found in alone.items():
            _say(f"{size}, the estimation of {way} alone, run {repeat + 1} of {bench.repeats}")
            found.append(bench.estimate(size, way))
    rows = [_row(way, clients, runs[way, clients]) for way in ways for clients in counts if (way, clients) in runs]
    head = ["way", "clients", "refreshes/s", "spread", "p50 ms", "spread", "p99 ms", "refreshes timed"]
    title = f"## {size}: {model_of(size).layout.size:,} parameters\n"
    shares = [line for way, found in alone.items() for line in ["", *_share(way, size, counts, runs, found)]]
    return "\n".join([title, _table(head, rows), *shares])


def _measured(ways: Sequence[str], clients: int) -> list[str]:
    """The network looks at two uploads a second at most: beyond 8 clients, only its queue would be measured."""
    return [way for way in ways if way != "cnn" or clients <= 8]


def _row(way: str, clients: int, found: list[Found]) -> list[str]:
    rate, p50, p99 = ([run[key] for run in found] for key in ("rate", "p50", "p99"))
    figures = [_number(_median(rate)), _spread(rate), _number(_median(p50)), _spread(p50), _number(_median(p99))]
    return [way, str(clients), *figures, str(sum(int(run["count"]) for run in found))]


def _share(
    estimated: str, size: str, counts: tuple[int, ...], runs: dict[tuple[str, int], list[Found]], alone: list[Found]
) -> list[str]:
    """What of a refresh is the server's own, at the smallest number of clients."""
    refresh, bare, stored, echo = (
        _median([run["p50"] for run in runs[way, counts[0]]]) for way in (estimated, "null, no store", "null", "echo")
    )
    measure, appraise, appraised = (
        _median([run[key] for run in alone]) for key in ("measure", "appraise", "appraised")
    )
    own = refresh - measure - appraise * appraised
    rows = [
        [f"a refresh with CDFL, `{estimated}`", _number(refresh), "100"],
        ["estimating: the upload on the proxy sets", _number(measure), _percent(measure / refresh)],
        [
            f"estimating: the {appraised:.1f} clusters it changes",
            _number(appraise * appraised),
            _percent(appraise * appraised / refresh),
        ],
        ["**the server's own share**", _number(own), f"**{_percent(own / refresh)}**"],
        ["a refresh with the null algorithm", _number(stored), _percent(stored / refresh)],
        ["the same without a store", _number(bare), _percent(bare / refresh)],
        ["a bare echo", _number(echo), _percent(echo / refresh)],
    ]
    lines = [_table([f"p50, clients: {counts[0]}", "ms", "% of a refresh"], rows), ""]
    spread = _spread([run["measure"] for run in alone])
    lines.append(
        f"An upload on the proxy sets took {spread} ms over the runs. "
        f"The null algorithm takes {stored / echo:.1f} times the bare echo, {bare / echo:.1f} times without a store."
    )
    if size == "2.3 MB" and counts[0] == 1:
        verdict = "met" if own / refresh < GOAL else "missed"
        lines.append(
            f"\n**Goal: the server's own share below {GOAL:.0%} of a refresh: {verdict} ({own / refresh:.0%}).** "
            f"With {own:.0f} ms of its own, it is met from an estimation of {own * (1 / GOAL - 1):.0f} ms on."
        )
    return lines


def describe_parts(size: str, found: dict[str, Any]) -> str:
    """Where the time of one refresh goes: medians and means over the refreshes of one client."""
    refreshes = found["refreshes"][2:]
    names = {name: None for refresh in refreshes for name in refresh if name != "whole"}
    parts = {name: [refresh.get(name, (0.0, 0.0)) for refresh in refreshes] for name in names}
    whole = [refresh["whole"] for refresh in refreshes]
    rest = [_rest(refresh) for refresh in refreshes]
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(name.partition(":")[0], []).append(name)
    rows = []
    for group, members in sorted(groups.items(), key=lambda item: -sum(_wall(parts[name]) for name in item[1])):
        if len(members) > 1:
            rows.append(_part(f"**{group}**", [_total(refresh, members) for refresh in refreshes]))
        rows += [_part(name, parts[name]) for name in sorted(members, key=lambda name: -_wall(parts[name]))]
    rows += [_part("the rest: routes, handovers between threads", rest), _part("**the whole, in the server**", whole)]
    rows.append(["**the whole, seen by the client**", _number(found["seen"]["p50"]), "", ""])
    lines = [
        f"## Where a refresh goes: {size}, one client, CDFL\n",
        _table(["part", "median ms", "mean ms", "median ms of computing"], rows),
        f"\n{len(refreshes)} refreshes, timed inside the server. A part inside another counts for itself only; what "
        "happens once in many refreshes shows in the mean. Computing is the time of the part's own thread on a core; "
        "of the whole, that of all threads.",
    ]
    if found["missing"]:
        lines.append(f"Not found, so not timed: {', '.join(found['missing'])}.")
    return "\n".join(lines)


def _total(refresh: dict[str, Spent], names: list[str]) -> Spent:
    found = [refresh.get(name, (0.0, 0.0)) for name in names]
    return sum(wall for wall, _ in found), sum(computing for _, computing in found)


def _rest(refresh: dict[str, Spent]) -> Spent:
    wall, computing = _total(refresh, [name for name in refresh if name != "whole"])
    return refresh["whole"][0] - wall, refresh["whole"][1] - computing


def _wall(values: list[Spent]) -> float:
    return _median([wall for wall, _ in values])


def _part(name: str, values: list[Spent]) -> list[str]:
    mean = statistics.mean(wall for wall, _ in values)
    computing = _median([computing for _, computing in values])
    return [name, *(f"{seconds * 1000:.2f}" for seconds in (_wall(values), mean, computing))]


def _table(head: list[str], rows: list[list[str]]) -> str:
    rule = ["---" if i == 0 else "---:" for i in range(len(head))]
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, rule, *rows))


def _median(values: list[float]) -> float:
    return statistics.median(values)


def _spread(values: list[float]) -> str:
    return f"{_number(min(values))} to {_number(max(values))}"


def _number(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _percent(share: float) -> str:
    return f"{share * 100:.0f}"


# around it


def preamble(bench: Bench) -> str:
    """The machine, the versions, and how it was measured."""
    with open("/proc/cpuinfo") as file:
        cpu = next((line.partition(":")[2].strip() for line in file if line.startswith("model name")), "unknown")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    packages = ", ".join(f"{package} {version(package)}" for package in PACKAGES)
    return "\n".join(
        [
            "# The service under load\n",
            f"{datetime.date.today()}, `benchmarks/service.py`. {cpu}, {len(os.sched_getaffinity(0))} cores, "
            f"{memory:.0f} GB of memory, {platform.system()} {platform.release()}; load at the start "
            f"{os.getloadavg()[0]:.1f}. Stores on {_disk(bench.folder)}. "
            f"Python {platform.python_version()}, {packages}.\n",
            f"Server and clients share the machine, over loopback; a matrix product has one thread. "
            f"Settings of the server are the defaults but for bytes_in_flight = {ROOM:,}. A fresh server and store for "
            f"every measurement: one refresh of every client to warm up, then {bench.seconds:g} s and {bench.least} "
            f"refreshes of every client at least (one where there are more than 8; {LIMIT:.0f} s at most). "
            f"{bench.repeats} run(s), the ways in turn; figures are medians of the runs, spreads their smallest and "
            "largest. A p99 of fewer than 100 refreshes "
            "is close to the largest. 64 clients of 45 MB would have 3 GB of bodies under way at once, beside their "
            "copies; 16 stand for them.",
        ]
    )


def _disk(folder: Path) -> str:
    """The file system of a folder; memory is refused, because a store is about a disk."""
    mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    inside = [m for m in mounts if folder.is_relative_to(m[1].replace("\\040", " "))]
    device, _, kind, *_ = max(inside, key=lambda m: len(m[1]))
    if kind in ("tmpfs", "ramfs"):
        raise SystemExit(f"a store is measured on a disk, and {folder} is {kind}: name another with --folder")
    return f"{kind} ({device})"


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one short run of few clients; writes no results")
    parser.add_argument("--profile", action="store_true", help="break one refresh down, too")
    parser.add_argument("--only-profile", action="store_true", help="break one refresh down, and nothing else")
    parser.add_argument("--size", action="append", choices=list(CLIENTS), help="this size only; may be given again")
    parser.add_argument("--clients", type=int, action="append", help="so many clients only; may be given again")
    parser.add_argument("--samples", type=int, default=250, help="of each of the four proxy sets (default 250)")
    parser.add_argument("--seconds", type=float, help="of each measurement, at least (default 5; 1 if quick)")
    parser.add_argument("--repeats", type=int, help="runs of everything (default 3; 1 if quick)")
    parser.add_argument("--folder", type=Path, default=HERE, help="on a disk, for the stores (default: beside this)")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "service.md", help="where results are written")
    return parser.parse_args()


def main() -> None:
    options = _options()
    quick = options.quick
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that servers and folders are cleared away
    with tempfile.TemporaryDirectory(prefix=".service-", dir=options.folder.resolve()) as folder:
        bench = Bench(
            Path(folder),
            options.samples,
            options.seconds or (1.0 if quick else 5.0),
            options.repeats or (1 if quick else 3),
            1 if quick else 3,
        )
        sections = [preamble(bench)]
        print(sections[0], flush=True)
        for size in options.size or CLIENTS:
            counts = tuple(
                options.clients or CLIENTS[size][: 1 if quick and size != "2.3 MB" else 2 if quick else None]
            )
            if not options.only_profile:
                sections.append(measure(bench, size, counts))
                print(f"\n{sections[-1]}", flush=True)
            if options.profile or options.only_profile:
                _say(f"{size}, a refresh broken down")
                sections.append(describe_parts(size, bench.profile(size)))
                print(f"\n{sections[-1]}", flush=True)
    if not quick:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text("\n\n".join(sections) + "\n")
        _say(f"written to {options.out}")


if __name__ == "__main__":
    main()
