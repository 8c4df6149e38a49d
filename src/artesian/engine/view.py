"""What is true of a federation now, and what can be worked out from it: nothing here changes it.

The coordinator's verbs do; this is the half of it that reads, so its methods may be called at any time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping
from contextlib import nullcontext
from dataclasses import replace
from functools import cache
from typing import Any

from artesian.core import (
    Algorithm,
    ClientId,
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
    Task,
    Upload,
)
from artesian.engine.bounding import within_bounds
from artesian.engine.defence import Bounded, Defence
from artesian.engine.drawing import fresh_task, shown
from artesian.engine.hyper_parameters import hyper_parameters
from artesian.engine.judge import Judge
from artesian.engine.outcomes import Outcome
from artesian.engine.studying import Studying
from artesian.engine.workbench import Beside, Watch, Workbench
from artesian.errors import TaskClosed, UnknownClient
from artesian.storage.codec import digest

Measure = Callable[[Upload, Receipt], Evidence]


class FederationView:
    """A federation as it is: its state, its desk, its open tasks, and the rules in force."""

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
        self.movers = True  # does only who moved a cluster count as having changed it? Settings of earlier versions: no
        self.defence = defence  # what one member may do; None: anything
        self.record = record or ignore
        self._keeps_pace = pace is not None  # whatever the algorithm's settings become
        self.notes: Mapping[str, float] = {}  # what the last event's fold noted, if it folded
        self.proves = False  # do events carry digests of what they gave and changed?
        self.outcome: Outcome = {}  # those of the last event
        self.changes = 0  # how often the clusters changed since the start, by folds and by operators
        self._known: Event | None = None  # in a replay: what was found the first time
        self.beside = beside
        self.watch = watch
        self._studying = Studying()
        self._judge: Judge | None = None
        self._members = dict(state.members)
        self._state = replace(state, members=self._members)
        self._desk = desk or Desk()
        self._open_tasks = {} if open_tasks is None else open_tasks

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
        return digest(self.snapshot())

    @property
    def settings(self) -> dict[str, Any]:
        """The hyper-parameters in force."""
        return hyper_parameters(self.algorithm, self.plan, self.clip, self.publish_after, self.defence, self.movers)

    def _task_of(self, upload: Upload) -> Task:
        """The open task an upload answers."""
        task = self._open_tasks.get(upload.client)
        if task is None or task.number != upload.number:
            raise TaskClosed("The task was withdrawn meanwhile", "Fetch the task again")
        return task

    def member(self, client: ClientId) -> Member:
        """What is known of a client; a stranger is refused."""
        if client not in self._members:
            raise UnknownClient(f"Nobody joined under the id {client!r}", "Join first, or check the id")
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

    def measure(
        self, upload: Upload, receipt: Receipt, evidence: Evidence | None = None, by: Measure | None = None
    ) -> Measured:
        """Measure an admitted upload, clipped where that is asked for. Touches no state, so it may run anywhere.

        `evidence` is what was measured before, where nothing had to be clipped; `by` measures in place of this process.
        """
        sent, found = upload, Bounded(upload)
        if upload.models and (self.clip is not None or self.defence is not None):
            task, member = self._task_of(upload), self.member(upload.client)
            found = within_bounds(upload, task, member, self._state, self._desk, self.clip, self.defence)
        upload = found.upload
        if found.aside:
            evidence = {}
        elif evidence is None or upload is not sent:
            evidence = (by or self.measure_here)(upload, receipt)
        given = self._task_of(upload).models if self.algorithm.needs_given and not found.aside else {}
        as_sent = "" if upload is sent else digest(sent)
        bounds = (found.length, found.spent, found.aside, found.shortened)
        return Measured(upload, receipt, evidence, as_sent, given, *bounds)

    def measure_here(self, upload: Upload, receipt: Receipt) -> Evidence:
        """What the algorithm measures of an upload, with the proxies of this process."""
        return self.algorithm.measure(upload, MeasureContext(receipt, self.proxies))

    @property
    def judge(self) -> Judge:
        """What judges uploads by held-back samples of the proxy sets."""
        most = self.defence.rise_samples if self.defence else 0
        if self._judge is None or self._judge.most != most:
            self._judge = Judge(self.proxies, most, self._state.seed)
        return self._judge

    def learn_losses(self) -> None:
        """Find the held-back losses of all clusters, where uploads are judged: operators read them before the next."""
        if self.defence is not None and self.defence.rise and self.proxies:
            models = {k: cluster.params for k, cluster in self._state.clusters.items()}
            self.judge.note(models, self.algorithm.stands_for)

    @property
    def _bench(self) -> Workbench:
        """What a change is worked out with now."""
        return Workbench(
            algorithm=self.algorithm,
            proxies=self.proxies,
            plan=self.plan,
            publish_after=self.publish_after,
            movers=self.movers,
            defence=self.defence,
            judge=lambda: self.judge,
            beside=self.beside,
            watch=self.watch,
            known=self._known,
        )


def ignore(event: Event) -> None:
    """Record nothing."""
