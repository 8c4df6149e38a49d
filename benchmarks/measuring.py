"""What the benchmarks of the simulator share: a process measured from outside, tables, and the machine.

Memory is told in two ways. `peak_mb` is the sum of what all processes of a measurement hold at one moment (resident
pages, sampled ten times a second); pages that several of them share count for each. `proportional_mb` counts a shared
page once, in parts (Linux's Pss, sampled once a second, as it takes longer): that much less memory would be free.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from itertools import count
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
MARK = "ARTESIAN_BENCHMARK"  # in the environment of every process of one measurement, whoever its parent is
FLAGS = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_tile", "fma")
PACKAGES = ("artesian", "numpy", "torch")
PAGE = os.sysconf("SC_PAGE_SIZE")
Rows = Sequence[Sequence[str]]


@dataclass(frozen=True)
class Outcome:
    """What one process gave, and what it took; `failure` says why it gave nothing."""

    seconds: float
    peak_mb: float
    told: Mapping[str, Any] = field(default_factory=dict)
    failure: str = ""
    proportional_mb: float = 0.0


def run(command: Sequence[str], env: Mapping[str, str], limit: float, cwd: Path = HERE) -> Outcome:
    """Run a process to its end, or to its limit; the last line it prints is what it tells, as JSON."""
    mark = uuid.uuid4().hex
    sampler = Sampler(mark)
    began = time.perf_counter()
    process = subprocess.Popen(
        command,
        cwd=cwd,
        env={**env, MARK: mark},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    with _ended_by_sigterm(), sampler, process:
        try:
            out, err = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            _end(mark)
            return Outcome(limit, sampler.peak_mb, failure=f"not done after {limit:.0f} s")
        except BaseException:
            _end(mark)
            raise
    seconds = time.perf_counter() - began
    _end(mark)  # what it may have left behind
    if process.returncode:
        return Outcome(seconds, sampler.peak_mb, failure=last_line(err) or f"exit code {process.returncode}")
    try:
        told = json.loads(last_line(out))
        return Outcome(seconds, sampler.peak_mb, told, proportional_mb=sampler.proportional_mb)
    except ValueError:
        return Outcome(seconds, sampler.peak_mb, failure=f"no answer, but {last_line(out)[:80]!r}")


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """SIGTERM as an exception, so that what was started is ended first."""

    def leave(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def last_line(text: str) -> str:
    """The last line that says anything."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""


class Sampler:
    """Watches the memory of all processes with one mark; make it before the first of them."""

    def __init__(self, mark: str, every: float = 0.1) -> None:
        self.mark, self.every, self.peak_mb, self.proportional_mb = mark, every, 0.0, 0.0
        self._strangers = _pids()  # need not be looked at again and again
        self._done, self._looked = threading.Event(), threading.Condition()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Sampler:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def reached(self, megabytes: float, patience: float) -> bool:
        """Wait until so much was seen at once; False where it was not, in so many seconds."""
        with self._looked:
            return self._looked.wait_for(lambda: self.peak_mb >= megabytes, patience)

    def _watch(self) -> None:
        known: dict[int, bool] = {}
        turns = count()
        while not self._done.wait(self.every):
            pids = _pids() - self._strangers
            known = {pid: marked for pid, marked in known.items() if pid in pids and marked}
            for pid in pids - known.keys():  # a process may get its environment a moment after its number
                known[pid] = _has(pid, self.mark)
            ours = [pid for pid, marked in known.items() if marked]
            now = sum(_resident(pid) for pid in ours) / 1e6
            if next(turns) % 10 == 0:
                self.proportional_mb = max(self.proportional_mb, sum(_proportional(pid) for pid in ours) / 1e6)
            with self._looked:
                self.peak_mb = max(self.peak_mb, now)
                self._looked.notify_all()


def _pids() -> set[int]:
    return {int(name) for name in os.listdir("/proc") if name.isdigit()}


def _has(pid: int, mark: str) -> bool:
    with suppress(OSError):
        return f"{MARK}={mark}".encode() in Path(f"/proc/{pid}/environ").read_bytes()
    return False


def _resident(pid: int) -> int:
    with suppress(OSError, IndexError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE
    return 0


def _proportional(pid: int) -> int:
    with suppress(OSError, StopIteration):
        told = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in told if line.startswith("Pss:"))
    return 0


def _end(mark: str) -> None:
    """End every process that carries this mark, so is ours."""
    for pid in _pids():
        if _has(pid, mark):
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)


# tables


def table(head: Sequence[str], rows: Rows) -> str:
    """A table in Markdown; numbers on the right."""
    rule = ["---" if i == 0 else "---:" for i in range(len(head))]
    for row in rows:
        if len(row) != len(head):
            raise ValueError(f"a row has {len(head)} cells, not {len(row)}: {row}")
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in row)} |" for row in (head, rule, *rows))


def number(value: float) -> str:
    """Three digits that count."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def spread(values: Sequence[float]) -> str:
    """The median, and the smallest and largest in brackets."""
    if len(values) == 1:
        return number(values[0])
    return f"{number(statistics.median(values))} ({number(min(values))}..{number(max(values))})"


def rate(stamps: Sequence[float]) -> float:
    """Updates a second from the first to the last of them."""
    if len(stamps) < 2:
        raise ValueError("a rate needs two updates at least")
    return (len(stamps) - 1) / (max(stamps) - min(stamps))


# around them


def machine(script: str) -> str:
    """A sentence or two about the machine, the versions and the day."""
    cpu, flags = processor(Path("/proc/cpuinfo").read_text())
    memory = PAGE * os.sysconf("SC_PHYS_PAGES") / 1e9
    packages = ", ".join(f"{package} {_version(package)}" for package in PACKAGES)
    return (
        f"{datetime.date.today()}, `{script}`. {cpu}, {cores()} cores ({', '.join(flags) or 'no vector flags'}), "
        f"{memory:.0f} GB of memory, {platform.system()} {platform.release()}; load at the start "
        f"{os.getloadavg()[0]:.1f}. Python {platform.python_version()}, {packages}."
    )


def processor(text: str) -> tuple[str, list[str]]:
    """The name in /proc/cpuinfo, and those of its flags that matter here."""
    lines = dict(reversed([_pair(line) for line in text.splitlines() if ":" in line]))  # the first of each counts
    has = set(lines.get("flags", "").split())
    return lines.get("model name", "unknown processor"), [flag for flag in FLAGS if flag in has]


def _pair(line: str) -> tuple[str, str]:
    name, _, value = line.partition(":")
    return name.strip(), value.strip()


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "(not installed)"


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0))


def say(text: str) -> None:
    """What is going on, aside from the results."""
    print(text, file=sys.stderr, flush=True)
