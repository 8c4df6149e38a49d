"""The one engine. The simulator and the server both drive exactly these verbs.

Every verb works the same way: check; work out what would change, beside the present state; `record` the
event; only then change. Whatever fails before that last step, a refusal or a full disk, changes nothing.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import isfinite
from typing import Any, Self

from artesian.core import (
    Act,
    Algorithm,
    ClientId,
    Event,
    Measured,
    Member,
    Pace,
    Receipt,
    Reply,
    Snapshot,
    Upload,
)
from artesian.engine.admission import check_client, check_mixture, check_retry, check_upload, check_welcome
from artesian.engine.answering import answer
from artesian.engine.bounding import aged, counted, desk_noting, spend
from artesian.engine.defence import Defence
from artesian.engine.drawing import shown
from artesian.engine.folding import appraise, appraise_missing, fold
from artesian.engine.hyper_parameters import check_proxies
from artesian.engine.outcomes import outcome_of
from artesian.engine.reverting import NoTasks, retired, revert
from artesian.engine.standing import HOLDS, QUARANTINED, Standing, change_standing, take_out
from artesian.engine.studying import learn_first
from artesian.engine.transition import Change
from artesian.engine.view import FederationView, ignore
from artesian.errors import NotFinite
from artesian.params import Layout, Params, seal
from artesian.storage.codec import digest, with_defaults, with_fields


class Coordinator(FederationView):
    """Joins, uploads and departures in; replies out."""

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
        found = appraise(coordinator._bench, {k: c.params for k, c in clusters.items()})
        coordinator._state = replace(
            coordinator._state,
            clusters={k: replace(c, loss=found.get(k)) for k, c in clusters.items()},
            named=len(clusters),
        )
        change = coordinator._change()
        if learn_first(coordinator._bench, change):
            coordinator._state = replace(change.state, members=coordinator._members)
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
        change.members[client] = replace(
            member, samples=counted(self.defence, self._desk, client, samples), present=True, reset=False
        )
        change.desk = desk_noting(self.defence, self._desk, client, samples)
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
        answer(self._bench, change, (client,), replace(draft, solo=True, pause=True))
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
        samples = counted(self.defence, self._desk, client, upload.samples)
        change.members[client] = replace(
            self._members[client],
            samples=samples,
            receipt=None,
            answered=upload.number,
            digest=measured.digest or digest(upload),
        )
        change.tasks[client] = None
        measured = replace(measured, receipt=receipt)
        event = Event("upload", client, measured=measured)  # with the samples that were claimed
        if self._members[client].quarantined:
            measured = replace(measured, length=0.0, aside=QUARANTINED)
        measured = replace(measured, upload=replace(upload, samples=samples)) if samples != upload.samples else measured
        desk = desk_noting(self.defence, self._desk, client, upload.samples, measured.length)
        change.desk = replace(desk, open=change.desk.open - 1)
        spend(self.defence, change, measured, self._members[client], self._state.present)
        if not self.pace.in_rounds:
            measured = aged(measured, self._members[client])
        if measured.aside:
            change.put_aside(measured, measured.aside)
        elif receipt.solo:
            fold(self._bench, change, (measured,), solo=True)
        else:
            change.desk = replace(change.desk, pending=(*change.desk.pending, measured))
        if receipt.solo and not receipt.pause:
            answer(self._bench, change, (client,))
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
        self._fold_pending(change)
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
        appraise_missing(self._bench, change)
        self._studying.drop()  # it belongs to the state that is left
        answer(self._bench, change, again)
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

    def adopt(self, settings: Mapping[str, Any]) -> list[Reply]:
        """Go on with other hyper-parameters; nothing happens if they are those in force."""
        if settings == self.settings:
            return []
        before = (self.algorithm, self.plan, self.clip, self.publish_after, self.movers, self.defence, self.pace)
        try:
            self._take(settings)
            change = self._change()
            appraise_missing(self._bench, change)
            return self._settle(Event("settings", settings=settings), change)
        except BaseException:
            self.algorithm, self.plan, self.clip, self.publish_after, self.movers, self.defence, self.pace = before
            raise

    def _take(self, settings: Mapping[str, Any]) -> None:
        if settings["algorithm"] != self.settings["algorithm"]:
            self.algorithm = with_fields(self.algorithm, with_defaults(self.algorithm, settings["algorithm"]))
        self.plan, self.clip = dict(settings["plan"]), settings["clip"]
        self.publish_after = settings["publish_after"]
        self.movers = settings.get("movers", self.publish_after == 1)  # older settings count all of a fold
        told = settings.get("defence")  # older settings have none
        self.defence = None if told is None else with_fields(Defence(), with_defaults(Defence(), told))
        self._studying.drop()  # it is made again, by the other settings
        if not self._keeps_pace:
            self.pace = self.algorithm.pace()

    def replay(self, event: Event) -> list[Reply]:
        """Do again what a journal says was done: nothing is measured, appraised or recorded anew."""
        record, self.record, self._known = self.record, ignore, event
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
            self._fold_pending(change)
        if answered := self.pace.answers(change.desk, change.state):
            assert set(answered) <= set(change.desk.waiting), f"a pace answers those who wait: {answered}"
            answer(self._bench, change, answered)
        compared = self._known is not None and bool(self._known.outcome)
        self.outcome = outcome_of(self._state, change) if self.proves or compared else {}
        event = replace(
            event,
            appraisals=change.appraisals,
            compared=change.compared,
            found=change.found,
            judged=change.judged,
            set_aside=change.set_aside,
            outcome=self.outcome,
        )
        self.record(event)
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

    def _fold_pending(self, change: Change) -> None:
        """Fold all that is pending, once the study is in force that it needs."""
        self._studying.learn(self._bench, change)
        pending, change.desk = change.desk.pending, replace(change.desk, pending=())
        fold(self._bench, change, pending)

    def begin_study(self) -> None:
        """Begin what an algorithm wants done beside the uploads; not in a replay, which has its result."""
        self._studying.begin(self._bench, self._state)
