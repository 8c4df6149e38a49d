"""One measurement of W1, in a process of its own: `python w1_run.py WAY ORDER`, called by the benchmarks.

WAY is `artesian`, `bare` (the same training in as many processes, and nothing else) or `naive` (an asynchronous loop
as people write it: one process, one client after the other). ORDER is JSON, the fields of `Order`. The last line
printed is JSON: when each update was done, and how many clusters an upload changed.
"""

from __future__ import annotations

import copy
import json
import multiprocessing
import os
import random
import sys
import time
from dataclasses import dataclass
from typing import Any, Literal

PROXY = 1000  # images of a server's set, where there are clusters


@dataclass(frozen=True)
class Order:
    """What to measure."""

    style: Literal["plain", "tuned"] = "plain"
    updates: int = 100
    workers: int = 2
    clusters: int = 0  # 0: FedAsync; otherwise CDFL with so many
    changed: float = 0.0  # clusters that a fold changes, which a bare loop then looks at anew
    evaluating: bool = False  # as a preset does: 200 images before and after, 500 every 20 uploads
    executor: str = "processes"  # of Artesian

    def __post_init__(self) -> None:
        if self.updates < 2 or self.workers < 1:
            raise ValueError("two updates and one worker at least")


def artesian(order: Order) -> dict[str, Any]:
    """The simulator with workers; the user gives a network and a plan."""
    from w1_work import BATCH, CLIENTS, DATA, NETWORKS, RATE, SAMPLES

    from artesian import CDFL, Experiment, FedAsync, Plan, Rotated, Start
    from artesian.learners.torch import TorchModel
    from artesian.simulator.simulation import Simulation

    few = not order.evaluating
    world = Rotated(
        data=os.environ[DATA],
        clusters=order.clusters or 1,
        clients=CLIENTS,
        samples_min=SAMPLES,
        samples_max=SAMPLES,
        proxy_images=PROXY if order.clusters else 1,
        test_images=1 if few else 500,
        client_test_samples=1 if few else 200,
    )
    epochs = 1 if order.clusters else 0  # clusters that are alike would all change at once
    experiment = Experiment(
        world,
        TorchModel(NETWORKS[order.style], shape=(1, 28, 28)),
        CDFL() if order.clusters else FedAsync(),
        training=Plan("adam", RATE, 1, BATCH),
        start=Start("shared", epochs, epochs, batch=BATCH),
        uploads=order.updates,
        evaluate_every=order.updates if few else 20,
    )
    stamps: list[float] = []
    simulation = Simulation(
        experiment.planned(),
        0,
        workers=order.workers,
        executor=order.executor,
        progress=lambda _: stamps.append(time.monotonic()),
    )
    simulation.run()
    changes = sum(cluster.updates for cluster in simulation.coordinator.state.clusters.values())
    return {"stamps": stamps, "changed": changes / order.updates}


def bare(order: Order) -> dict[str, Any]:
    """The user's training function in as many processes, client after client; with clusters, their losses too."""
    context = multiprocessing.get_context("spawn")
    turns, done = context.Value("i", 0), context.Queue()
    processes = [context.Process(target=_work, args=(order, turns, done)) for _ in range(order.workers)]
    for process in processes:
        process.start()
    stamps = [done.get() for _ in range(order.updates)]
    for process in processes:
        process.join()
    return {"stamps": stamps, "changed": order.changed}


def _work(order: Order, turns: Any, done: Any) -> None:
    import torch
    from w1_work import CLIENTS, images, loss, network, train

    torch.set_num_threads(1)
    torch.manual_seed(0)
    pictures, module = images(), network(order.style)
    start = copy.deepcopy(module.state_dict())
    proxies = [pictures.proxy(turn, PROXY) for turn in range(order.clusters)]
    while (turn := _next(turns)) < order.updates:
        module.load_state_dict(start)
        train(module, *pictures.client(turn % CLIENTS), order.style)
        for proxy in proxies:
            loss(module, *proxy, order.style)
        for k in range(looks(turn, order.changed)):
            loss(module, *proxies[k % len(proxies)], order.style)
        done.put(time.monotonic())


def _next(turns: Any) -> int:
    with turns.get_lock():
        turns.value += 1
        return int(turns.value) - 1


def looks(turn: int, mean: float) -> int:
    """So many at this turn that they are `mean` each over many turns."""
    return int((turn + 1) * mean + 1e-9) - int(turn * mean + 1e-9)


def naive(order: Order) -> dict[str, Any]:
    """FedAsync over dictionaries of tensors: copied for every client, trained one after the other, mixed by name."""
    from w1_work import CLIENTS, images, network, train

    pictures, server = images(), network(order.style)
    state = server.state_dict()
    given = {client: (0, copy.deepcopy(state)) for client in range(CLIENTS)}
    stamps = []
    for version in range(order.updates):
        client = random.randrange(CLIENTS)
        base, weights = given[client]
        local = copy.deepcopy(server)
        local.load_state_dict(weights)
        train(local, *pictures.client(client), order.style)
        trained, late = local.state_dict(), version - base
        alpha = 0.3 if late <= 4 else 0.3 / (late - 4 + 1)
        state = {name: (1 - alpha) * state[name] + alpha * trained[name] for name in state}
        server.load_state_dict(state)
        given[client] = version + 1, copy.deepcopy(state)
        stamps.append(time.monotonic())
    return {"stamps": stamps, "changed": 1.0}


WAYS = {"artesian": artesian, "bare": bare, "naive": naive}

if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] not in WAYS:
        raise SystemExit(__doc__)
    print(json.dumps(WAYS[sys.argv[1]](Order(**json.loads(sys.argv[2])))))
