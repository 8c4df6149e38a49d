"""SCAFFOLD, Ditto and FedRep by hand, each with its client half."""

import numpy as np
import pytest
from hand import layout, vector
from written import Written

from artesian.algorithms import SCAFFOLD, Ditto, FedAvg, FedRep, Local
from artesian.core import CONTROL, Plan, Upload
from artesian.engine.coordinator import Coordinator
from artesian.errors import SettingError, WrongShape
from artesian.learners.arrays import LinearRegression, Perceptron
from artesian.params import Layout, seal
from artesian.recipes import recipe
from artesian.simulator.experiment import Experiment
from artesian.simulator.run import run_experiment
from artesian.simulator.simulation import Simulation
from artesian.testing import InProcess, ToyFederation, ToyModel, ToyWorld

LINE = LinearRegression(1, bias=False)  # loss (w x - y)^2, gradient 2 x (w x - y)
PLAN = Plan(rate=0.25, epochs=2, batch=8)


def points(*y: float):
    """Samples at x = 1: the gradient at w is 2 (w - mean of y)."""
    return LINE.learner(np.ones((len(y), 1), np.float32), np.array(y, np.float32))


def begin(algorithm, start: float = 0.0, plan: Plan = PLAN, clients: str = "ab"):
    coordinator = Coordinator.start(algorithm, LINE.layout, [vector(start)], plan=plan)
    return coordinator, {reply.client: reply.task for c in clients for reply in coordinator.join(c, 1)}


def follow(task, learner, notebook=None, client: str = "a"):
    return recipe(task.recipe).fit(LINE.layout, client, task, learner, notebook or {})


# SCAFFOLD


def test_scaffold_takes_steps_of_plain_sgd_and_finds_its_mean_gradient() -> None:
    """From 0 with y = 4: gradients -8 and -4, so w is 0, 2, 3; (0 - 3) / (2 x 0.25) = -6, the mean of the two."""
    _, tasks = begin(SCAFFOLD(clients_per_round=2))
    fit = follow(tasks["a"], points(4.0))
    assert {k: v.tolist() for k, v in fit.upload.models.items()} == {"k0": [3], CONTROL: [-6]}
    assert fit.notebook["control"].tolist() == [-6]
    assert fit.trained[0][1].tolist() == [3]


def test_scaffold_adds_c_minus_c_i_to_every_gradient() -> None:
    """c = -2 and c_i = -6 add 4: gradients -8 + 4 and -6 + 4, w is 0, 1, 1.5; -3 - (-2) = -1 and c_i' = -7.

    That is the mean of the gradients without the correction: (-8 - 6) / 2.
    """
    _, tasks = begin(SCAFFOLD(clients_per_round=2))
    task = tasks["a"].__class__({"k0": vector(0), CONTROL: vector(-2)}, "correct", tasks["a"].settings)
    fit = follow(task, points(4.0), {"control": vector(-6)})
    assert {k: v.tolist() for k, v in fit.upload.models.items()} == {"k0": [1.5], CONTROL: [-1]}
    assert fit.notebook["control"].tolist() == [-7]


def test_scaffold_sums_the_rates_of_a_schedule_and_of_all_batches() -> None:
    """A linear schedule has the rates 0.25 and 0.125; two samples in batches of one are two steps each."""
    _, tasks = begin(SCAFFOLD(clients_per_round=2), plan=Plan(rate=0.25, epochs=2, batch=1, schedule="linear"))
    fit = follow(tasks["a"], points(4.0, 4.0))
    (moved,) = fit.upload.models["k0"].tolist()  # w is 0, 2, 3, 3.25, 3.4375
    assert moved == 3.4375
    assert fit.upload.models[CONTROL].tolist() == pytest.approx([-3.4375 / 0.75])


def test_scaffold_folds_the_mean_change_and_the_control_by_all_clients() -> None:
    """Changes 2 and 4 move x by 0.5 x 3; control changes -2 and -4 of four clients move c by -6 / 4."""
    coordinator, _ = begin(SCAFFOLD(clients_per_round=2, server_lr=0.5, quorum=4), 1.0, clients="abcd")
    open_now = [c for c in "abcd" if coordinator.recorded(c)]
    for client, number in zip(open_now, (2, 4), strict=True):
        coordinator.receive(Upload(client, 1, 5 * number, {"k0": vector(number), CONTROL: vector(-number)}))
    assert coordinator.state.clusters["k0"].params.tolist() == [2.5]
    assert coordinator.state.memory[CONTROL].tolist() == [-1.5]


def test_scaffold_leaves_out_who_has_no_samples() -> None:
    coordinator, tasks = begin(SCAFFOLD(clients_per_round=2), 1.0)
    empty = follow(tasks["a"], points())
    assert empty.upload.models[CONTROL].tolist() == [0]
    coordinator.receive(empty.upload)
    coordinator.receive(Upload("b", 1, 3, {"k0": vector(2), CONTROL: vector(-2)}))
    assert coordinator.state.clusters["k0"].params.tolist() == [3]
    assert coordinator.state.memory[CONTROL].tolist() == [-1]
    coordinator, tasks = begin(SCAFFOLD(clients_per_round=1), 1.0, clients="a")
    coordinator.receive(follow(tasks["a"], points()).upload)
    assert (coordinator.state.clusters["k0"].params.tolist(), coordinator.state.version) == ([1], 1)


def test_scaffold_is_fedavg_in_its_first_round_and_c_is_the_mean_of_all_c_i() -> None:
    ends, books = [], {}
    for algorithm in (SCAFFOLD(clients_per_round=2), FedAvg(clients_per_round=2)):
        coordinator, tasks = begin(algorithm)
        for client, y in (("a", 4.0), ("b", 8.0)):
            fit = follow(tasks[client], points(y), client=client)
            coordinator.receive(fit.upload)
            books[algorithm.name, client] = fit.notebook
        ends.append(coordinator.state.clusters["k0"].params.tolist())
        if algorithm.name == "scaffold":
            own = [books["scaffold", client]["control"][0] for client in "ab"]
            assert coordinator.state.memory[CONTROL][0] == np.mean(own) == -9
    assert ends[0] == ends[1] == [4.5]


@pytest.mark.parametrize(
    ("plan", "words"), [(Plan(optimizer="adam"), "has adam"), (Plan(momentum=0.9), "has momentum 0.9")]
)
def test_scaffold_refuses_other_than_plain_sgd(plan, words) -> None:
    _, tasks = begin(SCAFFOLD(clients_per_round=2), plan=plan)
    with pytest.raises(SettingError, match=f"plain SGD, and the training {words}"):
        follow(tasks["a"], points(4.0))
    with pytest.raises(SettingError, match=f"plain SGD, and the training {words}"):  # and before a run begins
        Experiment(ToyWorld(2), ToyModel(), SCAFFOLD(clients_per_round=2), training=plan).check_run(0)


def test_scaffold_corrects_weights_and_no_buffers() -> None:
    federation = ToyFederation(SCAFFOLD(clients_per_round=2), clients=2)
    federation.join_all()
    for _ in range(4):
        federation.step()
    control = federation.coordinator.state.memory[CONTROL]
    assert control[:3].any()
    assert not control[3:].any()


def test_a_learner_of_ones_own_that_counts_no_batches_is_taken_to_fill_them() -> None:
    class Plain:
        samples = 5

        def train(self, params, *, seed, plan, correction):
            return seal(params - np.float32(1))

    _, tasks = begin(SCAFFOLD(clients_per_round=2), plan=Plan(rate=0.5, batch=2))
    fit = follow(tasks["a"], Plain())
    assert fit.upload.models[CONTROL].tolist() == pytest.approx([1 / (3 * 0.5)])


# Ditto


def test_ditto_sends_the_shared_model_and_keeps_its_own_near_it() -> None:
    """From the shared 0 with y = 4: 0, 2, 3 is sent. From its own 1, pulled by 2 to 0: gradients -6 + 2, -4 + 4."""
    _, tasks = begin(Ditto(personal_pull=2.0, clients_per_round=2))
    fit = follow(tasks["a"], points(4.0), {"own": vector(1)})
    assert fit.upload.models["k0"].tolist() == [3]
    assert (fit.notebook["own"].tolist(), fit.trained[0][1].tolist()) == ([2], [2])
    assert recipe("twin").use(LINE.layout, tasks["a"], fit.notebook)[0][1].tolist() == [2]


def test_ditto_begins_its_own_at_the_shared_model() -> None:
    """From 0 with lambda 1: gradients -8, then -4 + 2; w is 0, 2, 2.5."""
    _, tasks = begin(Ditto(clients_per_round=2))
    assert recipe("twin").use(LINE.layout, tasks["a"], {})[0][1].tolist() == [0]
    assert follow(tasks["a"], points(4.0)).notebook["own"].tolist() == [2.5]


def test_ditto_without_a_pull_is_local_for_its_own_and_fedavg_for_all() -> None:
    _, tasks = begin(Ditto(personal_pull=0.0, clients_per_round=2))
    _, alone = begin(Local())
    learner, book = points(4.0, 6.0), {"own": vector(7)}
    assert np.array_equal(
        follow(tasks["a"], learner, book).notebook["own"], follow(alone["a"], learner, book).notebook["own"]
    )
    now = Written(Ditto(clients_per_round=2), [vector(0)], {"a": 1, "b": 2})
    now.answers({"a": [2], "b": [8]})
    assert now.models == {"k0": [6]}


def test_ditto_with_a_strong_pull_stays_at_the_shared_model() -> None:
    """A pull of 1000 at rate 0.001: each step goes all the way to the shared model, but for 0.001 of the gradient."""
    _, tasks = begin(Ditto(personal_pull=1000.0, clients_per_round=2), 5.0, Plan(rate=0.001, epochs=4))
    own = follow(tasks["a"], points(4.0), {"own": vector(50)}).notebook["own"]
    assert own.tolist() == pytest.approx([5.0], abs=0.01)


def test_ditto_changes_nothing_where_nobody_has_samples() -> None:
    now = Written(Ditto(clients_per_round=2), [vector(3)], {"a": 0, "b": 0})
    now.answers({"a": [2], "b": [8]})
    assert now.models == {"k0": [3]}


# FedRep

BOTH = Layout.of(
    {"body.w": np.zeros(2, np.float32), "head.w": np.zeros(1, np.float32), "head.b": np.zeros(1, np.float32)}
)


class AddsWhereFree:
    """Adds its epochs to every number that is not frozen."""

    samples = 3

    def __init__(self) -> None:
        self.asked: list[tuple[int, list[bool] | None]] = []

    def train(self, params, *, seed, plan, mask=None):
        self.asked.append((plan.epochs, None if mask is None else mask.tolist()))
        step = np.float32(plan.epochs)
        return seal(params + (step if mask is None else np.where(mask, step, 0).astype(np.float32)))


def rep(start=(1, 2, 3, 4), **settings):
    coordinator = Coordinator.start(
        FedRep(clients_per_round=1, **settings), BOTH, [vector(*start)], plan=Plan(epochs=2)
    )
    (reply,) = coordinator.join("a", 3)
    return coordinator, reply.task


def test_fedrep_trains_the_head_then_the_body_and_sends_the_body_alone() -> None:
    coordinator, task = rep(head_epochs=5)
    assert task.settings["head"] == ["head.w", "head.b"]
    learner = AddsWhereFree()
    fit = recipe("split").fit(BOTH, "a", task, learner, {})
    assert learner.asked == [(5, [False, False, True, True]), (2, [True, True, False, False])]
    assert fit.upload.models["k0"].tolist() == [3, 4, 3, 4]  # the head as it was given
    assert fit.notebook["head"].tolist() == [8, 9]
    assert fit.trained[0][1].tolist() == [3, 4, 8, 9]
    coordinator.receive(fit.upload)
    assert coordinator.state.clusters["k0"].params.tolist() == [3, 4, 3, 4]


def test_fedrep_goes_on_with_its_own_head_and_newcomers_with_the_first() -> None:
    _, task = rep()
    book = {"head": vector(30, 40)}
    assert recipe("split").use(BOTH, task, book)[0][1].tolist() == [1, 2, 30, 40]
    assert recipe("split").use(BOTH, task, {})[0][1].tolist() == [1, 2, 3, 4]
    fit = recipe("split").fit(BOTH, "a", task, AddsWhereFree(), book)
    assert (fit.upload.models["k0"].tolist(), fit.notebook["head"].tolist()) == ([3, 4, 3, 4], [32, 42])


def test_fedper_trains_both_together() -> None:
    _, task = rep(together=True)
    learner = AddsWhereFree()
    fit = recipe("split").fit(BOTH, "a", task, learner, {})
    assert learner.asked == [(2, None)]
    assert (fit.upload.models["k0"].tolist(), fit.notebook["head"].tolist()) == ([3, 4, 3, 4], [5, 6])


def test_fedreps_head_is_the_last_layer_or_what_is_named() -> None:
    model = Perceptron(3, 2, hidden=4)
    assert FedRep()._head(model.layout) == ["output.weight", "output.bias"]
    assert FedRep(head=("hidden.*",))._head(model.layout) == ["hidden.weight", "hidden.bias"]
    assert FedRep()._head(layout(2)) == ["w"]  # a model of one layer has no body
    with pytest.raises(SettingError, match=r"no entry 'fc\.\*' for the head"):
        Coordinator.start(FedRep(head=("fc.*",)), model.layout, [model.start(0)])


def test_a_head_of_another_size_is_refused() -> None:
    _, task = rep()
    with pytest.raises(WrongShape, match="keeps a head of 1 numbers, and the task's has 2"):
        recipe("split").use(BOTH, task, {"head": vector(1)})


def test_fedrep_averages_by_samples() -> None:
    now = Written(FedRep(clients_per_round=2), [vector(0)], {"a": 1, "b": 2})
    now.answers({"a": [2], "b": [8]})
    assert now.models == {"k0": [6]}
    now = Written(FedRep(clients_per_round=2), [vector(3)], {"a": 0, "b": 0})
    now.answers({"a": [2], "b": [8]})
    assert now.models == {"k0": [3]}


def test_no_number_of_a_head_ever_leaves() -> None:
    model = Perceptron(3, 2, hidden=4)
    federation = ToyFederation(FedRep(clients_per_round=2), clients=3, model=model)
    federation.join_all()
    head = model.layout.view(federation.coordinator.state.clusters["k0"].params)["output.weight"].copy()
    for _ in range(8):
        upload = federation.step()
        assert np.array_equal(model.layout.view(upload.params)["output.weight"], head)
    assert not np.array_equal(model.layout.view(upload.params)["hidden.weight"], 0)


# all three


ALL = [SCAFFOLD(clients_per_round=2), Ditto(clients_per_round=2), FedRep(clients_per_round=2)]


@pytest.mark.heavy
@pytest.mark.parametrize("algorithm", ALL, ids=lambda a: a.name)
def test_they_run_over_http_and_over_workers_to_the_same_bits(algorithm) -> None:
    experiment = Experiment(ToyWorld(4), ToyModel(), algorithm, uploads=10).planned()
    runs = [
        Simulation(experiment, 1),
        Simulation(experiment, 1, transport=InProcess),
        Simulation(experiment, 1, workers=1),
    ]
    tables = [run.run().metrics["after"].tolist() for run in runs]
    runs[1].transport.close()
    assert tables[0] == tables[1] == tables[2]
    assert len({run.coordinator.digest() for run in runs}) == 1


@pytest.mark.parametrize("algorithm", ALL, ids=lambda a: a.name)
def test_they_resume_with_their_notebooks(algorithm, tmp_path) -> None:
    experiment = Experiment(ToyWorld(4), ToyModel(), algorithm, uploads=12, snapshot_every=4)

    def stop(progress) -> None:
        if progress.uploads == 7:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_experiment(experiment, seed=1, out=tmp_path / "run", progress=stop)
    resumed = run_experiment(experiment, seed=1, out=tmp_path / "run", resume=True)
    whole = run_experiment(experiment, seed=1)
    assert resumed.metrics["after"].tolist() == whole.metrics["after"].tolist()
    assert resumed.params["k0"].tobytes() == whole.params["k0"].tobytes()
