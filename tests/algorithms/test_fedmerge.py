"""Hand-worked numbers for every branch of FedMerge and FedMerge-Async.

Models 0 and 4. A newcomer gets 2 and trains it to 3: g = -1. A client with the weights (0.25, 0.75) gets 3 and trains
it to 0: g = 3.
"""

from dataclasses import replace
from math import exp

import numpy as np
import pytest
from hand import layout, state, vector

from artesian.algorithms import FedMerge, FedMergeAsync
from artesian.config.experiments import simulate
from artesian.core import Measured, Receipt, Upload
from artesian.errors import SettingError
from artesian.params import Layout, last_layer
from artesian.testing import ToyFederation

MODELS = [vector(0), vector(4)]
OLD = {"k0": 0.25, "k1": 0.75}


def answered(client, given, trained, base: int = 0, samples: int = 1) -> Measured:
    upload = Upload(client, 1, samples, {"blend": trained})
    return Measured(upload, Receipt(1, base, "train", ("blend",)), given={"blend": given})


def known(algorithm, mixtures, models=MODELS, **more):
    """A state in which these clients have these weights."""
    now = state(algorithm, models, **more)
    members = {client: replace(now.members[client], mixture=mixture) for client, mixture in mixtures.items()}
    return replace(now, members={**now.members, **members})


def cohort(algorithm):
    """The state and the two uploads of the head of this file."""
    uploads = [answered("c0", vector(2), vector(3), samples=7), answered("c1", vector(3), vector(0))]
    return known(algorithm, {"c1": OLD}), uploads


def numbers(step):
    return {k: params.tolist() for k, params in step.clusters.items()}


def test_a_client_gets_the_models_merged_by_its_weights() -> None:
    now = known(FedMerge(rho=0.1), {"c1": OLD})
    newcomer, client = (FedMerge(rho=0.1).task(now, name) for name in ("c0", "c1"))
    assert (newcomer.models["blend"].tolist(), newcomer.mixture) == ([2], None)
    assert (client.models["blend"].tolist(), client.mixture, client.settings) == ([3], OLD, {"prox": 0.1})
    assert FedMerge().task(now, "stranger").models["blend"].tolist() == [2]


def test_every_model_takes_the_mean_change_by_the_cohorts_weights() -> None:
    """w' of k0: 0.5/0.75 and 0.25/0.75, so 0 - (-2/3 + 3/3); of k1: 0.5/1.25 and 0.75/1.25, so 4 - (-0.4 + 1.8)."""
    step = FedMerge().fold(*cohort(FedMerge()))
    np.testing.assert_allclose(step.clusters["k0"], [-1 / 3], rtol=1e-6)
    np.testing.assert_allclose(step.clusters["k1"], [2.6], rtol=1e-6)


def test_weights_follow_the_inner_product() -> None:
    """c0: W = -0.5 (0 - 2)(-1) = -1 and -0.5 (4 - 2)(-1) = 1; c1: W moves by 0.25 * 9 = 2.25 and by -0.75 * 3."""
    step = FedMerge().fold(*cohort(FedMerge()))
    first = 1 / (1 + exp(2))
    assert step.mixtures["c0"] == pytest.approx({"k0": first, "k1": 1 - first})
    assert first == pytest.approx(0.119203, abs=1e-6)
    assert step.mixtures["c1"] == pytest.approx({"k0": 0.967748, "k1": 0.032252}, abs=1e-6)
    assert step.notes == {"largest_step": 2.25}
    half = FedMerge(eta_w=0.5).fold(*cohort(FedMerge())).mixtures
    assert half["c0"]["k0"] == pytest.approx(1 / (1 + exp(1)))
    assert FedMerge(eta_w=0).fold(*cohort(FedMerge())).mixtures["c1"] == pytest.approx(OLD)


def test_scaled_the_largest_step_is_eta_w() -> None:
    """Steps of 1 and 2.25 become 0.01/2.25 and 0.01: 1/(1 + e^0.008889), 0.25 e^0.01 / (0.25 e^0.01 + 0.75 e^-0.01)."""
    step = FedMerge(eta_w=0.01, scaled=True).fold(*cohort(FedMerge()))
    assert step.mixtures["c0"]["k0"] == pytest.approx(0.497778, abs=1e-6)
    assert step.mixtures["c1"]["k0"] == pytest.approx(0.253769, abs=1e-6)
    assert step.notes == {"largest_step": pytest.approx(0.01)}
    idle = FedMerge(scaled=True).fold(known(FedMerge(), {"c1": OLD}), [answered("c1", vector(3), vector(3))])
    assert idle.mixtures["c1"] == pytest.approx(OLD) and idle.notes == {"largest_step": 0}


def test_the_last_layer_or_all_of_the_model_moves_the_weights() -> None:
    """Models (0, 0, 0) and (2, 2, 2), (1, 1, 1) trained to (2, 1, 0): g = (-1, 0, 1). The last layer has the inner
    products -1 and 1, so W = 0.5 and -0.5; all entries have 0 and 0."""
    arrays = {"body.weight": np.zeros(1), "head.weight": np.zeros(1), "head.bias": np.zeros(1)}
    parts = Layout.of({name: array.astype(np.float32) for name, array in arrays.items()})
    assert last_layer(parts) == ["head.weight", "head.bias"]
    models, given, sent = [vector(0, 0, 0), vector(2, 2, 2)], vector(1, 1, 1), vector(2, 1, 0)
    now = replace(state(FedMerge(), models), layout=parts)
    last, whole = (
        kind.fold(now, [answered("c0", given, sent)]).mixtures["c0"] for kind in (FedMerge(), FedMerge(inner="all"))
    )
    assert last["k0"] == pytest.approx(1 / (1 + exp(-1))) and whole == {"k0": 0.5, "k1": 0.5}


def test_who_has_no_samples_does_not_count() -> None:
    now, (first, second) = cohort(FedMerge())
    empty = replace(first, upload=replace(first.upload, samples=0))
    step = FedMerge().fold(now, [empty, second])
    assert numbers(step) == {"k0": [-3], "k1": [1]} and list(step.mixtures) == ["c1"]
    nothing = FedMerge().fold(now, [empty])
    assert (nothing.clusters, nothing.mixtures) == ({}, {})


def test_a_weight_that_has_vanished_stays_so() -> None:
    now = known(FedMerge(), {"c1": {"k0": 1.0, "k1": 0.0}})
    step = FedMerge().fold(now, [answered("c1", vector(0), vector(3))])
    assert numbers(step) == {"k0": [3]} and step.mixtures == {"c1": {"k0": 1.0, "k1": 0.0}}
    far = FedMerge(eta_w=1e9).fold(*cohort(FedMerge())).mixtures
    assert far == {"c0": {"k0": 0.0, "k1": 1.0}, "c1": {"k0": 1.0, "k1": 0.0}}


def test_one_model_is_fedavg_with_even_weights() -> None:
    now = state(FedMerge(), [vector(2)])
    step = FedMerge().fold(now, [answered("c0", vector(2), vector(3)), answered("c1", vector(2), vector(7))])
    assert numbers(step) == {"k0": [5]}
    assert step.mixtures == {"c0": {"k0": 1.0}, "c1": {"k0": 1.0}}


def test_in_a_stream_models_move_by_weight_and_rate() -> None:
    """alpha = 0.4: 0 - 0.4 * 0.25 * 3 = -0.3, 4 - 0.4 * 0.75 * 3 = 3.1; the weights are those of a round."""
    algorithm = FedMergeAsync(alpha=0.4)
    step = algorithm.fold(known(algorithm, {"c1": OLD}), [answered("c1", vector(3), vector(0))])
    np.testing.assert_allclose(step.clusters["k0"], [-0.3], rtol=1e-6)
    np.testing.assert_allclose(step.clusters["k1"], [3.1], rtol=1e-6)
    assert step.mixtures["c1"] == pytest.approx({"k0": 0.967748, "k1": 0.032252}, abs=1e-6)
    assert step.notes == {"stale": 0, "staleness": 0, "largest_step": 2.25}


def test_a_late_upload_moves_less_and_is_compared_with_what_models_are_now() -> None:
    """6 folds late with a = 1, b = 4: 1/3 of 0.3. Given 1 and trained to 2, g = -1: models 0 and 4 have the inner
    products 1 and -3, the weights 0.5 steps of 0.5 and -1.5."""
    algorithm = FedMergeAsync(staleness="hinge")
    now = known(algorithm, {}, version=6)
    step = algorithm.fold(now, [answered("c0", vector(1), vector(2))])
    np.testing.assert_allclose(step.clusters["k0"], [0.05], rtol=1e-6)
    np.testing.assert_allclose(step.clusters["k1"], [4.05], rtol=1e-6)
    assert step.mixtures["c0"]["k0"] == pytest.approx(1 / (1 + exp(2)))
    assert step.notes["staleness"] == 6


def test_an_upload_that_is_too_late_or_has_no_samples_changes_nothing() -> None:
    now = known(FedMergeAsync(), {"c1": OLD}, version=3)
    late = FedMergeAsync(max_staleness=2).fold(now, [answered("c1", vector(3), vector(0))])
    assert (late.clusters, late.mixtures, late.notes) == ({}, {}, {"stale": 1, "staleness": 3})
    empty = FedMergeAsync().fold(now, [answered("c1", vector(3), vector(0), base=3, samples=0)])
    assert (empty.clusters, empty.mixtures, empty.notes) == ({}, {}, {"stale": 0, "staleness": 0})
    with pytest.raises(SettingError, match="FedMerge-Async cannot fold 2 uploads at once"):
        FedMergeAsync().fold(*cohort(FedMergeAsync()))


@pytest.mark.parametrize(("algorithm", "expected"), [(FedMerge(), (1, 12)), (FedMergeAsync(alpha=0.5), (0.25, 10.5))])
def test_statistics_are_averaged(algorithm, expected) -> None:
    """Given 2 with a mean of 15, trained to 3 with 12: k0 goes from 0 to 1, its mean from 10 to 12; in the stream a
    quarter of both ways. As a change, -3, the mean would have become 7."""
    arrays = {"w": np.float32([0]), "mean": np.float32([0]), "steps": np.array(0)}
    parts = Layout.of(arrays, trainable=["w"])

    def model(w: float, mean: float, steps: int):
        return parts.pack({"w": np.float32([w]), "mean": np.float32([mean]), "steps": np.array(steps)})

    now = state(algorithm, [model(0, 10, 5), model(4, 20, 5)])
    step = algorithm.fold(replace(now, layout=parts), [answered("c0", model(2, 15, 5), model(3, 12, 7))])
    found = parts.unpack(step.clusters["k0"])
    assert (float(found["w"][0]), float(found["mean"][0]), int(found["steps"])) == (*expected, 7)


def test_models_must_differ_at_the_start() -> None:
    with pytest.raises(SettingError, match="FedMerge cannot tell k0 from k1"):
        FedMerge().init(layout(), [vector(1), vector(1)], 0)
    with pytest.raises(SettingError, match="needs a start model for each of its 3 clusters"):
        FedMerge(clusters=3).init(layout(), MODELS, 0)
    drawn = FedMergeAsync(clusters=3, initial="random").init(layout(4), [vector(1, 2, 3, 4)], 0).clusters
    assert len({cluster.params.tobytes() for cluster in drawn.values()}) == 3


def test_what_is_known_of_pairs_are_the_weights() -> None:
    assert FedMerge().matrices(known(FedMerge(), {})) == {}
    matrix = FedMerge().matrices(known(FedMerge(), {"c1": OLD}))["importance"]
    assert (matrix.rows, matrix.columns, matrix.values.tolist()) == (("c1",), ("k0", "k1"), [[0.25, 0.75]])


def test_one_model_travels_each_way_and_the_given_one_comes_to_the_fold() -> None:
    federation = ToyFederation(FedMergeAsync(), 3)
    federation.join_all()
    task, upload = federation.tasks["c0"], federation.upload_of("c0")
    assert list(task.models) == list(upload.models) == ["blend"] and task.recipe == "train"
    assert FedMerge.needs_given and FedMergeAsync.needs_given and not FedMerge.stands_for
    measured = federation.coordinator.measure(upload, federation.coordinator.admit(upload))
    assert measured.given["blend"].tobytes() == task.models["blend"].tobytes()


@pytest.mark.parametrize("name", ["fedmerge", "fedmerge-async"])
def test_groups_that_answer_differently_get_weights_of_their_own(name) -> None:
    changes = ["world.clients=8", "world.clusters=2", "training.epochs=2"]
    assert simulate("digits-relabelled", algorithm=name, changes=changes, uploads=40).summary["purity"] == 1.0


def test_wrong_settings_are_refused() -> None:
    for kind in (FedMerge, FedMergeAsync):
        for wrong in ({"clusters": 0}, {"eta_w": -1}, {"rho": -1}, {"inner": "first"}):
            with pytest.raises(ValueError, match=r", (not|but) \S"):
                kind(**wrong)
    with pytest.raises(ValueError, match="alpha"):
        FedMergeAsync(alpha=0)
    with pytest.raises(ValueError, match="a round needs one client"):
        FedMerge(clients_per_round=0)
