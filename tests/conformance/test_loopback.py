"""Every algorithm over real HTTP to a real server process: the same bits as in the simulator, reply by reply."""

import os
import signal
from importlib.util import find_spec

import httpx
import pytest
from launching import SERVING, launcher
from promises.federation import Process
from tiers import some_thorough

from artesian.algorithms import ALGORITHMS
from artesian.core import Model, Reply
from artesian.server.federation import Federation
from artesian.server.messages import decode_task, encode_task
from artesian.server.service import Service
from artesian.simulator.experiment import Experiment
from artesian.simulator.fleet import Fleet
from artesian.simulator.simulation import Simulation
from artesian.simulator.transports import CoordinatorTransport, Direct
from artesian.storage.codec import encode
from artesian.storage.store import Store
from artesian.testing import ToyModel, ToyWorld

pytestmark = pytest.mark.heavy
HERE = os.path.dirname(__file__)
PATHS = f"import sys; sys.path[:0] = [{HERE!r}, {os.path.dirname(HERE)!r}]\n"
IMPORTS = {"toy": f"{PATHS}{SERVING}import test_loopback\n"}
IMPORTS["torch"] = IMPORTS["toy"] + "import test_torch_conformance\n"
CLIENTS, SECRET = 12, "a secret for everybody"
APP = """
import os
from test_loopback import federation
federation = federation(os.environ["ALGORITHM"], os.environ["MODEL"])
"""
TORCH = [(name, "torch") for name in ("cdfl", "fedem", "fedsoft-async", "flexcfl") if find_spec("torch")]  # BatchNorm
BOTH = some_thorough(
    [(name, "toy") for name in sorted(ALGORITHMS)] + TORCH,
    *((name, "toy") for name in ("cdfl", "confluence", "fedavg", "flexcfl")),
    *TORCH[:1],
)


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
    return Federation(model, planned.algorithm, proxies, start, planned.training, defence=None)


class Mirrored(CoordinatorTransport):
    """A transport that does everything twice, here and at the server, and compares every reply bit by bit."""

    def __init__(self, coordinator, url: str, token: str) -> None:
        self.coordinator, self.direct, self.token = coordinator, Direct(coordinator), token
        self.http = httpx.Client(base_url=url, timeout=30, verify=False)  # plain HTTP: no certificates are read
        self.compared = 0

    def join(self, client, samples, changed=False):
        body = {"samples": samples, "changed": changed, "secret": SECRET}
        self.send("PUT", f"/v1/clients/{client}", self.token, json=body)
        return self.same(self.direct.join(client, samples, changed))

    def upload(self, upload, evidence=None):
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
    source = launcher(IMPORTS[kind])
    server = Process(tmp_path, "--set", "log=off", source=source, app=APP, ALGORITHM=name, MODEL=kind)
    url, token = f"http://127.0.0.1:{server.port}", server.token("enrol")
    try:
        simulation = Simulation(
            experiment(name, kind), 0, transport=lambda coordinator: Mirrored(coordinator, url, token)
        )
        simulation.run()
    finally:
        code = server.stop(signal.SIGTERM)
    simulation.transport.http.close()
    assert code == 0
    assert simulation.transport.compared > 40
    served = federation(name, kind)
    store = Store(tmp_path / "store", served.identity)
    again = Service.open(served, store)
    assert again.coordinator.digest() == simulation.coordinator.digest()
    again.close()
