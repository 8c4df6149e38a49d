"""`artesian verify`: a store is checked, and its events are replayed and compared with what was recorded of them."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise, takewhile
from pathlib import Path
from typing import Any

from artesian.algorithms import ALGORITHMS
from artesian.core import Algorithm
from artesian.engine.coordinator import Coordinator
from artesian.errors import ArtesianError, NotAuthentic, ReplayDiffers, StorageError
from artesian.execution.threads import single_threaded
from artesian.server.keys import SigningKeys
from artesian.server.replaying import replay
from artesian.server.tokens import Tokens
from artesian.server.versions import versions_of
from artesian.storage.acknowledgement import Acknowledgement, verify_acknowledgement
from artesian.storage.blobs import Blobs, named_in
from artesian.storage.checking import Finding, check_store
from artesian.storage.codec import digest
from artesian.storage.copying import Progress, unseen
from artesian.storage.files import shared
from artesian.storage.history import EventRow, SnapshotRow, StoreHistory, check_identity
from artesian.storage.open_tasks import OpenTasks
from artesian.storage.reading import event_of, snapshot_of, unchecked_history

ATTEMPTS = 3  # a server may forget a member meanwhile


def verify(
    folder: Path,
    algorithm: Algorithm | None = None,
    progress: Progress = unseen,
    identity: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """What is wrong with a store, if anything; `algorithm` replays it where it is not one of ours.

    With an `identity`, the store of any other federation is refused.
    """
    if identity is not None:
        check_identity(folder, unchecked_history(folder).about, identity)
    with shared(folder / "blobs"):  # a server drops nothing now, unless it forgets a member
        for _ in range(ATTEMPTS):
            told, history = _verified(folder, algorithm, progress)
            if told["sound"] or unchecked_history(folder).snapshots == history.snapshots:
                break  # else a server took a snapshot meanwhile, and may have dropped what was being read
    return told


def acknowledged(folder: Path, text: str) -> Acknowledgement:
    """What an acknowledgement says, if a key of this store signed it and the event that it names is in the journal."""
    told = verify_acknowledgement(text, SigningKeys(folder / "keys.json").published())
    events = unchecked_history(folder).events
    if not 0 < told.event <= len(events) or events[told.event - 1].chain != told.chain:
        raise NotAuthentic(
            f"The store does not hold event {told.event} of the acknowledgement: upload {told.number} of {told.client}",
            "Look in another store, or in a backup: uploads were acknowledged after this one was copied or cut short",
        )
    return told


def _verified(folder: Path, algorithm: Algorithm | None, progress: Progress) -> tuple[dict[str, Any], StoreHistory]:
    checked = check_store(folder, progress)
    history, found = checked.history, list(checked.findings)
    algorithm, replayed = algorithm or _known(history), 0
    if algorithm is not None and not any(finding.needed for finding in found):
        replayed, more = _replay_all(history, folder, algorithm)
        found += more
    found += _unreadable(folder)
    told = {
        "store": str(folder),
        "events": history.count,
        "snapshots": [row.events for row in history.snapshots],
        "arrays": checked.arrays,
        "replayed": replayed,
        "notes": [*([] if algorithm is not None else [_unknown(history)]), *_missing(folder, history)],
        "problems": [{"problem": finding.problem, "needed": finding.needed} for finding in found],
        "sound": not found,
    }
    return told, history


def _unreadable(folder: Path) -> Iterator[Finding]:
    """What is wrong with the files of tokens and signing keys."""
    for file in (Tokens(folder / "tokens.json"), SigningKeys(folder / "keys.json")):
        try:
            file.all()
        except StorageError as error:
            yield Finding(error.problem)


def _missing(folder: Path, history: StoreHistory) -> list[str]:
    if (folder / "keys.json").exists() or not history.count:
        return []
    return ["no keys.json: without it, acknowledgements that this store's server signed cannot be checked"]


def _known(history: StoreHistory) -> Algorithm | None:
    name = history.about.get("algorithm")
    return ALGORITHMS[name]() if name in ALGORITHMS else None


def _unknown(history: StoreHistory) -> str:
    name = history.about.get("algorithm")
    return f"nothing was replayed: {name} is not one of Artesian's algorithms, so name its federation with --federation"


def _replay_all(history: StoreHistory, folder: Path, algorithm: Algorithm) -> tuple[int, list[Finding]]:
    """From every snapshot to the next one, and to the end: how many events, and what differs.

    What a forgotten member uploaded is gone: from there to the next snapshot nothing can be replayed.
    """
    blobs, replayed, found = Blobs(folder / "blobs", create=False), 0, list[Finding]()
    for start, end in pairwise([*history.snapshots, None]):
        assert start is not None
        events = history.events[start.events : end.events if end else history.count]
        left = events if end is None else list(takewhile(lambda row: not history.is_gone(row), events))
        try:
            with tempfile.TemporaryDirectory() as shelf, single_threaded():
                coordinator = _restored(start, blobs, algorithm, OpenTasks(Path(shelf) / "tasks"))
                for row in left:
                    event = event_of(json.loads(row.record), blobs)
                    replay(coordinator, event, row.number, history.writer(row.number))
                    replayed += 1
                if end is not None and len(left) == len(events):
                    found += _compared(coordinator, start, end, blobs)
        except ReplayDiffers as error:
            found.append(Finding(_explained(error, history, events, algorithm), needed=end is None))
        except ArtesianError as error:
            found.append(Finding(f"Replaying from event {start.events} failed: {error.problem}", needed=end is None))
    return replayed, found


def _restored(row: SnapshotRow, blobs: Blobs, algorithm: Algorithm, shelf: OpenTasks) -> Coordinator:
    snapshot = snapshot_of(_readable(row, _has_tasks(row, blobs)), blobs)
    shelf.update(snapshot.open_tasks)
    return Coordinator.restore(algorithm, snapshot, open_tasks=shelf)


def _compared(coordinator: Coordinator, start: SnapshotRow, end: SnapshotRow, blobs: Blobs) -> Iterator[Finding]:
    """Whether a replay came to the state of the next snapshot; open tasks are compared where both have them."""
    tasks = _has_tasks(start, blobs) and _has_tasks(end, blobs)
    there = Coordinator.restore(coordinator.algorithm, snapshot_of(_readable(end, tasks), blobs))
    if digest(coordinator.snapshot(tasks=tasks)) != digest(there.snapshot(tasks=tasks)):  # settings as they read now
        yield Finding(f"Replaying to event {end.events} gives another state than the snapshot there", needed=False)


def _has_tasks(row: SnapshotRow, blobs: Blobs) -> bool:
    """Whether the models of the tasks are here that were open then: a later snapshot may have dropped them."""
    return all(blobs.path(name).exists() for name in named_in(json.loads(row.record)["open_tasks"]))


def _readable(row: SnapshotRow, tasks: bool) -> dict[str, Any]:
    record: dict[str, Any] = json.loads(row.record)
    return record if tasks else {**record, "open_tasks": {}}


def _explained(error: ReplayDiffers, history: StoreHistory, events: Sequence[EventRow], algorithm: Algorithm) -> str:
    """Which event differs, and whether this is the code that wrote it."""
    same = bool(events) and history.writer(events[0].number) == versions_of(algorithm)
    return error.problem + ("" if same else "; other code replays it here")
