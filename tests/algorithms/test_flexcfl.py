"""Hand-worked numbers for every branch of FedGroup and FlexCFL."""

import hashlib
import json
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from hand import layout, vector

from artesian.algorithms import FedGroup, FlexCFL
from artesian.algorithms.clustering import cosines, kmeans_groups, linked_groups
from artesian.algorithms.directions import ORIGIN, directions_digest
from artesian.algorithms.flexcfl import edc_points, lean, madc
from artesian.core import Member, Plan, State, Task, Upload
from artesian.engine.coordinator import Coordinator
from artesian.errors import BadMixture, SettingError, Stalled
from artesian.params import Layout, seal
from artesian.recipes import recipe
from artesian.recipes.labels import shift
from artesian.simulator.checkpoint import Checkpoint
from artesian.simulator.experiment import Experiment
from artesian.simulator.fleet import Fleet
from artesian.simulator.folder import RunFolder
from artesian.simulator.run import run_experiment
from artesian.simulator.simulation import Simulation
from artesian.testing import ToyModel, ToyWorld

DELTAS = [vector(1, 0, 0), vector(0.9, 0.1, 0), vector(0, 1, 0), vector(0.1, 0.9, 0.1), vector(0, 0.8, 0.6)]
FLAT = layout(2)
BOTH = [FedGroup, FlexCFL]


# the clustering of changes


def test_edc_by_hand() -> None:
    points = edc_points(layout(3), DELTAS, 2)
    assert points.shape == (5, 2)

    def apart(i: int, j: int) -> float:
        return float(np.linalg.norm(points[i] - points[j])) / 2  # m = 2

    found = [apart(0, 1), apart(0, 2), apart(2, 4), apart(3, 4)]
    assert found == pytest.approx([0.053552, 0.694044, 0.023312, 0.067633], abs=1e-6)
    labels = kmeans_groups(points, 2, seed=0, most=20)
    assert [set(labels[:2]), set(labels[2:])] in ([{0}, {1}], [{1}, {0}])


def test_edc_is_that_of_the_whole_matrix_of_changes() -> None:
    rng = np.random.default_rng(3)
    changes = [seal(row) for row in rng.normal(size=(6, 9)).astype(np.float32)]
    matrix = np.array(changes, np.float64).T
    left = np.linalg.svd(matrix, full_matrices=False)[0][:, :3]
    cosine = (matrix / np.linalg.norm(matrix, axis=0)).T @ left
    np.testing.assert_allclose(np.abs(edc_points(layout(9), changes, 3)), np.abs(cosine), atol=1e-6)


def test_a_change_of_nothing_has_no_direction() -> None:
    points = edc_points(FLAT, [vector(0, 0), vector(0, 2), vector(1, 0)], 2)
    assert points[0].tolist() == [0, 0]
    assert np.isfinite(points).all()
    assert edc_points(FLAT, [vector(0, 0)] * 3, 2).tolist() == [[0], [0], [0]]


def test_madc_by_hand() -> None:
    found = madc(cosines(layout(3), DELTAS))
    picked = [found[0, 1], found[0, 2], found[2, 4], found[3, 4]]
    assert picked == pytest.approx([0.102399, 0.853855, 0.051268, 0.142494], abs=1e-6)
    np.testing.assert_array_equal(found, found.T)
    assert linked_groups(found, 2).tolist() == [0, 0, 1, 1, 1]


def test_madc_of_two_is_one_minus_their_cosine() -> None:
    np.testing.assert_allclose(madc(cosines(FLAT, [vector(1, 0), vector(3, 4)])), [[0, 0.4], [0.4, 0]], atol=1e-7)
    assert madc(np.eye(1)).tolist() == [[0]]


# inter-group aggregation


def test_the_inter_group_step_by_hand_in_both_forms() -> None:
    models = {"k0": vector(3, 4), "k1": vector(0, 2), "k2": vector(1, 0)}
    literal = lean(FLAT, models, 0.1, normalise=False)
    np.testing.assert_allclose([literal[k] for k in models], [[3.1, 4.1], [0.16, 2.08], [1.06, 0.18]], atol=1e-6)
    normalised = lean(FLAT, models, 0.1, normalise=True)
    expected = [[2.695652, 3.565217], [0.142857, 1.857143], [0.990654, 0.168224]]
    np.testing.assert_allclose([normalised[k] for k in models], expected, atol=1e-6)


def test_a_zero_model_pulls_nobody_and_one_group_stands() -> None:
    leant = lean(FLAT, {"k0": vector(0, 0), "k1": vector(0, 2)}, 1.0, normalise=False)
    assert {k: p.tolist() for k, p in leant.items()} == {"k0": [0, 1]}  # w_1 / ||w_1||; nothing for k1
    assert lean(FLAT, {"k0": vector(3, 4)}, 1.0, normalise=True) == {}


def test_a_buffer_is_blended_by_weights_that_sum_to_one_or_not_at_all() -> None:
    made = Layout.of({"w": np.zeros(1, np.float32), "mean": np.zeros(1, np.float32)}, trainable=["w"])
    models = {"k0": vector(1, 10), "k1": vector(1, 20)}
    assert lean(made, models, 1.0, normalise=False)["k0"].tolist() == [2, 10]
    assert lean(made, models, 1.0, normalise=True)["k0"].tolist() == [1, 15]


# a federation by hand: whoever has a task says what it would send


@dataclass
class Hand:
    """Rounds whose uploads are written down."""

    algorithm: FedGroup
    clients: int = 4
    origin: tuple[float, ...] = (1, 1)
    starts: int = 2
    open: dict[str, Task] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.coordinator = Coordinator.start(self.algorithm, FLAT, [vector(*self.origin)] * self.starts, 7)
        for i in range(self.clients):
            self.join(f"c{i}")

    @property
    def state(self) -> State:
        return self.coordinator.state

    @property
    def models(self) -> dict[str, list[float]]:
        return {k: cluster.params.tolist() for k, cluster in self.state.clusters.items()}

    def take(self, replies) -> None:
        self.open.update({reply.client: reply.task for reply in replies})

    def join(self, client: str, changed: bool = False) -> None:
        self.take(self.coordinator.join(client, 1, changed))

    def leave(self, client: str) -> None:
        self.open.pop(client, None)
        self.take(self.coordinator.leave(client))

    def send(self, client: str, *numbers: float, samples: int = 1, mixture=None) -> None:
        task = self.open.pop(client)
        models = {k: vector(*numbers) for k in (task.models if task.returns is None else task.returns)}
        self.take(self.coordinator.receive(Upload(client, task.number, samples, models, mixture)))

    def tell(self, client: str, group: str | None) -> None:
        assert self.open[client].recipe == "match"
        self.send(client, mixture={group: 1.0} if group else {})


def grouped(kind=FlexCFL, clients: int = 4, **settings) -> Hand:
    """Two groups with the directions (2, 0) and (0, 3); c0 and c1 are in the first, c2 and c3 in the second."""
    hand = Hand(kind(**{"groups": 2, "clients_per_round": 4, "first_round": 4, **settings}), clients)
    assert sorted(hand.open) == ["c0", "c1", "c2", "c3"]
    for client, delta in {"c0": (1, 0), "c1": (3, 0), "c2": (0, 2), "c3": (0, 4)}.items():
        hand.send(client, *delta, samples=9)
    first = hand.state.members["c0"].mixture
    hand.first, hand.second = ("k0", "k1") if first == {"k0": 1.0} else ("k1", "k0")
    return hand


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize("proximity", ["EDC", "MADC"])
def test_the_cold_start_makes_groups_of_clustered_changes(kind, proximity) -> None:
    hand = grouped(kind, proximity=proximity)
    members = {client: next(iter(member.mixture)) for client, member in hand.state.members.items()}
    assert members == {"c0": hand.first, "c1": hand.first, "c2": hand.second, "c3": hand.second}
    ways = {k: way.tolist() for k, way in hand.state.memory["directions"].items()}
    assert ways == {hand.first: [2, 0], hand.second: [0, 3]}  # plain means: samples do not count
    assert hand.models == {hand.first: [3, 1], hand.second: [1, 4]}  # w_0 + direction
    assert hand.state.rounds == 1


def test_the_cold_start_asks_for_a_whole_training_and_its_change() -> None:
    task = Hand(FedGroup(groups=2, clients_per_round=4)).open["c0"]
    assert (task.recipe, task.solo, task.memo) == ("train", False, "cold")
    assert task.models[ORIGIN].tolist() == [1, 1]
    assert {k: v for k, v in task.settings.items() if k != "seed"} == {"delta": True}
    watched = Hand(FlexCFL(groups=2, clients_per_round=4, group_pretrain=3)).open["c0"].settings
    assert {k: v for k, v in watched.items() if k != "seed"} == {
        "delta": True,
        "keep": True,
        "labels": True,
        "epochs": 3,
    }


def test_groups_may_begin_at_the_common_model() -> None:
    hand = grouped(group_start="w0")
    assert hand.models == {"k0": [1, 1], "k1": [1, 1]}
    assert hand.state.memory["directions"][hand.first].tolist() == [2, 0]


def test_so_many_clients_make_the_groups_and_the_rest_wait() -> None:
    hand = Hand(FedGroup(groups=2, pretrain_scale=1, first_round=4, clients_per_round=3))
    assert len(hand.open) == 2  # alpha m
    assert hand.coordinator.state.rounds == 0
    everybody = Hand(FedGroup(groups=2, pretrain_scale=20, first_round=4, clients_per_round=3))
    assert len(everybody.open) == 4  # no more are there


def test_random_centres_are_single_clients_not_clustered() -> None:
    hand = Hand(FlexCFL(groups=2, first_round=4, random_centers=True, clients_per_round=2))
    one, two = sorted(hand.open)
    hand.send(one, 1, 0)
    hand.send(two, 1, 0.5)
    assert {k: way.tolist() for k, way in hand.state.memory["directions"].items()} == {"k0": [1, 0], "k1": [1, 0.5]}
    assert hand.models == {"k0": [2, 1], "k1": [2, 1.5]}


@pytest.mark.parametrize("proximity", ["EDC", "MADC"])
@pytest.mark.parametrize("delta", [(1, 2), (0, 0)], ids=["identical", "nothing"])
def test_clients_that_are_all_alike_leave_no_group_empty(proximity, delta) -> None:
    hand = Hand(FlexCFL(groups=3, clients_per_round=5, proximity=proximity), clients=5)
    for client in sorted(hand.open):
        hand.send(client, *delta)
    homes = [next(iter(hand.state.members[f"c{i}"].mixture)) for i in range(5)]
    assert set(homes) == {"k0", "k1", "k2"}
    assert all(way.tolist() == list(delta) for way in hand.state.memory["directions"].values())


def test_a_cold_start_that_too_few_finish_begins_again() -> None:
    hand = Hand(FlexCFL(groups=3, clients_per_round=4, quorum=1, first_round=4))
    for client in ("c0", "c1"):
        hand.leave(client)
    hand.send("c2", 1, 0)
    hand.send("c3", 0, 1)
    assert hand.coordinator.notes == {"failed_starts": 1}
    assert not hand.state.memory["directions"]
    assert not hand.open  # two wait, and three are needed
    hand.join("c0")
    assert sorted(hand.open) == ["c0", "c2", "c3"]
    for client, delta in {"c0": (1, 0), "c2": (0, 1), "c3": (1, 1)}.items():
        hand.send(client, *delta)
    assert len(hand.state.memory["directions"]) == 3


def test_everybody_gone_in_the_cold_start_is_a_cold_start_still_to_come() -> None:
    hand = Hand(FlexCFL(groups=2, clients_per_round=2))
    assert sorted(hand.open) == ["c0", "c1"]  # two were enough; the others wait
    hand.leave("c0")
    hand.leave("c1")
    assert (hand.state.version, sorted(hand.open)) == (0, ["c2", "c3"])
    assert hand.open["c2"].memo == "cold"
    hand.leave("c2")
    hand.leave("c3")
    assert hand.coordinator.desk.open == 0
    hand.join("c1")
    hand.join("c2")
    hand.send("c1", 1, 0)
    hand.send("c2", 0, 1)
    assert len(hand.state.memory["directions"]) == 2


@pytest.mark.parametrize("kind", BOTH)
def test_one_client_is_one_group_where_no_number_is_set(kind) -> None:
    hand = Hand(kind(clients_per_round=1), clients=1, starts=3)
    hand.send("c0", 2, 2)
    assert hand.models == {"k0": [3, 3]}
    assert hand.state.members["c0"].mixture == {"k0": 1.0}


def test_more_groups_than_clients_are_refused_before_a_run() -> None:
    with pytest.raises(SettingError, match=r"5 groups of 4 clients"):
        Experiment(ToyWorld(4), ToyModel(), FlexCFL(groups=5, clients_per_round=2), uploads=5).planned()
    hand = Hand(FlexCFL(groups=5, clients_per_round=2), clients=4)
    assert not hand.open  # a server waits for a fifth
    hand.join("c9")
    assert len(hand.open) == 5


def test_a_run_whose_cold_start_loses_too_many_says_that_it_stalls() -> None:
    fleet = Fleet("latency", 2, 4, leave_share=1.0, leave_by=1)
    experiment = Experiment(ToyWorld(4), ToyModel(), FlexCFL(groups=3, clients_per_round=1), fleet=fleet, uploads=9)
    with pytest.raises(Stalled):
        Simulation(experiment.planned(), 0).run()


# rounds


def test_a_clustered_client_is_sent_the_directions_once() -> None:
    hand = grouped()
    task = hand.open["c0"]
    assert (task.recipe, task.mixture, task.settings["work"]) == ("match", {hand.first: 1.0}, 0.1)
    sent = {ORIGIN: [1, 1], hand.first: [2, 0], hand.second: [0, 3]}
    assert {k: p.tolist() for k, p in task.models.items()} == sent
    for bad in ({}, {"k0": 0.5}, {"k0": 1.0, "k1": 1.0}):
        with pytest.raises(BadMixture, match="one group with the share 1"):
            hand.coordinator.receive(Upload("c0", task.number, 1, mixture=bad))
    assert hand.state.memory["holds"] == {}
    hand.tell("c0", hand.first)
    assert hand.state.memory["holds"] == {"c0": True}


def warm(**settings) -> Hand:
    """`grouped`, after one round in which nothing was learnt: everybody holds the directions."""
    hand = grouped(**settings)
    for client, member in hand.state.members.items():
        hand.tell(client, next(iter(member.mixture)))
        hand.send(client, 0, 0, samples=0)
    assert hand.models == {hand.first: [3, 1], hand.second: [1, 4]}
    return hand


def test_a_warm_client_looks_at_its_labels_without_being_sent_models_then_trains() -> None:
    hand = warm()
    task = hand.open["c0"]
    assert (task.recipe, task.solo, task.models, task.mixture) == ("match", True, {}, {hand.first: 1.0})
    assert {k: v for k, v in task.settings.items() if k != "seed"} == {
        "estimate_only": True,
        "epochs": 1,
        "directions": hand.state.memory["digest"],
        "work": 0.0,
        "migrate": True,
        "shift_fraction": 0.2,
        "shift_distance": "changed",
    }
    hand.tell("c0", hand.first)
    task = hand.open["c0"]
    assert (task.recipe, task.solo, task.settings["keep"]) == ("train", False, True)
    assert {k: p.tolist() for k, p in task.models.items()} == {hand.first: [3, 1]}
    hand.tell("c1", hand.second)  # its labels changed: it found another group
    assert list(hand.open["c1"].models) == [hand.second]
    assert hand.coordinator.notes == {"moved": 1.0}
    assert hand.state.members["c1"].mixture == {hand.second: 1.0}
    assert hand.state.rounds == 2  # looking is no round


def test_who_has_lost_the_directions_asks_for_them_and_is_sent_them() -> None:
    hand = warm()
    hand.tell("c0", None)
    task = hand.open["c0"]
    assert (task.recipe, set(task.models)) == ("match", {ORIGIN, "k0", "k1"})
    assert set(hand.state.memory["holds"]) == {"c1", "c2", "c3"}
    hand.tell("c0", hand.first)
    assert hand.open["c0"].recipe == "train"


def finish_round(hand: Hand, groups: dict[str, str]) -> None:
    for client, group in groups.items():
        if hand.open[client].recipe == "match":
            hand.tell(client, group)


def test_groups_train_by_samples_and_a_group_nobody_trained_stands() -> None:
    hand = grouped()
    finish_round(hand, dict.fromkeys(("c0", "c1", "c2", "c3"), hand.first))
    hand.send("c0", 4, 2, samples=1)
    hand.send("c1", 8, 2, samples=3)
    hand.send("c2", 99, 99, samples=0)
    hand.leave("c3")
    assert hand.models == {hand.first: [7, 2], hand.second: [1, 4]}  # (4 + 3 x 8) / 4
    far = float(np.hypot(92, 97))  # of c2 from (7, 2)
    assert hand.coordinator.notes["discrepancy"] == pytest.approx((3 + 1 + far) / 3)
    assert hand.state.rounds == 2
    assert hand.state.memory["checked"] == {}
    assert hand.open == {}  # three wait, and four make a cohort
    hand.join("c3")
    assert {task.recipe for task in hand.open.values()} == {"match"}  # all look again


def test_nobody_with_samples_changes_nothing() -> None:
    hand = grouped(FedGroup)
    before = hand.models
    for client in ("c0", "c1", "c2", "c3"):
        hand.send(client, 5, 5, samples=0)
    assert hand.models == before


def test_fedgroup_never_looks_again() -> None:
    hand = grouped(FedGroup)
    assert {task.recipe for task in hand.open.values()} == {"train"}
    assert "keep" not in hand.open["c0"].settings
    assert not any(isinstance(value, bool) and value for value in hand.open["c0"].settings.values())
    assert FedGroup.moved is not FlexCFL.moved


@pytest.mark.parametrize("kind", BOTH)
def test_a_newcomer_is_sent_the_directions_and_trains_inside_the_same_round(kind) -> None:
    hand = grouped(kind, clients_per_round=4)
    for client in ("c0", "c1", "c2", "c3"):
        if kind is FlexCFL:
            hand.tell(client, hand.first)
    hand.join("c9")
    for client in ("c0", "c1", "c2", "c3"):
        hand.send(client, 1, 1)
    task = hand.open["c9"]  # it was never given anything, so it is drawn first
    assert (task.recipe, task.solo, task.mixture, next(iter(task.models))) == ("match", True, None, ORIGIN)
    assert task.settings.get("migrate", False) == (kind is FlexCFL)
    hand.tell("c9", hand.second)
    assert list(hand.open["c9"].models) == [hand.second]
    assert hand.state.members["c9"].mixture == {hand.second: 1.0}
    assert hand.state.rounds == 2


def test_random_assignment_asks_nobody_and_keeps_those_clustered() -> None:
    hand = grouped(FlexCFL, random_assign=True, clients_per_round=4)
    assert {client: list(task.models) for client, task in hand.open.items()} == {
        "c0": [hand.first],
        "c1": [hand.first],
        "c2": [hand.second],
        "c3": [hand.second],
    }
    for i in range(10, 30):
        hand.join(f"c{i}")
    for client in ("c0", "c1", "c2", "c3"):
        hand.send(client, 1, 1)
    assert all(int(client[1:]) >= 10 and task.recipe == "train" for client, task in hand.open.items())
    homes = {client: next(iter(task.models)) for client, task in hand.open.items()}
    for client in sorted(homes):
        hand.send(client, 1, 1)
    assert {client: next(iter(hand.state.members[client].mixture)) for client in homes} == homes
    algorithm = hand.algorithm
    assert {algorithm._group(hand.state, f"c{i}") for i in range(10, 30)} == {"k0", "k1"}
    assert algorithm.moved(hand.state, "c0") is None


@pytest.mark.parametrize(("normalise", "first", "second"), [(False, [7, 5], [3.8, 4.4]), (True, None, None)])
def test_groups_with_members_lean_on_each_other_after_they_trained(normalise, first, second) -> None:
    settings = {"inter_group_lr": 1.0, "inter_group_normalise": normalise, "groups": 3}
    algorithm = FedGroup(clients_per_round=2, **settings)
    now = State(
        FLAT,
        {
            k: replace(c, params=p)
            for (k, c), p in zip(_clusters(3), [vector(0, 0), vector(3, 4), vector(9, 9)], strict=True)
        },
        {"c0": Member(1, {"k0": 1.0}), "c1": Member(1, {"k1": 1.0}), "c2": Member(1, {"k2": 1.0}, present=False)},
        memory={"directions": {"k0": vector(1, 0)}, "origin": vector(0, 0), "digest": "", "holds": {}, "checked": {}},
    )
    step = algorithm.fold(now, [_trained("c0", "k0", vector(6.4, 4.2))])
    assert set(step.clusters) == {"k0", "k1"}  # k2 has no member who is here
    size = float(np.hypot(6.4, 4.2))
    one = np.array([6.4, 4.2]) + np.array([3, 4]) / 5  # from the snapshot, k0 already trained
    two = np.array([3, 4]) + np.array([6.4, 4.2]) / size
    if normalise:
        one, two = one / (1 + 1 / 5), two / (1 + 1 / size)
    np.testing.assert_allclose(step.clusters["k0"], one, rtol=1e-6)
    np.testing.assert_allclose(step.clusters["k1"], two, rtol=1e-6)
    if first is not None:
        np.testing.assert_allclose(step.clusters["k0"], first, rtol=1e-6)


def _clusters(count: int):
    return FedGroup(groups=count).init(FLAT, [vector(0, 0)], 0).clusters.items()


def _trained(client: str, group: str, params):
    from artesian.core import Measured, Receipt

    return Measured(Upload(client, 1, 1, {group: params}), Receipt(1, 0, "train", (group,)))


def test_an_upload_counts_for_the_group_whose_model_it_trained() -> None:
    hand = grouped()
    finish_round(hand, {"c0": hand.first, "c1": hand.first, "c2": hand.second, "c3": hand.second})
    hand.send("c0", 5, 5)
    hand.join("c0", changed=True)  # it waits for the round to close, and its data are others now
    assert (hand.open["c0"].recipe, hand.open["c0"].pause) == ("match", True)
    hand.tell("c0", hand.second)
    assert "c0" not in hand.open
    hand.leave("c1")
    hand.send("c2", 1, 6)
    hand.send("c3", 1, 8)
    assert hand.models == {hand.first: [5, 5], hand.second: [1, 7]}
    assert hand.state.members["c0"].mixture == {hand.second: 1.0}


def test_a_late_answer_to_the_cold_start_is_no_model() -> None:
    hand = Hand(FlexCFL(groups=2, clients_per_round=4))
    for client in ("c0", "c1", "c2"):
        hand.send(client, *((1, 0) if client == "c0" else (0, 1)))
    hand.coordinator.flush()
    before = hand.models
    hand.send("c3", 50, 50)
    assert hand.models == before
    assert hand.state.members["c3"].mixture is None


# who is drawn, who moves, what is predicted with


def test_those_never_given_anything_go_first_in_their_order() -> None:
    numbers = {"a": 1, "b": 0, "c": 0, "d": 3, "e": 0}
    members = {client: Member(1, number=number) for client, number in numbers.items()}
    now = State(FLAT, {}, members, memory={"directions": {"k0": vector(1, 0)}})
    assert FedGroup(clients_per_round=2)._cohort(now, sorted(members)) == ["b", "c"]
    assert set(FedGroup(clients_per_round=4)._cohort(now, sorted(members))) > {"b", "c", "e"}
    assert FedGroup(clients_per_round=None)._cohort(now, sorted(members)) == sorted(members)
    anybody = FedGroup(clients_per_round=2, selection="random")
    drawn = {tuple(anybody._cohort(replace(now, version=v), sorted(members))) for v in range(40)}
    assert len(drawn) > 5
    given = {client: replace(member, number=member.number + 1) for client, member in members.items()}
    redrawn = [anybody._cohort(replace(now, members=m), sorted(members)) for m in (members, given)]
    assert anybody._cohort(now, sorted(members)) == redrawn[0]


def test_a_waiting_client_whose_data_changed_looks_at_once_and_waits_again() -> None:
    hand = grouped(clients_per_round=3)
    (waiting,) = {"c0", "c1", "c2", "c3"} - set(hand.open)
    hand.join(waiting, changed=True)
    assert (hand.open[waiting].recipe, hand.open[waiting].pause) == ("match", True)
    hand.tell(waiting, "k1")
    assert waiting not in hand.open
    assert hand.state.members[waiting].mixture == {"k1": 1.0}
    hand.join("c9")
    hand.join("c9", changed=True)
    assert "c9" not in hand.open  # it has no group yet: it looks when it is drawn
    assert FlexCFL().moved(hand.state, "c9") is None


def test_a_client_predicts_with_its_groups_newest_model_or_the_mean_of_all() -> None:
    cold = Hand(FlexCFL(groups=2, clients_per_round=4))
    ((_, shown),) = cold.coordinator.preview("c0").models.items()
    assert shown.tolist() == [1, 1]
    hand = grouped()
    assert {k: p.tolist() for k, p in hand.coordinator.preview("c0").models.items()} == {hand.first: [3, 1]}
    hand.join("c9")
    ((_, shown),) = hand.coordinator.preview("c9").models.items()
    assert shown.tolist() == [2, 2.5]
    assert hand.coordinator.preview("c0").recipe == "train"
    assert hand.coordinator.preview("a stranger").models[ORIGIN].tolist() == [2, 2.5]


@pytest.mark.parametrize(
    ("wrong", "rule"),
    [
        ({"groups": 0}, "groups"),
        ({"pretrain_scale": 0}, "pretrain_scale"),
        ({"proximity": "EDCC"}, "proximity"),
        ({"group_pretrain": 0}, "group_pretrain"),
        ({"client_pretrain": 0}, "client_pretrain"),
        ({"group_start": "w1"}, "group_start"),
        ({"inter_group_lr": float("nan")}, "inter_group_lr"),
        ({"selection": "any"}, "selection"),
        ({"shift_fraction": 0}, "shift_fraction"),
        ({"shift_distance": "w2"}, "shift_distance"),
        ({"clients_per_round": 0}, "one client at least"),
        ({"patience": 0}, "patience"),
    ],
)
def test_a_wrong_setting_is_refused_with_its_rule(wrong, rule) -> None:
    with pytest.raises(ValueError, match=rule):
        FlexCFL(**wrong)


# the client's half


@pytest.mark.parametrize(
    ("now", "before", "changed", "mean_abs", "sorted_w1"),
    [
        ((50, 0, 50), (50, 50, 0), 50, 100, 0),  # half relabelled: the code's distance sees nothing
        ((80, 20), (100, 0), 20, 40, 40),  # a fifth relabelled
        ((100,), (80,), 20, 20, 20),  # a fifth added
        ((80,), (100,), 20, 20, 20),  # removed
        ((5, 5), (5, 5), 0, 0, 0),
        ((0, 0, 7), (7,), 7, 14, 0),  # histograms of other lengths
    ],
)
def test_the_distance_of_two_histograms_by_hand(now, before, changed, mean_abs, sorted_w1) -> None:
    found = [shift(now, before, rule) for rule in ("changed", "mean_abs", "sorted_w1")]
    assert found == [changed, mean_abs, sorted_w1]


@dataclass
class Goes:
    """A learner whose trainings go one way."""

    way: tuple[float, float]
    histogram: tuple[int, ...] | None = (50, 50)
    trainings: int = 0

    @property
    def samples(self) -> int:
        return sum(self.histogram) if self.histogram is not None else 10

    def train(self, params, *, seed, plan: Plan, pulls=(), weights=None, mask=None):
        self.trainings += 1
        self.epochs = plan.epochs
        return seal(params + np.array(self.way, np.float32))


WAYS = {"k0": vector(1, 0), "k1": vector(0, 5), "k2": vector(-1, 0)}
BOOK = {"origin": vector(1, 1), "directions": WAYS, "histogram": [50, 50]}


def look(learner, book: dict, *, sent: bool = False, group: str | None = "k2", **settings):
    told = {
        "seed": 1,
        "epochs": 2,
        "directions": directions_digest(BOOK["origin"], WAYS),
        "migrate": True,
        "shift_distance": "changed",
        "shift_fraction": 0.2,
    }
    models = {ORIGIN: BOOK["origin"], **WAYS} if sent else {}
    task = Task(models, "match", {**told, **settings}, {group: 1.0} if group else None, number=4)
    fit = recipe("match").fit(FLAT, "ann", task, learner, book)
    assert (fit.upload.client, fit.upload.number, fit.upload.models, fit.trained) == ("ann", 4, {}, ())
    return fit


@pytest.mark.parametrize(
    ("way", "group"),
    [
        ((9, 1), "k0"),
        ((1, 2), "k1"),
        ((-9, 1), "k2"),
        ((1, 1), "k0"),  # as near to k1: the first
        ((0, 0), "k0"),  # no change at all: every cosine is 0
        ((0, -1), "k0"),  # opposite to k1: k0 and k2 are alike
    ],
)
def test_a_newcomer_joins_the_group_in_whose_direction_its_training_goes(way, group) -> None:
    learner = Goes(way)
    fit = look(learner, {}, sent=True, group=None)
    assert fit.upload.mixture == {group: 1.0}
    assert (learner.trainings, learner.epochs, fit.notebook["histogram"]) == (1, 2, [50, 50])
    assert fit.notebook["origin"].tolist() == [1, 1]
    assert set(fit.notebook["directions"]) == set(WAYS)


@pytest.mark.parametrize(
    ("rule", "labels", "moves"),
    [
        ("changed", (50, 50), False),
        ("changed", (31, 69), False),  # 19 of 100
        ("changed", (30, 70), True),  # 20 of 100
        ("changed", (50, 75), True),  # 25 added, of 125 now: a fifth
        ("changed", (50, 74), False),
        ("changed", (50, 0, 50), True),
        ("mean_abs", (41, 59), False),
        ("mean_abs", (40, 60), True),  # a tenth relabelled is enough
        ("sorted_w1", (50, 0, 50), False),
        ("sorted_w1", (25, 75), True),
    ],
)
def test_a_client_keeps_its_group_until_a_fifth_of_its_samples_changed(rule, labels, moves) -> None:
    learner = Goes((1, 0), labels)
    fit = look(learner, BOOK, shift_distance=rule)
    assert fit.upload.mixture == ({"k0": 1.0} if moves else {"k2": 1.0})
    assert learner.trainings == moves
    assert fit.notebook["histogram"] == list(labels if moves else (50, 50))  # slow drift adds up


def test_the_threshold_is_exact_where_floats_are_not() -> None:
    assert 0.07 * 100 > 7
    fit = look(Goes((1, 0), (93, 7)), dict(BOOK, histogram=(100, 0)), shift_fraction=0.07)
    assert fit.upload.mixture == {"k0": 1.0}


def test_a_notebook_without_these_directions_asks_for_them() -> None:
    learner = Goes((1, 0))
    for book in ({}, dict(BOOK, directions={"k0": vector(1, 0)}), dict(BOOK, origin=vector(2, 2))):
        fit = look(learner, book)
        assert (fit.upload.mixture, learner.trainings) == ({}, 0)
    again = look(learner, {}, sent=True)  # as a client with a lost home: it looks again
    assert (again.upload.mixture, learner.trainings) == ({"k0": 1.0}, 1)
    known = look(learner, {"histogram": [50, 50]}, sent=True)  # it was clustered: it stays
    assert (known.upload.mixture, learner.trainings) == ({"k2": 1.0}, 1)


def test_the_digest_of_directions_is_what_the_wire_format_says() -> None:
    def named(params) -> dict:
        return {"$tensor": hashlib.sha256(b'["<f4", [2]]' + params.tobytes()).hexdigest()}

    tree = {"directions": {k: named(way) for k, way in WAYS.items()}, "origin": named(BOOK["origin"])}
    expected = hashlib.sha256(json.dumps(tree, sort_keys=True).encode()).hexdigest()
    assert directions_digest(BOOK["origin"], WAYS) == expected


def test_without_samples_nobody_looks() -> None:
    assert look(Goes((1, 0), (0, 0)), BOOK).upload.mixture == {"k2": 1.0}
    learner = Goes((0, 1), (0, 0))
    assert look(learner, {}, sent=True, group=None).upload.mixture == {"k0": 1.0}
    assert learner.trainings == 0


def test_one_label_only_is_a_histogram_like_any_other() -> None:
    book = dict(BOOK, histogram=(100,))
    assert look(Goes((1, 0), (100,)), book).upload.mixture == {"k2": 1.0}
    assert look(Goes((1, 0), (125,)), book).upload.mixture == {"k0": 1.0}


def test_without_labels_migration_is_refused_and_fedgroup_works() -> None:
    blind = Goes((1, 0), None)
    with pytest.raises(SettingError, match=r"counts none. Use fedgroup"):
        look(blind, BOOK)
    task = Task({ORIGIN: vector(1, 1)}, settings={"seed": 1, "delta": True, "labels": True})
    with pytest.raises(SettingError, match="Use fedgroup"):
        recipe("train").fit(FLAT, "ann", task, blind, {})
    fit = look(blind, {}, sent=True, group=None, migrate=False)
    assert (fit.upload.mixture, fit.notebook) == ({"k0": 1.0}, {})  # and keeps nothing


def test_what_a_client_predicts_with_while_it_looks() -> None:
    use = recipe("match").use
    bare = Task({}, "match")
    assert use(FLAT, bare, dict(BOOK, own=vector(8, 9)))[0][1].tolist() == [8, 9]
    np.testing.assert_allclose(use(FLAT, bare, BOOK)[0][1], [1, 1 + 5 / 3], rtol=1e-6)
    sent = Task({ORIGIN: vector(1, 1), "k0": vector(2, 0)}, "match")
    assert use(FLAT, sent, {})[0][1].tolist() == [3, 1]
    with pytest.raises(SettingError, match="no model yet"):
        use(FLAT, bare, {})


def test_a_training_keeps_what_it_was_given_and_notes_its_labels_where_asked() -> None:
    task = Task({"k0": vector(1, 1)}, settings={"seed": 1, "keep": True, "labels": True})
    fit = recipe("train").fit(FLAT, "ann", task, Goes((1, 0), (3, 4)), BOOK)
    assert (fit.notebook["own"].tolist(), fit.notebook["histogram"]) == ([1, 1], [3, 4])
    plain = recipe("train").fit(FLAT, "ann", replace(task, settings={"seed": 1}), Goes((1, 0)), BOOK)
    assert plain.notebook == BOOK


# in a run


@dataclass(frozen=True)
class Swapping(ToyWorld):
    """From the fourth round on, every client lives in the other cluster, with ten times the samples."""

    turns = "world"

    def visit(self, seed, client, cycle):
        late = cycle >= 4
        other = super().visit(seed, f"c{int(client[1:]) + late}", 0)
        return replace(other, train=other.train if not late else _more(other.train))

    def changed(self, seed, client, before, now) -> bool:
        return before < 4 <= now


def _more(samples):
    return replace(samples, x=np.concatenate([samples.x] * 10), y=np.concatenate([samples.y] * 10))


def run(algorithm):
    experiment = Experiment(Swapping(8), ToyModel(), algorithm, fleet=Fleet("latency", 1, 2), rounds=8)
    simulation = Simulation(experiment.planned(), 0)
    simulation.run()
    return simulation


def test_clients_move_in_a_run_also_those_who_only_wait() -> None:
    simulation = run(FlexCFL(clients_per_round=3))
    homes = {client: next(iter(member.mixture)) for client, member in simulation.coordinator.state.members.items()}
    odd, even = {homes[f"c{i}"] for i in (1, 3, 5, 7)}, {homes[f"c{i}"] for i in (0, 2, 4, 6)}
    assert len(odd) == len(even) == 1
    assert odd != even
    stayed = run(FedGroup(clients_per_round=3))
    before = {client: next(iter(member.mixture)) for client, member in stayed.coordinator.state.members.items()}
    assert simulation.totals.notes["moved"] == 8
    assert "moved" not in stayed.totals.notes
    assert {homes["c0"]} == {before["c1"]}


FEW = Experiment(
    ToyWorld(6), ToyModel(), FlexCFL(clients_per_round=4, pretrain_scale=1), rounds=5, snapshot_every=1
).planned()


def shared(books) -> bool:
    """Are the directions that all clients keep one copy?"""
    full = [book for book in books.values() if book.get("directions")]
    assert len(full) >= 4
    ways = {id(way) for book in full for way in book["directions"].values()}
    return len({id(book["origin"]) for book in full}) == 1 and len(ways) == 2


@pytest.mark.heavy
def test_notebooks_from_workers_hold_one_copy_of_the_directions() -> None:
    inline, spread = Simulation(FEW, 0), Simulation(FEW, 0, workers=1)
    inline.run()
    spread.run()
    assert shared(inline.notebooks)
    assert shared(spread.notebooks)
    assert inline.coordinator.digest() == spread.coordinator.digest()


def test_a_run_resumes_to_the_same_bits_with_one_copy_of_the_directions(tmp_path) -> None:
    run_experiment(FEW, out=tmp_path / "whole")

    def stop(progress) -> None:
        if progress.uploads == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_experiment(FEW, out=tmp_path / "run", progress=stop)
    folder = RunFolder(tmp_path / "run")
    assert shared(folder.load(Checkpoint).notebooks)
    folder.close()
    run_experiment(FEW, out=tmp_path / "run", resume=True)
    for name in ("metrics.csv", "journal.jsonl", "clusters.csv"):
        assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
