"""People, synthetic clients, mixtures of regressions, FedSoft's partitions, and digits of several sources."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from idx import write_idx

from artesian.config.experiments import build, simulate
from artesian.data import datasets as data
from artesian.data.datasets import available, images
from artesian.data.image_arrays import resized, with_channels
from artesian.data.people import people
from artesian.errors import MissingData, MissingExtra, SettingError
from artesian.learners.arrays import LinearRegression
from artesian.simulator.worlds import WORLDS, DigitWorld, Linear, Natural, Rotated, Synthetic
from artesian.simulator.worlds.mixing import fixed_shares, floor_counts, nearest_counts


@pytest.fixture(autouse=True)
def _fresh() -> None:
    for cache in (images, people):
        cache.cache_clear()


# natural


def save_people(path: Path, **more: Any) -> str:
    """Ten samples of ann, four of bob, three of cyd; every sample is its number, twice."""
    user = np.array(["ann"] * 10 + ["bob"] * 4 + ["cyd"] * 3)
    x = np.repeat(np.arange(17, dtype=np.float32), 2).reshape(17, 2)
    np.savez(path, **{"x": x, "y": np.arange(17) % 2, "user": user, **more})
    return str(path)


def test_users_are_clients_the_largest_first(tmp_path: Path) -> None:
    here = Natural(save_people(tmp_path / "p.npz"), samples_min=3)
    assert list(here.names) == ["ann", "bob", "cyd"]
    assert (here.features, here.classes, here.shape) == (2, 2, None)
    kept = here.proxies(0)["k0"].x[:, 0].tolist()
    assert len(kept) == 3  # one of each user
    tests: list[float] = []
    for client, own in (("ann", range(10)), ("bob", range(10, 14)), ("cyd", range(14, 17))):
        visit = here.visit(0, client, 5)
        assert visit.mixture == {"k0": 1.0}
        tests += visit.test.x[:, 0].tolist()
        have = visit.train.x[:, 0].tolist() + visit.test.x[:, 0].tolist() + [x for x in kept if x in own]
        assert sorted(have) == list(own)
    assert [len(here.visit(0, c, 0).test) for c in here.names] == [2, 1, 1]  # floor(9/4), and one at least
    assert sorted(here.tests(0)["k0"].x[:, 0].tolist()) == sorted(tests)
    assert list(Natural(save_people(tmp_path / "q.npz"), clients=2).names) == ["ann", "bob"]
    assert list(Natural(save_people(tmp_path / "r.npz")).names) == ["ann", "bob"]  # cyd has fewer than 4


def test_groups_are_those_of_the_file(tmp_path: Path) -> None:
    group = np.array([7] * 10 + [2] * 4 + [7] * 3)
    here = Natural(save_people(tmp_path / "p.npz", group=group), samples_min=3)
    assert here.visit(0, "ann", 0).mixture == {"k0": 0.0, "k1": 1.0}
    assert here.visit(0, "bob", 0).mixture == {"k0": 1.0, "k1": 0.0}
    assert {int(x) for x in here.tests(0)["k0"].x[:, 0]} <= set(range(10, 14))
    group[0] = 2
    with pytest.raises(SettingError, match="ann is in 2 groups in"):
        Natural(save_people(tmp_path / "q.npz", group=group)).visit(0, "ann", 0)


def save_har(path: Path) -> None:
    path.parent.mkdir(parents=True)
    rng = np.random.default_rng(0)
    arrays = {}
    for part, count in (("train", 30), ("test", 10)):
        arrays[f"x_{part}"] = rng.normal(size=(count, 6, 3)).astype(np.float16)
        arrays[f"y_{part}"] = (np.arange(count) % 5).astype(np.uint8)
        arrays[f"client_{part}"] = (np.arange(count) // (count // 2)).astype(np.uint8)
    np.savez(path, **arrays)


def test_human_activities_are_found_and_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARTESIAN_DATA", str(tmp_path))
    assert available()["har"] == ""
    with pytest.raises(MissingData, match=r"har are missing: .*har\.npz"):
        _ = Natural().names
    save_har(tmp_path / "har_uci" / "har_uci.npz")
    assert available()["har"] == str(tmp_path / "har_uci" / "har_uci.npz")
    here = Natural()
    assert (list(here.names), here.features, here.classes, here.shape) == (["0", "1"], 18, 5, (1, 6, 3))
    visit = here.visit(0, "1", 0)
    assert len(visit.train) + len(visit.test) == 19  # 20, one for the server
    assert visit.train.x.dtype == np.float32 and visit.train.x.shape[1] == 18


@pytest.mark.parametrize(
    "wrong",
    [
        {"y": np.arange(16)},
        {"y": np.ones(17)},
        {"y": np.arange(17) - 1},
        {"user": np.ones(17)},
        {"user": np.ones((17, 2), int)},
        {"group": np.ones(17)},
        {"x": np.array(["a"] * 17)},
        {"x": np.zeros((17, 0))},
        {"user": np.array([None] * 17, object)},
    ],
)
def test_a_file_of_people_that_is_unsound_is_refused(tmp_path: Path, wrong: dict[str, Any]) -> None:
    with pytest.raises(MissingData, match=r"p\.npz"):
        people(save_people(tmp_path / "p.npz", **wrong))


def test_people_out_of_range_are_refused(tmp_path: Path) -> None:
    name = save_people(tmp_path / "p.npz")
    for wrong in ({"clients": 0}, {"proxy_share": -0.1}, {"proxy_share": 0.6}, {"samples_min": 2}, {"test_share": 1}):
        with pytest.raises(ValueError, match=r", (not|but) \S"):
            Natural(name, **wrong)
    with pytest.raises(SettingError, match="is 3, but only 2 users"):
        build({"world": {"name": "natural", "data": name, "clients": 3}})
    one = save_people(tmp_path / "one.npz", y=np.zeros(17, int))
    with pytest.raises(SettingError, match="one class only"):
        build({"world": {"name": "natural", "data": one}})


# synthetic


def test_synthetic_clients_follow_the_formula() -> None:
    here = Synthetic(clients=300, log_mean=4, log_spread=0, samples_min=946, features=3, classes=4)
    visits = [here.visit(0, client, 0) for client in here.names]
    assert {len(v.train) + len(v.test) for v in visits} == {1000}  # 946 + floor(e^4)
    assert {len(v.test) for v in visits} == {250}
    spread = np.mean([v.train.x.std(axis=0) for v in visits], axis=0)
    np.testing.assert_allclose(spread, [1, 2**-0.6, 3**-0.6], rtol=0.02)
    centres = np.array([v.train.x.mean(axis=0) for v in visits])
    assert centres.var() == pytest.approx(2, rel=0.2)  # N(0, beta) and N(B, 1)
    assert np.cov(centres[:, 0], centres[:, 1])[0, 1] == pytest.approx(1, rel=0.35)  # what they share is B
    alike = Synthetic(clients=300, beta=0, log_mean=0, log_spread=0, features=3)
    centres = np.array([alike.visit(0, client, 0).train.x.mean(axis=0) for client in alike.names])
    assert centres.var() == pytest.approx(1, rel=0.2)


def test_a_synthetic_client_has_one_linear_rule_for_all_its_sets() -> None:
    here = Synthetic(clients=1, features=4, classes=3, log_mean=7, log_spread=0)
    own, tests = here.visit(0, "c000", 0), here.tests(0)["k0"]
    nearest = ((tests.x[:, None] - own.train.x[None]) ** 2).sum(axis=2).argmin(axis=1)
    assert (own.train.y[nearest] == tests.y).mean() > 0.85
    assert len(tests) == 2000 and len(here.proxies(0)["k0"]) == 500
    assert own.mixture == {"k0": 1.0}


def test_only_its_own_test_data_judge_what_a_synthetic_client_uses() -> None:
    """On the data of all clients together, a model that serves nobody looks best."""
    here = {"name": "synthetic", "clients": 4, "features": 5, "classes": 3}
    settings = {"uploads": 12, "pool_every": 1, "model": {"name": "softmax"}, "start": {"trunk_epochs": 0, "epochs": 0}}
    run = simulate(build({"world": here, "algorithm": {"name": "fedbuff", "buffer_size": 2}, **settings}))
    assert len(run.metrics["before"]) == 12
    for pool, own in (("pool_before", "before"), ("pool_after", "after")):
        assert run.metrics[pool].tolist() == run.metrics[own].tolist()


def test_synthetic_sizes_are_a_power_law_and_capped() -> None:
    def sizes(**changes: Any) -> list[int]:
        here = Synthetic(**changes)
        return [len(v.train) + len(v.test) for v in (here.visit(0, c, 0) for c in here.names)]

    free = sizes()
    assert min(free) >= 50 and 90 < np.median(free) < 150 and max(free) > 1000  # 50 + e^4 = 104.6 in the middle
    assert max(sizes(samples_per_client=60)) == 60


@pytest.mark.parametrize(
    "wrong",
    [
        {"clients": 0},
        {"classes": 1},
        {"features": 0},
        {"alpha": -1},
        {"beta": float("nan")},
        {"log_spread": 11},
        {"proxy_samples": 0},
        {"samples_per_client": 10},
    ],
)
def test_synthetic_settings_out_of_range_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r", (not|but) \S"):
        Synthetic(**wrong)


# partitions


def test_partitions_by_hand() -> None:
    rng = np.random.default_rng(0)
    halves = np.array([fixed_shares("10:90", rng, i, 4, 2) for i in range(4)])
    np.testing.assert_allclose(halves, [[0.1, 0.9]] * 2 + [[0.9, 0.1]] * 2)
    assert fixed_shares("30:70", rng, 0, 100, 2).tolist() == [0.3, 0.7]
    assert fixed_shares("linear", rng, 0, 100, 2).tolist() == [0.005, 0.995]  # (0.5 + k)% of the first
    assert fixed_shares("linear", rng, 99, 100, 2).tolist() == pytest.approx([0.995, 0.005])
    cuts = np.array([fixed_shares("random", rng, 0, 100, 3) for _ in range(2000)])
    np.testing.assert_allclose(cuts.sum(axis=1), 1)
    np.testing.assert_allclose(cuts.mean(axis=0), [1 / 3] * 3, atol=0.02)
    assert fixed_shares("random", rng, 0, 5, 1).tolist() == [1]


def test_counts_by_hand() -> None:
    assert floor_counts(np.array([0.1, 0.9]), 137).tolist() == [13, 124]
    assert floor_counts(np.array([0.3, 0.3, 0.4]), 11).tolist() == [3, 3, 5]
    assert nearest_counts(np.array([0.3, 0.3, 0.4]), 11).tolist() == [3, 3, 5]
    assert nearest_counts(np.array([0.1, 0.9]), 137).tolist() == [14, 123]
    assert floor_counts(np.array([0.3, 0.7]), 10).tolist() == [3, 7]


def test_rotated_images_take_the_four_partitions() -> None:
    here = Rotated(clusters=2, clients=4, partition="10:90", shuffled=False)
    assert here.held
    for client, first in (("c000", 0.1), ("c001", 0.1), ("c002", 0.9), ("c003", 0.9)):
        visit = here.visit(0, client, 0)
        samples = len(visit.train)
        assert visit.mixture["k0"] == int(first * samples + 1e-9) / samples
        assert np.array_equal(visit.train.x, here.visit(0, client, 8).train.x)
    three = Rotated(clusters=3, clients=6, partition="random")
    assert len({tuple(three.visit(0, c, 0).mixture.values()) for c in three.names}) == 6
    for partition in ("10:90", "30:70", "linear"):
        with pytest.raises(ValueError, match="clusters must be 2 for the partition"):
            Rotated(clusters=3, partition=partition)
    assert not Rotated().held and Rotated(redraw=False).held


# linear


def test_regressions_are_of_their_thetas() -> None:
    here = Linear(clusters=3, clients=5, partition="random", noise=0.0, features=4)
    thetas = here.thetas(0)
    assert thetas.shape == (3, 4) and here.classes == 1
    for i, test in enumerate(here.tests(0).values()):
        assert test.y.dtype == np.float32 and len(test) == 1000
        np.testing.assert_allclose(test.x @ thetas[i], test.y, rtol=1e-3, atol=1e-4)
    visit = here.visit(0, "c002", 3)
    assert 100 <= len(visit.train) <= 200 and len(visit.test) == 100
    fits = np.abs(visit.train.x @ thetas.T - visit.train.y[:, None]).argmin(axis=1)
    found = np.bincount(fits, minlength=3) / len(fits)
    assert list(visit.mixture.values()) == pytest.approx(found.tolist(), abs=0.02)
    other = here.visit(0, "c003", 3)
    assert not set(visit.train.x[:, 0].tolist()) & set(other.train.x[:, 0].tolist())  # rows of one's own


def test_two_thetas_are_scaled_to_their_distance() -> None:
    for seed in range(3):
        one, two = Linear(distance2=165).thetas(seed)
        assert np.square(one - two).sum() == pytest.approx(165)
    distances = [np.square(np.subtract(*Linear().thetas(seed))).sum() for seed in range(300)]
    assert np.mean(distances) == pytest.approx(200, rel=0.1)  # 2 x 10 features x variance 10
    assert np.std([Linear(noise=2.0).tests(s)["k0"].y - Linear(noise=0.0).tests(s)["k0"].y for s in range(3)]) == (
        pytest.approx(2, rel=0.1)
    )


def test_a_regression_is_learnt() -> None:
    tables = {
        "world": {"name": "linear", "clients": 6, "distance2": 165},
        "model": {"name": "linear", "bias": False},
        "algorithm": {"name": "fedasync"},
        "training": {"rate": 0.05, "epochs": 3, "batch": 10},
        "uploads": 60,
    }
    experiment = build(tables)
    assert experiment.model == LinearRegression(10, bias=False)
    run = simulate(experiment)
    one, two = (float(run.clusters["accuracy"][i]) for i in (-2, -1))
    # a model between the two: sqrt(MSE - 1) of both sum to the distance at least
    assert np.sqrt(-one - 1) + np.sqrt(-two - 1) == pytest.approx(165**0.5, rel=0.1)


@pytest.mark.parametrize(
    "wrong",
    [
        {"clients": 0},
        {"clients": 1},
        {"clusters": 0},
        {"clusters": 3},
        {"clusters": 3, "partition": "random", "distance2": 165},
        {"distance2": 0},
        {"variance": 0},
        {"noise": -1},
        {"samples_min": 300},
        {"test_samples": 0},
        {"features": 0},
    ],
)
def test_regressions_that_cannot_be_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r", (not|but) \S"):
        Linear(**wrong)


# digits of several sources

SMALL = {
    "clients": 4, "samples_min": 20, "samples_max": 40, "proxy_images": 20, "test_images": 20, "client_test_samples": 10
}  # fmt: skip


def test_sources_are_clusters_in_one_size_and_colour() -> None:
    here = DigitWorld(("digits", "inverted:digits"), size=16, channels=3, shuffled=False, **SMALL)
    assert (here.shape, here.features, here.classes) == ((3, 16, 16), 768, 10)
    k0, k1 = here.tests(0).values()
    assert k0.x.shape == (20, 768) and k0.x.min() == 0 and k0.x.max() <= 1
    assert k0.x.mean() < 0.4 and k1.x.mean() > 0.6
    assert np.array_equal(k0.x[:, :256], k0.x[:, 256:512])  # grey, three times
    visit = here.visit(0, "c001", 0)
    assert 0.4 - 0.05 <= visit.mixture["k1"] <= 0.9 + 0.05 and len(visit.test) == 10
    bright = (visit.train.x.mean(axis=1) > 0.5).mean()
    assert bright == pytest.approx(visit.mixture["k1"], abs=0.06)


def test_sources_share_no_image_between_their_parts() -> None:
    here = DigitWorld(("digits",), size=8, channels=1, **SMALL)
    proxies, tests = ({row.tobytes() for row in part(0)["k0"].x} for part in (here.proxies, here.tests))
    trained = {row.tobytes() for cycle in range(20) for row in here.visit(0, "c000", cycle).train.x}
    assert not (proxies & tests or proxies & trained or tests & trained)
    assert here.visit(0, "c000", 0).train.x.tobytes() != here.visit(0, "c000", 1).train.x.tobytes()


def test_surrogates_are_called_so() -> None:
    assert DigitWorld().surrogates == ["plates"]
    assert DigitWorld(("mnist+usps", "svhn", "inverted:mnist")).describe()["surrogates"] == ["inverted:mnist"]
    assert DigitWorld(("mnist", "svhn")).surrogates == []
    tables = {"world": {"name": "digit-world", "sources": ["digits", "inverted:digits"], "size": 8, "channels": 1}}
    assert build(tables).describe()["world"]["surrogates"] == ["digits", "inverted:digits"]


def test_a_missing_source_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARTESIAN_DATA", str(tmp_path))
    monkeypatch.setitem(data.MNIST, "mnist", (tmp_path / "nowhere", "put it there"))
    with pytest.raises(
        MissingData, match=r"source svhn .*Write svhn\.npz .*ARTESIAN_DATA.*surrogates 'inverted:mnist'"
    ):
        DigitWorld(("svhn",), **SMALL).proxies(0)
    with pytest.raises(MissingData, match=r"mnist\+usps .*'mnist' alone"):
        DigitWorld(**SMALL).proxies(0)


def test_sources_are_joined_and_characters_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARTESIAN_DATA", str(tmp_path))
    write_idx(tmp_path / "mnist", side=8)  # 90 images with a first pixel of 100 or 200
    colours = np.full((30, 4, 4, 3), [30, 60, 120], np.uint8)
    np.savez(tmp_path / "usps.npz", x=colours, y=np.arange(30) % 10)
    kinds = np.array(["A", "7", "B", "0", *"12345689"])
    np.savez(tmp_path / "plates.npz", x=np.full((24, 8, 8), 9, np.uint8), y=np.arange(24) % 12, classes=kinds)
    assert sorted(images("plates").y.tolist()) == sorted(list(range(10)) * 2)
    assert images("plates").y[:2].tolist() == [7, 0]
    assert images("plates.npz").y.max() == 11  # by its path, all of it
    sizes = {**SMALL, "samples_max": 80, "source_images": 120}
    here = DigitWorld(("mnist+usps",), size=4, channels=1, **{**sizes, "clients": 1})
    x = np.concatenate([here.proxies(0)["k0"].x, here.tests(0)["k0"].x, here.visit(0, "c000", 0).train.x])
    usps = (np.rint(x * 255) == 70).all(axis=1)  # the mean of 30, 60 and 120
    assert 10 < usps.sum() <= 30
    with pytest.raises(MissingData, match="more labels than the digits 0 to 9"):
        DigitWorld((str(tmp_path / "plates.npz"),), **{**SMALL, "clients": 1}).proxies(0)
    with pytest.raises(SettingError, match=r"have 20 images, too few for .*of plates together \(80\)"):
        DigitWorld(("plates",), **{**SMALL, "clients": 1}).proxies(0)


@pytest.mark.parametrize(
    "wrong",
    [
        {"sources": ()},
        {"sources": ("digits", "digits")},
        {"clients": 2},
        {"clients": 0},
        {"size": 3},
        {"channels": 2},
        {"samples_min": 50},
        {"client_test_samples": 21},
    ],
)
def test_digit_worlds_that_cannot_be_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r", (not|but) \S"):
        DigitWorld(**{**SMALL, **wrong})


# pixels


def test_resizing_by_hand() -> None:
    ramp = np.array([[[0, 100], [0, 100]]], np.uint8)
    assert resized(ramp, 4)[0].tolist() == [[0, 25, 75, 100]] * 4  # centres at -0.25, 0.25, 0.75, 1.25
    assert resized(ramp, 1)[0].tolist() == [[50]]
    assert resized(ramp, 2) is ramp
    wide = np.arange(8, dtype=np.float32).reshape(1, 2, 4, 1)
    assert resized(wide, 2)[0, :, :, 0].tolist() == [[0.5, 2.5], [4.5, 6.5]]
    assert resized(np.full((1, 1, 1), 7.0, np.float32), 3).tolist() == [[[7.0] * 3] * 3]


def test_channels_by_hand() -> None:
    grey, colour = np.array([[[5]]], np.uint8), np.array([[[[1, 2, 4]]]], np.uint8)
    assert with_channels(grey, 3).tolist() == [[[[5, 5, 5]]]]
    assert with_channels(colour, 1).tolist() == [[[2]]]  # 7/3
    assert with_channels(colour.astype(np.float32), 1)[0, 0, 0] == pytest.approx(7 / 3)
    assert with_channels(colour, 3) is colour and with_channels(grey, 1) is grey


def test_any_set_takes_another_size(tmp_path: Path) -> None:
    assert images("digits@4").x.shape == (1797, 4, 4)
    assert Rotated("digits@16").features == 256
    np.savez(tmp_path / "odd@name.npz", x=np.ones((4, 2, 2)), y=np.arange(4))
    assert len(images(str(tmp_path / "odd@name.npz"))) == 4


# folders of images


class Picture:
    """What Pillow gives, of a file whose text is mode and size."""

    def __init__(self, text: str) -> None:
        self.mode, width, height, self.value = (
            kind(part) for kind, part in zip((str, int, int, int), text.split(), strict=True)
        )
        self.size = width, height

    def __enter__(self) -> Picture:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def convert(self, mode: str) -> Picture:
        return Picture(f"{mode} {self.size[0]} {self.size[1]} {self.value}")

    def resize(self, size: tuple[int, int]) -> Picture:
        return Picture(f"{self.mode} {size[0]} {size[1]} {self.value}")

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        channels = (3,) if self.mode == "RGB" else ()
        return np.full((self.size[1], self.size[0], *channels), self.value, dtype)


def opened(path: Path) -> Picture:
    try:
        return Picture(path.read_text())
    except (TypeError, ValueError):
        raise OSError("cannot identify image file") from None


@pytest.fixture
def pillow(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("PIL")
    module.Image = SimpleNamespace(open=opened)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "PIL", module)


def folder(path: Path, *files: tuple[str, str]) -> str:
    for name, text in files:
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text(text)
    return str(path)


@pytest.mark.usefixtures("pillow")
def test_a_folder_of_images_is_a_data_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = [("cat/b.png", "L 2 2 8"), ("cat/a.JPG", "L 2 2 7"), ("ant/x.jpeg", "L 2 2 9"), ("ant/notes.txt", "none")]
    found = images(folder(tmp_path / "mine", *files))
    assert found.x.shape == (3, 2, 2) and found.x[:, 0, 0].tolist() == [9, 7, 8]
    assert found.y.tolist() == [0, 1, 1]  # ant, cat
    monkeypatch.setenv("ARTESIAN_DATA", str(tmp_path))
    assert len(images("mine")) == 3
    colours = images(
        folder(tmp_path / "colours", ("a/1.png", "RGB 2 2 1"), ("a/2.png", "L 2 2 2"), ("b/1.png", "L 2 2 3"))
    )
    assert colours.x.shape == (3, 2, 2, 3)


@pytest.mark.usefixtures("pillow")
def test_images_of_several_sizes_need_one_to_be_named(tmp_path: Path) -> None:
    name = folder(tmp_path / "m", ("a/1.png", "RGB 4 3 1"), ("a/2.png", "RGB 5 3 2"), ("b/1.png", "RGB 9 9 3"))
    with pytest.raises(MissingData, match=r"\(3, 4\) in 1\.png, \(3, 5\) in 2\.png\. Write m@84"):
        images(name)
    assert images(f"{name}@6").x.shape == (3, 6, 6, 3)


@pytest.mark.usefixtures("pillow")
def test_a_folder_without_sound_images_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MissingData, match="one folder for each class"):
        images(folder(tmp_path / "flat", ("1.png", "L 2 2 1")))
    with pytest.raises(MissingData, match=r"1\.png could not be read"):
        images(folder(tmp_path / "broken", ("a/1.png", "nonsense")))


def test_without_pillow_a_folder_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(MissingExtra, match=r"artesian\[images\]"):
        images(folder(tmp_path / "m", ("a/1.png", "L 2 2 1")))


def test_real_pictures_are_read(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    for kind, value in (("a", 10), ("b", 200)):
        (tmp_path / kind).mkdir()
        for i in range(2):
            image.fromarray(np.full((6, 8, 3), value + i, np.uint8)).save(tmp_path / kind / f"{i}.png")
    found = images(f"{tmp_path}@4")
    assert found.x.shape == (4, 4, 4, 3) and found.x[:, 0, 0, 0].tolist() == [10, 11, 200, 201]
    (tmp_path / "a" / "9.png").write_bytes(b"no picture")
    images.cache_clear()
    with pytest.raises(MissingData, match="could not be read"):
        images(str(tmp_path))


# all of them


def test_every_world_says_what_its_turns_are() -> None:
    assert {kind().turns for kind in WORLDS.values()} == {"client"}
    assert list(WORLDS) == [
        "rotated", "relabelled", "label-groups", "few-classes", "natural", "synthetic", "linear", "digit-world"
    ]  # fmt: skip
    with pytest.raises(ValueError, match="no more clusters than clients"):
        Rotated(clusters=4, clients=3)
    with pytest.raises(SettingError, match="clusters and clients must be at least 1"):
        build({"world": {"clients": 0}})
    assert Rotated(clusters=1, clients=1).visit(0, "c000", 0).mixture == {"k0": 1.0}
