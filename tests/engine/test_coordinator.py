"""The engine's own rules: admission, numbers, recording before changing, appraisals, solo tasks, patience."""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest

from artesian.algorithms import CDFL, FedAsync, FedAvg, FedBuff, Local
from artesian.core import Event, Plan, Snapshot, Step, Task, Upload
from artesian.engine.coordinator import Coordinator
from artesian.engine.pace import Rounds
from artesian.errors import (
    BadClient,
    BadMixture,
    NotFinite,
    SettingError,
    StorageError,
    TaskClosed,
    UnknownClient,
    WrongModels,
    WrongShape,
)
from artesian.params import seal
from artesian.storage.codec import decode, encode
from artesian.testing import ToyFederation, ToyModel


def joined(algorithm=None, clients: int = 3, **options) -> ToyFederation:
    federation = ToyFederation(algorithm or FedAsync(), clients, **options)
    federation.join_all()
    return federation


def test_tasks_are_numbered_per_client_and_carry_version_plan_and_seed() -> None:
    model = ToyModel()
    coordinator = Coordinator.start(
        FedAsync(rho=0.5), model.layout, [model.start(0)], 9, plan=Plan(rate=0.25, epochs=3)
    )
    (reply,) = coordinator.join("ann", 5)
    assert (reply.client, reply.task.number, reply.task.base) == ("ann", 1, 0)
    settings = dict(reply.task.settings)
    assert settings.pop("seed") > 0
    assert settings == {
        "optimizer": "sgd",
        "rate": 0.25,
        "epochs": 3,
        "batch": 32,
        "momentum": 0,
        "decay": 0,
        "schedule": "constant",
        "prox": 0.5,
    }
    (other,) = coordinator.join("bob", 5)
    assert other.task.number == 1
    assert other.task.settings["seed"] != reply.task.settings["seed"]


def test_a_clients_rate_cools_from_training_to_training() -> None:
    federation = ToyFederation(FedAsync(), 1)
    federation.coordinator.plan = {"rate": 0.4, "epochs": 2, "cooling": 0.5}
    federation.join_all()
    rates = []
    for _ in range(3):
        settings = federation.tasks["c0"].settings
        rates.append(settings["rate"])
        assert "cooling" not in settings
        federation.step()
    assert rates == [0.4, 0.2, 0.1]


def test_joining_again_is_harmless() -> None:
    federation = joined()
    before = federation.coordinator.digest()
    (reply,) = federation.coordinator.join("c0", 10)
    assert reply.task is federation.tasks["c0"]
    assert federation.coordinator.digest() == before


def test_joining_again_while_waiting_for_a_round_is_harmless() -> None:
    federation = ToyFederation(FedAvg(clients_per_round=2), 3)
    assert federation.coordinator.join("c0", 10) == []
    before = federation.coordinator.digest()
    assert federation.coordinator.join("c0", 10) == []
    assert federation.coordinator.digest() == before


@pytest.mark.parametrize(
    ("client", "samples"), [("", 1), ("a\n", 1), ("x" * 201, 1), ("a", -1), ("a", True), ("a", 1.0)]
)
def test_an_impossible_client_is_refused(client, samples) -> None:
    federation = joined()
    before = federation.coordinator.digest()
    with pytest.raises(BadClient):
        federation.coordinator.join(client, samples)
    assert federation.coordinator.digest() == before


def test_a_stranger_cannot_leave_and_leaving_twice_is_harmless() -> None:
    federation = joined()
    with pytest.raises(UnknownClient, match="Join first"):
        federation.coordinator.leave("nobody")
    federation.coordinator.leave("c0")
    before = federation.coordinator.digest()
    assert federation.coordinator.leave("c0") == []
    assert federation.coordinator.digest() == before
    assert federation.coordinator.state.present == 2


class FullDisk:
    """Records until it is told not to."""

    def __init__(self) -> None:
        self.full, self.events = False, []

    def __call__(self, event: Event) -> None:
        if self.full:
            raise StorageError("the disk is full")
        self.events.append(event)


@pytest.mark.parametrize(
    "algorithm", [FedAsync(), FedBuff(buffer_size=2), FedAvg(clients_per_round=2), CDFL(), Local()]
)
def test_what_cannot_be_recorded_does_not_happen(algorithm) -> None:
    disk = FullDisk()
    federation = joined(algorithm, record=disk)
    coordinator = federation.coordinator
    client = sorted(federation.tasks)[0]
    upload = federation.upload_of(client)
    verbs = [
        lambda: coordinator.receive(upload),
        lambda: coordinator.leave(client),
        lambda: coordinator.join("new", 3),
        lambda: coordinator.expire(client, upload.number),
    ]
    before, kept = coordinator.digest(), len(disk.events)
    disk.full = True
    for verb in verbs:
        with pytest.raises(StorageError):
            verb()
        assert (coordinator.digest(), len(disk.events)) == (before, kept)
    disk.full = False
    federation.step()  # and it recovers without a restart


def test_an_algorithm_that_fails_in_task_changes_nothing() -> None:
    class Broken(FedAsync):
        def task(self, state, client):
            if state.version:
                raise RuntimeError("a bug")
            return super().task(state, client)

    federation = joined(Broken())
    before = federation.coordinator.digest()
    with pytest.raises(RuntimeError):
        federation.step()
    assert federation.coordinator.digest() == before


def test_clusters_are_appraised_at_the_start_and_after_each_change_only() -> None:
    asked = []

    class Watched(CDFL):
        def appraise(self, params, proxy):
            asked.append(params)
            return super().appraise(params, proxy)

    federation = joined(Watched(update_bar=0.0))
    assert len(asked) == 2  # one per cluster
    asked.clear()
    federation.step()
    assert len(asked) == 2  # both clusters, which changed
    losses = {k: c.loss for k, c in federation.coordinator.state.clusters.items()}
    proxies = federation.options()["proxies"]
    for k, cluster in federation.coordinator.state.clusters.items():
        assert losses[k] == pytest.approx(float(proxies[k].losses(cluster.params).mean()))  # 20 samples: one batch


def test_an_algorithm_that_appraises_needs_a_proxy_for_every_cluster() -> None:
    model = ToyModel()
    with pytest.raises(SettingError, match="proxy set for every cluster"):
        Coordinator.start(CDFL(), model.layout, [model.start(0)], 0)


def test_evidence_that_is_not_finite_is_refused() -> None:
    class Blind(FedAsync):
        def measure(self, upload, given):
            return {"loss": float("nan")}

    federation = joined(Blind())
    before = federation.coordinator.digest()
    with pytest.raises(NotFinite, match="Measuring"):
        federation.step()
    assert federation.coordinator.digest() == before


def test_an_appraisal_that_is_not_finite_is_refused() -> None:
    class Blind(FedAsync):
        def appraise(self, params, proxy):
            return 1.0 if params[0] == start else float("inf")

    start = (ToyModel().start(0)[0] + ToyModel().start(1)[0]) / 2
    federation = joined(Blind())
    before = federation.coordinator.digest()
    with pytest.raises(NotFinite, match="proxy"):
        federation.step()
    assert federation.coordinator.digest() == before


def test_an_empty_proxy_set_is_refused() -> None:
    model = ToyModel()
    empty = model.learner(np.zeros((0, 3), np.float32), np.zeros(0))
    with pytest.raises(SettingError, match="proxy set for every cluster"):
        Coordinator.start(CDFL(), model.layout, [model.start(0)], 0, proxies={"k0": empty})


def test_a_fold_that_is_not_finite_is_refused() -> None:
    class Burst(FedAsync):
        def fold(self, state, measured):
            return Step({"k0": np.full_like(state.clusters["k0"].params, np.inf)})

    federation = joined(Burst())
    before = federation.coordinator.digest()
    with pytest.raises(NotFinite, match="The model holds"):
        federation.step()
    assert federation.coordinator.digest() == before


def test_a_number_beyond_any_models_is_refused_before_it_can_spoil_a_buffer() -> None:
    federation = joined(FedBuff(buffer_size=2, server_lr=3))
    upload = federation.upload_of("c0")
    huge = upload.params.copy()
    huge[0] = 3e38
    with pytest.raises(NotFinite, match="at most"):
        federation.coordinator.receive(replace(upload, models={"k0": seal(huge)}))
    assert federation.coordinator.desk.pending == ()


def test_a_caller_cannot_change_a_start_model_or_memory_afterwards() -> None:
    model = ToyModel()
    mine = model.start(0).copy()
    coordinator = Coordinator.start(FedAsync(), model.layout, [mine], 0)
    before = coordinator.digest()
    mine[:] = 9
    assert coordinator.digest() == before
    federation = joined(CDFL(adjust_start_epoch=1))
    federation.step()
    assert not federation.coordinator.state.memory["records"].flags.writeable


def test_clusters_count_their_changes_and_members_their_samples() -> None:
    federation = joined()
    for _ in range(3):
        upload = federation.step()
    cluster = federation.coordinator.state.clusters["k0"]
    assert (cluster.updates, cluster.updated) == (3, 3)
    assert federation.coordinator.state.members[upload.client].samples == upload.samples


def test_a_fold_may_give_birth_to_a_cluster() -> None:
    class Splits(FedAsync):
        def fold(self, state, measured):
            return Step({"k1": measured[0].upload.params})

    federation = joined(Splits())
    federation.step()
    clusters = federation.coordinator.state.clusters
    assert list(clusters) == ["k0", "k1"]
    assert (clusters["k1"].updates, clusters["k0"].updates) == (0, 0)


def test_a_retry_sent_straight_to_upload_is_answered_from_the_record() -> None:
    federation = joined()
    upload = federation.upload_of("c0")
    measured = federation.coordinator.measure(upload, federation.coordinator.admit(upload))
    (first,) = federation.coordinator.upload(measured)
    before = federation.coordinator.digest()
    (again,) = federation.coordinator.upload(measured)
    assert again.task is first.task
    assert federation.coordinator.digest() == before


def test_a_start_model_of_another_shape_is_refused() -> None:
    with pytest.raises(WrongShape):
        Coordinator.start(FedAsync(), ToyModel().layout, [seal(np.zeros(2, np.float32))], 0)


def test_server_buffers_stay_the_servers() -> None:
    kept, moved = joined(FedAsync(buffers="server")), joined(FedAsync())
    for federation in (kept, moved):
        federation.step()
    layout = kept.model.layout
    before = layout.unpack(ToyModel().start(0))
    after = layout.unpack(kept.coordinator.state.clusters["k0"].params)
    assert (after["mean"], after["steps"]) == (before["mean"], before["steps"])
    averaged = layout.unpack(moved.coordinator.state.clusters["k0"].params)
    assert averaged["mean"] != before["mean"]
    assert averaged["steps"] == before["steps"] + 1
    assert np.array_equal(after["weight"], averaged["weight"])


@dataclass(frozen=True)
class ColdStart(FedAvg):
    """The first task of every client is folded alone."""

    name: ClassVar[str] = "cold-start"
    clients_per_round: int = 2

    def task(self, state, client):
        return replace(super().task(state, client), solo=state.members[client].number == 0, memo={"cold": [1, 2]})

    def fold(self, state, measured):
        assert all(m.receipt.memo == {"cold": [1, 2]} for m in measured)
        step = super().fold(state, measured)
        return replace(step, memory={"sizes": [*state.memory.get("sizes", []), len(measured)]})


def test_a_solo_task_is_folded_alone_and_answered_at_once_inside_a_round() -> None:
    federation = joined(ColdStart(), clients=2)
    for client in ("c0", "c1"):
        upload = federation.upload_of(client)
        (reply,) = federation.coordinator.receive(upload)
        assert (reply.client, reply.task.solo, reply.task.number) == (client, False, 2)
        federation.take([reply])
    federation.step()
    federation.step()
    assert federation.coordinator.state.memory["sizes"] == [1, 1, 2]


@dataclass(frozen=True)
class Splitting(FedAvg):
    """The second round splits the only cluster; the children go their own ways."""

    name: ClassVar[str] = "splitting"
    clients_per_round: int = 2

    def task(self, state, client):
        home = sorted(state.clusters)[0]
        return Task({home: state.clusters[home].params})

    def fold(self, state, measured):
        if state.rounds != 1:
            return Step({"k0": measured[0].upload.params} if "k0" in state.clusters else {})
        left, right = state.fresh_names(2)
        step = Step({right: measured[0].upload.params}, born={left: "k0", right: "k0"}, gone=("k0",))
        return replace(step, mixtures={m.upload.client: {left: 1.0} for m in measured})


def test_children_copy_their_parent_and_names_are_never_used_again() -> None:
    federation = joined(Splitting(), clients=2)
    for _ in range(2):
        federation.step()
    parent = federation.coordinator.state.clusters["k0"]
    assert (parent.updates, parent.updated) == (1, 1)
    for _ in range(2):
        federation.step()
    state = federation.coordinator.state
    assert list(state.clusters) == ["k1", "k2"]
    child = state.clusters["k1"]
    assert child.params is parent.params and (child.updates, child.updated) == (parent.updates, parent.updated)
    assert (state.clusters["k2"].updates, state.clusters["k2"].updated) == (2, 2)
    assert (state.rounds, state.named, state.fresh_names(1)) == (2, 3, ["k3"])
    federation.restart()
    assert federation.coordinator.state.fresh_names(1) == ["k3"]


def test_an_upload_for_a_cluster_that_is_gone_is_admitted() -> None:
    federation = ToyFederation(Splitting(), 3)
    coordinator = federation.coordinator
    for client in ("c0", "c1"):
        federation.take(coordinator.join(client, 10))
    old = federation.upload_of("c0")
    coordinator._state = replace(coordinator._state, clusters={"k9": coordinator._state.clusters["k0"]})
    assert coordinator.receive(old) == []
    assert len(coordinator.desk.pending) == 1


def test_hidden_changes_of_a_parent_stay_hidden_in_its_children() -> None:
    federation = joined(Splitting(), clients=2)
    federation.coordinator.publish_after = 5
    start = federation.coordinator.state.clusters["k0"].params
    for _ in range(4):
        federation.step()
    assert all(np.array_equal(task.models["k1"], start) for task in federation.tasks.values())
    assert set(federation.coordinator.desk.published) == {"k1", "k2"}


@dataclass(frozen=True)
class Moving(FedAvg):
    """Whoever says that its data changed trains at once, alone, and then waits."""

    name: ClassVar[str] = "moving"
    clients_per_round: int = 2
    needs_given: ClassVar[bool] = True

    def moved(self, state, client):
        return Task({"k0": state.clusters["k0"].params}, memo="moved")

    def fold(self, state, measured):
        given = [m.given["k0"] for m in measured]
        assert all(np.array_equal(g, state.clusters["k0"].params) for g in given)
        told = [*state.memory.get("told", []), [m.receipt.memo for m in measured]]
        return Step(memory={"told": told})


def test_a_waiting_client_whose_data_changed_has_a_solo_task_and_waits_again() -> None:
    events: list[Event] = []
    federation = ToyFederation(Moving(), 3, record=events.append)
    first, coordinator = federation.coordinator.snapshot(), federation.coordinator
    federation.join_all()
    (waiting,) = coordinator.desk.waiting
    busy = next(c for c in federation.tasks if c != waiting)
    assert coordinator.join(busy, 10, changed=True) == coordinator.recorded(busy)  # it has a task already
    (reply,) = coordinator.join(waiting, 12, changed=True)
    assert (reply.task.solo, reply.task.pause, reply.task.number) == (True, True, 1)
    federation.take([reply])
    assert coordinator.receive(federation.upload_of(waiting)) == []
    del federation.tasks[waiting]
    assert coordinator.desk.waiting == (waiting,)
    assert (coordinator.state.version, coordinator.state.rounds) == (1, 0)
    for client in sorted(federation.tasks):
        coordinator.receive(federation.upload_of(client))
    assert coordinator.state.memory["told"] == [["moved"], [None, None]]
    assert (coordinator.state.version, coordinator.state.rounds) == (2, 1)
    again = Coordinator.restore(Moving(), first, **federation.options())
    for event in events:
        again.replay(event)
    assert again.digest() == coordinator.digest()


def test_a_change_is_nobodys_business_where_the_algorithm_does_not_care() -> None:
    federation = ToyFederation(FedAvg(clients_per_round=2), 3)
    federation.coordinator.join("c0", 10)
    before = federation.coordinator.digest()
    assert federation.coordinator.join("c0", 12, changed=True) == []
    assert federation.coordinator.digest() == before


def test_patience_closes_a_round_and_the_late_upload_is_refused() -> None:
    federation = ToyFederation(FedAvg(clients_per_round=2), 3)
    for client in ("c0", "c1"):
        federation.take(federation.coordinator.join(client, 10))
    assert sorted(federation.tasks) == ["c0", "c1"]
    late, early = federation.upload_of("c0"), federation.upload_of("c1")
    assert federation.coordinator.receive(early) == []
    assert federation.coordinator.expire("c0", 99) == []  # another number: nothing expires
    assert federation.coordinator.state.version == 0
    federation.coordinator.expire("c0", late.number)
    assert federation.coordinator.state.version == 1
    with pytest.raises(TaskClosed, match="Fetch the task"):
        federation.coordinator.receive(late)
    (first, second) = federation.coordinator.join("c0", 10)
    assert {first.client, second.client} == {"c0", "c1"}


def test_a_round_whose_clients_all_leave_folds_nothing() -> None:
    federation = ToyFederation(FedAvg(clients_per_round=2), 3)
    for client in ("c0", "c1"):
        federation.coordinator.join(client, 10)
    federation.coordinator.leave("c0")
    federation.coordinator.leave("c1")
    assert federation.coordinator.state.version == 0
    assert federation.coordinator.desk.open == 0


def test_an_upload_counts_although_its_client_left() -> None:
    federation = ToyFederation(FedAvg(clients_per_round=2), 2)
    federation.join_all()
    federation.coordinator.receive(federation.upload_of("c0"))
    federation.coordinator.leave("c0")
    federation.coordinator.receive(federation.upload_of("c1"))
    assert federation.coordinator.state.version == 1


@pytest.mark.parametrize("answer", [["c0", "c0"], ["nobody"]])
def test_a_pace_that_answers_twice_or_a_stranger_is_stopped(answer) -> None:
    federation = ToyFederation(FedAvg(), 2)
    federation.coordinator.pace = Rounds(2, select=lambda *_: answer)
    federation.coordinator.join("c0", 1)
    before = federation.coordinator.digest()
    with pytest.raises(AssertionError, match="a pace answers"):
        federation.coordinator.join("c1", 1)
    assert federation.coordinator.digest() == before


def test_flush_folds_what_the_pace_would_keep_waiting() -> None:
    federation = joined(FedBuff(buffer_size=5))
    federation.step()
    assert federation.coordinator.flush() == []
    assert (federation.coordinator.state.version, federation.coordinator.desk.pending) == (1, ())
    before = federation.coordinator.digest()
    federation.coordinator.flush()
    assert federation.coordinator.digest() == before


def test_every_kind_of_event_replays() -> None:
    events: list[Event] = []
    federation = ToyFederation(FedAvg(clients_per_round=2), 4, record=events.append)
    first = federation.coordinator.snapshot()
    federation.join_all()
    coordinator = federation.coordinator
    (gone, slow) = sorted(federation.tasks)
    coordinator.receive(federation.upload_of(gone))
    coordinator.leave(gone)
    federation.take(coordinator.expire(slow, federation.tasks[slow].number))
    federation.take(coordinator.join(slow, 3))
    coordinator.receive(federation.upload_of(sorted(c for c in federation.tasks if c not in (gone, slow))[0]))
    coordinator.flush()
    assert {event.kind for event in events} == {"join", "upload", "leave", "expiry", "flush"}
    again = Coordinator.restore(federation.algorithm, first, pace=coordinator.pace)
    for event in events:
        again.replay(decode("event", encode("event", event), Event))
    assert again.digest() == coordinator.digest()


def test_a_replay_records_nothing() -> None:
    events: list[Event] = []
    federation = joined(record=events.append)
    federation.step()
    more: list[Event] = []
    fresh = ToyFederation(FedAsync(), 3, record=more.append)
    for event in list(events):
        fresh.coordinator.replay(event)
    assert more == []
    fresh.coordinator.join("new", 1)
    assert [event.kind for event in more] == ["join"]


def test_a_snapshot_is_not_changed_by_what_comes_after() -> None:
    federation = joined()
    snapshot = federation.coordinator.snapshot()
    before = encode("snapshot", snapshot)
    federation.step()
    assert encode("snapshot", snapshot) == before
    assert encode("snapshot", decode("snapshot", before, Snapshot)) == before


def test_memory_holds_one_model_per_open_task_and_none_for_the_answered() -> None:
    federation = joined(FedAvg(clients_per_round=3))
    assert len(federation.coordinator.snapshot().open_tasks) == 3
    federation.coordinator.receive(federation.upload_of("c0"))
    assert sorted(federation.coordinator.snapshot().open_tasks) == ["c1", "c2"]


def test_an_upload_has_one_model_to_call_its_own() -> None:
    assert Upload("a", 1, 1, {"k0": seal(np.ones(1, np.float32))}).params.tolist() == [1]
    with pytest.raises(ValueError, match="unpack"):
        _ = Upload("a", 1, 1).params


def test_the_engine_knows_no_recipe_and_takes_what_the_task_says_comes_back() -> None:
    class Odd(FedAsync):
        def task(self, state, client):
            return Task({"k0": state.clusters["k0"].params}, recipe="odd", returns=("mine", "more"), estimates=True)

        def fold(self, state, measured):
            return Step({"k0": measured[0].upload.models["mine"]})

    model = ToyModel()
    start, mine = model.start(0), model.start(1)
    coordinator = Coordinator.start(Odd(), model.layout, [start])
    coordinator.join("ann", 5)
    receipt = coordinator.state.members["ann"].receipt
    assert (receipt.recipe, receipt.wanted, receipt.estimates) == ("odd", ("mine", "more"), True)
    models = {"mine": mine, "more": start}
    with pytest.raises(BadMixture, match="sends a mixture"):
        coordinator.receive(Upload("ann", 1, 5, models))
    with pytest.raises(WrongModels, match="'mine', 'more'"):
        coordinator.receive(Upload("ann", 1, 5, {"mine": mine}, {"k0": 1.0}))
    coordinator.receive(Upload("ann", 1, 5, models, {"k0": 1.0}))
    assert coordinator.state.clusters["k0"].params is mine
