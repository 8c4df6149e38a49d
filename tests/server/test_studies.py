"""Studies beside the uploads: they hold nobody up, fail alone, end with the server, and are shown."""

import asyncio
import json
import logging
import signal
import sqlite3
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import httpx
import numpy as np
import pytest
from launching import served
from promises.federation import APP, SECRET, Process, Server, answer, federation, trained, until

from artesian.algorithms import Confluence, FedAsync
from artesian.client.connect import connect
from artesian.config.experiments import load
from artesian.core import Task
from artesian.errors import SettingError, StudyFailed
from artesian.server.messages import encode_task
from artesian.server.service import Service
from artesian.server.studies import Studies
from artesian.storage.store import Store

OFTEN = {
    "estimator": "calibrated",
    "first_pretend": 2,
    "pretend": 1,
    "pretend_window": 3,
    "calibrate_every": 3,
    "calibrate_lag": 2,
}


@dataclass(frozen=True)
class Gated(Confluence):
    """Its later studies wait until they may go on."""

    go_on: ClassVar[threading.Event] = threading.Event()
    seen: ClassVar[list[int]] = []  # the versions of the studies that have begun

    def find(self, state, proxies, plan):
        Gated.seen.append(state.version)
        while state.version and not Gated.go_on.is_set():  # lines of Python, as in any training
            time.sleep(0.005)
        return super().find(state, proxies, plan)


@pytest.fixture
def gate() -> Iterator[type[Gated]]:
    Gated.go_on.clear()
    Gated.seen.clear()
    yield Gated
    Gated.go_on.set()


def step(service: Service, client: str = "c0") -> None:
    """One upload of a client, straight to the coordinator."""
    coordinator = service.coordinator
    coordinator.join(client, 5)
    (reply,) = coordinator.recorded(client)
    coordinator.receive(trained(client, encode_task(reply.task)))


@contextmanager
def opened(folder, algorithm, **options) -> Iterator[Service]:
    own = federation(algorithm)
    service = Service.open(own, Store(folder, own.identity), **options)
    try:
        yield service
    finally:
        service.close()


def killed(service: Service) -> None:
    """As a crash leaves it: without a last snapshot."""
    service.studies.close()
    service.store.close()


def test_uploads_go_on_during_a_study_and_the_fold_that_needs_it_waits(tmp_path, gate) -> None:
    """Due after three folds, begun with version 3, needed by the fold that makes version 6."""
    with opened(tmp_path / "a", gate(**OFTEN)) as service, opened(tmp_path / "b", Confluence(**OFTEN)) as plain:
        for _ in range(5):
            step(service)
            step(plain)
        until(lambda: gate.seen == [0, 3])
        assert service.coordinator.state.version == 5
        waiting = threading.Thread(target=step, args=(service,))
        waiting.start()
        waiting.join(0.05)
        assert waiting.is_alive() and service.coordinator.state.version == 5
        gate.go_on.set()
        waiting.join(60)
        step(plain)
        assert service.coordinator.state.memory["calibrated"]["version"] == 3
        assert service.coordinator.digest() == plain.coordinator.digest()
        assert (service.studies.made, service.studies.failed) == (2, 0)


def test_others_are_answered_while_a_fold_waits_and_a_stop_ends_the_wait(tmp_path, gate) -> None:
    server = Server(tmp_path / "store", gate(**OFTEN))
    task = server.join().content
    for number in range(1, 6):
        task = server.ask("PUT", f"/v1/clients/c0/uploads/{number}", SECRET, content=answer("c0", task)).content

    async def play() -> httpx.Response:
        transport = httpx.ASGITransport(app=server.app)
        headers = {"authorization": f"Bearer {SECRET}"}
        async with httpx.AsyncClient(transport=transport, base_url="http://test", headers=headers) as http:
            upload = asyncio.create_task(http.put("/v1/clients/c0/uploads/6", content=answer("c0", task)))
            await asyncio.sleep(0.05)
            assert (await http.get("/healthz")).status_code == 200
            assert (await http.get("/v1/clients/c0/task")).content == task
            assert not upload.done()
            await server.service.stop()
            return await upload

    refused = asyncio.run(play())
    assert (refused.status_code, refused.json()["error"]) == (503, "StudyFailed")
    assert int(refused.headers["retry-after"]) > 0
    assert "stops before" in refused.json()["rule"]
    before, began = server.digest(), time.monotonic()
    server.close()
    assert time.monotonic() - began < 1.0  # a study would have gone on for ever
    gate.go_on.set()
    again = Server(tmp_path / "store", gate(**OFTEN))
    assert again.digest() == before
    until(lambda: gate.seen == [0, 3, 3])  # it is made again at once
    assert again.ask("PUT", "/v1/clients/c0/uploads/6", SECRET, content=answer("c0", task)).status_code == 200
    assert again.service.coordinator.state.memory["calibrated"]["version"] == 3
    again.close()


def test_killed_during_a_study_the_bits_are_those_of_one_never_killed(tmp_path, gate) -> None:
    with opened(tmp_path / "b", Confluence(**OFTEN)) as plain:
        own = federation(gate(**OFTEN))
        service = Service.open(own, Store(tmp_path / "a", own.identity), snapshot_every=2)
        for number in range(14):
            if number in (4, 5, 10):  # while one is under way
                killed(service)
                service = Service.open(own, Store(tmp_path / "a", own.identity), snapshot_every=2)
            if number == 5:
                gate.go_on.set()
            step(service, f"c{number % 3}")
            step(plain, f"c{number % 3}")
            assert service.coordinator.digest() == plain.coordinator.digest()
        assert service.coordinator.state.memory["calibrated"]["version"] > 3
        service.close()


@dataclass(frozen=True)
class Failing(Confluence):
    """Its second study fails as often as it is told."""

    left: ClassVar[list[BaseException]] = []

    def find(self, state, proxies, plan):
        if state.version and Failing.left:
            raise Failing.left.pop()
        return super().find(state, proxies, plan)


@pytest.mark.parametrize("error", [RuntimeError("a bug at /secret/place"), SystemExit(3), MemoryError()])
def test_a_study_that_fails_refuses_the_upload_that_needs_it_and_is_tried_again(tmp_path, caplog, error) -> None:
    Failing.left[:] = [error]
    server = Server(tmp_path / "store", Failing(**OFTEN))
    task = server.join().content
    for number in range(1, 6):
        task = server.ask("PUT", f"/v1/clients/c0/uploads/{number}", SECRET, content=answer("c0", task)).content
    before = server.digest()
    body = answer("c0", task)
    refused = server.ask("PUT", "/v1/clients/c0/uploads/6", SECRET, content=body)
    assert (refused.status_code, refused.json()["error"]) == (503, "StudyFailed")
    assert "secret" not in refused.text and "calculation that this upload needs" in refused.text
    assert server.digest() == before
    (line,) = [record for record in caplog.records if record.getMessage() == "study failed"]
    assert line.levelno == logging.ERROR and line.exc_info[1] is error
    assert server.ask("PUT", "/v1/clients/c0/uploads/6", SECRET, content=body).status_code == 200
    assert (server.service.studies.made, server.service.studies.failed) == (2, 1)
    server.close()


@dataclass(frozen=True)
class Wild(Confluence):
    """What its studies find is not finite."""

    def find(self, state, proxies, plan):
        found = super().find(state, proxies, plan)
        return {**found, "calibrated": {**found["calibrated"], "coefficients": np.array([np.nan, 0, 0, 0])}}


def test_a_first_study_that_fails_ends_the_start_in_plain_words(tmp_path) -> None:
    own = federation(Wild(**OFTEN))
    store = Store(tmp_path / "a", own.identity)
    with pytest.raises(Exception, match="A study of confluence gave NaN or Inf"):
        Service.open(own, store)
    store.close()
    whole = federation(Confluence(**OFTEN))
    lone = {k: proxy.part(np.arange(1)) for k, proxy in whole.proxies.items()}
    store = Store(tmp_path / "b", whole.identity)
    with pytest.raises(SettingError, match="The proxy set of k0 cannot be divided"):
        Service.open(replace(whole, proxies=lone), store)
    store.close()


def test_studies_are_made_one_at_a_time_and_none_after_a_stop() -> None:
    studies, at_work, most, go_on = Studies(), [], [], threading.Event()

    def work() -> dict[str, Any]:
        at_work.append(1)
        most.append(len(at_work))
        go_on.wait(60)
        at_work.pop()
        return {"done": True}

    waiting = [studies(work) for _ in range(3)]
    go_on.set()
    assert [wait() for wait in waiting] == [{"done": True}] * 3
    assert most == [1, 1, 1] and studies.made == 3
    studies.stop()
    with pytest.raises(StudyFailed, match="stops before"):
        studies(work)()
    assert studies.made == 3
    studies.close()


@dataclass(frozen=True)
class Twins(Confluence):
    """Cannot tell its clusters apart when it is told so."""

    alike: ClassVar[list[list[list[str]]]] = []  # of one study after another

    def find(self, state, proxies, plan):
        found = super().find(state, proxies, plan)
        return {**found, "calibrated": {**found["calibrated"], "alike": Twins.alike.pop(0) if Twins.alike else []}}


def test_the_log_has_a_line_for_every_study_and_a_warning_for_every_change(tmp_path, caplog) -> None:
    caplog.set_level(logging.INFO, "artesian.studies")
    pair, said = [["k0", "k1"]], []
    Twins.alike[:] = [pair, pair, [], pair, pair]
    with opened(tmp_path, Twins(**OFTEN), report=said.append) as service:
        assert said[0] == "making the algorithm's first study"
        assert said[1].startswith("prepared the estimates of mixtures in ")
        assert said[2:] == ["the clusters k0 and k1 cannot be told apart: clients get equal shares of them"]
        for _ in range(15):
            step(service)
        assert service.studies.made == 5
    lines = [record for record in caplog.records if record.getMessage() == "study"]
    assert [(line.fields["version"], line.fields["alike"]) for line in lines] == [(3, 1), (6, 0), (9, 1), (12, 1)]
    assert all(line.fields["seconds"] > 0 and line.fields["divergence"] >= 0 for line in lines)
    warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert [(w.getMessage(), w.fields) for w in warnings] == [
        ("clusters cannot be told apart", {"clusters": ("k0", "k1")})
    ]
    with opened(tmp_path, Twins(**OFTEN), report=said.append):
        assert said[3:] == ["the clusters k0 and k1 cannot be told apart: clients get equal shares of them"]


def test_metrics_show_what_studies_cost_and_what_replies_won(tmp_path) -> None:
    server = Server(tmp_path / "store", Confluence(**OFTEN))
    task = server.join().content
    for number in range(1, 7):
        task = server.ask("PUT", f"/v1/clients/c0/uploads/{number}", SECRET, content=answer("c0", task)).content
    lines = server.ask("GET", "/metrics", server.admin).text.splitlines()
    told = {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if not line.startswith("#")}
    assert (told["artesian_studies"], told["artesian_studies_failed"]) == (2, 0)
    assert told["artesian_study_seconds"] == pytest.approx(server.service.studies.seconds) and (
        0 < told["artesian_study_seconds"] < 60
    )
    known = server.service.coordinator.state.memory["calibrated"]
    assert told["artesian_calibration_version"] == known["version"] == 3
    assert told["artesian_calibration_divergence"] == pytest.approx(known["divergence"])
    assert told["artesian_clusters_alike"] == len(known["alike"])
    won = [told.get(f'artesian_replies{{reply="{word}"}}', 0) for word in ("full", "half", "trunk")]
    assert sum(won) == 6  # the first was a newcomer's, which is not compared
    server.close()
    plain = Server(tmp_path / "plain")
    told = plain.ask("GET", "/metrics", plain.admin).text
    assert "artesian_studies 0.0" in told
    assert "artesian_calibration" not in told and "artesian_replies" not in told
    plain.close()


@dataclass(frozen=True)
class Dividing(FedAsync):
    """Divides its cluster at the third fold."""

    name: ClassVar[str] = "dividing"

    def fold(self, state, measured):
        step = super().fold(state, measured)
        if state.version != 2:
            return step
        return replace(step, clusters={}, born={"k1": "k0", "k2": "k0"}, gone=("k0",))

    def task(self, state, client):
        return Task({"k": next(iter(state.clusters.values())).params})


def test_found_clusters_are_a_metric_and_a_line_of_the_log(tmp_path, caplog) -> None:
    caplog.set_level(logging.INFO, "artesian.clusters")
    server = Server(tmp_path / "store", Dividing())
    task = server.join().content
    assert "artesian_clusters 1.0" in server.ask("GET", "/metrics", server.admin).text
    for number in range(1, 4):
        assert not caplog.records
        task = server.ask("PUT", f"/v1/clients/c0/uploads/{number}", SECRET, content=answer("c0", task)).content
    assert "artesian_clusters 2.0" in server.ask("GET", "/metrics", server.admin).text
    (line,) = caplog.records
    assert (line.getMessage(), line.fields) == (
        "clusters",
        {"clusters": 2, "version": 3, "born": ["k1", "k2"], "gone": ["k0"]},
    )
    server.close()


@dataclass(frozen=True)
class Counting(Confluence):
    """Counts what it is asked to find."""

    asked: ClassVar[list[str]] = []

    def find(self, *given):
        Counting.asked.append("find")
        return super().find(*given)

    def compare(self, *given):
        Counting.asked.append("compare")
        return super().compare(*given)

    def measure(self, *given):
        Counting.asked.append("measure")
        return super().measure(*given)

    def appraise(self, *given):
        Counting.asked.append("appraise")
        return super().appraise(*given)


def test_a_replay_finds_nothing_anew(tmp_path) -> None:
    own = federation(Counting(**OFTEN))
    service = Service.open(own, Store(tmp_path, own.identity), snapshot_every=1000)
    for _ in range(6):
        step(service)
    assert {kind: Counting.asked.count(kind) for kind in ("measure", "find")} == {"measure": 6, "find": 2}
    assert Counting.asked.count("compare") == 7 and Counting.asked.count("appraise") > 0
    before = service.coordinator.digest()
    killed(service)
    Counting.asked.clear()
    with opened(tmp_path, Counting(**OFTEN)) as again:
        assert again.coordinator.digest() == before
        assert again.store.count == 7
        assert Counting.asked == []


# whole processes

STUDY = """
import time
from dataclasses import dataclass
from artesian.algorithms import Confluence, FedAsync

@dataclass(frozen=True)
class Slow(Confluence):
    def find(self, state, proxies, plan):
        found = super().find(state, proxies, plan)
        HOOK
        return found
"""
SETTINGS = "estimator='calibrated', first_pretend=2, pretend=1, pretend_window=3, calibrate_every=3, calibrate_lag=2"


def app(hook: str) -> str:
    """The toy federation by a method whose later studies do something more."""
    head, rest = APP.replace("CDFL(),", f"Slow({SETTINGS}),").split("MODEL, WORLD", 1)
    return head + STUDY.replace("HOOK", hook) + "\n\nMODEL, WORLD" + rest


@pytest.mark.heavy
@pytest.mark.parametrize(
    "hook",
    ["while state.version: time.sleep(0.01)", "time.sleep(600 if state.version else 0)"],
    ids=["python", "one-long-call"],
)
def test_a_server_ends_soon_and_well_during_a_study_that_never_would(tmp_path, hook) -> None:
    process = Process(tmp_path, app=app(hook))
    task = process.join("c0")
    for _ in range(5):
        task = process.upload("c0", task)
    told: list[int] = []
    body = answer("c0", task)
    waiting = threading.Thread(
        target=lambda: told.append(process.request("PUT", "/v1/clients/c0/uploads/6", SECRET, body)[0])
    )
    waiting.start()
    waiting.join(0.3)
    assert waiting.is_alive()
    began = time.monotonic()
    assert process.stop(signal.SIGTERM) == 0
    assert time.monotonic() - began < 10
    waiting.join(60)
    assert told == [503]
    log = (tmp_path / "log").read_text()
    assert "Traceback" not in log and "making the algorithm's first study" in log


@pytest.mark.heavy
def test_every_study_is_a_line_of_the_servers_log(tmp_path) -> None:
    process = Process(tmp_path, app=app("pass"))
    task = process.join("c0")
    for _ in range(6):
        task = process.upload("c0", task)
    assert process.stop(signal.SIGTERM) == 0
    lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines() if '"event": "study"' in line]
    assert [line["version"] for line in lines][:1] == [3]
    assert set(lines[0]) == {"time", "level", "event", "seconds", "version", "divergence", "alike"}


@pytest.mark.thorough
@pytest.mark.heavy
def test_confluence_on_real_digits_is_served_to_real_clients_in_threads_and_in_processes(tmp_path) -> None:
    """Two clients in turn, with calibrations in between; who measures makes no difference to any byte."""
    experiment = load("digits-4", SERVED)
    records = {}
    for way in ("threads", "processes"):
        folder = tmp_path / way
        folder.mkdir()
        words = [word for change in SERVED for word in ("--set", change)]
        with served(folder, "digits-4", "--store", "store", "--measure", way, *words) as (url, token):
            shares = play(experiment, folder, url, token)
        assert all(sum(mixture.values()) == pytest.approx(1) for mixture in shares)
        with sqlite3.connect(folder / "store" / "artesian.db") as database:
            rows = database.execute("SELECT record FROM events ORDER BY number")
            records[way] = [{**json.loads(record), "at": None} for (record,) in rows]  # all but when it came
        database.close()
    assert records["threads"] == records["processes"]
    events = records["threads"]
    assert [event["kind"] for event in events] == ["join", "upload"] * 2 + ["upload"] * 8
    assert [bool(event["found"]) for event in events].count(True) == 2  # begun with versions 3 and 6
    assert all(found["reach"] in (0.0, 0.5, 1.0) for event in events for found in event["compared"].values())
    assert sum(bool(event["compared"]) for event in events) == 10


SERVED = [
    "algorithm.name=confluence",
    *(f"algorithm.{name}={value}" for name, value in {**OFTEN, "first_pretend": 6, "pretend_window": 8}.items()),
    "start.trunk_epochs=2",
    "start.epochs=1",
    "world.clients=8",
]


def play(experiment, folder, url: str, token: str) -> list[Mapping[str, float]]:
    """Five refreshes of two clients each, in turn; what the server thinks they are, one after the other."""
    found = []
    for cycle in range(5):
        for name in experiment.world.names[:2]:
            visit = experiment.world.visit(0, name, cycle)
            learner = experiment.model.learner(visit.train.x, visit.train.y)
            with connect(url, token=token, home=folder / name, client=name) as client:
                client.refresh(learner)
                task = client.kept()
                assert task.number == cycle + 2 and list(task.models) == ["blend"]
                found.append(task.mixture)
    return found
