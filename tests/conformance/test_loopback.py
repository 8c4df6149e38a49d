"""Every algorithm over real HTTP to a real server process: the same bits as in the simulator, reply by reply."""

import os
import signal
import socket
import subprocess
import sys
import time
from importlib.util import find_spec

import httpx
import pytest

from artesian.algorithms import ALGORITHMS
from artesian.core import Model, Reply
from artesian.server.app import decode_task, encode_task
from artesian.server.federation import Federation
from artesian.server.service import Service
from artesian.simulator.experiment import Experiment
from artesian.simulator.fleet import Fleet
from artesian.simulator.run import Simulation
from artesian.simulator.transports import Direct
from artesian.storage.codec import encode
from artesian.storage.store import Store
from artesian.testing import ToyModel, ToyWorld

CLIENTS, SECRET = 12, "a secret for everybody"
APP = """
import os
from test_loopback import federation
federation = federation(os.environ["ALGORITHM"], os.environ["MODEL"])
"""
BOTH = [(name, "toy") for name in sorted(ALGORITHMS)] + [
    (name, "torch") for name in ("cdfl", "fedem", "fedsoft-async", "flexcfl") if find_spec("torch")
]  # with a network of BatchNorm and dropout


def model_of(kind: str) -> Model:
    if kind == "toy":
        return ToyModel()
    from test_torch_conformance import MODEL

    return MODEL


def experiment(name: str, kind: str = "toy") -> Experiment:
    fleet = Fleet("latency", 1, 4, leave_share=0.3, leave_by=3, return_after=2)
    return Experiment(ToyWorld(CLIENTS), model_of(kind), ALGORITHMS[name](), fleet=fleet, uploads=40).planned()


def federation(name: str, kind: str) -> Federation:
    """What the simulator begins with, as a server would."""
    planned = experiment(name, kind)
    model, samples = planned.model, planned.world.proxies(0)
    proxies = {k: model.learner(s.x, s.y) for k, s in samples.items()}
    start = [c.params for c in Simulation(experiment("cdfl", kind), 0).coordinator.state.clusters.values()]
    return Federation(model, planned.algorithm, proxies, start, planned.training)


class Mirrored:
    """A link that does everything twice, here and at the server, and compares every reply bit by bit."""

    def __init__(self, coordinator, url: str, token: str) -> None:
        self.coordinator, self.direct, self.token = coordinator, Direct(coordinator), token
        self.http = httpx.Client(base_url=url, timeout=30)
        self.compared = 0

    def join(self, client, samples, changed=False):
        body = {"samples": samples, "changed": changed, "secret": SECRET}
        self.send("PUT", f"/v1/clients/{client}", self.token, json=body)
        return self.same(self.direct.join(client, samples, changed))

    def upload(self, upload):
        self.send("PUT", f"/v1/clients/{upload.client}/uploads/{upload.number}", content=encode("upload", upload))
        return self.same(self.direct.upload(upload))

    def leave(self, client):
        self.send("DELETE", f"/v1/clients/{client}")
        return self.same(self.direct.leave(client))

    def expire(self, client, number):
        raise AssertionError("no algorithm here has patience")

    def send(self, method, path, token=SECRET, **body):
        reply = self.http.request(method, path, headers={"authorization": f"Bearer {token}"}, **body)
        assert reply.status_code < 300, reply.text
        return reply

    def same(self, replies: list[Reply]) -> list[Reply]:
        answered = []
        for reply in replies:
            told = self.send("GET", f"/v1/clients/{reply.client}/task").content
            assert told == encode_task(reply.task)
            self.compared += 1
            answered.append(Reply(reply.client, decode_task(told)))
        return answered


@pytest.mark.parametrize(("name", "kind"), BOTH)
def test_over_loopback_the_bits_are_the_simulators(tmp_path, name, kind) -> None:
    (tmp_path / "app.py").write_text(APP)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    paths = os.pathsep.join([os.path.dirname(__file__), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "artesian.cli", "serve", "app:federation", "--store", "store", "--port", str(port)]
    command += ["--set", "log=off"]
    process = subprocess.Popen(
        command,
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": paths, "ALGORITHM": name, "MODEL": kind},
    )
    try:
        token = process.stderr.readline().split()[-1]
        wait_for(f"http://127.0.0.1:{port}/healthz")
        simulation = Simulation(
            experiment(name, kind), 0, link=lambda coordinator: Mirrored(coordinator, f"http://127.0.0.1:{port}", token)
        )
        simulation.run()
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=30)
        process.stderr.close()
    simulation.link.http.close()
    assert process.returncode == 0
    assert simulation.link.compared > 40
    served = federation(name, kind)
    store = Store(tmp_path / "store", served.identity)
    again = Service.open(served, store)
    assert again.coordinator.digest() == simulation.coordinator.digest()
    again.close()


def wait_for(url: str) -> None:
    end = time.monotonic() + 30
    while True:
        try:
            httpx.get(url)
            return
        except httpx.TransportError:
            assert time.monotonic() < end
            time.sleep(0.05)
