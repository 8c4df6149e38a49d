"""Learners in plain numpy: gradients against differences, steps against numbers worked out by hand."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import pytest

from artesian.core import Plan
from artesian.errors import BadData
from artesian.learners.arrays import ArrayLearner, LinearRegression, Perceptron, SoftmaxRegression
from artesian.params import seal

MODELS: list[Any] = [
    SoftmaxRegression(4, 3),
    Perceptron(4, 3, hidden=5),
    LinearRegression(4),
    LinearRegression(4, bias=False),
]


def vector(*values: float) -> np.ndarray:
    return seal(np.array(values, np.float32))


def some_data(model: Any, samples: int = 7) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    x, weights = rng.normal(size=(samples, 4)), rng.uniform(0.1, 2, samples)
    y = rng.normal(size=samples) if isinstance(model, LinearRegression) else rng.integers(0, 3, samples)
    return x, y, weights


# losses of several at once


@pytest.mark.parametrize("model", MODELS)
def test_the_losses_of_a_stack_are_those_of_its_learners_bit_by_bit(model: Any) -> None:
    x, y, _ = some_data(model, 60)
    learners = [model.learner(x[i : i + 20].astype(np.float32), y[i : i + 20]) for i in (0, 20, 40)]
    params, stack = model.start(1), learners[0].stacked(learners[1:])
    assert [row.tobytes() for row in stack(params)] == [learner.losses(params).tobytes() for learner in learners]


def test_learners_of_several_forms_make_no_stack() -> None:
    model = SoftmaxRegression(4, 3)
    x, y = np.zeros((6, 4), np.float32), np.zeros(6, np.int64)
    others = [(x[:5], y[:5]), (x.astype(np.float64), y), (np.asfortranarray(x), y)]
    assert model.learner(x, y).stacked([model.learner(x, y)]) is not None
    assert [model.learner(x, y).stacked([model.learner(*other)]) for other in others] == [None] * 3
    assert model.learner(x, y).stacked([Perceptron(4, 3).learner(x, y)]) is None


# gradients


@pytest.mark.parametrize("model", MODELS)
def test_a_gradient_agrees_with_central_differences(model: Any) -> None:
    x, y, weights = some_data(model)
    own = np.random.default_rng(4).normal(size=model.layout.size)
    found = np.zeros_like(own)
    model.gradient(model.layout.view(own), x, y, weights, model.layout.view(found))

    def loss(params: np.ndarray) -> float:
        return float(weights @ model.losses(model.predict(model.layout.view(params), x), y))

    expected = np.zeros_like(own)
    for i in range(own.size):
        step = np.zeros_like(own)
        step[i] = 1e-6
        expected[i] = (loss(own + step) - loss(own - step)) / 2e-6
    assert np.abs(expected).max() > 0.1
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-7)


def test_softmax_losses_and_score_by_hand() -> None:
    learner = SoftmaxRegression(1, 2).learner(np.array([[1.0], [1.0]], np.float32), np.array([0, 1]))
    params = vector(np.log(3), 0, 0, 0)  # odds of 3 to 1
    np.testing.assert_allclose(learner.losses(params), [np.log(4 / 3), np.log(4)], rtol=1e-6)
    assert learner.score([(1.0, params)]) == 0.5


def test_perceptron_losses_by_hand() -> None:
    model = Perceptron(1, 2, hidden=2)
    learner = model.learner(np.array([[2.0]], np.float32), np.array([1]))
    # hidden: 2*1 + 0.5 = 2.5, and 2*-1 + 0 < 0; logits: 2.5*0.4 = 1, and 2.5*0.8 = 2
    params = vector(1, -1, 0.5, 0, 0.4, 0.8, 9, 9, 0, 0)
    np.testing.assert_allclose(learner.losses(params), [np.log(1 + np.exp(-1))], rtol=1e-6)


def test_linear_losses_and_score_by_hand() -> None:
    learner = LinearRegression(2).learner(np.array([[1, 2], [3, 4]], np.float32), np.array([5.0, 10.0], np.float32))
    params = vector(1, 1, 0.5)  # predicts 3.5 and 7.5
    assert learner.losses(params).tolist() == [2.25, 6.25]
    assert learner.score([(1.0, params)]) == -4.25


@pytest.mark.parametrize("size", [1e3, 1e10, 1e30])
def test_losses_stay_finite_with_extreme_logits(size: float) -> None:
    learner = SoftmaxRegression(1, 2).learner(np.array([[1.0], [1.0]], np.float32), np.array([0, 1]))
    right, wrong = learner.losses(vector(size, -size, 0, 0))
    assert right == 0
    assert wrong == pytest.approx(126 * np.log(2))  # the smallest normal float32 is 2^-126
    assert np.isfinite(learner.train(vector(1e3, -1e3, 0, 0), seed=0, plan=Plan(rate=1.0))).all()


# steps of a model with one parameter: loss (x w - y)^2, gradient 2 x (x w - y)


def trained(start: float, x: float, y: float, plan: Plan, **options: Any) -> float:
    """One parameter, one sample: every epoch is one step."""
    learner = LinearRegression(1, bias=False).learner(np.array([[x]], np.float32), np.array([y], np.float32))
    (found,) = learner.train(vector(start), seed=0, plan=plan, **options).tolist()
    return float(found)


def test_sgd_by_hand() -> None:
    # 1 -> gradient 2*2*(2-6) = -16 -> 1 + 1.6 = 2.6 -> gradient 4*(5.2-6) = -3.2 -> 2.92
    assert trained(1, 2, 6, Plan(rate=0.1)) == pytest.approx(2.6, rel=1e-6)
    assert trained(1, 2, 6, Plan(rate=0.1, epochs=2)) == pytest.approx(2.92, rel=1e-6)


def test_momentum_by_hand() -> None:
    # velocity -16 -> 2.6; velocity 0.5*-16 - 3.2 = -11.2 -> 3.72
    assert trained(1, 2, 6, Plan(rate=0.1, epochs=2, momentum=0.5)) == pytest.approx(3.72, rel=1e-6)


def test_decay_by_hand() -> None:
    # gradient -16 + 0.5*1 = -15.5 -> 2.55
    assert trained(1, 2, 6, Plan(rate=0.1, decay=0.5)) == pytest.approx(2.55, rel=1e-6)


def test_a_pull_adds_its_strength_times_the_way_to_the_anchor() -> None:
    # gradient -16 + 2*(1 - 4) = -22 -> 3.2; a second pull of 1 towards 0 adds 1 -> 3.1
    assert trained(1, 2, 6, Plan(rate=0.1), pulls=[(2.0, vector(4))]) == pytest.approx(3.2, rel=1e-6)
    both = [(2.0, vector(4)), (1.0, vector(0))]
    assert trained(1, 2, 6, Plan(rate=0.1), pulls=both) == pytest.approx(3.1, rel=1e-6)


def test_a_pull_follows_the_weights_not_the_start() -> None:
    # 1 -> 2.6 (anchor is the start: no pull yet) -> gradient -3.2 + 2*(2.6-1) = 0 -> 2.6
    pulls = [(2.0, vector(1))]
    assert trained(1, 2, 6, Plan(rate=0.1, epochs=2), pulls=pulls) == pytest.approx(2.6, rel=1e-6)


def test_a_correction_is_added_to_every_gradient() -> None:
    # gradient -16 + 6 = -10 -> 2; then 4 (2 x 2 - 6) + 6 = -2 -> 2.2
    assert trained(1, 2, 6, Plan(rate=0.1), correction=vector(6)) == pytest.approx(2.0, rel=1e-6)
    assert trained(1, 2, 6, Plan(rate=0.1, epochs=2), correction=vector(6)) == pytest.approx(2.2, rel=1e-6)


def test_an_epoch_has_as_many_steps_as_batches() -> None:
    learner = SoftmaxRegression(4, 3).learner(np.zeros((7, 4), np.float32), np.zeros(7, np.int64))
    assert [learner.batches(size) for size in (1, 3, 7, 8)] == [7, 3, 1, 1]


def test_a_sample_weight_scales_its_gradient() -> None:
    assert trained(1, 2, 6, Plan(rate=0.1), weights=np.array([0.25])) == pytest.approx(1.4, rel=1e-6)


def test_a_batch_takes_the_mean_over_its_rows() -> None:
    x, y = np.array([[1], [2], [3]], np.float32), np.array([1, 1, 1], np.float32)
    learner = LinearRegression(1, bias=False).learner(x, y)
    # at 0: gradients -2, -4, -6; mean -4; with weights 1, 0, 2: (-2 - 12)/3
    assert learner.train(vector(0), seed=0, plan=Plan(rate=0.1))[0] == pytest.approx(0.4)
    weights = np.array([1.0, 0.0, 2.0])
    assert learner.train(vector(0), seed=0, plan=Plan(rate=0.1), weights=weights)[0] == pytest.approx(1.4 / 3)


def test_a_last_small_batch_takes_the_mean_over_its_own_rows() -> None:
    x, y = np.ones((3, 1), np.float32), np.ones(3, np.float32)
    learner = LinearRegression(1, bias=False).learner(x, y)
    # all rows alike: 0 -> 0.2 -> 0.2 + 0.1*2*0.8 = 0.36
    assert learner.train(vector(0), seed=5, plan=Plan(rate=0.1, batch=2))[0] == pytest.approx(0.36)


def adam_by_hand(start: float, gradient: Callable[[float], float], rate: float, steps: int) -> float:
    """Kingma & Ba, algorithm 1, in float64."""
    w, m, v = start, 0.0, 0.0
    for t in range(1, steps + 1):
        g = gradient(w)
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        w -= rate * (m / (1 - 0.9**t)) / ((v / (1 - 0.999**t)) ** 0.5 + 1e-8)
    return w


@pytest.mark.parametrize("steps", [1, 2, 10])
def test_adam_by_hand(steps: int) -> None:
    expected = adam_by_hand(1, lambda w: 4 * (2 * w - 6), 0.1, steps)
    assert trained(1, 2, 6, Plan("adam", 0.1, steps)) == pytest.approx(expected, rel=1e-5)
    if steps == 1:
        assert expected == pytest.approx(1.1)


def test_adam_adds_decay_and_pulls_to_the_gradient() -> None:
    expected = adam_by_hand(1, lambda w: 4 * (2 * w - 6) + 0.5 * w + 2 * (w - 4), 0.1, 5)
    plan = Plan("adam", 0.1, 5, decay=0.5)
    assert trained(1, 2, 6, plan, pulls=[(2.0, vector(4))]) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("plan", [Plan(momentum=0.9, decay=0.1, epochs=3), Plan("adam", epochs=3, decay=0.1)])
def test_a_mask_freezes_what_is_false(plan: Plan) -> None:
    model = SoftmaxRegression(4, 3)
    x, y, _ = some_data(model, 40)
    learner, start = model.learner(x.astype(np.float32), y), model.start(1)
    mask = np.arange(start.size) % 2 == 0
    result = learner.train(start, seed=0, plan=plan, pulls=[(0.5, model.start(2))], mask=mask)
    assert (result[~mask] == start[~mask]).all()
    assert (result[mask] != start[mask]).all()


def test_training_leaves_its_inputs_alone_and_seals_its_result() -> None:
    model = Perceptron(4, 3)
    x, y, weights = some_data(model)
    learner, start = model.learner(x.astype(np.float32), y), model.start(1)
    before = start.tobytes()
    result = learner.train(start, seed=0, plan=Plan(), weights=weights)
    assert start.tobytes() == before and not result.flags.writeable
    assert result.dtype == np.float32 and result.shape == start.shape


# randomness


@pytest.mark.parametrize("model", MODELS)
def test_the_same_seed_gives_the_same_bits_and_another_another_order(model: Any) -> None:
    x, y, _ = some_data(model, 40)
    learner, plan = model.learner(x.astype(np.float32), y), Plan(rate=0.01, epochs=2, batch=8)
    one, again, other = (learner.train(model.start(0), seed=seed, plan=plan) for seed in (5, 5, 6))
    assert one.tobytes() == again.tobytes() != other.tobytes()
    np.testing.assert_allclose(one, other, atol=0.2)


@pytest.mark.parametrize("model", MODELS)
def test_a_start_is_uniform_within_its_bound_and_biases_are_zero(model: Any) -> None:
    arrays = model.layout.unpack(model.start(1))
    for name, array in arrays.items():
        if name.endswith("bias"):
            assert not array.any()
        else:
            assert 0 < np.abs(array).max() <= array.shape[0] ** -0.5
    assert model.start(1).tobytes() == model.start(1).tobytes() != model.start(2).tobytes()


# learning


@lru_cache
def digits() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    from sklearn.datasets import load_digits

    bunch = load_digits()
    order = np.random.default_rng(0).permutation(len(bunch.target))
    x, y = (bunch.data[order] / 16).astype(np.float32), bunch.target[order]
    return x[:1300], y[:1300], x[1300:], y[1300:]


@pytest.mark.heavy
@pytest.mark.parametrize(("model", "bar"), [(SoftmaxRegression(64, 10), 0.9), (Perceptron(64, 10), 0.93)])
@pytest.mark.parametrize("plan", [Plan(rate=0.1, epochs=30, momentum=0.5), Plan("adam", 0.005, 30)])
def test_real_digits_are_learnt(model: Any, bar: float, plan: Plan) -> None:
    x, y, held_x, held_y = digits()
    start = model.start(0)
    held = model.learner(held_x, held_y)
    assert held.score([(1.0, start)]) < 0.4
    assert held.score([(1.0, model.learner(x, y).train(start, seed=0, plan=plan))]) > bar


def test_linear_regression_recovers_known_weights() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 3)).astype(np.float32)
    y = (x @ np.array([2.0, -1.0, 0.5], np.float32) + 3).astype(np.float32)
    model = LinearRegression(3)
    learner = model.learner(x, y)
    found = learner.train(model.start(0), seed=0, plan=Plan(rate=0.05, epochs=60))
    np.testing.assert_allclose(found, [2, -1, 0.5, 3], atol=1e-4)
    assert -1e-6 < learner.score([(1.0, found)]) <= 0


# ensembles


def test_an_ensemble_is_scored_by_its_mean_prediction() -> None:
    learner = LinearRegression(1, bias=False).learner(np.array([[1.0]], np.float32), np.array([3.0], np.float32))
    # 0.25*2 + 0.75*4 = 3.5, half a unit off
    assert learner.score([(0.25, vector(2)), (0.75, vector(4))]) == pytest.approx(-0.25)
    assert learner.outputs([(0.25, vector(2)), (0.75, vector(4))]).tolist() == [3.5]


def test_an_ensemble_of_classifiers_averages_probabilities() -> None:
    learner = SoftmaxRegression(1, 2).learner(np.array([[1.0]], np.float32), np.array([0]))
    sure, doubtful = vector(5, 0, 0, 0), vector(0, 1, 0, 0)  # class 0 at 0.993; class 1 at 0.731
    assert learner.score([(0.5, sure), (0.5, doubtful)]) == 1.0
    assert learner.score([(0.1, sure), (0.9, doubtful)]) == 0.0


@pytest.mark.parametrize("model", MODELS)
def test_no_data_is_no_score_and_no_training(model: Any) -> None:
    learner = ArrayLearner(model, np.zeros((0, 4), np.float32), np.zeros(0, np.int64))
    assert learner.samples == 0
    assert learner.score([(1.0, model.start(0))]) == 0.0
    assert learner.train(model.start(0), seed=0, plan=Plan()).tobytes() == model.start(0).tobytes()


def test_a_schedule_lowers_the_rate_from_epoch_to_epoch() -> None:
    linear = Plan(rate=0.1, epochs=4, schedule="linear")
    assert [linear.rate_in(epoch) for epoch in range(4)] == pytest.approx([0.1, 0.075, 0.05, 0.025])
    cosine = Plan(rate=0.1, epochs=3, schedule="cosine")
    assert [cosine.rate_in(epoch) for epoch in range(3)] == pytest.approx([0.1, 0.075, 0.025])
    # one sample x = 2, y = 6, w = 1: the gradient is 2 x (x w - y); 0.1 and then 0.05
    assert trained(1, 2, 6, Plan(rate=0.1, epochs=2, schedule="linear")) == pytest.approx(2.76, rel=1e-6)
    adam = [trained(1, 2, 6, Plan("adam", 0.1, epochs, schedule="linear")) for epochs in (1, 2)]
    assert adam[0] == pytest.approx(1.1, rel=1e-4)
    assert adam[1] == pytest.approx(1.15, rel=1e-3)  # a step of the rate, then of half of it


@pytest.mark.parametrize(
    ("x", "y", "words"),
    [
        (np.zeros((3, 8, 8)), [0, 1, 2], r"shape \(3, 8, 8\)\. Give an array of rows of 4 numbers"),
        (np.zeros((3, 5)), [0, 1, 2], r"shape \(3, 5\)"),
        (np.zeros((3, 4)), [0, 1], "3 samples and 2 targets"),
        (np.zeros((3, 4)), [0.0, 1.0, 2.0], "labels are float64"),
        (np.zeros((3, 4)), [-1, 0, 1], "from -1 to 1. Give labels from 0 to 2"),
        (np.zeros((3, 4)), [0, 1, 3], "from 0 to 3"),
        (np.array([[0.0] * 4, [0, np.nan, 0, 0]]), [0, 1], "The inputs of sample 1 are not finite"),
        (np.array([[0, 0, np.inf, 0], [0.0] * 4]), [0, 1], "The inputs of sample 0 are not finite"),
    ],
)
def test_data_that_do_not_fit_the_model_are_refused_at_once(x, y, words) -> None:
    with pytest.raises(BadData, match=words):
        SoftmaxRegression(4, 3).learner(x.astype(np.float32), np.array(y))
    assert SoftmaxRegression(4, 3).learner(np.zeros((0, 4), np.float32), np.zeros(0, np.int64)).samples == 0


def test_targets_that_are_not_finite_are_refused() -> None:
    y = np.array([1, 2, np.nan], np.float32)
    with pytest.raises(BadData, match="The targets of sample 2 are not finite"):
        LinearRegression(1).learner(np.ones((3, 1), np.float32), y)


def test_a_learner_is_taken_apart_and_put_together() -> None:
    model = SoftmaxRegression(2, 3)
    whole = model.learner(np.arange(12, dtype=np.float32).reshape(6, 2), np.array([0, 1, 2, 0, 1, 2]))
    losses = whole.losses(model.start(0))
    parts = [whole.part(np.array([5, 0])), whole.part(np.array([3]))]
    np.testing.assert_array_equal(parts[0].losses(model.start(0)), losses[[5, 0]])
    np.testing.assert_array_equal(parts[0].joined(parts[1:]).losses(model.start(0)), losses[[5, 0, 3]])
