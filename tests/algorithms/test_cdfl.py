"""CDFL and CCFL: the published test vectors, and hand-worked numbers for every branch."""

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import pytest
from hand import FixedLoss, layout, measured, state, vector

from artesian.algorithms.cdfl import CDFL, estimate, update_ratios
from artesian.algorithms.estimators import Estimates
from artesian.core import MeasureContext, Measured, Receipt, Upload
from artesian.engine.pace import Stream
from artesian.errors import SettingError

THREE = np.array([[10.0, 14, 20], [1, 4, 8], [5, 6, 7]])
TWO = np.array([[9.0, 12], [1, 3], [4, 5]])
MIN = ("min", "min", "min")
FIRST = (0.432566, 0.334409, 0.233025)


@pytest.mark.parametrize(
    ("metrics", "c1", "c2", "amplifiers", "bars", "raw", "shares"),
    [
        (THREE, 0.5, 0.25, (3,), (8, 0, 0), (0.430662, 0.344872, 0.224466), FIRST),
        (THREE, 0.5, 0.2, (10,), MIN, (0.5, 0.348571, 0.151429), (0.799618, 0.175888, 0.024494)),
        (THREE, 0.6, 0.3, (10, 10), MIN, (0.5, 0.352619, 0.147381), (0.997375, 0.002179, 0.000446)),
        (TWO, 0.5, 0.4, (3,), (8, 0, 0), (0.755556, 0.244444), (0.822493, 0.177507)),
        (TWO, 0.5, 0.4, (3,), MIN, (1, 0), (0.952574, 0.047426)),
    ],
)
def test_the_estimate_gives_the_published_vectors(metrics, c1, c2, amplifiers, bars, raw, shares) -> None:
    found_raw, found, clamped = estimate(metrics, bars, c1, c2, amplifiers)
    assert found_raw == pytest.approx(raw, abs=5e-7)
    assert found == pytest.approx(shares, abs=5e-7)
    assert clamped == 0
    assert found.sum() == pytest.approx(1)


@pytest.mark.parametrize(
    ("since", "expected"),
    [
        ((3, 3, 3), (0.025, 0.0193270, 0)),
        ((30, 30, 30), (8.30565e-5, 6.42094e-5, 0)),
        ((104 - 100, 129 - 100, 110 - 100), (0.025, 6.64159e-5, 0)),  # the cluster reference of CCFL
    ],
)
def test_the_update_ratios_give_the_published_vectors(since, expected) -> None:
    _, shares, _ = estimate(THREE, (8, 0, 0), 0.5, 0.25, (3,))
    assert update_ratios(shares, since, 0.025, 1 / 3 - 1e-12, 10, 5) == pytest.approx(expected, rel=2e-6)


def test_one_cluster_needs_no_estimate() -> None:
    raw, shares, clamped = estimate(np.array([[9.0], [1], [4]]), (8, 0, 0), 0.5, 0.25, (3,))
    assert (raw.tolist(), shares.tolist(), clamped) == ([1], [1], 0)


def test_equal_metrics_make_an_even_mixture_and_all_pass_the_bar() -> None:
    _, shares, _ = estimate(np.ones((3, 4)), MIN, 0.5, 0.25, (10,))
    assert shares == pytest.approx([0.25] * 4)
    assert update_ratios(shares, (0,) * 4, 0.025, 0.25 - 1e-12, 10, 5) == pytest.approx([0.025] * 4)


def test_a_sum_that_is_only_rounding_counts_as_zero() -> None:
    _, shares, _ = estimate(np.array([[1e6, 1e6 + 1e-10], [0.0, 0.0], [0.0, 0.0]]), MIN, 0.5, 0.25, (3,))
    assert shares == pytest.approx([0.5, 0.5])


def test_a_loss_below_its_bar_is_clamped_and_counted() -> None:
    """l = (0.5, 1.5) with bar 8: clamped the loss says nothing; literally the worse cluster wins."""
    metrics = np.array([[0.5, 1.5], [1.0, 1.0], [1.0, 1.0]])
    _, shares, clamped = estimate(metrics, (8, 0, 0), 0.5, 0.25, (3,))
    assert clamped == 2
    assert shares == pytest.approx([0.5, 0.5])
    raw, _, counted = estimate(metrics, (8, 0, 0), 1.0, 0.0, (3,), clamp=False)
    assert raw == pytest.approx([0.464286, 0.535714], abs=1e-6)
    assert counted == 0


def test_a_large_amplifier_does_not_overflow() -> None:
    _, shares, _ = estimate(THREE, MIN, 0.5, 0.25, (1e6,))
    assert shares.tolist() == [1, 0, 0]


def test_a_numeric_bar_above_the_maximum_updates_nothing() -> None:
    assert update_ratios(np.array([0.6, 0.4]), (0, 0), 0.025, 0.9, 10, 5).tolist() == [0, 0]


def upload_of(base: int, losses: dict[str, float], params=(1.0,), client: str = "c0"):
    evidence = {f"loss/{k}": loss for k, loss in losses.items()} | {f"unit/{k}": 1.0 for k in losses}
    return measured(client, vector(*params), base, evidence=evidence)


def test_a_fresh_upload_moves_the_clusters_it_fits_and_leaves_an_estimate() -> None:
    """Two clusters at 0 and 4, upload at 1: l = (9, 12), own losses (8, 15), d2 = (1, 3).

    d1 = (1, 3), bars 0: r_l = (12/21, 9/21), r_d1 = (3/4, 1/4), r_d2 = (3/4, 1/4); c = .5, .25, .25:
    raw = (0.660714, 0.339286), alpha = softmax(3 raw) = (0.723979, 0.276021). Only k0 passes 1/2.
    """
    algorithm = CDFL()
    now = state(algorithm, [vector(0), vector(4)], version=9, losses=(8, 15))
    step = algorithm.fold(now, [upload_of(8, {"k0": 9, "k1": 12})])
    assert step.mixtures["c0"] == pytest.approx({"k0": 0.723979, "k1": 0.276021}, abs=1e-6)
    assert list(step.clusters) == ["k0"]
    assert step.clusters["k0"].tolist() == pytest.approx([0.025])  # t - tau = 2 < b: beta_0
    assert step.notes["stale"] == 0
    assert step.memory == {}


def test_at_b_the_weight_drops_to_one_fifty_first() -> None:
    algorithm = CDFL(tau0=100)
    now = state(algorithm, [vector(0), vector(4)], version=9, losses=(8, 15))
    step = algorithm.fold(now, [upload_of(5, {"k0": 9, "k1": 12})])  # t - tau = 10 - 5
    assert step.clusters["k0"].tolist() == pytest.approx([0.025 / 51], rel=1e-5)


def test_the_cluster_reference_counts_from_the_clusters_last_change() -> None:
    algorithm = CDFL(staleness_ref="cluster", tau0=1000)
    now = state(algorithm, [vector(0), vector(4)], version=130, losses=(8, 15), updated=(104, 129))
    step = algorithm.fold(now, [upload_of(100, {"k0": 9, "k1": 12})])
    assert step.clusters["k0"].tolist() == pytest.approx([0.025])  # 104 - 100 < 5
    later = algorithm.fold(now, [upload_of(120, {"k0": 9, "k1": 12})])  # 104 - 120 is negative: fresh
    assert later.clusters["k0"].tolist() == pytest.approx([0.025])


def test_a_stale_upload_changes_nothing_and_equality_is_not_stale() -> None:
    algorithm = CDFL()  # tau0: the four clients present
    now = state(algorithm, [vector(0), vector(4)], version=9, losses=(8, 15))
    stale = algorithm.fold(now, [upload_of(5, {"k0": 9, "k1": 12})])  # 10 - 5 > 4
    assert (stale.clusters, stale.mixtures, stale.notes["stale"]) == ({}, {}, 1)
    edge = algorithm.fold(now, [upload_of(6, {"k0": 9, "k1": 12})])  # 10 - 6 = 4
    assert edge.notes["stale"] == 0


def test_a_reply_blends_by_the_stored_estimate_or_evenly() -> None:
    algorithm = CDFL()
    now = state(algorithm, [vector(0), vector(4)])
    assert algorithm.task(now, "c0").models["blend"].tolist() == [2]  # a newcomer: even
    known = replace(now.members["c0"], mixture={"k0": 0.75, "k1": 0.25})
    task = algorithm.task(replace(now, members={"c0": known}), "c0")
    assert task.models["blend"].tolist() == [1]
    assert task.settings == {"prox": 0.1}
    assert algorithm.task(now, "a late joiner").models["blend"].tolist() == [2]


def test_a_reply_above_the_bar_leaves_weak_clusters_out() -> None:
    algorithm = CDFL(reply_clusters="above_bar")
    now = state(algorithm, [vector(0), vector(4), vector(8)])
    known = replace(now.members["c0"], mixture={"k0": 0.4, "k1": 0.4, "k2": 0.2})
    assert algorithm.task(replace(now, members={"c0": known}), "c0").models["blend"].tolist() == [2]
    strict = CDFL(reply_clusters="above_bar", update_bar=0.9)
    assert strict.task(replace(now, members={"c0": known}), "c0").models["blend"].tolist() == [4]


def test_one_cluster_moves_by_beta0_and_the_staleness_alone() -> None:
    algorithm = CDFL()
    now = state(algorithm, [vector(0)], version=1, losses=(3,))
    step = algorithm.fold(now, [upload_of(0, {"k0": 5}, params=(2.0,))])
    assert step.clusters["k0"].tolist() == pytest.approx([0.05])
    assert step.mixtures["c0"] == {"k0": 1}


@pytest.mark.parametrize(
    ("scale", "samples", "loss", "unit"),
    [
        ("batch_sum", 2000, 16 * 0.5, 1.0),
        ("batch_sum", 300, 3 * 0.5, 3 / 16),
        ("mean", 300, 0.5, 1),
        ("sum", 300, 150, 1),
    ],
)
def test_the_three_loss_scales(scale, samples, loss, unit) -> None:
    algorithm = CDFL(loss_scale=scale)
    given = MeasureContext(Receipt(1, 0, "train", ("blend",)), {"k0": FixedLoss(samples)})
    evidence = algorithm.measure(Upload("c0", 1, 1, {"blend": vector(1)}), given)
    assert evidence == {"loss/k0": pytest.approx(loss), "unit/k0": pytest.approx(unit)}
    assert algorithm.appraise(vector(1), FixedLoss(samples)) == pytest.approx(loss)


def test_a_numeric_bar_shrinks_with_the_proxy_set() -> None:
    """Bar 8 is for 16 batches. With 4 batches losses and bar are a quarter, and the estimate is the same."""
    algorithm = CDFL(l_bar=8, d1_bar=0, d2_bar=0)
    full = state(algorithm, [vector(0), vector(4)], losses=(8, 15))
    quarter = state(algorithm, [vector(0), vector(4)], losses=(2, 3.75))
    one = algorithm.fold(full, [upload_of(0, {"k0": 9, "k1": 12})])
    evidence = {"loss/k0": 9 / 4, "loss/k1": 3.0, "unit/k0": 0.25, "unit/k1": 0.25}
    two = algorithm.fold(quarter, [measured("c0", vector(1), 0, evidence=evidence)])
    assert one.mixtures["c0"] == pytest.approx(two.mixtures["c0"])
    assert one.mixtures["c0"]["k0"] > 0.75  # (9-8)/(1+4): the bar sharpens what bars 0 left at .72


def test_three_clusters_have_min_bars_and_amplifier_ten_by_default() -> None:
    """l = (9, 12, 10), own losses the same, models at 0, 4, 3 and the upload at 1, so distances 1, 3, 2.

    With `min` bars x_l = (0, 3, 1), x_d1 = 0, x_d2 = (0, 2, 1): r_l = (1, 1/4, 3/4), r_d1 = 2/3, r_d2 = (1, 1/3, 2/3);
    raw = (.5 r_l + .25 r_d1 + .25 r_d2)/2 = (.458333, .1875, .354167), alpha = softmax(10 raw).
    """
    now = state(CDFL(), [vector(0), vector(4), vector(3)], losses=(9, 12, 10))
    step = CDFL().fold(now, [upload_of(0, {"k0": 9, "k1": 12, "k2": 10})])
    powers = np.exp(10 * np.array([0.4583333, 0.1875, 0.3541667]))
    assert list(step.mixtures["c0"].values()) == pytest.approx((powers / powers.sum()).tolist(), abs=1e-5)


def test_equal_shares_all_pass_the_mean_and_a_share_at_a_numeric_bar_passes() -> None:
    now = state(CDFL(), [vector(1), vector(1)], losses=(9, 9))
    for algorithm in (CDFL(), CDFL(update_bar=0.5)):
        step = algorithm.fold(now, [upload_of(0, {"k0": 9, "k1": 9}, params=(3.0,))])
        assert list(step.clusters) == ["k0", "k1"]


def test_the_edges_of_settings_are_allowed() -> None:
    CDFL(c1=1.0, c2=0.0, adjust_start=1.0, horizon=5, rho=0.0, beta0=1.0, adjust_percentile=100)
    CDFL(adjust_start=0.0, horizon=5, update_bar=1.0, a=0, b=0, adjust_records=1, adjust_window=1, tau0=1)


FILTER = CDFL(adjust_start=0.5, horizon=100, adjust_records=3, tau0=1000)


def filtered(records, version, losses=(9, 12)):
    now = state(FILTER, [vector(0), vector(4)], version=version, losses=(8, 15), memory={"records": np.array(records)})
    return FILTER.fold(now, [upload_of(version, dict(zip(("k0", "k1"), losses, strict=True)))])


ROW = [[9.0, 12], [1, 3], [1, 3]]  # what the upload of these tests measures
LOWER = [[8.0, 12], [1, 3], [1, 3]]


def test_the_filter_stops_a_cluster_when_one_metric_is_beyond_the_percentile() -> None:
    step = filtered([LOWER] * 3, version=60)
    assert step.clusters == {}
    assert step.notes["filtered"] == 1
    assert step.mixtures["c0"]["k0"] > 0.5  # the estimate and the reply are unaffected


def test_the_filter_passes_what_equals_the_percentile() -> None:
    assert list(filtered([ROW] * 3, version=60).clusters) == ["k0"]


def test_the_filter_interpolates_the_percentile() -> None:
    """Losses 8, 9, 10: the 70th percentile is 9.4, so 9 passes; of 8, 8, 9 it is 8.4, so 9 does not."""
    rows = [[[loss, 12.0], [1, 3], [1, 3]] for loss in (8.0, 9, 10)]
    assert list(filtered(rows, version=60).clusters) == ["k0"]
    rows = [[[loss, 12.0], [1, 3], [1, 3]] for loss in (8.0, 8, 9)]
    assert filtered(rows, version=60).clusters == {}


def test_the_filter_is_silent_before_its_start_and_with_too_few_records() -> None:
    assert list(filtered([LOWER] * 3, version=48).clusters) == ["k0"]  # epoch 49 < 50
    assert filtered([LOWER] * 3, version=49).clusters == {}  # epoch 50
    assert list(filtered([LOWER] * 2, version=60).clusters) == ["k0"]


def test_every_fresh_upload_is_recorded_after_the_test_and_stale_ones_are_not() -> None:
    step = filtered([LOWER] * 3, version=60)
    assert step.memory["records"].shape == (4, 3, 2)
    assert step.memory["records"][-1].tolist() == ROW
    first = FILTER.fold(state(FILTER, [vector(0), vector(4)], losses=(8, 15)), [upload_of(0, {"k0": 9, "k1": 12})])
    assert first.memory["records"].tolist() == [ROW]
    stale = replace(FILTER, tau0=1).fold(
        state(FILTER, [vector(0), vector(4)], version=5, losses=(8, 15)), [upload_of(0, {"k0": 9, "k1": 12})]
    )
    assert stale.memory == {}


def test_the_filter_may_forget_all_but_the_newest_records() -> None:
    """Three are kept: of 8, 8, 9, 9 the first goes; with 9, 9 and 9 on record, 9 passes."""
    window = replace(FILTER, adjust_window=3)

    def fold(losses):
        rows = np.array([[[loss, 12.0], [1, 3], [1, 3]] for loss in losses])
        now = state(window, [vector(0), vector(4)], version=60, losses=(8, 15), memory={"records": rows})
        return window.fold(now, [upload_of(60, {"k0": 9, "k1": 12})])

    step = fold((8.0, 8, 9))
    assert step.notes["filtered"] == 1
    assert step.memory["records"][:, 0, 0].tolist() == [8, 9, 9]
    step = fold((8.0, 9, 9))
    assert step.notes["filtered"] == 0
    assert step.memory["records"][:, 0, 0].tolist() == [9, 9, 9]
    assert fold((8.0, 8)).memory["records"][:, 0, 0].tolist() == [8, 8, 9]
    assert fold((7.0, 8, 8, 9)).memory["records"][:, 0, 0].tolist() == [8, 9, 9]  # a narrower window than before


def test_the_filter_may_start_at_an_epoch_and_needs_a_horizon_for_a_fraction() -> None:
    absolute = CDFL(adjust_start_epoch=3, adjust_records=1)
    now = state(absolute, [vector(0), vector(4)], version=2, losses=(8, 15), memory={"records": np.array([LOWER])})
    assert absolute.fold(now, [upload_of(2, {"k0": 9, "k1": 12})]).clusters == {}
    with pytest.raises(SettingError, match="horizon"):
        CDFL(adjust_start=0.5).init(layout(1), [vector(0)], 0)


def test_defaults_depend_on_the_number_of_clusters() -> None:
    assert CDFL().amplifiers(2) == (3,)
    assert CDFL().amplifiers(3) == (10,)
    assert CDFL(amplifier=7).amplifiers(2) == (7,)
    assert CDFL(amplifier=(10, 10)).amplifiers(4) == (10, 10)


def test_cdfl_streams_and_folds_one_at_a_time() -> None:
    assert CDFL().pace() == Stream()
    now = state(CDFL(), [vector(0), vector(4)], losses=(8, 15))
    with pytest.raises(SettingError, match="uploads at once"):
        CDFL().fold(now, [upload_of(0, {"k0": 9, "k1": 12})] * 2)


@pytest.mark.parametrize(
    "wrong",
    [
        {"beta0": 0},
        {"beta0": 2},
        {"a": -1},
        {"rho": -1},
        {"tau0": 0},
        {"c1": -0.1},
        {"c1": 0.8, "c2": 0.3},
        {"amplifier": 0},
        {"amplifier": (3, -1)},
        {"amplifier": ()},
        {"update_bar": 2},
        {"adjust_records": 0},
        {"adjust_window": 29},
        {"adjust_window": 0},
        {"adjust_start": 2},
        {"adjust_percentile": 101},
    ],
)
def test_settings_out_of_range_are_refused(wrong) -> None:
    with pytest.raises(ValueError, match=r", (not|but) \S"):
        CDFL(**wrong)


# mixtures from elsewhere

CALIBRATED = CDFL(estimator="calibrated", calibrate_every=3, calibrate_lag=2)


@dataclass(frozen=True)
class Far:
    """A proxy set on which a model is as bad as its number is far from a place."""

    at: float
    samples: int = 4

    def losses(self, params) -> np.ndarray:
        return np.full(self.samples, abs(float(params[0]) - self.at))


def calibration(*coefficients: float, version: int = 0, alike=()) -> dict[str, Any]:
    known = {"version": version, "coefficients": np.array(coefficients), "alike": alike, "divergence": 0.1}
    return {"calibrated": {**known, "trunk": {"k0": 2.0, "k1": 2.0}}, "begun": None}


def drawn(evidence: dict[str, float], memo: Any = None, base: int = 0) -> Measured:
    """An upload at 1 of a client that was given 2."""
    receipt = Receipt(1, base, "train", ("blend",), memo=memo)
    return Measured(Upload("c0", 1, 1, {"blend": vector(1)}), receipt, evidence, given={"blend": vector(2)})


def calibrated(memory: dict[str, Any], version: int = 0, algorithm: CDFL = CALIBRATED):
    return state(algorithm, [vector(0), vector(4)], version=version, memory=memory)


def test_by_the_paper_nothing_is_new() -> None:
    assert CDFL(0.5, 9.0, 4.0, 0.2, 7) == CDFL(beta0=0.5, a=9.0, b=4.0, rho=0.2, tau0=7)
    now = state(CDFL(), [vector(0), vector(4)])
    assert not CDFL().needs_given and CDFL().needs_proxies(1) and CDFL().recipes == ("train",)
    assert CDFL().compare(now, "c0", {}) == {} and CDFL().reply(now, "c0", {}).memo is None
    assert CDFL().study(now) is None and CDFL().init(layout(1), [vector(0)], 0).memory == {}
    assert not set(CDFL().describe()) & {f.name for f in fields(Estimates)}
    assert {f.name for f in fields(Estimates)} <= set(CALIBRATED.describe())


def test_the_oracles_mixture_is_folded_by_cdfls_ratios() -> None:
    """(.75, .25): only k0 passes 1/2, with beta_0; nothing is measured but the truth."""
    algorithm = CDFL(estimator="oracle")
    given = MeasureContext(Receipt(1, 0, "train", ("blend",)), {}, {"k0": 0.75, "k1": 0.25})
    evidence = algorithm.measure(Upload("c0", 1, 1, {"blend": vector(1)}), given)
    assert evidence == {"share/k0": 0.75, "share/k1": 0.25}
    step = algorithm.fold(state(algorithm, [vector(0), vector(4)]), [measured("c0", vector(1), evidence=evidence)])
    assert step.mixtures["c0"] == {"k0": 0.75, "k1": 0.25}
    assert {k: params.tolist() for k, params in step.clusters.items()} == {"k0": pytest.approx([0.025])}
    assert not algorithm.needs_proxies(2) and not algorithm.needs_given
    assert algorithm.appraise(vector(1), FixedLoss(5)) is None


def test_a_client_that_estimates_gets_all_clusters_and_its_mixture_counts() -> None:
    algorithm = CDFL(estimator="client")
    now = state(algorithm, [vector(0), vector(4)])
    task = algorithm.task(now, "c0")
    assert (list(task.models), task.recipe, task.returns, task.estimates) == (["k0", "k1"], "soft", ("own",), True)
    assert task.settings == {"prox": 0.1} and algorithm.recipes == ("soft",)
    sent = Upload("c0", 1, 1, {"own": vector(1)}, {"k0": 0.2, "k1": 0.8})
    step = algorithm.fold(now, [Measured(sent, Receipt(1, 0, "soft", ("k0", "k1")))])
    assert step.mixtures["c0"] == {"k0": pytest.approx(0.2), "k1": pytest.approx(0.8)}
    assert {k: params.tolist() for k, params in step.clusters.items()} == {"k1": pytest.approx([4 - 0.025 * 3])}


@pytest.mark.parametrize(
    ("coefficients", "memo", "share"),
    [
        ((-1, 0, 0, 0), None, 4 / 5),  # 1 / loss: (1, 1/4)
        ((0, 1, 0, 0), {"losses": {"k0": 3.0, "k1": 4.0}}, 3 / 4),  # what the loss fell by: (3/1, 4/4)
        ((0, 1, 0, 0), None, 4 / 5),  # a newcomer began at the trunk, with losses (2, 2): (2/1, 2/4)
        ((0, 0, -1, 0), None, 3 / 4),  # 1 / distance: (1, 1/3)
        ((0, 0, 0, 1), None, 1 / (1 + np.exp(-2))),  # from 2 to 1 is towards 0 and away from 4: cosines (1, -1)
    ],
)
def test_the_calibrated_mixture_by_hand(coefficients, memo, share) -> None:
    now = calibrated(calibration(*coefficients))
    step = CALIBRATED.fold(now, [drawn({"mean/k0": 1.0, "mean/k1": 4.0}, memo)])
    assert step.mixtures["c0"]["k0"] == pytest.approx(share, abs=1e-6)
    assert step.clusters["k0"].tolist() == pytest.approx([0.025]) and list(step.clusters) == ["k0"]
    assert (step.notes["calibration"], step.notes["alike"]) == (0.1, 0)


def test_clusters_that_cannot_be_told_apart_share_alike_and_both_move() -> None:
    now = calibrated(calibration(-1, 0, 0, 0, alike=[["k0", "k1"]]))
    step = CALIBRATED.fold(now, [drawn({"mean/k0": 1.0, "mean/k1": 4.0})])
    assert step.mixtures["c0"] == {"k0": 0.5, "k1": 0.5}
    assert list(step.clusters) == ["k0", "k1"]


def test_what_calibrated_measures_and_what_the_filter_adds() -> None:
    given = MeasureContext(Receipt(1, 0, "train", ("blend",)), {"k0": Far(0.0), "k1": Far(4.0)})
    upload = Upload("c0", 1, 1, {"blend": vector(1)})
    assert CALIBRATED.measure(upload, given) == {"mean/k0": 1.0, "mean/k1": 3.0}
    assert CALIBRATED.appraise(vector(1), Far(4.0)) is None
    filters = replace(CALIBRATED, adjust_start_epoch=1)
    metrics = {"loss/k0": 1.0, "loss/k1": 3.0, "unit/k0": 1 / 16, "unit/k1": 1 / 16}
    assert filters.measure(upload, given) == {**metrics, "mean/k0": 1.0, "mean/k1": 3.0}
    assert filters.appraise(vector(1), Far(4.0)) == 3.0
    assert CALIBRATED.needs_given and CALIBRATED.needs_proxies(2) and not CALIBRATED.needs_proxies(1)
    assert filters.needs_proxies(1) and CDFL(estimator="client", adjust_start_epoch=1).needs_proxies(2)
    alone = MeasureContext(given.receipt, {"k0": Far(0.0)})
    assert CALIBRATED.measure(upload, alone) == {}


def test_the_filter_works_with_the_calibrated_mixture() -> None:
    """The metrics are those of the paper's estimate; the mixture is the calibrated one."""
    filters = replace(FILTER, estimator="calibrated")
    evidence = {"loss/k0": 9.0, "loss/k1": 12.0, "unit/k0": 1.0, "unit/k1": 1.0, "mean/k0": 1.0, "mean/k1": 4.0}
    for records, kept in ((LOWER, []), (ROW, ["k0"])):
        memory = {**calibration(-1, 0, 0, 0), "records": np.array([records] * 3)}
        now = state(filters, [vector(0), vector(4)], version=60, losses=(8, 15), memory=memory)
        step = filters.fold(now, [drawn(evidence, base=60)])
        assert list(step.clusters) == kept
        assert step.mixtures["c0"]["k0"] == pytest.approx(0.8)
        assert step.memory["records"][-1].tolist() == ROW


@pytest.mark.parametrize(("bar", "blend"), [("all", 2.0), ("above_bar", 0.0)])
def test_the_losses_of_what_is_given_are_kept_for_the_upload(bar, blend) -> None:
    """A mixture of (.5, .3, .2) of the places 0, 4 and 4; above the mean share of 1/3 is the first alone."""
    algorithm = replace(CALIBRATED, reply_clusters=bar)
    now = state(algorithm, [vector(0), vector(4), vector(4)])
    proxies: Any = {"k0": Far(0.0), "k1": Far(4.0), "k2": Far(5.0)}
    assert algorithm.compare(now, "c0", proxies) == {}  # a newcomer: the trunk's are known
    known = replace(now, members={"c0": replace(now.members["c0"], mixture={"k0": 0.5, "k1": 0.3, "k2": 0.2})})
    found = algorithm.compare(known, "c0", proxies)
    assert found == pytest.approx({"loss/k0": blend, "loss/k1": 4 - blend, "loss/k2": 5 - blend})
    task = algorithm.reply(known, "c0", found)
    assert task.models["blend"].tolist() == pytest.approx([blend])
    assert task.memo == {"losses": {k: found[f"loss/{k}"] for k in ("k0", "k1", "k2")}}


def test_calibrations_are_due_by_folds_also_by_stale_ones() -> None:
    evidence = {"mean/k0": 1.0, "mean/k1": 4.0}
    for version, base in ((2, 2), (3, 3), (9, 3)):
        step = CALIBRATED.fold(calibrated(calibration(0, 0, 0, 0), version), [drawn(evidence, base=base)])
        assert step.notes["stale"] == (version - base > 3)
        begun = step.memory.get("begun")
        assert (begun and begun["version"]) == (None if version < 3 else version)
    now = calibrated(calibration(0, 0, 0, 0) | {"begun": {"version": 3, "clusters": {"k0": vector(0)}}}, 4)
    assert "begun" not in CALIBRATED.fold(now, [drawn(evidence, base=4)]).memory
    study = CALIBRATED.study(now)
    assert study is not None and (study.state.version, study.needed) == (3, 5)


def test_a_first_calibration_is_needed_at_once_and_none_by_another_estimator() -> None:
    now = calibrated({}, version=7)
    study = CALIBRATED.study(now)
    assert study is not None and (study.state.version, study.needed) == (7, 7)
    assert list(study.state.clusters) == ["k0", "k1"]
    for other in (CDFL(), CDFL(estimator="client"), CDFL(estimator="oracle")):
        assert other.study(calibrated(calibration(0, 0, 0, 0, version=-99), 7)) is None
    assert CALIBRATED.study(state(CALIBRATED, [vector(0)])) is None


@pytest.mark.parametrize(
    "wrong",
    [{"estimator": "best"}, {"first_pretend": 1}, {"pretend": 0}, {"pretend_window": 5}, {"calibrate_lag": 0}],
)
def test_settings_of_estimators_out_of_range_are_refused(wrong) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        CDFL(**wrong)
