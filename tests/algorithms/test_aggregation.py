"""The rules by which a batch becomes one model, against numbers worked out by hand."""

from dataclasses import replace

import numpy as np
import pytest

from artesian.algorithms import IFCA, FedAvg, FedBuff, FedEM
from artesian.algorithms.aggregation import RULES, aggregated, hostile
from artesian.core import Cluster, Measured, Receipt, State, Upload
from artesian.params import Layout, average, seal
from artesian.testing import ToyModel

PLAIN = Layout.of({"weight": np.zeros(2, np.float32)})
TOY = ToyModel().layout


def vectors(*rows) -> list[np.ndarray]:
    return [seal(np.array(row, np.float32)) for row in rows]


HONEST = vectors((0, 4), (1, 3), (2, 2), (3, 1))
HOSTILE = vectors((1000, -1000))


def one(rule, batch=None, weights=None, origin=None) -> list[float]:
    return aggregated(rule, PLAIN, batch or [*HONEST, *HOSTILE], weights, origin).tolist()


def test_a_fifth_is_taken_to_be_hostile_and_at_least_one() -> None:
    assert [hostile(count) for count in (3, 5, 9, 10, 20)] == [1, 1, 1, 2, 4]


def test_the_mean_is_the_weighted_mean() -> None:
    assert one("mean", HONEST) == [1.5, 2.5]
    assert one("mean", HONEST, [3, 1, 0, 0]) == [0.25, 3.75]


def test_the_median_is_that_of_every_entry() -> None:
    assert one("median") == [2, 2]  # of 0 1 2 3 1000 and of 4 3 2 1 -1000
    assert one("median", HONEST) == [1.5, 2.5]
    assert one("median", weights=[1, 1, 1, 1, 1 << 50]) == [2, 2]  # one voice each


def test_the_trimmed_mean_leaves_out_both_ends() -> None:
    assert one("trimmed") == [2, 2]  # 1 2 3 and 3 2 1 are left
    ten = vectors(*[(i, -i) for i in range(9)], (1e6, 1e6))
    assert one("trimmed", ten) == [4.5, -3.5]  # two at each end: 2..7 and -6..-1


def test_no_change_of_a_bounded_mean_is_longer_than_the_median() -> None:
    batch = vectors((3, 4), (0, 5), (300, 400))  # 5, 5 and 500 long
    np.testing.assert_allclose(one("bounded", batch), [2, 13 / 3], rtol=1e-6)
    np.testing.assert_allclose(one("bounded", batch, [1, 1, 2]), [9 / 4, 17 / 4], rtol=1e-6)
    origin = vectors((1, 1))[0]
    moved = [seal(vector + origin) for vector in batch]
    np.testing.assert_allclose(one("bounded", moved, origin=origin), [3, 16 / 3], rtol=1e-6)


def test_krum_keeps_those_whose_neighbours_are_near() -> None:
    """Squared distances to the two nearest: 2 + 8, 2 + 2, 2 + 2, 2 + 8, and millions: the fifth goes."""
    assert one("krum") == [1.5, 2.5]
    assert one("krum", weights=[1, 1, 1, 5, 9]) == [2.25, 1.75]


@pytest.mark.parametrize("rule", RULES)
def test_two_have_a_mean_and_those_without_weight_no_voice(rule) -> None:
    assert one(rule, HONEST[:2]) == [0.5, 3.5]
    assert one(rule, [*HONEST[:2], *HOSTILE], [1, 1, 0]) == [0.5, 3.5]
    assert one(rule, [*HONEST[:3], *HOSTILE], [1, 1, 1, 0]) == one(rule, HONEST[:3])


@pytest.mark.parametrize("rule", RULES)
def test_exact_entries_are_those_of_the_last_one_kept(rule) -> None:
    arrays = [{"weight": np.full(3, i, np.float32), "mean": np.float32([i]), "steps": np.array(i)} for i in range(4)]
    found = TOY.unpack(aggregated(rule, TOY, [TOY.pack(a) for a in arrays]))
    assert found["steps"] in (2, 3)
    assert found["steps"].dtype == np.int64
    assert 0 < float(found["mean"][0]) < 3


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("kind", [FedAvg, FedBuff])
def test_one_of_five_cannot_carry_a_fold_away(kind, rule) -> None:
    algorithm = kind(aggregate=rule) if kind is FedAvg else kind(aggregate=rule, buffer_size=5, server_lr=0.5)
    zero = seal(np.zeros(2, np.float32))
    state = State(PLAIN, {"k0": Cluster(zero)})
    receipt = Receipt(1, 0, "train", ("k0",))
    measured = [Measured(Upload(f"c{i}", 1, 10, {"k0": v}), receipt) for i, v in enumerate([*HONEST, *HOSTILE])]
    moved = algorithm.fold(state, measured).clusters["k0"]
    assert float(np.abs(moved).max()) < 5
    plain = replace(algorithm, aggregate="mean").fold(state, measured).clusters["k0"]
    assert float(np.abs(plain).max()) > 90
    share = 1.0 if kind is FedAvg else 0.5
    np.testing.assert_allclose(moved, share * np.array(one(rule, origin=zero)), rtol=1e-6)


def test_a_stale_change_weighs_less_before_a_rule_sees_it() -> None:
    algorithm = FedBuff(buffer_size=3, aggregate="median")
    state = State(PLAIN, {"k0": Cluster(seal(np.zeros(2, np.float32)))}, version=3)
    bases = (3, 0, 3)  # the second is 3 late: 1/sqrt(4)
    measured = [
        Measured(Upload(f"c{i}", 1, 1, {"k0": v}), Receipt(1, base, "train", ("k0",)))
        for i, (v, base) in enumerate(zip(vectors((1, 1), (8, 8), (2, 2)), bases, strict=True))
    ]
    assert algorithm.fold(state, measured).clusters["k0"].tolist() == [2, 2]  # of 1, 4 and 2


def test_a_rule_that_there_is_not_is_refused_and_the_mean_is_not_described() -> None:
    for kind in (FedAvg, FedBuff, FedEM, IFCA):
        with pytest.raises(ValueError, match="aggregate must be one of mean, median, trimmed, bounded, krum"):
            kind(aggregate="average")
        assert "aggregate" not in kind().describe()
        assert kind(aggregate="krum").describe()["aggregate"] == "krum"
    with pytest.raises(ValueError, match="averaging = model"):
        IFCA(averaging="gradient", aggregate="median")


def test_the_mean_has_the_bits_it_had() -> None:
    rng = np.random.default_rng(0)
    batch = vectors(*rng.normal(size=(7, 2)))
    weights = [3, 0, 5, 1, 1, 2, 9]
    assert aggregated("mean", PLAIN, batch, weights).tobytes() == average(PLAIN, batch, weights).tobytes()
