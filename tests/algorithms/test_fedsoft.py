"""Hand-worked numbers for every branch of FedSoft, and its phases event by event."""

from dataclasses import replace

import numpy as np
import pytest
from hand import layout, state, vector

from artesian.algorithms import FedSoft
from artesian.core import Measured, Member, Receipt, Upload
from artesian.engine.coordinator import Coordinator
from artesian.engine.pace import Rounds, Stream
from artesian.errors import SettingError
from artesian.simulator.experiment import Experiment
from artesian.simulator.fleet import Fleet
from artesian.simulator.simulation import Simulation
from artesian.testing import ToyFederation, ToyModel, ToyWorld

BEFORE = {"trained": 0, "estimated": 0, "selected": {}}


def soft_state(algorithm, shares: dict[str, tuple[float, float]], samples: dict[str, int] | None = None, **memory):
    """Two centres, 0 and 100, and clients who told these importance weights."""
    now = state(algorithm, [vector(0), vector(100)], memory={**BEFORE, **memory})
    members = {
        c: Member((samples or {}).get(c, 10), {"k0": u[0], "k1": u[1]}, number=1, answered=1) for c, u in shares.items()
    }
    return replace(now, members=members, present=len(members))


def trained(client: str, number: float, base: int = 0) -> Measured:
    return Measured(Upload(client, 2, 10, {"own": vector(number)}, {}), Receipt(2, base, "soft", ("k0", "k1")))


def told(client: str, *shares: float, samples: int = 10) -> Measured:
    mixture = {f"k{i}": share for i, share in enumerate(shares)}
    return Measured(Upload(client, 2, samples, {}, mixture), Receipt(2, 0, "soft", ("k0", "k1")))


def centres(step) -> dict[str, list[float]]:
    return {k: params.tolist() for k, params in step.clusters.items()}


EVEN = dict.fromkeys(("c0", "c1", "c2", "c3"), (0.5, 0.5))


def test_a_centre_is_the_plain_mean_of_those_drawn_for_it() -> None:
    """k0 <- (2 + 4)/2, whatever their samples; c1 counts for both; k1 <- (4 + 8)/2."""
    algorithm = FedSoft()
    now = soft_state(algorithm, EVEN, {"c0": 1000}, selected={"k0": ["c0", "c1"], "k1": ["c1", "c2"]})
    step = algorithm.fold(now, [trained("c0", 2), trained("c1", 4), trained("c2", 8)])
    assert centres(step) == {"k0": [3], "k1": [6]}
    assert step.mixtures == {}
    assert (step.memory["trained"], step.memory["estimated"]) == (1, 0)
    assert step.notes == {"training_rounds": 1, "estimation_rounds": 0}


def test_the_mean_runs_over_those_who_answered_and_a_centre_without_any_stays() -> None:
    algorithm = FedSoft()
    now = soft_state(algorithm, EVEN, selected={"k0": ["c0", "c1"], "k1": ["c2", "c3"]})
    assert centres(algorithm.fold(now, [trained("c1", 4)])) == {"k0": [4]}


def test_without_selection_a_centre_is_the_mean_weighted_by_v() -> None:
    """u n: k0 gets 0.8 x 10 and 0.2 x 40 = 8 and 8, k1 gets 2 and 32: (2 + 4)/2 = 3, (2 x 2 + 32 x 4)/34."""
    algorithm = FedSoft(do_selection=False)
    shares, everybody = {"c0": (0.8, 0.2), "c1": (0.2, 0.8)}, ["c0", "c1"]
    now = soft_state(algorithm, shares, {"c0": 10, "c1": 40}, selected={"k0": everybody, "k1": everybody})
    step = algorithm.fold(now, [trained("c0", 2), trained("c1", 4)])
    np.testing.assert_allclose(step.clusters["k0"], [3], rtol=1e-6)
    np.testing.assert_allclose(step.clusters["k1"], [(2 * 2 + 32 * 4) / 34], rtol=1e-6)
    assert step.memory["selected"] == {"k0": everybody, "k1": everybody}
    alone = algorithm.fold(now, [trained("c1", 4)])
    assert centres(alone) == {"k0": [4], "k1": [4]}  # of those who answered


def test_without_selection_a_centre_nobody_matches_takes_the_even_mean() -> None:
    algorithm = FedSoft(do_selection=False, sigma=0.0)
    everybody = ["c0", "c1"]
    now = soft_state(algorithm, {"c0": (1, 0), "c1": (1, 0)}, selected={"k0": everybody, "k1": everybody})
    np.testing.assert_allclose(algorithm.fold(now, [trained("c0", 2), trained("c1", 4)]).clusters["k1"], [3])


def test_an_estimation_keeps_the_weights_as_told_and_moves_no_centre() -> None:
    algorithm = FedSoft()
    now = soft_state(algorithm, EVEN, trained=4, estimated=2)
    step = algorithm.fold(now, [told("c0", 1.0, 0.0001), told("c1", 0.25, 0.75)])
    assert step.clusters == {}
    assert step.mixtures == {"c0": {"k0": 1.0, "k1": 0.0001}, "c1": {"k0": 0.25, "k1": 0.75}}  # sum 1.0001: as it is
    assert (step.memory["trained"], step.memory["estimated"]) == (4, 4)
    assert step.notes == {"training_rounds": 0, "estimation_rounds": 1}


def drawn(algorithm, now, runs: int = 2000) -> np.ndarray:
    """How often each client is drawn for k0, by version."""
    found = dict.fromkeys(now.members, 0)
    for version in range(runs):
        step = algorithm.fold(replace(now, version=version), [trained("c0", 1, version)])
        for client in step.memory["selected"]["k0"]:
            found[client] += 1
    return np.array(list(found.values())) / runs


def test_clients_are_drawn_by_weight_times_samples() -> None:
    """v_0 = (0.5 x 10, 0.1 x 10, 0.1 x 40) / 10 = (0.5, 0.1, 0.4)."""
    algorithm = FedSoft(selection_size=1)
    now = soft_state(algorithm, {"c0": (0.5, 0.5), "c1": (0.1, 0.9), "c2": (0.1, 0.9)}, {"c2": 40})
    np.testing.assert_allclose(drawn(algorithm, now), [0.5, 0.1, 0.4], atol=0.04)


def test_clients_are_drawn_without_replacement() -> None:
    """Two of three: 1 - P(left out); c0 is left out with 0.1 x 0.4/0.9 + 0.4 x 0.1/0.6 = 0.111."""
    algorithm = FedSoft(selection_size=2)
    now = soft_state(algorithm, {"c0": (0.5, 0.5), "c1": (0.1, 0.9), "c2": (0.1, 0.9)}, {"c2": 40})
    found = drawn(algorithm, now)
    assert found.sum() == pytest.approx(2)
    assert found[0] == pytest.approx(1 - (0.1 * 0.4 / 0.9 + 0.4 * 0.1 / 0.6), abs=0.03)


def test_a_selection_larger_than_the_fleet_takes_everybody_with_a_chance() -> None:
    algorithm = FedSoft(selection_size=60)
    now = soft_state(algorithm, EVEN, {"c3": 0})
    assert algorithm.fold(now, [trained("c0", 1)]).memory["selected"]["k0"] == ["c0", "c1", "c2"]


def test_a_centre_nobody_matches_is_drawn_for_evenly() -> None:
    for shares in ((1.0, 1e-4), (1.0, 0.0)):  # thanks to sigma; and where even that is 0
        algorithm = FedSoft(selection_size=2)
        now = soft_state(algorithm, dict.fromkeys(EVEN, shares))
        found = dict.fromkeys(EVEN, 0)
        for version in range(800):
            step = algorithm.fold(replace(now, version=version), [trained("c0", 1, version)])
            for client in step.memory["selected"]["k1"]:
                found[client] += 1
        np.testing.assert_allclose(np.array(list(found.values())) / 800, 0.5, atol=0.07)


def test_nobody_is_drawn_who_is_gone_or_without_estimate_or_did_not_answer() -> None:
    algorithm = FedSoft()
    now = soft_state(algorithm, EVEN)
    members = dict(now.members)
    members["c1"] = replace(members["c1"], present=False)
    members["c2"] = replace(members["c2"], number=2)  # out of patience with task 2
    members["new"] = Member(10)
    step = algorithm.fold(replace(now, members=members), [trained("c0", 1)])
    assert step.memory["selected"] == {"k0": ["c0", "c3"], "k1": ["c0", "c3"]}


def test_a_newcomers_estimate_counts_at_once() -> None:
    algorithm = FedSoft()
    members = {"new": Member(10, number=2, answered=2)}
    now = replace(soft_state(algorithm, {}), members=members)
    step = algorithm.fold(now, [told("new", 1.0, 0.5)])
    assert step.memory["selected"] == {"k0": ["new"], "k1": ["new"]}


def test_nobody_left_gives_an_empty_selection() -> None:
    algorithm = FedSoft()
    now = soft_state(algorithm, {"c0": (1, 1)})
    gone = replace(now, members={"c0": replace(now.members["c0"], present=False)})
    assert algorithm.fold(gone, [told("c0", 1.0, 0.5)]).memory["selected"] == {"k0": [], "k1": []}


# phases


def phases(federation: ToyFederation, rounds: int) -> str:
    """E or T for every round, from what its tasks ask for."""
    found = ""
    for _ in range(rounds):
        kinds = {bool(task.settings.get("estimate_only")) for task in federation.tasks.values()}
        assert len(kinds) == 1
        found += "E" if kinds.pop() else "T"
        count = federation.coordinator.state.rounds
        while federation.coordinator.state.rounds == count:
            federation.step()
    return found


@pytest.mark.parametrize(("interval", "found"), [(1, "ETETETE"), (2, "ETTETTE"), (3, "ETTTETTT")])
def test_estimations_come_every_so_many_training_rounds(interval, found) -> None:
    federation = ToyFederation(FedSoft(estimation_interval=interval, first_round=4), 4)
    federation.join_all()
    assert phases(federation, len(found)) == found
    memory = federation.coordinator.state.memory
    assert memory["trained"] == found.count("T")
    assert federation.coordinator.state.rounds == len(found)  # `rounds` of a run counts both


def test_an_estimation_asks_everybody_and_a_round_only_those_drawn() -> None:
    federation = ToyFederation(FedSoft(selection_size=1, first_round=6), 6)
    federation.join_all()
    assert len(federation.tasks) == 6
    assert phases(federation, 1) == "E"
    selected = federation.coordinator.state.memory["selected"]
    union = {client for clients in selected.values() for client in clients}
    assert all(len(clients) == 1 for clients in selected.values())
    assert set(federation.tasks) == union
    task = federation.tasks[sorted(union)[0]]
    assert (list(task.models), task.recipe) == (["k0", "k1"], "soft")
    assert task.mixture == federation.notebooks[sorted(union)[0]]["mixture"]


def test_a_newcomer_waits_for_the_next_estimation() -> None:
    federation = ToyFederation(FedSoft(first_round=4), 4)
    federation.join_all()
    assert phases(federation, 1) == "E"
    assert federation.coordinator.join("c9", 10) == []
    assert phases(federation, 2) == "TT"
    assert "c9" in federation.tasks
    assert federation.tasks["c9"].settings["estimate_only"]


def test_an_estimation_is_put_in_where_nobody_drawn_is_there() -> None:
    federation = ToyFederation(FedSoft(first_round=2), 2)
    federation.join_all()
    assert phases(federation, 1) == "E"
    assert federation.coordinator.join("c9", 10) == []
    for client in ("c0", "c1"):  # both were asked to train, and go
        federation.take(federation.coordinator.leave(client))
        federation.tasks.pop(client)
    assert set(federation.tasks) == {"c9"}
    assert phases(federation, 2) == "ET"
    assert federation.coordinator.state.memory["trained"] == 1


def test_a_round_closes_without_those_who_run_out_of_patience() -> None:
    federation = ToyFederation(FedSoft(first_round=3, patience=5.0), 3)
    federation.join_all()
    assert phases(federation, 1) == "E"
    before = federation.coordinator.state
    uploads = [federation.upload_of(client) for client in ("c0", "c1")]
    for upload in uploads:
        federation.coordinator.receive(upload)
    federation.coordinator.expire("c2", federation.tasks["c2"].number)
    after = federation.coordinator.state
    assert after.memory["trained"] == 1
    mean = np.mean([upload.params[:3] for upload in uploads], axis=0)
    for cluster in after.clusters.values():  # the selection is everybody: both centres get the mean of two
        np.testing.assert_allclose(cluster.params[:3], mean, rtol=1e-6)
    assert before.version + 1 == after.version
    assert "c2" not in after.memory["selected"]["k0"]


def test_a_personal_model_begins_at_the_mean_of_the_start_and_goes_on_from_itself() -> None:
    federation = ToyFederation(FedSoft(first_round=4, selection_size=1), 4)
    start = np.mean([c.params[:3] for c in federation.coordinator.state.clusters.values()], axis=0)
    federation.join_all()
    assert phases(federation, 1) == "E"
    for notebook in federation.notebooks.values():
        np.testing.assert_allclose(notebook["own"][:3], start, rtol=1e-6)
    client = sorted(federation.tasks)[0]
    own = federation.notebooks[client]["own"]
    assert phases(federation, 1) == "T"
    assert not np.array_equal(federation.notebooks[client]["own"], own)


def test_a_fleet_that_leaves_comes_late_and_is_slow_still_trains() -> None:
    fleet = Fleet("latency", 1, 4, leave_share=0.6, leave_by=10, return_after=3, late_share=0.3, late_by=8)
    algorithm = FedSoft(patience=2.0, selection_size=2)
    simulation = Simulation(Experiment(ToyWorld(12), ToyModel(), algorithm, fleet=fleet, uploads=60).planned(), 0)
    simulation.run()
    now, notes = simulation.coordinator.state, simulation.totals.notes
    assert now.memory["trained"] == notes["training_rounds"] > 10
    assert now.rounds == notes["training_rounds"] + notes["estimation_rounds"]
    assert simulation.totals.estimates > 60


def test_a_clip_measures_from_the_blend_by_weights_that_sum_to_1() -> None:
    federation = ToyFederation(FedSoft(first_round=4, sigma=0.9), 4)
    federation.join_all()
    assert phases(federation, 1) == "E"
    upload = federation.upload_of("c0")
    assert sum(upload.mixture.values()) > 1.2
    federation.coordinator.clip = 0.001
    clipped = federation.coordinator.measure(upload, federation.coordinator.admit(upload)).upload
    centres = [c.params for c in federation.coordinator.state.clusters.values()]
    blend = np.average([c[:3] for c in centres], axis=0, weights=list(upload.mixture.values()))
    assert np.linalg.norm(clipped.params[:3] - blend) == pytest.approx(0.001, rel=1e-3)


def test_another_pace_is_refused_by_name() -> None:
    federation = ToyFederation(FedSoft(), 2)
    start = [federation.model.start(0), federation.model.start(1)]
    federation.coordinator = Coordinator.start(FedSoft(), federation.model.layout, start, 7, pace=Stream())
    federation.join_all()
    first, second = federation.upload_of("c0"), federation.upload_of("c1")
    federation.coordinator.receive(first)
    with pytest.raises(SettingError, match="Leave the pace to FedSoft"):
        federation.coordinator.receive(second)
    algorithm = FedSoft()
    now = soft_state(algorithm, EVEN, selected={"k0": ["c0"], "k1": ["c0"]})
    with pytest.raises(SettingError, match="Leave the pace to FedSoft"):
        algorithm.fold(now, [trained("c0", 1), told("c1", 1.0, 0.0)])


def test_centres_begin_different_and_wrong_settings_are_refused() -> None:
    with pytest.raises(SettingError, match="FedSoft cannot tell k0 from k1"):
        FedSoft().init(layout(), [vector(1), vector(1)], 0)
    assert isinstance(FedSoft().pace(), Rounds)
    for make in (
        lambda: FedSoft(clusters=0),
        lambda: FedSoft(estimation_interval=0),
        lambda: FedSoft(selection_size=0),
        lambda: FedSoft(sigma=2),
        lambda: FedSoft(reg_weight=-1),
        lambda: FedSoft(estimation_work=-0.1),
        lambda: FedSoft(quorum=0),
    ):
        with pytest.raises(ValueError, match=r", (not|but) \S"):
            make()
