"""Confluence by hand: the step, what others have done of it, the reply's reach, and the calibrated estimate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hand import layout, state, vector

from artesian.algorithms import Confluence
from artesian.algorithms.calibration import (
    Pretended,
    _drawn,
    alike,
    divergence_of,
    features_of,
    fitted,
    halves,
    mean_loss,
    mean_losses,
    pretend,
    shares_of,
)
from artesian.algorithms.confluence import weights
from artesian.algorithms.estimators import _evened
from artesian.algorithms.gates import fitted as gate_of
from artesian.algorithms.gates import tried
from artesian.core import Cluster, Evidence, Measured, Member, Plan, Receipt, State, Upload
from artesian.errors import SettingError
from artesian.learners.arrays import LinearRegression, SoftmaxRegression
from artesian.params import Layout, Params, moved
from artesian.testing import ToyFederation

KNOWN = {"share/k0": 0.75, "share/k1": 0.25}


@dataclass(frozen=True)
class Target:
    """A proxy set on which a model is as bad as its first number is far from a target."""

    at: float
    samples: int = 8

    def losses(self, params: Params) -> np.ndarray:
        return np.full(self.samples, (float(params[0]) - self.at) ** 2)


def oracle(**settings: Any) -> Confluence:
    return Confluence(**{"estimator": "oracle", "reach": 1.0, **settings})


def upload(
    new: Params, base: Params, *, late: int = 1, version: int = 10, evidence: Evidence = KNOWN, memo: Any = None
) -> Measured:
    memo = memo or {"weights": {"k0": 0.5, "k1": 0.5}, "chosen": 1.0, "losses": {}}
    receipt = Receipt(1, version - late, "train", ("blend",), memo=memo)
    return Measured(Upload("c0", 1, 5, {"blend": new}), receipt, evidence, given={"blend": base})


def two(second: float = 0.0, late: Sequence[float] = (), **more: Any) -> State:
    """Two clusters, (0, y) and (4, y)."""
    models = [vector(0, second), vector(4, second)]
    return state(oracle(), models, version=10, memory={"late": np.array(late, float), "moves": np.zeros(0), **more})


def numbers(step: Any) -> dict[str, list[float]]:
    return {k: params.tolist() for k, params in step.clusters.items()}


def test_clusters_move_along_the_change_by_their_share() -> None:
    step = oracle().fold(two(), [upload(vector(2, 1), vector(2, 0))])
    # parts .5 + .5 * 2 * (.75, .25) = (1.25, .75); the step is bounded by .4 / 1.25 = .32
    assert numbers(step) == {"k0": pytest.approx([0, 0.4]), "k1": pytest.approx([4, 0.24])}
    assert step.mixtures == {"c0": {"k0": 0.75, "k1": 0.25}}
    assert step.notes["step"] == pytest.approx(0.32)


def test_the_step_is_the_flight_over_the_median_staleness() -> None:
    step = oracle().fold(two(late=[40] * 101), [upload(vector(2, 1), vector(2, 0), late=3)])
    assert step.notes["step"] == pytest.approx(0.1)  # 4 / 40
    assert numbers(step) == {"k0": pytest.approx([0, 0.125]), "k1": pytest.approx([4, 0.075])}
    assert step.memory["late"].tolist() == [40] * 100 + [3]


def test_at_first_the_step_follows_from_the_number_of_clients() -> None:
    many = replace(two(), present=200)
    assert oracle().fold(many, [upload(vector(2, 1), vector(2, 0))]).notes["step"] == pytest.approx(4 / 140)


@pytest.mark.parametrize(
    ("since", "step"),
    [(0.1, 0.32 * 0.8), (0.5, 0.0), (0.6, 0.0), (-0.3, 0.32)],  # 1 - 2 * done, between 0 and 1
)
def test_a_step_shrinks_by_what_others_have_done(since: float, step: float) -> None:
    found = oracle().fold(two(since), [upload(vector(2, 1), vector(2, 0))])
    assert found.notes["step"] == pytest.approx(step)
    assert found.notes["done"] == pytest.approx(max(0.0, since))
    assert numbers(found)["k0"] == pytest.approx([0, since + 1.25 * step])


def test_without_catching_up_the_step_stays() -> None:
    found = oracle(catch_up=0.0).fold(two(0.6), [upload(vector(2, 1), vector(2, 0))])
    assert found.notes["step"] == pytest.approx(0.32)


def test_sharing_decides_how_much_all_clusters_take() -> None:
    for sharing, expected in ((1.0, (0.1, 0.1)), (0.0, (0.15, 0.05))):
        step = oracle(sharing=sharing).fold(two(late=[40] * 101), [upload(vector(2, 1), vector(2, 0))])
        assert [step.clusters[k][1] for k in ("k0", "k1")] == pytest.approx(expected)


@pytest.mark.parametrize(("chosen", "first"), [(1.0, 0.0), (0.5, 0.1), (0.0, 0.2)])
def test_clusters_come_together_while_replies_do_not_reach_for_them(chosen: float, first: float) -> None:
    """The step is .1 and both are 2 from their trunk: they go .1 of the way where the trunk was given."""
    memo = {"weights": {"k0": 0.5, "k1": 0.5}, "chosen": chosen, "losses": {}}
    sent = upload(vector(2, 1), vector(2, 0), memo=memo)
    step = oracle(sharing=1.0).fold(two(late=[40] * 101), [sent])
    assert numbers(step) == {"k0": pytest.approx([first, 0.1]), "k1": pytest.approx([4 - first, 0.1])}
    apart = oracle(sharing=1.0, fade=0.0).fold(two(late=[40] * 101), [sent])
    assert numbers(apart) == {"k0": pytest.approx([0, 0.1]), "k1": pytest.approx([4, 0.1])}


@pytest.mark.parametrize(("length", "moved"), [(0.0, (0.0, 0.0)), (0.1, (0.1 * 20 / 401**0.5, 0.1 / 401**0.5))])
def test_clusters_come_together_no_farther_than_the_change_is_long(length: float, moved: tuple[float, float]) -> None:
    """Alone it would move them by (.2, .1 length); a member pays for the length of its change and for nothing else."""
    memo = {"weights": {"k0": 0.5, "k1": 0.5}, "chosen": 0.0, "losses": {}}
    sent = upload(vector(2, length), vector(2, 0), memo=memo)
    step = oracle(sharing=1.0).fold(two(late=[40] * 101), [sent])
    x, y = moved
    assert numbers(step) == {"k0": pytest.approx([x, y]), "k1": pytest.approx([4 - x, y])}


def test_the_pull_follows_from_how_far_trainings_move_a_parameter() -> None:
    algorithm = Confluence()
    assert algorithm.pull(two()) == 0.2  # before any is known
    assert algorithm.pull(two(moves=np.array([0.001, 0.01, 0.9]))) == pytest.approx(0.36)  # (60 * .01)^2
    assert algorithm.pull(two(moves=np.array([0.9]))) == 1.0  # at most
    assert Confluence(rho=0.5).pull(two(moves=np.array([0.01]))) == 0.5
    known = replace(two(moves=np.array([0.01])), members={"c0": Member(5, {"k0": 0.75, "k1": 0.25})})
    assert Confluence(estimator="oracle").reply(known, "c0", {}).settings["prox"] == pytest.approx(0.36)


def test_every_fold_remembers_how_far_its_training_moved_a_parameter() -> None:
    step = oracle().fold(two(moves=np.array([0.3])), [upload(vector(2.6, 0.8), vector(2, 0))])
    assert step.memory["moves"].tolist() == pytest.approx([0.3, np.sqrt(0.5)])  # of (.6, .8)
    full = oracle().fold(two(moves=np.zeros(101)), [upload(vector(2.6, 0.8), vector(2, 0))])
    assert full.memory["moves"].tolist() == pytest.approx([0.0] * 100 + [np.sqrt(0.5)])


def test_beyond_twenty_medians_nothing_is_folded() -> None:
    for late, stale in ((800, 0), (801, 1)):
        old = replace(two(late=[40] * 101), version=1000)
        step = oracle().fold(old, [upload(vector(2, 1), vector(2, 0), late=late, version=1000)])
        assert (step.notes["stale"], bool(step.clusters)) == (stale, not stale)
        assert step.mixtures["c0"] == {"k0": 0.75, "k1": 0.25}


def test_one_cluster_is_a_single_model() -> None:
    memory = {"late": np.array([40.0] * 101), "moves": np.zeros(0)}
    alone = state(oracle(), [vector(0, 0)], version=10, memory=memory)
    memo = {"weights": {"k0": 1.0}, "chosen": 1.0, "losses": {}}
    given = upload(vector(0, 1), vector(0, 0), evidence={}, memo=memo)
    step = Confluence().fold(alone, [given])
    assert numbers(step) == {"k0": pytest.approx([0, 0.1])}
    assert step.mixtures == {"c0": {"k0": 1.0}}
    assert not Confluence().needs_proxies(1)
    assert Confluence().needs_proxies(2)


def test_a_reply_holds_the_trunk_and_as_much_of_the_branches_as_it_reaches() -> None:
    mixture = {"k0": 0.75, "k1": 0.25}
    assert weights(mixture, 1.0) == mixture
    assert weights(mixture, 0.5) == {"k0": 0.625, "k1": 0.375}
    assert weights(mixture, 0.0) == {"k0": 0.5, "k1": 0.5}


def known_client(mixture: Mapping[str, float] | None) -> State:
    return replace(two(), members={"c0": Member(5, mixture)})


@pytest.mark.parametrize(
    ("targets", "reach", "word"),
    [((0, 4), 1.0, "full"), ((2, 2), 0.0, "trunk"), ((1.5, 1.5), 0.5, "half")],
)
def test_the_reach_with_the_least_loss_on_the_proxies_is_chosen(
    targets: tuple[float, float], reach: float, word: str
) -> None:
    """The blends are 1, 1.5 and 2; losses are squares of what is missing."""
    proxies: Any = {f"k{i}": Target(at) for i, at in enumerate(targets)}
    algorithm, known = Confluence(estimator="oracle"), known_client({"k0": 0.75, "k1": 0.25})
    found = algorithm.compare(known, "c0", proxies)
    assert found["reach"] == reach
    assert [name for name in found if name.startswith("reply_") and found[name]] == [f"reply_{word}"]
    task = algorithm.reply(known, "c0", found)
    blend = {1.0: 1.0, 0.5: 1.5, 0.0: 2.0}[reach]
    assert task.models["blend"].tolist() == [blend, 0]
    assert task.memo["losses"] == {f"k{i}": pytest.approx((blend - at) ** 2) for i, at in enumerate(targets)}


def test_a_newcomer_gets_the_trunk_and_nothing_is_compared() -> None:
    algorithm = Confluence(estimator="oracle")
    assert algorithm.compare(known_client(None), "c0", {}) == {}
    assert algorithm.reply(known_client(None), "c0", {}).models["blend"].tolist() == [2, 0]


def test_a_client_that_estimates_gets_all_clusters() -> None:
    algorithm = Confluence(estimator="client")
    task = algorithm.reply(known_client(None), "c0", {})
    assert (list(task.models), task.recipe, task.returns, task.estimates) == (["k0", "k1"], "soft", ("own",), True)
    sent = Upload("c0", 1, 5, {"own": vector(1, 1)}, {"k0": 0.75, "k1": 0.25})
    given = {"k0": vector(0, 0), "k1": vector(4, 0)}
    step = algorithm.fold(two(), [Measured(sent, Receipt(1, 9, "soft", ("k0", "k1")), {}, given=given)])
    assert numbers(step) == {"k0": pytest.approx([0, 0.4]), "k1": pytest.approx([4, 0.24])}  # it began at (1, 0)


def test_cdfls_rule_with_its_defaults() -> None:
    clusters = {"k0": Cluster(vector(0, 0), loss=1.0), "k1": Cluster(vector(4, 0), loss=1.0)}
    known = replace(two(), clusters=clusters)
    sent = upload(vector(1, 0), vector(2, 0), evidence={"loss/k0": 1.0, "loss/k1": 3.0})
    step = Confluence(estimator="paper").fold(known, [sent])
    # l (1, 3), gap (0, 2), distance (1, 3): r = (.75, 1, .75) for k0, raw (.8125, .1875), softmax of 3 times that
    assert step.mixtures["c0"]["k0"] == pytest.approx(1 / (1 + np.exp(-3 * 0.625)))


def test_the_oracle_needs_the_true_mixture() -> None:
    federation = ToyFederation(oracle(), 4)
    federation.join_all()
    with pytest.raises(SettingError, match="only a simulation without HTTP knows"):
        federation.step()


def test_buffers_move_towards_the_upload_and_counters_are_its() -> None:
    arrays = {"w": np.zeros(1, np.float32), "mean": np.zeros(1, np.float32), "steps": np.array(7, np.int64)}
    shape = Layout.of(arrays, trainable=["w"])
    old = shape.pack(arrays)
    new = shape.pack({"w": np.full(1, 9, np.float32), "mean": np.ones(1, np.float32), "steps": np.array(8, np.int64)})
    change = shape.pack(
        {"w": np.full(1, 2, np.float32), "mean": np.ones(1, np.float32), "steps": np.array(8, np.int64)}
    )
    found = shape.unpack(moved(shape, old, change, 0.25, new))
    assert (found["w"].tolist(), found["mean"].tolist(), int(found["steps"])) == ([0.5], [0.25], 8)


# the calibrated estimate


def test_features_by_hand() -> None:
    models = {"k0": vector(0, 0), "k1": vector(4, 0)}
    found = features_of(layout(2), vector(1, 0), vector(2, 0), models, {"k0": 1.0, "k1": 4.0}, {"k0": 2.0, "k1": 4.0})
    rows = np.array([[0, np.log(2), 0, 1], [np.log(4), 0, np.log(3), -1]])
    np.testing.assert_allclose(found, rows - rows.mean(axis=0), atol=1e-7)


def test_shares_are_a_softmax_of_the_score() -> None:
    assert shares_of(np.array([1.0]), np.array([[np.log(2)], [0.0]])).tolist() == pytest.approx([2 / 3, 1 / 3])


def error_of(known: Pretended, coefficients: np.ndarray) -> float:
    """The divergence of the estimates of pretend clients."""
    return divergence_of(shares_of(coefficients, known.features), known.shares)


def even_error(true: np.ndarray) -> float:
    return divergence_of(np.full_like(true, 1 / true.shape[1]), true)


def error_of_a_gate(proxies: Mapping[str, Any]) -> float:
    return divergence_of(*tried(gate_of(proxies), proxies, 30, seed=5))


def test_fitting_finds_the_coefficients_that_made_the_shares() -> None:
    rng = np.random.default_rng(0)
    features, true = rng.normal(size=(200, 4, 4)) * [1, 0.1, 10, 1], np.array([-1.0, 8.0, -0.1, 0.5])
    known = Pretended(features, np.array([shares_of(true, rows) for rows in features]))
    found = fitted(known)
    assert error_of(known, found) < 0.005
    np.testing.assert_allclose(found, true, rtol=0.2)
    assert alike(shares_of(found, features), known.shares, ["k0", "k1", "k2", "k3"]) == []


def test_clusters_that_cannot_be_told_apart_are_named_and_share_alike() -> None:
    rng = np.random.default_rng(0)
    features = np.zeros((40, 3, 1))
    features[:, 2, 0] = rng.normal(size=40)
    shares = np.array([shares_of(np.ones(1), rows) for rows in features])
    shares[:, :2] = rng.dirichlet([1, 1], 40) * shares[:, :2].sum(axis=1, keepdims=True)
    assert alike(shares_of(np.ones(1), features), shares, ["k0", "k1", "k2"]) == [("k0", "k1")]
    evened = _evened(np.array([0.5, 0.1, 0.4]), ["k0", "k1", "k2"], [("k0", "k1")])
    assert evened.tolist() == pytest.approx([0.3, 0.3, 0.4])


def test_a_proxy_set_is_divided_once_and_measured_on_a_sample() -> None:
    train, measured = halves(1000)
    assert (len(train), len(measured)) == (500, 250)
    assert not set(train) & set(measured)
    counted = Target(0.0, samples=3)
    assert mean_loss(vector(2, 0), counted) == 4.0  # type: ignore[arg-type]


def test_proxy_sets_of_one_size_are_measured_in_one_pass_to_the_same_bits() -> None:
    state, proxies = digits_like(3, 40)
    smaller = {**proxies, "k2": proxies["k2"].part(np.arange(30))}
    for model in state.clusters.values():
        for sets in (proxies, smaller, {"k0": proxies["k0"]}):
            assert mean_losses(model.params, sets) == {k: mean_loss(model.params, proxy) for k, proxy in sets.items()}


def digits_like(clusters: int, samples: int, noise: float = 0.5) -> tuple[State, dict[str, Any]]:
    """Clusters of a softmax regression whose inputs differ by their place, each trained on its own proxy set."""
    model, rng = SoftmaxRegression(clusters, 2), np.random.default_rng(1)
    proxies, models = {}, {}
    for i in range(clusters):
        x = rng.normal(0, noise, (samples, clusters)).astype(np.float32)
        x[:, i] += 3 * (2 * rng.integers(0, 2, samples) - 1)
        y = ((x[:, i] > 0) ^ (i % 2 == 1)).astype(np.int64)
        proxies[f"k{i}"] = model.learner(x, y)
    for k, proxy in proxies.items():
        models[k] = Cluster(proxy.train(model.start(0), seed=0, plan=Plan(rate=0.1, epochs=3)))
    return State(model.layout, models, seed=5), proxies


@pytest.mark.parametrize(("clusters", "samples"), [(2, 100), (4, 100), (16, 60)])
def test_pretend_clients_teach_the_estimate(clusters: int, samples: int) -> None:
    start, proxies = digits_like(clusters, samples)
    known, new = (pretend(replace(start, version=v), proxies, Plan(rate=0.1), 30) for v in (0, 1))
    assert error_of(new, fitted(known)) < 0.7 * even_error(new.shares)
    assert error_of_a_gate(proxies) < 0.3 * even_error(new.shares)
    again = pretend(start, proxies, Plan(rate=0.1), 30)
    np.testing.assert_array_equal(known.features, again.features)


def spoilt(proxies: Mapping[str, Any], how: str) -> dict[str, Any]:
    """Proxy sets with a fifth of the labels wrong, or of very different sizes."""
    rng, found = np.random.default_rng(2), {}
    for i, (k, proxy) in enumerate(proxies.items()):
        x, y = proxy.arrays()
        if how == "noisy":
            found[k] = SoftmaxRegression(x.shape[1], 2).learner(x, np.where(rng.random(len(y)) < 0.2, 1 - y, y))
        else:
            found[k] = proxy.part(np.arange(len(y) // 4**i))
    return found


@pytest.mark.parametrize("how", ["noisy", "unbalanced"])
def test_the_estimate_survives_noisy_and_unbalanced_proxy_sets(how: str) -> None:
    start, proxies = digits_like(3, 320)
    bad = spoilt(proxies, how)
    assert [proxy.samples for proxy in bad.values()] == ([320] * 3 if how == "noisy" else [320, 80, 20])
    known, new = (pretend(replace(start, version=v), bad, Plan(rate=0.1), 30) for v in (0, 1))
    assert error_of(new, fitted(known)) < 0.7 * even_error(new.shares)
    assert error_of_a_gate(bad) < 0.5 * even_error(new.shares)


def test_the_estimate_is_of_regressions_too() -> None:
    model, rng = LinearRegression(4), np.random.default_rng(3)
    proxies = {}
    for i in range(3):
        x = rng.normal(size=(100, 4)).astype(np.float32)
        proxies[f"k{i}"] = model.learner(x, (x @ rng.normal(0, 2, 4) + rng.normal(0, 0.1, 100)).astype(np.float32))
    plan = Plan(rate=0.05, epochs=3)
    clusters = {k: Cluster(proxy.train(model.start(0), seed=0, plan=plan)) for k, proxy in proxies.items()}
    start = State(model.layout, clusters, seed=5)
    known, new = (pretend(replace(start, version=v), proxies, plan, 30) for v in (0, 1))
    assert error_of(new, fitted(known)) < 0.5 * even_error(new.shares)
    assert error_of_a_gate(proxies) < 0.5 * even_error(new.shares)


@pytest.mark.parametrize(("samples", "size"), [(0, 10), (4, 10), (37, 37), (5000, 500)])
def test_pretend_clients_have_as_many_samples_as_real_ones(samples: int, size: int) -> None:
    """At least half a proxy set, which is 10 here, some of them more than once where that is too few; at most 500."""
    _, proxies = digits_like(2, 20)
    shares, learner = _drawn(np.random.default_rng(1), proxies, samples)
    assert learner.samples == size
    assert shares * size == pytest.approx(np.round(shares * size))  # the true shares are those that were drawn


TRUNK = {"k0": 1.0, "k1": 1.0}  # its losses


CALIBRATED = Confluence(estimator="calibrated")


def calibrated(cosine: float, usual: float | None, sizes: Sequence[float]) -> State:
    """Two clusters and a calibration that looks at the cosine alone, with its sizes in pretend and real uploads."""
    known = {"version": 0, "coefficients": [0.0, 0.0, 0.0, cosine], "alike": [], "divergence": 0.1, "trunk": TRUNK}
    memory = {"sizes": np.array([[9.0, 9.0, 9.0, size] for size in sizes]).reshape(-1, 4), "begun": None}
    return two(calibrated={**known, **({} if usual is None else {"usual": [9.0, 9.0, 9.0, usual]})}, **memory)


@pytest.mark.parametrize(
    ("usual", "sizes", "held"),
    [
        (1.0, [1.0, 1.0], 1.0),  # as large as in pretend uploads
        (0.5, [1.0, 1.0], 0.5),  # twice as large: half of the weight
        (2.0, [1.0, 1.0], 1.0),  # smaller: never more weight
        (0.0, [1.0, 1.0], 1.0),  # the clusters were all the same, so that pretend trainings went nowhere
        (0.5, [5.0, 0.5], 0.5),  # the median of .5, 5 and its own 1 counts, not the largest
        (None, [9.0, 9.0], 1.0),  # a calibration from before sizes were known, by whose rules it goes on
    ],
)
def test_the_cosine_counts_less_where_real_trainings_go_straighter(
    usual: float | None, sizes: list[float], held: float
) -> None:
    """From (2, 0) to (1, 0): the cosine with the way to k0 is 1, with that to k1 -1, their root mean square 1."""
    losses = {"loss/k0": 1.0, "loss/k1": 1.0}
    memo = {"weights": {"k0": 0.5, "k1": 0.5}, "chosen": 1.0, "losses": {"k0": 1.0, "k1": 1.0}}
    sent = upload(vector(1, 0), vector(2, 0), evidence=losses, memo=memo)
    step = CALIBRATED.fold(calibrated(0.8, usual, sizes), [sent])
    assert step.mixtures["c0"]["k0"] == pytest.approx(1 / (1 + np.exp(-1.6 * held)))
    assert usual is None or step.memory["sizes"][:, 3] == pytest.approx([*sizes, 1.0])


def test_what_others_moved_meanwhile_does_not_count_as_the_clients_own() -> None:
    """Both clusters are 3 higher than when it began at (2, 0): its change is seen from where its blend is now."""
    memo = {"weights": {"k0": 0.5, "k1": 0.5}, "chosen": 1.0, "losses": {"k0": 1.0, "k1": 1.0}}
    losses = {"loss/k0": 1.0, "loss/k1": 1.0}
    sent = upload(vector(1, 0), vector(2, 0), evidence=losses, memo=memo)
    then, now = calibrated(0.8, 1.0, [1.0]), calibrated(0.8, 1.0, [1.0])
    now = replace(now, clusters={k: Cluster(vector(*p)) for k, p in {"k0": (0, 3), "k1": (4, 3)}.items()})
    found = [CALIBRATED.fold(state, [sent]) for state in (then, now)]
    assert found[0].mixtures["c0"] == pytest.approx(found[1].mixtures["c0"])
    np.testing.assert_allclose(found[0].memory["sizes"], found[1].memory["sizes"])


def test_a_way_to_a_cluster_is_seen_from_the_trunk() -> None:
    """From (2, 1) back to (2, 0), at right angles to the line of the clusters, whatever the base was."""
    models = {"k0": vector(0, 0), "k1": vector(4, 0)}
    flat = {"k0": 1.0, "k1": 1.0}
    new, base = vector(2, 0), vector(2, 1)
    by_base = features_of(layout(2), new, base, models, flat, flat)
    by_trunk = features_of(layout(2), new, vector(3, 0), models, flat, flat, vector(2, 0))
    assert by_base[:, 3] == pytest.approx([0, 0])  # both are as far to the side
    assert by_trunk[:, 3] == pytest.approx([1, -1])  # straight towards k0


def test_a_stale_upload_shows_nothing_of_how_real_trainings_go() -> None:
    losses = {"loss/k0": 1.0, "loss/k1": 2.0}
    known = calibrated(0.8, 0.5, [1.0, 1.0])
    prompt = replace(known, version=500, memory={**known.memory, "late": np.ones(101)})
    step = CALIBRATED.fold(prompt, [upload(vector(1, 0), vector(2, 0), late=400, version=500, evidence=losses)])
    assert step.notes["stale"] == 1
    assert "sizes" not in step.memory


def test_a_proxy_set_that_cannot_be_divided_is_refused() -> None:
    start, proxies = digits_like(2, 20)
    with pytest.raises(SettingError, match="The proxy set of k0 cannot be divided"):
        pretend(start, {**proxies, "k0": Target(0.0)}, Plan(), 2)  # type: ignore[dict-item]


# studies beside the uploads

OFTEN = Confluence(
    estimator="calibrated", first_pretend=2, pretend=1, pretend_window=3, calibrate_every=3, calibrate_lag=2
)


def test_a_study_has_the_same_result_whenever_it_is_made() -> None:
    plain = ToyFederation(OFTEN, 4)
    with ThreadPoolExecutor(1) as pool:
        beside = ToyFederation(OFTEN, 4)
        beside.coordinator.beside = lambda work: pool.submit(work).result
        for federation in (plain, beside):
            federation.join_all()
        for _ in range(12):
            plain.step()
            beside.step()
            assert plain.coordinator.digest() == beside.coordinator.digest()
    assert plain.coordinator.state.memory["calibrated"]["version"] > 3


def test_a_calibration_is_in_force_some_folds_after_it_began() -> None:
    federation = ToyFederation(OFTEN, 4)
    federation.join_all()
    seen = []
    for _ in range(9):
        federation.step()
        memory = federation.coordinator.state.memory
        seen.append((memory["calibrated"]["version"], memory["begun"] and memory["begun"]["version"]))
    # due after three folds, begun with the clusters of version 3, in force from the fold of version 5 on
    assert seen == [(0, None), (0, None), (0, None), (0, 3), (0, 3), (3, None), (3, 6), (3, 6), (6, None)]


@pytest.mark.parametrize("matched", [True, False])
def test_a_calibration_begins_with_how_many_samples_clients_usually_have(matched: bool) -> None:
    federation = ToyFederation(replace(OFTEN, matched=matched), 4)
    federation.join_all()
    for _ in range(4):
        federation.step()
    state = federation.coordinator.state
    claimed = sorted(member.samples for member in state.members.values())
    assert state.memory["begun"].get("samples") == (round((claimed[1] + claimed[2]) / 2) if matched else None)
    assert ("usual" in state.memory["calibrated"]) == ("sizes" in state.memory) == matched


def test_settings_that_cannot_be_are_refused() -> None:
    for wrong in ({"flight": 0}, {"sharing": 2}, {"reach": -1}, {"largest": 0}, {"calibrate_lag": 200}, {"pretend": 0}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            Confluence(**wrong)  # type: ignore[arg-type]
