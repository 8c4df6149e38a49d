"""Serving a federation: a store by path, a socket, and uvicorn around them."""

from __future__ import annotations

import asyncio
import ipaddress
import resource
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

from artesian.errors import MissingExtra, SettingError, UserError
from artesian.execution.pool import WorkerPool
from artesian.server.app import create_app
from artesian.server.auth import Auth, Tokens
from artesian.server.federation import Federation
from artesian.server.log import start_logging
from artesian.server.measuring import measured_in
from artesian.server.service import Service
from artesian.server.settings import Settings
from artesian.server.timeouts import connections
from artesian.storage.store import Store, read_store


def run(
    federation: Federation,
    settings: Settings,
    folder: Path,
    host: str,
    port: int,
    cert: Path | None,
    key: Path | None,
    pool: WorkerPool | None,
) -> None:
    """Serve until told to stop; then finish what is under way and take a snapshot."""
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
            measure=measured_in(pool) if pool else None,
        )
        if pool is not None:
            pool.wait()
        listener = _listen(host, port)
        auth = Auth(first_tokens(folder), store, service.coordinator.state.members)
    except BaseException:
        store.close()
        raise
    _make_room_for(settings.connections)
    scheme = "https" if cert else "http"
    print(f"serving {federation.name} at {scheme}://{host}:{listener.getsockname()[1]}", file=sys.stderr, flush=True)
    start_logging(settings.log)
    config = uvicorn.Config(
        create_app(service, auth, settings),
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


def check_transport(host: str, cert: Path | None, key: Path | None, insecure: bool) -> None:
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
