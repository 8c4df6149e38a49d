"""Gates: answers that are right, shares by expectation maximisation, the way of a gate in a task, refusals."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from artesian.algorithms import Confluence
from artesian.algorithms.gates import LEAST, Gate, fitted, readable
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

    for learner in (Closed(), groups()["k0"].part(np.arange(0))):
        with pytest.raises(SettingError, match="cannot be read by a gate"):
            readable("k0", learner)  # type: ignore[arg-type]


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
