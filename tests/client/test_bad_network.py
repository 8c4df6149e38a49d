"""A bad network, server, disk or clock, or a client killed anywhere: nothing is lost, doubled or halved."""

import hashlib
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import stamina
from homes import MODEL, WORLD
from promises.table import needs
from proxies import FAULTS, Proxy
from tiers import some_heavy
from toyserver import Served

import artesian
from artesian.algorithms import FedBuff
from artesian.client import transport as transports
from artesian.client.session import Session
from artesian.errors import ArtesianError, BadFormat, Busy, ServerFailed, Unreachable
from artesian.learners.arrays import SoftmaxRegression
from artesian.server.federation import Federation


@pytest.fixture
def server(tmp_path):
    made = Served(tmp_path / "server")
    yield made
    made.close()


@pytest.fixture
def at_once():
    """Try again without a pause, 30 times."""
    stamina.set_testing(True, attempts=30)
    yield
    stamina.set_testing(False)


def learner(name: str, cycle: int):
    visit = WORLD.visit(0, name, cycle)
    return MODEL.learner(visit.train.x, visit.train.y)


class Noted(Session):
    """A session that notes which uploads it knows to be taken."""

    def _taken(self, spool) -> None:
        super()._taken(spool)
        self.__dict__.setdefault("acknowledged", []).append(spool.upload.number)


def connect(server: Served, url: str, folder: Path, name: str, patience: float = 30.0) -> Noted:
    return Noted(transports.Transport(url, patience, verify=False), server.token, folder / name, name)


def stubborn(session: Session, name: str, cycle: int) -> None:
    """Refresh again and again, as a person would."""
    for _ in range(50):
        try:
            session.refresh(learner(name, cycle), wait=0)
            return
        except ArtesianError:
            pass
    raise AssertionError("not even fifty times")


def given_by(server: Served, home: Path) -> bool:
    """Is the model at home one the server gave, whole?"""
    path = home / "task"
    return not path.exists() or path.read_bytes() in server.given


@pytest.mark.parametrize("seed", some_heavy([0, 1, 2], 0))
def test_whatever_the_network_does_uploads_count_once_and_models_are_whole(
    server, tmp_path, at_once, monkeypatch, seed
) -> None:
    monkeypatch.setattr(transports, "SMALL", 64)  # so that broken uploads are asked about
    proxy = Proxy(server.address, seed)
    sessions = {name: connect(server, proxy.url, tmp_path, name) for name in WORLD.names}
    wrong: list[str] = []

    def life(name: str) -> None:
        for cycle in range(8):
            stubborn(sessions[name], name, cycle)
            if not given_by(server, tmp_path / name):
                wrong.append(name)

    threads = [threading.Thread(target=life, args=(name,)) for name in sessions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for session in sessions.values():
        session.close()
    proxy.close()
    folded = Counter(server.folded())
    assert not wrong
    assert set(folded.values()) == {1}
    for name, session in sessions.items():
        assert len(session.acknowledged) == len(set(session.acknowledged)) >= 8
        assert set(session.acknowledged) == {number for client, number in folded if client == name}
    assert min(proxy.met.values()) > 0, proxy.met


@pytest.mark.parametrize("fault", FAULTS)
def test_a_network_that_never_works_leaves_the_home_as_it_was(server, tmp_path, at_once, fault) -> None:
    with connect(server, server.url, tmp_path, "c0") as session:
        session.refresh(learner("c0", 0))
    before = (tmp_path / "c0" / "task").read_bytes()
    identity = json.loads((tmp_path / "c0" / "identity.json").read_text())
    proxy = Proxy(server.address, seed=0, chance=1.0, faults=(fault,))
    (tmp_path / "c0" / "identity.json").write_text(json.dumps({**identity, "url": proxy.url}))
    with connect(server, proxy.url, tmp_path, "c0") as session:
        try:
            session.refresh(learner("c0", 1))
            assert fault in ("delay", "garble")
        except (Unreachable, Busy, ServerFailed, BadFormat):
            assert fault != "delay"
            assert (tmp_path / "c0" / "task").read_bytes() == before
        assert np.isfinite(session.draw()[: MODEL.layout.floats]).all()
    proxy.close()
    assert given_by(server, tmp_path / "c0")
    assert set(Counter(server.folded()).values()) == {1}


def test_a_server_that_is_down_at_the_first_start_is_waited_for(tmp_path) -> None:
    first = Served(tmp_path / "server")
    port, url = first.address[1], first.url
    first.close()
    tried = threading.Event()
    session = Noted(transports.Transport(url, 30.0), first.token, tmp_path / "c0", "c0")
    once = session.transport._once

    def noticing(*args, **options):
        try:
            return once(*args, **options)
        finally:
            tried.set()

    session.transport._once = noticing
    waiting = threading.Thread(target=session.refresh, args=(learner("c0", 0),))
    waiting.start()
    assert tried.wait(30)
    again = Served(tmp_path / "server", port)
    waiting.join()
    session.close()
    assert again.folded() == [("c0", 1)]
    again.close()


FULL = """
import resource, sys
from artesian.client.connect import connect
from artesian.errors import StorageError
from artesian.testing import ToyModel, ToyWorld

url, token, home = sys.argv[1:]
visit = ToyWorld(4).visit(0, "c0", 0)
learner = ToyModel().learner(visit.train.x, visit.train.y)
with connect(url, token=token, home=home, client="c0") as session:
    for limit in (10, 100, 300, 400, resource.RLIM_INFINITY):
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
        try:
            session.refresh(learner)
            print(limit, "done")
        except StorageError as error:
            print(limit, error)
"""


def test_who_waits_for_a_server_is_told_once_and_until_when(monkeypatch, caplog) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
    monkeypatch.setattr(transports, "SILENT", 0.0)
    link, told = transports.Transport(url, patience=0.5), []
    with pytest.raises(Unreachable):
        link.send("GET", "/", "secret")  # a program hears of it in its log
    (record,) = [record for record in caplog.records if record.name == "artesian.client"]
    said = rf"{url}: no answer \(ConnectError\) for 0 s; trying again until \d\d:\d\d:\d\d, [01] s more"
    assert re.fullmatch(said, record.getMessage())
    link.notify = told.append
    for _ in range(2):
        with pytest.raises(Unreachable):
            link.send("GET", "/", "secret")
    assert len(told) == 2  # once for each request
    monkeypatch.setattr(transports, "SILENT", 60.0)
    with pytest.raises(Unreachable):
        link.send("GET", "/", "secret")
    assert len(told) == 2
    link.close()


def test_a_full_disk_at_home_says_so_and_loses_nothing(server, tmp_path) -> None:
    home = tmp_path / "home"
    with artesian.connect(server.url, token=server.token, home=home, client="c0"):
        pass
    command = [sys.executable, "-c", FULL, server.url, server.token, str(home)]
    told = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert told.returncode == 0, told.stderr
    lines = told.stdout.splitlines()
    assert "The disk is full" in lines[0]
    assert lines[-1].endswith("done")
    assert set(Counter(server.folded()).values()) == {1}
    assert given_by(server, home)
    assert not list(home.glob("*.tmp"))


@pytest.mark.heavy
def test_a_clock_that_jumps_changes_nothing(server, tmp_path, monkeypatch) -> None:
    rng = random.Random(0)
    monkeypatch.setattr(time, "time", lambda: rng.uniform(0, 4e9))
    proxy = Proxy(server.address, seed=5, chance=0.3, faults=("lose the answer",))
    with connect(server, proxy.url, tmp_path, "c0", patience=4.0) as session:
        for cycle in range(2):
            session.refresh(learner("c0", cycle))
    proxy.close()
    assert server.folded() == [("c0", 1), ("c0", 2)]


LIVES = """
import hashlib, os, signal, sys
from pathlib import Path
import httpx
from artesian.client.session import Session
from artesian.client.transport import Transport
from artesian.testing import ToyModel, ToyWorld

url, token, home = sys.argv[1:]
visit = ToyWorld(4).visit(0, "c0", 0)
learner = ToyModel().learner(visit.train.x, visit.train.y)
steps = 0

def dying(call, at):
    def step():
        global steps
        steps += 1
        if steps == at:
            os.kill(os.getpid(), signal.SIGKILL)
    def wrapper(*args, **options):
        step()
        result = call(*args, **options)
        step()
        return result
    return wrapper

def life(at):
    os.replace, os.fsync = dying(os.replace, at), dying(os.fsync, at)
    Path.unlink = dying(Path.unlink, at)
    Transport._once = dying(Transport._once, at)
    taken = Session._taken
    def noting(self, spool):
        taken(self, spool)
        os.write(1, b"taken %d\\n" % spool.upload.number)
    Session._taken = noting
    with Session(Transport(url, 5.0, verify=False), token, Path(home), "c0") as session:
        for _ in range(2):
            session.refresh(learner)

at = 0
while True:
    at += 1
    child = os.fork()
    if child == 0:
        try:
            life(at)
        except BaseException as error:
            os.write(1, b"failed %r\\n" % repr(error).encode())
            os._exit(1)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    task = Path(home) / "task"
    held = hashlib.sha256(task.read_bytes()).hexdigest() if task.exists() else "nothing"
    os.write(1, b"held %s\\n" % held.encode())
    if not os.WIFSIGNALED(status):
        os.write(1, b"lives %d\\n" % at)
        break
"""


@pytest.mark.thorough
@pytest.mark.heavy
def test_killed_at_every_single_step_the_home_goes_on(server, tmp_path) -> None:
    """A client dies before and after every write, rename, removal and request of two refreshes, always in one home."""
    command = [sys.executable, "-c", LIVES, server.url, server.token, str(tmp_path / "home")]
    told = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert told.returncode == 0, told.stderr
    words = [line.split() for line in told.stdout.splitlines()]
    assert not [line for line in words if line[0] == "failed"], told.stdout
    digests = {hashlib.sha256(task).hexdigest() for task in server.given} | {"nothing"}
    assert {line[1] for line in words if line[0] == "held"} <= digests
    folded = server.folded()
    assert len(set(folded)) == len(folded)
    assert {("c0", int(line[1])) for line in words if line[0] == "taken"} <= set(folded)
    assert int(words[-1][1]) > 20  # lives
    assert [number for _, number in folded] == list(range(1, len(folded) + 1))


@pytest.mark.heavy
def test_a_client_command_killed_from_outside_goes_on(server, tmp_path) -> None:
    (tmp_path / "mine.py").write_text(
        "from artesian.testing import ToyModel, ToyWorld\n"
        "visit = ToyWorld(4).visit(0, 'c0', 0)\nlearner = ToyModel().learner(visit.train.x, visit.train.y)\n"
    )
    command = [sys.executable, "-m", "artesian.cli", "client", server.url, "--home", "home", "--client", "c0"]
    command += ["--learner", "mine:learner", "--every", "0", "--json"]
    answered: list[int] = []
    for lines in (1, 2):
        process = subprocess.Popen(
            command,
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "ARTESIAN_TOKEN": server.token},
        )
        answered += [json.loads(process.stdout.readline())["answered"] for _ in range(lines)]
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        assert given_by(server, tmp_path / "home")
    folded = [number for _, number in server.folded()]
    assert folded == list(range(1, len(folded) + 1))
    assert answered == sorted(set(answered))
    assert set(answered) <= set(folded)


def test_the_node_client_survives_it_too(tmp_path) -> None:
    needs(shutil.which("node"), "node is not on the PATH")
    model = SoftmaxRegression(2, 2)
    server = Served(tmp_path / "server", federation=Federation(model, FedBuff(buffer_size=1), defence=None))
    proxy = Proxy(server.address, seed=3, chance=0.4, faults=tuple(f for f in FAULTS if f not in ("429", "503")))
    script = Path(__file__).parents[2] / "examples" / "client.mjs"
    told = subprocess.run(
        ["node", str(script), proxy.url, str(tmp_path / "home"), "8"],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "ARTESIAN_TOKEN": server.token},
    )
    proxy.close()
    assert told.returncode == 0, told.stderr
    assert [json.loads(line)["uploaded"] for line in told.stdout.splitlines()] == list(range(1, 9))
    assert [number for _, number in server.folded()] == list(range(1, 9))
    assert (tmp_path / "home" / "task.safetensors").read_bytes() in server.given
    server.close()
