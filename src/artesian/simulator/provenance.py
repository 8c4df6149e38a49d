"""What a run was made from: the user's own code and data files, each by a hash of its content."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import artesian
from artesian.simulator.experiment import Experiment

OWN = re.compile(r"([A-Za-z_][\w.]*):[A-Za-z_][\w.]*")  # module:name, as settings spell it


def provenance(experiment: Experiment) -> dict[str, Any]:
    """The user's modules and data files that decide a run, with their hashes; modules also with their commit."""
    modules = _modules(experiment)
    code = {name: {"sha256": file_hash(path), "commit": commit_of(path)} for name, path in modules.items()}
    return {"code": code, "data": {str(path): file_hash(path) for path in experiment.world.files()}}


def differences(then: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    """What has changed since a run began, one sentence each. What an older version did not record is not compared."""
    if then.get("artesian") != now.get("artesian"):
        yield f"This run began with artesian {then.get('artesian')} and goes on with {now.get('artesian')}"
    for name, code in then.get("code", {}).items():
        if now["code"].get(name, code)["sha256"] != code["sha256"]:
            yield f"The module {name} has changed since this run began"
    for name, digest in then.get("data", {}).items():
        if now["data"].get(name, digest) != digest:
            yield f"The data in {name} have changed since this run began"


def commit_of(path: Path) -> str | None:
    """The commit of a source file, if it is in a git tree; `-dirty` where files differ from it."""
    if _git(path.parent, "ls-files", "--error-unmatch", path.name) is None:
        return None  # no git tree, or one that does not know this file
    return _git(path.parent, "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty")


def file_hash(path: Path) -> str:
    """The SHA-256 of a file's content."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _modules(experiment: Experiment) -> dict[str, Path]:
    """The modules of the user's own that algorithm, world and model are from, or name in their settings."""
    parts = (experiment.algorithm, experiment.plain_world, experiment.model)
    classes = {base.__module__ for part in parts for base in type(part).__mro__}
    named = {found[1] for text in _texts(experiment.describe()) if (found := OWN.fullmatch(text))}
    loaded = {name: vars(sys.modules[name]).get("__file__") for name in sorted(classes | named) if name in sys.modules}
    return {name: Path(file) for name, file in loaded.items() if file and _is_own(file)}


def _texts(value: Any) -> Iterator[str]:
    """Every text in nested settings."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, (Mapping, Sequence)):
        items: Iterable[Any] = value.values() if isinstance(value, Mapping) else value
        for item in items:
            yield from _texts(item)


def _is_own(file: str) -> bool:
    """Whether a module is the user's: not ours, not Python's, and not an installed package."""
    return not any(Path(file).resolve().is_relative_to(place) for place in _others())


@cache
def _others() -> list[Path]:
    places = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    return [Path(place).resolve() for place in (*places, *artesian.__path__)]


def _git(folder: Path, *words: str) -> str | None:
    try:
        found = subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return None
    return found.stdout.strip() or None if found.returncode == 0 else None
