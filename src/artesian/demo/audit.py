"""The closing check: what clients saw acknowledged against what the store holds, and the state against a replay."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from artesian.core import ClientId
from artesian.demo.federation import federation
from artesian.engine.coordinator import Coordinator
from artesian.errors import StoreDamaged
from artesian.execution.threads import single_threaded
from artesian.server.federation import Federation
from artesian.server.service import Service
from artesian.storage.store import Store

Identity = tuple[ClientId, int]  # of an upload: client and number


@dataclass(frozen=True)
class Audit:
    """What was compared, and what came out."""

    acknowledged: int  # uploads that clients saw acknowledged
    stored: int  # uploads among the store's events
    events: int  # all of them, joins too
    folds: int  # that the state counts, with the uploads that were answered and set aside
    lost: tuple[Identity, ...]  # acknowledged, and not in the store
    twice: tuple[Identity, ...]  # in the store more than once
    replayed: bool  # the state is that of a replay of every event from the beginning

    @property
    def complaints(self) -> list[str]:
        """Everything that is not as it must be."""
        found = {
            f"{len(self.lost)} acknowledged uploads lost ({_named(self.lost)})": bool(self.lost),
            f"{len(self.twice)} uploads applied twice ({_named(self.twice)})": bool(self.twice),
            f"{self.folds} folds of {self.stored} uploads": self.folds != self.stored,
            "another state than the replay of the events gives": not self.replayed,
        }
        return [text for text, holds in found.items() if holds]

    def insist(self) -> None:
        """Fail unless the store holds exactly what it must."""
        if self.complaints:
            problem = f"The store is not what clients saw acknowledged: {'; '.join(self.complaints)}"
            raise StoreDamaged(problem, "Keep the folder with --keep, and report it")


def audit(folder: Path, acknowledged: Sequence[Identity]) -> Audit:
    """Open the store as a server would, and compare."""
    with single_threaded():
        served = federation()
        store = Store(folder, served.identity)
        try:
            restored, replayed = Service.open(served, store, keep_uploads=True).coordinator, _replayed(served, store)
            events = store.last(store.count)
        finally:
            store.close()
    uploads = Counter((e["client"], e["measured"]["upload"]["number"]) for e in events if e["kind"] == "upload")
    return Audit(
        acknowledged=len(acknowledged),
        stored=uploads.total(),
        events=len(events),
        folds=restored.state.version + sum(len(e.get("set_aside", {})) for e in events),
        lost=tuple(sorted(set(acknowledged) - set(uploads))),
        twice=tuple(sorted(upload for upload, times in uploads.items() if times > 1)),
        replayed=restored.digest() == replayed.digest(),
    )


def _replayed(served: Federation, store: Store) -> Coordinator:
    """What a server that was never killed would have come to: every event, from the beginning."""
    coordinator = served.begin()
    for event in store.events():
        coordinator.replay(event)
    return coordinator


def _named(uploads: Sequence[Identity]) -> str:
    names = [f"{client} number {number}" for client, number in uploads[:3]]
    return ", ".join(names) + (", ..." if len(uploads) > 3 else "")
