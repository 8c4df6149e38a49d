"""Work on Ray: tasks of one CPU each, on this machine or on a cluster.

Ray itself keeps the workers, queues the jobs, and does again elsewhere what a lost worker or node was at. It moves
values between the program's own processes as pickles; nothing here reads one from anywhere else.
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
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future, InvalidStateError
from contextlib import ExitStack, contextmanager, suppress
from copy import deepcopy
from functools import partial
from typing import Any

from artesian.errors import MissingExtra, SettingError, Unreachable, WorkerLost
from artesian.execution.pool import TRIES, brief, could_not_start, lost_too_often, stopped
from artesian.execution.threads import ONE_THREAD
from artesian.execution.worker import Perform, Setup

START_WITHIN = 300.0  # seconds until a cluster has room for the workers
STOP_WITHIN = 10.0  # seconds until jobs that nobody waits for have ended
JOIN_WITHIN = 30.0  # seconds until a cluster has let this process in
QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_IGNORE_UNHANDLED_ERRORS": "1",  # of several jobs that fail, the caller names one and ends
}


class RayTasks:
    """As Ray tasks of one CPU and one thread each.

    The set-up is put into the cluster once; all workers of a node map the same arrays. The CPUs are reserved until the
    pool is closed. A job that loses a worker, or its node, is retried by Ray on any that is left.
    """

    def __init__(self, setup: Setup, workers: int, address: str | None = None) -> None:
        self.workers, self._pending, self._closed = workers, dict[Future[Any], Any](), False
        with ExitStack() as end:
            self._ray = end.enter_context(cluster(workers, address))
            options = {
                "num_cpus": 1,
                "max_retries": TRIES - 1,
                "retry_exceptions": [CouldNotStart],
                "runtime_env": {"env_vars": environment()},
                "scheduling_strategy": end.enter_context(_reserved(workers)),
            }
            self._start, self._perform = (self._ray.remote(**options)(task) for task in (start, perform))
            self._setup = uuid.uuid4().hex, [self._ray.put(setup)]  # in a list Ray leaves it for the worker to fetch
            self._end = end.pop_all()

    def wait(self) -> None:
        starts = [self._start.remote(*self._setup) for _ in range(self.workers)]
        try:
            self._ray.get(starts, timeout=START_WITHIN)
        except self._ray.exceptions.GetTimeoutError:
            raise WorkerLost(f"Ray's workers were not ready within {START_WITHIN:.0f} s", "Use fewer workers") from None
        except self._ray.exceptions.RayError as error:
            raise self._as_ours(error) from None

    def submit(self, job: Any) -> Future[Any]:
        if self._closed:
            raise stopped()
        ref = self._perform.remote(*self._setup, job)
        future: Future[Any] = Future()
        self._pending[future] = ref
        future.add_done_callback(self._forget)
        ref.future().add_done_callback(partial(self._take, future))
        return future

    def close(self) -> None:
        self._closed = True
        pending = dict(self._pending)
        for future in pending:
            with suppress(InvalidStateError):  # it has just ended
                future.set_exception(stopped())
        with suppress(Exception):  # the cluster is gone
            for ref in pending.values():  # a job that ends with its cluster is one that Ray speaks of, and would retry
                self._ray.cancel(ref, force=True)
            if pending:
                self._ray.wait(list(pending.values()), num_returns=len(pending), timeout=STOP_WITHIN)
        self._end.close()

    def _take(self, future: Future[Any], done: Future[Any]) -> None:
        error = done.exception()
        with suppress(InvalidStateError):  # it was cancelled, or the pool is closed
            if error is None:
                future.set_result(deepcopy(done.result()))  # its arrays would hold on to the cluster's shared memory
            else:
                future.set_exception(self._as_ours(error))

    def _forget(self, future: Future[Any]) -> None:
        ref = self._pending.pop(future, None)
        if future.cancelled():
            with suppress(Exception):  # it is over already, or the cluster is
                self._ray.cancel(ref)

    def _as_ours(self, error: BaseException) -> BaseException:
        """A job's own error as it was raised; whatever else went wrong as WorkerLost."""
        cause = error.cause if isinstance(error, self._ray.exceptions.RayTaskError) else None
        if isinstance(cause, CouldNotStart):
            return could_not_start(cause.args[0])
        return cause or lost_too_often(brief(error))


class CouldNotStart(Exception):
    """A worker could not be set up; holds what went wrong there."""


# what runs in Ray's processes

_ready: tuple[str, Perform] | None = None  # which set-up this process has, and what does its jobs


def start(name: str, setup: list[Any]) -> None:
    """Set this process up for the jobs of that name, once."""
    global _ready
    if _ready is not None and _ready[0] == name:
        return
    import ray

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _ready = None
    try:
        _ready = name, ray.get(setup[0])()
    except Exception as error:
        raise CouldNotStart(error) from error


def perform(name: str, setup: list[Any], job: Any) -> Any:
    """Do one job."""
    start(name, setup)
    assert _ready is not None
    return _ready[1](job)


# the cluster


@contextmanager
def _reserved(workers: int) -> Iterator[Any]:
    """CPUs for so many tasks at once; those of a lost node come back by themselves where there is room."""
    from ray.util.placement_group import placement_group, remove_placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    group = placement_group([{"CPU": 1}] * workers)
    try:
        if not group.wait(START_WITHIN):
            raise WorkerLost(
                f"The Ray cluster had no room for {workers} workers within {START_WITHIN:.0f} s",
                "Free some of its CPUs, or use fewer workers",
            )
        yield PlacementGroupSchedulingStrategy(group)
    finally:
        with suppress(Exception):  # the cluster is gone
            remove_placement_group(group)


def environment() -> dict[str, str]:
    """The environment of a worker: one thread, and modules found where this process finds them."""
    installed = (sys.prefix, sys.base_prefix)
    own = [path or os.getcwd() for path in sys.path if not path.startswith(installed)]
    return ONE_THREAD | {"PYTHONPATH": os.pathsep.join(own)}


@contextmanager
def cluster(workers: int, address: str | None) -> Iterator[Any]:
    """Ray, connected to the cluster at the address, or to one of our own that ends with this context."""
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    try:
        import ray
    except ModuleNotFoundError:
        raise MissingExtra("ray", "ray") from None
    if ray.is_initialized():
        if address is not None:
            raise SettingError(
                f"This process is in a Ray cluster already and cannot join {address}", "Call ray.shutdown() first"
            )
        _check_room(ray, workers)
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
            _check_room(ray, workers)
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
    """Fail early where nobody listens."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        raise SettingError(f"{address!r} is no Ray address", "Give host:port, ray://host:port or auto")
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except (OSError, OverflowError) as error:
        raise _unreachable(address, brief(error)) from None


def _unreachable(address: str, why: str) -> Unreachable:
    return Unreachable(
        f"No Ray cluster answers at {address} ({why})",
        "Start it, give another --ray-address, or leave it out to start one here",
    )


def _check_room(ray: Any, workers: int) -> None:
    cpus = int(ray.cluster_resources().get("CPU", 0))
    if cpus < workers:
        raise SettingError(f"The Ray cluster has {cpus} CPUs, too few for {workers} workers", "Use fewer workers")


@contextmanager
def _own_signals() -> Iterator[None]:
    """Keep the process's own signal handlers: Ray would end the process at SIGTERM."""
    main = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if main:
            signal.signal(signal.SIGTERM, before)


@contextmanager
def _loopback() -> Iterator[None]:
    """Keep Ray at 127.0.0.1: it would replace that by another address of this machine, and listen on all of them."""
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
