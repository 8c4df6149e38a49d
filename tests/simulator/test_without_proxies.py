"""Federations whose server has no data: every sample is a client's, and the start is one random model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from artesian.algorithms import ALGORITHMS, CDFL, FedAsync
from artesian.config.experiments import build, load, simulate
from artesian.config.federations import load_served, serve_experiment
from artesian.core import derive
from artesian.errors import SettingError
from artesian.simulator.experiment import Experiment
from artesian.simulator.pretraining import Start, check_size
from artesian.simulator.run import run_experiment
from artesian.simulator.simulation import Simulation
from artesian.simulator.worlds import Natural
from artesian.testing import InProcess

PEOPLE, EACH, CLASSES = 10, 12, 3
SEVERAL: dict[str, dict[str, Any]] = {
    **{
        key: {"clusters": 2, "initial": "random"}
        for key in ("fedem", "fedmerge", "fedmerge-async", "fedsoft", "ifca", "ifca-async")
    },
    "fesem": {"clusters": 2},
    **{key: {"groups": 2, "pretrain_scale": 3} for key in ("fedgroup", "flexcfl")},
}
NO_START = {"trunk_epochs": 0, "epochs": 0}


@pytest.fixture(scope="module")
def people(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Ten people with twelve samples each, in two groups; the first number of a sample is its own."""
    count = PEOPLE * EACH
    x = np.random.default_rng(0).normal(size=(count, 4)).astype(np.float32)
    x[:, 0] = np.arange(count)
    user = np.arange(count) // EACH
    path = tmp_path_factory.mktemp("people") / "people.npz"
    np.savez(path, x=x, y=np.arange(count) % CLASSES, user=user, group=user % 2)
    return str(path)


def tables(people: str, algorithm: str = "fedasync", **changes: Any) -> dict[str, Any]:
    return {
        "name": "people",
        "uploads": 20,
        "world": {"name": "natural", "data": people, "proxy_share": 0.0},
        "algorithm": {"name": algorithm, **SEVERAL.get(algorithm, {})},
        "model": {"name": "softmax"},
        "start": NO_START,
        "training": {"rate": 0.01},
        "evaluate": "clients",
        **changes,
    }


def experiment(people: str, algorithm: str = "fedasync", **changes: Any) -> Experiment:
    return build(tables(people, algorithm, **changes))


def test_every_sample_is_a_clients(people: str) -> None:
    here = Natural(people, proxy_share=0.0)
    assert here.proxies(0) == {} and list(here.tests(0)) == ["k0", "k1"]
    visits = {client: here.visit(0, client, 0) for client in here.names}
    numbers = [int(x) for v in visits.values() for part in (v.train, v.test) for x in part.x[:, 0]]
    assert sorted(numbers) == list(range(PEOPLE * EACH))
    assert visits["0"].mixture == {"k0": 1.0, "k1": 0.0} and visits["3"].mixture == {"k0": 0.0, "k1": 1.0}


def test_two_samples_are_enough_without_a_proxy_set(people: str) -> None:
    assert Natural(people, proxy_share=0, samples_min=2).visit(0, "0", 0)
    with pytest.raises(ValueError, match="samples_min must be at least 3, for proxy"):
        Natural(people, samples_min=2)


def test_the_start_is_one_random_model(people: str) -> None:
    model = experiment(people).model
    (only,) = Start(**NO_START).from_samples(model, {}, seed=3)
    assert only.tobytes() == model.start(derive(3, "initial")).tobytes()
    assert Start("apart", epochs=0).from_samples(model, {}, seed=3)[0].tobytes() == only.tobytes()


@pytest.mark.parametrize("start", [{}, {"trunk_epochs": 1, "epochs": 0}, {"trunk_epochs": 0, "epochs": 1}])
def test_pre_training_is_refused_before_anything_is_written(people: str, tmp_path: Path, start: Any) -> None:
    words = r"There are no proxy sets to pre-train on\. Set start\.trunk_epochs and start\.epochs to 0\."
    with pytest.raises(SettingError, match=words):
        run_experiment(experiment(people, start=start), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    with pytest.raises(SettingError, match=words):
        serve_experiment(experiment(people, start=start)).begin()


def test_an_algorithm_that_appraises_is_refused_before_anything_is_written(people: str, tmp_path: Path) -> None:
    words = r"cdfl needs a proxy set for every cluster, and k0 has none\. Give proxies for every cluster"
    with pytest.raises(SettingError, match=words):
        run_experiment(experiment(people, "cdfl"), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    with pytest.raises(SettingError, match=words):
        serve_experiment(experiment(people, "cdfl")).begin()


def test_a_proxy_sample_is_refused(people: str) -> None:
    check_size({}, None)
    with pytest.raises(SettingError, match=r"proxy_sample is 5, but there are no proxy sets\. Leave it out"):
        run_experiment(experiment(people, proxy_sample=5))


def test_the_opening_says_that_clusters_are_looked_for_whatever_the_start() -> None:
    words = "confluence begins with one cluster here: a single model for all clients, until it finds kinds of clients"
    assert words in load("digits-2", ["algorithm.clusters=found"]).opening(0)
    assert words not in load("digits-2").opening(0)


def test_the_opening_says_that_nothing_is_pre_trained(people: str) -> None:
    lines = experiment(people, "fedsoft-async").opening(0)
    assert lines == [
        "people: fedsoft-async, 10 clients of the world natural, 20 uploads",
        "no pre-training: the start is one random model",
        "fedsoft-async begins with one cluster here: a single model for all clients, and no mixture to estimate",
    ]
    assert len(experiment(people).opening(0)) == 2


@pytest.mark.parametrize("name", sorted(set(ALGORITHMS) - {CDFL.name}))
def test_every_algorithm_but_one_needs_no_proxies(people: str, name: str) -> None:
    summary = simulate(experiment(people, name, export=True)).summary
    assert summary["uploads"] == 20 and 0 <= summary["clients"] <= 1
    if name in SEVERAL:
        assert summary["clusters"] == 2


def test_runs_are_the_same_on_workers_over_http_and_resumed(people: str, tmp_path: Path) -> None:
    def stop(progress: Any) -> None:
        if progress.uploads == 13:
            raise KeyboardInterrupt

    chosen = experiment(people, "ifca-async", snapshot_every=5)
    whole = simulate(chosen).metrics["after"].tolist()
    assert simulate(chosen, workers=1).metrics["after"].tolist() == whole
    assert Simulation(chosen, 0, transport=InProcess).run().metrics["after"].tolist() == whole
    with pytest.raises(KeyboardInterrupt):
        simulate(chosen, out=tmp_path / "run", progress=stop)
    assert simulate(chosen, out=tmp_path / "run", resume=True).metrics["after"].tolist() == whole


def test_such_an_experiment_is_served(people: str, tmp_path: Path) -> None:
    federation = serve_experiment(experiment(people))
    assert federation.proxies == {} and federation.algorithm == FedAsync()
    assert list(federation.begin().state.clusters) == ["k0"]
    path = tmp_path / "served.toml"
    path.write_text(
        f'[algorithm]\nname = "ifca"\nclusters = 3\ninitial = "random"\n[world]\nname = "natural"\ndata = "{people}"\n'
        'proxy_share = 0.0\n[model]\nname = "softmax"\n[start]\ntrunk_epochs = 0\nepochs = 0\n'
    )
    assert len(load_served(str(path))[0].begin().state.clusters) == 3


def test_the_preset_of_people_has_no_proxies(people: str) -> None:
    chosen = load("har-people", [f"world.data={people}", f"world.clients={PEOPLE}"])
    assert chosen.world == Natural(people, clients=PEOPLE, proxy_share=0.0)
    assert (chosen.evaluate, chosen.uploads, chosen.algorithm.name) == ("clients", 1500, "casa")
    chosen.check_run(0)
