"""The service around a coordinator: many threads measure, one writes, and events are durable before the response."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any, Self, TypeVar

from artesian.algorithms.estimators import Calibration, Estimates
from artesian.core import ClientId, ClusterId, Event, Reply, Task, Tree, Upload
from artesian.engine.coordinator import Coordinator
from artesian.engine.view import Measure
from artesian.engine.workbench import Beside, Found
from artesian.errors import MachineError, Refused, StorageError, StoreDamaged, StudyFailed
from artesian.server.federation import Federation
from artesian.server.log import CLUSTERS, DEFENCE, PAGE, STUDIES
from artesian.server.replaying import replay
from artesian.server.studies import Studies
from artesian.server.versions import versions_of
from artesian.storage.failpoints import reach
from artesian.storage.retention import ALL, NOTHING, Retention
from artesian.storage.store import Store

T = TypeVar("T")
Report = Callable[[str], None]  # shows a line of progress
Observe = Callable[[Event, int], None]  # an event, and the version before it
Check = Callable[[], None]  # raises a refusal
REPORT_EVERY = 2.0  # seconds between two lines
ALARM = 3  # uploads of one member that were set aside: a line of the log, and again after as many more
SUSPICIOUS = 0.2  # of a member's uploads: fewer are set aside of honest members whose data change
WON = "reply_"  # what begins the name of a reply that won a comparison, among what comparing found


@dataclass
class Counts:
    """What the service has done since it started."""

    uploads: int = 0
    refused: int = 0
    reasons: dict[str, int] = field(default_factory=dict)  # refused, by the name of the error
    clipped: int = 0
    set_aside: int = 0
    snapshots: int = 0
    snapshots_failed: int = 0
    draws: int = 0  # models sent between uploads
    replies: dict[str, int] = field(default_factory=dict)  # how often each kind won, where an algorithm compares them


@dataclass(frozen=True)
class Taken:
    """The event that an upload became."""

    number: int  # of the upload
    event: int
    chain: str
    time: str  # in UTC, of the event


def is_alarming(times: int, number: int) -> bool:
    """Whether so many uploads set aside, by the upload of this number, are worth a warning: at every few of them."""
    return times > 0 and times % ALARM == 0 and times >= SUSPICIOUS * number


class Service:
    """One federation, served. All verbs may be called at once; one thread, the writer, changes the state."""

    def __init__(
        self,
        coordinator: Coordinator,
        store: Store | None = None,
        *,
        snapshot_every: int = 100,
        keep_uploads: bool = False,
        retain: Retention = NOTHING,
        measurers: int = 2,
        measure: Measure | None = None,
        studies: Studies | None = None,
        name: str = "",
    ) -> None:
        """`measure` measures uploads elsewhere, in place of this process's own threads; `name` is the federation's."""
        self.coordinator, self.store, self.name = coordinator, store, name
        self._taken: dict[ClientId, Taken] = {}  # the newest upload of each client
        self._newest: float | None = None  # when the newest upload was accepted
        self.failed: MachineError | None = None  # why the last snapshot could not be written
        self.closed = False  # in good order
        self.snapshot_every, self.retain = snapshot_every, ALL if keep_uploads else retain
        self.holding = False  # while a past state is rebuilt, nothing is dropped
        self.counts, self._measure = Counts(), measure
        self._since_snapshot = 0
        self._writer = ThreadPoolExecutor(1, "writer")
        self._measurers = ThreadPoolExecutor(measurers, "measurer")
        self._changed = asyncio.Condition()
        self.stopping = threading.Event()  # long polls end
        self._recorded, coordinator.record = coordinator.record, self._record
        self.observe: Observe | None = None  # is shown every event once it is true, in the writer's turn
        self._unseen: list[tuple[Event, int]] = []
        self.studies = studies or Studies()
        self.studies.report = self._studied
        coordinator.beside, coordinator.proves = self.studies, store is not None
        known = self.calibration
        self._alike = known.alike if known is not None else ()

    @classmethod
    def open(
        cls,
        federation: Federation,
        store: Store,
        report: Report | None = None,
        accept_replay: bool = False,
        **options: Any,
    ) -> Self:
        """Begin a federation in an empty store, or continue the one in it exactly where it stopped.

        Events that this code answers in another way than was recorded are refused, unless `accept_replay`.
        """
        latest = store.latest()
        if latest is None and store.count:
            raise StoreDamaged(f"No snapshot in a store of {store.count} events: {store.folder}", "Restore a backup")
        report, studies, accepted = report or _ignore, Studies(), list[str]()
        if latest is None:
            if callable(federation.start):
                report("making the start models of a new store")
            coordinator, done = federation.begin(open_tasks=store.open_tasks, beside=_first(studies, report)), 0
            store.save(coordinator.snapshot(tasks=False))
        else:
            done, snapshot = latest
            own = {"open_tasks": store.open_tasks, **federation.options()}
            coordinator = Coordinator.restore(federation.algorithm, snapshot, **own)
        writer, accept = store.writer(), accepted.append if accept_replay else None
        for number, event in enumerate(_counted(store.events(done), store.count - done, report), done + 1):
            replay(coordinator, event, number, writer, accept)
        service = cls(coordinator, store, studies=studies, name=federation.name, **options)
        service._take_over(versions_of(federation.algorithm), done, bool(accepted))
        coordinator.adopt(federation.resumed(coordinator.settings))  # an event where settings changed since
        coordinator.begin_study()  # again, if one was under way
        coordinator.learn_losses()
        for client in sorted(set(coordinator.desk.retired) & set(store.secrets())):
            service.clean_up(client)  # a crash came just after it was forgotten
        for line in (*store.notes, *store.old_damage(), *accepted[:1], *service._told()):
            report(line)
        return service

    @property
    def calibration(self) -> Calibration | None:
        """The calibration in force, where the algorithm calibrates its estimates."""
        return self._calibration(self.coordinator.state.memory)

    async def join(self, client: ClientId, samples: int, changed: bool = False) -> Task | None:
        """The client's task, or None until a round begins."""
        replies = await self.run(partial(self._seen, partial(self.coordinator.join, client, samples, changed)))
        await self._wake()
        return self._own(client, replies)

    async def upload(self, upload: Upload, check: Check = lambda: None) -> Task | None:
        """Admit, measure while others do, fold; the next task, or None while a round is open.

        `check` refuses a sender that was expelled meanwhile.
        """
        receipt = await self.run(_after(check, lambda: self.coordinator.admit(upload)))
        if receipt is None:  # a retry
            task = await self.task(upload.client)
            check()
            return task
        measure = partial(self.coordinator.measure, upload, receipt, by=self._measure)
        measured = await asyncio.get_running_loop().run_in_executor(self._measurers, measure)
        replies = await self._fold(_after(check, lambda: self.coordinator.upload(measured)))
        self.counts.uploads += 1
        self._newest = time.monotonic()
        self.counts.clipped += bool(measured.digest)
        reach("between-change-and-answer")
        return self._own(upload.client, replies)

    async def taken(self, client: ClientId, number: int) -> Taken | None:
        """The event that an upload became, also one of an earlier start; None without a store."""
        found = self._taken.get(client)
        if self.store is None or (found is not None and found.number == number):
            return found
        known = await self.run(partial(self.store.find_upload, client, number))
        if known is not None:
            event, chain, at = known
            self._taken[client] = Taken(number, event, chain, utc(at))
        return self._taken.get(client)

    def newest_age(self) -> float | None:
        """Seconds since the newest upload was accepted; None if none was since the start."""
        return None if self._newest is None else time.monotonic() - self._newest

    async def leave(self, client: ClientId, check: Check = lambda: None) -> None:
        """The client is gone."""
        await self._fold(_after(check, lambda: self.coordinator.leave(client)))

    async def wait(self, client: ClientId, seconds: float, welcome: Callable[[], bool] = lambda: True) -> int | None:
        """The number of the client's open task, after waiting for one at most so long, and while it is welcome."""

        def number() -> int | None:
            receipt = self.coordinator.member(client).receipt
            return None if receipt is None else receipt.number

        if number() is None and seconds:
            with suppress(TimeoutError):
                async with self._changed, asyncio.timeout(seconds):
                    await self._changed.wait_for(
                        lambda: number() is not None or self.stopping.is_set() or not welcome()
                    )
        return number()

    async def stop(self) -> None:
        """End every long poll, and the study under way."""
        self.stopping.set()
        self.studies.stop()  # a fold that waits for one is refused
        await self._wake()

    async def task(self, client: ClientId) -> Task | None:
        """The client's open task as it was given, or None. Reading it does not wait for the writer."""
        with suppress(StorageError, KeyError):  # the writer is just replacing it
            found = self._own(client, await asyncio.to_thread(self.coordinator.recorded, client))
            receipt = self.coordinator.member(client).receipt
            if found is not None and receipt is not None and found.number == receipt.number:
                return found
        return self._own(client, await self.run(lambda: self.coordinator.recorded(client)))

    async def watch(self) -> None:
        """Let tasks expire that stay open longer than the pace's patience; each expiry is an event."""
        patience = self.coordinator.pace.patience
        since: dict[tuple[ClientId, int], float] = {}
        while patience is not None:
            now, members = time.monotonic(), await self.run(lambda: dict(self.coordinator.state.members))
            opened = {(c, m.receipt.number) for c, m in members.items() if m.receipt is not None}
            since = {key: since.get(key, now) for key in opened}
            for client, number in sorted(key for key, then in since.items() if now - then >= patience):
                with suppress(StorageError, StudyFailed, Refused):  # tried again a moment later
                    await self._fold(partial(self.coordinator.expire, client, number))
            await asyncio.sleep(min(1.0, patience / 4))

    async def run(self, job: Callable[[], T]) -> T:
        """Do a job in the writer's thread, when its turn comes."""
        return await asyncio.get_running_loop().run_in_executor(self._writer, job)

    def close(self) -> None:
        """Finish the writer's jobs, take a snapshot, close everything; `failed` says why there is no snapshot."""
        self.studies.close()
        self._measurers.shutdown(wait=False, cancel_futures=True)  # what is not folded was not acknowledged
        try:
            if self.store is not None:
                self._writer.submit(self._save).result()
        except MachineError as error:  # nothing is lost: the events are there
            self.failed = error
        finally:
            self._writer.shutdown()
            if self.store is not None:
                self.store.close()
        self.closed = self.failed is None

    # inside

    def _own(self, client: ClientId, replies: list[Reply]) -> Task | None:
        return next((reply.task for reply in replies if reply.client == client), None)

    async def act(self, change: Callable[[], T]) -> T:
        """Do what an operator wants, in the writer's turn, and wake those who wait for a task."""
        return await self._fold(change)

    def save(self) -> None:
        """Take a snapshot now; in the writer's turn only."""
        if self.store is not None:
            self._save()

    def clean_up(self, client: ClientId) -> None:
        """Drop what is left of a member who was forgotten, its secret last; in the writer's turn only."""
        assert self.store is not None
        snapshot = self.coordinator.snapshot(tasks=False)
        self.store.save(snapshot, retain=ALL)  # a start needs nothing older from here on
        dropped = self.store.drop_snapshots_of(client)
        rounds = self.coordinator.pace.in_rounds  # another forgetting would need the uploads that go now
        self.store.save(snapshot, retain=NOTHING if rounds else self.retain, at_once=True)
        self.store.purge(dropped)
        self.store.drop_secret(client)

    async def _fold(self, change: Callable[[], T]) -> T:
        """Make a change that may fold, with a snapshot when one is due, and wake those who wait for a task."""
        result = await self.run(partial(self._then_snapshot, change))
        await self._wake()
        return result

    async def _wake(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    def _then_snapshot(self, change: Callable[[], T]) -> T:
        before = set(self.coordinator.state.clusters)
        result = self._seen(change)
        self._log_clusters(before)
        self._since_snapshot += 1
        if self.store is not None and self._since_snapshot >= self.snapshot_every:
            try:
                self._save()
            except StorageError:  # the change is safe in its event; the snapshot is tried again
                self.counts.snapshots_failed += 1
        return result

    def _seen(self, change: Callable[[], T]) -> T:
        """Make a change; whoever observes is shown its events once they are true."""
        result = change()
        events, self._unseen = self._unseen, []
        if self.observe is not None:
            for event, version in events:
                try:
                    self.observe(event, version)
                except Exception:  # what happened is true and on disk, whoever fails to note it
                    PAGE.exception("the live page could not note an event", extra={"fields": {"kind": event.kind}})
        return result

    def _log_clusters(self, before: set[ClusterId]) -> None:
        """One line of the log where clusters were found, divided or dropped."""
        state = self.coordinator.state
        if before != set(state.clusters):
            fields = {"clusters": len(state.clusters), "version": state.version}
            changes = {"born": sorted(set(state.clusters) - before), "gone": sorted(before - set(state.clusters))}
            CLUSTERS.info("clusters", extra={"fields": fields | changes})

    def _take_over(self, versions: Mapping[str, str], done: int, accepted: bool) -> None:
        """Where other code wrote last, begin with a snapshot: this code never has to replay what that one wrote."""
        assert self.store is not None
        if accepted or versions != self.store.writer():
            if self.store.count > done:
                self.store.save(self.coordinator.snapshot(tasks=False), retain=self.retain)
            self.store.begin_stretch(versions)

    def _save(self) -> None:
        assert self.store is not None
        self.store.save(self.coordinator.snapshot(tasks=False), retain=ALL if self.holding else self.retain)
        self._since_snapshot = 0
        self.counts.snapshots += 1

    def _record(self, event: Event) -> None:
        if self.store is None:
            self._recorded(event)
        else:
            self._keep(event, self.store)
        if self.observe is not None:
            self._unseen.append((event, self.coordinator.state.version))
        for found in event.compared.values():
            for name in (name.removeprefix(WON) for name, number in found.items() if name.startswith(WON) and number):
                self.counts.replies[name] = self.counts.replies.get(name, 0) + 1
        for name, why in event.set_aside.items():
            client, _, number = name.rpartition("/")
            self._put_aside(client, int(number), why)

    def _keep(self, event: Event, store: Store) -> None:
        """Write an event to disk; of an upload, what an acknowledgement will say."""
        at = time.time()
        count = store.append(event, at)
        if event.measured is not None:
            upload = event.measured.upload
            self._taken[upload.client] = Taken(upload.number, count, store.chain, utc(at))

    def _put_aside(self, client: ClientId, number: int, why: str) -> None:
        """Count an upload that is not folded; a line of the log for it, and a warning at every few of one member."""
        self.counts.set_aside += 1
        times = self.coordinator.member(client).set_aside + 1
        fields = {"client": client, "number": number, "why": why, "times": times}
        DEFENCE.info("upload set aside", extra={"fields": fields})
        if is_alarming(times, number):
            DEFENCE.warning("a member's uploads are set aside again and again", extra={"fields": fields})

    def suspects(self) -> list[ClientId]:
        """Members of whom several uploads were set aside, and not only a few of many."""
        known = dict(self.coordinator.state.members).items()
        return sorted(c for c, m in known if m.set_aside >= max(ALARM, SUSPICIOUS * m.answered))

    def _calibration(self, memory: Mapping[str, Tree]) -> Calibration | None:
        algorithm = self.coordinator.algorithm
        return algorithm.calibration(memory) if isinstance(algorithm, Estimates) else None

    def _studied(self, found: Found, seconds: float) -> None:
        """One line of the log for a study, and a warning where other clusters than before cannot be told apart."""
        known, fields = self._calibration(found), {"seconds": round(seconds, 3)}
        if known is not None:
            fields |= {"version": known.version, "divergence": round(known.divergence, 4), "alike": len(known.alike)}
        STUDIES.info("study", extra={"fields": fields})
        if known is not None and known.alike != self._alike:
            self._alike = known.alike
            for pair in known.alike:
                STUDIES.warning("clusters cannot be told apart", extra={"fields": {"clusters": pair}})

    def _told(self) -> Iterator[str]:
        """What an operator reads of the estimates when the server starts."""
        if self.calibration is not None and self.studies.made:
            yield f"prepared the estimates of mixtures in {self.studies.seconds:.1f} s"
        for one, two in self._alike:
            yield f"the clusters {one} and {two} cannot be told apart: clients get equal shares of them"


def utc(at: float | None = None) -> str:
    """A time in seconds, or now, as text to the millisecond."""
    moment = datetime.fromtimestamp(round(time.time() if at is None else at, 3), UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _ignore(line: str) -> None:
    pass


def _after(check: Check, change: Callable[[], T]) -> Callable[[], T]:
    """A change that is made only where nothing is to be refused by then."""

    def checked() -> T:
        check()
        return change()

    return checked


def _first(studies: Studies, report: Report) -> Beside:
    """Begins the study that an algorithm needs before anybody comes."""

    def begin(work: Callable[[], Found]) -> Callable[[], Found]:
        report("making the algorithm's first study")
        return studies.at_once(work)

    return begin


def _counted(events: Iterable[Event], total: int, report: Report) -> Iterator[Event]:
    """The events, with a line of progress every few seconds."""
    last = time.monotonic()
    for number, event in enumerate(events, 1):
        yield event
        if time.monotonic() - last >= REPORT_EVERY:
            report(f"replaying {number}/{total} events")
            last = time.monotonic()
