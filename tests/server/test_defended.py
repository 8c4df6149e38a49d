"""A server is defended unless its operator says otherwise: settings, metrics, alarms, and a rate limit."""

import logging
from dataclasses import replace

import numpy as np
import pytest
from promises.federation import MODEL, SECRET, Server, federation

from artesian.algorithms import FedAsync
from artesian.config.experiments import load
from artesian.config.federations import serve_experiment
from artesian.core import Upload
from artesian.engine.defence import Defence
from artesian.errors import Busy, SettingError
from artesian.params import seal
from artesian.server.limits import Limits
from artesian.server.messages import decode_task
from artesian.server.metrics import Latencies, metrics_text
from artesian.server.service import ALARM, Service, is_alarming
from artesian.server.settings import Settings
from artesian.storage.codec import encode
from artesian.storage.store import Store

TINY = ["world.clients=4", "start.trunk_epochs=0", "start.epochs=0"]


def test_a_federation_is_defended_unless_it_says_otherwise() -> None:
    assert federation().defence == Defence()
    assert federation(defence=None).settings["defence"] is None
    plain = load("digits-2", TINY)
    assert plain.defence is None
    assert "defence" not in plain.describe()
    assert serve_experiment(plain).defence == Defence()
    assert serve_experiment(plain, {"defended": False}).defence is None
    told = load("digits-2", [*TINY, "defence.clip=2", "defence.weights=equal"])
    assert told.defence == Defence(clip=2.0, weights="equal")
    assert told.describe()["defence"]["clip"] == 2.0
    assert serve_experiment(told).defence == told.defence


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("defence.clipp=1", "Did you mean 'clip'"),
        ("defence.clip=-1", "clip must be finite and at least 0"),
        ("defence.weights=large", "defence.weights must be"),
    ],
)
def test_a_wrong_setting_is_refused(change, words) -> None:
    with pytest.raises(SettingError, match=words):
        load("digits-2", [*TINY, change])


def test_a_store_from_before_is_undefended_until_this_version_opens_it(tmp_path) -> None:
    served = federation(FedAsync(), defence=None)
    service = Service.open(served, Store(tmp_path, served.identity))
    service.coordinator.join("c0", 5)
    service.close()
    service = Service.open(replace(served, defence=Defence()), Store(tmp_path, served.identity))
    assert service.coordinator.defence == Defence()
    (last,) = service.store.last(1)
    assert (last["kind"], last["settings"]["defence"]["clip"]) == ("settings", 3.0)
    service.close()


class Flooded:
    """A server whose client c0 uploads until its budget is spent, and goes on."""

    def __init__(self, folder) -> None:
        self.server = Server(folder, FedAsync())
        self.bodies = {name: self.server.join(name).content for name in ("c0", "c1", "c2")}
        for name in ("c1", "c2"):
            self.send(name, 1.0)

    def send(self, name: str, size: float):
        task = decode_task(self.bodies[name])
        change = np.zeros(MODEL.layout.size, np.float32)
        change[0] = size
        upload = Upload(name, task.number, 5, {"k0": seal(task.models["k0"] + change)})
        path = f"/v1/clients/{name}/uploads/{task.number}"
        reply = self.server.ask("PUT", path, SECRET, content=encode("upload", upload))
        if reply.status_code == 200:
            self.bodies[name] = reply.content
        return reply

    def metric(self, name: str) -> float:
        text = metrics_text(self.server.service, Limits(Settings(), MODEL.layout, 1), Latencies())
        return float(next(line for line in text.splitlines() if line.startswith(f"artesian_{name}")).split()[-1])


def test_what_is_set_aside_is_answered_counted_and_an_alarm_after_a_few(tmp_path, caplog) -> None:
    flooded = Flooded(tmp_path / "store")
    caplog.set_level(logging.INFO, "artesian.defence")
    for _ in range(6 + ALARM):  # 3 usual changes, then 1 five times: the whole budget
        assert flooded.send("c0", 3.0).status_code == 200
    assert (flooded.metric("set_aside"), flooded.metric("suspects")) == (ALARM, 1)
    assert flooded.server.service.suspects() == ["c0"]
    lines = [(record.levelname, record.getMessage(), record.fields["client"]) for record in caplog.records]
    assert lines.count(("INFO", "upload set aside", "c0")) == ALARM
    assert lines[-1] == ("WARNING", "a member's uploads are set aside again and again", "c0")
    assert flooded.send("c0", 1e6).status_code == 422  # absurd, and refused in a sentence
    flooded.server.close()


def test_the_loss_of_a_cluster_on_held_back_samples_is_a_metric(tmp_path) -> None:
    flooded = Flooded(tmp_path / "store")
    assert 0 < flooded.metric('cluster_loss{cluster="k0"}') < 1e3
    flooded.server.close()


def test_by_default_a_client_may_upload_twenty_times_at_once_and_sixty_times_a_minute(monkeypatch) -> None:
    now = [0.0]
    monkeypatch.setattr("artesian.server.limits.time.monotonic", lambda: now[0])
    limits = Limits(Settings(), MODEL.layout, 1)
    for _ in range(20):
        limits.count("c0")
    with pytest.raises(Busy, match="More than 60 uploads a minute"):
        limits.count("c0")
    limits.count("c1")
    now[0] = 1.0
    limits.count("c0")
    with pytest.raises(Busy):
        limits.count("c0")
    free = Limits(Settings(uploads_per_minute=0), MODEL.layout, 1)
    for _ in range(500):
        free.count("c0")


@pytest.mark.parametrize(
    ("times", "number", "alarming"),
    [(0, 0, False), (2, 2, False), (3, 15, True), (3, 16, False), (4, 4, False), (6, 30, True)],
)
def test_few_of_many_uploads_set_aside_are_no_alarm(times: int, number: int, alarming: bool) -> None:
    assert is_alarming(times, number) == alarming
