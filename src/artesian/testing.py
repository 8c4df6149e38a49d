"""One conformance suite for every algorithm, ours and yours: `check_algorithm(MyAlgorithm())`.

It drives a toy federation whose models hold trainable entries, a floating buffer and an integer counter, so
that every rule of the engine is met: pure, deterministic, restored from bytes after every event, retries folded once,
strangers and bad uploads refused without a trace, and the same bits simulated and over HTTP.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar

import httpx
import numpy as np

from artesian import errors
from artesian.codec import decode, encode
from artesian.core import (
    Algorithm,
    ClientId,
    ClusterId,
    Ensemble,
    Event,
    Learner,
    Notebook,
    Plan,
    Pull,
    Reply,
    Task,
    Upload,
    generator,
)
from artesian.engine import Coordinator, Snapshot
from artesian.errors import ArtesianError, Refused
from artesian.pace import Rounds
from artesian.params import Layout, Params, seal
from artesian.recipes import recipe
from artesian.simulator.data import Samples
from artesian.simulator.experiment import Experiment
from artesian.simulator.run import Simulation
from artesian.simulator.world import Visit

WIDTH = 3  # features of the toy


@dataclass(frozen=True)
class ToyLearner:
    """Learns the mean of its samples; counts its trainings; keeps a running statistic."""

    layout: Layout
    x: np.ndarray

    @property
    def samples(self) -> int:
        return len(self.x)

    def losses(self, params: Params) -> np.ndarray:
        return np.square(self.x - params[:WIDTH]).sum(axis=1)

    def score(self, ensemble: Ensemble) -> float:
        return -float(sum(weight * self.losses(params).mean() for weight, params in ensemble))

    def train(
        self,
        params: Params,
        *,
        seed: int,
        plan: Plan,
        pulls: Sequence[Pull] = (),
        weights: np.ndarray | None = None,
        mask: np.ndarray | None = None,
    ) -> Params:
        arrays = self.layout.unpack(params)
        target = self.x.mean(axis=0) + generator(seed, "noise").normal(0, 0.01, WIDTH)
        pull = sum(strength * (arrays["weight"] - anchor[:WIDTH]) for strength, anchor in pulls)
        arrays["weight"] += (0.5 * (target - arrays["weight"]) - 0.1 * pull).astype(np.float32)
        arrays["mean"] += np.float32(0.1) * (self.x.mean() - arrays["mean"])
        arrays["steps"] += 1
        return self.layout.pack(arrays)


@dataclass(frozen=True)
class ToyModel:
    """Three weights, one running mean, one counter of trainings beyond float32's whole numbers."""

    @cached_property
    def layout(self) -> Layout:
        return Layout.of(self._arrays(np.zeros(WIDTH, np.float32)), trainable=["weight"])

    def start(self, seed: int) -> Params:
        weight = generator(seed, "toy").normal(0, 1, WIDTH).astype(np.float32)
        return self.layout.pack(self._arrays(weight))

    def learner(self, x: np.ndarray, y: np.ndarray) -> ToyLearner:
        return ToyLearner(self.layout, x)

    def _arrays(self, weight: np.ndarray) -> dict[str, np.ndarray]:
        mean, steps = np.zeros(1, np.float32), np.array(2**53 + 1, np.int64)
        return {"weight": weight, "mean": mean, "steps": steps}


@dataclass(frozen=True)
class ToyWorld:
    """Clusters of points; client i lives in cluster i mod K."""

    name: ClassVar[str] = "toy"
    clients: int = 4
    clusters: int = 2

    @property
    def names(self) -> list[ClientId]:
        return [f"c{i}" for i in range(self.clients)]

    @property
    def features(self) -> int:
        return WIDTH

    @property
    def classes(self) -> int:
        return 1

    def visit(self, seed: int, client: ClientId, cycle: int) -> Visit:
        main = int(client[1:]) % self.clusters
        rng = generator(seed, "toy", client, cycle)
        data = self._points(rng, main, int(rng.integers(5, 20)))
        return Visit(data, data, {f"k{i}": float(i == main) for i in range(self.clusters)})

    def proxies(self, seed: int) -> Mapping[ClusterId, Samples]:
        return {f"k{i}": self._points(generator(seed, "proxy", i), i, 20) for i in range(self.clusters)}

    def tests(self, seed: int) -> Mapping[ClusterId, Samples]:
        return {f"k{i}": self._points(generator(seed, "test", i), i, 20) for i in range(self.clusters)}

    def _points(self, rng: np.random.Generator, cluster: int, count: int) -> Samples:
        x = rng.normal(2.0 * cluster, 0.5, (count, WIDTH)).astype(np.float32)
        return Samples(x, np.zeros(count, np.int64))


@dataclass
class Federation:
    """A toy federation: a coordinator, and clients that follow recipes."""

    algorithm: Algorithm
    clients: int
    clusters: int = 2
    record: Callable[[Event], None] | None = None
    tasks: dict[ClientId, Task] = field(default_factory=dict)
    notebooks: dict[ClientId, Notebook] = field(default_factory=dict)
    steps: int = 0

    def __post_init__(self) -> None:
        self.model, self.world = ToyModel(), ToyWorld(self.clients, self.clusters)
        start = [self.model.start(i) for i in range(self.clusters)]
        self.coordinator = Coordinator.start(self.algorithm, self.model.layout, start, 7, **self.options())

    def options(self) -> dict[str, Any]:
        """What a coordinator of this federation is made with."""
        proxies: dict[ClusterId, Learner] = {k: self.model.learner(s.x, s.y) for k, s in self.world.proxies(0).items()}
        pace = self.algorithm.pace()
        if isinstance(pace, Rounds) and pace.size > self.clients:
            pace = replace(pace, size=self.clients, quorum=None)
        return {"proxies": proxies, "pace": pace, "record": self.record}

    def join_all(self) -> None:
        for client in self.world.names:
            self.take(self.coordinator.join(client, 10))

    def take(self, replies: Sequence[Reply]) -> None:
        self.tasks.update({reply.client: reply.task for reply in replies})

    def upload_of(self, client: ClientId) -> Upload:
        """The answer of a client to its open task."""
        task = self.tasks[client]
        visit = self.world.visit(0, client, task.number)
        learner = self.model.learner(visit.train.x, visit.train.y)
        book = self.notebooks.get(client, Notebook())
        fit = recipe(task.recipe).fit(self.model.layout, client, task, learner, book)
        self.notebooks[client] = fit.notebook
        return fit.upload

    def step(self, watch: Callable[[Federation, Upload], None] | None = None) -> Upload:
        """One upload, of a client drawn from those with a task; `watch` sees it before it is sent."""
        ready = sorted(self.tasks)
        client = ready[int(generator(0, "step", self.steps).integers(len(ready)))]
        self.steps += 1
        upload = self.upload_of(client)
        if watch:
            watch(self, upload)
        del self.tasks[client]
        self.take(self.coordinator.receive(upload))
        return upload

    def restart(self) -> None:
        """Go on from bytes alone."""
        data = encode("snapshot", self.coordinator.snapshot())
        snapshot = decode("snapshot", data, Snapshot)
        self.coordinator = Coordinator.restore(self.algorithm, snapshot, **self.options())


def check_algorithm(algorithm: Algorithm, *, only: str | None = None) -> list[str]:
    """Run every check, or the one named; raise AssertionError at the first broken rule; return what was checked."""
    checked = []
    for name, check in CHECKS.items():
        if only in (None, name):
            check(algorithm)
            checked.append(name)
    assert checked, f"no check is called {only!r}: {', '.join(CHECKS)}"
    return checked


def _federation(algorithm: Algorithm, **options: Any) -> Federation:
    pace = algorithm.pace()
    size = pace.size + 2 if isinstance(pace, Rounds) else 4
    federation = Federation(algorithm, **{"clients": max(4, size), **options})
    federation.join_all()
    return federation


def _uploads(algorithm: Algorithm) -> int:
    """Enough uploads to fold several times, whatever the pace."""
    pace = algorithm.pace()
    return 3 * max(getattr(pace, "batch", 1), getattr(pace, "size", 1)) + 3


def _expect(holds: bool, algorithm: Algorithm, rule: str) -> None:
    assert holds, f"{algorithm.name}: {rule}"


def is_pure(algorithm: Algorithm) -> None:
    """init, task, measure and fold give the same answer twice and touch nothing they were given."""
    one, two = _federation(algorithm), _federation(algorithm)
    for _ in range(_uploads(algorithm)):
        before = one.coordinator.digest()
        for client in one.world.names:
            one.coordinator.preview(client)
        _expect(one.coordinator.digest() == before, algorithm, "task changed the state")
        upload = one.step(watch=_measures_the_same)
        _expect(not any(p.flags.writeable for p in upload.models.values()), algorithm, "an upload can be written to")
        two.step()
        models = [c.params for c in one.coordinator.state.clusters.values()]
        _expect(not any(p.flags.writeable for p in models), algorithm, "a cluster can be written to")
        _expect(one.coordinator.digest() == two.coordinator.digest(), algorithm, "the same events, other bits")


def _measures_the_same(federation: Federation, upload: Upload) -> None:
    coordinator = federation.coordinator
    receipt = coordinator.admit(upload)
    assert receipt is not None
    found = [dict(coordinator.measure(upload, receipt).evidence) for _ in range(2)]
    _expect(found[0] == found[1], federation.algorithm, "measure looked at its own state: twice, and not the same")


def restores(algorithm: Algorithm) -> None:
    """Restored from bytes after every upload, it ends with the same bits."""
    kept, restarted = _federation(algorithm), _federation(algorithm)
    for _ in range(_uploads(algorithm)):
        kept.step()
        restarted.step()
        restarted.restart()
        _expect(kept.coordinator.digest() == restarted.coordinator.digest(), algorithm, "a restart changed the state")


def replays(algorithm: Algorithm) -> None:
    """Its journal, replayed without proxies, gives the same state: nothing is measured again."""
    events: list[Event] = []
    federation = Federation(algorithm, clients=_federation(algorithm).clients, record=events.append)
    first = federation.coordinator.snapshot()
    federation.join_all()
    for _ in range(_uploads(algorithm)):
        federation.step()
    decoded = [decode("event", encode("event", event), Event) for event in events]
    again = Coordinator.restore(algorithm, first, pace=federation.coordinator.pace)
    for event in decoded:
        again.replay(event)
    _expect(again.digest() == federation.coordinator.digest(), algorithm, "a replay gave another state")


def folds_a_retry_once(algorithm: Algorithm) -> None:
    """The same upload again is answered from the record, also inside a part-filled buffer; another body is refused."""
    federation = _federation(algorithm)
    for _ in range(_uploads(algorithm)):
        upload = federation.step()
        before = federation.coordinator.digest()
        again = federation.coordinator.receive(upload)
        _expect(federation.coordinator.digest() == before, algorithm, "a retry changed the state")
        expected = [federation.tasks[upload.client]] if upload.client in federation.tasks else []
        _expect(
            [encode("task", r.task) for r in again] == [encode("task", t) for t in expected],
            algorithm,
            "a retry got another answer",
        )
        _refuses(federation, replace(upload, samples=upload.samples + 1), errors.Conflict)


def takes_two_of_one_client(algorithm: Algorithm) -> None:
    """One client may upload twice in a row, also into one buffer: the second has the next number."""
    federation = _federation(algorithm)
    client = sorted(federation.tasks)[0]
    first = federation.upload_of(client)
    federation.tasks.pop(client)
    federation.take(federation.coordinator.receive(first))
    while client not in federation.tasks:
        federation.step()
    second = federation.upload_of(client)
    _expect(second.number == first.number + 1, algorithm, "numbers are not consecutive")
    federation.take(federation.coordinator.receive(second))
    member = federation.coordinator.state.members[client]
    _expect(member.answered == second.number, algorithm, "the second upload was not taken")


def survives_leaving(algorithm: Algorithm) -> None:
    """Whoever leaves and rejoins at the same version gets the next number; the old task is closed."""
    federation = _federation(algorithm)
    client = sorted(federation.tasks)[0]
    old = federation.upload_of(client)
    version = federation.coordinator.state.version
    federation.tasks.pop(client)
    federation.take(federation.coordinator.leave(client))
    _refuses(federation, old, errors.TaskClosed)
    federation.take(federation.coordinator.join(client, 10))
    _expect(federation.coordinator.state.version == version, algorithm, "leaving counted as a fold")
    for _ in range(_uploads(algorithm)):
        if client in federation.tasks:
            break
        federation.step()
    if client in federation.tasks:
        _expect(federation.tasks[client].number == old.number + 1, algorithm, "a number was used again")
    _refuses(federation, old, errors.TaskClosed)
    for other in federation.world.names:
        federation.coordinator.leave(other)
    state, desk = federation.coordinator.state, federation.coordinator.desk
    _expect(state.present == 0 and desk.open == 0 and not desk.waiting, algorithm, "somebody is still there")


def refuses_strangers(algorithm: Algorithm) -> None:
    """Nobody uploads or leaves without joining, and nobody uploads twice to an old number."""
    federation = _federation(algorithm)
    upload = federation.upload_of(sorted(federation.tasks)[0])
    _refuses(federation, replace(upload, client="stranger"), errors.UnknownClient)
    _refuses(federation, replace(upload, number=upload.number + 1), errors.UnknownTask)
    _refuses(federation, replace(upload, number=0), errors.UnknownTask)
    _refuses(federation, replace(upload, number=-1), errors.UnknownTask)
    old = None
    for _ in range(_uploads(algorithm)):
        newest = federation.step()
        old = old or newest
    assert old is not None
    while federation.coordinator.state.members[old.client].answered == old.number:
        federation.step()
    _refuses(federation, old, errors.TaskClosed)


def refuses_bad_uploads(algorithm: Algorithm) -> None:
    """NaN, Inf, wrong shapes, dtypes, models, mixtures and counts change nothing."""
    federation = _federation(algorithm)
    federation.step()
    upload = federation.upload_of(sorted(federation.tasks)[0])
    _refuses(federation, replace(upload, samples=-1), errors.BadClient)
    _refuses(federation, replace(upload, metrics={"loss": float("nan")}), errors.NotFinite)
    _refuses(federation, replace(upload, mixture={"nowhere": 0.5}), errors.BadMixture)
    _refuses(federation, replace(upload, mixture={"k0": 1.5}), errors.BadMixture)
    _refuses(federation, replace(upload, mixture={"k0": float("nan")}), errors.BadMixture)
    spare = seal(np.zeros(federation.model.layout.size, np.float32))
    _refuses(federation, replace(upload, models={**upload.models, "other": spare}), errors.WrongModels)
    for name, params in upload.models.items():
        _refuses(federation, replace(upload, models={}), errors.WrongModels)
        for bad, kind in _spoilt(params):
            _refuses(federation, replace(upload, models={**upload.models, name: bad}), kind)


def _spoilt(params: Params) -> Iterator[tuple[np.ndarray, type[Refused]]]:
    for value in (np.nan, np.inf, -np.inf):
        bad = params.copy()
        bad[1] = value
        yield bad, errors.NotFinite
    yield params[:-1], errors.WrongShape
    yield params.astype(np.float64), errors.WrongShape
    yield params.reshape(1, -1), errors.WrongShape
    yield np.append(params, params[:1]), errors.WrongShape


def _refuses(federation: Federation, upload: Upload, kind: type[Refused]) -> None:
    before = federation.coordinator.digest()
    try:
        federation.coordinator.receive(upload)
    except kind:
        pass
    else:
        raise AssertionError(f"{federation.algorithm.name}: took what should be {kind.__name__}: {upload}")
    rule = f"a refusal ({kind.__name__}) changed the state"
    _expect(federation.coordinator.digest() == before, federation.algorithm, rule)


def serves_one_client(algorithm: Algorithm) -> None:
    """A federation of one goes on, and its model stays finite."""
    federation = Federation(algorithm, clients=1)
    federation.join_all()
    for _ in range(_uploads(algorithm)):
        federation.step()
    _expect(federation.coordinator.state.version > 0, algorithm, "one client never caused a fold")


def serves_one_cluster(algorithm: Algorithm) -> None:
    """A repository of one start model works like any other."""
    federation = _federation(algorithm, clusters=1)
    for _ in range(_uploads(algorithm)):
        federation.step()
    for cluster in federation.coordinator.state.clusters.values():
        federation.model.layout.check(cluster.params)


def agrees_over_http(algorithm: Algorithm) -> None:
    """Simulated directly and over in-process HTTP, the same seed gives the same bits."""
    clients = _federation(algorithm).clients
    experiment = Experiment(ToyWorld(clients), ToyModel(), algorithm, uploads=_uploads(algorithm)).planned()
    direct, served = Simulation(experiment, 3), Simulation(experiment, 3, link=InProcess)
    direct.run()
    served.run()
    assert isinstance(served.link, InProcess)
    served.link.close()
    _expect(direct.coordinator.digest() == served.coordinator.digest(), algorithm, "over HTTP the bits are others")


CHECKS: dict[str, Callable[[Algorithm], None]] = {
    check.__name__: check
    for check in (
        is_pure,
        restores,
        replays,
        folds_a_retry_once,
        takes_two_of_one_client,
        survives_leaving,
        refuses_strangers,
        refuses_bad_uploads,
        serves_one_client,
        serves_one_cluster,
        agrees_over_http,
    )
}


class InProcess:
    """A link that speaks HTTP to the application without a network: every byte is encoded and decoded."""

    def __init__(self, coordinator: Coordinator) -> None:
        from artesian.server.app import create_app, decode_task

        self.coordinator = coordinator
        self._decode = decode_task
        self._waiting: set[ClientId] = set()
        self._runner = asyncio.Runner()
        transport = httpx.ASGITransport(app=create_app(coordinator), raise_app_exceptions=True)
        self._http = httpx.AsyncClient(transport=transport, base_url="http://in-process")

    def join(self, client: ClientId, samples: int) -> list[Reply]:
        return self._answers(client, self._send("PUT", f"/v1/clients/{client}", json={"samples": samples}))

    def upload(self, upload: Upload) -> list[Reply]:
        path = f"/v1/clients/{upload.client}/uploads/{upload.number}"
        return self._answers(upload.client, self._send("PUT", path, content=encode("upload", upload)))

    def leave(self, client: ClientId) -> list[Reply]:
        self._send("DELETE", f"/v1/clients/{client}")
        self._waiting.discard(client)
        return self._polled()

    def expire(self, client: ClientId, number: int) -> list[Reply]:
        """Patience is the server's own business: no client asks for it."""
        self.coordinator.expire(client, number)
        return self._polled()

    def close(self) -> None:
        """Let go of the event loop."""
        self._runner.run(self._http.aclose())
        self._runner.close()

    def _answers(self, client: ClientId, response: httpx.Response) -> list[Reply]:
        if response.status_code != 200:
            self._waiting.add(client)
            return self._polled()
        self._waiting.discard(client)
        own = Reply(client, self._decode(response.content))
        return sorted([own, *self._polled()], key=lambda reply: reply.client)

    def _polled(self) -> list[Reply]:
        """The tasks of whoever was waiting and has one now."""
        replies = []
        for client in sorted(self._waiting):
            response = self._send("GET", f"/v1/clients/{client}/task")
            if response.status_code == 200:
                self._waiting.discard(client)
                replies.append(Reply(client, self._decode(response.content)))
        return replies

    def _send(self, method: str, path: str, **body: Any) -> httpx.Response:
        response = self._runner.run(self._http.request(method, path, **body))
        if response.is_error:
            told = response.json()
            kind: type[ArtesianError] = getattr(errors, told["error"])
            raise kind(told["rule"], told["got"], told["remedy"])
        return response
