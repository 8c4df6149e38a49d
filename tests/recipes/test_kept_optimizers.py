"""Optimisers that go on from a client's last task: by hand, for every recipe, to the same bits however a run goes."""

from dataclasses import dataclass, replace

import numpy as np
import pytest

from artesian.algorithms import FedAvg, FedEM, FedRep, Local
from artesian.core import ESTIMATE_ONLY, Fit, Plan, Recipe, Task, Upload
from artesian.data.datasets import Samples
from artesian.errors import SettingError, StartedAfresh
from artesian.learners.arrays import LinearRegression, Perceptron
from artesian.params import seal
from artesian.recipes import recipe
from artesian.recipes.kept_optimizers import OPTIMIZERS, follow
from artesian.simulator.experiment import Experiment
from artesian.simulator.run import run_experiment
from artesian.simulator.simulation import Simulation
from artesian.storage.codec import decode, encode
from artesian.testing import InProcess, ToyModel, ToyWorld

LINE = LinearRegression(1, bias=False)  # loss (w x - y)^2, gradient 2 x (w x - y)
MOMENTUM = Plan(rate=0.1, momentum=0.5, keep_optimizer_state=True)
ADAM = Plan("adam", 0.1, keep_optimizer_state=True)


def vector(*numbers: float) -> np.ndarray:
    return seal(np.array(numbers, np.float32))


def task(plan: Plan, name: str = "train", *starts: float, **settings) -> Task:
    models = {f"k{i}": vector(start) for i, start in enumerate(starts or (1.0,))}
    return Task(models, name, {**plan.settings, "seed": 0, **settings}, number=1)


def learner(x: float = 2.0, y: float = 6.0):
    return LINE.learner(np.array([[x]], np.float32), np.array([y], np.float32))


def followed(given: Task, notebook=None, data=None):
    return follow(recipe(given.recipe), LINE.layout, "c0", given, data or learner(), notebook or {})


def test_a_velocity_goes_on_by_hand() -> None:
    """1: gradient -16, velocity -16, to 2.6. 2.6 again: gradient -3.2, velocity -8 - 3.2 = -11.2, to 3.72."""
    first = followed(task(MOMENTUM))
    assert first.upload.params.tolist() == pytest.approx([2.6])
    assert [state["velocity"].tolist() for state in first.notebook[OPTIMIZERS]["states"]["train"]] == [[-16]]
    second = followed(task(MOMENTUM, "train", 2.6), first.notebook)
    assert second.upload.params.tolist() == pytest.approx([3.72])
    fresh = followed(task(replace(MOMENTUM, keep_optimizer_state=False), "train", 2.6), first.notebook)
    assert fresh.upload.params.tolist() == pytest.approx([2.92])


@pytest.mark.parametrize("plan", [MOMENTUM, ADAM, replace(ADAM, decay=0.5)])
def test_two_trainings_of_one_step_are_one_training_of_two(plan) -> None:
    first = followed(task(plan))
    second = followed(replace(task(plan), models=first.upload.models), first.notebook)
    whole = followed(task(replace(plan, epochs=2)))
    assert second.upload.params.tobytes() == whole.upload.params.tobytes()
    for name, value in whole.notebook[OPTIMIZERS]["states"]["train"][0].items():
        assert np.array_equal(second.notebook[OPTIMIZERS]["states"]["train"][0][name], value)


def test_without_the_setting_the_notebook_and_the_tasks_are_as_before() -> None:
    plan = Plan("adam", 0.1)
    assert "keep_optimizer_state" not in plan.settings
    assert Plan.of(plan.settings) == plan
    assert Plan.of(ADAM.settings) == ADAM
    assert followed(task(plan)).notebook == {}


def test_a_notebook_with_states_is_stored_and_read_again() -> None:
    kept = followed(task(ADAM)).notebook
    again = decode("notebook", encode("notebook", kept), dict)
    given = task(ADAM, "train", 2.0)
    assert followed(given, again).upload.params.tobytes() == followed(given, kept).upload.params.tobytes()


def test_every_training_of_a_task_has_a_state_of_its_own() -> None:
    """Ditto trains the given model and its own: from 1 and 1 alike, then from 1 and from 2.6."""
    given = task(MOMENTUM, "twin", personal_pull=0.0)
    first = followed(given)
    second = followed(replace(given, models={"k0": vector(0)}), first.notebook)
    states = second.notebook[OPTIMIZERS]["states"]["twin"]
    assert [state["velocity"].tolist() for state in states] == [[-8 - 24], [pytest.approx(-11.2)]]
    assert second.notebook["own"].tolist() == pytest.approx([3.72])


def test_a_task_that_only_estimates_leaves_the_states_alone() -> None:
    first = followed(task(MOMENTUM, "pick"))
    asked = followed(task(MOMENTUM, "pick", 1.0, **{ESTIMATE_ONLY: True}), first.notebook)
    assert asked.notebook[OPTIMIZERS] is first.notebook[OPTIMIZERS]


def test_a_training_that_nothing_came_of_is_not_kept() -> None:
    """As FlexCFL's search for a group: it trains, and the client predicts with nothing of it."""

    def search(*arguments) -> Fit:
        return replace(recipe("train").fit(*arguments), trained=())

    probe = Recipe("probe", search, recipe("train").use)
    assert follow(probe, LINE.layout, "c0", task(MOMENTUM), learner(), {}).notebook == {}


def test_recipes_do_not_share_states() -> None:
    first = followed(task(MOMENTUM))
    other = followed(task(MOMENTUM, "alone", 2.6), first.notebook)
    assert other.notebook["own"].tolist() == pytest.approx([2.92])
    assert set(other.notebook[OPTIMIZERS]["states"]) == {"train", "alone"}


def test_the_states_of_trainings_a_task_did_not_have_stay() -> None:
    both = followed(task(MOMENTUM, "em", 1.0, 2.0)).notebook
    fewer = followed(task(MOMENTUM, "em", 1.0), both).notebook
    before, after = (book[OPTIMIZERS]["states"]["em"] for book in (both, fewer))
    assert len(after) == 2
    assert after[1] is before[1]


def test_a_client_without_samples_keeps_its_state() -> None:
    first = followed(task(MOMENTUM))
    empty = LINE.learner(np.zeros((0, 1), np.float32), np.zeros(0, np.float32))
    (state,) = followed(task(MOMENTUM), first.notebook, empty).notebook[OPTIMIZERS]["states"]["train"]
    assert state["velocity"].tolist() == [-16]


def test_a_state_of_another_optimiser_is_not_used_and_that_is_said() -> None:
    first = followed(task(MOMENTUM))
    with pytest.warns(StartedAfresh, match="belongs to another optimiser or another model; the optimiser starts"):
        second = followed(task(ADAM), first.notebook)
    assert second.upload.params.tobytes() == followed(task(ADAM)).upload.params.tobytes()
    (state,) = second.notebook[OPTIMIZERS]["states"]["train"]
    assert (set(state), state["steps"]) == ({"steps", "first", "second"}, 1)


def test_a_state_of_another_layout_is_not_used_and_that_is_said() -> None:
    kept = dict(followed(task(MOMENTUM)).notebook)
    kept[OPTIMIZERS] = {**kept[OPTIMIZERS], "layout": Perceptron(2, 2).layout.digest}
    with pytest.warns(StartedAfresh, match="belongs to a model of another layout; they start afresh"):
        found = followed(task(MOMENTUM), kept)
    assert found.upload.params.tolist() == pytest.approx([2.6])
    assert found.notebook[OPTIMIZERS]["layout"] == LINE.layout.digest


def test_a_learner_that_cannot_go_on_is_refused() -> None:
    model = ToyModel()
    given = replace(task(ADAM), models={"k0": model.start(0)})
    with pytest.raises(SettingError, match=r"keeps its optimiser's state, and ToyLearner cannot go on from one"):
        follow(recipe("train"), model.layout, "c0", given, model.learner(np.ones((2, 3)), np.zeros(2)), {})


def count(layout, client, given, data, notebook) -> Fit:
    """A recipe that trains nothing and looks at all else a learner has."""
    metrics = {"labels": float(len(data.histogram)), "steps": float(data.batches(1))}
    return Fit(Upload(client, given.number, data.samples, metrics=metrics), notebook, ())


def test_a_recipe_that_trains_nothing_needs_no_such_learner_and_sees_it_whole() -> None:
    model = ToyModel()
    data = model.learner(np.ones((2, 3)), np.zeros(2))
    counting = Recipe("count", count, recipe("train").use)
    upload = follow(counting, model.layout, "c0", task(ADAM), data, {}).upload
    assert (upload.samples, upload.metrics) == (2, {"labels": 1, "steps": 2})


@dataclass(frozen=True)
class Heights(ToyWorld):
    """The toy's points, each with the sum of its numbers as target."""

    def _points(self, rng, cluster, count) -> Samples:
        x = super()._points(rng, cluster, count).x
        return Samples(x, x.sum(axis=1))


def experiment(algorithm, plan=ADAM, **settings) -> Experiment:
    options = {"uploads": 12, "snapshot_every": 4, **settings}
    return Experiment(Heights(4), LinearRegression(3), algorithm, training=plan, **options).planned()


def bits(run) -> list[bytes]:
    return [run.params[k].tobytes() for k in sorted(run.params)]


ALL = [FedAvg(clients_per_round=2), FedEM(clients_per_round=2), Local()]


@pytest.mark.heavy
@pytest.mark.parametrize("algorithm", ALL, ids=lambda a: a.name)
def test_runs_end_with_the_same_bits_over_http_and_over_workers(algorithm) -> None:
    runs = [Simulation(experiment(algorithm), 1, **how) for how in ({}, {"transport": InProcess}, {"workers": 1})]
    tables = [run.run().metrics["after"].tolist() for run in runs]
    runs[1].transport.close()
    assert tables[0] == tables[1] == tables[2]
    assert len({run.coordinator.digest() for run in runs}) == 1


@pytest.mark.parametrize("algorithm", ALL, ids=lambda a: a.name)
def test_a_run_killed_half_way_resumes_to_the_same_bits(algorithm, tmp_path) -> None:
    def stop(progress) -> None:
        if progress.uploads == 7:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_experiment(experiment(algorithm), seed=1, out=tmp_path / "run", progress=stop)
    resumed = run_experiment(experiment(algorithm), seed=1, out=tmp_path / "run", resume=True)
    whole = run_experiment(experiment(algorithm), seed=1)
    assert bits(resumed) == bits(whole)
    assert resumed.metrics["after"].tolist() == whole.metrics["after"].tolist()


def test_kept_states_change_what_is_learnt_and_tuning_neither_uses_nor_changes_them() -> None:
    algorithm = FedAvg(clients_per_round=2)
    fresh = run_experiment(experiment(algorithm, replace(ADAM, keep_optimizer_state=False)))
    kept, fine = (run_experiment(experiment(algorithm, tune=tune)) for tune in (0, 2))
    assert bits(fresh) != bits(kept) == bits(fine)


def test_a_run_is_described_and_resumed_with_the_setting_it_began_with(tmp_path) -> None:
    algorithm = FedAvg(clients_per_round=2)
    without = experiment(algorithm, replace(ADAM, keep_optimizer_state=False))
    assert "keep_optimizer_state" not in without.describe()["training"]
    run_experiment(experiment(algorithm), out=tmp_path / "run")
    with pytest.raises(Exception, match=r"training.keep_optimizer_state = True, and now it is False"):
        run_experiment(without, out=tmp_path / "run", resume=True)


def test_a_plan_that_remembers_nothing_has_nothing_to_keep() -> None:
    with pytest.raises(ValueError, match="keep_optimizer_state has an effect only with optimizer = adam or momentum"):
        experiment(Local(), Plan(keep_optimizer_state=True))


def test_a_head_and_a_body_have_states_of_their_own() -> None:
    model = Perceptron(3, 2, hidden=4)
    algorithm = FedRep(clients_per_round=2, head=("output.*",))
    simulation = Simulation(Experiment(ToyWorld(4), model, algorithm, training=ADAM, uploads=8).planned(), 0)
    simulation.run()
    head, body = simulation.notebooks["c0"][OPTIMIZERS]["states"]["split"]
    assert head["steps"] == body["steps"] > 1
    assert not np.array_equal(head["first"], body["first"])
