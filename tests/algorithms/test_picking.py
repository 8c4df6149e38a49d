"""Hand-worked numbers for every branch of IFCA, IFCA-Async and FedEM."""

from dataclasses import replace

import numpy as np
import pytest
from hand import layout, state, vector

from artesian.algorithms import IFCA, FedEM, IFCAAsync
from artesian.core import MeasureContext, Measured, Member, Plan, Receipt, Upload
from artesian.engine.coordinator import Coordinator
from artesian.engine.pace import Rounds, Stream
from artesian.errors import BadMixture, SettingError
from artesian.learners.arrays import SoftmaxRegression
from artesian.params import Layout
from artesian.recipes import recipe
from artesian.testing import ToyFederation


def picked(client: str, cluster: str, *numbers: float, samples: int = 1, memo=None) -> Measured:
    receipt = Receipt(1, 0, "pick", ("k0", "k1"), memo=memo)
    models = {"own": vector(*numbers)} if numbers else {}
    return Measured(Upload(client, 1, samples, models, {cluster: 1.0}), receipt)


def told(step) -> dict[str, list[float]]:
    return {k: params.tolist() for k, params in step.clusters.items()}


# IFCA


def test_ifca_takes_the_plain_mean_of_everybody_who_picked_a_cluster() -> None:
    """2, 4 and 9 picked k0, whatever their numbers of samples: 5. Nobody picked k2: it stays."""
    algorithm = IFCA()
    now = state(algorithm, [vector(0), vector(10), vector(20)])
    uploads = [
        picked("c0", "k0", 2, samples=1),
        picked("c1", "k0", 4, samples=100),
        picked("c2", "k1", 7),
        picked("c3", "k0", 9),
    ]
    step = algorithm.fold(now, uploads)
    assert told(step) == {"k0": [5], "k1": [7]}
    assert step.mixtures == {"c0": {"k0": 1.0}, "c1": {"k0": 1.0}, "c2": {"k1": 1.0}, "c3": {"k0": 1.0}}


def test_ifca_does_not_count_who_has_no_samples() -> None:
    algorithm = IFCA()
    now = state(algorithm, [vector(0), vector(10)])
    step = algorithm.fold(now, [picked("c0", "k0", 2), picked("c1", "k0", 0, samples=0)])
    assert told(step) == {"k0": [2]}
    assert algorithm.fold(now, [picked("c1", "k0", 0, samples=0)]).clusters == {}


def test_ifca_with_one_cluster_is_fedavg_without_weights() -> None:
    algorithm = IFCA()
    now = algorithm.init(layout(), [vector(0)], 0)
    assert told(algorithm.fold(now, [picked("c0", "k0", 1, samples=9), picked("c1", "k0", 3)])) == {"k0": [2]}


def test_ifca_averages_gradients_over_the_whole_cohort() -> None:
    """Changes -1 and -3 for k0, 8 for k1, and one without samples, who does not count: 10 - 4/3, 20 + 8/3."""
    algorithm = IFCA(averaging="gradient")
    now = state(algorithm, [vector(10), vector(20)])
    uploads = [picked("c0", "k0", -1), picked("c1", "k0", -3), picked("c2", "k1", 8), picked("c3", "k1", 9, samples=0)]
    step = algorithm.fold(now, uploads)
    np.testing.assert_allclose(step.clusters["k0"], [10 - 4 / 3], rtol=1e-6)
    np.testing.assert_allclose(step.clusters["k1"], [20 + 8 / 3], rtol=1e-6)


def test_ifcas_gradient_is_one_step_of_plain_descent_on_all_local_data() -> None:
    """Whatever the training plan: the change is minus the rate times the gradient at the model given."""
    model, rng = SoftmaxRegression(3, 2), np.random.default_rng(0)
    x, y = rng.normal(size=(10, 3)).astype(np.float32), np.arange(10) % 2
    plan = Plan("adam", 0.5, epochs=7, batch=2)
    start = [model.start(0), model.start(1)]
    federation = Coordinator.start(IFCA(averaging="gradient"), model.layout, start, plan=plan)
    (task,) = [reply.task for reply in federation.join("c0", 10)]
    fit = recipe("pick").fit(model.layout, "c0", task, model.learner(x, y), {})
    (name,) = fit.upload.mixture
    arrays, slope = model.layout.unpack(task.models[name]), model.layout.unpack(model.start(0))
    model.gradient(arrays, x, y, np.full(10, 0.1, np.float32), slope)
    np.testing.assert_allclose(fit.upload.params, -0.5 * model.layout.pack(slope), atol=1e-6)
    federation.receive(fit.upload)
    moved = federation.state.clusters[name].params - task.models[name]
    np.testing.assert_allclose(moved, fit.upload.params, atol=1e-6)


def test_ifca_begins_with_models_that_differ_or_says_what_to_do() -> None:
    same = [vector(1, 2), vector(3, 4), vector(1, 2)]
    for kind in (IFCA, IFCAAsync, FedEM):
        with pytest.raises(SettingError, match=r"cannot tell k0 from k2.*initial = \"random\""):
            kind().init(layout(2), same, 0)
        drawn = kind(initial="random", clusters=4).init(layout(2), same, 0)
        models = [c.params.tolist() for c in drawn.clusters.values()]
        assert len({tuple(m) for m in models}) == len(models) == 4
        again = kind(initial="random", clusters=4).init(layout(2), same, 0)
        assert models == [c.params.tolist() for c in again.clusters.values()]
        with pytest.raises(SettingError, match="its 2 clusters, and there are 3"):
            kind(clusters=2).init(layout(2), same, 0)
        with pytest.raises(SettingError, match="cannot tell k0 from k1"):
            kind(initial="random").init(layout(2), [vector(5, 5)] * 2, 0)  # no spread to draw by
        assert list(kind().init(layout(), [vector(7)], 0).clusters) == ["k0"]


def test_random_models_have_the_mean_and_spread_of_every_entry_and_its_buffers() -> None:
    arrays = {"w": np.arange(4000, dtype=np.float32), "one": np.float32([1, 1]), "mean": np.float32([9])}
    plan = Layout.of({**arrays, "steps": np.array(3)}, trainable=["w", "one"])
    start = plan.pack({**arrays, "steps": np.array(3)})
    now = IFCA(initial="random").init(plan, [start, start], 0)
    for cluster in now.clusters.values():
        found = plan.unpack(cluster.params)
        assert found["w"].mean() == pytest.approx(1999.5, rel=0.05)
        assert found["w"].std() == pytest.approx(1154.7, rel=0.05)
        assert (found["one"].tolist(), found["mean"].tolist(), int(found["steps"])) == ([1, 1], [9], 3)


def test_a_pick_is_one_cluster() -> None:
    given = MeasureContext(Receipt(1, 0, "pick", ("k0", "k1")), {})
    for algorithm in (IFCA(), IFCAAsync()):
        assert algorithm.measure(Upload("c0", 1, 1, {}, {"k1": 1.0}), given) == {}
        for mixture in ({}, {"k0": 0.5, "k1": 0.5}, {"k0": 1.0, "k1": 1.0}, {"k0": 1.0, "k1": 0.0}, {"k0": 0.9}):
            with pytest.raises(BadMixture, match="did not pick one cluster"):
                algorithm.measure(Upload("c0", 1, 1, {}, mixture), given)


def test_an_upload_that_picks_two_is_refused_and_changes_nothing() -> None:
    federation = ToyFederation(IFCA(), 2)
    federation.join_all()
    while "c0" not in federation.tasks:
        federation.step()
    upload = federation.upload_of("c0")
    before = federation.coordinator.digest()
    with pytest.raises(BadMixture):
        federation.coordinator.receive(replace(upload, mixture={"k0": 0.5, "k1": 0.5}))
    assert federation.coordinator.digest() == before


def rounds_of(algorithm) -> ToyFederation:
    federation = ToyFederation(algorithm, 4)
    federation.join_all()
    return federation


def test_ifca_sends_all_models_and_remembers_the_pick() -> None:
    federation = rounds_of(IFCA(first_round=4))
    task = federation.tasks["c1"]
    assert (list(task.models), task.recipe, task.mixture) == (["k0", "k1"], "pick", None)
    for _ in range(4):
        federation.step()
    mixtures = {c: m.mixture for c, m in federation.coordinator.state.members.items()}
    assert mixtures["c0"] == mixtures["c2"] != mixtures["c1"] == mixtures["c3"]  # client i lives in cluster i mod 2
    assert federation.tasks["c1"].mixture == mixtures["c1"]


def test_migration_lets_a_waiting_client_pick_again_alone() -> None:
    federation = rounds_of(IFCA(first_round=4, migrate=True))
    upload = federation.upload_of("c0")
    del federation.tasks["c0"]
    federation.take(federation.coordinator.receive(upload))  # the round is open: it waits
    (reply,) = federation.coordinator.join("c0", 12, changed=True)
    assert (reply.task.solo, reply.task.settings["estimate_only"], list(reply.task.models)) == (
        True,
        True,
        ["k0", "k1"],
    )
    before = federation.coordinator.state
    other = "k1" if upload.mixture == {"k0": 1.0} else "k0"
    assert federation.coordinator.receive(Upload("c0", reply.task.number, 12, {}, {other: 1.0})) == []
    after = federation.coordinator.state
    assert after.members["c0"].mixture == {other: 1.0}
    assert (after.rounds, after.version) == (before.rounds, before.version + 1)
    assert all(after.clusters[k].params is before.clusters[k].params for k in after.clusters)
    assert "c0" in federation.coordinator.desk.waiting
    for client in ("c1", "c2", "c3"):
        federation.coordinator.receive(federation.upload_of(client))
    assert federation.coordinator.state.rounds == 1  # the round closed with the first upload of c0


def test_without_migration_nothing_is_done_for_a_change() -> None:
    algorithm = IFCA()
    now = algorithm.init(layout(), [vector(0), vector(1)], 0)
    assert algorithm.moved(replace(now, members={"c0": Member(1)}), "c0") is None


# IFCA-Async


def test_ifca_async_moves_the_picked_cluster_alone() -> None:
    """20 + 0.3 (10 - 20) = 17."""
    algorithm = IFCAAsync()
    now = state(algorithm, [vector(0), vector(20)], version=50)
    step = algorithm.fold(now, [picked("c0", "k1", 10, memo={"k0": 0, "k1": 0})])
    np.testing.assert_allclose(step.clusters["k1"], [17], rtol=1e-6)
    assert (list(step.clusters), step.mixtures) == (["k1"], {"c0": {"k1": 1.0}})
    assert step.notes == {"stale": 0, "staleness": 0}


def older(now, **updates: int):
    clusters = {k: replace(c, updates=updates.get(k, 0)) for k, c in now.clusters.items()}
    return replace(now, clusters=clusters)


def test_ifca_async_counts_lateness_by_the_changes_of_the_picked_cluster() -> None:
    """k1 changed 6 times since: hinge(1, 4) = 1/3, so 20 + 0.3/3 (10 - 20) = 19. k0's 99 changes do not count."""
    algorithm = IFCAAsync(staleness="hinge")
    now = older(state(algorithm, [vector(0), vector(20)], version=200), k0=109, k1=9)
    step = algorithm.fold(now, [picked("c0", "k1", 10, memo={"k0": 10, "k1": 3})])
    np.testing.assert_allclose(step.clusters["k1"], [19], rtol=1e-6)
    assert step.notes["staleness"] == 6
    fresh = algorithm.fold(now, [picked("c0", "k1", 10, memo={"k0": 10, "k1": 5})])  # 4 changes: still fresh
    np.testing.assert_allclose(fresh.clusters["k1"], [17], rtol=1e-6)


def test_ifca_async_leaves_the_cluster_alone_beyond_max_staleness_and_without_samples() -> None:
    algorithm = IFCAAsync(max_staleness=5)
    now = older(state(algorithm, [vector(0), vector(20)]), k1=6)
    stale = algorithm.fold(now, [picked("c0", "k1", 10, memo={"k0": 0, "k1": 0})])
    assert (stale.clusters, stale.mixtures, stale.notes["stale"]) == ({}, {"c0": {"k1": 1.0}}, 1)
    assert algorithm.fold(now, [picked("c0", "k1", 10, memo={"k0": 0, "k1": 1})]).clusters
    assert algorithm.fold(now, [picked("c0", "k1", 10, samples=0, memo={"k0": 0, "k1": 6})]).clusters == {}


def test_ifca_async_answers_with_all_models_and_keeps_their_counters() -> None:
    federation = ToyFederation(IFCAAsync(), 2)
    federation.join_all()
    for _ in range(5):
        federation.step()
    task, clusters = federation.tasks["c0"], federation.coordinator.state.clusters
    assert list(task.models) == ["k0", "k1"]
    assert set(task.memo) == {"k0", "k1"}
    assert sum(c.updates for c in clusters.values()) == 5
    with pytest.raises(SettingError, match="uploads at once"):
        IFCAAsync().fold(federation.coordinator.state, [picked("c0", "k0", 1)] * 2)


# FedEM


def components(client: str, samples: int, mixture, *numbers: float) -> Measured:
    models = {f"k{i}": vector(number) for i, number in enumerate(numbers)}
    return Measured(Upload(client, 1, samples, models, mixture), Receipt(1, 0, "em", ("k0", "k1")))


def test_fedem_averages_every_component_by_numbers_of_samples() -> None:
    """(1 x 2 + 3 x 6)/4 = 5 and (1 x 10 + 3 x 30)/4 = 25."""
    algorithm = FedEM()
    now = state(algorithm, [vector(0), vector(1)])
    shares = {"k0": 0.75, "k1": 0.25}
    step = algorithm.fold(now, [components("c0", 1, shares, 2, 10), components("c1", 3, shares, 6, 30)])
    assert told(step) == {"k0": [5], "k1": [25]}
    assert step.mixtures == {"c0": shares, "c1": shares}


def test_fedem_stands_where_nobody_has_samples() -> None:
    algorithm = FedEM()
    now = state(algorithm, [vector(0), vector(1)])
    step = algorithm.fold(now, [components("c0", 0, {"k0": 1.0}, 2, 10)])
    assert (step.clusters, step.mixtures) == ({}, {"c0": {"k0": 1.0}})


def test_fedem_sends_all_components_and_its_settings() -> None:
    now = replace(FedEM().init(layout(), [vector(0), vector(1)], 0), members={"c0": Member(1, {"k0": 1.0})})
    task = FedEM().task(now, "c0")
    assert (list(task.models), task.recipe, task.mixture) == (["k0", "k1"], "em", {"k0": 1.0})
    assert task.settings == {"predict": "ensemble"}
    assert FedEM(predict="largest", local_epochs=3).task(now, "c0").settings == {"predict": "largest", "epochs": 3}


def test_fedem_learns_shares_and_carries_them_in_the_clients_notebook() -> None:
    federation = rounds_of(FedEM(first_round=4))
    for _ in range(8):
        federation.step()
    shares = {c: federation.notebooks[c]["mixture"] for c in ("c0", "c1", "c2", "c3")}
    assert all(sum(s.values()) == pytest.approx(1) for s in shares.values())
    assert {c: m.mixture for c, m in federation.coordinator.state.members.items()} == shares
    assert max(shares["c0"], key=shares["c0"].get) != max(shares["c1"], key=shares["c1"].get)


def test_paces_and_wrong_settings() -> None:
    assert IFCA(clients_per_round=3, quorum=2, patience=5.0, first_round=4).pace() == Rounds(3, 2, 5.0, first=4)
    assert FedEM().pace() == Rounds(None)
    assert IFCAAsync().pace() == Stream()
    for make in (
        lambda: IFCA(clusters=0),
        lambda: IFCA(estimation_work=-1),
        lambda: IFCA(clients_per_round=0),
        lambda: IFCAAsync(clusters=0),
        lambda: IFCAAsync(alpha=0),
        lambda: IFCAAsync(a=-1),
        lambda: IFCAAsync(max_staleness=-1),
        lambda: FedEM(clusters=0),
        lambda: FedEM(local_epochs=0),
        lambda: FedEM(quorum=0),
    ):
        with pytest.raises(ValueError, match=r", (not|but) \S"):
            make()
