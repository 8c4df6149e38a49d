"""What `service.py` measures: two federations, two bare applications, the estimation alone, and a server with timers.

Run by `service.py`, each in a process of its own. `artesian serve service_server:cdfl` finds the federations here; the
environment says of which size.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import socket
import statistics
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from artesian import CDFL
from artesian.core import (
    Algorithm,
    Buffers,
    ClientId,
    Cluster,
    Learner,
    Measured,
    Model,
    State,
    Step,
    Task,
    Upload,
    generator,
)
from artesian.engine.coordinator import Coordinator
from artesian.engine.pace import Stream
from artesian.execution.threads import single_threaded
from artesian.learners.arrays import Perceptron
from artesian.params import Layout, Params, seal
from artesian.server.federation import Federation

CLUSTERS = 4
SIZES = {"40 kB": (64, 132), "2.3 MB": (4536, 128), "45 MB": (11405, 1024)}  # features and hidden units
IMAGES = 1000  # of each proxy set of the network
ROOM = 1 << 31  # bytes_in_flight of every server: an upload and its answer for each client
SIZE, PROXY = "ARTESIAN_BENCH_SIZE", "ARTESIAN_BENCH_SAMPLES"


@dataclass(frozen=True)
class Null(Algorithm):
    """Measures nothing, folds nothing, answers with its first model."""

    name: ClassVar[str] = "null"
    buffers: Buffers = "average"

    def init(self, layout: Layout, start: Sequence[Params], seed: int) -> State:
        return State(layout, {f"k{i}": Cluster(params) for i, params in enumerate(start)}, seed=seed)

    def task(self, state: State, client: ClientId) -> Task:
        return Task({"blend": state.clusters["k0"].params})

    def fold(self, state: State, measured: Sequence[Measured]) -> Step:
        return Step()

    def pace(self) -> Stream:
        return Stream()


def model_of(size: str) -> Perceptron:
    """A perceptron of so many parameters."""
    features, hidden = SIZES[size]
    return Perceptron(features, 10, hidden)


def uploaded(size: str, index: int, number: int) -> Upload:
    """What a client would have trained: a start model with some noise."""
    params = model_of(size).start(index % CLUSTERS).copy()
    params += generator(index, "noise").normal(0, 0.01, params.size).astype(np.float32)
    return Upload(f"c{index}", number, 100, {"blend": seal(params)})


def cdfl() -> Federation:
    """CDFL with four clusters; no upload is ever stale, so that every one is folded in full."""
    return _federation(CDFL(tau0=1 << 40), int(os.environ[PROXY]))


def cnn() -> Federation:
    """The same with the benchmark's network in torch, 582,026 parameters too, and proxy sets of 1,000 images."""
    from artesian.learners.networks import NETWORKS
    from artesian.learners.torch import TorchModel

    return _federation(CDFL(tau0=1 << 40), IMAGES, TorchModel(NETWORKS["cnn"], shape=(1, 28, 28)), 784)


def null() -> Federation:
    """The same models and routes, and nothing to work out."""
    return _federation(Null(), 0)


def _federation(
    algorithm: Algorithm, samples: int, model: Model | None = None, features: int | None = None
) -> Federation:
    model = model or model_of(os.environ[SIZE])
    features = features or SIZES[os.environ[SIZE]][0]
    proxies: dict[str, Learner] = {}
    for i in range(CLUSTERS if samples else 0):
        rng = generator(i, "proxy")
        x = rng.standard_normal((samples, features), np.float32)
        proxies[f"k{i}"] = model.learner(x, rng.integers(0, 10, samples))
    return Federation(model, algorithm, proxies, [model.start(i) for i in range(CLUSTERS)], name="bench")


# without a store


def bare() -> None:
    """The null algorithm without a store."""
    from artesian.server.app import create_app
    from artesian.server.settings import Settings

    _run(create_app(null().begin(), settings=Settings(bytes_in_flight=ROOM, uploads_per_minute=None)))


def echo() -> None:
    """The least a service can do with a body: read it in full, send it back."""
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route

    async def answer(request: Request) -> Response:
        return Response(await request.body(), media_type="application/octet-stream")

    _run(Starlette(routes=[Route("/{path:path}", answer, methods=["PUT"])]))


def _run(app: Any) -> None:
    """Serve as `artesian serve` does."""
    import uvicorn

    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", 0))
    listener.listen(512)
    print(f"serving bench at http://127.0.0.1:{listener.getsockname()[1]}", file=sys.stderr, flush=True)
    uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_keep_alive=30)).run(sockets=[listener])


# without a server


def estimate(way: str, seconds: float) -> dict[str, float]:
    """One client's uploads, measured and folded in process: what `measure` costs, what `appraise` costs, how often."""
    federation = cnn() if way == "cnn" else cdfl()
    with single_threaded(federation.model):
        return _estimate(federation.begin(), uploaded(os.environ[SIZE], 0, 1), seconds)


def _estimate(coordinator: Coordinator, upload: Upload, seconds: float) -> dict[str, float]:
    appraised: list[int] = []
    coordinator.join(upload.client, 100)
    coordinator.record = lambda event: appraised.append(len(event.appraisals))
    measure: list[float] = []
    appraise: list[float] = []
    until = time.perf_counter() + seconds
    while len(measure) < 5 or time.perf_counter() < until:
        upload = Upload(upload.client, len(measure) + 1, 100, upload.models)
        receipt = coordinator.admit(upload)
        assert receipt is not None
        began = time.perf_counter()
        measured = coordinator.measure(upload, receipt)
        measure.append(time.perf_counter() - began)
        coordinator.upload(measured)
        began = time.perf_counter()
        coordinator.algorithm.appraise(upload.params, coordinator.proxies["k0"])
        appraise.append(time.perf_counter() - began)
    medians = {"measure": statistics.median(measure[2:]) * 1000, "appraise": statistics.median(appraise[2:]) * 1000}
    return medians | {"appraised": statistics.mean(appraised), "count": len(measure)}


# with timers

PARTS = (  # what a part is called ("group: part"), and where it is
    ("receive: decode", "artesian.server.messages", "decode"),
    ("admit", "artesian.engine.coordinator", "Coordinator.admit"),
    ("estimation: measure", "artesian.engine.coordinator", "Coordinator.measure"),
    ("estimation: appraise", "artesian.engine.folding", "appraise"),
    ("digests", "artesian.engine.coordinator", "digest"),
    ("fold: distances and steps", "artesian.algorithms.cdfl", "CDFL.fold"),
    ("fold: check", "artesian.engine.folding", "finished"),
    ("fold: blend", "artesian.algorithms.cdfl", "CDFL.task"),
    ("event: record", "artesian.storage.store", "Store.append"),
    ("event: commit", "sqlalchemy.engine", "Connection.commit"),
    ("mark", "artesian.storage.store", "Store._set_mark"),
    ("shelf", "artesian.storage.open_tasks", "OpenTasks.__setitem__"),
    ("shelf: drop", "artesian.storage.open_tasks", "OpenTasks.__delitem__"),
    ("snapshot", "artesian.storage.store", "Store.save"),
    ("answer: encode", "artesian.server.routes", "task_pieces"),
)
INNER = (  # parts of the group around them
    ("digest", "artesian.storage.codec", "fingerprint"),
    ("digest", "artesian.storage.blobs", "fingerprint"),
    ("sha256", "hashlib", "sha256"),
    ("blob", "artesian.storage.blobs", "Blobs.put"),
    ("blob, encode", "artesian.storage.blobs", "encode_parts"),
    ("blob, write", "artesian.storage.blobs", "write_file"),
    ("blob, sync of the folder", "artesian.storage.blobs", "sync_folder"),
    ("sync", "os", "fsync"),
    ("sync", "os", "fdatasync"),
)
RECEIVE = ("artesian.server.limits", "Limits.receive")
Spent = tuple[float, float]  # seconds by the clock, and of computing


class Timers:
    """What every part of every refresh took. A part inside another counts for itself only."""

    def __init__(self) -> None:
        self.refreshes: list[dict[str, Spent]] = []
        self.missing: list[str] = []
        self._now: dict[str, Spent] = {}
        self._local = threading.local()

    def patch(self) -> None:
        """Put a timer around every part that is there."""
        import uvicorn

        for name, module, path in PARTS:
            self._replace(module, path, functools.partial(self._timed, name))
        for name, module, path in INNER:
            self._replace(module, path, functools.partial(self._timed, f": {name}"))
        self._replace(*RECEIVE, functools.partial(self._awaited, "receive: body"))
        begin = uvicorn.Config.__init__
        uvicorn.Config.__init__ = lambda config, app, **options: begin(config, self._around(app), **options)  # type: ignore[method-assign]

    def _replace(self, module: str, path: str, timed: Callable[[Any], Any]) -> None:
        *owners, name = path.split(".")
        try:
            owner = functools.reduce(getattr, owners, importlib.import_module(module))
            setattr(owner, name, timed(getattr(owner, name)))
        except (ImportError, AttributeError):
            self.missing.append(f"{module}.{path}")

    def _timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def timed(*args: Any, **options: Any) -> Any:
            around: list[tuple[str, list[Spent]]] = self._local.__dict__.setdefault("around", [])
            label = _label(name, [outer for outer, _ in around])
            around.append((label, []))
            began = _both()
            try:
                return function(*args, **options)
            finally:
                whole = _minus(_both(), began)
                _, inner = around.pop()
                if around:
                    around[-1][1].append(whole)
                self._add(label, functools.reduce(_minus, inner, whole))

        return timed

    def _awaited(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        async def timed(*args: Any, **options: Any) -> Any:
            began = _both()
            try:
                return await function(*args, **options)
            finally:
                self._add(name, _minus(_both(), began))

        return timed

    def _add(self, name: str, spent: Spent) -> None:
        wall, computing = self._now.get(name, (0.0, 0.0))
        self._now[name] = wall + spent[0], computing + spent[1]

    def _around(self, app: Any) -> Any:
        async def timed(scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] != "http" or "/uploads/" not in scope["path"]:
                await app(scope, receive, send)
                return
            self._now = refresh = {}
            began = time.perf_counter(), time.process_time()
            await app(scope, receive, self._awaited("answer: send", send))
            refresh["whole"] = _minus((time.perf_counter(), time.process_time()), began)
            self.refreshes.append(refresh)
            self._now = {}  # what happens between two refreshes belongs to neither

        return timed


def _both() -> Spent:
    return time.perf_counter(), time.thread_time()


def _minus(a: Spent, b: Spent) -> Spent:
    return a[0] - b[0], a[1] - b[1]


def _label(name: str, around: list[str]) -> str:
    """A part's name; inside a snapshot all is snapshot, and a part without a group joins the group around it."""
    if "snapshot" in around:
        return "snapshot"
    if not name.startswith(":"):
        return name
    return (around[-1].partition(":")[0] if around else "elsewhere") + name


def profile(arguments: list[str], out: Path) -> None:
    """`artesian serve` with timers inside; when it ends, the parts of every refresh are in a file."""
    from artesian.cli import main

    timers = Timers()
    timers.patch()
    sys.argv = ["artesian", *arguments]
    try:
        main()
    finally:
        out.write_text(json.dumps({"refreshes": timers.refreshes, "missing": timers.missing}))


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["bare"]:
            bare()
        case ["echo"]:
            echo()
        case ["estimate", way, seconds]:
            print(json.dumps(estimate(way, float(seconds))))
        case ["profile", out, *arguments]:
            profile(arguments, Path(out))
