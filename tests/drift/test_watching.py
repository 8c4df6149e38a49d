"""Decisions from batches: what a client knows, when it refreshes, and the same after a restart."""

from dataclasses import dataclass, field

import numpy as np
import pytest
from drift.streams import batch

from artesian.drift.detector import Batch, Drift
from artesian.drift.rules import COUNTED
from artesian.drift.watch import Decision, Watching, detector, policy
from artesian.storage.codec import decode, encode


@dataclass
class Loud:
    """Finds drift in every batch whose first loss is above a limit."""

    name = "loud"
    part = "losses"
    limit: float = 1.0

    def __post_init__(self) -> None:
        self.resets = 0

    def observe(self, batch: Batch) -> Drift | None:
        first = float(batch.losses[0])
        return Drift("loud", first, self.limit, len(batch.losses), "it is loud") if first > self.limit else None

    def reset(self) -> None:
        self.resets += 1

    def state(self):
        return {"resets": self.resets}

    def restore(self, state) -> None:
        self.resets = state["resets"]


def losses(first: float, samples: int = 4) -> Batch:
    return Batch(losses=np.full(samples, first))


def test_it_counts_and_decides() -> None:
    loud = Loud()
    watching = Watching("drift or every 3", [loud])
    assert watching.decide(losses(0.0), 1.0) == Decision(False, "no drift was found, and 1 batch came in, not 3")
    found = watching.decide(losses(2.0), 2.0)
    assert (found.refresh, found.reason) == (True, "loud found drift: it is loud")
    assert found.drifts == (Drift("loud", 2.0, 1.0, 4, "it is loud"),)
    known = watching.situation
    assert (known.now, known.samples, known.batches, known.alarms) == (2.0, 8, 2, (2,))
    watching.refreshed(2.5, 70)
    known = watching.situation
    assert (known.samples, known.batches, known.drift, known.alarms) == (0, 0, None, ())
    assert (known.refreshed_at, known.refreshes, known.sent) == (2.5, (2.5,), ((2.5, 70),))
    assert loud.resets == 1


def test_drift_is_remembered_until_a_refresh_answers_it() -> None:
    watching = Watching("drift and apart 10", [Loud()])
    watching.refreshed(0.0)
    assert watching.decide(losses(2.0), 5.0).reason == (
        "loud found drift: it is loud, but the last refresh is less than 10 s ago"
    )
    later = watching.decide(losses(0.0), 11.0)
    assert later.refresh and later.drifts == ()


def test_noise_causes_no_storm() -> None:
    watching = Watching("drift and confirmed 2 of 3", [Loud()])
    wanted = [watching.decide(losses(float(loud)), float(i)).refresh for i, loud in enumerate([2, 0, 0, 2, 0, 2])]
    assert wanted == [False, False, False, False, False, True]


def test_a_request_is_kept_until_the_refresh() -> None:
    watching = Watching("request")
    assert not watching.decide(losses(0.0), 0.0).refresh
    watching.request()
    assert watching.decide(losses(0.0), 1.0).refresh and watching.decide(losses(0.0), 2.0).refresh
    watching.refreshed(3.0)
    assert not watching.decide(losses(0.0), 4.0).refresh


def test_texts_and_values_make_the_same_watch() -> None:
    one = Watching("drift or every 5", ["ks part=logits", "labels"])
    two = Watching(policy("drift or every 5"), [detector("ks", part="logits"), detector("labels")])
    assert (one.policy, one.detectors) == (two.policy, two.detectors)


def test_it_goes_on_from_its_state_at_every_point() -> None:
    def made() -> Watching:
        return Watching(
            "(drift or age 6) and budget 3/10", ["labels window=30 reference=60", "ks window=30 reference=60"]
        )

    whole, stopped, decisions = made(), made(), []
    for i in range(24):
        each = batch(i, 20, moved=i % 8 > 5)
        decision = whole.decide(each, float(i))
        again = made()
        assert again.restore(decode("watch", encode("watch", stopped.state()), dict)) == ()
        assert again.decide(each, float(i)) == decision
        for one in (whole, again) if decision.refresh else ():
            one.refreshed(float(i), 10)
        stopped, decisions = again, [*decisions, decision]
    assert {decision.refresh for decision in decisions} == {True, False}
    assert encode("watch", stopped.state()) == encode("watch", whole.state())
    assert type(stopped.situation.sent[0][1]) is int


def test_detectors_that_changed_begin_afresh_and_the_rest_goes_on() -> None:
    before = Watching("drift", ["labels", Loud()])
    before.decide(Batch(labels=np.zeros(9, np.int64), losses=np.zeros(9)), 1.0)
    before.refreshed(1.0)
    after = Watching("drift", [Loud(), "labels window=50"])
    assert after.restore(before.state()) == ("labels",)
    assert after.detectors[0].resets == 1
    assert after.situation.refreshed_at == 1.0


def test_what_it_remembers_of_refreshes_is_bounded_and_no_budget_is_overdrawn() -> None:
    watching = Watching("always")
    for i in range(COUNTED + 5):
        watching.refreshed(float(i), 2)
    known = watching.situation
    assert len(known.refreshes) == len(known.sent) == COUNTED
    assert sum(count for _, count in known.sent) == 2 * (COUNTED + 5)
    assert known.sent[0] == (5.0, 12)


def test_a_detector_that_lacks_its_part_stops_the_decision() -> None:
    with pytest.raises(Exception, match="needs labels, and this batch has none"):
        Watching("drift", ["labels"]).decide(losses(0.0), 0.0)


def test_a_drift_may_be_answered_several_times() -> None:
    """The third batch drifts; a fourth refresh would have another reason."""
    watching, wanted = Watching("drift or again 3", [Loud()]), []
    for now, first in enumerate([0.0, 0.0, 2.0, 0.0, 0.0, 0.0, 0.0]):
        wanted.append(watching.decide(losses(first), float(now)).refresh)
        if wanted[-1]:
            watching.refreshed(float(now))
        watching.restore(decode("watch", encode("watch", watching.state()), dict))
    assert wanted == [False, False, True, True, True, False, False]


def test_a_refresh_that_answers_no_drift_is_not_repeated() -> None:
    watching = Watching("every 1 or again 2", [Loud()])
    watching.decide(losses(0.0), 0.0)
    watching.refreshed(0.0)
    assert watching.situation.answers == 0
    watching.decide(losses(2.0), 1.0)
    watching.refreshed(1.0)
    assert watching.situation.answers == 1
    watching.decide(losses(2.0), 2.0)  # another drift: counted anew
    watching.refreshed(2.0)
    assert watching.situation.answers == 1


@dataclass
class Counting(Loud):
    """Keeps what it remembers in a field that nobody sets."""

    seen: int = field(default=0, init=False)

    def observe(self, batch: Batch) -> Drift | None:
        self.seen += 1
        return super().observe(batch)


def test_what_a_detector_remembers_is_no_setting_of_it() -> None:
    watching = Watching("drift", [Counting()])
    watching.decide(losses(0.0), 0.0)
    assert Watching("drift", [Counting()]).restore(watching.state()) == ()
    assert Watching("drift", [Counting(limit=2.0)]).restore(watching.state()) == ("loud",)
