"""Losses and errors sample by sample: rises are told, falls are not, and a restart changes nothing."""

import numpy as np
import pytest

pytest.importorskip("river")

from artesian.drift.detector import Batch
from artesian.drift.stream_tests import Adwin, Kswin, PageHinkley, Replay


def losses(mean: float, samples: int = 200, seed: int = 0) -> Batch:
    rng = np.random.default_rng(seed)
    return Batch(losses=mean * rng.uniform(0.9, 1.1, samples), errors=rng.random(samples) < mean / 10)


@pytest.mark.parametrize("kind", [Adwin, PageHinkley, Kswin])
def test_a_model_that_does_better_is_no_drift_unless_one_wants_to_know(kind) -> None:
    for direction, found in (("up", False), ("both", True)):
        made = kind(part="losses", direction=direction)
        batches = [losses(9.0, seed=0), losses(1.0, seed=1)]
        assert any(made.observe(each) for each in batches) == found, direction


def test_what_changed_is_said_in_numbers() -> None:
    made = Adwin()
    for _ in range(4):
        made.observe(Batch(errors=np.zeros(100)))
    assert made.observe(Batch(errors=np.ones(100))).why.startswith("the share of errors went from 0 to ")


def test_page_hinkley_adds_up_what_exceeds_the_mean() -> None:
    """100 zeros and then tens: the n-th ten exceeds the mean 10 n / (100 + n) by 9.90, 9.80, 9.71, ...: 29.4 with 3."""
    numbers = np.array([0.0] * 100 + [10.0] * 3)
    for limit, found in ((29.0, True), (30.0, False)):
        drift = PageHinkley(limit=limit, tolerance=0.0, fading=1.0).observe(Batch(losses=numbers))
        assert (drift is not None) == found
    drift = PageHinkley(limit=15.0, tolerance=0.0, fading=1.0).observe(Batch(losses=numbers))
    assert (drift.samples, drift.why) == (102, "the mean loss went from 0 to 10")


def test_all_drifts_of_a_batch_count_but_the_first_is_told() -> None:
    made = PageHinkley(limit=15.0, tolerance=0.0)
    numbers = np.array([0.0] * 100 + [10.0] * 100 + [50.0] * 100)
    assert made.observe(Batch(losses=numbers)).samples == 102
    assert made.observe(Batch(losses=np.full(40, 50.0))) is None  # the second rise was in the same batch


class Sums:
    """Stands in for a test: finds nothing, and knows what it was fed."""

    def __init__(self) -> None:
        self.fed: list[float] = []
        self.drift_detected = False

    def update(self, number: float) -> None:
        self.fed.append(number)


def test_what_is_kept_is_cut_at_the_same_sample_with_and_without_a_restart() -> None:
    """At most 6 are kept; the seventh sample finds the last 3 of them."""
    replay = Replay(6)
    for i in range(6):
        replay.feed(float(i), Sums)
    assert replay.kept == replay.test.fed == [0, 1, 2, 3, 4, 5]
    again = Replay(6)
    again.restore(replay.state())
    for each in (replay, again):
        each.feed(6.0, Sums)
        assert each.kept == each.test.fed == [3, 4, 5, 6]
        assert each.seen == 7
