"""A league at work: every run in a process of its own, as many at once as there are cores."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Lock, Timer
from typing import Any

import artesian
from artesian.errors import RunExists, RunLocked, SettingError
from artesian.execution.threads import ONE_THREAD
from artesian.leagues import page
from artesian.leagues.file import read
from artesian.leagues.plan import LeaguePlan, Pair, PlannedRun, planned
from artesian.leagues.results import FILE, Results
from artesian.leagues.standings import Standings, standings
from artesian.leagues.timing import (
    Estimate,
    RunTimer,
    Timing,
    duration,
    estimate,
    left_of,
    makespan,
    read_timings,
    to_time,
    with_guesses,
    write_timings,
)
from artesian.simulator.signals import Interruption
from artesian.storage.codec import FORMAT
from artesian.storage.files import lock_file, storage, write_file

TIMED = 3.0  # seconds of uploads after which a pair is timed well enough
PATIENCE = 180.0  # seconds after which timing a pair is given up: a world of images takes a minute or two to begin
TICK = 0.2  # seconds between two looks at the runs under way
RECORD, LOCK = "league.json", ".lock"  # the settings of a league, and who works on it, in its folder
LOG_LINES = 3
Say = Callable[[str], None]


@dataclass(frozen=True)
class LeagueProgress:
    """How far a league is."""

    finished: int
    failed: int
    runs: int
    under_way: tuple[PlannedRun, ...]
    seconds: float  # that are left, as far as is known
    timing: bool = False  # whether pairs are only timed yet


@dataclass(frozen=True)
class Ended:
    """A run that is under way no more: finished, stopped, or failed with a message."""

    run: PlannedRun
    error: str | None = None


class SingleRun:
    """One run in a process of its own; see single_run.py."""

    def __init__(self, run: PlannedRun, folder: Path) -> None:
        job = {"source": run.pair.source, "changes": run.pair.changes, "seed": run.seed, "folder": str(folder)}
        self.stopped = False
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 (closed at the end of `follow`)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "artesian.leagues.single_run", json.dumps(job)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env={**os.environ, **ONE_THREAD},
            text=True,
            start_new_session=True,  # a Ctrl-C is for the league, which stops its runs
        )

    def follow(self, hear: Callable[[Mapping[str, Any]], None]) -> str | None:
        """Hear every line until the process ends; why it failed, if it did."""
        error = None
        assert self._process.stdout is not None
        with self._process.stdout as lines, self._log:
            for line in lines:
                words = json.loads(line)
                error = words.get("error", error)
                hear(words)
            code = self._process.wait()
            return error if error or not code or self.stopped else self._last_words(code)

    def stop(self) -> None:
        """Ask for a snapshot and an end."""
        self.stopped = True
        self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it at once."""
        self.stopped = True
        self._process.kill()

    def _last_words(self, code: int) -> str:
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").splitlines()[-LOG_LINES:]
        return f"Its process ended with code {code}. {' '.join(lines)}".strip()


class Runner:
    """Runs under way, as many at once as there are jobs, and what is known of the time they take."""

    def __init__(
        self, runs: Sequence[PlannedRun], results: Results, jobs: int, timings: dict[Pair, Timing], say: Say
    ) -> None:
        self.runs, self.results, self.jobs, self.timings, self.say = runs, results, jobs, timings, say
        self.left = left_of(runs, results)  # of every run that has not ended: uploads or rounds
        self.failed: dict[PlannedRun, str] = {}
        self.under_way: dict[PlannedRun, SingleRun] = {}
        self._lock, self._stopping, self._timing = Lock(), False, False
        self._warned: set[str] = set()
        self._guesses: dict[Pair, Timing] = {}  # made anew whenever a run ends

    def run(
        self,
        runs: Sequence[PlannedRun],
        tell: Callable[[LeagueProgress], None],
        ended: Callable[[PlannedRun], None],
        timing: bool = False,
    ) -> None:
        """Run these, or only begin and time them. Interrupted, all runs under way take a snapshot first."""
        self._timing = timing
        self._guess()
        with ThreadPoolExecutor(self.jobs) as pool, Interruption() as interruption:
            pending = {pool.submit(self._one, run) for run in runs}
            try:
                while pending:
                    done, pending = wait(pending, timeout=TICK, return_when=FIRST_COMPLETED)
                    for future in done:
                        self._end(future.result())
                        ended(future.result().run)
                    tell(self.progress())
                    if interruption.asked and not self._stopping:
                        self._stop(SingleRun.stop)
            except BaseException:
                self._stop(SingleRun.kill)
                raise
        if self._stopping:
            raise KeyboardInterrupt

    def progress(self) -> LeagueProgress:
        """How far everything is now."""
        finished = len(self.runs) - len(self.left) - len(self.failed)
        under_way = tuple(self.under_way)
        left = self._seconds(under_way)
        return LeagueProgress(finished, len(self.failed), len(self.runs), under_way, left, self._timing)

    def _seconds(self, under_way: Sequence[PlannedRun]) -> float:
        """How long the rest takes: runs under way have started, the others have not."""
        timings = {**self._guesses, **self.timings}
        known = {run: count for run, count in list(self.left.items()) if run.pair in timings}
        now = [timings[run.pair].each * known[run] for run in under_way if run in known]
        later = [timings[run.pair].seconds(count) for run, count in known.items() if run not in under_way]
        return makespan([*now, *later], self.jobs)

    def _one(self, run: PlannedRun) -> Ended:
        """One run from its start to its end, in a thread of its own."""
        with self._lock:
            if self._stopping:
                return Ended(run)
            single = self.under_way[run] = SingleRun(run, self.results.folder / run.folder)
        watch = RunTimer(time.monotonic())
        patience = Timer(PATIENCE, single.stop)
        if self._timing:
            patience.start()

        def hear(words: Mapping[str, Any]) -> None:
            if "warning" in words:
                self._warn(words["warning"])
            if "done" in words:
                watch.see(time.monotonic(), words["done"])
                self._learn(run, watch)
                if self._timing and watch.timing and watch.seconds >= TIMED:
                    single.stop()

        try:
            return Ended(run, single.follow(hear))
        finally:
            patience.cancel()
            del self.under_way[run]

    def _learn(self, run: PlannedRun, watch: RunTimer) -> None:
        """What a run under way shows about its pair. Of several starts the longest counts: a resumed one is short."""
        assert watch.last is not None
        self.left[run] = max(1, run.pair.length - watch.last[1])
        if found := watch.timing:
            known = self.timings.get(run.pair, found)
            self.timings[run.pair] = Timing(max(known.starting, found.starting), found.each)

    def _warn(self, text: str) -> None:
        if text not in self._warned:
            self._warned.add(text)
            self.say(f"warning: {text}")

    def _end(self, ended: Ended) -> None:
        if finished := self.results.see(ended.run):
            self.results.write()
        if ended.error is not None:
            self.failed[ended.run] = ended.error
        if finished or ended.error is not None:
            self.left.pop(ended.run, None)
        self._guess()

    def _guess(self) -> None:
        self._guesses = with_guesses(dict(self.timings), {run.pair for run in self.left})

    def _stop(self, how: Callable[[SingleRun], None]) -> None:
        with self._lock:
            self._stopping = True
            for single in list(self.under_way.values()):
                how(single)


def progress_words(progress: LeagueProgress) -> str:
    """How far a league is, as a line of text."""
    parts = [f"{progress.finished}/{progress.runs} runs"]
    parts += [f"{progress.failed} failed"] * bool(progress.failed)
    parts += [f"{duration(progress.seconds)} left"] * bool(progress.seconds and not progress.timing)
    return ", ".join(parts + ["timing"] * progress.timing)


# a whole league


def run_league(
    plan: LeaguePlan,
    folder: Path,
    jobs: int,
    say: Say = lambda _: None,
    tell: Callable[[LeagueProgress], None] = lambda _: None,
    file: Path | None = None,
) -> Standings:
    """Run what is left of a league, and keep its results and its page up to date.

    `say` hears sentences, such as how long it will take, and `tell` how far it is, several times a second. `file` is
    that of the results, if it is not the one in the folder.
    """
    with opened(folder, plan, file) as results:
        timings = read_timings(folder, plan.pairs)
        runner = Runner(plan.runs, results, jobs, timings, say)

        def ended(run: PlannedRun) -> None:
            write_timings(folder, timings)
            if run not in runner.left:
                page.write(folder, plan, result(results, runner.failed))
                say(f"{run}: {runner.failed.get(run, 'finished')} ({progress_words(runner.progress())})")

        if untimed := _untimed(runner.left, timings):
            say(f"timing {len(untimed)} pairs of world and method: the first seconds of a run of each")
            runner.run(untimed, tell, ended, timing=True)
        say(str(_estimate(folder, runner.left, timings, jobs, len(plan.runs) - len(runner.failed))))
        runner.run(list(runner.left), tell, ended)
        found = result(results, runner.failed)
        page.write(folder, plan, found)
        return found


def forecast(
    plan: LeaguePlan,
    folder: Path,
    jobs: int,
    say: Say = lambda _: None,
    tell: Callable[[LeagueProgress], None] = lambda _: None,
    file: Path | None = None,
) -> tuple[Estimate, dict[Pair, Timing]]:
    """How long what is left of a league takes. Nothing is written to its folder: pairs are timed in another one."""
    timings, left = read_timings(folder, plan.pairs), left_of(plan.runs, Results(plan, folder, file))
    untimed = _untimed(left, timings)
    with tempfile.TemporaryDirectory() as elsewhere:
        runner = Runner(untimed, Results(plan, Path(elsewhere)), jobs, timings, say)
        runner.run(untimed, tell, lambda _: None, timing=True)
    for run, message in runner.failed.items():
        say(f"{run}: {message}")
    return _estimate(folder, left, timings, jobs, len(plan.runs)), timings


def finished(plan: LeaguePlan, folder: Path, file: Path | None = None) -> Standings:
    """The standings as far as runs have finished, also while others run. Nothing is run or written."""
    results = Results(plan, folder, file)
    left_of(plan.runs, results)  # a run that has just ended has a summary in its folder, and perhaps no line yet
    return result(results, {})


def result(results: Results, failed: Mapping[PlannedRun, str]) -> Standings:
    """The standings, as far as runs have finished."""
    told = {str(run): message for run, message in failed.items()}
    return standings(results.plan, results.summaries, told, results.versions)


def league(
    source: str | Path | Mapping[str, Any],
    *,
    out: str | Path,
    results: str | Path | None = None,
    jobs: int | None = None,
    say: Callable[[str], None] | None = None,
    progress: Callable[[LeagueProgress], None] | None = None,
) -> Standings:
    """Run methods x worlds x seeds, each run on one core, and return the tables.

    Args:
        source: A TOML file, or a mapping with the same keys.
        out: The folder of the league. Runs that it holds are resumed, or left as they are if they have finished.
        results: The file with a line for every run that has finished; `results.jsonl` in the folder without it. Runs
            that it holds are not run again, even if the folder is new.
        jobs: How many runs at once; as many as there are cores without it.
        say: A function that hears sentences: how long it will take, which run ended, warnings. Try `say=print`.
        progress: A function that is called several times a second, with how far the league is.

    The folder also holds `league.md` and `league.html`, the page with the same tables. Interrupted, all runs under way
    take a snapshot, and the same call goes on with them.

    >>> import artesian
    >>> table = artesian.league("league.toml", out="runs/league")  # doctest: +SKIP
    >>> table.overall["FedBuff"].mean  # doctest: +SKIP
    """
    folder = Path(out)
    check_folder(folder)
    plan, file = planned(read(source)), None if results is None else Path(results)
    return run_league(plan, folder, cores(jobs), say or (lambda _: None), progress or (lambda _: None), file)


def cores(jobs: int | None) -> int:
    """How many runs at once: as many as asked for, or as there are cores."""
    if jobs is not None and (type(jobs) is not int or jobs < 1):
        raise SettingError(f"jobs must be a whole number from 1 on, not {jobs!r}")
    return jobs or os.cpu_count() or 1


def check_folder(folder: Path) -> None:
    """Refuse a folder that holds something other than a league."""
    with storage(folder):
        held = {path.name for path in folder.iterdir()} if folder.exists() else set()
        if held - {LOCK, f"{RECORD}.tmp", FILE} and RECORD not in held:
            raise RunExists(f"{folder} exists and is not the folder of a league", "Give another --out")


@contextmanager
def opened(folder: Path, plan: LeaguePlan, file: Path | None = None) -> Iterator[Results]:
    """The folder of a league, with its settings and all that has finished recorded; for one process at a time."""
    check_folder(folder)
    with storage(folder):
        folder.mkdir(parents=True, exist_ok=True)
        lock = lock_file(folder / LOCK)
    if lock is None:
        raise RunLocked(f"Another process works on the league in {folder}", "Wait for it, or stop it")
    try:
        results = Results(plan, folder, file)
        told = {"format": FORMAT, "artesian": artesian.__version__, **plan.league.describe()}
        write_file(folder / RECORD, json.dumps(told, indent=2).encode())
        results.write()
        yield results
    finally:
        os.close(lock)


def _untimed(left: Mapping[PlannedRun, int], timings: Mapping[Pair, Timing]) -> list[PlannedRun]:
    """A run of every pair that has to be timed before something is known of all of them."""
    first: dict[Pair, PlannedRun] = {}
    for run in left:
        first.setdefault(run.pair, run)
    return [first[pair] for pair in to_time(first, timings)]


def _estimate(
    folder: Path, left: Mapping[PlannedRun, int], timings: Mapping[Pair, Timing], jobs: int, runs: int
) -> Estimate:
    begun = sum((folder / run.folder / "config.json").exists() for run in left)
    return estimate(left, timings, jobs, begun, runs - len(left))
