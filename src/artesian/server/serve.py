"""`artesian serve`: opens the store and a socket, and runs the application in uvicorn."""

from __future__ import annotations

import asyncio
import ipaddress
import resource
import signal
import socket
import ssl
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
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
from artesian.server.operating import describe_member, reach_of
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
    """Serve until stopped; then finish what is under way and take a snapshot."""
    try:
        import uvicorn
    except ModuleNotFoundError:
        raise MissingExtra("uvicorn", "server") from None

    listener = _bound(host, port)  # before the start models are trained, which may take long
    store = Store(folder, federation.identity)
    try:
        service = Service.open(
            federation,
            store,
            snapshot_every=settings.snapshot_every,
            retain=settings.retention,
            measurers=settings.measurers,
            measure=measured_in(pool) if pool else None,
            report=say,
        )
        if pool is not None:
            say(f"waiting for {settings.measurers} measuring workers")
            pool.wait()
        with _address(host, port):
            listener.listen(512)
        auth = Auth(first_tokens(folder), store, service.coordinator.state.members)
    except BaseException:
        store.close()
        listener.close()
        raise
    _make_room_for(settings.connections)
    say(f"serving {federation.name} at {url_of(host, listener.getsockname()[1], secure=cert is not None)}")
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


def url_of(host: str, port: int, *, secure: bool) -> str:
    """The address clients connect to; that of IPv6 stands in brackets."""
    return f"{'https' if secure else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"


def say(line: str) -> None:
    """Show the operator a line at once."""
    print(line, file=sys.stderr, flush=True)


def _stopping(service: Service, handle: Callable[[int, FrameType | None], None]) -> Callable[..., None]:
    """What uvicorn does on a signal, after every long poll was ended."""

    def stop(number: int, frame: FrameType | None) -> None:
        with suppress(RuntimeError):  # no loop yet, or none any more: nobody waits
            loop = asyncio.get_running_loop()
            loop.call_soon_threadsafe(lambda: loop.create_task(service.stop()))
        handle(number, frame)

    return stop


def _make_room_for(sockets: int) -> None:
    """Allow as many open files as there may be connections, as far as the machine permits."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = sockets + 256
    if soft != resource.RLIM_INFINITY and soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def first_tokens(folder: Path) -> Tokens:
    """The tokens of a store; the first start makes two, and shows each only then."""
    tokens = Tokens(folder / "tokens.json")
    if not tokens.all():
        for scope in ("enrol", "admin"):
            say(f"{scope} token, shown only now: {tokens.make(scope, 'first-' + scope)}")
    return tokens


def describe(folder: Path) -> dict[str, Any]:
    """What a store holds, for people and scripts."""
    about, count, done, snapshot, events, reach = read_store(folder, reach_of)
    state = snapshot.state
    return {
        **about,
        "events": count,
        "snapshot_at": done,
        "version": state.version,
        "rollback_from": reach.rollback_from,
        "forget_from": reach.forget_from,
        "clusters": [
            {"name": k, "updated": c.updated, "updates": c.updates, "loss": c.loss} for k, c in state.clusters.items()
        ],
        "members": [describe_member(client, member) for client, member in sorted(state.members.items())],
        "last": [{"kind": event["kind"], "client": event["client"]} for event in events],
    }


def check_transport(host: str, cert: Path | None, key: Path | None, insecure: bool) -> None:
    """Refuse plain HTTP beyond this machine unless the operator insists, and a certificate that cannot be used."""
    if (cert is None) != (key is None):
        raise SettingError("Only one of --tls-cert and --tls-key was given", "Give both")
    if cert is not None and key is not None:
        _check_certificate(cert, key)
    try:
        local = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        local = False
    if not local and cert is None and not insecure:
        raise SettingError(
            f"Plain HTTP at {host} would send models and secrets unencrypted",
            "Give --tls-cert and --tls-key, or --insecure behind a proxy",
        )


def _check_certificate(cert: Path, key: Path) -> None:
    for option, path in (("--tls-cert", cert), ("--tls-key", key)):
        if not path.is_file():
            raise SettingError(f"No such file: {path}", f"Check {option}")
    if "ENCRYPTED" in key.read_text(errors="replace"):  # uvicorn asks for its password when it starts
        return
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key)
    except (ssl.SSLError, OSError) as error:
        problem = f"{cert} and {key} are not a certificate and its key: {error}"
        raise SettingError(problem, "Give both in PEM format") from None


def _bound(host: str, port: int) -> socket.socket:
    """The address as ours; nobody is answered before `listen`."""
    with _address(host, port):
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # so that responses leave at once
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
    return listener


@contextmanager
def _address(host: str, port: int) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(
            f"Cannot listen on {host}:{port}: {error.strerror}", "Choose another --host or --port"
        ) from None
