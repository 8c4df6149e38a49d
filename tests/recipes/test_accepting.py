"""Which samples judge, and which candidate wins, by hand: a line through the origin, whose loss is (w x - y)^2."""

import math
import warnings
from dataclasses import replace

import numpy as np
import pytest

from artesian.core import derive, generator
from artesian.errors import BadData
from artesian.learners.arrays import LinearRegression, SoftmaxRegression
from artesian.params import Layout, seal
from artesian.recipes.accepting import (
    Tried,
    Voices,
    candidates,
    choose,
    divided,
    held_back,
    undivided,
    with_continued,
)

LINE = LinearRegression(1, bias=False)
FITTED = 4.0  # all data say so


def learner(samples: int, y: float = FITTED):
    return LINE.learner(np.ones((samples, 1), np.float32), np.full(samples, y, np.float32))


def model(*numbers: float):
    """An ensemble of one model per number, each with the same weight."""
    return tuple((1 / len(numbers), seal(np.array([number], np.float32))) for number in numbers)


def chosen(**among):
    return choose(candidates(LINE.layout, **among), divided(learner(50), 0.2, "ann"))


# what is held back


def test_one_row_of_every_block_is_held_back() -> None:
    rows = held_back(52, 0.2, "ann")
    assert [row // 5 for row in rows] == list(range(10))  # not of the last two
    drawn = [int(generator(derive("ann"), "held back", block).integers(5)) for block in range(10)]
    assert [row % 5 for row in rows] == drawn
    assert len(set(drawn)) > 1


@pytest.mark.parametrize(("share", "block"), [(0.5, 2), (0.3, 3), (0.1, 10)])
def test_the_share_decides_the_size_of_a_block(share, block) -> None:
    assert [row // block for row in held_back(30 * block, share, "ann")] == list(range(30))


def test_rows_stay_held_back_when_data_are_appended() -> None:
    assert held_back(100, 0.2, "ann").tolist() == held_back(503, 0.2, "ann")[:20].tolist()


def test_every_client_holds_back_others() -> None:
    assert held_back(500, 0.2, "ann").tolist() != held_back(500, 0.2, "bob").tolist()


def test_the_rest_is_trained_on() -> None:
    data = LINE.learner(np.arange(50, dtype=np.float32)[:, None], np.arange(50, dtype=np.float32))
    split = divided(data, 0.2, "ann")
    assert (split.train.samples, split.judge().samples, split.why) == (40, 10, "")
    assert sorted([*split.train.y.tolist(), *split.judge().y.tolist()]) == list(range(50))
    assert split.judge().y.tolist() == split.rows.tolist()


def test_too_few_samples_are_all_trained_on() -> None:
    data = learner(24)
    split = divided(data, 0.2, "ann")
    assert split.train is data and not split.rows.size
    assert split.why == "24 samples are too few to hold back 5 of them"


def test_a_learner_that_cannot_be_divided_holds_nothing_back() -> None:
    class Plain:
        samples = 1000

    assert divided(Plain(), 0.2, "ann").why == "A Plain cannot be divided: it has no method part"


def test_a_learner_that_refuses_to_be_divided_holds_nothing_back() -> None:
    class Stream:
        samples = 1000

        def part(self, rows):
            raise BadData("Samples come in another order each time", "Pass arrays")

        def joined(self, others):
            raise NotImplementedError

    stream = Stream()
    split = divided(stream, 0.2, "ann")
    assert (split.train, split.why) == (stream, "Samples come in another order each time")


# the candidates


def test_the_midpoint_is_the_mean_of_two_single_models() -> None:
    found = candidates(LINE.layout, drawn=model(1), trained=model(4), previous=model(7), tuned=model(2))
    assert list(found) == ["midpoint", "drawn", "tuned", "trained", "previous"]
    assert found["midpoint"][0][1].tolist() == [2.5]


def test_ensembles_have_no_midpoint_and_what_is_missing_is_no_candidate() -> None:
    assert list(candidates(LINE.layout, drawn=model(1, 2), trained=model(4))) == ["drawn", "trained"]
    assert list(candidates(LINE.layout, drawn=model(1), trained=())) == ["drawn"]


def test_the_midpoint_keeps_exact_entries() -> None:
    layout = Layout.of({"w": np.zeros(1, np.float32), "steps": np.array(0)}, trainable=["w"])
    one, two = (layout.pack({"w": np.array([w], np.float32), "steps": np.array(n)}) for w, n in ((1, 5), (2, 9)))
    middle = candidates(layout, drawn=((1.0, one),), trained=((1.0, two),))["midpoint"][0][1]
    assert layout.unpack(middle)["w"].tolist() == [1.5] and layout.unpack(middle)["steps"] == 9


# the choice


@pytest.mark.parametrize(
    ("drawn", "trained", "previous", "won"),
    [(4, 9, 9, "drawn"), (9, 4, 9, "trained"), (9, 10, 4, "previous"), (3, 5, 9, "midpoint")],
)
def test_the_best_on_the_samples_held_back_wins(drawn, trained, previous, won) -> None:
    choice = chosen(drawn=model(drawn), trained=model(trained), previous=model(previous))
    middle = (drawn + trained) / 2
    scores = {"drawn": drawn, "midpoint": middle, "trained": trained, "previous": previous}
    assert choice.won == won
    assert choice.scores == {name: -((w - FITTED) ** 2) for name, w in scores.items()}
    assert (choice.held_back, choice.share, choice.why) == (10, 0.2, "")


def test_the_gain_is_over_what_was_trained_and_what_was_drawn() -> None:
    """Scores of 7, 5 and 6 are -9, -1 and -4."""
    assert chosen(drawn=model(7), trained=model(5)).gain == {"trained": 0, "drawn": 8}
    assert chosen(drawn=model(7), trained=(), previous=model(5)).gain == {"drawn": 8}


def test_tuned_is_a_candidate() -> None:
    choice = chosen(drawn=model(9), trained=model(9), tuned=model(4))
    assert (choice.won, choice.gain) == ("tuned", {"trained": 25, "drawn": 25})


def continued(samples: int = 50, **among):
    """What `with_continued` adds, with the model it trained: its number is halved on the way to 4."""
    seen = []

    def train(ensemble):
        seen.append(ensemble[0][1][0])
        return model((ensemble[0][1][0] + FITTED) / 2)

    found = with_continued(candidates(LINE.layout, **among), divided(learner(samples), 0.2, "ann"), train)
    return seen, choose(found, divided(learner(samples), 0.2, "ann"))


def test_what_beats_all_that_a_refresh_brought_is_trained_on() -> None:
    """Drawn 9, trained 8, used before 6, which is trained on to 5."""
    seen, choice = continued(drawn=model(9), trained=model(8), previous=model(6))
    assert (seen, choice.won, choice.scores["continued"], choice.scores["previous"]) == ([6], "continued", -1, -4)


@pytest.mark.parametrize(
    "among",
    [
        {"drawn": model(9), "trained": model(5), "previous": model(6)},  # what was trained is better
        {"drawn": model(6), "trained": model(6), "previous": model(6)},  # it is no better
        {"drawn": model(9), "trained": model(8)},  # there is nothing
    ],
)
def test_nothing_else_is_trained_on(among) -> None:
    seen, choice = continued(**among)
    assert not seen and "continued" not in choice.scores


def test_nothing_is_trained_on_where_nothing_judges() -> None:
    seen, choice = continued(20, drawn=model(9), trained=model(8), previous=model(4))
    assert not seen and choice.won == "midpoint"


def test_what_was_used_before_is_trained_on_sooner_than_it_is_used() -> None:
    """Nine samples say 4 and one says 8: the gains of 4 over 6 have mean 2.4 and standard error 1.6, 1.5 of them."""
    y = np.full(50, FITTED, np.float32)
    y[held_back(50, 0.2, "ann")[0]] = 8
    split = divided(LINE.learner(np.ones((50, 1), np.float32), y), 0.2, "ann")
    among = {"trained": model(6), "previous": model(4)}
    assert choose(among, split).won == "trained"
    assert "continued" in with_continued(among, split, lambda ensemble: ensemble)


def test_of_equal_scores_the_lowest_loss_wins() -> None:
    """All samples are of class 1: both models are right everywhere, and the second one is surer."""
    kind = SoftmaxRegression(1, 2)
    data = kind.learner(np.ones((50, 1), np.float32), np.ones(50, np.int64))
    weak, sure = (((1.0, seal(np.array([0, 0, 0, bias], np.float32))),) for bias in (1, 3))
    split = divided(data, 0.2, "ann")
    assert choose({"drawn": weak, "trained": sure}, split).won == "trained"
    assert choose({"drawn": weak, "trained": ((0.5, sure[0][1]), (0.5, sure[0][1]))}, split).won == "drawn"
    assert choose({"drawn": (weak[0], weak[0]), "trained": sure}, split).won == "drawn"  # as good, as far as we know
    assert choose({"drawn": weak, "trained": sure}, split).gain == {"trained": 0, "drawn": 0}


@pytest.mark.parametrize(
    ("gains", "beaten"),
    [
        ([1, 1, 0, 0, 0, 0, 0, 0, 0, -1], 0.5),  # mean .1, standard error .180: .56 of them
        ([2, 1, 0, 0, 0, 0, 0, 0, 0, 0], 1.0),  # mean .3, standard error .213: 1.4 of them
        ([2, 2, 1, 1, 1, 1, 0, 0, 0, 0], 2.0),  # mean .8, standard error .249: 3.2 of them
        ([2, -1, 0, 0, 0, 0, 0, 0, 0, 0], 0.0),  # mean .1, standard error .233: .43 of them
    ],
)
def test_a_difference_that_may_be_luck_changes_nothing(gains, beaten) -> None:
    """On ten samples held back, the loss of the other is higher by this; a lower score does not matter."""
    other, one = Tried(0.5, np.full(10, 3.0) + gains, True), Tried(0.4, np.full(10, 3.0), True)
    assert [one.beats(other, margin) for margin in (0.0, 0.5, 1.0, 2.0)] == [m <= beaten for m in (0.0, 0.5, 1.0, 2.0)]
    assert not other.beats(one, 0.0)


def test_equal_losses_beat_nothing() -> None:
    same = Tried(0.5, np.full(10, 3.0), True)
    assert not same.beats(same, 0.0)


@pytest.mark.parametrize(
    ("name", "gains", "wins"),
    [  # gains over the midpoint on ten samples: 1.4, .56 and 3.2 standard errors, as above
        ("drawn", [2, 1, 0, 0, 0, 0, 0, 0, 0, 0], True),
        ("drawn", [1, 1, 0, 0, 0, 0, 0, 0, 0, -1], False),
        ("tuned", [2, 1, 0, 0, 0, 0, 0, 0, 0, 0], True),
        ("tuned", [1, 1, 0, 0, 0, 0, 0, 0, 0, -1], False),
        ("trained", [1, 1, 0, 0, 0, 0, 0, 0, 0, -1], True),
        ("trained", [2, -1, 0, 0, 0, 0, 0, 0, 0, 0], False),
        ("previous", [2, 1, 0, 0, 0, 0, 0, 0, 0, 0], False),
        ("previous", [2, 2, 1, 1, 1, 1, 0, 0, 0, 0], True),
    ],
)
def test_each_candidate_has_a_margin_of_its_own(name, gains, wins) -> None:
    """The losses of the midpoint and of one other candidate on ten samples are given."""
    losses = {"midpoint": np.full(10, 3.0) + gains, name: np.full(10, 3.0)}

    class Judge:
        samples = 10

        def score(self, ensemble):
            return 0.5

        def losses(self, params):
            return losses[str(params)]

    class Whole:
        samples = 50

        def part(self, rows):
            return Judge()

        def joined(self, others):
            raise AssertionError

    split = replace(undivided(Whole(), ""), rows=np.arange(10))
    among = {each: ((1.0, each),) for each in losses}
    assert choose(among, split).won == (name if wins else "midpoint")


def test_each_is_compared_with_the_best_so_far() -> None:
    """Losses of 25, 16 and 9 on every sample: what was drawn beats the middle, and what was trained beats that."""
    choice = choose({"midpoint": model(9), "drawn": model(8), "trained": model(7)}, divided(learner(50), 0.2, "ann"))
    assert choice.won == "trained"
    choice = choose({"midpoint": model(9), "drawn": model(6), "trained": model(7)}, divided(learner(50), 0.2, "ann"))
    assert choice.won == "drawn"


def test_of_equals_the_first_wins() -> None:
    same = {name: model(5) for name in ("drawn", "trained", "previous", "tuned")}
    assert chosen(**same).won == "drawn"  # which is the middle, too
    order = ["previous", "trained", "tuned", "drawn", "midpoint"]
    split = divided(learner(50), 0.2, "ann")
    for i in range(1, 6):
        assert choose({name: model(5) for name in order[:i]}, split).won == order[i - 1]
    two = model(5, 5)
    assert choose({"trained": two, "drawn": two}, split).won == "drawn"


@pytest.mark.parametrize("number", [math.nan, math.inf, 1e38])
def test_what_is_not_finite_never_wins_while_there_is_another(number) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        assert chosen(drawn=model(number), trained=(), previous=model(9)).won == "previous"
        assert chosen(drawn=(*model(4), *model(number)), trained=model(9)).won == "trained"
        assert chosen(drawn=model(number), trained=model(number)).won in ("midpoint", "drawn")


def test_a_model_whose_classes_cannot_be_told_apart_never_wins() -> None:
    """All of its outputs are NaN, of which the first counts as the largest: a score of 1 for nothing."""
    kind = SoftmaxRegression(1, 2)
    data = kind.learner(np.ones((50, 1), np.float32), np.zeros(50, np.int64))
    broken, wrong = (((1.0, seal(np.array(w, np.float32))),) for w in ([math.nan] * 4, [0, 0, 0, 1]))
    choice = choose({"drawn": broken, "trained": wrong}, divided(data, 0.2, "ann"))
    assert (choice.won, choice.scores) == ("trained", {"drawn": 1.0, "trained": 0.0})


def test_without_samples_held_back_the_middle_is_used_or_what_was_drawn() -> None:
    split = undivided(learner(3), "They are too few")
    choice = choose({"drawn": model(9), "trained": model(4)}, split)
    assert (choice.won, choice.scores, choice.held_back, choice.why) == ("drawn", {}, 0, "They are too few")
    assert choice.gain == {}
    assert choose({"drawn": model(9), "tuned": model(8)}, split).won == "tuned"
    three = candidates(LINE.layout, drawn=model(9), trained=model(4))
    assert choose(three, split).won == "midpoint"
    assert choose(three, undivided(learner(3), "Always", "drawn")).won == "drawn"


def test_an_ensemble_is_stored_and_read_again() -> None:
    stored = Voices.of(model(1, 2))
    assert stored.weights == (0.5, 0.5)
    assert [(weight, params.tolist()) for weight, params in stored.ensemble] == [(0.5, [1]), (0.5, [2])]
    assert Voices().ensemble == ()
