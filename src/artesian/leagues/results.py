"""The results of a league: a file with one line of JSON for every run that has finished.

The file is the record of what has finished, and a league goes on from it alone. Run folders are where unfinished runs
go on; one that has finished without a line gets its line.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from artesian.errors import BadFormat, ResumeMismatch, StorageError
from artesian.leagues.plan import LeaguePlan, Pair, PlannedRun, changed_since, check_begun
from artesian.leagues.standings import Summaries, Summary
from artesian.simulator.folder import read_json
from artesian.storage.codec import from_tree, to_json, to_tree
from artesian.storage.files import storage, sync_folder

FILE = "results.jsonl"  # in the folder of a league, unless another is named


@dataclass(frozen=True)
class Result:
    """One line: which run has finished, with which settings and code, and what it found."""

    world: str
    method: str
    seed: int
    experiment: Mapping[str, Any]  # the settings that the run began with
    artesian: str | None  # the version that the run began with
    commit: str | None
    summary: Summary

    @property
    def version(self) -> str:
        """Version and commit of the code that the run began with, in short."""
        name = self.commit or "no commit"
        return f"{self.artesian} ({name[:10]}{'-dirty' if name.endswith('-dirty') else ''})"


class Results:
    """Which runs of a league have finished, and what each found.

    Made from the file, and from folders of runs that finished without a line; nothing is written before `write`.
    """

    def __init__(self, plan: LeaguePlan, folder: Path, path: Path | None = None) -> None:
        self.plan, self.folder, self.path = plan, folder, path or folder / FILE
        self._found = recorded(plan, self.path)
        self._unwritten: list[Result] = []
        check_begun([run for run in plan.runs if run not in self], folder)
        for run in plan.runs:
            self.see(run)

    def __contains__(self, run: PlannedRun) -> bool:
        return run in self._found

    def see(self, run: PlannedRun) -> bool:
        """Whether a run has finished: it has a line, or a summary in its folder, which makes a new line."""
        if run not in self and (self.folder / run.folder / "summary.json").exists():
            self._found[run] = result_in(self.folder, run)
            self._unwritten.append(self._found[run])
        return run in self

    def write(self) -> None:
        """Add the new lines to the file, each synced; what a kill left of an earlier one goes first."""
        with storage(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with open(self.path, "a+b") as file:
                fcntl.flock(file, fcntl.LOCK_EX)  # leagues in other folders may share the file
                file.seek(0)
                data = file.read()
                whole = b"".join(line + b"\n" for line in _whole_lines(data))  # shorter, or longer by one end of line
                file.truncate(min(len(whole), len(data)))
                for line in [whole[len(data) :], *map(_line, self._unwritten)]:
                    file.write(line)
                    file.flush()
                    os.fsync(file.fileno())
            sync_folder(self.path.parent)
        self._unwritten.clear()

    @property
    def summaries(self) -> Summaries:
        """What the finished runs found."""
        found: dict[Pair, dict[int, Summary]] = {}
        for run, result in self._in_order():
            found.setdefault(run.pair, {})[run.seed] = result.summary
        return found

    @property
    def versions(self) -> list[str]:
        """Version and commit that the finished runs began with, each once."""
        return list(dict.fromkeys(result.version for _, result in self._in_order()))

    def _in_order(self) -> list[tuple[PlannedRun, Result]]:
        """As the plan has them: the file has them as they ended."""
        return [(run, self._found[run]) for run in self.plan.runs if run in self]


def result_in(folder: Path, run: PlannedRun) -> Result:
    """The result of a run whose folder has a summary."""
    config, summary = (read_json(folder / run.folder / name) for name in ("config.json", "summary.json"))
    world, method, settings = run.pair.world, run.pair.method, config.get("experiment", {})
    return Result(world, method, run.seed, settings, config.get("artesian"), config.get("commit"), summary)


# the file


def recorded(plan: LeaguePlan, path: Path) -> dict[PlannedRun, Result]:
    """The lines that belong to runs of a plan; of several for one run the first counts. Other settings are refused."""
    runs = {(run.pair.world, run.pair.method, run.seed): run for run in plan.runs}
    found: dict[PlannedRun, Result] = {}
    for result in read_results(path):
        run = runs.get((result.world, result.method, result.seed))
        if run is None:
            continue
        if change := changed_since(run, {"seed": result.seed, "experiment": result.experiment}):
            problem = f"{path} has a result of {run} with {change}"
            raise ResumeMismatch(problem, "Name another file with --results, rename the method, or remove the line")
        found.setdefault(run, result)
    return found


def read_results(path: Path) -> list[Result]:
    """All results in a file; none where there is no file yet."""
    with storage(path):
        data = path.read_bytes() if path.exists() else b""
    lines = enumerate(_whole_lines(data), 1)
    return [_parsed(line, f"Line {number} of {path}") for number, line in lines if line.strip()]


def _whole_lines(data: bytes) -> list[bytes]:
    """The lines of a file; a last one that was cut short is left out, one that lacks only its end of line is not."""
    *lines, last = data.split(b"\n")
    return [*lines, last] if _is_json(last) else lines


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except ValueError:
        return False
    return True


def _line(result: Result) -> bytes:
    return to_json(to_tree(result)).encode() + b"\n"


def _parsed(line: bytes, where: str) -> Result:
    try:
        return from_tree(Result, json.loads(line))
    except BadFormat as error:
        raise StorageError(
            f"{where} is not a result: {error.problem}", "Restore the file, or remove the line"
        ) from None
    except ValueError as error:
        raise StorageError(f"{where} is not valid JSON: {error}", "Restore the file, or remove the line") from None
