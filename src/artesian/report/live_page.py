"""`artesian dashboard`: the live page for run folders, served to this machine alone.

Only whoever has the address sees anything: it holds a random key. A request that names another host is refused, so that
a page of the Internet cannot read this one under a name of its own.
"""

from __future__ import annotations

import json
import secrets
import sys
import threading
import time
from collections.abc import Sequence
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote

from artesian.dashboard.assets import HEADERS, assets, page_of_runs
from artesian.dashboard.streaming import HEADERS as STREAMED
from artesian.dashboard.streaming import HERE, KIND, OPENING, framed
from artesian.errors import ArtesianError, UserError
from artesian.report.following import FollowedRun

HOST = "127.0.0.1"
TICK = 1.0  # seconds between two looks at the files
CONNECTIONS = 64  # at once
PATIENCE = 30.0  # seconds for a request to come, and for what was sent to be taken
QUIET = 15  # ticks without news after which a stream shows that it is alive


class RunsPage:
    """The page of some runs: what every request shares."""

    def __init__(self, runs: Sequence[FollowedRun], port: int = 0, key: str | None = None) -> None:
        self.runs = {run.key: run for run in runs}
        self.key = key or secrets.token_urlsafe(16)
        self.stopping = threading.Event()
        self._turn, self._read_at = threading.Lock(), 0.0
        try:
            self._server = _Server((HOST, port), partial(_Request, self))
        except OSError as error:
            raise UserError(f"Cannot listen on {HOST}:{port}: {error.strerror}", "Choose another --port") from None

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    @property
    def url(self) -> str:
        """Where the page is, key included."""
        return f"http://{HOST}:{self.port}/{self.key}/"

    def serve(self) -> None:
        """Answer until `close` is called in another thread, or this one is interrupted."""
        try:
            self._server.serve_forever(poll_interval=0.05)
        finally:
            self.stopping.set()
            self._server.server_close()

    def close(self) -> None:
        """Stop answering."""
        self.stopping.set()
        self._server.shutdown()

    def read(self) -> None:
        """Take in what the runs have written since, once in a while, whoever asks."""
        with self._turn:
            if time.monotonic() - self._read_at < TICK * 0.9:
                return
            for run in self.runs.values():
                run.read()
            self._read_at = time.monotonic()

    def news(self, known: dict[str, tuple[int, int]]) -> list[dict[str, Any]]:
        """What changed in every run since what is `known`, which is brought up to date: turn and mark by run."""
        self.read()
        told = []
        for key, run in self.runs.items():
            chronicle, turns = run.chronicle, run.turns
            before, mark = known.get(key, (0, 0))
            mark = mark if before == turns else 0  # it was read again: everything is sent again
            if not mark or chronicle.mark > mark:
                facts = chronicle.facts(mark)
                known[key] = turns, facts["mark"]
                told.append(facts)
        return told


class _Server(ThreadingHTTPServer):
    """A thread for every connection, up to a number; one too many is closed."""

    daemon_threads = True

    def __init__(self, *options: Any) -> None:
        self._free = threading.BoundedSemaphore(CONNECTIONS)
        super().__init__(*options)

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that hangs up is no error; anything else is shown."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class _Request(BaseHTTPRequestHandler):
    """One request of a browser."""

    timeout = PATIENCE  # as the class of it wants it: of every read and write
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "artesian", ""

    def __init__(self, page: RunsPage, *args: Any) -> None:
        self.page = page
        super().__init__(*args)

    def do_GET(self) -> None:
        """Answer a path below the key; anything else is not there."""
        own = {f"{host}:{self.page.port}" for host in (HOST, "localhost")}
        path, _, query = self.path.partition("?")
        _, key, *rest = (*path.split("/", 2), "")
        if self.headers.get("host") not in own:
            self._send(403, b"This page answers under its own address only", "text/plain; charset=utf-8")
        elif not secrets.compare_digest(key.encode(), self.page.key.encode()):
            self._send(404, b"Use the whole address that artesian dashboard prints", "text/plain; charset=utf-8")
        else:
            self._answer(rest[0], query)

    def _answer(self, path: str, query: str) -> None:
        if path == "page/events":
            self._stream()
        elif path.startswith("page/clients/"):
            self._history(unquote(path.removeprefix("page/clients/")), parse_qs(query).get("source", [""])[0])
        elif path in assets():
            asset = page_of_runs() if path == "" else assets()[path]
            self._send(200, asset.body, asset.kind)
        else:
            self._send(404, b"No such page", "text/plain; charset=utf-8")

    def _history(self, client: str, source: str) -> None:
        run = self.page.runs.get(source)
        told = run.chronicle.history(client) if run is not None else []
        self._send(200, json.dumps(told).encode(), "application/json")

    def _stream(self) -> None:
        self.close_connection = True
        self._begin(200, KIND, STREAMED)
        known: dict[str, tuple[int, int]] = {}
        quiet = 0
        try:
            self.wfile.write(OPENING)
            while not self.page.stopping.is_set():
                messages = [framed(facts) for facts in self.page.news(known)]
                quiet = 0 if messages else quiet + 1
                if messages or quiet % QUIET == 0:
                    self.wfile.write(b"".join(messages) or HERE)
                self.page.stopping.wait(TICK)
        except (OSError, ArtesianError):  # the browser went away, or the folder did: the browser asks again
            return

    def _send(self, status: int, body: bytes, kind: str) -> None:
        self._begin(status, kind, {"content-length": str(len(body)), "cache-control": "no-cache"})
        self.wfile.write(body)

    def _begin(self, status: int, kind: str, more: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {"content-type": kind, **HEADERS, **more}.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: the terminal shows the address."""
