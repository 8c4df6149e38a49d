"""What a client does with a task, by hand: a learner that adds what it is told."""

from dataclasses import dataclass

import numpy as np
import pytest

from artesian.core import Task
from artesian.errors import NotFinite, SettingError, WrongModels
from artesian.params import Layout, Params, seal
from artesian.recipes import BUILT_IN, recipe

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
    fit = BUILT_IN["train"].fit(LAYOUT, "ann", task("train"), learner, {})
    assert (fit.upload.client, fit.upload.number, fit.upload.samples) == ("ann", 3, 7)
    assert fit.upload.models["k0"].tolist() == [2, 3]
    assert fit.trained[0][1].tolist() == [2, 3]
    assert learner.asked[1:] == (5, learner.asked[2], [])
    assert (learner.asked[2].rate, learner.asked[2].epochs) == (0.5, 2)
    assert BUILT_IN["train"].use(LAYOUT, task("train"), {})[0][1] is GIVEN


def test_train_may_send_the_change_and_be_pulled() -> None:
    learner = Adds()
    fit = BUILT_IN["train"].fit(LAYOUT, "ann", task("train", delta=True, prox=0.25), learner, {})
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
        BUILT_IN["train"].fit(layout, "ann", asked, Masked(), {})
    assert seen[0].tolist() == [False, True, True, False, True]
    assert seen[1:] == [None, None]


def test_alone_keeps_its_own_model_and_sends_nothing() -> None:
    fit = BUILT_IN["alone"].fit(LAYOUT, "ann", task("alone"), Adds(), {})
    assert fit.upload.models == {}
    assert fit.notebook["own"].tolist() == [2, 3]
    again = BUILT_IN["alone"].fit(LAYOUT, "ann", task("alone"), Adds(), fit.notebook)
    assert again.notebook["own"].tolist() == [3, 4]
    assert BUILT_IN["alone"].use(LAYOUT, task("alone"), again.notebook)[0][1].tolist() == [3, 4]
    assert BUILT_IN["alone"].use(LAYOUT, task("alone"), {})[0][1] is GIVEN


def test_a_client_that_lost_its_own_model_is_told_so() -> None:
    with pytest.raises(WrongModels, match="Join under another client id"):
        BUILT_IN["alone"].fit(LAYOUT, "ann", Task({}, "alone", {"seed": 5}), Adds(), {})


def test_an_unknown_recipe_offers_the_nearest() -> None:
    with pytest.raises(SettingError, match="Did you mean 'alone'"):
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
    fit = BUILT_IN["soft"].fit(LAYOUT, "ann", soft(prox=0.5), learner, {})
    assert fit.upload.mixture == {"k0": 0.6, "k1": 0.4}  # 0.5 is as near to both: the first has it
    np.testing.assert_allclose(learner.asked[0], [0.4, 6.4], rtol=1e-6)
    assert learner.asked[3] == [(0.5, learner.asked[0])]
    np.testing.assert_allclose(fit.upload.models["own"], [1.4, 7.4], rtol=1e-6)
    assert fit.trained[0][1] is fit.upload.models["own"]


def test_soft_keeps_every_share_above_sigma() -> None:
    fit = BUILT_IN["soft"].fit(LAYOUT, "ann", soft(sigma=0.25), Nearest(3, (0, 0, 0)), {})
    assert fit.upload.mixture == {"k0": 0.8, "k1": 0.2}  # (1, 0.25) / 1.25
    none = BUILT_IN["soft"].fit(LAYOUT, "ann", soft(), Nearest(0, ()), {})
    assert none.upload.mixture == {"k0": 0.5, "k1": 0.5}


def test_soft_uses_the_blend_of_what_was_given() -> None:
    (((weight, blend)),) = BUILT_IN["soft"].use(LAYOUT, soft({"k0": 0.25, "k1": 0.75}), {})
    assert (weight, blend.tolist()) == (1.0, [0.75, 5.0])
    assert BUILT_IN["soft"].use(LAYOUT, soft(), {})[0][1].tolist() == [0.5, 6.0]


def test_soft_may_leave_its_shares_as_they_are() -> None:
    fit = BUILT_IN["soft"].fit(LAYOUT, "ann", soft(sigma=0.25, normalise=False), Nearest(3, (0, 0, 0)), {})
    assert fit.upload.mixture == {"k0": 1.0, "k1": 0.25}


PERSONAL = {"personal": True, "normalise": False, "sigma": 0.25}


def test_soft_estimates_without_training_and_begins_a_personal_model_at_the_even_blend() -> None:
    learner = Nearest(3, (0, 0, 0))
    fit = BUILT_IN["soft"].fit(LAYOUT, "ann", soft(estimate_only=True, **PERSONAL), learner, {})
    assert (fit.upload.models, fit.upload.mixture, fit.trained) == ({}, {"k0": 1.0, "k1": 0.25}, ())
    assert not hasattr(learner, "asked")
    assert (fit.notebook["own"].tolist(), fit.notebook["mixture"]) == ([0.5, 6], {"k0": 1.0, "k1": 0.25})
    again = BUILT_IN["soft"].fit(LAYOUT, "ann", soft(estimate_only=True, **PERSONAL), learner, {"own": GIVEN})
    assert again.notebook["own"] is GIVEN
    plain = BUILT_IN["soft"].fit(LAYOUT, "ann", soft(estimate_only=True), learner, {})
    assert plain.notebook == {"mixture": {"k0": 1.0, "k1": 0.0}}


def test_a_personal_model_goes_on_from_itself_and_is_pulled_towards_every_centre() -> None:
    learner, told = Nearest(5), {"k0": 0.75, "k1": 0.5}
    given = soft(told, prox=0.5, **PERSONAL)
    fit = BUILT_IN["soft"].fit(LAYOUT, "ann", given, learner, {"own": GIVEN})
    assert learner.asked[0] == [1, 2]  # its own, not a centre and not a blend
    assert learner.asked[3] == [(0.375, [0, 8]), (0.25, [1, 4])]  # lambda u_ks, not normalised
    assert (fit.upload.models["own"].tolist(), fit.upload.mixture) == ([2, 3], told)  # what was told, not counted anew
    assert fit.notebook["own"] is fit.upload.models["own"]
    assert BUILT_IN["soft"].use(LAYOUT, given, fit.notebook)[0][1].tolist() == [2, 3]


def test_a_personal_model_that_is_lost_begins_at_the_even_blend_and_a_share_of_0_does_not_pull() -> None:
    learner = Nearest(5)
    BUILT_IN["soft"].fit(LAYOUT, "ann", soft({"k1": 1.0}, prox=0.5, **PERSONAL), learner, {})
    assert (learner.asked[0], learner.asked[3]) == ([0.5, 6], [(0.5, [1, 4])])
    unpulled = Nearest(5)
    BUILT_IN["soft"].fit(LAYOUT, "ann", soft(None, **PERSONAL), unpulled, {})
    assert unpulled.asked[3] == []
    assert BUILT_IN["soft"].use(LAYOUT, soft(None, **PERSONAL), {})[0][1].tolist() == [0.5, 6]


def pick(**settings) -> Task:
    return Task(soft().models, "pick", {"seed": 5, **settings}, number=3)


def test_pick_trains_the_model_with_the_smallest_mean_loss() -> None:
    """Points 0, 0.4, 0.5, 2, 3: the mean distance from 0 is 1.18, from 1 it is 0.82 although 0 is nearer to three."""
    learner = Nearest(5)
    fit = BUILT_IN["pick"].fit(LAYOUT, "ann", pick(), learner, {})
    assert (fit.upload.models["own"].tolist(), fit.upload.mixture) == ([2, 5], {"k1": 1.0})
    assert (learner.asked[0], fit.notebook["mixture"]) == ([1, 4], {"k1": 1.0})
    assert BUILT_IN["pick"].use(LAYOUT, pick(), fit.notebook)[0][1].tolist() == [1, 4]
    change = BUILT_IN["pick"].fit(LAYOUT, "ann", pick(delta=True), Nearest(5), {})
    assert (change.upload.models["own"].tolist(), change.trained[0][1].tolist()) == ([1, 1], [2, 5])


def test_pick_takes_the_first_of_equals_and_without_samples() -> None:
    for learner in (Nearest(1, (0.5,)), Nearest(0, ())):
        fit = BUILT_IN["pick"].fit(LAYOUT, "ann", pick(), learner, {})
        assert fit.upload.mixture == {"k0": 1.0}


def test_pick_may_tell_its_pick_alone() -> None:
    learner = Nearest(5)
    fit = BUILT_IN["pick"].fit(LAYOUT, "ann", pick(estimate_only=True), learner, {})
    assert (fit.upload.models, fit.upload.mixture, fit.trained) == ({}, {"k1": 1.0}, ())
    assert fit.notebook["mixture"] == {"k1": 1.0}
    assert not hasattr(learner, "asked")


def test_pick_uses_what_the_server_remembers_where_the_client_forgot() -> None:
    given = Task(soft().models, "pick", mixture={"k1": 1.0})
    assert BUILT_IN["pick"].use(LAYOUT, given, {})[0][1].tolist() == [1, 4]
    assert BUILT_IN["pick"].use(LAYOUT, given, {"mixture": {"k0": 1.0}})[0][1].tolist() == [0, 8]
    assert BUILT_IN["pick"].use(LAYOUT, pick(), {})[0][1].tolist() == [0, 8]


@dataclass
class Broken(Nearest):
    """No number for models whose first weight is among these."""

    broken: tuple[float, ...] = (0,)

    def losses(self, params: Params) -> np.ndarray:
        found = super().losses(params)
        if params[0] in self.broken:
            found[-1] = np.nan
        return found


@pytest.mark.parametrize("name", ["pick", "soft", "em"])
def test_a_loss_that_is_no_number_is_as_bad_as_can_be(name) -> None:
    given = Task(soft().models, name, {"seed": 5})
    fit = BUILT_IN[name].fit(LAYOUT, "ann", given, Broken(1, (0.0,)), {})
    assert fit.upload.mixture.get("k0", 0.0) == 0
    assert fit.upload.mixture["k1"] == 1
    with pytest.raises(NotFinite, match=r"None of the models k0, k1 has.*lower learning rate"):
        BUILT_IN[name].fit(LAYOUT, "ann", given, Broken(1, (0.0,), (0, 1)), {})
    if name == "pick":
        with pytest.raises(NotFinite, match="None of the models k0, k1"):  # one sample of two spoils a mean
            BUILT_IN[name].fit(LAYOUT, "ann", given, Broken(2, (0.0, 1.0), (0, 1)), {})


@dataclass
class Weighs(Nearest):
    """Remembers the weights of every training."""

    points: tuple[float, ...] = (0, 1)

    def train(self, params, *, seed, plan, pulls=(), weights=None, mask=None):
        self.weights = [*getattr(self, "weights", []), weights.tolist()]
        return super().train(params, seed=seed, plan=plan)


def em(**settings) -> Task:
    return Task(soft().models, "em", {"seed": 5, **settings}, number=3)


def test_em_trains_every_component_by_its_responsibilities() -> None:
    """Losses (0, 1) and (1, 0), shares even: q_0 = (1, e^-1) / (1 + e^-1) = (0.731059, 0.268941)."""
    learner = Weighs(2)
    fit = BUILT_IN["em"].fit(LAYOUT, "ann", em(), learner, {})
    np.testing.assert_allclose(learner.weights, [[0.731059, 0.268941], [0.268941, 0.731059]], atol=1e-6)
    assert fit.upload.mixture == {"k0": pytest.approx(0.5), "k1": pytest.approx(0.5)}
    assert {k: v.tolist() for k, v in fit.upload.models.items()} == {"k0": [1, 9], "k1": [2, 5]}
    assert [(share, model.tolist()) for share, model in fit.trained] == [
        (pytest.approx(0.5), [1, 9]),
        (pytest.approx(0.5), [2, 5]),
    ]


def test_em_goes_on_from_the_shares_of_before() -> None:
    """pi = (0.9, 0.1): q_0 = 0.9 / (0.9 + 0.1 e^-1) = 0.960730 and 0.9 e^-1 / (0.9 e^-1 + 0.1) = 0.768031."""
    learner = Weighs(2)
    fit = BUILT_IN["em"].fit(LAYOUT, "ann", em(), learner, {"mixture": {"k0": 0.9, "k1": 0.1}})
    np.testing.assert_allclose(learner.weights[0], [0.960730, 0.768031], atol=1e-6)
    assert fit.notebook["mixture"] == {"k0": pytest.approx(0.864380, abs=1e-6), "k1": pytest.approx(0.135620, abs=1e-6)}
    lost = Weighs(2)  # the server's copy
    BUILT_IN["em"].fit(LAYOUT, "ann", Task(em().models, "em", em().settings, {"k0": 0.9, "k1": 0.1}), lost, {})
    assert lost.weights == learner.weights


def test_em_floors_a_share_of_0_so_that_a_component_can_come_back() -> None:
    """pi_1 = 0 counts as 1e-8; where k0's loss is 30 more, q_1 = 1e-8 / (1e-8 + e^-30) = 0.99999."""
    learner = Weighs(1, (31.0,))
    learner.losses = lambda params: np.array([30.0 if params[0] == 0 else 0.0])
    fit = BUILT_IN["em"].fit(LAYOUT, "ann", em(), learner, {"mixture": {"k0": 1.0}})
    assert fit.upload.mixture["k1"] == pytest.approx(1e-8 / (1e-8 + np.exp(-30)), rel=1e-9)


def test_em_takes_the_shares_for_a_sample_that_no_component_can_judge_and_without_samples() -> None:
    learner = Weighs(2)
    learner.losses = lambda _: np.array([np.inf, 0.0])
    BUILT_IN["em"].fit(LAYOUT, "ann", em(), learner, {"mixture": {"k0": 0.75, "k1": 0.25}})
    np.testing.assert_allclose(learner.weights, [[0.75, 0.75], [0.25, 0.25]])
    nobody = BUILT_IN["em"].fit(LAYOUT, "ann", em(), Weighs(0, ()), {"mixture": {"k0": 0.75, "k1": 0.25}})
    assert nobody.upload.mixture == {"k0": 0.75, "k1": 0.25}


def test_em_uses_all_components_or_the_largest() -> None:
    notebook = {"mixture": {"k0": 0.25, "k1": 0.75}}
    ensemble = BUILT_IN["em"].use(LAYOUT, em(), notebook)
    assert [(share, model.tolist()) for share, model in ensemble] == [(0.25, [0, 8]), (0.75, [1, 4])]
    ((share, model),) = BUILT_IN["em"].use(LAYOUT, em(predict="largest"), notebook)
    assert (share, model.tolist()) == (1.0, [1, 4])
    ((_, first),) = BUILT_IN["em"].use(LAYOUT, em(predict="largest"), {})
    assert first.tolist() == [0, 8]
    for unknown in (None, {}, {"k7": 1.0}):
        assert [share for share, _ in BUILT_IN["em"].use(LAYOUT, em(), {"mixture": unknown})] == [0.5, 0.5]
    assert len(BUILT_IN["em"].use(LAYOUT, em(), {"mixture": {"k0": 1.0, "k1": 0.0}})) == 1
