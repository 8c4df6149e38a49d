"""One client of the demo, a process of its own: `python -m artesian.demo.client`, its orders on standard input.

It refreshes when it chooses, every time with new data of another mixture, and writes on standard output what it sends
and what was acknowledged. A second line on standard input asks it to stop.
"""

from __future__ import annotations

import json
import sys
import threading
from io import FileIO
from itertools import count
from typing import Any

import httpx

import artesian
from artesian.core import Model, generator
from artesian.demo.federation import SEED, end_with, experiment
from artesian.simulator.worlds.visit import Visit


class Traffic:
    """What goes over the wire: the newest upload, and the bytes of all bodies."""

    number = up = down = 0

    def sending(self, request: httpx.Request) -> None:
        """Called before every request; an upload is written down before it leaves."""
        if "/uploads/" in request.url.path:
            self.number = int(request.url.path.rpartition("/")[2])
            say(sending=self.number)

    def answered(self, response: httpx.Response) -> None:
        """Called for every answer."""
        self.up += int(response.request.headers.get("content-length", 0))
        self.down += int(response.headers.get("content-length", 0))


def main() -> None:
    """Follow the orders until asked to stop."""
    pipe, stop = FileIO(0, closefd=False), threading.Event()
    orders = json.loads(pipe.readline())
    end_with(pipe, stop.set)
    try:
        live(stop, **orders)
    except artesian.ArtesianError as error:
        sys.exit(f"error: {error}")


def live(stop: threading.Event, url: str, token: str, home: str, client: str, clients: int, pause: float) -> None:
    """Draw a first model, then refresh after every pause."""
    chosen, traffic, rng = experiment(clients), Traffic(), generator(SEED, "pause", client)
    hooks = {"request": [traffic.sending], "response": [traffic.answered]}
    connected = artesian.connect(url, token=token, home=home, client=client, event_hooks=hooks, trust_env=False)
    with connected as session:  # loopback needs no proxy
        for cycle in count():
            visit = chosen.world.visit(SEED, client, cycle)
            session.draw(len(visit.train))
            if stop.wait(rng.exponential(pause)):
                return
            refresh(session, chosen.model, visit, traffic)


def refresh(session: Any, model: Model, visit: Visit, traffic: Traffic) -> None:
    """Refresh on what the data are now, and score what the client had and has on test data of the same mixture."""
    test = model.learner(visit.test.x, visit.test.y)
    before = test.score(session.held())
    refreshed = session.refresh(model.learner(visit.train.x, visit.train.y), report=True)  # for the live page
    scores = {"before": before, "after": test.score(refreshed), "held_back": _held_back(refreshed)}
    mixtures = {"true": visit.mixture, "estimated": session.kept().mixture}
    say(acknowledged=traffic.number, **scores, **mixtures, up=traffic.up, down=traffic.down)


def _held_back(refreshed: artesian.Refreshed) -> list[float] | None:
    """The scores of what the client used and uses on the samples it held back; None where it could not judge."""
    before, after = refreshed.scores.get("previous"), refreshed.scores.get(refreshed.won)
    return None if before is None or after is None else [before, after]


def say(**words: Any) -> None:
    """One line of the record."""
    print(json.dumps(words), flush=True)


if __name__ == "__main__":
    main()
