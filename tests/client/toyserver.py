"""A real toy federation behind a real socket, in threads of this process."""

import json
import socket
import threading
from pathlib import Path

import uvicorn
from homes import MODEL, WORLD

from artesian.algorithms import CDFL
from artesian.core import Event
from artesian.server.app import create_app
from artesian.server.auth import Auth, Tokens
from artesian.server.federation import Federation
from artesian.server.messages import encode_task
from artesian.server.serve import signing_keys
from artesian.server.service import Service
from artesian.storage.codec import from_tree, gather
from artesian.storage.store import Store
from artesian.storage.tables import EVENTS


class Served:
    """A server, and a note of every task it ever gave."""

    def __init__(self, folder: Path, port: int = 0, federation: Federation | None = None, signs: bool = False) -> None:
        proxies = {k: MODEL.learner(s.x, s.y) for k, s in WORLD.proxies(0).items()}
        served = federation or Federation(MODEL, CDFL(), proxies, [MODEL.start(0), MODEL.start(1)], defence=None)
        self.store = Store(folder / "store", served.identity)
        self.service = Service.open(served, self.store)
        tokens = Tokens(folder / "store" / "tokens.json")
        self.token = tokens.make("enrol", f"e{len(tokens.all())}")
        self.given: set[bytes] = set()
        self._note_tasks()
        self.listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # answers leave at once
        self.listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.listener.bind(("127.0.0.1", port))
        self.address = self.listener.getsockname()
        self.url = f"http://127.0.0.1:{self.address[1]}"
        keys = signing_keys(self.store) if signs else None
        config = uvicorn.Config(create_app(self.service, Auth(tokens, self.store), keys=keys), log_level="critical")
        config.timeout_graceful_shutdown = 1
        self.server = uvicorn.Server(config)
        self.thread = threading.Thread(target=self.server.run, kwargs={"sockets": [self.listener]})
        self.thread.start()

    def _note_tasks(self) -> None:
        """Every task an answer carries is one that `_own` picked."""
        own = self.service._own

        def noting(client, replies):
            task = own(client, replies)
            if task is not None:
                self.given.add(encode_task(task))
            return task

        self.service._own = noting

    @property
    def state(self):
        return self.service.coordinator.state

    def folded(self) -> list[tuple[str, int]]:
        """Who uploaded what, in order, as the store recorded it."""
        blank, found = MODEL.start(0), []
        for record in self.service._writer.submit(self._records).result():
            told = {key: value for key, value in record.items() if key != "at"}
            event = from_tree(Event, gather(told, "$blob", lambda _: blank))
            if event.measured is not None:
                found.append((event.client, event.measured.upload.number))
        return found

    def _records(self) -> list:
        return [json.loads(row.record) for row in self.store._db.execute(EVENTS.select().order_by(EVENTS.c.number))]

    def close(self) -> None:
        self.server.should_exit = True
        self.thread.join()
        self.listener.close()
