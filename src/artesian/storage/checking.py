"""Everything a store can be checked for without the code that wrote it: chain, mark, secrets, every array."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from artesian.errors import StorageError
from artesian.storage.blobs import Blobs
from artesian.storage.copying import Progress
from artesian.storage.history import StoreHistory, behind, broken
from artesian.storage.reading import mark_of, unchecked_history


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong; `needed` says whether a server cannot go on with it."""

    problem: str
    needed: bool = True


@dataclass(frozen=True)
class Checked:
    """What a check of a store saw."""

    history: StoreHistory
    arrays: int
    findings: tuple[Finding, ...] = ()


def check_store(folder: Path, progress: Progress) -> Checked:
    """Check a store, while a server goes on with it or not; nothing is written."""
    mark, history = mark_of(folder), unchecked_history(folder)
    problems = [*broken(history), behind(history, mark)]
    blobs = Blobs(folder / "blobs", create=False)
    names = blobs.names()
    unsound = {*_unsound(blobs, names, progress), *(history.expected - set(names))}
    now = unchecked_history(folder)  # a server may have dropped some since
    left = sorted(name for name in unsound if name in now.expected or blobs.path(name).exists())
    arrays = [Finding(_complaint(blobs, name), name in now.needed) for name in left]
    return Checked(history, len(names), (*(Finding(text) for text in problems if text), *arrays))


def _unsound(blobs: Blobs, names: list[str], progress: Progress) -> Iterator[str]:
    for number, name in enumerate(names, 1):
        try:
            blobs.get(name)
        except StorageError:
            yield name
        progress(number, len(names))


def _complaint(blobs: Blobs, name: str) -> str:
    try:
        blobs.get(name)
    except StorageError as error:
        return error.problem
    return f"The stored array could not be read at first: {blobs.path(name)}"
