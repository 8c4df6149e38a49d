"""Draws between uploads: what a client gets, how far it moved, and who gets nothing."""

import numpy as np
import pytest

from artesian.algorithms import SCAFFOLD, CASAPlus, Confluence, Ditto, FedAsync, FedAvg, FedSoft, IFCAAsync, Local
from artesian.core import Task, Upload
from artesian.engine.coordinator import Coordinator
from artesian.engine.drawing import Moved, moved_between
from artesian.errors import NothingToDraw, Unauthorized, UnknownClient
from artesian.params import Layout, seal
from artesian.testing import ToyFederation

LAYOUT = Layout.of({"weight": np.zeros(2, np.float32), "mean": np.zeros(1, np.float32)}, trainable=["weight"])


def vector(*numbers: float) -> np.ndarray:
    return seal(np.array(numbers, np.float32))


def joined(algorithm, clients: int = 4) -> ToyFederation:
    federation = ToyFederation(algorithm, clients)
    federation.join_all()
    return federation


@pytest.mark.parametrize(
    ("before", "now", "mixture", "far"),
    [
        ({"k0": vector(3, 4, 9)}, {"k1": vector(3, 3, 0)}, None, 1 / 5),  # the only one of each; buffers do not count
        ({"k0": vector(0, 0, 0)}, {"k0": vector(3, 4, 0)}, None, 1.0),  # over the larger norm
        ({"k0": vector(0, 0, 1)}, {"k0": vector(0, 0, 2)}, None, 0.0),
        ({"a": vector(3, 4, 0), "b": vector(0, 5, 0)}, {"a": vector(3, 4, 0), "b": vector(3, 5, 0)}, {"a": 1}, 0.0),
        ({"a": vector(4, 0, 0), "b": vector(4, 0, 0)}, {"a": vector(4, 0, 0), "b": vector(4, 2, 0)}, None, 1 / 3),
        ({"a": vector(3, 4, 0), "control": vector(7, 7, 7)}, {"a": vector(3, 1, 0)}, None, 3 / 5),
        ({"a": vector(1, 0, 0), "b": vector(1, 0, 0)}, {"c": vector(1, 0, 0)}, {"c": 1}, None),
        ({}, {"c": vector(1, 0, 0)}, None, None),
    ],
)
def test_the_distance_is_that_of_the_models_a_client_uses(before, now, mixture, far) -> None:
    moved = moved_between(LAYOUT, Task(before), Task(now, mixture=mixture), 7)
    assert (moved.versions, moved.distance) == (7, None if far is None else pytest.approx(far))
    assert moved.changed == (far != 0)


@pytest.mark.parametrize(
    ("moved", "header"),
    [
        (Moved(12, 0.03125), "distance=0.03125, versions=12"),
        (Moved(0, 0.0, changed=False), "distance=0, versions=0"),
        (Moved(3, 1.5e-07), "distance=1.5e-07, versions=3"),
        (Moved(3), "versions=3"),
        (Moved(), ""),
    ],
)
def test_it_travels_as_a_header(moved, header) -> None:
    assert moved.header == header
    assert Moved.of(header) == moved


@pytest.mark.parametrize("header", ["distance=far", "versions=1.5", "versions=-1", "moons=3", "distance=0.e.1", ",;="])
def test_a_header_that_is_not_ours_says_nothing(header) -> None:
    assert Moved.of(header) == Moved()


def test_a_draw_is_what_the_next_task_would_bring_and_asks_nothing() -> None:
    """It mixes half of an upload: 1 + 0.5 (6 - 1) = 3.5, and the others' tasks stay at 1."""
    coordinator = Coordinator.start(FedAsync(alpha=0.5, staleness="constant"), LAYOUT, [vector(1, 1, 1)], 0)
    coordinator.join("ann", 5)
    coordinator.join("bob", 5)
    coordinator.receive(Upload("ann", 1, 5, {"k0": vector(6, 6, 6)}))
    drawn = coordinator.draw("bob")
    assert drawn.models["k0"].tolist() == [3.5, 3.5, 3.5]
    assert (drawn.number, drawn.base, drawn.memo, drawn.recipe) == (0, 0, None, "train")
    (open_task,) = coordinator.recorded("bob")
    assert open_task.task.models["k0"].tolist() == [1, 1, 1]
    assert moved_between(LAYOUT, open_task.task, drawn, 1).distance == pytest.approx(2.5 / 3.5)


def test_what_is_held_back_from_tasks_is_held_back_from_draws() -> None:
    coordinator = Coordinator.start(
        FedAsync(alpha=0.5, staleness="constant"), LAYOUT, [vector(1, 1, 1)], 0, publish_after=2
    )
    coordinator.join("ann", 5)
    coordinator.join("bob", 5)
    coordinator.receive(Upload("ann", 1, 5, {"k0": vector(6, 6, 6)}))
    assert coordinator.draw("bob").models["k0"].tolist() == [1, 1, 1]
    coordinator.receive(Upload("bob", 1, 5, {"k0": vector(4.5, 4.5, 4.5)}))
    assert coordinator.draw("ann").models["k0"].tolist() == [4, 4, 4]


def test_confluence_draws_as_far_as_its_open_task_reached() -> None:
    """Comparing anew would cost as much as a reply: until a fold, the draw is the task's model, bit by bit."""
    federation = joined(Confluence(first_pretend=2, pretend=1))
    for _ in range(9):
        upload = federation.step()
        drawn = federation.coordinator.draw(upload.client)
        assert drawn.models["blend"].tobytes() == federation.tasks[upload.client].models["blend"].tobytes()
        assert drawn.settings == {}


def test_only_what_a_client_uses_travels() -> None:
    assert list(joined(SCAFFOLD()).coordinator.draw("c0").models) == ["k0"]
    federation = joined(CASAPlus(s0=1.0, total_rounds=20))
    for _ in range(8):
        assert "sparsity" not in federation.coordinator.draw(federation.step().client).settings
    assert list(joined(IFCAAsync()).coordinator.draw("c0").models) == ["k0", "k1"]  # the client picks


@pytest.mark.parametrize("algorithm", [Local(), Ditto(), FedSoft()], ids=lambda algorithm: algorithm.name)
def test_methods_whose_clients_have_their_own_models_refuse(algorithm) -> None:
    with pytest.raises(NothingToDraw, match=f"There is nothing to draw between uploads from {algorithm.name}: its"):
        joined(algorithm).coordinator.draw("c0")


def test_only_members_who_are_here_draw() -> None:
    coordinator = joined(FedAvg(clients_per_round=2)).coordinator
    with pytest.raises(UnknownClient, match="Client a stranger is not in the federation"):
        coordinator.draw("a stranger")
    coordinator.leave("c1")
    with pytest.raises(UnknownClient, match="Client c1 is not in the federation"):
        coordinator.draw("c1")
    coordinator.change_standing("revoke", "c2")
    with pytest.raises(Unauthorized, match="The operator revoked client c2"):
        coordinator.draw("c2")
    assert coordinator.draw("c3").models  # waits for a round, and has no task
