"""Learners in torch: steps against numbers worked out by hand and against numpy, bits, layouts, errors."""

from __future__ import annotations

import copy
import functools
import subprocess
import sys
import threading
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from artesian.core import Plan
from artesian.errors import BadData, LayoutError, SettingError, StartedAfresh, WrongShape
from artesian.learners.arrays import LinearRegression, SoftmaxRegression
from artesian.params import seal
from artesian.storage.codec import decode, encode

torch = pytest.importorskip("torch", reason="torch is not installed")
from torch import nn  # noqa: E402

from artesian.learners import batches as sources  # noqa: E402
from artesian.learners import torch as learning  # noqa: E402
from artesian.learners.torch import TorchLearner, TorchModel, one_thread  # noqa: E402


@pytest.fixture(autouse=True)
def _one_thread():
    with one_thread():
        yield


def line() -> nn.Module:
    return nn.Linear(1, 1, bias=False)


def noisy() -> nn.Module:
    """Everything a vector must carry: weights, statistics, a counter; and dropout."""
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3))


class Net(nn.Module):
    """A body, a head and a tied output."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(4, 4)
        self.again = nn.Linear(4, 4)
        self.again.weight = self.body.weight
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        return self.head(torch.relu(self.again(self.body(x))))


def vector(*values: float) -> np.ndarray:
    return seal(np.array(values, np.float32))


def points(samples: int = 40, seed: int = 3) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(samples, 4)).astype(np.float32), rng.integers(0, 3, samples)


LINE = TorchModel(line, task="regression", device="cpu")
NOISY = TorchModel(noisy, device="cpu")


# steps of a model with one parameter: loss (x w - y)^2, gradient 2 x (x w - y)


def trained(start: float, x: Any, y: Any, plan: Plan, **options: Any) -> float:
    """One parameter, one batch: every epoch is one step."""
    learner = LINE.learner(np.atleast_1d(np.float32(x))[:, None], np.atleast_1d(np.float32(y)))
    (found,) = learner.train(vector(start), seed=0, plan=plan, **options).tolist()
    return float(found)


def test_sgd_momentum_and_decay_by_hand() -> None:
    # 1 -> gradient 2*2*(2-6) = -16 -> 2.6 -> gradient 4*(5.2-6) = -3.2 -> 2.92
    assert trained(1, 2, 6, Plan(rate=0.1)) == pytest.approx(2.6, rel=1e-6)
    assert trained(1, 2, 6, Plan(rate=0.1, epochs=2)) == pytest.approx(2.92, rel=1e-6)
    # velocity -16 -> 2.6; velocity 0.5*-16 - 3.2 = -11.2 -> 3.72
    assert trained(1, 2, 6, Plan(rate=0.1, epochs=2, momentum=0.5)) == pytest.approx(3.72, rel=1e-6)
    # gradient -16 + 0.5*1 = -15.5 -> 2.55
    assert trained(1, 2, 6, Plan(rate=0.1, decay=0.5)) == pytest.approx(2.55, rel=1e-6)


def test_pulls_by_hand() -> None:
    # gradient -16 + 2*(1 - 4) = -22 -> 3.2; a second pull of 1 towards 0 adds 1 -> 3.1
    assert trained(1, 2, 6, Plan(rate=0.1), pulls=[(2.0, vector(4))]) == pytest.approx(3.2, rel=1e-6)
    both = [(2.0, vector(4)), (1.0, vector(0))]
    assert trained(1, 2, 6, Plan(rate=0.1), pulls=both) == pytest.approx(3.1, rel=1e-6)
    # 1 -> 2.6 (anchor is the start: no pull yet) -> gradient -3.2 + 2*(2.6-1) = 0 -> 2.6
    pulled = trained(1, 2, 6, Plan(rate=0.1, epochs=2), pulls=[(2.0, vector(1))])
    assert pulled == pytest.approx(2.6, rel=1e-6)


def test_a_correction_by_hand() -> None:
    # gradient -16 + 6 = -10 -> 2; then 4 (2 x 2 - 6) + 6 = -2 -> 2.2
    assert trained(1, 2, 6, Plan(rate=0.1), correction=vector(6)) == pytest.approx(2.0, rel=1e-6)
    assert trained(1, 2, 6, Plan(rate=0.1, epochs=2), correction=vector(6)) == pytest.approx(2.2, rel=1e-6)


def test_a_correction_needs_the_plans_own_sgd() -> None:
    learner = NOISY.learner(*points())
    learner.optimizer = torch.optim.Adam
    start = NOISY.start(0)
    with pytest.raises(SettingError, match=r"plain SGD.*Leave out optimizer="):
        learner.train(start, seed=0, plan=Plan(), correction=start)


def test_an_epoch_has_as_many_steps_as_batches() -> None:
    x, y = points()
    plain = TorchModel(functools.partial(nn.Linear, x.shape[1], 2), device="cpu").learner(x[:7], y[:7])
    assert [plain.batches(size) for size in (1, 3, 7, 8)] == [7, 3, 1, 1]
    assert NOISY.learner(x[:7], y[:7]).batches(3) == 2  # BatchNorm: the last sample joins the batch before it
    with pytest.raises(BadData, match="A count of steps"):
        TorchLearner.over(Stream(x, y), NOISY, samples=40).batches(3)


def test_sample_weights_by_hand() -> None:
    # at 0: gradients -2, -4, -6; mean -4; with weights 1, 0, 2: (-2 - 12)/3
    assert trained(0, [1, 2, 3], [1, 1, 1], Plan(rate=0.1)) == pytest.approx(0.4)
    weights = np.array([1.0, 0.0, 2.0])
    assert trained(0, [1, 2, 3], [1, 1, 1], Plan(rate=0.1), weights=weights) == pytest.approx(1.4 / 3)
    # batches of two, all rows alike: 0 -> 0.2 -> 0.2 + 0.1*2*0.8 = 0.36, the last mean over its own row
    assert trained(0, [1, 1, 1], [1, 1, 1], Plan(rate=0.1, batch=2)) == pytest.approx(0.36)


def test_a_mask_by_hand() -> None:
    model = TorchModel(functools.partial(nn.Linear, 2, 1), task="regression", device="cpu")
    learner = model.learner(np.array([[1, 2]], np.float32), np.array([3], np.float32))
    # at 0: error -3, gradients -6, -12, and -6 of the bias
    free = learner.train(vector(0, 0, 0), seed=0, plan=Plan(rate=0.1))
    np.testing.assert_allclose(free, [0.6, 1.2, 0.6], rtol=1e-6)
    held = learner.train(vector(0, 0, 0), seed=0, plan=Plan(rate=0.1), mask=np.array([True, False, True]))
    np.testing.assert_allclose(held, [0.6, 0, 0.6], rtol=1e-6)


@pytest.mark.parametrize("steps", [1, 2, 10])
def test_adam_by_hand(steps: int) -> None:
    w, m, v = 1.0, 0.0, 0.0
    for t in range(1, steps + 1):  # Kingma & Ba, algorithm 1, with decay and a pull in the gradient
        g = 4 * (2 * w - 6) + 0.5 * w + 2 * (w - 4)
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        w -= 0.1 * (m / (1 - 0.9**t)) / ((v / (1 - 0.999**t)) ** 0.5 + 1e-8)
    plan = Plan("adam", 0.1, steps, decay=0.5)
    assert trained(1, 2, 6, plan, pulls=[(2.0, vector(4))]) == pytest.approx(w, rel=1e-5)
    if steps == 1:
        assert w == pytest.approx(1.1)


@pytest.mark.heavy
def test_a_torch_without_the_fused_kernel_steps_by_its_public_optimiser(monkeypatch) -> None:
    learner, start, plan = NOISY.learner(*points()), NOISY.start(0), Plan("adam", 0.05, epochs=3, batch=8, decay=0.1)
    fused = learner.train(start, seed=1, plan=plan)
    monkeypatch.delattr(torch, "_fused_adam_")
    public = learner.train(start, seed=1, plan=plan)
    assert public.tobytes() == learner.train(start, seed=1, plan=plan).tobytes()  # no state of another training
    assert np.allclose(public, fused, rtol=1e-3, atol=1e-4)
    assert not np.allclose(public, start, atol=1e-2)


@pytest.mark.parametrize("plan", [Plan(momentum=0.9, decay=0.1, epochs=3), Plan("adam", epochs=3, decay=0.1)])
def test_a_mask_freezes_what_is_false(plan: Plan) -> None:
    learner, start = NOISY.learner(*points()), NOISY.start(1)
    mask = np.arange(start.size) % 2 == 0
    mask[NOISY.layout.floats :] = False
    result = learner.train(start, seed=0, plan=plan, pulls=[(0.5, NOISY.start(2))], mask=mask)
    assert result[~mask].tobytes() == start[~mask].tobytes()
    moved = result[: NOISY.layout.trainable] != start[: NOISY.layout.trainable]
    assert moved[mask[: NOISY.layout.trainable]].mean() > 0.9


# against numpy


def dense() -> nn.Module:
    return nn.Linear(4, 3)


@pytest.mark.parametrize("plan", [Plan(rate=0.3, batch=8, epochs=2, momentum=0.5, decay=0.01), Plan("adam", 0.05)])
def test_it_agrees_with_the_numpy_learner(plan: Plan) -> None:
    x, y = points()
    ours, theirs = TorchModel(dense, device="cpu"), SoftmaxRegression(4, 3)
    turned = lambda params: np.concatenate([params[:12].reshape(4, 3).T.reshape(-1), params[12:]])  # noqa: E731
    start, anchor = theirs.start(1), theirs.start(2)
    weights = np.random.default_rng(0).uniform(0, 2, 40)
    mask = np.arange(15) % 4 != 0
    options = {"seed": 5, "plan": plan, "weights": weights}
    found = ours.learner(x, y).train(turned(start), pulls=[(0.1, turned(anchor))], mask=turned(mask), **options)
    expected = theirs.learner(x, y).train(start, pulls=[(0.1, anchor)], mask=mask, **options)
    np.testing.assert_allclose(found, turned(expected), rtol=1e-4, atol=1e-6)
    mine, other = ours.learner(x, y), theirs.learner(x, y)
    np.testing.assert_allclose(mine.losses(found), other.losses(expected), rtol=1e-4)
    pair = [(0.3, expected), (0.7, start)]
    assert mine.score([(w, turned(p)) for w, p in pair]) == other.score(pair)


@pytest.mark.heavy
@pytest.mark.parametrize("plan", [Plan(rate=0.1, momentum=0.5, decay=0.1), Plan("adam", 0.1, decay=0.1), Plan()])
@pytest.mark.parametrize("fused", [True, False])
def test_two_trainings_of_one_step_with_a_kept_state_are_one_of_two(plan: Plan, fused: bool, monkeypatch) -> None:
    if not fused:
        monkeypatch.delattr(torch, "_fused_adam_")
    learner = LINE.learner(np.array([[2.0]], np.float32), np.array([6.0], np.float32))
    numpy = LinearRegression(1, bias=False).learner(np.array([[2.0]], np.float32), np.array([6.0], np.float32))
    once, state = learner.train_on(vector(1), {}, seed=0, plan=plan)
    twice, after = learner.train_on(once, state, seed=0, plan=plan)
    assert twice.tobytes() == learner.train(vector(1), seed=0, plan=replace(plan, epochs=2)).tobytes()
    expected, theirs = numpy.train_on(*numpy.train_on(vector(1), {}, seed=0, plan=plan), seed=0, plan=plan)
    np.testing.assert_allclose(twice, expected, rtol=1e-6)
    assert after.keys() == theirs.keys()
    for name, value in theirs.items():
        np.testing.assert_allclose(after[name], value, rtol=1e-5)


OWN_OPTIMISERS = {
    "adamw": functools.partial(torch.optim.AdamW, lr=0.05),
    "sgd": functools.partial(torch.optim.SGD, lr=0.05, momentum=0.9),
    "plain": functools.partial(torch.optim.SGD, lr=0.05),
    "rmsprop": functools.partial(torch.optim.RMSprop, lr=0.05),
}


@pytest.mark.heavy
@pytest.mark.parametrize("name", OWN_OPTIMISERS)
def test_an_optimiser_of_the_clients_own_goes_on_too(name: str) -> None:
    learner = LINE.learner(np.array([[2.0]], np.float32), np.array([6.0], np.float32))
    learner.optimizer = OWN_OPTIMISERS[name]
    once, state = learner.train_on(vector(1), {}, seed=0, plan=Plan())
    stored = decode("notebook", encode("notebook", state), dict)
    twice, _ = learner.train_on(once, stored, seed=0, plan=Plan())
    assert twice.tobytes() == learner.train(vector(1), seed=0, plan=Plan(epochs=2)).tobytes()


@pytest.mark.heavy
def test_a_state_that_does_not_fit_is_not_used() -> None:
    learner = NOISY.learner(*points())
    learner.optimizer = OWN_OPTIMISERS["adamw"]
    wanted, state = learner.train_on(NOISY.start(0), {}, seed=0, plan=Plan())
    shorter = {name: value[:-1] if np.ndim(value) else value for name, value in state.items()}
    other = {**state, "optimizer": "torch.optim.adam:Adam"}
    for kept in (shorter, other, {"velocity": np.zeros(3, np.float32)}):
        with pytest.warns(StartedAfresh, match="the optimiser starts afresh"):
            found, _ = learner.train_on(NOISY.start(0), kept, seed=0, plan=Plan())
        assert found.tobytes() == wanted.tobytes()


class Hoarder(torch.optim.SGD):
    """Keeps a list, which is no array."""

    def step(self, closure=None):
        super().step(closure)
        self.state[self.param_groups[0]["params"][0]]["seen"] = []


@pytest.mark.heavy
def test_a_state_that_is_not_made_of_arrays_and_numbers_cannot_be_kept() -> None:
    learner = NOISY.learner(*points())
    learner.optimizer = Hoarder
    assert learner.train(NOISY.start(0), seed=0, plan=Plan()) is not None  # nothing is kept of it
    with pytest.raises(SettingError, match=r"The state of this optimiser cannot be kept: its seen is a list\."):
        learner.train_on(NOISY.start(0), {}, seed=0, plan=Plan())
    learner.optimizer = lambda params: params
    with pytest.raises(SettingError, match="not a torch optimiser"):
        learner.train(NOISY.start(0), seed=0, plan=Plan())


def test_all_samples_are_looked_at_whatever_the_batches(monkeypatch) -> None:
    """In many batches with a small rest, or in one: every sample once, in its own place."""
    learner, start = NOISY.learner(*points(150)), NOISY.start(0)
    one, score = learner.losses(start), learner.score([(1.0, start)])
    monkeypatch.setattr(sources, "NUMBERS", 1)  # the smallest batches there are, of 64
    assert np.allclose(learner.losses(start), one, rtol=1e-5)
    assert learner.score([(1.0, start)]) == score


def test_regression_scores_minus_the_squared_error_of_the_mean() -> None:
    learner = LINE.learner(np.array([[1.0]], np.float32), np.array([3.0], np.float32))
    assert learner.losses(vector(2)).tolist() == [1.0]
    assert learner.score([(0.25, vector(2)), (0.75, vector(4))]) == pytest.approx(-0.25)
    assert learner.outputs([(0.25, vector(2)), (0.75, vector(4))]).ravel().tolist() == [3.5]


def test_a_classifier_shows_the_mean_of_probabilities() -> None:
    learner, models = NOISY.learner(*points(150)), [(0.5, NOISY.start(0)), (0.5, NOISY.start(1))]
    outputs = learner.outputs(models)
    assert np.allclose(outputs.sum(axis=1), 1, atol=1e-6)
    assert np.mean(outputs.argmax(axis=1) == points(150)[1]) == learner.score(models)
    (one,), (two,) = ([learner.outputs([(1.0, params)])] for _, params in models)
    assert np.allclose(outputs, (one + two) / 2, atol=1e-6)


def test_no_data_is_no_score_and_no_training() -> None:
    learner, start = NOISY.learner(np.zeros((0, 4), np.float32), np.zeros(0, np.int64)), NOISY.start(0)
    assert (learner.samples, learner.score([(1.0, start)]), learner.losses(start).shape) == (0, 0.0, (0,))
    assert learner.train(start, seed=0, plan=Plan()).tobytes() == start.tobytes()


# bits


def test_the_same_seed_gives_the_same_bits_and_torch_keeps_its_own_generator() -> None:
    learner, plan = NOISY.learner(*points()), Plan(epochs=2, batch=8)
    before = torch.get_rng_state()
    one, again, other = (learner.train(NOISY.start(0), seed=seed, plan=plan) for seed in (5, 5, 6))
    assert torch.equal(before, torch.get_rng_state())
    assert one.tobytes() == again.tobytes() != other.tobytes()
    assert not one.flags.writeable and one.dtype == np.float32
    assert NOISY.start(1).tobytes() == NOISY.start(1).tobytes() != NOISY.start(2).tobytes()


def test_dropout_follows_the_seed_alone() -> None:
    """One batch of all samples: the order of the sum is the only other thing a seed changes."""
    learner, plan = NOISY.learner(*points()), Plan(batch=40)
    one, two = (learner.train(NOISY.start(0), seed=seed, plan=plan) for seed in (5, 6))
    assert np.abs(one - two)[: NOISY.layout.trainable].max() > 1e-3
    torch.manual_seed(1234)
    assert learner.train(NOISY.start(0), seed=5, plan=plan).tobytes() == one.tobytes()
    assert not NOISY.pool.quiet
    calm = TorchModel(dense, device="cpu")
    calm.learner(*points()).train(calm.start(0), seed=0, plan=plan)
    assert calm.pool.quiet


@pytest.mark.heavy
@pytest.mark.parametrize("make", [noisy, dense])
def test_two_threads_give_the_same_bits_as_one_after_the_other(make) -> None:
    model, plan = TorchModel(make, device="cpu"), Plan("adam", 0.01, epochs=15, batch=4)
    learners = [model.learner(*points(seed=i)) for i in range(4)]
    start = model.start(0)
    wanted = [learner.train(start, seed=i, plan=plan).tobytes() for i, learner in enumerate(learners)]
    found: dict[int, bytes] = {}

    def work(i: int) -> None:
        found[i] = learners[i].train(start, seed=i, plan=plan).tobytes()

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[i] for i in range(4)] == wanted


def test_nothing_of_another_training_remains() -> None:
    model, plan = TorchModel(noisy, device="cpu"), Plan(epochs=3, momentum=0.9)
    start = model.start(0)
    alone = TorchModel(noisy, device="cpu").learner(*points(seed=1)).train(start, seed=1, plan=plan)
    model.learner(*points(seed=2)).train(model.start(9), seed=2, plan=plan)
    with pytest.raises(BadData):
        model.learner(np.zeros((4, 9), np.float32), np.zeros(4, np.int64)).train(start, seed=0, plan=plan)
    assert model.learner(*points(seed=1)).train(start, seed=1, plan=plan).tobytes() == alone.tobytes()
    assert len(model.pool._free) == 1


def test_it_trains_inside_a_callers_inference_mode() -> None:
    model = TorchModel(noisy, device="cpu")
    learner, start = model.learner(*points()), model.start(0)
    with torch.inference_mode():
        learner.losses(start)
        inside = learner.train(start, seed=0, plan=Plan())
    assert learner.train(start, seed=0, plan=Plan()).tobytes() == inside.tobytes()


def test_read_only_and_strided_data_give_the_same_bits() -> None:
    x, y = points()
    wide = np.zeros((40, 9), np.float32)
    wide[:, 1:5] = x
    start = NOISY.start(0)
    wanted = NOISY.learner(x, y).losses(start).tobytes()
    assert NOISY.learner(seal(x.copy()), seal(y.copy())).losses(start).tobytes() == wanted
    assert NOISY.learner(wide[:, 1:5], y.astype(np.uint8)).losses(start).tobytes() == wanted
    assert NOISY.learner(x[::-1][::-1], y.astype(np.int32)).losses(start).tobytes() == wanted


# layouts


def test_batchnorm_statistics_and_counters_travel_exactly() -> None:
    start = NOISY.start(0)
    assert [e.name for e in NOISY.layout.entries][-3:] == ["1.running_mean", "1.running_var", "1.num_batches_tracked"]
    assert (NOISY.layout.trainable, NOISY.layout.floats, NOISY.layout.size) == (83, 99, 101)
    arrays = NOISY.layout.unpack(start)
    arrays["1.num_batches_tracked"][...] = 2**53 + 1
    result = NOISY.learner(*points()).train(NOISY.layout.pack(arrays), seed=0, plan=Plan(batch=8))
    told = NOISY.layout.unpack(result)
    assert told["1.num_batches_tracked"] == 2**53 + 6
    assert (told["1.running_mean"] != 0).all()


def test_the_statistics_of_one_batch_by_hand() -> None:
    model = TorchModel(lambda: nn.Sequential(nn.BatchNorm1d(1), nn.Linear(1, 1)), task="regression", device="cpu")
    learner = model.learner(np.array([[1], [3]], np.float32), np.array([0, 0], np.float32))
    told = model.layout.unpack(learner.train(model.start(0), seed=0, plan=Plan()))
    assert told["0.running_mean"] == pytest.approx(0.2)  # 0.9*0 + 0.1*2
    assert told["0.running_var"] == pytest.approx(1.1)  # 0.9*1 + 0.1*2, the unbiased variance


def test_a_last_sample_alone_joins_the_batch_before_it() -> None:
    start = NOISY.start(0)
    result = NOISY.learner(*points(9)).train(start, seed=0, plan=Plan(batch=4))
    assert NOISY.layout.unpack(result)["1.num_batches_tracked"] == 2  # 4 and 5
    with pytest.raises(BadData, match="Expected more than 1 value per channel"):
        NOISY.learner(*points(1)).train(start, seed=0, plan=Plan())


def test_a_vector_becomes_the_module_and_back() -> None:
    start = NOISY.start(3)
    with NOISY.pool.borrow() as instance:
        instance.load(start)
        assert instance.store().tobytes() == start.tobytes()
        state = instance.module.state_dict()
    for name, array in NOISY.layout.unpack(start).items():
        assert np.array_equal(state[name].numpy(), array)


def test_tied_weights_appear_once_and_learn_from_both_places() -> None:
    model = TorchModel(Net, device="cpu")
    assert model.layout.ties == {"again.weight": "body.weight"}
    assert model.layout.trainable == 16 + 4 + 4 + 15
    x, y = points()
    start = model.start(0)
    result = model.layout.unpack(model.learner(x, y).train(start, seed=0, plan=Plan(batch=40)))
    plain = Net()
    plain.load_state_dict({k: torch.tensor(v) for k, v in model.layout.unpack(start).items()})
    nn.functional.cross_entropy(plain(torch.tensor(x)), torch.tensor(y)).backward()
    expected = (plain.body.weight - 0.1 * plain.body.weight.grad).detach().numpy()
    np.testing.assert_allclose(result["body.weight"], expected, rtol=1e-4, atol=1e-6)


def half_frozen() -> nn.Module:
    net = Net()
    net.head.bias.requires_grad_(False)
    return net


def test_frozen_parameters_stay_at_home_and_do_not_move() -> None:
    model = TorchModel(half_frozen, device="cpu", frozen=["again.*", "body.weight"])
    assert [e.name for e in model.layout.entries] == ["body.bias", "head.weight"]
    assert set(model.layout.home) == {"body.weight", "again.weight", "again.bias", "head.bias"}
    learner, start = model.learner(*points()), model.start(0)
    with model.pool.borrow() as instance:
        before = {k: v.clone() for k, v in instance.module.state_dict().items()}
    learner.train(start, seed=0, plan=Plan(decay=0.1, momentum=0.5))
    with model.pool.borrow() as instance:
        after = instance.module.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in model.layout.home)
    with pytest.raises(LayoutError, match="No entry of the model matches 'boddy'"):
        _ = TorchModel(Net, frozen=["boddy"]).layout


def test_an_unshared_head_learns_and_stays_with_its_learner() -> None:
    model = TorchModel(Net, device="cpu", share=lambda name: not name.startswith("head"))
    assert set(model.layout.home) == {"head.weight", "head.bias"}
    one, other = model.learner(*points(seed=1)), model.learner(*points(seed=2))
    start = model.start(0)
    fresh = one.losses(start)
    assert other.losses(start).shape == fresh.shape
    one.train(start, seed=0, plan=Plan())
    assert set(one.home) == {"head.weight", "head.bias"} and other.home is None
    assert one.losses(start).mean() < fresh.mean()  # the same shared part, its own head
    assert model.learner(*points(seed=1)).losses(start).tobytes() == fresh.tobytes()
    again = TorchLearner(model, one.source, one.home)
    assert again.losses(start).tobytes() == one.losses(start).tobytes()


def test_unshared_batchnorm_keeps_its_statistics_at_home() -> None:
    model = TorchModel(noisy, device="cpu", share=["0.*", "4.*"])
    learner, start = model.learner(*points()), model.start(0)
    learner.train(start, seed=0, plan=Plan(batch=8))
    assert set(learner.home) == {
        "1.weight", "1.bias", "1.running_mean", "1.running_var", "1.num_batches_tracked"
    }  # fmt: skip
    assert learner.home["1.num_batches_tracked"] == 5


class Wrapper(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.module = noisy()

    def forward(self, x):
        return self.module(x)


def test_the_same_network_twice_is_refused_and_a_copy_of_it_is_not() -> None:
    made = noisy()
    with pytest.raises(SettingError, match="make returned the same network again"):
        [TorchModel(lambda: made, device="cpu").start(seed) for seed in (0, 1)]
    copies = TorchModel(functools.partial(copy.deepcopy, made), device="cpu")
    assert copies.start(0).tobytes() == copies.start(1).tobytes()


def test_a_wrappers_prefix_is_understood() -> None:
    model = TorchModel(Wrapper, device="cpu")
    assert model.layout == NOISY.layout
    start = model.start(0)
    assert start.tobytes() == NOISY.start(0).tobytes()
    trained = [m.learner(*points()).train(start, seed=0, plan=Plan()).tobytes() for m in (model, NOISY)]
    assert trained[0] == trained[1]


def test_a_model_travels_to_workers_without_its_instances() -> None:
    model = TorchModel(noisy, device="cpu")
    model.learner(*points()).losses(model.start(0))
    state = model.__getstate__()
    assert set(state) == {"make", "loss", "task", "device", "share", "frozen", "shape", "scale", "precision", "compile"}
    with pytest.raises(SettingError, match="Workers cannot find"):
        TorchModel(lambda: noisy()).__getstate__()


def test_a_model_describes_itself_in_json_values() -> None:
    model = TorchModel(functools.partial(nn.Linear, 4, out_features=3), loss=nn.CrossEntropyLoss(reduction="none"))
    told = model.describe()
    assert told["name"] == "artesian.learners.torch:TorchModel"
    assert told["make"] == {"call": "torch.nn.modules.linear:Linear", "args": [4], "out_features": 3}
    assert (told["loss"], told["share"], told["layout"]) == ("CrossEntropyLoss()", ["*"], model.layout.digest)


# losses


def absolute(output, y):
    return (output[:, 0] - y).abs()


def detached(output, y):
    return (output[:, 0] - y).detach()


def test_a_loss_of_ones_own() -> None:
    model = TorchModel(line, loss=absolute, task="regression", device="cpu")
    learner = model.learner(np.array([[2.0]], np.float32), np.array([6.0], np.float32))
    assert learner.losses(vector(1)).tolist() == [4.0]
    assert learner.train(vector(1), seed=0, plan=Plan(rate=0.1)).tolist() == [pytest.approx(1.2)]  # gradient -2
    several = TorchModel(line, loss=nn.MSELoss(reduction="none"), task="regression", device="cpu")
    pair = several.learner(np.array([[2.0]], np.float32), np.array([[6.0]], np.float32))
    assert pair.losses(vector(1)).tolist() == [16.0]  # of shape (1, 1): the mean over what is behind the samples


def test_a_loss_that_averages_is_refused() -> None:
    with pytest.raises(SettingError, match=r"one number per sample, not CrossEntropyLoss with reduction='mean'"):
        TorchModel(dense, loss=nn.CrossEntropyLoss())
    x, y = points()
    mean = TorchModel(dense, loss=nn.functional.cross_entropy, device="cpu")
    with pytest.raises(SettingError, match=r"not shape \(\) for 40 samples"):
        mean.learner(x, y).losses(mean.start(0))
    stiff = TorchModel(dense, loss=detached, device="cpu")
    with pytest.raises(SettingError, match="no gradient passes through"):
        stiff.learner(x, y).train(stiff.start(0), seed=0, plan=Plan())


# data


def seen() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 2, 2), nn.Flatten(), nn.Linear(2 * 3 * 3, 3))


def test_uint8_images_are_scaled_and_shaped() -> None:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (20, 3 * 4 * 4)).astype(np.uint8)
    y = rng.integers(0, 3, 20)
    model = TorchModel(seen, device="cpu", shape=(3, 4, 4))
    start = model.start(0)
    plain = (images / 255).astype(np.float32)
    wanted = model.learner(plain, y).losses(start)
    np.testing.assert_allclose(model.learner(images, y).losses(start), wanted, rtol=1e-5)
    doubled = TorchModel(seen, device="cpu", shape=(3, 4, 4), scale=2.0)
    np.testing.assert_allclose(doubled.learner(plain / 2, y).losses(start), wanted, rtol=1e-5)
    shaped = TorchModel(seen, device="cpu").learner(plain.reshape(20, 3, 4, 4), y)
    assert shaped.losses(start).tobytes() == wanted.tobytes()


class Pairs(torch.utils.data.Dataset):
    def __init__(self, x, y) -> None:
        self.x, self.y, self.reads = x, y, 0

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, i):
        self.reads += 1
        return torch.tensor(self.x[i]), int(self.y[i])


class Stream(torch.utils.data.IterableDataset):
    def __init__(self, x, y) -> None:
        self.x, self.y = x, y

    def __iter__(self):
        return iter([(torch.tensor(x), int(y)) for x, y in zip(self.x, self.y, strict=True)])


@pytest.mark.parametrize("room", [1 << 20, 0])
def test_a_loader_is_read_once_where_it_fits_and_in_every_epoch_where_not(room: int) -> None:
    x, y = points()
    pairs = Pairs(x, y)
    learner = TorchLearner.over(torch.utils.data.DataLoader(pairs, batch_size=4, shuffle=True), NOISY, room=room)
    start, plan, weights = NOISY.start(0), Plan(epochs=2, batch=8), np.linspace(0, 2, 40)
    whole = NOISY.learner(x, y)
    assert learner.samples == 40
    before = torch.get_rng_state()
    assert learner.losses(start).tobytes() == whole.losses(start).tobytes()
    options = {"seed": 1, "plan": plan, "weights": weights}
    assert learner.train(start, **options).tobytes() == whole.train(start, **options).tobytes()
    assert learner.score([(1.0, start)]) == whole.score([(1.0, start)])
    assert torch.equal(before, torch.get_rng_state())
    assert (pairs.reads <= 42) == bool(room)


def test_a_dataset_of_float64_and_numpy_labels_works() -> None:
    x, y = points()
    data = torch.utils.data.TensorDataset(torch.tensor(x, dtype=torch.float64), torch.tensor(y, dtype=torch.int32))
    start = NOISY.start(0)
    assert TorchLearner.over(data, NOISY).losses(start).tobytes() == NOISY.learner(x, y).losses(start).tobytes()


def test_a_stream_trains_but_has_no_places() -> None:
    stream, start = Stream(*points()), NOISY.start(0)
    with pytest.raises(BadData, match=r"without a length\. Pass samples="):
        TorchLearner.over(stream, NOISY)
    learner = TorchLearner.over(torch.utils.data.DataLoader(stream, batch_size=8), NOISY, samples=40)
    result = learner.train(start, seed=0, plan=Plan())
    assert NOISY.layout.unpack(result)["1.num_batches_tracked"] == 5
    assert learner.train(start, seed=0, plan=Plan()).tobytes() == result.tobytes()
    with pytest.raises(BadData, match="Losses does not work with an IterableDataset"):
        learner.losses(start)
    with pytest.raises(BadData, match="A score does not work with an IterableDataset"):
        learner.score([(1.0, start)])
    with pytest.raises(BadData, match="A weight per sample does not work with an IterableDataset"):
        learner.train(start, seed=0, plan=Plan(), weights=np.ones(40))


def test_a_sampler_that_chooses_is_refused() -> None:
    x, y = points()
    sampler = torch.utils.data.WeightedRandomSampler([1.0] * 40, 10)
    loader = torch.utils.data.DataLoader(Pairs(x, y), sampler=sampler)
    with pytest.raises(BadData, match="its own order of samples: WeightedRandomSampler"):
        TorchLearner.over(loader, NOISY)


# errors


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda x, y: (x[:-1], y), "There are 39 samples and 40 targets"),
        (lambda x, y: (np.where(np.arange(40)[:, None] == 7, np.nan, x), y), "x holds NaN or Inf in sample 7"),
        (lambda x, y: (x, y - 1), "The smallest label is -1"),
        (lambda x, y: (x, y + 1), "label 3, and the network has 3 outputs"),
        (lambda x, y: (x, y.astype(np.float32)), "Labels are float32, not whole numbers"),
        (lambda x, y: (x, y[:, None]), r"labels of shape \(40, 1\)"),
        (lambda x, y: (x[:, :3], y), r"batch of shape \(40, 3\): mat1 and mat2 shapes cannot be multiplied"),
        (lambda x, y: (x.astype(str), y), "x is not an array of numbers"),
    ],
)
def test_bad_data_are_named(spoil, words: str) -> None:
    with pytest.raises(BadData, match=words):
        NOISY.learner(*spoil(*points())).losses(NOISY.start(0))


def test_bad_shapes_of_targets_and_samples_are_named() -> None:
    x = np.zeros((4, 2), np.float32)
    with pytest.raises(BadData, match="as many outputs as there are targets"):
        LINE.learner(x[:, :1], x).losses(vector(1))
    learner = TorchModel(seen, device="cpu", shape=(3, 4, 4)).learner(x, np.zeros(4, np.int64))
    with pytest.raises(BadData, match=r"shaped as \(3, 4, 4\): 2 numbers each"):
        learner.losses(learner.model.start(0))


def test_bad_vectors_weights_and_masks_are_named() -> None:
    learner, start, plan = NOISY.learner(*points()), NOISY.start(0), Plan()
    with pytest.raises(WrongShape, match="float32 vector of length 101"):
        learner.losses(start[:-1])
    with pytest.raises(WrongShape, match="float32 vector of length 101"):
        learner.train(start, seed=0, plan=plan, pulls=[(1.0, start[:-1])])
    with pytest.raises(BadData, match="for 40 samples"):
        learner.train(start, seed=0, plan=plan, weights=np.ones(39))
    for mask in (np.ones(83, bool), np.ones(101)):
        with pytest.raises(WrongShape, match="Give 101 booleans"):
            learner.train(start, seed=0, plan=plan, mask=mask)


ONE = dense()


def test_what_is_no_way_to_make_a_network_is_refused() -> None:
    with pytest.raises(SettingError, match="make is a Linear, not a function"):
        TorchModel(ONE)
    with pytest.raises(SettingError, match=r"not an nn\.Module"):
        _ = TorchModel(lambda: 3).layout
    with pytest.raises(SettingError, match="the same network again"):
        TorchModel(lambda: ONE).start(0)
    with pytest.raises(ValueError, match="device is one of auto, cpu, cuda, mps"):
        TorchModel(dense, device="gpu")
    with pytest.raises(ValueError, match="shape is a list of whole numbers"):
        TorchModel(dense, shape=["a"])
    with pytest.raises(LayoutError, match="its layer is lazy"):
        _ = TorchModel(lambda: nn.LazyLinear(3)).layout
    with pytest.raises(LayoutError, match="of bfloat16"):
        _ = TorchModel(lambda: nn.Linear(2, 2).to(torch.bfloat16)).layout
    with pytest.raises(LayoutError, match="trained in float32"):
        _ = TorchModel(lambda: nn.Linear(2, 2).half()).layout


def test_a_device_that_is_not_there_is_named() -> None:
    missing = "mps" if torch.cuda.is_available() else "cuda"
    if getattr(torch, missing).is_available():
        pytest.skip("all devices are there")
    with pytest.raises(SettingError, match=f"There is no device '{missing}' here"):
        TorchModel(dense, device=missing).learner(*points())


# surroundings


BATCHES = """
import resource, sys, torch
from artesian.learners.torch import keep_memory
print(keep_memory() if sys.argv[1] == "kept" else None)
def batch():
    return torch.empty(12 << 20).fill_(1.0).sum()  # 48 MB: more than glibc keeps of its own
batch()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(8):
    batch()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.thorough
@pytest.mark.heavy
def test_memory_is_kept_from_batch_to_batch() -> None:
    def pages(how: str) -> tuple[str, int]:
        ran = subprocess.run([sys.executable, "-c", BATCHES, how], capture_output=True, text=True, check=True)
        said, count = ran.stdout.split()
        return said, int(count)

    said, kept = pages("kept")
    if said == "False":
        pytest.skip("no glibc here")
    assert kept < 3 * 12288 < pages("as it is")[1]  # a batch is 12,288 pages, and 8 are counted


def test_memory_is_left_alone_where_there_is_no_glibc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learning.ctypes, "CDLL", lambda _: object())
    assert learning.keep_memory() is False


def test_one_thread_is_given_back() -> None:
    torch.set_num_threads(2)
    with learning.TorchModel(dense).one_thread():
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 2


def test_a_learner_counts_its_labels_where_each_sample_has_one() -> None:
    x, y = points(40)
    model = TorchModel(noisy, device="cpu")
    expected = tuple(np.bincount(y).tolist())
    assert model.learner(x, y).histogram == expected
    assert model.learner(x[:0], y[:0]).histogram == ()
    pairs = torch.utils.data.TensorDataset(torch.from_numpy(x), torch.from_numpy(y))
    assert TorchLearner.over(pairs, model, room=0).histogram == expected  # read by index
    assert TorchLearner.over(Stream(x, y), model, samples=40).histogram is None
    assert TorchModel(line, task="regression", device="cpu").learner(x[:, :1], x[:, 1]).histogram is None
    assert TorchModel(noisy, loss=nn.CrossEntropyLoss(reduction="none"), device="cpu").learner(x, y).histogram is None
    images = TorchModel(lambda: nn.Conv2d(1, 3, 1), device="cpu")
    assert images.learner(np.zeros((2, 1, 2, 2), np.float32), np.zeros((2, 2, 2), np.int64)).histogram is None


def test_a_learner_is_taken_apart_and_put_together() -> None:
    model = TorchModel(functools.partial(nn.Linear, 2, 3))
    x, y = np.arange(12, dtype=np.float32).reshape(6, 2), np.array([0, 1, 2, 0, 1, 2])
    whole, start = model.learner(x, y), model.start(0)
    parts = [whole.part(np.array([5, 0])), whole.part(np.array([3]))]
    assert [part.samples for part in parts] == [2, 1]
    np.testing.assert_array_equal(parts[0].losses(start), whole.losses(start)[[5, 0]])
    joined = parts[0].joined(parts[1:])
    np.testing.assert_array_equal(joined.losses(start), whole.losses(start)[[5, 0, 3]])
    dataset = torch.utils.data.TensorDataset(torch.from_numpy(x), torch.from_numpy(y))
    read = TorchLearner.over(dataset, model, room=0).part(np.array([5, 0]))
    np.testing.assert_array_equal(read.losses(start), parts[0].losses(start))


def test_samples_are_handed_out_as_rows_and_refused_where_their_sizes_differ(monkeypatch) -> None:
    learner = NOISY.learner(*points(5))
    assert [array.shape for array in learner.arrays()] == [(5, 4), (5,)]

    def ordered(what: str):
        return iter([(None, torch.zeros(2, width), torch.zeros(2)) for width in (3, 4)])

    monkeypatch.setattr(learner.source, "ordered", ordered)
    with pytest.raises(BadData, match="different sizes have no common row"):
        learner.arrays()
