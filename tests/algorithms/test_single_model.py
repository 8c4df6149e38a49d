"""Hand-worked numbers for every branch of Local, FedAvg, FedProx, FedAsync and FedBuff."""

from dataclasses import replace

import numpy as np
import pytest
from hand import layout, measured, state, vector

from artesian.algorithms import FedAsync, FedAvg, FedBuff, FedProx, Local
from artesian.engine.pace import Rounds, Stream

ALL = [Local(), FedAvg(), FedProx(), FedAsync(), FedBuff()]


@pytest.mark.parametrize("algorithm", ALL, ids=lambda a: a.name)
def test_a_single_model_starts_as_the_mean_of_the_start_models(algorithm) -> None:
    start = algorithm.init(layout(2), [vector(1, 4), vector(3, 0)], seed=5)
    assert list(start.clusters) == ["k0"]
    assert start.clusters["k0"].params.tolist() == [2, 2]
    assert (start.version, start.seed) == (0, 5)


def test_local_gives_the_start_model_once_and_folds_nothing() -> None:
    now = state(Local(), [vector(3)])
    task = Local().task(now, "c0")
    assert (task.recipe, task.models["k0"].tolist()) == ("alone", [3])
    later = replace(now, members={"c0": replace(now.members["c0"], answered=1)})
    assert Local().task(later, "c0").models == {}
    assert Local().task(now, "a stranger").models["k0"].tolist() == [3]
    assert Local().fold(now, [measured("c0", vector(9))]).clusters == {}
    assert Local().pace() == Stream()


@pytest.mark.parametrize(
    "wrong", [lambda: FedProx(mu=np.nan), lambda: FedAsync(rho=np.nan), lambda: FedBuff(server_lr=np.nan)]
)
def test_a_setting_that_is_no_number_is_refused(wrong) -> None:
    with pytest.raises(ValueError, match=r"mu|rho|server_lr"):
        wrong()


def test_fedavg_weighs_by_samples() -> None:
    step = FedAvg().fold(
        state(FedAvg(), [vector(100)]), [measured("c0", vector(1), samples=1), measured("c1", vector(5), samples=3)]
    )
    assert step.clusters["k0"].tolist() == [4]  # (1*1 + 3*5) / 4


def test_fedavg_gives_no_weight_to_a_client_without_samples() -> None:
    step = FedAvg().fold(
        state(FedAvg(), [vector(9)]), [measured("c0", vector(1), samples=0), measured("c1", vector(5), samples=2)]
    )
    assert step.clusters["k0"].tolist() == [5]


def test_fedavg_stands_still_when_nobody_has_samples() -> None:
    assert FedAvg().fold(state(FedAvg(), [vector(9)]), [measured("c0", vector(1), samples=0)]).clusters == {}


def test_fedavg_runs_in_rounds_with_patience() -> None:
    assert FedAvg(clients_per_round=3, quorum=2, patience=2.5).pace() == Rounds(3, 2, 2.5)
    assert FedAvg().task(state(FedAvg(), [vector(9)]), "c0").settings == {}
    with pytest.raises(ValueError, match="one client"):
        FedAvg(clients_per_round=0)


def test_fedprox_averages_like_fedavg_and_pulls_in_training() -> None:
    algorithm = FedProx(mu=0.25)
    now = state(algorithm, [vector(9)])
    step = algorithm.fold(now, [measured("c0", vector(2), samples=1), measured("c1", vector(8), samples=2)])
    assert step.clusters["k0"].tolist() == [6]
    assert algorithm.task(now, "c0").settings == {"prox": 0.25}
    assert algorithm.fold(now, [measured("c0", vector(2), samples=0)]).clusters == {}
    with pytest.raises(ValueError, match="mu must be at least 0, not -"):
        FedProx(mu=-1)


@pytest.mark.parametrize(
    ("algorithm", "late", "expected"),
    [
        (FedAsync(), 0, 0.3 * 10),  # hinge a=1, b=4: fresh
        (FedAsync(), 4, 0.3 * 10),  # the hinge's edge is fresh
        (FedAsync(), 5, 0.15 * 10),  # 1/(1*(5-4)+1) = 1/2
        (FedAsync(a=10), 6, 0.3 / 21 * 10),
        (FedAsync(staleness="constant"), 50, 3.0),
        (FedAsync(staleness="polynomial", a=0.5), 3, 1.5),  # 1/sqrt(4)
        (FedAsync(staleness="cdfl", a=10, b=5), 5, 0.3 / 51 * 10),
        (FedAsync(alpha=1.0), 0, 10.0),
    ],
)
def test_fedasync_mixes_by_staleness(algorithm, late, expected) -> None:
    step = algorithm.fold(state(algorithm, [vector(0)], version=60), [measured("c0", vector(10), base=60 - late)])
    assert step.clusters["k0"].tolist() == pytest.approx([expected], rel=1e-6)


def test_fedasync_drops_what_is_too_late() -> None:
    algorithm = FedAsync(max_staleness=3)
    now = state(algorithm, [vector(0)], version=10)
    assert algorithm.fold(now, [measured("c0", vector(10), base=6)]).clusters == {}
    assert algorithm.fold(now, [measured("c0", vector(10), base=7)]).clusters["k0"].tolist() == pytest.approx([3])


def test_fedasync_folds_several_in_order() -> None:
    algorithm = FedAsync(alpha=0.5)
    step = algorithm.fold(state(algorithm, [vector(0)]), [measured("c0", vector(8)), measured("c1", vector(0))])
    assert step.clusters["k0"].tolist() == [2]  # 0 -> 4 -> 2


@pytest.mark.parametrize("wrong", [{"alpha": 0}, {"alpha": 1.5}, {"rho": -1}, {"a": -1}, {"b": -1}])
def test_fedasync_refuses_settings_out_of_range(wrong) -> None:
    with pytest.raises(ValueError, match=r"alpha|rho|a and b"):
        FedAsync(**wrong)


def test_fedbuff_takes_the_published_step() -> None:
    """Deltas 1 (fresh) and 3 (staleness 3, weight 1/2), K = 2: (1 + 1.5)/2 = 1.25."""
    algorithm = FedBuff(buffer_size=2)
    step = algorithm.fold(
        state(algorithm, [vector(10)], version=3),
        [measured("c0", vector(1), base=3), measured("c1", vector(3), base=0)],
    )
    assert step.clusters["k0"].tolist() == [11.25]
    assert algorithm.pace() == Stream(batch=2)
    assert algorithm.task(state(algorithm, [vector(0)]), "c0").settings == {"delta": True}


def test_fedbuff_without_weighting_and_with_a_server_rate() -> None:
    algorithm = FedBuff(buffer_size=2, staleness_weighting=False, server_lr=0.5)
    step = algorithm.fold(
        state(algorithm, [vector(10)], version=3),
        [measured("c0", vector(1), base=3), measured("c1", vector(3), base=0)],
    )
    assert step.clusters["k0"].tolist() == [11]  # 10 + 0.5 * (1 + 3)/2


def test_fedbuff_keeps_a_velocity() -> None:
    algorithm = FedBuff(buffer_size=1, momentum=0.5)
    start = algorithm.init(layout(1), [vector(0)], seed=0)
    assert start.memory["velocity"].tolist() == [0]
    one = algorithm.fold(start, [measured("c0", vector(4))])
    assert (one.clusters["k0"].tolist(), one.memory["velocity"].tolist()) == ([4], [4])
    after = state(algorithm, [one.clusters["k0"]], memory=one.memory)
    two = algorithm.fold(after, [measured("c0", vector(1))])
    assert (two.clusters["k0"].tolist(), two.memory["velocity"].tolist()) == ([7], [3])  # 0.5*4 + 1 = 3


def test_fedbuff_divides_a_flushed_buffer_by_what_it_holds() -> None:
    algorithm = FedBuff(buffer_size=10, flush_on_stop=True)
    step = algorithm.fold(state(algorithm, [vector(0)]), [measured("c0", vector(1)), measured("c1", vector(2))])
    assert step.clusters["k0"].tolist() == [1.5]


@pytest.mark.parametrize("wrong", [{"buffer_size": 0}, {"server_lr": 0}, {"staleness_power": -1}, {"momentum": 1}])
def test_fedbuff_refuses_settings_out_of_range(wrong) -> None:
    with pytest.raises(ValueError, match=r"server_lr|stream|staleness_power|momentum"):
        FedBuff(**wrong)


def test_folds_do_not_touch_what_they_are_given() -> None:
    for algorithm in ALL:
        now = state(algorithm, [vector(1, 2)])
        upload = measured("c0", vector(5, 6))
        algorithm.fold(now, [upload])
        assert np.array_equal(now.clusters["k0"].params, [1, 2])
        assert np.array_equal(upload.upload.params, [5, 6])
