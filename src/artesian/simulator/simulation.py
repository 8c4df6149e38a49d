"""A run under way: the loop that lets clients come, train, upload and go in virtual time."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from artesian.core import Algorithm, ClientId, ClusterId, Ensemble, Event, Notebook, Receipt, Reply, Task
from artesian.engine.coordinator import Coordinator
from artesian.errors import Refused, Stalled, TaskClosed, TooFar
from artesian.execution.threads import single_threaded
from artesian.params import Params
from artesian.recipes import by_name, registered
from artesian.recipes.accepting import Voices
from artesian.simulator.attacks import FLOOD
from artesian.simulator.checkpoint import Checkpoint, Flight, Totals, restore, taken
from artesian.simulator.clock import Clock, Moment
from artesian.simulator.evaluation import CLIENTS, CLUSTERS, Evaluation, UnscoredUpload, columns_of_uploads
from artesian.simulator.executor import Executor, Means, travels
from artesian.simulator.experiment import Experiment
from artesian.simulator.export import DISTRIBUTIONS, SHARES, Export, is_moment
from artesian.simulator.fleet import Habits
from artesian.simulator.folder import RunFolder
from artesian.simulator.jobs import Done, Job, Key, Place
from artesian.simulator.profiling import PARTS, Stopwatch
from artesian.simulator.result import Run
from artesian.simulator.signals import Interruption
from artesian.simulator.spill import Spill, Spilled, filled
from artesian.simulator.summary import result_of
from artesian.simulator.table import Table
from artesian.simulator.transports import CoordinatorTransport, Direct
from artesian.simulator.watching import TURNS, Lookout, Turn

STREAM_TURN = 20  # folds that make a turn of the world where there are no rounds


@dataclass(frozen=True)
class Progress:
    """How far a run is."""

    uploads: int  # or rounds or turns, where the run is measured in them
    total: int
    accuracy: float | None  # mean score of what clients drew back last
    unit: str = "uploads"
    measure: str = "accuracy"  # what the score is called: of data without classes it is no accuracy


class Simulation:
    """A run under way."""

    def __init__(
        self,
        experiment: Experiment,
        seed: int,
        *,
        folder: RunFolder | None = None,
        checkpoint: Checkpoint | None = None,
        spill: Spill | None = None,
        transport: Callable[[Coordinator], CoordinatorTransport] = Direct,
        progress: Callable[[Progress], None] | None = None,
        profile: bool = False,
        **means: Any,
    ) -> None:
        """`means` are the fields of `Means`: workers, executor and so on."""
        self.experiment, self.seed, self.means = experiment, seed, Means(**means)
        self.folder, self.progress, self.profile = folder, progress, profile
        self.spent = Stopwatch("starting")
        self.theirs = dict.fromkeys(PARTS, 0.0)  # the seconds of all workers together
        self.world = experiment.world
        self._score = "accuracy" if self.world.classes > 1 else "score"
        self.habits = Habits(experiment.fleet, self.world.names, seed)
        self.place = Place(
            experiment.world,
            experiment.model,
            seed,
            experiment.algorithm,
            experiment.proxy_sample,
            recipes=by_name([*registered(), *experiment.recipes]),
            tune=replace(experiment.training, epochs=experiment.tune) if experiment.tune else None,
            hold_back=experiment.hold_back if experiment.accept == "better" else None,
            keep_training=experiment.training if experiment.keep_training else None,
            hostile=self.habits.hostile,
            attack=experiment.fleet.attack,
        )
        lengths = checkpoint.tables if checkpoint else {}
        spill = spill or self.means.spill(folder.path if folder else None)
        self.used: Spilled[Voices] = Spilled(spill)
        uploads = columns_of_uploads(experiment.accept == "better", bool(experiment.pool_every))
        self.evaluation = Evaluation(
            self.place,
            self._table("metrics", uploads, lengths),
            self._table("clusters", CLUSTERS, lengths),
            self._table("clients", CLIENTS, lengths),
            experiment.evaluate,
            self._export(lengths) if experiment.export else None,
            experiment.pool_every,
            self.used,
            self._table("turns", TURNS, lengths) if experiment.watch else None,
        )
        self.lookout = self._lookout()
        self.clock = Clock()
        self.cycles: dict[ClientId, int] = {}
        self.open_tasks: Spilled[Task] = Spilled(spill)
        self.notebooks: Spilled[Notebook] = Spilled(spill)
        self.flights: Spilled[Flight] = Spilled(spill)
        self.totals = Totals()
        self.late_in_a_row = 0
        self.journal = folder.journal() if folder else None
        self._timed = profile and transport is Direct  # a server would measure in threads of its own
        self.transport = transport(self._coordinator(checkpoint))
        self._measures = self._can_measure()
        if checkpoint:
            restore(self, checkpoint)
        else:
            self._begin()

    @property
    def coordinator(self) -> Coordinator:
        return self.transport.coordinator

    # the loop

    def run(self) -> Run:
        """Go on until the planned number of uploads; an interrupted run takes a snapshot first."""
        began = time.perf_counter() - self.totals.wall_seconds
        self.spent.turn("other")
        if self._timed:
            self.coordinator.watch = self.spent.part
        place = self.place if self._measures else self.place.unmeasured()
        self.executor: Executor = self.means.executor_for(place, self.spent, self.theirs)
        self.evaluation.scorer, self.evaluation.judge = self.executor.score, self.executor.judge
        if self.lookout:
            self.lookout.observe = self.executor.observe
        try:
            with single_threaded(self.place.model), Interruption() as interruption:
                while self._done() < self._planned:
                    counted = self._next()
                    due = counted and self._due(self.experiment.snapshot_every)
                    if self.folder and (due or interruption.asked):
                        self._save(began)
                    if interruption.asked:
                        raise KeyboardInterrupt
                self._finish()
        finally:
            self.executor.close()
        self._tick(began)
        return result_of(self)

    @property
    def _planned(self) -> int:
        return self.experiment.turns or self.experiment.rounds or self.experiment.uploads

    def _done(self) -> int:
        """Turns, rounds, or uploads of honest clients: a flood of others makes no run shorter."""
        if self.lookout:
            return self.totals.turns
        uploads = self.totals.uploads - self.totals.hostile
        return self.coordinator.state.rounds if self.experiment.rounds else uploads

    def _due(self, every: int) -> bool:
        return (self.totals.turns if self.lookout else self.totals.uploads) % every == 0

    def _next(self) -> bool:
        """Let the next thing happen; True if it was an upload or, where clients decide, a turn."""
        self._begin_ahead()
        moment = self.clock.pop()
        if moment is None:
            state, desk = self.coordinator.state, self.coordinator.desk
            raise Stalled(
                f"No client can upload any more: {self._done()} of {self._planned} {self._unit} are done, "
                f"{state.present} clients are present, {len(desk.waiting)} wait for others",
                "Let fewer clients leave, or lower clients_per_round",
            )
        match moment.kind:
            case "join":
                self._join(moment.client)
            case "leave":
                self._leave(moment.client)
            case "patience":
                self._settle(lambda: self.transport.expire(moment.client, moment.number))
            case "finish":
                return self._finish_training(moment)
        return False

    @property
    def _unit(self) -> str:
        return "turns" if self.lookout else "rounds" if self.experiment.rounds else "uploads"

    def _cycle(self, client: ClientId) -> int:
        """Which of its data a client has now: by its own trainings, or by the turn of the world."""
        if self.world.turns == "client":
            return self.cycles.setdefault(client, 0)
        return self._turn()

    def _turn(self) -> int:
        """The turn of the world: a round each, or so many folds (turns of clients that decide) where there are none."""
        rounds = self.totals.turns if self.lookout else self.coordinator.state.rounds
        return rounds if self.coordinator.pace.in_rounds else rounds // STREAM_TURN

    def _join(self, client: ClientId, changed: bool = False) -> None:
        samples = self.place.trains_on(client, self.place.visit(client, self._cycle(client)).train)
        self._settle(lambda: self.transport.join(client, samples, changed))

    def _tell_changes(self, turn: int) -> None:
        """Whoever waits and has other data since that turn says so, where the algorithm cares."""
        if self.world.turns == "client" or turn == self._turn():
            return
        if type(self.experiment.algorithm).moved is Algorithm.moved:
            return
        for client in sorted(self.coordinator.desk.waiting):
            if self.world.changed(self.seed, client, turn, self._turn()):
                self._join(client, changed=True)

    def _leave(self, client: ClientId) -> None:
        flight = self.flights.slips.pop(client, None)
        if flight is not None:
            self.executor.forget((client, flight.task.number))
            if self.lookout:
                self.lookout.forget(client)
        self._settle(lambda: self.transport.leave(client))
        if self.experiment.fleet.return_after is not None:
            self.clock.at(self.clock.now + self.experiment.fleet.return_after, "join", client)

    def _finish_training(self, moment: Moment) -> bool:
        if not self._flies(moment):
            return False  # the client left meanwhile
        if self.lookout is None:
            return self._answer_task(moment)
        if moment.client in self.place.hostile:  # it attacks whenever it can
            self._answer_task(moment)
            return False
        self._take_turn(moment, self.lookout)
        return True

    def _take_turn(self, moment: Moment, lookout: Lookout) -> None:
        """A client that decides sees new data, and refreshes or waits."""
        turn, before = self._turn_of(moment), self.totals
        self.totals = replace(before, turns=before.turns + 1)
        if not lookout.take(turn, self.totals.turns):
            self._wait(moment)
        elif self._answer_task(moment):
            moved = (self.totals.bytes_up + self.totals.bytes_down) - (before.bytes_up + before.bytes_down)
            lookout.refreshed(turn, moved)
        if self._due(self.experiment.evaluate_every):
            self._evaluate()
        self._tell_progress()

    def _turn_of(self, moment: Moment) -> Turn:
        client = moment.client
        flight = self.flights.slips[client]

        def used() -> Ensemble:
            return self.evaluation.in_use(client, self.flights[client].task, self.notebooks.get(client, {}))

        return Turn(client, moment.time, flight.cycle, used)

    def _wait(self, moment: Moment) -> None:
        """Nothing is trained, and time goes on: the client keeps its task until its next turn."""
        client, slip = moment.client, self.flights.slips[moment.client]
        self.cycles[client] = slip.cycle + 1
        self.flights.slips[client] = replace(slip, cycle=self._cycle(client))
        done_at = self.habits.finishes_at(client, self.cycles[client] + 1, self.clock.now)
        self.clock.at(done_at, "finish", client, moment.number)

    def _answer_task(self, moment: Moment) -> bool:
        """A client trains and uploads; True if the server took the training."""
        client = moment.client
        flight = self.flights[client]
        done = self.executor.result(self._job(client, flight))
        del self.flights[client]
        self.notebooks[client] = done.fit.notebook
        self.cycles[client] = flight.cycle + bool(done.fit.trained)  # an estimate and its training see the same data
        try:
            self._upload(client, flight, done)
        except Refused as refusal:
            self._bear(client, done, refusal)
            self._ask_again(moment)
            return False
        if client in self.place.hostile:
            self._wait_for_honest()
        else:
            self.late_in_a_row = 0
        return bool(done.fit.trained)

    def _bear(self, client: ClientId, done: Done, refusal: Refused) -> None:
        """Count a refusal that ends no run: out of patience, too far away, and anything that hostile clients send."""
        late, hostile = isinstance(refusal, TaskClosed), client in self.place.hostile
        if not hostile and not isinstance(refusal, (TaskClosed, TooFar)):
            raise refusal
        totals, reason = self.totals, type(refusal).__name__
        sent = totals.bytes_up + _bytes(done.fit.upload.models)
        self.totals = replace(totals, late=totals.late + late, bytes_up=sent)
        if hostile:
            refusals = {**totals.refusals, reason: totals.refusals.get(reason, 0) + 1}
            self.totals = replace(self.totals, refusals=refusals)
        elif not late:
            self.totals = replace(self.totals, notes=_summed(totals.notes, {"refused": 1}))
        self._wait_for_honest()

    def _ask_again(self, moment: Moment) -> None:
        """Fetch another task; the refused one, if it is still open, is withdrawn, so that nobody waits for it."""
        if self.coordinator.member(moment.client).receipt is not None:
            self._settle(lambda: self.transport.expire(moment.client, moment.number))
        self._join(moment.client)

    def _wait_for_honest(self) -> None:
        """Count a training that was of no use to honest clients; too many in a row are the end."""
        self.late_in_a_row += 1
        faster = FLOOD if self.experiment.fleet.attack == "flood" else 1
        if self.late_in_a_row <= 20 * len(self.world.names) * faster:
            return
        if not self.place.hostile:
            raise Stalled(
                f"{self.late_in_a_row} trainings in a row came too late",
                "Raise patience, or lower the latency",
            )
        raise Stalled(
            f"{self.late_in_a_row} trainings in a row brought no upload of an honest client",
            "Lower hostile_share, or let fewer clients leave",
        )

    def _upload(self, client: ClientId, flight: Flight, done: Done) -> None:
        late = self.coordinator.state.version - flight.task.base
        self._settle(lambda: self._send(client, flight, done, late))
        by_uploads = self.experiment.evaluate_every_rounds is None
        if done.fit.trained and by_uploads and not self.lookout and self._due(self.experiment.evaluate_every):
            self._evaluate()
        if not self.lookout:
            self._tell_progress()

    def _tell_progress(self) -> None:
        if self.progress:
            self.progress(Progress(self._done(), self._planned, self.evaluation.accuracy(), self._unit, self._score))

    def _send(self, client: ClientId, flight: Flight, done: Done, late: int) -> list[Reply]:
        upload = done.fit.upload
        replies = self.transport.upload(upload, done.evidence)
        sent = self.totals.bytes_up + _bytes(upload.models)
        if done.before is None:  # it told a mixture and brought no training
            self.totals = replace(self.totals, estimates=self.totals.estimates + 1, bytes_up=sent)
            return replies
        hostile = client in self.place.hostile
        uploads, attacks = self.totals.uploads + 1, self.totals.hostile + hostile
        self.totals = replace(self.totals, uploads=uploads, hostile=attacks, bytes_up=sent)
        if hostile:
            return replies  # only honest clients are evaluated
        told = (self.totals.uploads, self.clock.now, client, flight.cycle, late, done.before, done.mixture)
        voices = Voices.of(done.fit.trained) if self.evaluation.wants_models else Voices()
        self.evaluation.note(UnscoredUpload(*told, self.evaluation.blend(done.fit.trained), voices))
        return replies

    def _settle(self, verb: Callable[[], list[Reply]]) -> None:
        """After any verb: new tasks begin, and whoever's upload was folded or answered is scored."""
        version, turn, rounds = self.coordinator.state.version, self._turn(), self.coordinator.state.rounds
        before = self.coordinator.notes
        with self.spent.part("folding"):
            replies = verb()
        folded = self.coordinator.state.version > version
        aside = "set_aside" in self.coordinator.notes and self.coordinator.notes is not before
        if folded or aside:
            self.totals = replace(self.totals, notes=_summed(self.totals.notes, self.coordinator.notes))
        self._start(replies)
        if self.evaluation.entries and (folded or replies):
            self.evaluation.score(self.coordinator, self.notebooks, replies)
        if folded:
            self._evaluate_round(rounds, turn)  # before anybody's data change
            self._tell_changes(turn)

    def _start(self, replies: list[Reply]) -> None:
        """Clients with a new task begin to train."""
        patience = self.coordinator.pace.patience
        for client, task in ((reply.client, reply.task) for reply in replies):
            self.flights[client] = Flight(self._held(client, task), self._cycle(client))
            work = float(task.settings.get("work", 1.0))
            which = task.number if self.lookout is None else self.cycles.get(client, 0) + 1
            done_at = self.habits.finishes_at(client, which, self.clock.now, work)
            self.clock.at(done_at, "finish", client, task.number)
            if patience is not None:
                self.clock.at(self.clock.now + patience, "patience", client, task.number)
            self.totals = replace(self.totals, bytes_down=self.totals.bytes_down + _bytes(task.models))

    def _held(self, client: ClientId, task: Task) -> Task:
        """The slip of a task, if the coordinator keeps one: then it is kept once."""
        slip = self.open_tasks.slips.get(client)
        return slip if slip is not None and slip.number == task.number and self.transport.shares_tasks else task

    def _job(self, client: ClientId, flight: Flight) -> Job:
        return Job(client, flight.cycle, flight.task, self.notebooks.get(client, {}), self._receipt(client))

    def _receipt(self, client: ClientId) -> Receipt | None:
        """What whoever measures an upload knows of its task; None where nobody shall."""
        return self.coordinator.member(client).receipt if self._measures else None

    def _can_measure(self) -> bool:
        """May an upload be measured where it was made: is it measured at all, as it is, and by nobody else?"""
        algorithm, coordinator = self.experiment.algorithm, self.coordinator
        measures = type(algorithm).measure is not Algorithm.measure
        as_it_is = self.transport.takes_evidence and coordinator.clip is None
        return measures and as_it_is and (not self.means.workers or travels(algorithm))

    def _begin_ahead(self) -> None:
        """Hand the executor the trainings that are wanted next."""
        if not self.executor.ahead:
            return
        left = self.executor.ahead if self.experiment.rounds else self._planned - self._done()
        for moment in self.clock.upcoming(min(self.executor.ahead, left)):
            begins = moment.kind == "finish" and self._flies(moment) and not self.executor.has_begun(_key(moment))
            if begins and self._will_train(moment):
                self.executor.begin(self._job(moment.client, self.flights[moment.client]))

    def _will_train(self, moment: Moment) -> bool:
        """Is it known that this client trains then? Whoever decides looks at its data now."""
        honest = moment.client not in self.place.hostile
        return self.lookout.foresee(self._turn_of(moment)) if self.lookout and honest else True

    def _flies(self, moment: Moment) -> bool:
        """Is the training that this moment ends still under way?"""
        flight = self.flights.slips.get(moment.client)
        return flight is not None and flight.task.number == moment.number

    def _finish(self) -> None:
        if self.experiment.algorithm.flush_on_stop:
            self.coordinator.flush()
        self.evaluation.score(self.coordinator, self.notebooks, [])  # of a round that will not close any more
        if not self._evaluated_now():
            self._evaluate()
        self.evaluation.enter(wait=True)

    def _evaluated_now(self) -> bool:
        """Whether nothing happened since the newest evaluation."""
        if self.experiment.evaluate_every_rounds is None:
            return self._due(self.experiment.evaluate_every)
        return self.evaluation.evaluated == (self.totals.uploads, self.coordinator.state.rounds)

    def _evaluate_round(self, before: int, turn: int) -> None:
        """Evaluate where that is due by rounds, of which there were so many before, on the data of that turn."""
        every, rounds = self.experiment.evaluate_every_rounds, self.coordinator.state.rounds
        if every and rounds // every > before // every and not self._evaluated_now():
            self._evaluate(self._cycle if self.world.turns == "client" else lambda _: turn)

    def _evaluate(self, cycle: Callable[[ClientId], int] | None = None) -> None:
        """Score clusters, and clients on the data of this cycle; without one, on those they have now."""
        uploads, now = self.totals.uploads, self.clock.now
        before = (self.evaluation.evaluated or (0, 0))[bool(self.experiment.rounds)]
        if self.evaluation.export and is_moment(before, self._done(), self._planned):
            self.evaluation.export.keep(self.experiment.algorithm, self.coordinator.state, uploads)
        self.evaluation.evaluate_clusters(self.coordinator, uploads, now)
        self.evaluation.evaluate_clients(self.coordinator, self.notebooks, cycle or self._cycle, uploads, now)

    # beginning, saving, restoring

    def _coordinator(self, checkpoint: Checkpoint | None) -> Coordinator:
        experiment, model = self.experiment, self.place.model
        options: dict[str, Any] = {"proxies": self.place.proxies, "plan": experiment.training, "record": self._record}
        options |= {"open_tasks": self.open_tasks, "defence": experiment.defence}
        if checkpoint:
            self.open_tasks.update(checkpoint.coordinator.open_tasks)
            snapshot = filled(replace(checkpoint.coordinator, open_tasks={}))
            return Coordinator.restore(experiment.algorithm, snapshot, **options)
        with single_threaded(model):
            start = experiment.start.from_samples(model, self.place.proxy_samples, self.seed)
            return Coordinator.start(experiment.algorithm, model.layout, start, self.seed, **options)

    def _record(self, event: Event) -> None:
        """The journal of a run: what happened, without models."""
        if not self.journal:
            return
        record: dict[str, Any] = {"time": self.clock.now, "kind": event.kind, "client": event.client}
        if event.kind == "join":
            record["samples"] = event.samples
        if event.measured is not None:
            upload, receipt = event.measured.upload, event.measured.receipt
            record |= {"number": upload.number, "base": receipt.base, "samples": upload.samples}
            record["evidence"] = dict(event.measured.evidence)
        if event.appraisals:
            record["appraisals"] = dict(event.appraisals)
        if event.set_aside:
            record["set_aside"] = dict(event.set_aside)
        self.journal.append(record)

    def _begin(self) -> None:
        for client in self.world.names:
            joins, leaves = self.habits.joins_at(client), self.habits.leaves_at(client)
            self.clock.at(joins, "join", client)
            if leaves is not None:
                self.clock.at(leaves, "leave", client)
        if self.folder:
            assert self.journal
            self.journal.cut(0)
            self._save(time.perf_counter())

    def _save(self, began: float) -> None:
        """A snapshot of everything, after which nothing before it is needed."""
        assert self.folder and self.journal
        self.evaluation.enter(wait=True)
        self._tick(began)
        self.journal.flush()
        self.folder.save(self.totals.uploads, taken(self))

    def _tick(self, began: float) -> None:
        self.totals = replace(self.totals, wall_seconds=time.perf_counter() - began)

    def _lookout(self) -> Lookout | None:
        watch, table = self.experiment.watch, self.evaluation.turns
        return Lookout(watch, self.world, self.seed, table) if watch and table else None

    def _export(self, lengths: Mapping[str, int]) -> Export:
        tables = (self._table("distributions", DISTRIBUTIONS, lengths), self._table("shares", SHARES, lengths))
        return Export(*tables, self.folder.path / "matrices" if self.folder else None)

    def _table(self, name: str, columns: tuple[str, ...], lengths: Mapping[str, int]) -> Table:
        return self.folder.table(name, columns, lengths.get(name, 0)) if self.folder else Table(columns)


def _bytes(models: Mapping[ClusterId, Params]) -> int:
    return sum(params.nbytes for params in models.values())


def _key(moment: Moment) -> Key:
    return moment.client, moment.number


def _summed(total: Mapping[str, float], new: Mapping[str, float]) -> dict[str, float]:
    return dict(total) | {key: total.get(key, 0.0) + value for key, value in new.items()}
