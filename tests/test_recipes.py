"""What a client does with a task, by hand: a learner that adds what it is told."""

from dataclasses import dataclass

import numpy as np
import pytest

from artesian.core import Notebook, Task
from artesian.errors import SettingError, WrongModels
from artesian.params import Layout, Params, seal
from artesian.recipes import RECIPES, recipe

LAYOUT = Layout.of({"w": np.zeros(2, np.float32)})
GIVEN = seal(np.array([1, 2], np.float32))


@dataclass
class Adds:
    """Adds 1 to every weight, and remembers how it was asked to."""

    samples: int = 7

    def train(self, params: Params, *, seed, plan, pulls=(), weights=None, mask=None) -> Params:
        self.asked = (params.tolist(), seed, plan, [(c, anchor.tolist()) for c, anchor in pulls])
        return seal(params + np.float32(1))


def task(name: str, **settings) -> Task:
    return Task({"k0": GIVEN}, name, {"seed": 5, "rate": 0.5, "epochs": 2, **settings}, number=3)


def test_train_sends_the_trained_model_and_uses_the_given_one() -> None:
    learner = Adds()
    fit = RECIPES["train"].fit(LAYOUT, "ann", task("train"), learner, Notebook())
    assert (fit.upload.client, fit.upload.number, fit.upload.samples) == ("ann", 3, 7)
    assert fit.upload.models["k0"].tolist() == [2, 3]
    assert fit.trained[0][1].tolist() == [2, 3]
    assert learner.asked[1:] == (5, learner.asked[2], [])
    assert (learner.asked[2].rate, learner.asked[2].epochs) == (0.5, 2)
    assert RECIPES["train"].use(LAYOUT, task("train"), Notebook())[0][1] is GIVEN


def test_train_may_send_the_change_and_be_pulled() -> None:
    learner = Adds()
    fit = RECIPES["train"].fit(LAYOUT, "ann", task("train", delta=True, prox=0.25), learner, Notebook())
    assert fit.upload.models["k0"].tolist() == [1, 1]
    assert fit.trained[0][1].tolist() == [2, 3]
    assert learner.asked[3] == [(0.25, [1, 2])]


def test_train_may_leave_the_smallest_weights_alone() -> None:
    """Half of the four weights, 1 and 2, are frozen; the bias never is."""
    layout = Layout.of({"w": np.zeros((2, 2), np.float32), "b": np.zeros(1, np.float32)})
    given = seal(np.array([1, -4, 3, 2, 0], np.float32))
    seen = []

    class Masked(Adds):
        def train(self, params: Params, *, seed, plan, pulls=(), weights=None, mask=None) -> Params:
            seen.append(mask)
            return params

    for settings in ({"sparsity": 0.5}, {"sparsity": 0.0}, {}):
        asked = Task({"k0": given}, "train", {"seed": 5, **settings}, number=3)
        RECIPES["train"].fit(layout, "ann", asked, Masked(), Notebook())
    assert seen[0].tolist() == [False, True, True, False, True]
    assert seen[1:] == [None, None]


def test_alone_keeps_its_own_model_and_sends_nothing() -> None:
    fit = RECIPES["alone"].fit(LAYOUT, "ann", task("alone"), Adds(), Notebook())
    assert fit.upload.models == {}
    assert fit.notebook.own.tolist() == [2, 3]
    again = RECIPES["alone"].fit(LAYOUT, "ann", task("alone"), Adds(), fit.notebook)
    assert again.notebook.own.tolist() == [3, 4]
    assert RECIPES["alone"].use(LAYOUT, task("alone"), again.notebook)[0][1].tolist() == [3, 4]
    assert RECIPES["alone"].use(LAYOUT, task("alone"), Notebook())[0][1] is GIVEN


def test_a_client_that_lost_its_own_model_is_told_so() -> None:
    with pytest.raises(WrongModels, match="another id"):
        RECIPES["alone"].fit(LAYOUT, "ann", Task({}, "alone", {"seed": 5}), Adds(), Notebook())


def test_an_unknown_recipe_offers_the_nearest() -> None:
    with pytest.raises(SettingError, match="did you mean 'alone'"):
        recipe("alon")


@dataclass
class Nearest(Adds):
    """Samples are numbers; the loss is the distance from the first weight."""

    points: tuple[float, ...] = (0, 0.4, 0.5, 2, 3)

    def losses(self, params: Params) -> np.ndarray:
        return np.abs(np.array(self.points) - params[0])


def soft(mixture=None, **settings) -> Task:
    models = {"k0": seal(np.array([0, 8], np.float32)), "k1": seal(np.array([1, 4], np.float32))}
    return Task(models, "soft", {"seed": 5, **settings}, mixture, number=3)


def test_soft_counts_trains_near_the_blend_and_sends_both() -> None:
    learner = Nearest(5)
    fit = RECIPES["soft"].fit(LAYOUT, "ann", soft(prox=0.5), learner, Notebook())
    assert fit.upload.mixture == {"k0": 0.6, "k1": 0.4}  # 0.5 is as near to both: the first has it
    np.testing.assert_allclose(learner.asked[0], [0.4, 6.4], rtol=1e-6)
    assert learner.asked[3] == [(0.5, learner.asked[0])]
    np.testing.assert_allclose(fit.upload.models["own"], [1.4, 7.4], rtol=1e-6)
    assert fit.trained[0][1] is fit.upload.models["own"]


def test_soft_keeps_every_share_above_sigma() -> None:
    fit = RECIPES["soft"].fit(LAYOUT, "ann", soft(sigma=0.25), Nearest(3, (0, 0, 0)), Notebook())
    assert fit.upload.mixture == {"k0": 0.8, "k1": 0.2}  # (1, 0.25) / 1.25
    none = RECIPES["soft"].fit(LAYOUT, "ann", soft(), Nearest(0, ()), Notebook())
    assert none.upload.mixture == {"k0": 0.5, "k1": 0.5}


def test_soft_uses_the_blend_of_what_was_given() -> None:
    (((weight, blend)),) = RECIPES["soft"].use(LAYOUT, soft({"k0": 0.25, "k1": 0.75}), Notebook())
    assert (weight, blend.tolist()) == (1.0, [0.75, 5.0])
    assert RECIPES["soft"].use(LAYOUT, soft(), Notebook())[0][1].tolist() == [0.5, 6.0]
