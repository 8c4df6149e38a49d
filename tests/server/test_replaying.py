"""A store replayed by other code: the same answers, or a sentence that names the event; never others in silence."""

from dataclasses import dataclass, replace

import pytest
from promises.federation import federation, trained

from artesian.algorithms import CDFL, FedAvg
from artesian.core import Step, Task
from artesian.engine.outcomes import different, task_digest
from artesian.errors import NotFinite, ReplayDiffers
from artesian.server.messages import encode_task
from artesian.server.service import Service
from artesian.server.versions import versions_of
from artesian.storage.reading import read_history
from artesian.storage.store import Store


@dataclass(frozen=True)
class Louder(CDFL):
    """CDFL as a later version might have it: clusters move a little further."""

    def fold(self, state, measured) -> Step:
        step = super().fold(state, measured)
        return replace(step, clusters={k: params * 1.0001 for k, params in step.clusters.items()})


@dataclass(frozen=True)
class Stricter(CDFL):
    """CDFL as a later version might have it: what was accepted is refused."""

    def fold(self, state, measured) -> Step:
        raise NotFinite("Not with this version", "Use another")


@dataclass(frozen=True)
class Renamed(CDFL):
    """Other code with the same answers."""


def opened(folder, algorithm=None, **options) -> Service:
    served = federation(algorithm or CDFL())
    store = Store(folder, served.identity)
    try:
        return Service.open(served, store, **options)
    except BaseException:
        store.close()
        raise


def crashed(folder, uploads: int = 3, **options) -> str:
    """A store whose server was killed after some uploads; the digest of its state."""
    service = opened(folder, **options)
    coordinator = service.coordinator
    coordinator.join("c0", 5)
    for _ in range(uploads):
        (reply,) = coordinator.recorded("c0")
        coordinator.receive(trained("c0", encode_task(reply.task)))
    service.store.close()
    return coordinator.digest()


def test_events_carry_what_came_of_them(tmp_path) -> None:
    crashed(tmp_path, 1)
    store = Store(tmp_path, federation().identity)
    join, upload = store.events()
    store.close()
    assert list(join.outcome) == ["task of c0"]
    assert "task of c0" in upload.outcome
    assert set(upload.outcome) - {"task of c0"} <= {"cluster k0", "cluster k1"} != set()


def test_other_answers_are_refused_by_the_event(tmp_path) -> None:
    crashed(tmp_path)
    before = read_history(tmp_path)
    with pytest.raises(
        ReplayDiffers, match=r"Event 2 \(upload of c0\) now gives another cluster k., another"
    ) as refused:
        opened(tmp_path, Louder())
    assert "written by artesian" in str(refused.value)
    assert "--accept-replay" in str(refused.value)
    assert read_history(tmp_path) == before


def test_an_event_that_is_refused_now_is_named(tmp_path) -> None:
    crashed(tmp_path)
    with pytest.raises(ReplayDiffers, match=r"Event 2 \(upload of c0\) is refused now \(Not with this version\)"):
        opened(tmp_path, Stricter(), accept_replay=True)


def test_other_answers_can_be_accepted_once_and_for_all(tmp_path) -> None:
    before, said = crashed(tmp_path), []
    service = opened(tmp_path, Louder(), accept_replay=True, report=said.append)
    after = service.coordinator.digest()
    service.store.close()
    assert after != before
    assert any(line.startswith("Event 2 (upload of c0) now gives another") for line in said)
    again = opened(tmp_path, Louder())  # it stands in a snapshot now
    assert again.coordinator.digest() == after
    again.close()


def test_other_code_with_the_same_answers_begins_with_a_snapshot(tmp_path) -> None:
    before = crashed(tmp_path)
    assert [row.events for row in read_history(tmp_path).snapshots] == [0]
    service = opened(tmp_path, Renamed())
    assert service.coordinator.digest() == before
    service.store.close()
    history = read_history(tmp_path)
    assert [row.events for row in history.snapshots] == [4]
    assert [row.events for row in history.stretches] == [0, 4]
    assert history.writer(4) == versions_of(CDFL()) != history.writer(5) == versions_of(Renamed())


def test_the_same_code_takes_no_snapshot_when_it_starts(tmp_path) -> None:
    before = crashed(tmp_path)
    service = opened(tmp_path)
    assert service.coordinator.digest() == before
    service.store.close()
    assert [row.events for row in read_history(tmp_path).snapshots] == [0]


def test_versions_are_those_of_the_code(tmp_path) -> None:
    assert versions_of(CDFL()) == versions_of(FedAvg()) == versions_of(CDFL(beta0=0.5))
    assert versions_of(Renamed())["algorithm"] != versions_of(CDFL())["algorithm"]
    assert versions_of(Renamed())["numpy"] == versions_of(CDFL())["numpy"]


def test_a_task_has_the_same_digest_when_tasks_get_more_fields() -> None:
    task = Task({}, settings={"seed": 1}, number=3)

    @dataclass(frozen=True)
    class Later(Task):
        urgent: bool = False

    later = Later({}, settings={"seed": 1}, number=3)
    assert task_digest(later) == task_digest(task)
    assert task_digest(replace(later, urgent=True)) != task_digest(task)
    assert task_digest(replace(task, memo={"a": 1})) != task_digest(task)


def test_what_was_not_recorded_is_not_compared() -> None:
    assert different({}, {"task of c0": "a"}) == []
    assert different({"task of c0": "a"}, {}) == ["task of c0"]
    assert different({"task of c0": "a"}, {"task of c0": "a", "cluster k0": "b"}) == ["cluster k0"]
