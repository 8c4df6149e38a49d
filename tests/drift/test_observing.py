"""What a learner shows: only what is asked for, under the models in use."""

import numpy as np
import pytest

from artesian.core import Predicting
from artesian.drift.observing import batch_of
from artesian.errors import SettingError
from artesian.learners.arrays import LinearRegression, SoftmaxRegression
from artesian.params import seal
from artesian.testing import ToyModel

MODEL = SoftmaxRegression(2, 2)
ZERO = seal(np.zeros(6, np.float32))  # says half and half
FIRST = seal(np.array([0, 0, 0, 0, np.log(3), 0], np.float32))  # says 3/4 for the label 0
DATA = MODEL.learner(np.array([[1, 2], [3, 4], [5, 6]], np.float32), np.array([0, 1, 0]))


def test_all_parts_by_hand() -> None:
    """Of both models together the label 0 has 5/8; the second sample is wrong. Losses are the mean of both."""
    assert isinstance(DATA, Predicting)
    found = batch_of(DATA, [(0.5, ZERO), (0.5, FIRST)], {"features", "labels", "losses", "errors", "logits"})
    assert found.features.tolist() == [[1, 2], [3, 4], [5, 6]] and found.labels.tolist() == [0, 1, 0]
    assert found.logits == pytest.approx(np.array([[0.625, 0.375]] * 3))
    assert found.errors.tolist() == [0, 1, 0]
    right, wrong = (np.log(2) + np.log(4 / 3)) / 2, (np.log(2) + np.log(4)) / 2
    assert found.losses == pytest.approx([right, wrong, right])
    assert found.samples == 3


def test_only_what_is_asked_for_is_there_and_samples_need_no_model() -> None:
    assert batch_of(DATA, [(1.0, ZERO)], {"losses"}).features is None
    assert batch_of(DATA, [(1.0, ZERO)], {"logits"}).errors is None
    assert batch_of(DATA, (), {"features"}).losses is None
    with pytest.raises(SettingError, match="Losses, errors and outputs are a model's, and there is none"):
        batch_of(DATA, (), {"features", "errors"})


def test_a_large_learner_is_looked_at_in_part_and_always_the_same() -> None:
    rows = np.arange(200, dtype=np.float32).reshape(100, 2)
    large = MODEL.learner(rows, np.zeros(100, np.int64))
    one, two = (batch_of(large, (), {"features"}, most=10).features for _ in range(2))
    assert one.shape == (10, 2) and np.array_equal(one, two)
    assert set(one[:, 0]) < set(rows[:, 0])


def test_nothing_is_seen_of_nothing() -> None:
    nothing = MODEL.learner(np.zeros((0, 2), np.float32), np.zeros(0, np.int64))
    found = batch_of(nothing, [(1.0, ZERO)], {"losses", "labels"})
    assert (found.samples, len(found.losses), len(found.labels)) == (0, 0, 0)


class Plain:
    """Samples, losses, score and train: no more than a learner must have."""

    samples = 2

    def losses(self, params):
        return np.ones(2)

    def score(self, ensemble):
        return 0.0

    def train(self, params, *, seed, plan):
        return params


def test_what_a_learner_cannot_show_is_said() -> None:
    models = [(1.0, ZERO)]
    assert batch_of(Plain(), models, {"losses"}).losses.tolist() == [1, 1]
    with pytest.raises(SettingError, match=r"A Plain does not show its samples\. Give it a method arrays"):
        batch_of(Plain(), models, {"features"})
    with pytest.raises(SettingError, match=r"A Plain does not show what models say\. Give it a method outputs"):
        batch_of(Plain(), models, {"logits"})
    toy = ToyModel()
    with pytest.raises(SettingError, match="A ToyLearner does not show what models say"):
        batch_of(toy.learner(np.zeros((2, 3), np.float32), np.zeros(2)), [(1.0, toy.start(0))], {"errors"})
    line = LinearRegression(2)
    with pytest.raises(SettingError, match=r"A regression has no errors to count\. Watch its losses"):
        batch_of(line.learner(np.zeros((2, 2), np.float32), np.zeros(2)), [(1.0, line.start(0))], {"errors"})
