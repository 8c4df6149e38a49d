"""Gates: answers that are right, shares by expectation maximisation, the way of a gate in a task, refusals."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from artesian.algorithms import Confluence, gates
from artesian.algorithms.gates import LABELS, LEAST, Gate, fitted, readable_samples, samples_of
from artesian.core import Cluster, Measured, Plan, Receipt, State, Task, Upload
from artesian.errors import BadData, BadFormat, SettingError
from artesian.learners.arrays import LinearRegression, SoftmaxRegression
from artesian.recipes import recipe, train
from artesian.testing import ToyFederation

CLASSES = 2
MODEL = SoftmaxRegression(3, CLASSES)


class Fixed(Gate):
    """A gate whose answer to a sample is the sample itself: how likely it is of the first of two clusters."""

    def answers(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return np.stack([x[:, 0], 1 - x[:, 0]], axis=1)


def fixed() -> Gate:
    return Fixed(np.zeros((1, 2)), 0.0, 1.0, CLASSES)


def column(*numbers: float) -> tuple[np.ndarray, np.ndarray]:
    return np.array(numbers)[:, None], np.zeros(len(numbers), np.int64)


def test_sure_answers_are_counted() -> None:
    assert fixed().shares(*column(1, 1, 1, 0)).tolist() == pytest.approx([0.75, 0.25])


def test_unsure_answers_are_corrected_for_what_they_confuse() -> None:
    """A gate that is right in 80% of cases sees 65% of the first kind where there are 75%: .8 * .75 + .2 * .25."""
    answers = [0.8] * 65 + [0.2] * 35
    assert fixed().shares(*column(*answers)).tolist() == pytest.approx([0.75, 0.25], abs=1e-3)


def test_answers_that_say_nothing_leave_even_shares_and_none_is_ever_zero() -> None:
    assert fixed().shares(*column(0.5, 0.5)).tolist() == [0.5, 0.5]
    assert fixed().shares(*column()).tolist() == [0.5, 0.5]
    assert fixed().shares(*column(1, 1)).tolist() == pytest.approx([1 / (1 + LEAST), LEAST / (1 + LEAST)])


def groups(samples: int = 200, *, numbers: bool = False) -> dict[str, Any]:
    """Two clusters with the same inputs and opposite answers."""
    rng = np.random.default_rng(0)
    model: Any = LinearRegression(3) if numbers else SoftmaxRegression(3, CLASSES)
    found = {}
    for i, sign in enumerate((1, -1)):
        x = rng.normal(size=(samples, 3)).astype(np.float32)
        line = sign * x[:, 0]
        found[f"k{i}"] = model.learner(x, line.astype(np.float32) if numbers else (line > 0).astype(np.int64))
    return found


@pytest.mark.parametrize(("numbers", "right"), [(False, 0.9), (True, 0.8)])
def test_a_gate_learns_which_answers_belong_to_which_cluster(numbers: bool, right: float) -> None:
    gate, new = fitted(groups(numbers=numbers)), groups(100, numbers=numbers)
    answers = [gate.answers(*learner.arrays()).argmax(axis=1) for learner in new.values()]
    assert np.mean(answers[0] == 0) > right and np.mean(answers[1] == 1) > right
    mixed = new["k0"].joined([new["k1"].part(np.arange(25))])
    assert gate.shares(*mixed.arrays()) == pytest.approx([0.8, 0.2], abs=0.08)


def test_a_gate_travels_as_text_and_gives_the_same_shares() -> None:
    gate, (x, y) = fitted(groups()), groups(50)["k0"].arrays()
    again = Gate.of(gate.text)
    assert again.shares(x, y).tolist() == gate.shares(x, y).tolist()
    assert len(str(gate.text)) < 1000
    for broken in ({}, {**gate.text, "weights": "?"}, {**gate.text, "clusters": 7}):
        with pytest.raises(BadFormat, match="gate of the task cannot be read"):
            Gate.of(broken)


def test_data_that_cannot_be_read_are_refused() -> None:
    class Closed:
        samples = 5

    class Stream(Closed):
        def arrays(self) -> None:
            raise BadData("A stream has no order", "Pass arrays")

    for learner in (Closed(), Stream(), groups()["k0"].part(np.arange(1))):
        with pytest.raises(SettingError, match=r'cannot be read by a gate: .* or set algorithm.estimator = "paper"'):
            samples_of("k0", learner)  # type: ignore[arg-type]


def test_many_labels_share_rows_and_several_targets_count_as_one() -> None:
    rng = np.random.default_rng(1)
    sets = {
        f"k{i}": SoftmaxRegression(4, 500).learner(
            rng.normal(size=(300, 4)).astype(np.float32), 10 * rng.integers(0, 20, 300) + i
        )
        for i in range(2)
    }
    many = fitted(sets)
    assert (many.classes, many.weights.shape) == (LABELS, (33 * (LABELS + 1), 2))
    assert many.shares(*sets["k1"].arrays())[1] > 0.9  # odd labels stay odd
    x = rng.normal(size=(60, 4)) + 3 * np.repeat([0, 1], 30)[:, None]
    pairs = [Pairs(part, np.tile([5, 7], (30, 1))) for part in (x[:30], x[30:])]
    several = fitted({"k0": pairs[0], "k1": pairs[1]})  # type: ignore[dict-item]
    assert several.classes == 1
    assert several.shares(*pairs[1].arrays())[1] > 0.9


class Pairs:
    """Samples with two labels each, as of a sequence."""

    def __init__(self, x: np.ndarray, y: np.ndarray) -> None:
        self.x, self.y, self.samples = x, y, len(x)

    def arrays(self) -> tuple[np.ndarray, np.ndarray]:
        return self.x, self.y


def test_large_samples_are_seen_in_parts_and_no_more_of_them_than_enough(monkeypatch) -> None:
    gate, learner = fitted(groups()), groups(50)["k0"]
    whole = gate.shares(*learner.arrays())
    monkeypatch.setattr(gates, "AT_ONCE", 3 * 7)  # 7 rows of 3 numbers
    assert gate.shares(*learner.arrays()) == pytest.approx(whole, rel=1e-6)
    assert readable_samples(learner)[0].shape == (50, 3)  # type: ignore[index]
    monkeypatch.setattr(gates, "ENOUGH", 3 * 20)
    x, y = readable_samples(learner)  # type: ignore[misc]
    assert x.tolist() == learner.x[np.arange(20) * 50 // 20].tolist() and len(y) == 20


def test_a_client_asks_the_gate_and_sends_the_shares_beside_the_model() -> None:
    model, learner, gate = SoftmaxRegression(3, CLASSES), groups(50)["k0"], fitted(groups())
    settings = {"seed": 1, "rate": 0.1, "gate": gate.text, "clusters": ["k0", "k1"]}
    task = Task({"blend": model.start(0)}, "train", settings, number=1)
    plain = replace(task, settings={"seed": 1, "rate": 0.1})
    asked, told = (recipe("train").fit(model.layout, "ann", t, learner, {}).upload for t in (task, plain))
    assert asked.mixture == dict(zip(("k0", "k1"), gate.shares(*learner.arrays()).tolist(), strict=True))
    assert told.mixture is None
    assert asked.params.tolist() == told.params.tolist()


def test_a_learner_that_keeps_its_samples_to_itself_sends_no_shares() -> None:
    class Stream:
        samples = 5

        def arrays(self) -> None:
            raise BadData("A stream has no order", "Pass arrays")

    class Closed:
        samples = 5

    task = Task({}, "train", {"gate": fitted(groups()).text, "clusters": ["k0", "k1"]})
    for learner in (Stream(), Closed(), groups()["k0"].part(np.arange(0))):
        assert train.asked(task, learner) is None  # type: ignore[arg-type]


def test_confluence_sends_the_gate_with_every_task_and_takes_the_shares() -> None:
    federation = ToyFederation(Confluence(estimator="gate"), 4)
    federation.join_all()
    upload = federation.step()
    state = federation.coordinator.state
    task = federation.coordinator.preview(upload.client)
    assert (task.settings["clusters"], task.settings["gate"]) == (["k0", "k1"], state.memory["gate"])
    assert state.members[upload.client].mixture == pytest.approx(upload.mixture)


def test_a_client_that_sends_no_shares_keeps_its_mixture() -> None:
    federation = ToyFederation(Confluence(estimator="gate"), 4)
    federation.join_all()
    upload = federation.step()
    before = federation.coordinator.state.members[upload.client].mixture
    number = federation.coordinator.state.members[upload.client].number
    federation.coordinator.receive(replace(upload, number=number, mixture=None))
    assert federation.coordinator.state.members[upload.client].mixture == pytest.approx(before)


def test_a_gate_says_which_clusters_it_cannot_tell_apart_and_they_share_alike() -> None:
    """The third proxy set is a copy of the second: what a client says of the two is made even."""
    two = groups(400)
    copied, names = {**two, "k2": two["k1"]}, ["k0", "k1", "k2"]
    start = State(MODEL.layout, {k: Cluster(MODEL.start(i)) for i, k in enumerate(names)}, seed=3)
    for proxies, pairs in ((copied, [["k1", "k2"]]), (groups(400), [])):
        own = replace(start, clusters={k: start.clusters[k] for k in proxies})
        found = Confluence().find(own, proxies, Plan())
        assert found["gate_tried"]["alike"] == pairs
        assert found["gate_tried"]["version"] == 0
        assert 0 <= found["gate_tried"]["divergence"] < (0.6 if pairs else 0.05)
        known = Confluence().calibration(found)
        assert known is not None and known.alike == tuple(map(tuple, pairs))
    said = replace(start, memory={"gate_tried": {"alike": [["k1", "k2"]]}})
    sent = Measured(Upload("a", 1, 5, {}, {"k0": 0.5, "k1": 0.4, "k2": 0.1}), Receipt(1, 0, "train", ()))
    assert Confluence().shares_told(said, sent) == pytest.approx([0.5, 0.25, 0.25])  # type: ignore[arg-type]


def test_the_first_hashed_numbers_by_plain_integers() -> None:
    """Of 1: 1 * 0x85EBCA6B = 0x85EBCA6B, xor its upper 19 bits = 0x85EFE535, times 0xC2B2AE35, and so on."""

    def by_hand(n: int) -> float:
        n = (n ^ n >> 16) * 0x85EBCA6B % 2**32
        n = (n ^ n >> 13) * 0xC2B2AE35 % 2**32
        return 12**0.5 * (((n ^ n >> 16) + 0.5) / 2**32 - 0.5)

    assert gates.hashed(5000).tolist() == pytest.approx([by_hand(n) for n in range(1, 5001)], rel=1e-12)
    assert gates.hashed(2).tolist() == pytest.approx([-0.6318560, -1.0695941], abs=1e-6)
    assert abs(gates.hashed(5000).mean()) < 0.03 and abs(gates.hashed(5000).var() - 1) < 0.03


def test_a_gate_of_an_earlier_store_keeps_its_features_and_an_unknown_kind_is_refused() -> None:
    gate, (x, y) = fitted(groups()), groups(50)["k0"].arrays()
    earlier = {key: value for key, value in gate.text.items() if key != "features"}
    assert (Gate.of(earlier).features, Gate.of(gate.text).features) == ("normal", "hashed")
    assert Gate.of(earlier).shares(x, y).tolist() != gate.shares(x, y).tolist()
    with pytest.raises(BadFormat, match=r"gate of the task cannot be read.*install a newer artesian"):
        Gate.of({**gate.text, "features": "of tomorrow"})
