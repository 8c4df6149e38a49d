"""A real server process, for clients that are real processes too."""

import os
import signal
import socket
from pathlib import Path

from launching import launcher
from promises.federation import Web, until

POINTS = """
import os
from dataclasses import replace
import numpy as np
from artesian import CDFL, IFCA, Confluence, FedBuff, FedProx, Plan
from artesian.learners.arrays import SoftmaxRegression
from artesian.server.federation import Federation

MODEL = SoftmaxRegression(features=2, classes=2)
PLAN = Plan(epochs=5, rate=0.3)


def draw(cluster, seed, count=60):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 2, count)
    angle = np.pi * cluster / 2
    x = rng.normal(0, 1, (count, 2)) + np.outer(2 * y - 1, [np.cos(angle), np.sin(angle)])
    return x.astype(np.float32), y


def asking(**settings):
    "An algorithm whose tasks have these settings."
    task = lambda self, state, client: replace(FedBuff.task(self, state, client), settings=settings)
    return type("Asking", (FedBuff,), {"task": task})(buffer_size=1)


def federation():
    proxies = {f"k{i}": MODEL.learner(*draw(i, i)) for i in range(2)}
    start = [proxy.train(MODEL.start(0), seed=0, plan=Plan(epochs=10)) for proxy in proxies.values()]
    algorithm = eval(os.environ.get("ALGORITHM", "CDFL()"))
    return Federation(MODEL, algorithm, proxies, start, plan=PLAN, name="points")


def learner():
    return MODEL.learner(*draw(1, seed=7, count=40))
"""


class Process:
    """`artesian serve` in a folder of its own, on a port of its own."""

    def __init__(self, folder: Path, app: str = POINTS, algorithm: str = "CDFL()") -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)
        (folder / "points.py").write_text(app)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.web = Web(probe.getsockname()[1])
        self.url = f"http://127.0.0.1:{self.web.port}"
        words = ["serve", "points:federation", "--store", "store", "--port", str(self.web.port), "--show-token"]
        self.pid = launcher().start(words, folder, folder / "log", ALGORITHM=algorithm)
        until(lambda: self.web.up() or self.poll() is not None)
        assert self.poll() is None, (folder / "log").read_text()
        lines = (folder / "log").read_text().splitlines()
        self.token = next(line.split()[-1] for line in lines if line.startswith("enrol token"))

    def task(self, client: str, secret: str) -> bytes:
        """The open task of a client, as the server tells it."""
        status, told = self.web.request("GET", f"/v1/clients/{client}/task", secret)
        assert status == 200, told
        return told

    def poll(self) -> int | None:
        """The exit code, once it has one."""
        return launcher().poll(self.pid)

    def kill(self) -> None:
        """End it at once, if it has not ended."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)
            launcher().wait(self.pid)

    def stop(self) -> dict:
        """End it in good order; what its store holds, client by client."""
        from artesian.server.serve import describe

        if self.poll() is None:
            os.kill(self.pid, signal.SIGTERM)
        assert launcher().wait(self.pid, 30) == 0, (self.folder / "log").read_text()
        return {member["client"]: member for member in describe(self.folder / "store")["members"]}
