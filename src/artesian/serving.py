"""Serving from the command line: a federation by name, a store by path, and uvicorn around them."""

from __future__ import annotations

import asyncio
import ipaddress
import resource
import signal
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from artesian.errors import MissingExtra, SettingError, UserError
from artesian.experiments import build, tables_of
from artesian.params import Params
from artesian.server.app import create_app
from artesian.server.connection import connections
from artesian.server.federation import Federation
from artesian.server.guard import Guard, Tokens
from artesian.server.log import start_logging
from artesian.server.measuring import Crew
from artesian.server.service import Service
from artesian.server.settings import Settings
from artesian.server.store import Store, read_store
from artesian.simulator.experiment import Experiment
from artesian.simulator.start import measuring_learners
from artesian.simulator.worker import single_threaded
from artesian.tables import checked, imported, parse_change, settings_of
from artesian.workers import measuring


def serve(
    source: str,
    folder: Path,
    host: str,
    port: int,
    cert: Path | None = None,
    key: Path | None = None,
    insecure: bool = False,
    changes: Sequence[str] = (),
) -> None:
    """Serve until told to stop; then finish what is under way and take a snapshot."""
    federation, settings = load(source, changes)
    _check_transport(host, cert, key, insecure)
    with (
        single_threaded(federation.model),  # a measurer each, and the bits of a simulation
        measuring(federation, settings, source, changes) as crew,
    ):
        _serve(federation, settings, folder, host, port, cert, key, crew)


def _serve(
    federation: Federation,
    settings: Settings,
    folder: Path,
    host: str,
    port: int,
    cert: Path | None,
    key: Path | None,
    crew: Crew | None,
) -> None:
    try:
        import uvicorn
    except ModuleNotFoundError:
        raise MissingExtra("uvicorn", "server") from None

    store = Store(folder, federation.identity)
    try:
        service = Service.open(
            federation,
            store,
            snapshot_every=settings.snapshot_every,
            keep_uploads=settings.keep_uploads,
            measurers=settings.measurers,
            crew=crew,
        )
        if crew is not None:
            crew.wait()
        listener = _listen(host, port)
        guard = Guard(first_tokens(folder), store, service.coordinator.state.members)
    except BaseException:
        store.close()
        raise
    _make_room_for(settings.connections)
    scheme = "https" if cert else "http"
    print(f"serving {federation.name} at {scheme}://{host}:{listener.getsockname()[1]}", file=sys.stderr, flush=True)
    start_logging(settings.log)
    config = uvicorn.Config(
        create_app(service, guard, settings),
        http=connections(settings),
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        ssl_certfile=cert,
        ssl_keyfile=key,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=5,
    )
    for number in (signal.SIGINT, signal.SIGTERM):  # uvicorn raises them once more when it is done
        signal.signal(number, lambda *_: sys.exit(0))
    server = uvicorn.Server(config)
    server.handle_exit = _stopping(service, server.handle_exit)  # type: ignore[method-assign]
    server.run(sockets=[listener])


def _stopping(service: Service, handle: Callable[[int, FrameType | None], None]) -> Callable[..., None]:
    """uvicorn's answer to a signal, after those who wait for a round were sent home."""

    def stop(number: int, frame: FrameType | None) -> None:
        with suppress(RuntimeError):  # no loop yet, or no more: nobody waits
            loop = asyncio.get_running_loop()
            loop.call_soon_threadsafe(lambda: loop.create_task(service.stop()))
        handle(number, frame)

    return stop


def _make_room_for(sockets: int) -> None:
    """As many open files as the settings promise connections, where the machine allows it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = sockets + 256
    if soft != resource.RLIM_INFINITY and soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def load(source: str, changes: Sequence[str] = ()) -> tuple[Federation, Settings]:
    """The federation of `module:name`, or of an experiment's file or preset, and how it is to be served.

    A change without a section is a deployment setting; one with a section changes the experiment.
    """
    ours = [change for change in changes if "." not in change.partition("=")[0]]
    table = dict(parse_change(change) for change in ours)
    others = [change for change in changes if change not in ours]
    if ":" in source:
        if others:
            raise SettingError("module:name is changed in its module", others[0], "give deployment settings only")
        settings = settings_of(Settings, table, "the server")
        return load_federation(source), settings
    tables = tables_of(source, others)
    experiment = build(tables)
    settings = settings_of(Settings, {**tables.get("server", {}), **table}, "the server")
    return serve_experiment(experiment, tables.get("federation", {})), settings


@dataclass(frozen=True)
class Serving:
    """The table [federation] of an experiment: what only matters where it is served."""

    name: str = ""
    seed: int = 0
    clip: float | None = None
    publish_after: int = 1


def serve_experiment(experiment: Experiment, table: Mapping[str, Any] | None = None) -> Federation:
    """The federation whose clients an experiment simulates: its proxy sets, pre-training, algorithm and plan."""
    told = settings_of(Serving, table or {}, "federation")
    model, samples = experiment.model, experiment.world.proxies(told.seed)

    def start() -> list[Params]:
        with single_threaded(model):
            return experiment.start.from_samples(model, samples, told.seed)

    return checked(
        "federation",
        lambda: Federation(
            model,
            experiment.planned().algorithm,
            measuring_learners(model, samples, experiment.proxy_sample, told.seed),
            start,
            plan=experiment.training,
            clip=told.clip,
            publish_after=told.publish_after,
            name=told.name or experiment.name,
            seed=told.seed,
        ),
    )


def load_federation(source: str) -> Federation:
    """The federation of `module:name`: a value, or a function that makes one."""
    found = imported(source, {}, "federation")
    try:
        found = found() if callable(found) else found
    except Exception as error:  # the operator's own code may fail in any way
        raise SettingError(f"{source} makes a Federation", f"{type(error).__name__}: {error}", "mend it") from None
    if not isinstance(found, Federation):
        raise SettingError("module:name is a Federation, or makes one", type(found).__name__, "see the how-to")
    return found


def first_tokens(folder: Path) -> Tokens:
    """The tokens of a store; the first start makes two and shows them once."""
    tokens = Tokens(folder / "tokens.json")
    if not tokens.all():
        for scope in ("enrol", "admin"):
            print(
                f"{scope} token, shown this once: {tokens.make(scope, 'first-' + scope)}", file=sys.stderr, flush=True
            )
    return tokens


def describe(folder: Path) -> dict[str, Any]:
    """What a store holds, for people and scripts."""
    about, count, done, snapshot, events = read_store(folder)
    state = snapshot.state
    return {
        **about,
        "events": count,
        "snapshot_at": done,
        "version": state.version,
        "clusters": [
            {"name": k, "updated": c.updated, "updates": c.updates, "loss": c.loss} for k, c in state.clusters.items()
        ],
        "members": [
            {
                "client": client,
                "samples": m.samples,
                "answered": m.answered,
                "open": m.receipt.number if m.receipt else None,
                "present": m.present,
                "mixture": m.mixture,
            }
            for client, m in sorted(state.members.items())
        ],
        "last": [{"kind": event["kind"], "client": event["client"]} for event in events],
    }


def _check_transport(host: str, cert: Path | None, key: Path | None, insecure: bool) -> None:
    """Plain HTTP stays on this machine unless the operator insists."""
    if (cert is None) != (key is None):
        raise SettingError("--tls-cert and --tls-key go together", "one of them", "give both")
    try:
        local = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        local = False
    if not local and cert is None and not insecure:
        raise SettingError(
            "plain HTTP stays on this machine", host, "give --tls-cert and --tls-key, or --insecure behind a proxy"
        )


def _listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # so that answers leave at once
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(512)
    except OSError as error:
        raise UserError(
            "the address is free to listen on", f"{error.strerror} at {host}:{port}", "choose another"
        ) from None
    return listener
