"""What a served federation tells the live page: events as they come, and more only while somebody watches."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any

from artesian.core import Act, ClientId, ClusterId, Event, Measured, Member
from artesian.dashboard.chronicle import About, Chronicle, Exchange, rounded
from artesian.errors import ArtesianError
from artesian.params import Params
from artesian.server.metrics import cluster_losses
from artesian.server.operating import standing_of
from artesian.server.service import Service, is_alarming
from artesian.storage.history import ActRow
from artesian.storage.store import Store

REMEMBERED = 1000  # events of the journal that a page begins with
FRESH = 0.9  # seconds for which what was looked up is fresh
PAUSE = 5.0  # seconds between two scores of the clusters, at least
SHARE = 0.005  # of one core that scoring may take
ACTS = {
    "revoke": "revoked",
    "reset": "reset",
    "quarantine": "put in quarantine",
    "release": "released",
    "forget": "forgotten",
    "rollback": "rolled back to the state after event {to}",
}


class PageFacts:
    """Keeps the chronicle of one service."""

    def __init__(self, service: Service, clock: Callable[[], float] = time.time) -> None:
        self.service, self.coordinator, self._clock = service, service.coordinator, clock
        about = About("federation", service.name or "federation", self.coordinator.algorithm.name, "wall")
        self.chronicle = Chronicle(about)
        self._seen: dict[ClientId, Member] = {}  # as the page was told last
        self._clusters: list[ClusterId] = list(self.coordinator.state.clusters)
        self._failed = (0, 0)  # snapshots and studies
        self._fresh_until = 0.0
        self.scores = ProxyScores(self)
        if service.store is not None:
            self._remember(service.store)
        service.observe = self.observe

    def _remember(self, store: Store) -> None:
        """Go on from the newest events in the journal, so that a restart does not empty the page."""
        forgotten = store.forgotten()
        for record in store.last(REMEMBERED):
            if record.get("at") is not None and record["client"] not in forgotten:
                self._recall(record, float(record["at"]))

    def _recall(self, record: Mapping[str, Any], at: float) -> None:
        """What a record still says: of staleness and of losses that a judge found, nothing."""
        if measured := record.get("measured"):
            upload, receipt = measured["upload"], measured["receipt"]
            found = upload.get("mixture") or receipt.get("mixture")  # or what the task before it said
            scores = {name: upload.get("metrics", {}).get(f"score_{name}") for name in ("before", "after")}
            self.chronicle.upload(Exchange(at, record["client"], upload["number"], None, found, **scores))
        for cluster, loss in record.get("appraisals", {}).items():
            self.chronicle.measure("loss", cluster, at, loss)
        if record.get("act"):
            act = ActRow.of(record)
            self.chronicle.notice("act", at, _told(act.kind, act.by, act.why, act.to), act.client)

    # at every event, in the writer's turn

    def observe(self, event: Event, version: int) -> None:
        """Note an event that has just become true; before it, the clusters had this version."""
        now = self._clock()
        if event.measured is not None:
            self._uploaded(event.measured, event.set_aside, version, now)
        elif event.kind in ACTS:
            self._acted(event, now)
        elif event.kind in ("join", "leave"):
            self._came_or_went(event, now)
        for name, why in event.set_aside.items():
            self._put_aside(name.rpartition("/")[0], why, now)
        self._note_clusters(now)

    def _uploaded(self, measured: Measured, aside: Mapping[str, str], version: int, now: float) -> None:
        upload, receipt = measured.upload, measured.receipt
        member, metrics = self.coordinator.known(upload.client), upload.metrics
        self.chronicle.upload(
            Exchange(
                time=round(now, 3),
                client=upload.client,
                number=upload.number,
                staleness=version - receipt.base,
                mixture=member.mixture if member is not None else None,
                before=metrics.get("score_before"),
                after=metrics.get("score_after"),
                drift=metrics.get("drift"),
                aside=aside.get(f"{upload.client}/{upload.number}", ""),
            )
        )
        self._seen.pop(upload.client, None)  # its row has something new
        for cluster, loss in cluster_losses(self.coordinator).items():
            self.chronicle.measure("loss", cluster, now, loss)

    def _acted(self, event: Event, now: float) -> None:
        act = event.act or Act()
        self.chronicle.notice("act", now, _told(event.kind, act.by, act.why, act.to), event.client)
        if event.kind == "forget":
            self._seen.pop(event.client, None)
            self.chronicle.forget(event.client)

    def _came_or_went(self, event: Event, now: float) -> None:
        text = "left" if event.kind == "leave" else "joined"
        if event.changed:
            self.chronicle.notice("drift", now, "says that its data changed", event.client)
        else:
            self.chronicle.notice("membership", now, text, event.client)

    def _put_aside(self, client: ClientId, why: str, now: float) -> None:
        member = self.coordinator.known(client)
        self.chronicle.notice("aside", now, f"upload not folded: {why}", client)
        if member is not None and is_alarming(member.set_aside, member.answered):
            self.chronicle.notice("alarm", now, f"{member.set_aside} of its uploads were set aside", client)

    def _note_clusters(self, now: float) -> None:
        clusters = list(self.coordinator.state.clusters)
        if clusters != self._clusters:
            born, gone = set(clusters) - set(self._clusters), set(self._clusters) - set(clusters)
            words = [f"new: {', '.join(sorted(born))}"] if born else []
            words += [f"gone: {', '.join(sorted(gone))}"] if gone else []
            self.chronicle.notice("clusters", now, f"the clusters changed ({'; '.join(words)})")
            self._clusters = clusters

    # while somebody watches

    def refresh(self) -> None:
        """Look up what no event tells: totals, members, refusals, failures."""
        if time.monotonic() < self._fresh_until:
            return
        self._fresh_until = time.monotonic() + FRESH
        state, members = self.coordinator.state, dict(self.coordinator.state.members)
        for client, member in members.items():
            if self._seen.get(client) is not member:
                self.chronicle.member(client, _row(member))
                self._seen[client] = member
        self.chronicle.table("totals", self._totals())
        self.chronicle.table("clusters", list(state.clusters))
        self.chronicle.table("reasons", dict(self.service.counts.reasons))
        self._note_failures()

    def _totals(self) -> dict[str, int]:
        state, desk, counts = self.coordinator.state, self.coordinator.desk, self.service.counts
        return {
            "version": state.version,
            "present": state.present,
            "members": len(state.members),
            "open_tasks": desk.open,
            "pending": len(desk.pending),
            "uploads": counts.uploads,
            "draws": counts.draws,
            "refused": counts.refused,
            "set_aside": counts.set_aside,
            "suspects": len(self.service.suspects()),
            "events": self.service.store.count if self.service.store is not None else 0,
        }

    def _note_failures(self) -> None:
        failed = (self.service.counts.snapshots_failed, self.service.studies.failed)
        words = ("A snapshot could not be written: check the disk", "A study failed: the log says why")
        for before, now, text in zip(self._failed, failed, words, strict=True):
            if now > before:
                self.chronicle.notice("alarm", self._clock(), text)
        self._failed = failed


class ProxyScores:
    """How the clusters score on their proxy sets: worked out only while somebody watches, and in little time."""

    def __init__(self, facts: PageFacts) -> None:
        self.facts = facts
        self._known: dict[ClusterId, Params] = {}  # the newest models that were scored
        self._next = 0.0
        self._busy = False

    async def update(self) -> None:
        """Score the clusters that changed, if it is time to."""
        if self._busy or time.monotonic() < self._next:
            return
        self._busy, began = True, time.monotonic()
        try:
            await asyncio.to_thread(self._score)
        finally:
            took = time.monotonic() - began
            self._busy, self._next = False, time.monotonic() + max(PAUSE, took / SHARE)

    def _score(self) -> None:
        coordinator = self.facts.coordinator
        for cluster, held in coordinator.state.clusters.items():
            proxy = coordinator.proxies.get(cluster)
            if proxy is None or self._known.get(cluster) is held.params:
                continue
            self._known[cluster] = held.params
            try:
                score = float(proxy.score(((1.0, held.params),)))
            except ArtesianError:  # a learner that cannot score has no curve
                continue
            self.facts.chronicle.measure("accuracy", cluster, time.time(), score)


def _row(member: Member) -> dict[str, Any]:
    return {
        "samples": member.samples,
        "answered": member.answered,
        "open": member.receipt.number if member.receipt else None,
        "present": member.present,
        "standing": standing_of(member),
        "set_aside": member.set_aside,
        "mixture": rounded(member.mixture),
    }


def _told(kind: str, by: str, why: str, to: int) -> str:
    """An operator's act in words: what, by whom and why."""
    what = ACTS[kind].format(to=to)
    return what + (f" by {by}" if by else "") + (f": {why}" if why else "")
