"""What is served: a module's federation, or the one an experiment simulates; what changes between two starts."""

import asyncio
import threading
from dataclasses import replace

import pytest

from artesian.algorithms import CDFL, FedAsync
from artesian.client.transport import Transport
from artesian.config.federations import load_served, serve_experiment
from artesian.errors import SettingError
from artesian.execution.threads import single_threaded
from artesian.server.auth import Tokens
from artesian.server.serve import url_of
from artesian.server.service import Service
from artesian.simulator.simulation import Simulation
from artesian.storage.store import Store
from artesian.testing import ToyFederation as Toy
from artesian.testing import ToyModel, ToyWorld

TOML = """
uploads = 40
[algorithm]
name = "cdfl"
[world]
clusters = 2
clients = 4
[federation]
clip = 2.5
publish_after = 3
[server]
snapshot_every = 7
log = "text"
measure = "processes"
measurers = 3
"""


def test_an_experiments_file_serves_what_it_simulates(tmp_path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(TOML)
    federation, settings = load_served(str(path), ["snapshot_every=9", "algorithm.beta0=0.2"])
    assert (federation.name, federation.clip, federation.publish_after) == ("mine", 2.5, 3)
    assert (settings.snapshot_every, settings.log) == (9, "text")
    assert (settings.measure, settings.measurers) == ("processes", 3)
    assert (federation.algorithm.beta0, federation.algorithm.horizon) == (0.2, 40)
    from artesian.config.experiments import load as load_experiment

    simulated = Simulation(load_experiment(path, ["algorithm.beta0=0.2"]).planned(), 0).coordinator.state
    with single_threaded():  # as `serve` does
        served = federation.begin().state
    assert served.layout == simulated.layout
    for k, cluster in simulated.clusters.items():
        assert (served.clusters[k].params == cluster.params).all()
        assert served.clusters[k].loss == cluster.loss


@pytest.mark.parametrize(
    ("text", "changes", "words"),
    [
        ("[federation]\nclipp = 1", [], "Did you mean 'clip'"),
        ("[federation]\nclip = -1.0", [], "clip must be above 0 and finite, not -1.0"),
        ("[federation]\npublish_after = 0", [], "publish_after must be at least 1, not 0"),
        ("[server]\nlogs = 'json'", [], "Did you mean 'log'"),
        ("[server]\nlog = 'loud'", [], "^server.log"),
        ("server = 3", [], r"Write \[server\]"),
        ("[server]\nmeasure = 'many'", [], "^server.measure"),
        ("[server]\nmeasurers = 0", [], "at least 1"),
        ("[server]\nray_address = '10.0.0.5:6379'", [], "ray_address has an effect only with measure = ray"),
        ("", ["world.clustres=3"], "Did you mean 'clusters'"),
    ],
)
def test_a_file_with_a_mistake_says_which(tmp_path, text, changes, words) -> None:
    (tmp_path / "mine.toml").write_text(text)
    with pytest.raises(SettingError, match=words):
        load_served(str(tmp_path / "mine.toml"), changes)


def test_a_module_is_changed_in_its_module() -> None:
    with pytest.raises(SettingError, match="Change its module"):
        load_served("app:federation", ["algorithm.beta0=0.2"])


def test_start_models_are_made_only_for_a_store_that_is_empty(tmp_path) -> None:
    from artesian.server.federation import Federation

    made = []

    def start():
        made.append(1)
        return [ToyModel().start(0)]

    federation = Federation(ToyModel(), FedAsync(), start=start)
    for _ in range(2):
        Service.open(federation, Store(tmp_path / "store", federation.identity)).close()
    assert made == [1]


def test_hyper_parameters_that_change_between_two_starts_are_an_event(tmp_path) -> None:
    from artesian.server.federation import Federation

    model = ToyModel()
    federation = Federation(model, FedAsync(alpha=0.5), start=[model.start(0)])
    toy = Toy(FedAsync(alpha=0.5), 2)

    def opened(value: Federation) -> Service:
        service = Service.open(value, Store(tmp_path / "store", value.identity))
        toy.coordinator = service.coordinator
        return service

    def killed(service: Service) -> None:  # without the snapshot of an orderly stop
        service._writer.shutdown()
        service._measurers.shutdown()
        service.store.close()

    service = opened(federation)
    for client in ("c0", "c1"):
        toy.take(service.coordinator.join(client, 10))
    toy.step()
    killed(service)
    service = opened(replace(federation, algorithm=FedAsync(alpha=0.1), clip=3.0))
    assert [event["kind"] for event in service.store.last(2)] == ["upload", "settings"]
    assert (service.coordinator.algorithm.alpha, service.coordinator.clip) == (0.1, 3.0)
    toy.step()
    before = service.coordinator.digest()
    killed(service)
    service = opened(replace(federation, algorithm=FedAsync(alpha=0.1), clip=3.0))
    assert service.coordinator.digest() == before
    assert [event["kind"] for event in service.store.last(1)] == ["upload"]
    service.close()
    service = opened(federation)  # and back again
    assert (service.coordinator.algorithm.alpha, service.coordinator.clip) == (0.5, None)
    service.close()


def test_a_federation_of_cdfl_may_change_its_settings_and_its_estimator(tmp_path) -> None:
    """Some of its settings are a number or a word."""
    from artesian.server.federation import Federation

    model = ToyModel()
    proxies = {k: model.learner(s.x, s.y) for k, s in ToyWorld(2).proxies(0).items()}
    toy = Toy(CDFL(), 2)
    for algorithm in (CDFL(), CDFL(beta0=0.5, l_bar="min"), CDFL(estimator="calibrated", first_pretend=2)):
        federation = Federation(model, algorithm, proxies, [model.start(0), model.start(1)])
        service = Service.open(federation, Store(tmp_path / "store", federation.identity))
        assert service.coordinator.algorithm == algorithm
        toy.coordinator = service.coordinator
        toy.join_all()
        toy.step()
        service.close()
    assert service.coordinator.state.memory["calibrated"]["version"] == 2


def test_commands_at_the_same_time_lose_no_token(tmp_path) -> None:
    def make(number: int) -> None:
        Tokens(tmp_path / "tokens.json").make("enrol", f"t{number}")

    threads = [threading.Thread(target=make, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {token.name for token in Tokens(tmp_path / "tokens.json").all()} == {f"t{n}" for n in range(12)}


def test_serving_an_experiment_needs_no_table() -> None:
    from artesian.simulator.experiment import Experiment

    federation = serve_experiment(Experiment(ToyWorld(4), ToyModel(), FedAsync(), name="toy"))
    assert (federation.name, federation.seed, len(federation.begin().state.clusters)) == ("toy", 0, 1)


def test_a_first_start_shows_its_progress(tmp_path, monkeypatch) -> None:
    lines: list[str] = []
    changes = ["world.clients=4", "start.trunk_epochs=1", "start.epochs=1"]
    federation, _ = load_served("digits-2", changes, lines.append)
    assert lines == []  # nothing is trained before a store turns out to be empty
    store = Store(tmp_path / "store", federation.identity)
    service = Service.open(federation, store, report=lines.append)
    assert lines == [
        "making the start models of a new store",
        "pre-training one model on all proxy sets: 1 epochs",
        "pre-training 2 clusters: 1/2",
        "pre-training 2 clusters: 2/2",
        "making the algorithm's first study",
        lines[-1],
    ]
    assert lines[-1].startswith("prepared the estimates of mixtures in ")
    asyncio.run(service.join("c0", 5))
    service._writer.shutdown()
    service._measurers.shutdown()
    store.close()
    monkeypatch.setattr("artesian.server.service.REPORT_EVERY", 0.0)
    lines.clear()
    again = Store(tmp_path / "store", federation.identity)
    restarted = Service.open(federation, again, report=lines.append)
    assert lines == ["replaying 1/1 events"]
    restarted.close()


@pytest.mark.parametrize(
    ("host", "secure", "url"),
    [("127.0.0.1", False, "http://127.0.0.1:8440"), ("::1", True, "https://[::1]:8440")],
)
def test_the_address_it_prints_is_one_that_clients_take(host, secure, url) -> None:
    assert url_of(host, 8440, secure=secure) == url
    Transport(url).close()
