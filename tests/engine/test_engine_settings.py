"""What an operator may change or ask for: hyper-parameters as events, clipped uploads, clusters held back."""

from dataclasses import replace

import numpy as np
import pytest

from artesian.algorithms import CDFL, IFCA, Confluence, FedAsync, FedBuff
from artesian.core import OWN, Event, Upload
from artesian.engine.coordinator import Coordinator
from artesian.errors import StorageError, TaskClosed
from artesian.params import Layout, clipped, distance, norm, seal
from artesian.storage.codec import digest, to_tree
from artesian.testing import ToyFederation, ToyModel

LAYOUT = ToyModel().layout


def joined(algorithm, clients: int = 3) -> ToyFederation:
    federation = ToyFederation(algorithm, clients)
    federation.coordinator._keeps_pace = False  # the algorithm's own pace, as a server has it
    federation.join_all()
    return federation


def changed(federation: ToyFederation, **fields):
    wanted = Coordinator(replace(federation.algorithm, **fields), federation.coordinator.state)
    return {**federation.coordinator.settings, "algorithm": wanted.settings["algorithm"]}


def test_other_hyper_parameters_are_one_event_and_the_same_ones_none() -> None:
    seen: list[Event] = []
    federation = joined(FedAsync(alpha=0.5))
    federation.coordinator.record = seen.append
    assert federation.coordinator.adopt(federation.coordinator.settings) == []
    assert seen == []
    federation.coordinator.adopt(changed(federation, alpha=0.25))
    assert [event.kind for event in seen] == ["settings"]
    assert federation.coordinator.algorithm.alpha == 0.25
    before = federation.coordinator.state.clusters["k0"].params
    upload = federation.step()
    after = federation.coordinator.state.clusters["k0"].params
    np.testing.assert_allclose(after[:3], before[:3] + 0.25 * (upload.params[:3] - before[:3]), rtol=1e-6)


def test_a_replay_follows_each_change_where_it_was_made() -> None:
    seen: list[Event] = []
    federation = joined(FedAsync(alpha=0.5))
    first = federation.coordinator.snapshot()
    federation.coordinator.record = seen.append
    federation.step()
    federation.coordinator.adopt(changed(federation, alpha=0.1))
    federation.step()
    later = FedAsync(alpha=0.1)  # what the operator's file says now
    again = Coordinator.restore(later, first)
    assert again.algorithm.alpha == 0.5  # what was in force then
    for event in seen:
        again.replay(event)
    assert again.digest() == federation.coordinator.digest()


def test_a_smaller_buffer_folds_what_is_pending_at_once() -> None:
    federation = joined(FedBuff(buffer_size=3))
    federation.step()
    federation.step()
    assert (federation.coordinator.state.version, len(federation.coordinator.desk.pending)) == (0, 2)
    federation.coordinator.adopt(changed(federation, buffer_size=2))
    assert (federation.coordinator.state.version, len(federation.coordinator.desk.pending)) == (1, 0)


def test_a_change_that_cannot_be_recorded_is_not_made() -> None:
    federation = joined(FedAsync(alpha=0.5))
    before = federation.coordinator.digest()

    def fail(event: Event) -> None:
        raise StorageError("the disk is full")

    federation.coordinator.record = fail
    with pytest.raises(StorageError):
        federation.coordinator.adopt(changed(federation, alpha=0.1))
    assert federation.coordinator.digest() == before
    assert federation.coordinator.algorithm.alpha == 0.5


ESTIMATORS = ("paper", "calibrated", "gate", "client")
OFTEN = {"first_pretend": 2, "pretend": 1, "pretend_window": 3, "calibrate_every": 3, "calibrate_lag": 2}


@pytest.mark.parametrize("kind", [CDFL, Confluence])
@pytest.mark.parametrize(("before", "after"), [(a, b) for a in ESTIMATORS for b in ESTIMATORS if a != b])
def test_another_estimator_takes_over_where_it_is_and_a_replay_follows(kind, before, after) -> None:
    """Clusters are appraised, a first calibration is made, and one under way is forgotten, as the new one needs it."""
    seen: list[Event] = []
    federation = joined(kind(estimator=before, **OFTEN), 4)
    first = federation.coordinator.snapshot()
    federation.coordinator.record = seen.append
    for estimator in (before, after, before):
        federation.coordinator.adopt(changed(federation, estimator=estimator))
        for _ in range(6):
            federation.step()
        losses = [cluster.loss for cluster in federation.coordinator.state.clusters.values()]
        assert estimator != "paper" or all(loss is not None for loss in losses)
        assert estimator != "calibrated" or federation.coordinator.state.memory["calibrated"]["version"] > 0
    again = Coordinator.restore(kind(**OFTEN), first)  # without proxies: nothing can be found anew
    for event in seen:
        again.replay(event)
    assert again.digest() == federation.coordinator.digest()


def test_settings_that_are_newer_than_a_snapshot_were_their_defaults_then() -> None:
    federation = joined(CDFL(tau0=50), 2)
    snapshot = federation.coordinator.snapshot()
    older = {k: v for k, v in snapshot.settings["algorithm"].items() if k not in ("estimator", "pretend")}
    snapshot = replace(snapshot, settings={**snapshot.settings, "algorithm": older})
    served = CDFL(estimator="calibrated", pretend=3, beta0=0.5)
    restored = Coordinator.restore(served, snapshot, **federation.options())
    assert restored.algorithm == CDFL(tau0=50)  # what was in force then
    seen: list[Event] = []
    restored.record = seen.append
    restored.adopt(Coordinator(CDFL(tau0=50), snapshot.state).settings)
    assert seen == []
    restored.adopt(Coordinator(served, snapshot.state).settings)
    assert [event.kind for event in seen] == ["settings"]
    assert restored.algorithm == served


def test_clipped_by_hand() -> None:
    given = seal(LAYOUT.pack({"weight": np.float32([1, 0, 0]), "mean": np.float32([2]), "steps": np.array(7)}))
    far = seal(LAYOUT.pack({"weight": np.float32([4, 4, 0]), "mean": np.float32([4]), "steps": np.array(8)}))
    near = clipped(LAYOUT, far, given, 2.5)  # (3, 4, 0) is 5 long: half the way
    arrays = LAYOUT.unpack(near)
    np.testing.assert_array_equal(arrays["weight"], [2.5, 2, 0])
    np.testing.assert_array_equal(arrays["mean"], [3])
    assert arrays["steps"] == 8
    assert clipped(LAYOUT, far, given, 5.0) is far
    change = clipped(LAYOUT, far, None, norm(LAYOUT, far) / 4)
    np.testing.assert_allclose(LAYOUT.unpack(change)["weight"], [1, 1, 0])


@pytest.mark.parametrize("algorithm", [FedAsync(), FedBuff(buffer_size=1), CDFL()], ids=lambda a: a.name)
def test_no_upload_moves_further_than_the_clip_and_its_retry_is_still_known(algorithm) -> None:
    federation = joined(algorithm)
    coordinator = federation.coordinator
    coordinator.clip = 0.01
    task = federation.tasks["c0"]
    ((name, given),) = task.models.items()
    upload = federation.upload_of("c0")
    receipt = coordinator.admit(upload)
    measured = coordinator.measure(upload, receipt)
    length = norm(LAYOUT, measured.upload.params)
    if not task.settings.get("delta"):
        length = distance(LAYOUT, measured.upload.params, given)
    assert length == pytest.approx(0.01, rel=1e-3)
    assert measured.digest == digest(to_tree(upload))
    seen: list[Event] = []
    coordinator.record = seen.append
    coordinator.upload(measured)
    before = coordinator.digest()
    assert coordinator.admit(upload) is None  # a retry of what was sent, not of what was folded
    (event,) = seen
    assert event.measured.upload.models[name] is measured.upload.models[name]
    assert coordinator.digest() == before


def test_an_upload_within_the_clip_is_untouched() -> None:
    federation = joined(FedAsync())
    federation.coordinator.clip = 1e9
    upload = federation.upload_of("c0")
    measured = federation.coordinator.measure(upload, federation.coordinator.admit(upload))
    assert measured.upload is upload
    assert measured.digest == ""


def test_a_task_withdrawn_while_it_was_clipped_is_refused() -> None:
    federation = joined(FedAsync())
    federation.coordinator.clip = 0.01
    upload = federation.upload_of("c0")
    receipt = federation.coordinator.admit(upload)
    federation.coordinator.leave("c0")
    with pytest.raises(TaskClosed, match="withdrawn"):
        federation.coordinator.measure(upload, receipt)


def test_a_cluster_is_shown_once_enough_clients_have_changed_it() -> None:
    federation = joined(FedAsync())
    coordinator = federation.coordinator
    coordinator.publish_after = 2
    start = coordinator.state.clusters["k0"].params
    for _ in range(2):  # the same client twice is one client
        (reply,) = coordinator.receive(federation.upload_of("c0"))
        federation.tasks["c0"] = reply.task
        assert reply.task.models["k0"] is start
    assert coordinator.state.clusters["k0"].params is not start
    assert coordinator.desk.changed_by == {"k0": ("c0",)}
    (reply,) = coordinator.receive(federation.upload_of("c1"))
    assert reply.task.models["k0"] is coordinator.state.clusters["k0"].params
    assert (coordinator.desk.published, coordinator.desk.changed_by) == ({}, {})


def picked(movers: bool) -> Coordinator:
    """Two clients in one round of IFCA, each of which chose another cluster; two must change one before it is shown."""
    start = [seal(np.full(LAYOUT.size, value, np.float32)) for value in (1.0, 5.0)]
    coordinator = Coordinator.start(IFCA(clients_per_round=2), LAYOUT, start, 0, publish_after=2)
    coordinator.movers = movers
    replies = [*coordinator.join("a", 10), *coordinator.join("b", 10)]
    tasks = {reply.client: reply.task for reply in replies}
    for client, k in (("a", "k0"), ("b", "k1")):
        model = seal(tasks[client].models[k] + np.float32(1))
        coordinator.receive(Upload(client, tasks[client].number, 10, {OWN: model}, {k: 1.0}))
    return coordinator


def test_only_who_moved_a_cluster_counts_as_having_changed_it() -> None:
    coordinator = picked(movers=True)
    assert coordinator.state.version == 1
    assert coordinator.desk.changed_by == {"k0": ("a",), "k1": ("b",)}
    assert coordinator.desk.published.keys() == {"k0", "k1"}
    assert picked(movers=False).desk.published == {}  # as earlier versions counted: all of a fold


def test_settings_from_before_count_everybody_of_a_fold() -> None:
    coordinator = joined(FedAsync()).coordinator
    assert "movers" not in coordinator.settings
    older = {**coordinator.settings, "publish_after": 2}
    coordinator.adopt(older)
    assert coordinator.settings == {**older, "movers": False}
    coordinator.adopt({**older, "movers": True})
    assert coordinator.movers


def test_an_upload_that_moves_nothing_does_not_count() -> None:
    layout, start = Layout.of({"w": np.zeros(2, np.float32)}, trainable=["w"]), seal(np.ones(2, np.float32))
    coordinator = Coordinator.start(FedBuff(buffer_size=3), layout, [start], 0, publish_after=3)
    for client, change in (("c0", 1.0), ("c1", 4.0), ("c2", 0.0)):
        coordinator.join(client, 10)
        coordinator.receive(Upload(client, 1, 10, {"k0": seal(np.full(2, change, np.float32))}))
    assert coordinator.state.version == 1
    assert coordinator.desk.changed_by == {"k0": ("c0", "c1")}


def test_a_cluster_held_back_survives_a_restart_from_bytes() -> None:
    federation = joined(CDFL(), 4)
    federation.coordinator.publish_after = 3
    twin = joined(CDFL(), 4)
    twin.coordinator.publish_after = 3
    for _ in range(6):
        federation.step()
        twin.step()
        federation.restart()
        assert federation.coordinator.publish_after == 3
        assert federation.coordinator.digest() == twin.coordinator.digest()
