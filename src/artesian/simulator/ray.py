"""Trainings and scores on Ray: actors on this machine or on a cluster. What a lost one was at is done again elsewhere.

A training is a pure function of its job, so doing it twice gives the same bits. Ray moves values between the run's own
processes as pickles; nothing here reads one from anywhere else.
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

from artesian.errors import MissingExtra, SettingError, Unreachable, WorkerLost
from artesian.execution.shared_memory import Made, made
from artesian.simulator.executors import SURROUNDINGS, Crew
from artesian.simulator.jobs import Done, Place, Work
from artesian.simulator.parcel import Parcel
from artesian.simulator.stopwatch import Stopwatch
from artesian.simulator.worker import Answer, do, settle_in

DEPTH = 2  # what an actor has at once: one errand it is at, and the next
TRIES = 3  # how often the same errand, or the start of an actor, may be lost
START_WITHIN = 300.0  # seconds until there is an actor that works
JOIN_WITHIN = 30.0  # seconds until a cluster has let this process in
QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_IGNORE_UNHANDLED_ERRORS": "1",  # of several trainings that fail, the run names one and ends
}


class Worker:
    """What lives in an actor."""

    def __init__(self, place: Place, data: Made) -> None:
        settle_in(place, data)

    def hello(self) -> None:
        """It is there, and knows its place."""

    def do(self, parcel: Parcel[Work]) -> Parcel[Answer[Done | float]]:
        """One training, or one score."""
        return do(parcel)


@dataclass(eq=False)
class Sent:
    """An errand: under way, done, or failed."""

    work: Work
    crew: Actors
    losses: int = 0  # how many actors died over it
    done: bool = False
    found: Any = None
    failure: BaseException | None = None

    @property
    def ready(self) -> bool:
        if not self.done:
            self.crew.turn()
        return self.done

    @property
    def value(self) -> Any:
        self.crew.wait_for(self)
        if self.failure is not None:
            raise self.failure
        return self.found

    def cancel(self) -> None:
        self.crew.cancel(self)


@dataclass(eq=False)
class Hand:
    """An actor, and what it was sent."""

    actor: Any
    hello: Any  # its first answer, until it came
    errands: dict[Any, Sent] = field(default_factory=dict)

    @property
    def refs(self) -> list[Any]:
        return [self.hello] if self.hello is not None else list(self.errands)

    @property
    def free(self) -> bool:
        return self.hello is None and len(self.errands) < DEPTH


class Actors(Crew):
    """In Ray actors, one CPU and one thread each.

    World, model, algorithm and data are put into the cluster once; all actors of a node map the same arrays.
    """

    def __init__(
        self, place: Place, workers: int, spent: Stopwatch, theirs: dict[str, float], address: str | None = None
    ) -> None:
        super().__init__(workers, spent, theirs)
        self._end = ExitStack()
        self._queue: deque[Sent] = deque()
        self._hands: list[Hand] = []
        self._stillborn, self._began = 0, time.monotonic()
        self._ray = self._end.enter_context(cluster(workers, address))
        try:
            self._baggage = [self._ray.put(part) for part in (place.shared(), made())]
            self._kind = self._ray.remote(num_cpus=1, max_restarts=0, runtime_env={"env_vars": surroundings()})(Worker)
            for _ in range(workers):
                self._hire()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        for hand in self._hands:
            self._dismiss(hand)
        self._hands, self._baggage = [], []
        self._end.close()

    def _send(self, work: Work) -> Sent:
        errand = Sent(work, self)
        self._queue.append(errand)
        self.turn()
        return errand

    def cancel(self, errand: Sent) -> None:
        """Nobody wants it any more; what an actor has begun it ends, unheard."""
        if errand in self._queue:
            self._queue.remove(errand)

    def wait_for(self, errand: Sent) -> None:
        """Wait until it is done, handing out others meanwhile."""
        while not errand.done:
            self.turn(1.0)
            self._check_start()

    def turn(self, patience: float = 0.0) -> None:
        """Take in what has come, and hand out what waits."""
        refs = {ref: hand for hand in self._hands for ref in hand.refs}
        if refs:
            with self.spent.part("waiting"):
                come, _ = self._ray.wait(list(refs), num_returns=1 if patience else len(refs), timeout=patience)
            with self.spent.part("moving"):
                lost = [refs[ref] for ref in come if not self._take(refs[ref], ref)]
                for hand in dict.fromkeys(lost):
                    self._replace(hand)
        with self.spent.part("moving"):
            self._hand_out()

    def _take(self, hand: Hand, ref: Any) -> bool:
        """Take in an answer; False if the actor is lost."""
        errors = self._ray.exceptions
        try:
            parcel = self._ray.get(ref)
        except errors.RayTaskError as error:
            errand = hand.errands.pop(ref)
            errand.failure, errand.done = error.cause, True  # it fails as it would anywhere
        except errors.RayError as error:
            self._cause = error
            return False
        else:
            self._note(hand, ref, parcel)
        return True

    def _note(self, hand: Hand, ref: Any, parcel: Parcel[Answer[Any]] | None) -> None:
        if parcel is None:
            hand.hello, self._stillborn = None, 0
            return
        errand = hand.errands.pop(ref)
        errand.found = deepcopy(parcel.content.found)  # its arrays would hold on to the cluster's shared memory
        errand.done = True
        self._count(parcel)

    def _hand_out(self) -> None:
        """The longest waiting errand to whoever has the least to do."""
        while self._queue and (free := [hand for hand in self._hands if hand.free]):
            hand = min(free, key=lambda hand: len(hand.errands))
            errand = self._queue.popleft()
            hand.errands[hand.actor.do.remote(Parcel(errand.work))] = errand

    def _replace(self, hand: Hand) -> None:
        """Another actor for a lost one; what that had waits in front again."""
        self._hands.remove(hand)
        self._dismiss(hand)
        for errand in reversed(hand.errands.values()):
            errand.losses += 1
            if errand.losses < TRIES:
                self._queue.appendleft(errand)
            else:
                errand.failure, errand.done = self._lost(f"one training lost {TRIES} times"), True
        if hand.hello is not None:
            self._stillborn += 1
            if self._stillborn >= TRIES:
                raise self._lost(f"{TRIES} that died at their start")
        self._hire()

    def _hire(self) -> None:
        actor = self._kind.remote(*self._baggage)
        self._hands.append(Hand(actor, actor.hello.remote()))

    def _dismiss(self, hand: Hand) -> None:
        with suppress(Exception):  # it is gone already, or the whole cluster
            self._ray.kill(hand.actor)

    def _check_start(self) -> None:
        """A cluster that has no room is not waited for for ever."""
        if any(hand.hello is None for hand in self._hands):
            self._began = time.monotonic()
        elif time.monotonic() - self._began > START_WITHIN:
            raise WorkerLost(
                f"a cluster has room for one actor within {START_WITHIN:.0f} s",
                "none that came up",
                "free a CPU of it, use fewer --workers, then --resume",
            )

    def _lost(self, what: str) -> WorkerLost:
        return WorkerLost(
            "actors live as long as the run, or their work is done by others",
            f"{what} ({brief(self._cause)})",
            "check memory and nodes, use fewer --workers, then --resume",
        )


def surroundings() -> dict[str, str]:
    """The environment of an actor: one thread, memory kept, and modules found where this process finds them."""
    installed = (sys.prefix, sys.base_prefix)
    own = [path or os.getcwd() for path in sys.path if not path.startswith(installed)]
    return SURROUNDINGS | {"PYTHONPATH": os.pathsep.join(own)}


@contextmanager
def cluster(workers: int, address: str | None) -> Iterator[Any]:
    """Ray, connected: to the cluster at the address, or to one that lives as long as this."""
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    try:
        import ray
    except ModuleNotFoundError:
        raise MissingExtra("ray", "ray") from None
    if ray.is_initialized():
        if address is not None:
            raise SettingError("a process is in one cluster", f"{address} besides", "call ray.shutdown() first")
        yield ray
        return
    address = address or os.environ.get("RAY_ADDRESS") or "local"
    chatter = logging.getLogger("ray")
    level = chatter.level
    chatter.setLevel(logging.ERROR)
    options: dict[str, Any] = {"address": address, "log_to_driver": False, "configure_logging": False}
    with ExitStack() as end:
        end.callback(chatter.setLevel, level)
        if address == "local":
            folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")  # its sockets need a short path
            end.callback(shutil.rmtree, folder, ignore_errors=True)
            options |= {"num_cpus": workers, "include_dashboard": False, "_temp_dir": folder}
            options |= {"_node_ip_address": "127.0.0.1"}
        end.callback(ray.shutdown)
        if address == "local":
            with _own_signals(), _loopback():
                ray.init(**options)
        else:
            _join(lambda: ray.init(**options), address)
            _check_room(ray, workers, address)
        yield ray


def _join(init: Callable[[], Any], address: str) -> None:
    """Connect within bounded time: Ray itself would try for minutes."""
    if address != "auto":
        _knock(address)
    failed: list[BaseException] = []

    def connect() -> None:
        try:
            init()
        except BaseException as error:  # Ray's own, or its exit
            failed.append(error)

    thread = threading.Thread(target=connect, daemon=True)
    thread.start()
    thread.join(JOIN_WITHIN)
    if thread.is_alive():
        raise _unreachable(address, f"no answer within {JOIN_WITHIN:.0f} s")
    if failed:
        raise _unreachable(address, brief(failed[0]))


def _knock(address: str) -> None:
    """Does anybody listen there?"""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        raise SettingError("a Ray address is host:port, ray://host:port or auto", repr(address), "mend it")
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except (OSError, OverflowError) as error:
        raise _unreachable(address, brief(error)) from None


def _unreachable(address: str, why: str) -> Unreachable:
    return Unreachable(
        "a Ray cluster answers at its address",
        f"{address} ({why})",
        "start it, give another --ray-address, or leave it out for one of the run's own",
    )


def _check_room(ray: Any, workers: int, address: str) -> None:
    cpus = int(ray.cluster_resources().get("CPU", 0))
    if cpus < workers:
        raise SettingError("every worker has a CPU of the cluster", f"{workers} for {cpus} at {address}", "use fewer")


@contextmanager
def _own_signals() -> Iterator[None]:
    """Signals stay as they are: Ray would end the process at SIGTERM."""
    main = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if main:
            signal.signal(signal.SIGTERM, before)


@contextmanager
def _loopback() -> Iterator[None]:
    """127.0.0.1 stays what it is: Ray would take another address of this machine for it, and listen at all of them."""
    from ray._private import ray_constants

    before = getattr(ray_constants, "ENABLE_RAY_CLUSTER", None)
    if before is None:  # another version, which may not need it
        yield
        return
    ray_constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before


def brief(error: BaseException) -> str:
    """The last line that says something, of a message that may be long."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1][:200]}" if lines else type(error).__name__
