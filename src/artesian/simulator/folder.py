"""A run as a folder: configuration, journal, snapshots, tables, final models, summary."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

import artesian
from artesian.errors import BadFormat, ChangedSince, ResumeMismatch, RunExists, RunLocked, StorageError
from artesian.simulator.provenance import commit_of, differences
from artesian.simulator.spill import Spill, Ticket
from artesian.simulator.table import Table
from artesian.storage.blobs import Blobs
from artesian.storage.codec import FORMAT, check_format, encode_arrays, from_tree, gather, scatter, to_json, to_tree
from artesian.storage.files import lock_file, storage, write_file
from artesian.storage.journal import Journal
from artesian.storage.older import settings_before

T = TypeVar("T")


class RunFolder:
    """Where a run lives on disk."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._journal: Journal | None = None
        with storage(path):
            self._lock = lock_file(path / "lock")
            if self._lock is None:
                raise RunLocked(f"Another process works on the run in {path}", "Wait for it, or stop it")
            (path / "snapshots").mkdir(exist_ok=True)
        self.blobs = Blobs(path / "blobs")

    @staticmethod
    def check_new(path: Path) -> None:
        """Refuse a place that holds anything already."""
        with storage(path):
            if not path.exists() or _is_fresh(path):
                return
        if (path / "config.json").exists():
            raise RunExists(f"{path} holds a run already", "Give another --out, or --resume")
        raise RunExists(f"{path} exists and is not a run folder", "Give another --out")

    @classmethod
    def create(cls, path: Path, config: Mapping[str, Any]) -> RunFolder:
        """A new folder; one that holds anything already is left alone."""
        cls.check_new(path)
        with storage(path):
            path.mkdir(parents=True, exist_ok=True)
        write_file(path / "config.json", json.dumps(config, indent=2).encode())
        return cls(path)

    @classmethod
    def reopen(cls, path: Path, config: Mapping[str, Any], defaults: Mapping[str, Any] | None = None) -> RunFolder:
        """The folder of a run begun before, if it is the same run.

        Seed and settings must be the same. A setting that is newer than the folder must have its default. Version, code
        and data may have changed since: that is a warning.
        """
        recorded, here = read_json(path / "config.json"), json.loads(json.dumps(config))
        check_format(recorded.get("format", 0))
        check_same(path, changed_setting(recorded, here, defaults))
        for change in differences(recorded, here):
            warnings.warn(ChangedSince(f"{change}. It may end differently than an uninterrupted run"), stacklevel=2)
        return cls(path)

    def close(self) -> None:
        """Let go of the journal, and let another process have the folder."""
        if self._journal is not None:
            self._journal.close()
            self._journal = None
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    @property
    def summary(self) -> dict[str, Any] | None:
        """What the run found, once it has finished."""
        path = self.path / "summary.json"
        return read_json(path) if path.exists() else None

    def table(self, name: str, columns: Sequence[str], length: int = 0) -> Table:
        return Table(columns, self.path / f"{name}.csv", length)

    def journal(self) -> Journal:
        self._journal = self._journal or Journal(self.path / "journal.jsonl", sync=False)
        return self._journal

    def save(self, uploads: int, checkpoint: Any) -> None:
        """A snapshot; arrays that did not change are not written again, and older snapshots go."""
        names: set[str] = set()

        def put(path: str, array: np.ndarray | Ticket) -> dict[str, str]:
            name = array.store(self.blobs) if isinstance(array, Ticket) else self.blobs.put(array)
            names.add(name)
            return {"$blob": name}

        tree = scatter(to_tree(checkpoint), put)
        target = self.path / "snapshots" / f"{uploads:09d}.json"
        write_file(target, to_json({"format": FORMAT, "checkpoint": tree}).encode())
        for path in self._snapshots():
            if path != target:
                path.unlink(missing_ok=True)
        self.blobs.keep(names)

    def load(self, kind: type[T], spill: Spill | None = None) -> T | None:
        """The newest snapshot, or None where there is none yet; with a spill, a slip of it. Alike arrays are one."""
        paths = self._snapshots()
        if not paths:
            return None
        data = read_json(paths[-1])
        check_format(data.get("format", 0))

        def get(name: str) -> np.ndarray | Ticket:
            array = self.blobs.get(name)
            return array if spill is None else spill.put(array, name)

        try:
            return from_tree(kind, gather(data.get("checkpoint"), "$blob", cache(get)))
        except BadFormat as error:
            raise StorageError(
                f"{paths[-1]} is not a snapshot. {error.problem}", "Restore the file, or start again with another --out"
            ) from None

    def finish(
        self,
        summary: Mapping[str, Any],
        models: Mapping[str, Mapping[str, np.ndarray]],
        mixtures: Mapping[str, tuple[Mapping[str, float], Mapping[str, float] | None]],
    ) -> None:
        """The final models under their ordinary parameter names, the mixtures, then the summary: it comes last."""
        final = self.path / "final"
        with storage(final):
            final.mkdir(exist_ok=True)
        for name, arrays in models.items():
            write_file(final / f"{name}.safetensors", encode_arrays(arrays))
        pairs = {client: {"true": true, "estimated": estimated} for client, (true, estimated) in mixtures.items()}
        write_file(self.path / "mixtures.json", json.dumps(pairs, allow_nan=False).encode())
        write_file(self.path / "summary.json", json.dumps(summary, indent=2, allow_nan=False).encode())

    def _snapshots(self) -> list[Path]:
        return sorted((self.path / "snapshots").glob("*.json"))


def configuration(
    experiment: Mapping[str, Any], seed: int, provenance: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """What opens every run: version and commit, the user's code and data by their hashes, seed, resolved settings."""
    return {
        "format": FORMAT,
        "artesian": artesian.__version__,
        "commit": commit_of(Path(__file__)),
        **(provenance or {"code": {}, "data": {}}),
        "seed": seed,
        "experiment": experiment,
    }


def check_same(path: Path, change: str | None) -> None:
    """Refuse to go on with a run that was begun with another seed or other settings."""
    if change:
        problem = f"The run in {path} was begun with {change}"
        raise ResumeMismatch(problem, "Give the same settings, or another --out")


def changed_setting(
    recorded: Mapping[str, Any], here: Mapping[str, Any], defaults: Mapping[str, Any] | None = None
) -> str | None:
    """The first of seed and settings that differs from a recorded configuration: `seed = 0, and now it is 1`.

    A setting that is newer than the record counts as what it was before there was a choice: mostly its default.
    """
    known = {"experiment": json.loads(json.dumps(defaults or {}))}
    then = _with_settings_before(recorded)
    for key in ("seed", "experiment"):
        if difference := _difference(key, then.get(key), here[key], known.get(key)):
            return "{} = {}, and now it is {}".format(*difference)
    return None


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a run folder."""
    with storage(path):
        text = path.read_bytes()
    try:
        data = json.loads(text)
    except ValueError as error:
        raise StorageError(f"{path} is not valid JSON: {error}", "Restore the file") from None
    if not isinstance(data, dict):
        raise StorageError(f"{path} does not hold a JSON object", "Restore the file")
    return data


def _is_fresh(path: Path) -> bool:
    """Empty, or what is left of a run that was killed while it wrote its configuration."""
    return path.is_dir() and {item.name for item in path.iterdir()} <= {"config.json.tmp", "lock"}


def _with_settings_before(recorded: Mapping[str, Any]) -> Mapping[str, Any]:
    """A recorded configuration, with the newer settings of its world that were not their default then."""
    settings = recorded.get("experiment", {})
    if before := settings_before(settings):
        return {**recorded, "experiment": {**settings, "world": {**settings["world"], **before}}}
    return recorded


def _difference(key: str, then: Any, now: Any, defaults: Any) -> tuple[str, Any, Any] | None:
    """The first setting that differs: where it is, what it was, what it is. One that is new was its default before."""
    if not (isinstance(then, dict) and isinstance(now, dict)):
        return None if then == now else (key, then, now)
    known = defaults if isinstance(defaults, dict) else {}
    for name in dict.fromkeys([*then, *now]):
        default = known.get(name)
        before = then[name] if name in then else ({} if isinstance(now[name], dict) else default)
        if found := _difference(f"{key}.{name}", before, now.get(name, default), default):
            return found
    return None
