"""Experiments from names, files and values."""

from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
from tiers import some_heavy

import artesian
from artesian.algorithms import ALGORITHMS, CDFL, ICFL, CASAPlus, Confluence, FedAsync, FedBuff, ICFLAsync
from artesian.config.experiments import build, load, simulate, tables_of
from artesian.config.federations import load_served
from artesian.core import Plan
from artesian.errors import SettingError
from artesian.learners.arrays import Perceptron, SoftmaxRegression
from artesian.server.settings import Settings
from artesian.simulator.experiment import Experiment
from artesian.simulator.fleet import Fleet, Habits
from artesian.simulator.worlds import Rotated
from artesian.testing import ToyModel, ToyWorld


@dataclass(frozen=True)
class Mine(FedAsync):
    name: ClassVar[str] = "mine"


READY = Mine(alpha=0.7)


def make(alpha: float = 0.5) -> Mine:
    return Mine(alpha=alpha)


def test_a_preset_and_its_defaults() -> None:
    experiment = load("digits-4")
    assert experiment.algorithm == Confluence()
    assert experiment.world == Rotated(clusters=4, clients=80)
    assert experiment.model == Perceptron(64, 10, 32)
    assert (experiment.name, experiment.uploads, experiment.training.optimizer) == ("digits-4", 2000, "adam")


@pytest.mark.parametrize(("name", "clusters", "clients"), [("digits-1", 1, 40), ("digits-6", 6, 120)])
def test_presets_of_digits_differ_in_their_clusters_alone(name, clusters, clients) -> None:
    experiment, four = load(name), load("digits-4")
    world = Rotated(clusters=clusters, clients=clients)
    assert experiment == replace(four, name=name, world=world, uploads=25 * clients)


@pytest.mark.parametrize(
    "name", some_heavy(sorted(set(ALGORITHMS) - {"scaffold"}), "cdfl", "confluence", "fedbuff", "flexcfl")
)
def test_every_algorithm_runs_with_a_single_distribution(name) -> None:
    """SCAFFOLD refuses the preset's optimiser."""
    changes = ["world.clients=10", "evaluate=clients", "export=true", "start.trunk_epochs=0", "training.epochs=1"]
    summary = simulate("digits-1", algorithm=name, changes=changes, uploads=20).summary
    assert summary["uploads"] == 20 and 0 <= summary["client_after"] <= 1
    assert summary["purity"] in (None, 1.0) and summary["kl"] in (None, 0.0)


def test_changes_are_toml_values_or_plain_text() -> None:
    changes = [
        "algorithm.name=cdfl",
        "algorithm.amplifier=[10, 5]",
        "algorithm.staleness_ref=cluster",
        "uploads=7",
        "model.name=softmax",
    ]
    experiment = load("digits-4", changes)
    assert experiment.algorithm == CDFL(amplifier=(10.0, 5.0), staleness_ref="cluster")
    assert experiment.uploads == 7
    assert experiment.model == SoftmaxRegression(64, 10)


def test_usual_settings_wait_for_their_algorithm_and_yield_to_explicit_ones() -> None:
    tables = {
        "algorithms": {"fedbuff": {"buffer_size": 3, "server_lr": 0.5}, "confluence": {"rho": 1.0}},
        "algorithm": {"name": "fedbuff", "server_lr": 0.25},
    }
    assert build(tables).algorithm == FedBuff(buffer_size=3, server_lr=0.25)
    assert build({**tables, "algorithm": {}}).algorithm == Confluence(rho=1.0)


@pytest.mark.parametrize(("name", "alpha"), [("Mine", 0.3), ("READY", 0.7), ("make", 0.5)])
def test_an_own_algorithm_is_a_class_a_value_or_a_function(name, alpha) -> None:
    tables = {"algorithm": {"name": f"{__name__}:{name}"}}
    assert build(tables).algorithm == Mine(alpha=alpha)
    tables["algorithm"]["alpha"] = 0.9
    assert build(tables).algorithm == Mine(alpha=0.9)


def test_a_value_of_another_name_is_refused() -> None:
    with pytest.raises(SettingError, match="Did you mean 'alpha'"):
        build({"algorithm": {"name": f"{__name__}:READY", "alfa": 0.9}})


def test_an_own_world_and_model() -> None:
    tables = {
        "world": {"name": "artesian.testing:ToyWorld", "clients": 5},
        "model": {"name": "artesian.testing:ToyModel"},
    }
    experiment = build(tables)
    assert (experiment.world, experiment.model) == (ToyWorld(5), ToyModel())


def test_simulate_takes_parts_as_values() -> None:
    run = simulate(world=ToyWorld(3), model=ToyModel(), algorithm=FedAsync(), fleet=Fleet("latency"), uploads=6, seed=4)
    assert (run.summary["algorithm"], run.summary["preset"], run.summary["seed"]) == ("fedasync", "own", 4)
    assert run.summary["virtual_time"] == 2.0  # three clients, one unit each, twice
    again = artesian.simulate(load("digits-2"), algorithm="fedbuff", uploads=11)
    assert (again.summary["algorithm"], again.summary["versions"]) == ("fedbuff", 1)


def test_a_world_of_ones_own_gets_a_model_that_fits() -> None:
    run = simulate(world=Rotated(clusters=2, clients=3), uploads=4)
    assert run.models["k0"]["hidden.weight"].shape == (64, 32)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"uploads": 1.5}, "uploads must be a whole number"),
        ({"seed": -1}, "seed must be a whole number"),
        ({"workers": None}, "workers must be a whole number"),
        ({"changes": "uploads=5"}, "changes must be a list"),
        ({"resume": True}, "resume needs a folder"),
        ({"experiment": {"uploads": 5}}, "dict is not an experiment"),
        ({"experiment": load("digits-2"), "changes": ["uploads=5"]}, "changes work with presets"),
    ],
)
def test_a_wrong_argument_is_named(arguments, words) -> None:
    with pytest.raises(SettingError, match=words):
        simulate(**{"experiment": "digits-2", **arguments})


def test_an_algorithm_by_name_takes_its_own_changes_and_a_new_world_keeps_the_model_of_the_file(tmp_path) -> None:
    run = simulate("digits-2", algorithm="fedbuff", changes=["algorithm.buffer_size=5"], uploads=10)
    assert run.summary["versions"] == 2
    (tmp_path / "soft.toml").write_text('[model]\nname = "softmax"\n')
    other = simulate(tmp_path / "soft.toml", world=Rotated(clusters=2, clients=4), uploads=2)
    assert list(other.models["k0"]) == ["dense.weight", "dense.bias"]


def test_a_finished_run_is_not_returned_twice(tmp_path) -> None:
    options = {"world": ToyWorld(2), "model": ToyModel(), "uploads": 4, "out": tmp_path / "run"}
    simulate(**options)
    with pytest.raises(SettingError, match="has finished already"):
        simulate(**options, resume=True)


def test_the_horizon_is_filled_in_where_it_is_wanted() -> None:
    experiment = load("digits-4", ["uploads=50", "algorithm.name=cdfl", "algorithm.adjust_start=0.5"])
    assert experiment.planned().algorithm == CDFL(adjust_start=0.5, horizon=50)
    chosen = replace(experiment, algorithm=CDFL(horizon=9))
    assert chosen.planned().algorithm == CDFL(horizon=9)
    plain = replace(experiment, algorithm=FedAsync())
    assert plain.planned() == plain
    rounds = replace(experiment, algorithm=ICFL(clients_per_round=3), rounds=7)
    assert rounds.planned().algorithm == ICFL(clients_per_round=3, horizon=7, first_round=80)


@pytest.mark.parametrize("clusters", [2, 4, 8])
def test_fedsofts_regressions_have_two_four_or_eight_clusters(clusters) -> None:
    wanted = [f"world.clusters={clusters}", f"algorithm.clusters={clusters}", "world.partition=random"]
    experiment = load("fedsoft-linear", [*wanted, "world.distance2="])
    assert experiment.world.distance2 is None
    assert len(experiment.world.tests(0)) == experiment.algorithm.clusters == clusters


def test_a_change_without_a_value_removes_a_setting() -> None:
    assert load("digits-4", ["uploads="]).uploads == Experiment.uploads
    assert load("digits-4", ["world="]).world == Rotated()
    assert load("digits-4", ["training.rate=0.5", "training.rate="]).training.rate == Plan().rate
    assert load("digits-4", ["training.rate=", "training.rate=0.5"]).training.rate == 0.5
    assert load("digits-4", ["algorithm.name=fedbuff", "algorithm.name="]).algorithm == Confluence()
    assert load("digits-4", [" uploads = "]).uploads == Experiment.uploads


def test_a_setting_of_the_algorithm_is_removed_where_the_file_has_it() -> None:
    """fedsoft-linear sets `initial` in [algorithms.fedsoft] and in [algorithms.ifca]."""
    assert load("fedsoft-linear", ["algorithm.initial="]).algorithm.initial == "start"
    assert load("fedsoft-linear").algorithm.initial == "random"
    other = load("fedsoft-linear", ["algorithm.initial=", "algorithm.name=ifca"]).algorithm
    assert (other.name, other.initial) == ("ifca", "start")


@pytest.mark.parametrize("place", ["world.distance2", "world.clutsers", "wrold.clusters", "rounds", "uploads.more"])
def test_what_nothing_sets_cannot_be_removed(place) -> None:
    with pytest.raises(SettingError, match=f"Nothing sets {place}, so its default counts already"):
        load("digits-4", [f"{place}="])


def test_a_deployment_setting_is_removed(tmp_path) -> None:
    path = tmp_path / "served.toml"
    path.write_text('[world]\nclusters = 2\nclients = 4\n\n[server]\nlog = "text"\n')
    assert load_served(str(path))[1].log == "text"
    assert load_served(str(path), ["log="])[1] == Settings()
    with pytest.raises(SettingError, match=r"Nothing sets server\.measure"):
        load_served(str(path), ["measure="])


def test_the_horizon_is_counted_in_the_unit_of_the_pace() -> None:
    """6,000 uploads are 60 rounds of 100 clients, and as many folds of a stream; 7 rounds are 7 folds of either."""
    experiment = load("digits-4", ["world.clients=100", "uploads=6000"])
    horizons = {ICFL(): 60, ICFL(clients_per_round=20): 300, ICFLAsync(): 6000, CASAPlus(): 6000}
    for algorithm, horizon in horizons.items():
        planned = replace(experiment, algorithm=algorithm).planned().algorithm
        assert (planned.name, planned.horizon) == (algorithm.name, horizon)
        assert replace(experiment, algorithm=algorithm, rounds=7).planned().algorithm.horizon == 7


@pytest.mark.parametrize("name", ["digits-2", "flexcfl-synthetic"])
def test_a_scale_that_an_experiment_does_not_have_is_refused(name) -> None:
    with pytest.raises(SettingError, match="has no scale 'huge'"):
        load(name, ["scale=huge"])
    assert load(name, ["scale=small"]).world == load(name).world


CASA_PRESETS = ("casa-cifar10", "casa-har", "casa-mnist")


def of_casa(preset: str, name: str = "casa") -> Experiment:
    """A preset with data that are always at hand."""
    world = {"name": "label-groups", "data": "digits", "clients": 20}
    tables = tables_of(preset, [f"algorithm.name={name}"])
    return build({**tables, "world": world, "model": {"name": "softmax"}})


@pytest.mark.parametrize("preset", CASA_PRESETS)
def test_no_two_clients_of_a_casa_preset_finish_in_the_same_order_for_ever(preset) -> None:
    """With equal durations ties were broken by names, in every cycle alike."""
    names = [f"c{i:03d}" for i in range(20)]
    habits = Habits(of_casa(preset).fleet, names, seed=0)
    ends = {name: [habits.finishes_at(name, number, 0.0) for number in range(3)] for name in names}
    orders = [sorted(names, key=lambda name, turn=turn: ends[name][turn]) for turn in range(3)]
    assert len({tuple(order) for order in [names, *orders]}) == 4
    assert len({end for row in ends.values() for end in row}) == 60


@pytest.mark.parametrize("preset", CASA_PRESETS)
def test_fedasync_in_a_casa_preset_has_the_printed_hinge(preset) -> None:
    algorithm = of_casa(preset, name="fedasync").algorithm
    assert isinstance(algorithm, FedAsync)
    assert (algorithm.alpha, algorithm.staleness, algorithm.a, algorithm.b) == (0.3, "hinge", 1.0, 4.0)


def test_flexcfls_mnist_is_read_as_its_authors_read_it() -> None:
    """Every pixel standardised, 90/10, and a score after every round."""
    tables = tables_of("flexcfl-mnist", [])
    world = tables["world"]
    assert (world["standardise"], world["test_share"], tables["evaluate_every_rounds"]) == ("pixel", 0.1, 1)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            "algorithm.mu=1",
            "The algorithm fedavg has no setting 'mu'. It is a setting of fedprox; those of fedavg are: a",
        ),
        (
            "algorithm.rho=1",
            "no setting 'rho'. It is a setting of cdfl, confluence, fedasync, fedmerge, fedmerge-async, fedsoft-async",
        ),
        ("algorithm.quorun=1", "[algorithm] has no setting 'quorun'. Did you mean 'quorum'?"),
        ("seed=3", "That is an option of the run, not of the experiment: --seed, or seed= in Python"),
        ("world.groups=3", "The world rotated has no setting 'groups'. It is a setting of label-groups; those of"),
    ],
)
def test_a_setting_of_another_algorithm_or_world_says_whose_it_is(change, words) -> None:
    with pytest.raises(SettingError) as caught:
        load("digits-2", ["algorithm.name=fedavg", change])
    assert words in str(caught.value)


def test_uploads_that_would_have_no_effect_are_refused() -> None:
    with pytest.raises(SettingError, match=r"lasts 1600 turns, so uploads has no effect\. Set turns instead"):
        load("drift-sudden", ["uploads=40"])
    with pytest.raises(SettingError, match="lasts 1600 turns"):
        simulate("drift-sudden", uploads=40)
    with pytest.raises(SettingError, match=r"lasts 100 rounds, so uploads has no effect\. .* remove it: --set rounds="):
        load("flexcfl-synthetic", ["uploads=40"])
    with pytest.raises(SettingError, match="lasts 100 rounds"):
        simulate("flexcfl-synthetic", uploads=40)
    assert load("flexcfl-synthetic", ["rounds=", "uploads=40"]).uploads == 40
    turning = ["uploads=40", "turns=200", "watch.when=always"]
    with pytest.raises(SettingError, match="lasts 200 turns"):
        load("digits-4", turning)
    assert load("digits-4", turning[1:]).turns == 200  # what the preset says of uploads is only a default


def test_a_wrong_deployment_setting_is_named_as_in_the_file() -> None:
    with pytest.raises(SettingError, match=r"^server\.page must be true or false, not 'maybe'"):
        load_served("digits-2", ["page=maybe"])
