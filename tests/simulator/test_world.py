"""Worlds: where data come from. Images that carry their own number show which went where."""

from __future__ import annotations

import gzip
import io
import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from idx import write_idx

from artesian.data import datasets as data
from artesian.data.datasets import Images, Samples, as_floats, available, find, images
from artesian.data.image_arrays import rotate
from artesian.data.mnist import read_idx
from artesian.errors import MissingData, MissingExtra, SettingError
from artesian.simulator.worlds import Rotated

COUNT = 120


@pytest.fixture(scope="module")
def labelled(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Images whose label is their number, with one bright corner that shows how they were turned."""
    x = np.zeros((COUNT, 3, 3))
    x[:, 0, 0] = 1
    x[:, 1, 1] = np.arange(COUNT) / COUNT
    path = tmp_path_factory.mktemp("data") / "labelled.npz"
    np.savez(path, x=x, y=np.arange(COUNT))
    return str(path)


def world(data: str, **changes: Any) -> Rotated:
    sizes = {"clients": 8, "samples_min": 20, "samples_max": 40, "proxy_images": 30, "test_images": 40}
    return Rotated(data, **{**sizes, "client_test_samples": 20, **changes})


def turns(samples: Samples) -> np.ndarray:
    """How many quarter turns each image took, by where its bright corner is."""
    corners = samples.x.reshape(-1, 3, 3)[:, [0, 2, 2, 0], [0, 0, 2, 2]]
    assert (corners.sum(axis=1) == 1).all()
    return corners.argmax(axis=1)


# which images go where


def test_proxies_tests_and_training_images_are_disjoint(labelled: str) -> None:
    here = world(labelled)
    proxies, tests = here.proxies(0), here.tests(0)
    assert [len(part) for part in (*proxies.values(), *tests.values())] == [30] * 4 + [40] * 4
    proxy, tested = set(proxies["k0"].y.tolist()), set(tests["k0"].y.tolist())
    trained: set[int] = set()
    for client in here.names:
        for cycle in range(10):
            visit = here.visit(0, client, cycle)
            trained |= set(visit.train.y.tolist())
            assert set(visit.test.y.tolist()) <= tested
    assert len(proxy) == 30 and len(tested) == 40
    assert proxy.isdisjoint(tested) and trained == set(range(COUNT)) - proxy - tested


def test_an_image_and_its_label_stay_together(labelled: str) -> None:
    here = world(labelled)
    visit = here.visit(0, "c003", 2)
    for part in (visit.train, visit.test, *here.proxies(0).values(), *here.tests(0).values()):
        np.testing.assert_allclose(part.x[:, 4] * COUNT, part.y, atol=1e-3)


def test_each_cluster_is_a_rotation(labelled: str) -> None:
    here = world(labelled)
    for parts in (here.proxies(0), here.tests(0)):
        assert list(parts) == ["k0", "k1", "k2", "k3"]
        for quarter, part in enumerate(parts.values()):
            assert (turns(part) == quarter).all()


def test_another_seed_splits_the_images_otherwise(labelled: str) -> None:
    one, two = (set(world(labelled).proxies(seed)["k0"].y.tolist()) for seed in (0, 1))
    assert one != two


def test_the_bundled_digits_are_those_the_library_loads(monkeypatch) -> None:
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    read = data._digits()
    monkeypatch.setattr(data, "DIGITS", Path("moved"))  # as another version of the library might do
    loaded = data._digits()
    assert (read.x.dtype, read.y.dtype) == (loaded.x.dtype, loaded.y.dtype) == (np.float32, np.int64)
    assert read.x.tobytes() == loaded.x.tobytes() and read.y.tobytes() == loaded.y.tobytes()


def test_without_scikit_learn_the_digits_name_its_extra(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(MissingExtra, match=r"pip install 'artesian\[sim\]'"):
        data._digits()


def test_the_bundled_digits_are_real_images_from_zero_to_one() -> None:
    here = Rotated()
    assert (here.features, here.classes, len(here.names)) == (64, 10, 80)
    assert len(images("digits")) == 1797
    assert images("digits").x.min() == 0 and images("digits").x.max() == 1
    visit = here.visit(0, "c079", 3)
    assert visit.train.x.dtype == np.float32 and visit.train.y.dtype == np.int64
    assert 60 <= len(visit.train) <= 200 and len(visit.test) == 200


# mixtures


def test_a_mixture_is_what_the_samples_are(labelled: str) -> None:
    here = world(labelled)
    for client in here.names:
        for cycle in range(5):
            visit = here.visit(1, client, cycle)
            counts = np.bincount(turns(visit.train), minlength=4)
            assert 20 <= len(visit.train) <= 40 and len(visit.test) == 20
            assert list(visit.mixture) == ["k0", "k1", "k2", "k3"]
            assert list(visit.mixture.values()) == pytest.approx(counts / len(visit.train), abs=1e-12)
            assert sum(visit.mixture.values()) == pytest.approx(1, abs=1e-12)
            tested = np.bincount(turns(visit.test), minlength=4) / 20
            np.testing.assert_allclose(tested, counts / len(visit.train), atol=1 / 20)


def test_a_client_draws_each_image_of_a_cluster_once(labelled: str) -> None:
    for cycle in range(5):
        visit = world(labelled).visit(0, "c001", cycle)
        for part in (visit.train, visit.test):
            pairs = list(zip(turns(part).tolist(), part.y.tolist(), strict=True))
            assert len(set(pairs)) == len(pairs)


def test_the_main_cluster_has_its_share(labelled: str) -> None:
    here = world(labelled, main_share_min=0.6, main_share_max=0.7)
    shares = []
    for client in here.names:
        main = int(here.place(2, client)[1:]) % 4
        for cycle in range(20):
            visit = here.visit(2, client, cycle)
            shares.append(visit.mixture[f"k{main}"])
            assert 0.6 - 1 / len(visit.train) <= shares[-1] <= 0.7 + 1 / len(visit.train)
    assert min(shares) < 0.62 and max(shares) > 0.68


@pytest.mark.parametrize(("share", "others"), [(1.0, [0, 0, 0]), (0.0, None)])
def test_a_main_share_may_be_all_or_nothing(labelled: str, share: float, others: list[float] | None) -> None:
    here = world(labelled, main_share_min=share, main_share_max=share, shuffled=False)
    mixture = here.visit(0, "c001", 0).mixture
    assert mixture["k1"] == share
    if others is not None:
        assert [mixture[k] for k in ("k0", "k2", "k3")] == others


def test_one_cluster_is_everything(labelled: str) -> None:
    visit = world(labelled, clusters=1).visit(0, "c005", 1)
    assert visit.mixture == {"k0": 1.0} and (turns(visit.train) == 0).all()


def test_without_redraw_a_client_keeps_its_mixture(labelled: str) -> None:
    held, drawn = world(labelled, redraw=False), world(labelled)
    assert held.visit(0, "c002", 0).mixture == held.visit(0, "c002", 7).mixture
    assert held.visit(0, "c002", 0).mixture != held.visit(0, "c003", 0).mixture
    assert drawn.visit(0, "c002", 0).mixture != drawn.visit(0, "c002", 7).mixture


def test_a_visit_depends_on_seed_client_and_cycle_alone(labelled: str) -> None:
    def bits(seed: int, client: str, cycle: int) -> bytes:
        visit = world(labelled).visit(seed, client, cycle)
        return b"".join(part.tobytes() for data in (visit.train, visit.test) for part in (data.x, data.y))

    base = bits(0, "c001", 3)
    for other in ((1, "c001", 3), (0, "c005", 3), (0, "c001", 4)):
        assert bits(*other) != base
    assert bits(0, "c001", 3) == base


# settings


@pytest.mark.parametrize("name", ["proxy_images", "test_images", "samples_max"])
def test_sizes_that_do_not_fit_the_data_are_refused(labelled: str, name: str) -> None:
    sizes = {"proxy_images": 30, "test_images": 40, "samples_max": 50}  # 120 together
    with pytest.raises(SettingError, match=r"have 120 images, too few for .*\(121\)"):
        world(labelled, **{**sizes, name: sizes[name] + 1}).proxies(0)


def test_sizes_that_just_fit_are_taken(labelled: str) -> None:
    here = world(labelled, samples_min=50, samples_max=50, main_share_min=1, main_share_max=1)
    here.proxies(0)
    assert len(set(here.visit(0, "c000", 0).train.y.tolist())) == 50


@pytest.mark.parametrize(
    "wrong",
    [
        {"clusters": 0},
        {"clients": 0},
        {"clients": -1},
        {"samples_min": 0},
        {"samples_min": 41},
        {"main_share_min": -0.1},
        {"main_share_max": 1.1},
        {"main_share_min": 0.8, "main_share_max": 0.7},
        {"main_share_min": float("nan")},
        {"proxy_images": 0},
        {"test_images": 0, "client_test_samples": 0},
        {"client_test_samples": 0},
        {"client_test_samples": 41},
    ],
)
def test_settings_out_of_range_are_refused(labelled: str, wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r", (not|but) \S"):
        world(labelled, **wrong)


# rotation


@pytest.mark.parametrize(("degrees", "quarters"), [(0, 0), (90, 1), (180, 2), (270, 3), (360, 0), (-90, 3), (90.0, 1)])
def test_quarter_turns_are_exact(degrees: float, quarters: int) -> None:
    x = np.random.default_rng(0).normal(size=(3, 5, 5)).astype(np.float32)
    turned = rotate(x, degrees)
    assert turned.dtype == np.float32
    for before, after in zip(x, turned, strict=True):
        assert (after == np.rot90(before, quarters)).all()


def bilinear(image: np.ndarray, degrees: float) -> np.ndarray:
    """One image turned counter-clockwise about its centre, pixel by pixel."""
    size, angle = len(image), np.deg2rad(degrees)
    middle, turned = (size - 1) / 2, np.zeros_like(image, dtype=np.float64)
    for row in range(size):
        for column in range(size):
            right, up = column - middle, middle - row
            source_right = right * np.cos(angle) + up * np.sin(angle)
            source_up = up * np.cos(angle) - right * np.sin(angle)
            r, c = middle - source_up, middle + source_right
            if not (0 <= r <= size - 1 and 0 <= c <= size - 1):
                continue
            top, left = min(int(r), size - 2), min(int(c), size - 2)
            down, over = r - top, c - left
            turned[row, column] = (
                (1 - down) * (1 - over) * image[top, left]
                + (1 - down) * over * image[top, left + 1]
                + down * (1 - over) * image[top + 1, left]
                + down * over * image[top + 1, left + 1]
            )
    return turned


@pytest.mark.parametrize("degrees", [120, 240, 72, 45])
def test_other_turns_are_bilinear_and_go_the_same_way_round(degrees: float) -> None:
    digits = images("digits").x[:5]
    turned = rotate(digits, degrees)
    assert turned.shape == digits.shape and turned.dtype == np.float32
    for before, after in zip(digits, turned, strict=True):
        np.testing.assert_allclose(after, bilinear(before, degrees), atol=1e-5)


def test_the_reference_turns_as_numpy_does() -> None:
    image = images("digits").x[0]
    np.testing.assert_allclose(bilinear(image, 90), np.rot90(image), atol=1e-6)


def test_three_clusters_are_a_third_of_a_turn_apart() -> None:
    here = Rotated(clusters=3)
    k0, k1, k2 = here.proxies(0).values()
    shape = (-1, 8, 8)
    for number in range(3):
        image = k0.x.reshape(shape)[number]
        np.testing.assert_allclose(k1.x.reshape(shape)[number], bilinear(image, 120), atol=1e-5)
        np.testing.assert_allclose(k2.x.reshape(shape)[number], bilinear(image, 240), atol=1e-5)


# data files


def save(path: Path, **arrays: Any) -> str:
    np.savez(path, **arrays)
    return str(path)


def test_bytes_are_scaled_and_floats_are_not(tmp_path: Path) -> None:
    x = np.array([[[0, 51], [102, 255]]], np.uint8)
    found = images(save(tmp_path / "bytes.npz", x=x, y=np.array([0], np.uint8)))
    assert found.x.dtype == np.uint8  # bytes until they are drawn
    np.testing.assert_allclose(as_floats(found.x), [[[0, 0.2], [0.4, 1]]], rtol=1e-6)
    assert found.y.tolist() == [0]
    floats = images(save(tmp_path / "floats.npz", x=x.astype(np.float64), y=np.array([0])))
    assert floats.x.tolist() == [[[0, 51], [102, 255]]] and floats.x.dtype == np.float32


def test_a_data_file_makes_a_world(tmp_path: Path) -> None:
    name = save(tmp_path / "d.npz", x=np.zeros((100, 4, 6), np.float32), y=np.arange(100) % 7)
    here = Rotated(name, clusters=2, samples_max=60, proxy_images=20, test_images=20, client_test_samples=10)
    assert (here.features, here.classes) == (24, 7)
    assert here.visit(0, "c000", 0).train.x.shape[1] == 24


def test_a_missing_file_names_the_places_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ARTESIAN_DATA", raising=False)
    with pytest.raises(MissingData, match=r"nothing at nowhere\.npz\). .*ARTESIAN_DATA"):
        find("nowhere.npz")
    monkeypatch.setenv("ARTESIAN_DATA", str(tmp_path))
    with pytest.raises(MissingData, match=rf"nothing at nowhere\.npz and {tmp_path}/nowhere\.npz"):
        find("nowhere.npz")


def test_a_file_is_found_in_the_folder_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path / "only-there.npz", x=np.ones((2, 3, 3)), y=np.array([0, 1]))
    monkeypatch.setenv("ARTESIAN_DATA", str(tmp_path))
    assert find("only-there.npz") == tmp_path / "only-there.npz"
    assert len(images("only-there.npz")) == 2


def test_a_folder_is_no_data_file(tmp_path: Path) -> None:
    with pytest.raises(MissingData, match="nothing at"):
        images(str(tmp_path))


IMAGES, LABELS = np.zeros((4, 3, 3)), np.arange(4)


@pytest.mark.parametrize(
    "arrays",
    [
        {"x": IMAGES},
        {"y": LABELS},
        {"a": IMAGES, "b": LABELS},
        {"x": IMAGES.reshape(4, 9), "y": LABELS},
        {"x": IMAGES, "y": LABELS[:3]},
        {"x": IMAGES, "y": LABELS.reshape(2, 2)},
        {"x": IMAGES, "y": LABELS.astype(float)},
        {"x": IMAGES, "y": LABELS - 1},
        {"x": IMAGES, "y": LABELS + 1},
        {"x": np.zeros((4, 0, 0)), "y": LABELS},
        {"x": IMAGES, "y": np.array(["a", "b", "c", "d"])},
        {"x": np.full((4, 3, 3), "a"), "y": LABELS},
        {"x": IMAGES.astype(object), "y": LABELS},
        {"x": IMAGES, "y": LABELS.astype(object)},
    ],
)
def test_a_file_without_sound_images_and_labels_is_refused(tmp_path: Path, arrays: dict[str, np.ndarray]) -> None:
    name = save(tmp_path / "bad.npz", **arrays)
    with pytest.raises(MissingData, match=r"bad\.npz"):
        images(name)


def as_npy(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def spoilt() -> bytes:
    """A compressed archive with altered data in the middle."""
    buffer = io.BytesIO()
    np.savez_compressed(buffer, x=np.random.default_rng(0).normal(size=(50, 8, 8)), y=np.arange(50))
    data = bytearray(buffer.getvalue())
    data[200:260] = b"\xff" * 60
    return bytes(data)


@pytest.mark.parametrize("data", [b"", b"no archive", b"PK\x03\x04 cut", as_npy(np.zeros((2, 3, 3))), spoilt()])
def test_a_file_that_is_no_archive_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "odd.npz").write_bytes(data)
    with pytest.raises(MissingData, match=r"odd\.npz"):
        images(str(tmp_path / "odd.npz"))


class Trap:
    """Writes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def test_nothing_is_ever_unpickled(tmp_path: Path) -> None:
    sprung = tmp_path / "sprung"
    trap = np.array([Trap(sprung)] * 4, object)
    pickle.loads(pickle.dumps(trap[:1]))
    assert sprung.exists()
    sprung.unlink()
    np.savez(tmp_path / "trap.npz", x=IMAGES, y=trap)
    (tmp_path / "raw.npz").write_bytes(pickle.dumps(trap))
    for name in ("trap.npz", "raw.npz"):
        with pytest.raises(MissingData):
            images(str(tmp_path / name))
    assert not sprung.exists()


def test_images_that_are_turned_by_a_quarter_are_square(tmp_path: Path) -> None:
    name = save(tmp_path / "d.npz", x=np.zeros((100, 4, 6), np.float32), y=np.arange(100) % 7)
    sizes = {"samples_max": 60, "proxy_images": 20, "test_images": 20, "client_test_samples": 10}
    assert len(Rotated(name, clusters=2, **sizes).proxies(0)) == 2
    with pytest.raises(SettingError, match="square"):
        Rotated(name, clusters=4, **sizes).proxies(0)


@pytest.mark.parametrize("packed", [True, False])
def test_an_idx_set_keeps_its_test_set_away_from_clients(tmp_path: Path, monkeypatch, packed: bool) -> None:
    write_idx(tmp_path / "mnist", packed=packed)
    monkeypatch.setenv("ARTESIAN_DATA", str(tmp_path))
    images.cache_clear()
    sizes = {"proxy_images": 10, "test_images": 20, "client_test_samples": 5, "samples_min": 30, "samples_max": 60}
    here = Rotated("mnist", 1, 2, **sizes)
    assert (here.features, here.shape, here.classes) == (16, (1, 4, 4), 10)
    marks = {round(float(v) * 255) for v in here.visit(0, "c000", 0).train.x[:, 0]}
    assert marks == {100}
    for part in (here.proxies(0)["k0"], here.tests(0)["k0"], here.visit(0, "c000", 0).test):
        assert {round(float(v) * 255) for v in part.x[:, 0]} == {200}
    rows = [tuple(row) for part in (here.proxies(0), here.tests(0)) for row in part["k0"].x.tolist()]
    assert len(rows) == 30
    for wrong, words in (
        ({"test_images": 21}, "have 30 images, too few for .*\\(31\\)"),
        ({"samples_max": 61}, "have 60 images, too few for samples_max \\(61\\)"),
    ):
        with pytest.raises(SettingError, match=words):
            Rotated("mnist", 1, 2, **{**sizes, **wrong}).proxies(0)
    assert available()["mnist"] == str(tmp_path / "mnist")
    images.cache_clear()


def test_a_missing_or_broken_idx_set_says_how_to_get_it(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("ARTESIAN_DATA", str(tmp_path))
    monkeypatch.setitem(data.MNIST, "fashion-mnist", (tmp_path / "nowhere", "apt-get install dataset-fashion-mnist"))
    with pytest.raises(MissingData, match="apt-get install dataset-fashion-mnist"):
        images("fashion-mnist")
    assert available()["fashion-mnist"] == ""
    write_idx(tmp_path / "fashion-mnist")
    (tmp_path / "fashion-mnist" / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(MissingData, match="no t10k-labels-idx1-ubyte"):
        images("fashion-mnist")
    path = tmp_path / "fashion-mnist" / "train-labels-idx1-ubyte.gz"
    for broken in (b"", b"no gzip", gzip.compress(b"\0\0\x08\x01\0\0\0\x05abc"), gzip.compress(b"\0\0\x0d\x01")):
        path.write_bytes(broken)
        with pytest.raises(MissingData, match="is not a sound idx file"):
            read_idx(path)


def test_an_npz_file_may_bring_its_own_test_set(tmp_path: Path) -> None:
    x = np.arange(5 * 4, dtype=np.uint8).reshape(5, 2, 2)
    y = np.arange(5) % 2
    found = images(save(tmp_path / "split.npz", x_train=x[:3], y_train=y[:3], x_test=x[3:], y_test=y[3:]))
    assert (found.tests, found.y.tolist()) == (2, [1, 0, 0, 1, 0])
    assert found.x[0].tolist() == x[3].tolist()


OWN = """
import numpy as np
from artesian.data.datasets import Images

X, Y = np.arange(48, dtype=np.float32).reshape(6, 2, 2, 2)[..., :1] * np.ones(3, np.float32), np.arange(6) % 3
pair = (X, Y)
ready = Images(X, Y, 2)


class Pairs:  # what a torch Dataset is, without torch: channels first
    def __len__(self):
        return 6

    def __getitem__(self, i):
        return np.moveaxis(X[i], 2, 0), Y[i]


def make():
    return Pairs()


def broken():
    raise RuntimeError("no disk")
"""


def test_own_data_by_module_and_name(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "my_images.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("pair", "ready", "make"):
        found = images(f"my_images:{name}")
        assert found.x.shape == (6, 2, 2, 3)
        assert found.y.tolist() == [0, 1, 2, 0, 1, 2]
    assert images("my_images:ready").tests == 2
    here = Rotated(
        "my_images:make", 2, 2, samples_min=1, samples_max=2, proxy_images=2, test_images=2, client_test_samples=1
    )
    assert (here.shape, here.features) == ((3, 2, 2), 12)
    assert here.proxies(0)["k1"].x.shape == (2, 12)
    for name in ("broken", "nothing"):
        with pytest.raises(MissingData, match="could not be imported"):
            images(f"my_images:{name}")
    assert isinstance(images("my_images:pair"), Images)


def test_bytes_turned_by_any_angle_are_bytes() -> None:
    base = np.random.default_rng(0).integers(0, 256, (3, 8, 8)).astype(np.uint8)
    turned = rotate(base, 120)
    assert turned.dtype == np.uint8
    exact = rotate(base.astype(np.float64), 120)
    assert np.abs(turned - exact).max() <= 0.5 + 1e-3
