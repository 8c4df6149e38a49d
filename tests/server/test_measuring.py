"""Who measures: threads, processes or nobody else, and the same bits; workers that die, and servers that die."""

import json
import os
import signal
import sqlite3
import sys
import threading
from concurrent.futures import Future
from pathlib import Path

import numpy as np
import pytest
from promises.federation import APP, MODEL, SECRET, Process, answer, federation, until
from tiers import some_thorough

from artesian.config.federations import measuring_pool
from artesian.core import Receipt, Upload
from artesian.errors import MissingExtra, SettingError, WorkerLost
from artesian.execution.pool import TRIES
from artesian.params import seal
from artesian.server.measuring import measured_in, measurer, proof
from artesian.server.messages import decode_task
from artesian.server.settings import Settings
from artesian.storage.codec import from_tree, to_tree
from artesian.storage.store import Store

PROCESSES = ("--measure", "processes", "--measurers", "2")
UPLOAD = Upload("c0", 1, 5, {"k0": seal(np.arange(7, dtype=np.float32))}, {"k0": 0.1}, {"loss": 0.3})
RECEIPT = Receipt(1, 0, "train", ("k0",), memo={"$x": [np.zeros((2, 0)), np.ones((2, 3), np.int64)]}, wanted=("k0",))


def workers(pid: int) -> set[int]:
    """The measurers of a server process."""
    found = set()
    for path in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == pid and b"multiprocessing.spawn" in (path / "cmdline").read_bytes():
                found.add(int(path.name))
        except OSError:
            pass
    return found


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def journal(folder: Path) -> list[dict]:
    """Every event, without the time it was written at, on which the chain depends."""
    with sqlite3.connect(folder / "store" / "artesian.db") as database:
        found = database.execute("SELECT record FROM events ORDER BY number").fetchall()
    database.close()
    return [{key: value for key, value in json.loads(record).items() if key != "at"} for (record,) in found]


def measured(folder: Path) -> list[tuple[str, int]]:
    return [(e["client"], e["measured"]["upload"]["number"]) for e in journal(folder) if e["kind"] == "upload"]


# the pool, as the server uses it


class Scripted:
    """A pool of workers that answer as told; None: all of them were lost."""

    workers = 1

    def __init__(self, *answers: float | None) -> None:
        self.answers, self.jobs = list(answers), []

    def submit(self, job) -> Future:
        self.jobs.append(job)
        told, done = self.answers.pop(0), Future()
        if told is None:
            done.set_exception(WorkerLost("One job lost 3 workers", "Use fewer"))
        else:
            done.set_result({"loss": told})
        return done


def test_an_upload_travels_as_a_tree_and_comes_back_as_evidence() -> None:
    pool = Scripted(0.5)
    assert measured_in(pool)(UPLOAD, RECEIPT) == {"loss": 0.5}
    (job,) = pool.jobs
    assert from_tree(Upload, job["upload"]).mixture == UPLOAD.mixture
    assert from_tree(Receipt, job["receipt"]).wanted == ("k0",)


def test_an_upload_that_loses_one_worker_after_another_is_refused_and_the_next_is_measured(caplog) -> None:
    measure = measured_in(Scripted(None, 4.0))
    with pytest.raises(WorkerLost, match=r"could not be measured\. One job lost 3 workers\. Send it again later\."):
        measure(UPLOAD, RECEIPT)
    assert "gave up measuring" in caplog.text
    assert measure(UPLOAD, RECEIPT) == {"loss": 4.0}


def test_a_measurer_measures_like_the_coordinator_and_only_with_the_same_proof() -> None:
    served = federation()
    perform = measurer(served, proof(served))
    upload, receipt = Upload("c0", 1, 5, {"k0": MODEL.start(3)}, {}, {}), Receipt(1, 0, "train", ("k0",))
    told = perform({"upload": to_tree(upload), "receipt": to_tree(receipt)})
    assert told == served.begin().measure_here(upload, receipt) and told
    with pytest.raises(SettingError, match="built a different federation"):
        measurer(served, "another")


def test_a_ray_address_is_for_ray() -> None:
    with pytest.raises(ValueError, match="ray_address has an effect only with measure = ray"):
        Settings(ray_address="127.0.0.1:1")


def test_ray_that_is_not_installed_names_its_pip_command(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    asked = measuring_pool(federation(), Settings(measure="ray"), "served:federation", ())
    with pytest.raises(MissingExtra, match=r"pip install 'artesian\[ray\]'"), asked:
        pass


# the same bits

CLIPPED = APP.replace('name="toy")', 'name="toy", clip=0.05)')


def play(process: Process) -> list[bytes]:
    """Four clients in a fixed order, again and again; what they were answered."""
    tasks = {f"c{i}": process.join(f"c{i}") for i in range(4)}
    answers = []
    for client in [f"c{i % 4}" for i in range(12)]:
        tasks[client] = process.upload(client, tasks[client])
        answers.append(tasks[client])
    return answers


def inline(folder: Path, **options) -> None:
    """The same uploads, received by a bare coordinator."""
    served = federation(**options)
    store = Store(folder / "store", served.identity)
    coordinator = served.begin(open_tasks=store.open_tasks)
    coordinator.record, coordinator.proves = store.append, True
    tasks = {f"c{i}": coordinator.join(f"c{i}", 5)[0].task for i in range(4)}
    from artesian.server.messages import encode_task
    from artesian.storage.codec import decode

    for client in [f"c{i % 4}" for i in range(12)]:
        upload = decode("upload", answer(client, encode_task(tasks[client])), Upload)
        (reply,) = coordinator.receive(upload)
        tasks[client] = reply.task
    store.close()


@pytest.mark.heavy
@pytest.mark.parametrize(("app", "options"), some_thorough([(APP, {}), (CLIPPED, {"clip": 0.05})], (APP, {})))
def test_threads_processes_and_inline_write_the_same_journal(tmp_path, app, options) -> None:
    answers = {}
    for way in ("threads", "processes"):
        (tmp_path / way).mkdir()
        process = Process(tmp_path / way, "--measure", way, app=app)
        assert len(workers(process.pid)) == (2 if way == "processes" else 0)
        answers[way] = play(process)
        assert process.stop(signal.SIGTERM) == 0
    (tmp_path / "inline").mkdir()
    inline(tmp_path / "inline", **options)
    assert answers["processes"] == answers["threads"]
    assert len(journal(tmp_path / "inline")) == 16
    assert journal(tmp_path / "processes") == journal(tmp_path / "threads") == journal(tmp_path / "inline")


# workers that die, and servers that die

WATCHED = """
import os, pathlib, time
from dataclasses import dataclass
from artesian.errors import NotFinite

@dataclass(frozen=True)
class Watched(CDFL):
    def measure(self, upload, given):
        HOOK
        return super().measure(upload, given)

def until(holds):
    end = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.005)
"""


def watched(hook: str) -> str:
    """The app with something that happens in every measuring."""
    head, rest = APP.replace("CDFL(),", "Watched(),").split("MODEL, WORLD", 1)
    return head + WATCHED.replace("HOOK", hook) + "MODEL, WORLD" + rest


DIE = "pathlib.Path(f'died-{os.getpid()}').touch(); os.kill(os.getpid(), 9)"


@pytest.mark.heavy
def test_a_worker_killed_while_it_measures_costs_nobody_anything(tmp_path) -> None:
    hook = f"if not pathlib.Path('died').exists(): pathlib.Path('died').touch(); {DIE}"
    process = Process(tmp_path, *PROCESSES, app=watched(hook))
    before = workers(process.pid)
    second = process.upload("c0", process.join("c0"))
    assert decode_task(second).number == 2
    after = workers(process.pid)
    assert len(after) == 2 and len(after & before) == 1
    process.upload("c0", second)
    assert process.stop(signal.SIGTERM) == 0
    assert measured(tmp_path) == [("c0", 1), ("c0", 2)]
    assert (tmp_path / "log").read_text().count("A worker was lost") == 1


@pytest.mark.thorough
@pytest.mark.heavy
def test_idle_workers_that_are_killed_are_replaced(tmp_path) -> None:
    process = Process(tmp_path, *PROCESSES)
    task = process.join("c0")
    for pid in workers(process.pid):
        os.kill(pid, signal.SIGKILL)
    assert decode_task(process.upload("c0", task)).number == 2
    assert process.stop(signal.SIGTERM) == 0


@pytest.mark.heavy
def test_an_upload_that_kills_every_worker_is_refused_and_may_come_again(tmp_path) -> None:
    process = Process(tmp_path, *PROCESSES, app=watched(f"if not pathlib.Path('mended').exists(): {DIE}"))
    task = process.join("c0")
    body = answer("c0", task)
    status, told = process.request("PUT", "/v1/clients/c0/uploads/1", SECRET, body)
    assert status == 503
    assert json.loads(told)["error"] == "WorkerLost" and "One job lost 3 workers" in told.decode()
    assert len(list(tmp_path.glob("died-*"))) == TRIES
    assert measured(tmp_path) == []
    (tmp_path / "mended").touch()
    for _ in range(2):  # the second is a retry
        status, next_task = process.request("PUT", "/v1/clients/c0/uploads/1", SECRET, body)
        assert (status, decode_task(next_task).number) == (200, 2)
    assert process.stop(signal.SIGTERM) == 0
    assert measured(tmp_path) == [("c0", 1)]
    assert "gave up measuring" in (tmp_path / "log").read_text()


@pytest.mark.heavy
def test_uploads_are_measured_at_the_same_time(tmp_path) -> None:
    meet = "pathlib.Path(f'here-{os.getpid()}').touch(); until(lambda: len(list(pathlib.Path().glob('here-*'))) == 2)"
    process = Process(tmp_path, *PROCESSES, app=watched(meet))
    tasks = {client: process.join(client) for client in ("c0", "c1")}
    threads = [threading.Thread(target=process.upload, args=item) for item in tasks.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert process.stop(signal.SIGTERM) == 0
    assert sorted(measured(tmp_path)) == [("c0", 1), ("c1", 1)]


@pytest.mark.heavy
@pytest.mark.parametrize("number", some_thorough([signal.SIGKILL, signal.SIGTERM], signal.SIGKILL))
def test_a_server_that_ends_leaves_nobody_behind(tmp_path, number) -> None:
    process = Process(tmp_path, *PROCESSES, app=watched("pathlib.Path('here').touch(); time.sleep(600)"))
    pids = workers(process.pid)
    task = process.join("c0")
    body = answer("c0", task)

    def give_up() -> None:
        with pytest.raises((OSError, AssertionError)):
            assert process.request("PUT", "/v1/clients/c0/uploads/1", SECRET, body)[0] == 200

    client = threading.Thread(target=give_up)
    client.start()
    until(lambda: (tmp_path / "here").exists())  # one of them is at work, and would be for long
    assert len(pids) == 2
    process.stop(number)
    until(lambda: not any(map(alive, pids)))
    client.join()
    assert measured(tmp_path) == []


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("hook", "status", "error"),
    [
        ("raise NotFinite('What happened', 'What to do')", 422, "NotFinite"),
        ("return {'loss': float('nan')}", 422, "NotFinite"),
    ],
    ids=["refusal", "nan"],
)
def test_what_measuring_refuses_is_refused_alike(tmp_path, hook, status, error) -> None:
    told = {}
    for way in ("threads", "processes"):
        (tmp_path / way).mkdir()
        process = Process(tmp_path / way, "--measure", way, app=watched(hook))
        told[way] = process.request("PUT", "/v1/clients/c0/uploads/1", SECRET, answer("c0", process.join("c0")))
        assert process.stop(signal.SIGTERM) == 0
    assert told["processes"] == told["threads"]
    assert (told["threads"][0], json.loads(told["threads"][1])["error"]) == (status, error)


@pytest.mark.heavy
def test_a_federation_that_is_another_in_every_process_is_refused_at_the_start(tmp_path) -> None:
    app = APP.replace("WORLD.proxies(0)", "WORLD.proxies(__import__('os').getpid())")
    with pytest.raises(AssertionError, match="Give every random draw a seed"):
        Process(tmp_path, *PROCESSES, app=app)


@pytest.mark.heavy
def test_a_worker_that_cannot_start_ends_the_server_with_its_words(tmp_path) -> None:
    app = APP + "\nif __import__('multiprocessing').parent_process(): raise RuntimeError('no data here')\n"
    with pytest.raises(AssertionError, match="no data here"):
        Process(tmp_path, *PROCESSES, app=app)
    said = (tmp_path / "log").read_text()
    assert "Traceback" not in said
