"""Tuning what was drawn before it is used, by hand: at the client, and in the simulator's scores."""

from dataclasses import dataclass

import numpy as np
import pytest

from artesian.algorithms import FedAvg, FedEM
from artesian.core import Plan
from artesian.data.datasets import Samples
from artesian.learners.arrays import LinearRegression
from artesian.params import seal
from artesian.recipes.tuning import tuned
from artesian.simulator.experiment import Experiment
from artesian.simulator.jobs import Place, Score
from artesian.simulator.profiling import Stopwatch
from artesian.simulator.run import run_experiment
from artesian.simulator.simulation import Simulation
from artesian.simulator.worlds import Visit
from artesian.testing import ToyModel, ToyWorld

LINE = LinearRegression(1, bias=False)  # loss (w x - y)^2, gradient 2 x (w x - y)
PLAN = Plan(rate=0.25, epochs=2)


def at(*y: float) -> Samples:
    return Samples(np.ones((len(y), 1), np.float32), np.array(y, np.float32))


def vector(number: float) -> np.ndarray:
    return seal(np.array([number], np.float32))


def test_every_model_of_an_ensemble_is_trained_on() -> None:
    """y = 4: from 0 by 2 and 1 to 3; from 8 by -2 and -1 to 5."""
    data = at(4.0)
    ensemble = tuned(((0.25, vector(0)), (0.75, vector(8))), LINE.learner(data.x, data.y), seed=1, plan=PLAN)
    assert [(weight, params.tolist()) for weight, params in ensemble] == [(0.25, [3]), (0.75, [5])]


def test_without_samples_nothing_is_tuned() -> None:
    drawn = ((1.0, vector(0)),)
    data = at()
    assert tuned(drawn, LINE.learner(data.x, data.y), seed=1, plan=PLAN) is drawn


@dataclass(frozen=True)
class One(ToyWorld):
    """One client whose data say 4 in training and 5 in testing."""

    def visit(self, seed: int, client: str, cycle: int) -> Visit:
        return Visit(at(4.0), at(5.0), {"k0": 1.0})


@pytest.mark.parametrize(("plan", "score"), [(None, -25), (PLAN, -4)])
def test_a_client_is_scored_with_what_it_tuned(plan, score) -> None:
    """Tuned from 0 to 3 on its own 4, it is 2 away from its test data's 5; untuned it is 5 away."""
    place = Place(One(1), LINE, seed=0, tune=plan)
    assert place.score(Score(((1.0, vector(0)),), client="c0"), Stopwatch()) == score


def experiment(**settings) -> Experiment:
    algorithm = settings.pop("algorithm", FedAvg(clients_per_round=2))
    return Experiment(ToyWorld(4), ToyModel(), algorithm, uploads=8, evaluate="clients", **settings)


def test_tuning_changes_scores_after_and_nothing_else() -> None:
    plain, fine = run_experiment(experiment()), run_experiment(experiment(tune=2))
    assert plain.params["k0"].tobytes() == fine.params["k0"].tobytes()
    assert plain.metrics["before"].tolist() == fine.metrics["before"].tolist()
    assert fine.metrics["after"].mean() > plain.metrics["after"].mean()
    assert fine.summary["clients"] > plain.summary["clients"]


@pytest.mark.heavy
@pytest.mark.parametrize("algorithm", [FedAvg(clients_per_round=2), FedEM()], ids=lambda a: a.name)
def test_tuning_gives_the_same_scores_over_workers(algorithm) -> None:
    tables = [
        Simulation(experiment(algorithm=algorithm, tune=1).planned(), 3, workers=workers)
        .run()
        .metrics["after"]
        .tolist()
        for workers in (0, 1)
    ]
    assert tables[0] == tables[1]


def test_tuning_is_described_only_where_it_is_on() -> None:
    assert "tune" not in experiment().describe()
    assert experiment(tune=2).describe()["tune"] == 2
    assert experiment().digest != experiment(tune=2).digest


def test_a_run_is_resumed_with_the_tuning_it_began_with(tmp_path) -> None:
    run_experiment(experiment(tune=1), out=tmp_path / "run")
    with pytest.raises(Exception, match="tune"):
        run_experiment(experiment(), out=tmp_path / "run", resume=True)


def test_tune_is_a_number_of_epochs() -> None:
    with pytest.raises(ValueError, match="tune must be at least 0, not -1"):
        experiment(tune=-1)
