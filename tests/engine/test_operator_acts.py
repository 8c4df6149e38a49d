"""What an operator does: members revoked, reset and in quarantine; the state rolled back, and a member forgotten."""

from dataclasses import replace

import pytest

from artesian.algorithms import CA2FL, CDFL, CFL, Confluence, FedAvg, FedBuff
from artesian.core import Act, Event
from artesian.engine.coordinator import Coordinator
from artesian.engine.rebuilding import Rebuilding
from artesian.errors import TaskClosed, Unauthorized, UnknownClient
from artesian.storage.codec import decode, digest, encode, to_tree
from artesian.testing import ToyFederation as Toy

WHO = Act("ann", "a test")
STUDIES = Confluence(
    estimator="calibrated", first_pretend=2, pretend=1, pretend_window=3, calibrate_every=3, calibrate_lag=2
)
ALGORITHMS = [CDFL(), FedBuff(buffer_size=3), FedAvg(clients_per_round=3), CFL(), STUDIES]


class Told(Toy):
    """A toy federation that keeps its events and the state before each."""

    def __init__(self, algorithm, clients: int = 4) -> None:
        self.events: list[Event] = []
        super().__init__(algorithm, clients, record=lambda event: self.events.append(event))
        self.first = self.coordinator.snapshot(tasks=False)

    def again(self) -> Coordinator:
        """The state that the journal gives, from bytes alone."""
        options = {**self.options(), "record": None}
        made = Coordinator.restore(self.algorithm, self.first, **options)
        for event in self.events:
            made.replay(decode("event", encode("event", event), Event))
        return made


def at_work(algorithm, uploads: int = 12, clients: int = 4) -> Told:
    toy = Told(algorithm, clients)
    toy.join_all()
    for _ in range(uploads):
        toy.step()
    return toy


def essence(state, desk) -> str:
    """All of a state but the numbers of tasks and those that are open."""
    members = {client: replace(member, receipt=None, number=0) for client, member in state.members.items()}
    return digest(to_tree([replace(state, members=members), desk.pending, desk.published, desk.changed_by]))


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda a: a.name)
@pytest.mark.parametrize("kind", ["revoke", "reset", "quarantine"])
def test_every_act_is_an_event_that_replays_to_the_same_bytes(algorithm, kind) -> None:
    toy = at_work(algorithm)
    toy.take(toy.coordinator.change_standing(kind, "c1", WHO))
    assert (toy.events[-1].kind, toy.events[-1].client, toy.events[-1].act) == (kind, "c1", WHO)
    count = len(toy.events)
    assert toy.coordinator.change_standing(kind, "c1", WHO) == []
    assert len(toy.events) == count  # nothing happens twice
    toy.tasks.pop("c1", None)
    for _ in range(6):
        if toy.tasks:
            toy.step()
    assert toy.again().digest() == toy.coordinator.digest()


def test_a_revoked_member_can_neither_upload_nor_join_until_it_is_reset() -> None:
    toy = at_work(CDFL())
    upload, number = toy.upload_of("c1"), toy.coordinator.member("c1").number
    toy.coordinator.change_standing("revoke", "c1", WHO)
    assert toy.coordinator.state.present == 3
    assert toy.coordinator.desk.open == 3
    assert toy.coordinator.recorded("c1") == []
    with pytest.raises(Unauthorized, match="revoked client c1"):
        toy.coordinator.receive(upload)
    with pytest.raises(Unauthorized, match="Ask the operator to reset it"):
        toy.coordinator.join("c1", 5)
    toy.coordinator.change_standing("reset", "c1", WHO)
    assert toy.coordinator.member("c1").reset
    toy.coordinator.change_standing("revoke", "c1", WHO)  # once more, before it came back
    assert not toy.coordinator.member("c1").reset
    toy.coordinator.change_standing("reset", "c1", WHO)
    (reply,) = toy.coordinator.join("c1", 5)
    assert reply.task.number == number + 1
    assert not toy.coordinator.member("c1").reset
    with pytest.raises(TaskClosed):
        toy.coordinator.receive(upload)
    with pytest.raises(UnknownClient):
        toy.coordinator.change_standing("revoke", "nobody", WHO)


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda a: a.name)
def test_uploads_in_quarantine_are_recorded_and_answered_and_not_folded(algorithm) -> None:
    toy = at_work(algorithm, 13)
    toy.take(toy.coordinator.change_standing("quarantine", "c1", WHO))
    assert all(m.upload.client != "c1" for m in toy.coordinator.desk.pending)
    while "c1" not in toy.tasks:
        toy.step()
    before = digest(to_tree([toy.coordinator.state.clusters, toy.coordinator.state.memory]))
    rounds, upload = toy.coordinator.desk.open > 1, toy.upload_of("c1")
    del toy.tasks["c1"]
    replies = toy.coordinator.receive(upload)
    assert toy.events[-1].measured.upload == upload
    assert toy.coordinator.member("c1").answered == upload.number
    assert all(m.upload.client != "c1" for m in toy.coordinator.desk.pending)
    if not toy.coordinator.pace.in_rounds:
        assert [reply.client for reply in replies] == ["c1"]
    if rounds or not toy.coordinator.pace.in_rounds:
        assert digest(to_tree([toy.coordinator.state.clusters, toy.coordinator.state.memory])) == before
    toy.take(replies)
    toy.coordinator.change_standing("release", "c1", WHO)
    assert not toy.coordinator.member("c1").quarantined
    assert toy.again().digest() == toy.coordinator.digest()


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda a: a.name)
def test_a_rollback_brings_back_the_state_and_numbers_go_on(algorithm) -> None:
    toy = at_work(algorithm, 7)
    past, event = toy.coordinator.snapshot(tasks=False), len(toy.events)
    for _ in range(6):
        toy.step()
    toy.take(toy.coordinator.join("c9", 5))
    toy.coordinator.change_standing("quarantine", "c2", WHO)
    numbers = {client: member.number for client, member in toy.coordinator.state.members.items()}
    before, answered = dict(toy.tasks), toy.coordinator.member("c0").answered
    toy.tasks.clear()
    toy.take(toy.coordinator.rollback(past, replace(WHO, to=event)))
    state = toy.coordinator.state
    assert digest(to_tree([state.clusters, state.memory, state.version])) == digest(
        to_tree([past.state.clusters, past.state.memory, past.state.version])
    )
    assert {c: m.mixture for c, m in state.members.items() if c != "c9"} == {
        c: m.mixture for c, m in past.state.members.items()
    }
    assert state.members["c9"].present
    assert state.members["c2"].quarantined
    assert state.members["c0"].answered == answered
    for reply in toy.tasks.values():
        assert reply.base == state.version
    for client, number in numbers.items():
        opened = state.members[client].receipt
        assert state.members[client].number == number + (opened is not None)
    assert toy.coordinator.desk.open == len(toy.tasks) == sum(m.receipt is not None for m in state.members.values())
    if not toy.coordinator.pace.in_rounds:
        assert set(toy.tasks) == set(state.members)
    for client in sorted(set(before) - {"c9"}):
        task, toy.tasks[client] = toy.tasks.get(client), before[client]
        with pytest.raises(TaskClosed):
            toy.coordinator.receive(toy.upload_of(client))
        toy.tasks.pop(client)
        if task is not None:
            toy.tasks[client] = task
    toy.tasks.pop("c9", None)
    for _ in range(4):
        toy.step()
    assert toy.again().digest() == toy.coordinator.digest()


def rebuilt(toy: Told, gone: str) -> Rebuilding:
    past = {event.act.to for event in toy.events if event.kind == "rollback"}
    forgotten = {event.client: at for at, event in enumerate(toy.events, 1) if event.kind == "forget"}
    made = Rebuilding(toy.coordinator, toy.first, {**forgotten, gone: None}, past)
    for number, event in enumerate(toy.events, 1):
        made.feed(number, event)
    return made


def fed(toy: Told, *gone: str, sent_again: bool = False) -> Coordinator:
    """A federation that only ever saw the recorded uploads of the others, as they were measured or as if sent again."""
    options = {**toy.options(), "record": None}
    made = Coordinator.restore(toy.algorithm, toy.first, **options)
    for event in toy.events:
        if event.kind == "join" and event.client not in gone:
            made.join(event.client, event.samples)
        elif event.kind == "upload" and event.client not in gone:
            made.receive(event.measured.upload) if sent_again else made.upload(event.measured)
    return made


@pytest.mark.parametrize("algorithm", [CDFL(), FedBuff(buffer_size=3), STUDIES, CA2FL()], ids=lambda a: a.name)
def test_a_forgotten_member_was_never_folded(algorithm) -> None:
    toy = at_work(algorithm, 20, clients=6)
    wanted, number = fed(toy, "c1"), toy.coordinator.member("c1").number
    made = rebuilt(toy, "c1")
    assert made.left_out == 0
    assert made.coordinator.state.version < toy.coordinator.state.version
    toy.take(toy.coordinator.forget("c1", made.snapshot(), WHO))
    assert essence(toy.coordinator.state, toy.coordinator.desk) == essence(wanted.state, wanted.desk)
    assert "c1" not in toy.coordinator.state.members
    assert toy.again().digest() == toy.coordinator.digest()
    assert {c: m.number for c, m in wanted.state.members.items()} == {
        c: m.number - 1 for c, m in toy.coordinator.state.members.items()
    }
    del toy.tasks["c1"]
    toy.step()
    (reply,) = toy.coordinator.join("c1", 5)
    assert reply.task.number == number + 1
    assert toy.again().digest() == toy.coordinator.digest()


def test_where_a_fold_needs_no_given_model_it_is_as_if_the_others_had_sent_their_uploads_again() -> None:
    toy = at_work(CDFL(), 20, clients=6)
    wanted = fed(toy, "c1", sent_again=True)
    assert rebuilt(toy, "c1").coordinator.digest() == replaced_tasks(wanted).digest()


def replaced_tasks(coordinator: Coordinator) -> Coordinator:
    """The same, keeping no tasks."""
    return coordinator.sibling(coordinator.snapshot(tasks=False))


def test_a_second_member_can_be_forgotten_without_the_uploads_of_the_first() -> None:
    toy = at_work(CDFL(), 20, clients=6)
    wanted = fed(toy, "c1", "c2")
    toy.take(toy.coordinator.forget("c1", rebuilt(toy, "c1").snapshot(), WHO))
    toy.events = [event for event in toy.events if event.client != "c1" or event.kind == "forget"]
    toy.coordinator.forget("c2", rebuilt(toy, "c2").snapshot(), WHO)
    assert essence(toy.coordinator.state, toy.coordinator.desk) == essence(wanted.state, wanted.desk)
    assert set(toy.coordinator.desk.retired) == {"c1", "c2"}


def test_forgetting_goes_through_a_rollback() -> None:
    toy = at_work(CDFL(), 8)
    past, event = toy.coordinator.snapshot(tasks=False), len(toy.events)
    shorter = fed(toy, "c1")
    for _ in range(6):
        toy.step()
    toy.tasks.clear()
    toy.take(toy.coordinator.rollback(past, replace(WHO, to=event)))
    toy.coordinator.forget("c1", rebuilt(toy, "c1").snapshot(), WHO)
    assert digest(to_tree(toy.coordinator.state.clusters)) == digest(to_tree(shorter.state.clusters))


def test_rounds_stay_as_they_were_without_the_forgotten() -> None:
    toy = at_work(FedAvg(clients_per_round=3), 18, clients=6)
    made = rebuilt(toy, "c1")
    assert made.left_out == 0
    uploads = [event.measured for event in toy.events if event.measured]
    bases = sorted({m.receipt.base for m in uploads if m.upload.client != "c1"})
    assert made.coordinator.state.version == len(bases)
    first = [m.upload for m in uploads if m.receipt.base == 0 and m.upload.client != "c1"]
    assert 0 < len(first) <= 3
    toy.coordinator.forget("c1", made.snapshot(), WHO)
    assert toy.again().digest() == toy.coordinator.digest()


def test_a_revoked_name_stays_closed_after_it_was_forgotten() -> None:
    toy = at_work(CDFL(), 8)
    toy.coordinator.change_standing("revoke", "c1", WHO)
    toy.coordinator.forget("c1", rebuilt(toy, "c1").snapshot(), WHO)
    with pytest.raises(Unauthorized):
        toy.coordinator.join("c1", 5)
    with pytest.raises(UnknownClient, match="was forgotten"):
        toy.coordinator.change_standing("quarantine", "c1", WHO)
    toy.coordinator.change_standing("reset", "c1", WHO)
    assert toy.coordinator.join("c1", 5)
    assert toy.again().digest() == toy.coordinator.digest()
