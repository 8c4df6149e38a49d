"""When to fold and whom to answer: by hand, and whatever clients do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from artesian.algorithms import FedAvg, FedBuff
from artesian.core import Cluster, Desk, Forecast, Measured, Receipt, Reply, State, Step, Upload
from artesian.engine.pace import Rounds, Stream
from artesian.params import Layout, seal
from artesian.testing import ToyFederation

unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


def pending(count: int) -> tuple[Measured, ...]:
    return tuple(Measured(Upload(f"p{i}", 1, 5), Receipt(1, 0, "train", ("k0",))) for i in range(count))


def state(version: int = 0, seed: int = 0) -> State:
    layout = Layout.of({"w": np.zeros(1, np.float32)})
    return State(layout, {"k0": Cluster(seal(np.zeros(1, np.float32)))}, version=version, seed=seed)


# by hand


@pytest.mark.parametrize(
    ("pace", "plan", "folds"),
    [
        (Stream(), {"uploads": 6000}, 6000),
        (Stream(batch=10), {"uploads": 6000}, 600),
        (Stream(batch=10), {"uploads": 5}, 1),
        (Stream(batch=10), {"rounds": 60}, 60),
        (Rounds(100), {"uploads": 6000}, 60),
        (Rounds(None), {"uploads": 6000}, 30),  # everybody: 200 clients
        (Rounds(300), {"uploads": 6000}, 30),  # there are no more than 200
        (Rounds(100), {"uploads": 50}, 1),
        (Rounds(100), {"rounds": 60}, 60),
        (Stream(), {}, None),
        (Rounds(100), {}, None),
    ],
)
def test_a_planned_length_is_counted_in_folds_of_the_pace(pace, plan, folds) -> None:
    assert pace.rounds_in(Forecast(clients=200, **plan)) == folds


@pytest.mark.parametrize(("batch", "count", "folds"), [(1, 0, False), (1, 1, True), (3, 2, False), (3, 3, True)])
def test_a_stream_folds_when_its_batch_is_full(batch: int, count: int, folds: bool) -> None:
    assert Stream(batch).folds(Desk(open=5, pending=pending(count))) is folds


def test_a_stream_answers_everybody_at_once() -> None:
    desk = Desk(open=7, pending=pending(2), waiting=("b", "a"))
    assert list(Stream(3).answers(desk, state())) == ["b", "a"]


@pytest.mark.parametrize(
    ("open_tasks", "count", "folds"), [(0, 0, False), (1, 0, False), (1, 4, False), (0, 1, True), (0, 4, True)]
)
def test_a_round_folds_once_nobody_is_out(open_tasks: int, count: int, folds: bool) -> None:
    assert Rounds(2).folds(Desk(open=open_tasks, pending=pending(count))) is folds


WAITING = ("c4", "c0", "c3", "c1", "c2")


def drawn(pace: Rounds, waiting: Sequence[str] = WAITING, **options: Any) -> list[str]:
    return list(pace.answers(Desk(waiting=tuple(waiting)), state(**options)))


def test_a_round_draws_its_cohort_from_those_who_wait() -> None:
    cohort = drawn(Rounds(3))
    assert len(set(cohort)) == 3 and set(cohort) <= set(WAITING) and cohort == sorted(cohort)


def test_a_cohort_depends_on_seed_and_version_but_not_on_who_came_first() -> None:
    assert drawn(Rounds(2)) == drawn(Rounds(2), sorted(WAITING))
    assert len({tuple(drawn(Rounds(2), version=version)) for version in range(30)}) > 5
    assert len({tuple(drawn(Rounds(2), seed=seed)) for seed in range(30)}) > 5


def test_every_client_is_drawn_as_often_as_the_others() -> None:
    counts = Counter(client for version in range(1000) for client in drawn(Rounds(2), version=version))
    assert set(counts) == set(WAITING)
    assert all(abs(count - 400) < 5 * (1000 * 0.4 * 0.6) ** 0.5 for count in counts.values())


def test_a_round_waits_for_as_many_as_its_cohort() -> None:
    assert drawn(Rounds(3), ["a", "b"]) == []
    assert drawn(Rounds(3), ["a", "b", "c"]) == ["a", "b", "c"]


def test_a_quorum_below_the_size_takes_all_who_are_there() -> None:
    pace = Rounds(4, quorum=2)
    assert drawn(pace, ["a"]) == []
    assert drawn(pace, ["b", "a"]) == ["a", "b"]
    assert len(drawn(pace)) == 4


def test_a_quorum_above_the_size_waits_longer() -> None:
    pace = Rounds(2, quorum=4)
    assert drawn(pace, ["a", "b", "c"]) == []
    assert len(drawn(pace, ["a", "b", "c", "d"])) == 2


def test_nobody_is_drawn_while_a_round_is_open_or_unfolded() -> None:
    assert list(Rounds(1).answers(Desk(open=1, waiting=WAITING), state())) == []
    assert list(Rounds(1).answers(Desk(pending=pending(1), waiting=WAITING), state())) == []


def test_a_selection_of_ones_own_sees_the_state_and_the_sorted_clients() -> None:
    seen: list[tuple[int, Sequence[str]]] = []

    def select(given: State, ready: Sequence[str]) -> Sequence[str]:
        seen.append((given.version, ready))
        return ready[-2:]

    assert drawn(Rounds(3, select=select), version=7) == ["c3", "c4"]
    assert seen == [(7, ["c0", "c1", "c2", "c3", "c4"])]


def test_a_selection_is_not_asked_before_the_quorum() -> None:
    def select(given: State, ready: Sequence[str]) -> Sequence[str]:
        raise AssertionError("asked")

    assert drawn(Rounds(3, select=select), ["a", "b"]) == []


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (Stream, {"batch": 0}),
        (Stream, {"batch": -1}),
        (Rounds, {"size": 0}),
        (Rounds, {"size": 3, "quorum": 0}),
        (Rounds, {"size": 3, "quorum": -2}),
    ],
)
def test_counts_start_at_one(kind: Any, options: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="one"):
        kind(**options)


@pytest.mark.parametrize("patience", [0, -1.0, float("nan")])
@pytest.mark.parametrize("kind", [Stream, Rounds])
def test_patience_is_a_positive_time(kind: Any, patience: float) -> None:
    with pytest.raises(ValueError, match="patience"):
        kind(3, patience=patience)
    assert kind(3, patience=0.5).patience == 0.5
    assert kind(3).patience is None


# whatever clients do


@dataclass(frozen=True)
class Counting:
    """An algorithm that remembers which uploads it folded."""

    folded: Counter[tuple[str, int]] = field(default_factory=Counter)

    def fold(self, state: State, measured: Sequence[Measured]) -> Step:
        self.folded.update((m.upload.client, m.upload.number) for m in measured)
        return super().fold(state, measured)  # type: ignore[misc]


@dataclass(frozen=True)
class CountingAvg(Counting, FedAvg):
    pass


@dataclass(frozen=True)
class CountingBuff(Counting, FedBuff):
    pass


@dataclass
class Story:
    """A federation of five, what happened to it, and what must be true after every event."""

    federation: ToyFederation
    accepted: set[tuple[str, int]] = field(default_factory=set)

    def happen(self, verb: str, client: str) -> None:
        coordinator, tasks = self.federation.coordinator, self.federation.tasks
        before, known = coordinator.digest(), client in coordinator.state.members
        replies: list[Reply] = []
        if verb == "join":
            repeated = client in tasks or client in coordinator.desk.waiting
            replies = coordinator.join(client, 10)
            if repeated:
                assert coordinator.digest() == before
                assert [reply.task.number for reply in replies] == [tasks[c].number for c in (client,) if c in tasks]
                return
        elif verb == "upload" and client in tasks:
            upload = self.federation.upload_of(client)
            replies = coordinator.receive(upload)
            del tasks[client]
            self.accepted.add((client, upload.number))
        elif verb == "leave" and known:
            replies = coordinator.leave(client)
            tasks.pop(client, None)
        elif verb == "expire" and client in tasks:
            replies = coordinator.expire(client, tasks.pop(client).number)
        self.federation.take(replies)
        self.check(replies)

    def check(self, replies: Sequence[Reply]) -> None:
        coordinator, tasks = self.federation.coordinator, self.federation.tasks
        state, desk = coordinator.state, coordinator.desk
        holders = {client for client, member in state.members.items() if member.receipt is not None}
        assert desk.open == len(holders) and holders == set(tasks)
        assert all(state.members[client].present for client in holders)
        assert state.present == sum(member.present for member in state.members.values())
        assert len(set(desk.waiting)) == len(desk.waiting)
        assert all(state.members[c].present and c not in holders for c in desk.waiting)
        assert len({reply.client for reply in replies}) == len(replies)
        self.check_folds(desk)
        if isinstance(coordinator.pace, Rounds):
            assert not replies or desk.open == len(replies) == coordinator.pace.size
            assert not (desk.open == 0 and len(desk.waiting) >= coordinator.pace.size)
        else:
            assert not desk.waiting and len(desk.pending) < coordinator.pace.batch  # type: ignore[attr-defined]

    def check_folds(self, desk: Desk) -> None:
        folded = self.federation.algorithm.folded  # type: ignore[attr-defined]
        lying = [(m.upload.client, m.upload.number) for m in desk.pending]
        assert Counter(self.accepted) == folded + Counter(lying)
        assert desk.open or not lying or isinstance(self.federation.coordinator.pace, Stream)


CLIENTS = 5
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["join", "join", "upload", "upload", "upload", "leave", "expire"]),
        st.integers(0, CLIENTS - 1).map("c{}".format),
    ),
    max_size=40,
)


@unhurried
@given(STEPS, st.integers(1, 3))
def test_rounds_keep_their_books_whatever_clients_do(steps: list[tuple[str, str]], size: int) -> None:
    story = Story(ToyFederation(CountingAvg(clients_per_round=size), clients=CLIENTS))
    for verb, client in steps:
        story.happen(verb, client)


@unhurried
@given(STEPS, st.integers(1, 3))
def test_streams_keep_their_books_whatever_clients_do(steps: list[tuple[str, str]], batch: int) -> None:
    story = Story(ToyFederation(CountingBuff(buffer_size=batch), clients=CLIENTS))
    for verb, client in steps:
        story.happen(verb, client)


def test_an_upload_of_a_client_that_left_still_counts() -> None:
    story = Story(ToyFederation(CountingAvg(clients_per_round=2), clients=CLIENTS))
    for client in ("c0", "c1"):
        story.happen("join", client)
    story.happen("upload", "c0")
    story.happen("leave", "c0")
    story.happen("expire", "c1")
    assert story.federation.coordinator.state.version == 1
    assert dict(story.federation.algorithm.folded) == {("c0", 1): 1}  # type: ignore[attr-defined]


def test_a_round_in_which_nobody_answered_folds_nothing() -> None:
    story = Story(ToyFederation(CountingAvg(clients_per_round=2), clients=CLIENTS))
    for client in ("c0", "c1", "c2"):
        story.happen("join", client)
    story.happen("expire", "c0")
    story.happen("leave", "c1")
    assert story.federation.coordinator.state.version == 0
    story.happen("join", "c0")
    assert set(story.federation.tasks) == {"c0", "c2"}
