"""One client of the demo, as a process of its own: `python -m artesian.demo.client`, its orders on standard input.

It refreshes when it chooses, with new data of another mixture every time, and writes down on standard output what it
sends and what was acknowledged. A second line on standard input asks it to stop after what it is doing.
"""

from __future__ import annotations

import json
import sys
import threading
from dataclasses import dataclass
from io import FileIO
from typing import Any

import httpx

from artesian.client.connect import connect
from artesian.client.session import Session
from artesian.core import Task, generator
from artesian.demo.world import SEED, experiment, listen
from artesian.errors import ArtesianError
from artesian.simulator.jobs import Job, Place


@dataclass(frozen=True)
class Orders:
    """Who a client is, where its server is, and how often it comes."""

    client: str
    url: str
    token: str
    home: str
    data: str  # file with the digits
    clients: int  # of them all
    pause: float  # mean seconds between two refreshes


@dataclass
class Traffic:
    """Bytes of the bodies that went up and down."""

    up: int = 0
    down: int = 0

    def count(self, response: httpx.Response) -> None:
        """Called for every answer."""
        self.up += int(response.request.headers.get("content-length", 0))
        self.down += int(response.headers.get("content-length", 0))


def main() -> None:
    """Live by the orders until told to stop."""
    pipe, stop = FileIO(0, closefd=False), threading.Event()
    orders = Orders(**json.loads(pipe.readline()))
    listen(pipe, stop.set)
    try:
        live(orders, stop)
    except ArtesianError as error:
        sys.exit(f"error: {error}")


def live(orders: Orders, stop: threading.Event) -> None:
    """Draw a first model, then refresh after every pause."""
    chosen = experiment(orders.clients, orders.data)
    place, traffic = Place(chosen.world, chosen.model, SEED), Traffic()
    rng = generator(SEED, "pause", orders.client)
    options: dict[str, Any] = {
        "event_hooks": {"response": [traffic.count]},
        "trust_env": False,
    }  # loopback needs no proxy
    with connect(orders.url, token=orders.token, home=orders.home, client=orders.client, **options) as session:
        cycle, samples = 0, len(chosen.world.visit(SEED, orders.client, 0).train)
        task = session.task(samples)
        while not stop.wait(rng.exponential(orders.pause)):
            if task is not None:
                task, cycle = refresh(session, place, traffic, task, cycle), cycle + 1
            else:
                task = session.task(samples)


def refresh(session: Session, place: Place, traffic: Traffic, task: Task, cycle: int) -> Task | None:
    """Train on what the data are now, upload, and score what came back on test data of the same mixture."""
    done = place.perform(Job(session.client, cycle, task, {}))
    say(sending=task.number)
    answer = session.upload(done.fit.upload)
    test = place.world.visit(place.seed, session.client, cycle).test
    say(
        acknowledged=task.number,
        before=done.before,
        after=place.model.learner(test.x, test.y).score(session.held()),
        true=done.mixture,
        found=answer.mixture if answer else None,
        up=traffic.up,
        down=traffic.down,
    )
    return answer


def say(**told: Any) -> None:
    """One line of the record."""
    print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main()
