"""Hand-worked numbers for every branch of CA2FL and FedSoft-Async."""

from dataclasses import replace

import numpy as np
import pytest
from hand import layout, measured, state, vector

from artesian.algorithms import CA2FL, FedSoftAsync
from artesian.core import Cluster, Measured, Member, Receipt, Upload
from artesian.errors import BadMixture, SettingError, WrongModels
from artesian.params import Layout, seal
from artesian.testing import ToyFederation


def after(before, step):
    """The state a step leads to, as the engine would have it."""
    clusters = {k: Cluster(step.clusters.get(k, c.params)) for k, c in before.clusters.items()}
    return replace(before, clusters=clusters, version=before.version + 1, memory={**before.memory, **step.memory})


def test_ca2fl_takes_the_published_steps() -> None:
    """N = 4, M = 2, eta = 1: 0:1, 1:3, 0:2, 2:-1 give v = 2 then 1, w = 2 then 3, H = 1 then 1."""
    algorithm = CA2FL(buffer_size=2, server_lr=1)
    first = state(algorithm, [vector(0)], memory=algorithm.init(layout(), [vector(0)], 0).memory)
    second = after(first, algorithm.fold(first, [measured("c0", vector(1)), measured("c1", vector(3))]))
    assert second.clusters["k0"].params.tolist() == [2]
    assert second.memory["total"].tolist() == [4]  # H = 4/4
    third = after(second, algorithm.fold(second, [measured("c0", vector(2)), measured("c2", vector(-1))]))
    assert third.clusters["k0"].params.tolist() == [3]
    assert third.memory["total"].tolist() == [4]
    assert {k: v.tolist() for k, v in third.memory["cache"].items()} == {"c0": [2], "c1": [3], "c2": [-1]}


def test_ca2fl_with_a_newcomer_and_a_server_rate() -> None:
    """H = 4/5 once a fifth has joined: w = 2 + 0.5 (0.8 + (5 - 1)) = 4.4."""
    algorithm = CA2FL(buffer_size=1, server_lr=0.5)
    memory = {"cache": {"c0": vector(1), "c1": vector(3)}, "total": vector(4)}
    now = state(algorithm, [vector(2)], clients=5, memory=memory)
    step = algorithm.fold(now, [measured("c0", vector(5))])
    np.testing.assert_allclose(step.clusters["k0"], [4.4], rtol=1e-6)
    assert step.memory["total"].tolist() == [8]


def test_ca2fl_steps_by_the_share_of_clients_in_a_buffer() -> None:
    """N = 4, M = 2: eta = 1/2. 0:1, 1:3 give v = 2, w = 1; then 0:2, 2:-1 give v = 4/4 + (1 - 1)/2 = 1, w = 1.5."""
    algorithm = CA2FL(buffer_size=2)
    first = state(algorithm, [vector(0)], memory=algorithm.init(layout(), [vector(0)], 0).memory)
    second = after(first, algorithm.fold(first, [measured("c0", vector(1)), measured("c1", vector(3))]))
    assert second.clusters["k0"].params.tolist() == [1]
    third = after(second, algorithm.fold(second, [measured("c0", vector(2)), measured("c2", vector(-1))]))
    assert third.clusters["k0"].params.tolist() == [1.5]
    assert [algorithm.rate(clients) for clients in (1, 2, 4, 80)] == [1, 1, 0.5, 0.025]
    assert CA2FL(buffer_size=2, server_lr=0.3).rate(80) == 0.3


def test_ca2fl_passes_a_constant_change_on_once_in_a_turn_of_all_clients() -> None:
    """Eight clients whose change is always 1, two to a buffer: a turn of all is four folds. Once all are remembered,
    v = 1 in every fold: eta = 1 would go 4 in a turn, eta = 2/8 goes 1, as FedAvg would."""
    moved = {}
    for name, algorithm in {"one": CA2FL(buffer_size=2, server_lr=1), "default": CA2FL(buffer_size=2)}.items():
        memory = {"cache": {f"c{i}": vector(1) for i in range(8)}, "total": vector(8)}
        now = state(algorithm, [vector(0)], clients=8, memory=memory)
        for i in range(0, 8, 2):
            uploads = [measured(f"c{i}", vector(1)), measured(f"c{i + 1}", vector(1))]
            now = after(now, algorithm.fold(now, uploads))
        moved[name] = now.clusters["k0"].params.tolist()
    assert moved == {"one": [4], "default": [1]}


def test_ca2fl_goes_on_with_the_rate_a_run_recorded() -> None:
    assert CA2FL().resumed({"buffer_size": 10, "server_lr": 1.0}) == CA2FL(server_lr=1.0)
    assert CA2FL(server_lr=0.5).resumed({"server_lr": 1.0}) == CA2FL(server_lr=0.5)
    assert CA2FL().resumed({"server_lr": None}) == CA2FL().resumed({}) == CA2FL()


def test_ca2fl_twice_the_same_client_in_a_buffer_telescopes() -> None:
    """(5 - 1) + (7 - 5) = 6: w = 0 + 0/4 + 6/2 with total 0 carried as 1 - 1."""
    algorithm = CA2FL(buffer_size=2, server_lr=1)
    now = state(algorithm, [vector(0)], memory={"cache": {"c0": vector(1)}, "total": vector(0)})
    step = algorithm.fold(now, [measured("c0", vector(5)), measured("c0", vector(7))])
    assert step.clusters["k0"].tolist() == [3]
    assert step.memory["cache"]["c0"].tolist() == [7]
    assert step.memory["total"].tolist() == [6]


def test_ca2fl_averages_statistics_without_calibration() -> None:
    arrays = {"w": np.float32([0]), "mean": np.float32([10]), "steps": np.array(5)}
    both = Layout.of(arrays, trainable=["w"])

    def change(w: float, mean: float, steps: int):
        return both.pack({"w": np.float32([w]), "mean": np.float32([mean]), "steps": np.array(steps)})

    algorithm = CA2FL(buffer_size=2)
    now = algorithm.init(both, [both.pack(arrays)], 0)
    now = replace(now, members={"c0": Member(1), "c1": Member(1)})
    for _ in range(2):  # the second time the changes are remembered, the statistics are not
        step = algorithm.fold(now, [measured("c0", change(1, 2, 6)), measured("c1", change(3, 4, 7))])
        now = after(now, step)
    found = both.unpack(now.clusters["k0"].params)
    assert (found["w"].tolist(), found["mean"].tolist(), int(found["steps"])) == ([4.0], [16.0], 7)
    assert both.unpack(now.memory["total"])["mean"].tolist() == [0]


def told(client: str, params, mixture, base: int = 0) -> Measured:
    return Measured(Upload(client, 1, 1, {"own": params}, mixture), Receipt(1, base, "soft", ("k0", "k1")))


def test_fedsoft_async_moves_every_cluster_by_its_share() -> None:
    """t - tau = 1, so beta2 = 1: beta = 0.5 (0.6, 0.4); 0 + 0.3 (10 - 0) = 3, 20 + 0.2 (10 - 20) = 18."""
    algorithm = FedSoftAsync(beta0=0.5)
    now = state(algorithm, [vector(0), vector(20)])
    step = algorithm.fold(now, [told("c0", vector(10), {"k0": 0.6, "k1": 0.4})])
    assert {k: v.tolist() for k, v in step.clusters.items()} == {"k0": [3], "k1": [18]}
    assert step.mixtures == {"c0": {"k0": 0.6, "k1": 0.4}}
    assert step.notes == {"stale": 0, "staleness": 1}


def test_fedsoft_async_ages_an_upload_as_cdfl_does() -> None:
    """t - tau = 5 with a = 10, b = 5: 1/51 of 0.51 is 0.01; a share of 0 leaves its cluster alone."""
    algorithm = FedSoftAsync(beta0=0.51, tau0=9)
    now = state(algorithm, [vector(0), vector(20)], version=4)
    step = algorithm.fold(now, [told("c0", vector(10), {"k0": 1.0, "k1": 0.0})])
    np.testing.assert_allclose(step.clusters["k0"], [0.1], rtol=1e-6)
    assert list(step.clusters) == ["k0"]


def test_fedsoft_async_changes_nothing_for_a_stale_upload_but_remembers_its_shares() -> None:
    algorithm = FedSoftAsync(tau0=3)
    fresh = state(algorithm, [vector(0), vector(20)], version=2)
    assert algorithm.fold(fresh, [told("c0", vector(10), {"k0": 1.0})]).clusters
    stale = replace(fresh, version=3)
    step = algorithm.fold(stale, [told("c0", vector(10), {"k0": 1.0})])
    assert (step.clusters, step.mixtures, step.notes["stale"]) == ({}, {"c0": {"k0": 1.0}}, 1)
    crowd = replace(stale, present=4)  # tau_0 of the paper: the number of clients
    assert FedSoftAsync().fold(crowd, [told("c0", vector(10), {"k0": 1.0})]).clusters


def test_fedsoft_async_sends_all_clusters_and_wants_one_model_and_a_mixture_back() -> None:
    federation = ToyFederation(FedSoftAsync(), 3)
    federation.join_all()
    task = federation.tasks["c0"]
    assert (list(task.models), task.recipe, task.mixture) == (["k0", "k1"], "soft", None)
    upload = federation.upload_of("c0")
    assert (list(upload.models), sum(upload.mixture.values())) == (["own"], pytest.approx(1))
    for wrong, error in (
        (replace(upload, mixture=None), BadMixture),
        (replace(upload, models={"k0": upload.params}), WrongModels),
        (replace(upload, mixture={"k9": 1.0}), BadMixture),
    ):
        with pytest.raises(error):
            federation.coordinator.receive(wrong)
    (reply,) = federation.coordinator.receive(upload)
    assert reply.task.mixture == upload.mixture
    federation.coordinator.clip = 0.01
    federation.tasks["c0"] = reply.task
    again = federation.upload_of("c0")
    clipped = federation.coordinator.measure(again, federation.coordinator.admit(again))
    assert clipped.digest


def test_wrong_settings_are_refused() -> None:
    for make in (
        lambda: CA2FL(buffer_size=0),
        lambda: CA2FL(server_lr=0),
        lambda: FedSoftAsync(beta0=0),
        lambda: FedSoftAsync(a=-1),
        lambda: FedSoftAsync(rho=-1),
        lambda: FedSoftAsync(tau0=0),
        lambda: FedSoftAsync(sigma=2),
    ):
        with pytest.raises(ValueError, match=r", (not|but) \S"):
            make()
    now = state(FedSoftAsync(), [vector(0), vector(1)])
    with pytest.raises(SettingError, match="uploads at once"):
        FedSoftAsync().fold(now, [told("c0", seal(np.float32([1])), {})] * 2)
