"""The one engine. The simulator and the server both drive exactly these verbs.

Every verb works the same way: check; work out what would change, beside the present state; `record` the
event; only then change. Whatever fails before that last step, a refusal or a full disk, changes nothing.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Collection, Mapping, MutableMapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import is_dataclass, replace
from functools import cache, partial
from math import isfinite
from typing import Any, Self

import numpy as np

from artesian.core import (
    Act,
    Algorithm,
    ClientId,
    Cluster,
    ClusterId,
    Desk,
    Event,
    Evidence,
    Learner,
    MeasureContext,
    Measured,
    Member,
    Pace,
    Plan,
    Receipt,
    Reply,
    Snapshot,
    State,
    Step,
    Study,
    Task,
    Tree,
    Upload,
    derive,
)
from artesian.engine.admission import (
    check_client,
    check_mixture,
    check_retry,
    check_upload,
    check_welcome,
    clip_upload,
    origins_of,
    receipt_of,
)
from artesian.engine.defence import Bounded, Defence, bounded, identity, judged, noted
from artesian.engine.drawing import fresh_task, shown
from artesian.engine.judge import Judge
from artesian.engine.outcomes import Outcome, outcome_of
from artesian.engine.reverting import NoTasks, retired, revert
from artesian.engine.standing import HOLDS, QUARANTINED, Standing, change_standing, take_out
from artesian.engine.transition import Change, split
from artesian.errors import NotFinite, SettingError, TaskClosed, UnknownClient
from artesian.params import Layout, Params, keep_buffers, seal
from artesian.storage.codec import digest, plain_fields, to_tree, with_defaults, with_fields

FINITE = float(np.finfo(np.float32).max)
Measure = Callable[[Upload, Receipt], Evidence]
Found = Mapping[str, Tree]
Beside = Callable[[Callable[[], Found]], Callable[[], Found]]  # begins some work; what it returns waits for the result
Watch = Callable[[str], AbstractContextManager[object]]  # goes around a part of the work, which it is told the name of


class Coordinator:
    """Joins, uploads and departures in; replies out."""

    def __init__(
        self,
        algorithm: Algorithm,
        state: State,
        *,
        pace: Pace | None = None,
        proxies: Mapping[ClusterId, Learner] | None = None,
        plan: Plan | None = None,
        clip: float | None = None,
        publish_after: int = 1,
        defence: Defence | None = None,
        record: Callable[[Event], None] | None = None,
        desk: Desk | None = None,
        open_tasks: MutableMapping[ClientId, Task] | None = None,
        beside: Beside = cache,
        watch: Watch = nullcontext,
    ) -> None:
        """`open_tasks` is where open tasks are kept; the coordinator writes to it. None: in memory.

        `beside` begins a study; by default it is made when its result is needed. `watch` goes around what uses the
        proxy sets: appraising, comparing and studying.
        """
        self.algorithm = algorithm
        self.pace = pace or algorithm.pace()
        self.proxies = dict(proxies or {})
        self.plan = plan.settings if plan is not None else {}
        self.clip = clip  # the longest change an upload may bring: longer ones are shortened to it
        self.publish_after = publish_after  # how many clients must have changed a cluster before tasks show it
        self.defence = defence  # what one member may do; None: anything
        self.record = record or _ignore
        self._keeps_pace = pace is not None  # whatever the algorithm's settings become
        self.notes: Mapping[str, float] = {}  # what the last event's fold noted, if it folded
        self.proves = False  # do events carry digests of what they gave and changed?
        self.outcome: Outcome = {}  # those of the last event
        self.changes = 0  # how often the clusters changed since the start, by folds and by operators
        self._known: Event | None = None  # in a replay: what was found the first time
        self.beside = beside
        self.watch = watch
        self._begun: tuple[int, Callable[[], Found]] | None = None  # version and result of the study under way
        self._judge: Judge | None = None
        self._members = dict(state.members)
        self._state = replace(state, members=self._members)
        self._desk = desk or Desk()
        self._open_tasks = {} if open_tasks is None else open_tasks

    @classmethod
    def start(
        cls, algorithm: Algorithm, layout: Layout, start: Sequence[Params], seed: int = 0, **options: Any
    ) -> Self:
        """A federation nobody has joined yet."""
        for params in start:
            layout.check(params)
        own = [seal(params.copy()) for params in start]
        coordinator = cls(algorithm, algorithm.init(layout, own, seed), **options)
        clusters = coordinator._state.clusters
        check_proxies(algorithm, clusters, coordinator.proxies)
        found = coordinator._appraise({k: c.params for k, c in clusters.items()})
        coordinator._state = replace(
            coordinator._state,
            clusters={k: replace(c, loss=found.get(k)) for k, c in clusters.items()},
            named=len(clusters),
        )
        coordinator._study_first()
        return coordinator

    @classmethod
    def restore(cls, algorithm: Algorithm, snapshot: Snapshot, **options: Any) -> Self:
        """The coordinator that took this snapshot."""
        restored = cls(
            algorithm, snapshot.state, **{"desk": snapshot.desk, "open_tasks": dict(snapshot.open_tasks), **options}
        )
        if snapshot.settings:
            restored._take(snapshot.settings)
        return restored

    @property
    def state(self) -> State:
        """The present state; its tables are for reading only."""
        return self._state

    @property
    def desk(self) -> Desk:
        """What is open, pending and waiting."""
        return self._desk

    def snapshot(self, *, tasks: bool = True) -> Snapshot:
        """A copy of all that is known now; without open tasks for whoever keeps them elsewhere."""
        state = replace(self._state, members=dict(self._members))
        return Snapshot(state, self._desk, dict(self._open_tasks) if tasks else {}, self.settings)

    def digest(self) -> str:
        """A name for exactly this state, desk and set of open tasks."""
        return digest(to_tree(self.snapshot()))

    # the verbs

    def join(self, client: ClientId, samples: int, changed: bool = False) -> list[Reply]:
        """A client is here and wants a task. Repeating it is harmless; `changed` says that its data changed."""
        check_client(client, samples)
        member = self.known(client) or Member(samples, present=False)
        check_welcome(client, member)
        if member.present and member.receipt is None and client in self._desk.waiting and changed:
            return self._move(client, samples)
        if member.present and (member.receipt is not None or client in self._desk.waiting):
            return self.recorded(client)
        change = self._change()
        change.members[client] = replace(member, samples=self._counted(client, samples), present=True, reset=False)
        change.desk = self._noted(client, samples)
        change.state = replace(change.state, present=change.state.present + (not member.present))
        retired = {name: member for name, member in change.desk.retired.items() if name != client}
        change.desk = replace(change.desk, waiting=(*change.desk.waiting, client), retired=retired)
        return self._settle(Event("join", client, samples), change)

    def _move(self, client: ClientId, samples: int) -> list[Reply]:
        """A waiting client says that its data changed: the algorithm may have something to do for it alone."""
        draft = self.algorithm.moved(shown(self._state, self._desk), client)
        if draft is None:
            return []
        change = self._change()
        change.members[client] = replace(self._members[client], samples=samples)
        self._answer(change, (client,), replace(draft, solo=True, pause=True))
        return self._settle(Event("join", client, samples, changed=True), change)

    def upload(self, measured: Measured) -> list[Reply]:
        """An upload that was admitted and measured: [] while a round is open, many replies when it closes.

        Its numbers were checked when it was admitted; what may have changed since is checked here.
        """
        upload = measured.upload
        receipt = self._answered(upload)
        if receipt is None:
            return self.recorded(upload.client)
        check_mixture(self._state, upload, receipt)
        if not all(isfinite(number) for number in measured.evidence.values()):
            raise NotFinite(
                f"Measuring the upload gave NaN or Inf: {dict(measured.evidence)}", "Train again at a lower rate"
            )
        client, change = upload.client, self._change()
        samples = self._counted(client, upload.samples)
        change.members[client] = replace(
            self._members[client],
            samples=samples,
            receipt=None,
            answered=upload.number,
            digest=measured.digest or digest(to_tree(upload)),
        )
        change.tasks[client] = None
        measured = replace(measured, receipt=receipt)
        event = Event("upload", client, measured=measured)  # with the samples that were claimed
        if self._members[client].quarantined:
            measured = replace(measured, length=0.0, aside=QUARANTINED)
        measured = replace(measured, upload=replace(upload, samples=samples)) if samples != upload.samples else measured
        change.desk = replace(self._noted(client, upload.samples, measured.length), open=change.desk.open - 1)
        self._spend(change, measured)
        if measured.aside:
            change.put_aside(measured, measured.aside)
        elif receipt.solo:
            self._fold(change, (measured,), solo=True)
        else:
            change.desk = replace(change.desk, pending=(*change.desk.pending, measured))
        if receipt.solo and not receipt.pause:
            self._answer(change, (client,))
        else:
            change.desk = replace(change.desk, waiting=(*change.desk.waiting, client))
        return self._settle(event, change)

    def leave(self, client: ClientId) -> list[Reply]:
        """A client is gone. What it has uploaded stays; its open task is withdrawn."""
        member = self.member(client)
        if not member.present:
            return []
        change = self._change()
        take_out(change, client)
        return self._settle(Event("leave", client), change)

    def expire(self, client: ClientId, number: int) -> list[Reply]:
        """Patience with this task is over: the round goes on without it. The client may join again."""
        member = self.member(client)
        if member.receipt is None or member.receipt.number != number:
            return []
        return self._settle(Event("expiry", client, number=number), self._withdraw(client, member))

    def flush(self) -> list[Reply]:
        """Fold what is pending although the pace would wait: the end of a run."""
        change = self._change()
        if not change.desk.pending:
            return []
        self._learn(change)
        pending, change.desk = change.desk.pending, replace(change.desk, pending=())
        self._fold(change, pending)
        return self._settle(Event("flush"), change)

    def change_standing(self, kind: Standing, client: ClientId, act: Act | None = None) -> list[Reply]:
        """Revoke or reset a member, put it in quarantine or release it; nothing happens if that is so already."""
        if HOLDS[kind](self.known(client) or self.member(client)):
            return []
        change = self._change()
        change_standing(change, kind, client)
        return self._settle(Event(kind, client, act=act or Act()), change)

    def rollback(self, past: Snapshot, act: Act | None = None) -> list[Reply]:
        """Go on from a past state: numbers go on, members stay members, open tasks are replaced."""
        return self._go_on_from(Event("rollback", act=replace(act or Act(), snapshot=past)), past)

    def forget(self, client: ClientId, without: Snapshot, act: Act | None = None) -> list[Reply]:
        """Go on from the state `without` this member's uploads; its record goes, and its numbers never restart."""
        left = retired(without, client, self.member(client))
        return self._go_on_from(Event("forget", client, act=replace(act or Act(), snapshot=left)), left)

    def _go_on_from(self, event: Event, past: Snapshot) -> list[Reply]:
        change = self._change()
        again = revert(change, past, gone=(event.client,) if event.client else ())
        self._appraise_missing(change)
        self._begun = None  # a study under way belongs to the state that is left
        self._answer(change, again)
        return self._settle(event, change)

    def sibling(self, snapshot: Snapshot, pace: Pace | None = None) -> Self:
        """A coordinator of the same federation that goes on from a snapshot, records nothing and keeps no tasks."""
        own = pace or (self.pace if self._keeps_pace else None)
        options: dict[str, Any] = {"pace": own, "proxies": self.proxies, "desk": snapshot.desk}
        other = type(self)(self.algorithm, snapshot.state, open_tasks=NoTasks(), **options)
        other._take(snapshot.settings or self.settings)
        return other

    def ask_pace(self) -> list[Reply]:
        """Ask the pace whether to fold and whom to answer, though nothing happened here: for a rebuilding."""
        return self._settle(Event("flush"), self._change())

    def retire(self, client: ClientId, stone: Member) -> None:
        """If this name joins, its numbers go on from there: for a rebuilding."""
        self._desk = replace(self._desk, retired={**self._desk.retired, client: stone})

    @property
    def settings(self) -> dict[str, Any]:
        """The hyper-parameters in force."""
        return hyper_parameters(self.algorithm, self.plan, self.clip, self.publish_after, self.defence)

    def adopt(self, settings: Mapping[str, Any]) -> list[Reply]:
        """Go on with other hyper-parameters; nothing happens if they are those in force."""
        if settings == self.settings:
            return []
        before = (self.algorithm, self.plan, self.clip, self.publish_after, self.defence, self.pace)
        try:
            self._take(settings)
            change = self._change()
            self._appraise_missing(change)
            return self._settle(Event("settings", settings=settings), change)
        except BaseException:
            self.algorithm, self.plan, self.clip, self.publish_after, self.defence, self.pace = before
            raise

    def _take(self, settings: Mapping[str, Any]) -> None:
        if settings["algorithm"] != self.settings["algorithm"]:
            self.algorithm = with_fields(self.algorithm, with_defaults(self.algorithm, settings["algorithm"]))
        self.plan, self.clip = dict(settings["plan"]), settings["clip"]
        self.publish_after = settings["publish_after"]
        told = settings.get("defence")  # older settings have none
        self.defence = None if told is None else Defence(**told)
        self._begun = None  # by other settings: a study under way is made again
        if not self._keeps_pace:
            self.pace = self.algorithm.pace()

    def _appraise_missing(self, change: Change) -> None:
        """Appraise the clusters that have no loss yet: other settings may ask for it."""
        clusters = change.state.clusters
        found = self._appraise({k: cluster.params for k, cluster in clusters.items() if cluster.loss is None})
        if found:
            told = {k: replace(cluster, loss=found.get(k, cluster.loss)) for k, cluster in clusters.items()}
            change.state = replace(change.state, clusters=told)
            change.appraisals.update(found)

    def replay(self, event: Event) -> list[Reply]:
        """Do again what a journal says was done: nothing is measured, appraised or recorded anew."""
        record, self.record, self._known = self.record, _ignore, event
        try:
            return self.repeat(event)
        finally:
            self.record, self._known = record, None

    def repeat(self, event: Event) -> list[Reply]:
        """Do again what an event says was done; outside a replay all is appraised anew, and recorded."""
        match event.kind:
            case "join":
                return self.join(event.client, event.samples, event.changed)
            case "upload":
                assert event.measured is not None
                return self.upload(event.measured)
            case "leave":
                return self.leave(event.client)
            case "expiry":
                return self.expire(event.client, event.number)
            case "flush":
                return self.flush()
            case "settings":
                return self.adopt(event.settings)
            case "rollback" | "forget":
                assert event.act is not None and event.act.snapshot is not None
                return self._go_on_from(event, event.act.snapshot)
            case _:
                return self.change_standing(event.kind, event.client, event.act)

    # around the verbs

    def receive(self, upload: Upload) -> list[Reply]:
        """Admit, measure and fold in one go."""
        receipt = self.admit(upload)
        if receipt is None:
            return self.recorded(upload.client)
        return self.upload(self.measure(upload, receipt))

    def admit(self, upload: Upload) -> Receipt | None:
        """The receipt of the task an upload answers; None for a retry of one already accepted; refused otherwise."""
        receipt = self._answered(upload)
        if receipt is not None:
            check_upload(self._state, upload, receipt)
            check_mixture(self._state, upload, receipt)
        return receipt

    def _answered(self, upload: Upload) -> Receipt | None:
        """The receipt of the open task an upload answers; None for a retry."""
        member = self.member(upload.client)
        check_welcome(upload.client, member)
        receipt = member.receipt
        if receipt is None or receipt.number != upload.number:
            check_retry(upload, member)
            return None
        return receipt

    def measure(
        self, upload: Upload, receipt: Receipt, evidence: Evidence | None = None, by: Measure | None = None
    ) -> Measured:
        """Measure an admitted upload, clipped where that is asked for. Touches no state, so it may run anywhere.

        `evidence` is what was measured before, where nothing had to be clipped; `by` measures in place of this process.
        """
        sent, found = upload, self._bounded(upload)
        upload = found.upload
        if found.aside:
            evidence = {}
        elif evidence is None or upload is not sent:
            evidence = (by or self.measure_here)(upload, receipt)
        given = self._task_of(upload).models if self.algorithm.needs_given and not found.aside else {}
        as_sent = "" if upload is sent else digest(to_tree(sent))
        return Measured(upload, receipt, evidence, as_sent, given, found.length, found.spent, found.aside)

    def measure_here(self, upload: Upload, receipt: Receipt) -> Evidence:
        """What the algorithm measures of an upload, with the proxies of this process."""
        return self.algorithm.measure(upload, MeasureContext(receipt, self.proxies))

    def _bounded(self, upload: Upload) -> Bounded:
        """The upload within the operator's clip and the bounds of the defence."""
        if not upload.models or (self.clip is None and self.defence is None):
            return Bounded(upload)
        layout, task = self._state.layout, self._task_of(upload)
        if self.clip is not None:
            upload = clip_upload(layout, upload, origins_of(layout, upload, task), self.clip)
        if self.defence is None:
            return Bounded(upload)
        member = self.member(upload.client)
        return bounded(self.defence, layout, upload, task, self._desk.ledger, member, self._state.present)

    def _counted(self, client: ClientId, claimed: int) -> int:
        """How many of the samples count that a client claims."""
        return claimed if self.defence is None else self.defence.counted(claimed, self._desk.ledger, client)

    def _noted(self, client: ClientId, samples: int, length: float = 0.0) -> Desk:
        """The desk, its ledger with a member's newest numbers."""
        if self.defence is None:
            return self._desk
        return replace(self._desk, ledger=noted(self._desk.ledger, client, samples, length))

    def _spend(self, change: Change, measured: Measured) -> None:
        """Count an upload that is taken, and what it takes from its member's budget."""
        if self.defence is None or measured.aside:
            return
        client, ledger = measured.upload.client, change.desk.ledger
        spent = self.defence.outstanding(ledger, self._members[client], self._state.present) + measured.spent
        ledger = replace(ledger, uploads=ledger.uploads + 1)
        change.desk = replace(change.desk, ledger=ledger)
        change.members[client] = replace(change.members[client], spent=spent, spent_at=ledger.uploads)

    def _task_of(self, upload: Upload) -> Task:
        """The open task an upload answers."""
        task = self._open_tasks.get(upload.client)
        if task is None or task.number != upload.number:
            raise TaskClosed("The task was withdrawn meanwhile", "Fetch the task again")
        return task

    def member(self, client: ClientId) -> Member:
        """What is known of a client; a stranger is refused."""
        if client not in self._members:
            raise UnknownClient(f"Nobody joined under the id {client!r}", "Join first")
        return self._members[client]

    def known(self, client: ClientId) -> Member | None:
        """What is known of a client, even if it is only where the numbers of a forgotten one go on."""
        return self._members.get(client) or self._desk.retired.get(client)

    def recorded(self, client: ClientId) -> list[Reply]:
        """The open task of a client, as it was given."""
        task = self._open_tasks.get(client)
        return [Reply(client, task)] if task is not None else []

    def preview(self, client: ClientId) -> Task:
        """What this client would predict with now; nothing is given out."""
        return self.algorithm.draw(shown(self._state, self._desk), client)

    def draw(self, client: ClientId) -> Task:
        """What a member may use now without answering its task; nothing changes, and its task stays open."""
        return fresh_task(self.algorithm, self._state, self._desk, client)

    # how a verb changes the state

    def _change(self) -> Change:
        change = Change(self._state, self._desk)
        view: ChainMap[ClientId, Member] = ChainMap(change.members, self._members)
        change.state = replace(self._state, members=view)
        return change

    def _withdraw(self, client: ClientId, member: Member) -> Change:
        change = self._change()
        if member.receipt is not None:
            change.desk = replace(change.desk, open=change.desk.open - 1)
            change.tasks[client] = None
        change.members[client] = replace(member, receipt=None)
        return change

    def _settle(self, event: Event, change: Change) -> list[Reply]:
        """Ask the pace its two questions, record the event, and make the change true."""
        if self.pace.folds(change.desk):
            self._learn(change)
            pending, change.desk = change.desk.pending, replace(change.desk, pending=())
            self._fold(change, pending)
        if answered := self.pace.answers(change.desk, change.state):
            assert set(answered) <= set(change.desk.waiting), f"a pace answers those who wait: {answered}"
            self._answer(change, answered)
        event = replace(
            event,
            appraisals=change.appraisals,
            compared=change.compared,
            found=change.found,
            judged=change.judged,
            set_aside=change.set_aside,
        )
        compared = self._known is not None and bool(self._known.outcome)
        self.outcome = outcome_of(self._state, change) if self.proves or compared else {}
        self.record(replace(event, outcome=self.outcome))
        self._members.update(change.members)
        for client in change.gone:
            self._members.pop(client, None)
        self.changes += change.state.clusters is not self._state.clusters
        self._state = replace(change.state, members=self._members)
        self._desk, self.notes = change.desk, change.notes
        self.begin_study()
        for client, task in change.tasks.items():
            if task is not None:
                self._open_tasks[client] = task
            elif client in self._open_tasks:
                del self._open_tasks[client]
        return change.replies

    def _fold(self, change: Change, measured: Sequence[Measured], solo: bool = False) -> None:
        state = change.state
        measured, alone = self._kept(change, measured)
        if not measured:
            return
        step = alone or self.algorithm.fold(state, measured)
        clusters = split(state.clusters, step)
        changed = {k: self._finished(clusters, k, params) for k, params in step.clusters.items()}
        change.take(step, clusters, changed, self._appraise(changed), solo)
        change.publish(clusters, changed, measured, self.publish_after, step)

    def _kept(self, change: Change, measured: Sequence[Measured]) -> tuple[Sequence[Measured], Step | None]:
        """The uploads of a fold that raise no held-back loss too far; and the step, where one alone was judged."""
        if self.defence is None or not self.defence.rise:
            return measured, None
        steps: dict[str, Step] = {}
        rises = self._known.judged if self._known is not None else self._rises(change.state, measured, steps)
        named = {identity(m.upload): m for m in measured}
        own = {name: (m.upload.client, rises[name]) for name, m in named.items() if name in rises}
        ledger, refused = judged(self.defence, change.desk.ledger, own)
        for name, why in refused.items():
            change.put_aside(named[name], why)
        change.judged.update({name: rise for name, (_, rise) in own.items()})
        change.desk = replace(change.desk, ledger=ledger)
        kept = [m for name, m in named.items() if name not in refused]
        return kept, steps.popitem()[1] if len(kept) == len(measured) == len(steps) == 1 else None

    def _rises(self, state: State, measured: Sequence[Measured], steps: dict[str, Step]) -> dict[str, float]:
        """By how much of it the held-back loss of a cluster would rise, at the most, if each were folded alone."""
        found: dict[str, float] = {}
        for m in measured if self.proxies else ():
            if m.upload.models:
                step = steps[identity(m.upload)] = self.algorithm.fold(state, (m,))
                with self.watch("appraising"):
                    found[identity(m.upload)] = self.judge.rise(state, step, self.algorithm.stands_for)
        return found

    @property
    def judge(self) -> Judge:
        """What judges uploads by held-back samples of the proxy sets."""
        most = self.defence.rise_samples if self.defence else 0
        if self._judge is None or self._judge.most != most:
            self._judge = Judge(self.proxies, most, self._state.seed)
        return self._judge

    def _finished(self, clusters: Mapping[ClusterId, Cluster], cluster: ClusterId, params: Params) -> Params:
        """A folded model as it is kept: finite, sealed, with the buffers the algorithm wants."""
        layout = self._state.layout
        layout.check(params, FINITE)  # sums of sound uploads may be larger than each: that blocks nobody
        if self.algorithm.buffers == "server" and cluster in clusters:
            params = keep_buffers(layout, clusters[cluster].params, params)
        return seal(params)

    def _appraise(self, changed: Mapping[ClusterId, Params]) -> dict[ClusterId, float]:
        if self._known is not None:
            return dict(self._known.appraisals)
        found = {}
        with self.watch("appraising"):
            for k, params in changed.items():
                loss = self.algorithm.appraise(params, self.proxies[k]) if k in self.proxies else None
                if loss is not None:
                    found[k] = loss
        if not all(isfinite(loss) for loss in found.values()):
            raise NotFinite(f"A cluster's loss on its proxy set is NaN or Inf: {found}", "Train at a lower rate")
        return found

    def _answer(self, change: Change, clients: Sequence[ClientId], draft: Task | None = None) -> None:
        chosen = set(clients)
        assert len(chosen) == len(clients), f"a pace answers nobody twice: {clients}"
        for client in clients:
            member, state = change.state.members[client], shown(change.state, change.desk)
            wanted = draft or self.algorithm.reply(state, client, self._compare(change, state, client))
            task = self._number(state, client, member.number + 1, wanted)
            change.members[client] = replace(member, receipt=receipt_of(task), number=task.number)
            change.tasks[client] = task
            change.replies.append(Reply(client, task))
        waiting = tuple(client for client in change.desk.waiting if client not in chosen)
        desk = change.desk
        change.desk = replace(desk, open=desk.open + len(chosen), waiting=waiting, issued=desk.issued + len(chosen))

    def _compare(self, change: Change, state: State, client: ClientId) -> Evidence:
        """How the replies do that a client might be given; in a replay, what was found the first time."""
        if self._known is not None:
            found = self._known.compared.get(client, {})
        else:
            with self.watch("comparing"):
                found = self.algorithm.compare(state, client, self.proxies)
        if not all(isfinite(number) for number in found.values()):
            raise NotFinite(f"Comparing replies gave NaN or Inf: {dict(found)}", "Train at a lower rate")
        if found:
            change.compared[client] = found
            change.notes.update({name: number for name, number in found.items() if "/" not in name})
        return found

    def _learn(self, change: Change) -> None:
        """A study whose result is needed by now comes into force; the fold waits for it."""
        study = self.algorithm.study(change.state)
        if study is None or study.needed > change.state.version:
            return
        change.learn(self._known.found if self._known is not None else self._result(study))

    def _result(self, study: Study) -> Found:
        if self._begun is None or self._begun[0] != study.state.version:
            self._begun = study.state.version, self.beside(self._found(study))
        try:
            with self.watch("studying"):
                return self._begun[1]()
        except BaseException:
            self._begun = None  # the next fold tries again
            raise

    def _found(self, study: Study) -> Callable[[], Found]:
        return partial(_find, self.algorithm, study.state, self.proxies, Plan.of(self.plan))

    def begin_study(self) -> None:
        """Begin what an algorithm wants done beside the uploads; not in a replay, which has its result."""
        study = None if self._known is not None else self.algorithm.study(self._state)
        if study is not None and (self._begun is None or self._begun[0] != study.state.version):
            self._begun = study.state.version, self.beside(self._found(study))

    def _study_first(self) -> None:
        """What an algorithm must know before anybody comes."""
        study = self.algorithm.study(self._state)
        if study is not None and study.needed <= self._state.version:
            change = self._change()
            change.learn(self.beside(self._found(study))())
            self._state = replace(change.state, members=self._members)

    def _number(self, state: State, client: ClientId, number: int, draft: Task) -> Task:
        settings = {**self._cooled(number), **draft.settings, "seed": derive(state.seed, client, number)}
        return replace(draft, number=number, base=state.version, settings=settings)

    def _cooled(self, number: int) -> dict[str, Any]:
        """The plan of a client's training of this number."""
        plan = {name: value for name, value in self.plan.items() if name != "cooling"}
        cooling = self.plan.get("cooling", 1.0)
        return plan if cooling == 1 else {**plan, "rate": plan["rate"] * cooling ** (number - 1)}


def check_proxies(algorithm: Algorithm, clusters: Collection[ClusterId], proxies: Mapping[ClusterId, Learner]) -> None:
    """An algorithm that measures clusters on proxy sets needs one for each, and none of them empty."""
    if not algorithm.needs_proxies(len(clusters)):
        return
    for k in clusters:
        if k not in proxies or proxies[k].samples == 0:
            raise SettingError(
                f"{algorithm.name} needs a proxy set for every cluster, and {k} has none",
                "Give proxies for every cluster",
            )


def hyper_parameters(
    algorithm: Algorithm,
    plan: Mapping[str, Any],
    clip: float | None,
    publish_after: int,
    defence: Defence | None = None,
) -> dict[str, Any]:
    """What may change from one start of a server to the next, as a tree."""
    own: dict[str, Tree] = plain_fields(algorithm) if is_dataclass(algorithm) else {}
    found = {"algorithm": own, "plan": dict(plan), "clip": clip, "publish_after": publish_after}
    return found | {"defence": None if defence is None else defence.tree}


def _find(algorithm: Algorithm, state: State, proxies: Mapping[ClusterId, Learner], plan: Plan) -> Found:
    """The result of a study, which is finite."""
    found = algorithm.find(state, proxies, plan)
    if not _is_finite(found):
        raise NotFinite(f"A study of {algorithm.name} gave NaN or Inf", "Train at a lower rate")
    return found


def _is_finite(tree: Tree) -> bool:
    if isinstance(tree, Mapping):
        return all(map(_is_finite, tree.values()))
    if isinstance(tree, (list, tuple)):
        return all(map(_is_finite, tree))
    return not isinstance(tree, (float, np.ndarray)) or bool(np.isfinite(tree).all())


def _ignore(event: Event) -> None:
    pass
