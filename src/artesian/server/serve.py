"""`artesian serve`: opens the store and a socket, and runs the application in uvicorn."""

from __future__ import annotations

import asyncio
import json
import resource
import signal
import socket
import sys
from asyncio import constants
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any, get_args

from artesian.errors import MissingExtra, SettingError, UserError
from artesian.execution.pool import WorkerPool
from artesian.server.app import create_app
from artesian.server.auth import Auth
from artesian.server.crowding import Crowd
from artesian.server.federation import Federation
from artesian.server.keys import SigningKeys
from artesian.server.log import start_logging
from artesian.server.measuring import measured_in
from artesian.server.operating import describe_member, reach_of
from artesian.server.service import Service, utc
from artesian.server.settings import Settings
from artesian.server.timeouts import connections
from artesian.server.tls import Tls
from artesian.server.tokens import Scope, Tokens
from artesian.storage.history import BEGAN
from artesian.storage.reading import read_history, snapshot_of
from artesian.storage.store import Store

LOST_KEYS = "If there were others, restore the file: acknowledgements that they signed cannot be checked without it"


def run(
    federation: Federation,
    settings: Settings,
    folder: Path,
    host: str,
    port: int,
    tls: Tls | None,
    pool: WorkerPool | None,
    show: Callable[[dict[str, str]], None] | None = None,
    accept_replay: bool = False,
) -> None:
    """Serve until stopped; then finish what is under way and take a snapshot. `show` gets the first tokens."""
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
            accept_replay=accept_replay,
        )
        if pool is not None:
            say(f"waiting for {settings.measurers} measuring workers")
            pool.wait()
        with _address(host, port):
            listener.listen(512)
        tokens = first_tokens(folder, show)
        auth = Auth(tokens, store, service.coordinator.state.members)
        keys, crowd = signing_keys(store), Crowd(settings)
    except BaseException:
        store.close()
        listener.close()
        raise
    _make_room_for(settings.connections)
    constants.SSL_HANDSHAKE_TIMEOUT = settings.grace  # whoever connects and says nothing
    config = uvicorn.Config(
        create_app(service, auth, settings, keys, crowd),
        http=connections(settings, crowd),
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=5,
        **(tls.options if tls else {}),
    )
    server = uvicorn.Server(config)
    server.handle_exit = _stopping(service, server.handle_exit)  # type: ignore[method-assign]

    def stop(*_: object) -> None:
        server.should_exit = True

    for number in (signal.SIGINT, signal.SIGTERM):  # before uvicorn listens to them, and once more when it is done
        signal.signal(number, stop)
    say(f"serving {federation.name} at {url_of(host, listener.getsockname()[1], secure=tls is not None)}")
    if settings.page:
        say("the live page is at the same address: open it in a browser, and sign in with an admin token")
    if not tokens.all():
        say(f"no tokens yet: artesian token make {folder} NAME makes one")
    start_logging(settings.log)
    server.run(sockets=[listener])
    sys.exit(_ended(service))


def _ended(service: Service) -> int:
    """The exit code of a server that ends; 1 if it did not end in good order, such as without a last snapshot."""
    if service.failed is not None:
        say(f"error: no snapshot was written at the end: {service.failed}")
    return int(not service.closed)


def url_of(host: str, port: int, *, secure: bool) -> str:
    """The address clients connect to; that of IPv6 stands in brackets."""
    return f"{'https' if secure else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"


def say(line: str) -> None:
    """Show the operator a line at once."""
    with suppress(OSError):  # a full disk may be what the line is about
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


def first_tokens(folder: Path, show: Callable[[dict[str, str]], None] | None) -> Tokens:
    """The tokens of a store; the first start makes two where somebody is there to be shown them.

    If they cannot be shown there are none, and the next start makes others.
    """
    tokens = Tokens(folder / "tokens.json")
    found = tokens.all()  # a file that cannot be read is found now
    if show is not None and not found:
        made = {scope: tokens.make(scope, f"first-{scope}") for scope in get_args(Scope)}
        try:
            show(made)
        except BaseException:
            tokens.path.unlink(missing_ok=True)
            raise
    return tokens


def say_tokens(made: Mapping[str, str]) -> None:
    """Show new tokens on standard error."""
    for scope, text in made.items():
        say(f"{scope} token, shown only now: {text}")


def signing_keys(store: Store) -> SigningKeys:
    """The keys of a store; the first start makes one."""
    keys = SigningKeys(store.folder / "keys.json")
    if not keys.held():
        if store.count:
            say(f"warning: no signing keys in {keys.path}, so a new one is made. {LOST_KEYS}")
        keys.rotate(utc())
        keys.held()
    return keys


def describe(folder: Path) -> dict[str, Any]:
    """What a store holds, for people and scripts; nothing is written, and a server may be using it."""
    history = read_history(folder)
    if not history.snapshots:
        raise SettingError(f"No snapshot in the store {folder} yet", "Start its server once")
    newest, (first, last) = history.snapshots[-1], history.times()
    state = snapshot_of(json.loads(newest.record)).state
    reach = reach_of([row.events for row in history.snapshots], history.forgotten, history.count)
    return {
        **{key: value for key, value in history.about.items() if key != BEGAN},
        "events": history.count,
        "first_at": first,
        "last_at": last,
        "written_by": history.writer(history.count + 1),
        "snapshot_at": newest.events,
        "version": state.version,
        "rollback_from": reach.rollback_from,
        "forget_from": reach.forget_from,
        "clusters": [
            {"name": k, "updated": c.updated, "updates": c.updates, "loss": c.loss} for k, c in state.clusters.items()
        ],
        "members": [describe_member(client, member) for client, member in sorted(state.members.items())],
        "acts": [{"event": number, **act._asdict()} for number, act in sorted(history.acts.items())],
        "last": [_brief(json.loads(row.record)) for row in history.events[-5:]],
    }


def _brief(record: dict[str, Any]) -> dict[str, Any]:
    return {"kind": record["kind"], "client": record["client"], "at": record.get("at")}


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
