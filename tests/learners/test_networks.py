"""The papers' networks: their sizes by hand, their shapes, and that they learn."""

import numpy as np
import pytest

from artesian.core import Plan
from artesian.learners.networks import NETWORKS, cnn, cnn_casa, cnn_small, har, mlp, resnet18

torch = pytest.importorskip("torch", reason="torch is not installed")
from artesian.learners.torch import TorchModel, one_thread  # noqa: E402


def count(network) -> int:
    return sum(p.numel() for p in network.parameters())


RESNET = (
    (3 * 64 * 9 + 2 * 64)  # the stem
    + 2 * (2 * 64 * 64 * 9 + 4 * 64)  # two blocks of 64
    + (64 * 128 * 9 + 3 * 128 * 128 * 9 + 64 * 128 + 10 * 128)  # 128, with a short cut of 1x1
    + (128 * 256 * 9 + 3 * 256 * 256 * 9 + 128 * 256 + 10 * 256)
    + (256 * 512 * 9 + 3 * 512 * 512 * 9 + 256 * 512 + 10 * 512)
    + (512 * 10 + 10)
)


@pytest.mark.parametrize(
    ("name", "settings", "parameters"),
    [
        ("cnn", {}, 32 * 26 + 64 * (32 * 25 + 1) + 512 * 1025 + 10 * 513),
        ("cnn", {}, 582_026),
        ("cnn-padded", {}, 1_663_370),
        ("cnn-padded", {"classes": 26}, 1_671_578),
        ("cnn-wide", {}, 32 * 26 + 64 * (32 * 25 + 1) + 1024 * 3137 + 10 * 1025),
        ("cnn-wide", {}, 3_274_634),
        ("cnn-small", {}, 32 * 10 + 64 * (32 * 9 + 1) + 10 * 3137),
        ("cnn-small", {}, 50_186),
        ("cnn-casa", {}, 64 * 26 + 64 * (64 * 25 + 1) + 128 * 1025 + 64 * 129 + 10 * 65),
        ("cnn-casa", {}, 244_234),
        ("cnn-casa-cifar", {}, 64 * 76 + 64 * (64 * 25 + 1) + 120 * 1601 + 64 * 121 + 10 * 65),
        ("cnn-casa-cifar", {}, 307_842),
        ("cnn-casa-letters", {}, 42_838),
        ("resnet18", {}, RESNET),
        ("resnet18", {}, 11_173_962),
        ("resnet18", {"classes": 100}, 11_173_962 + 90 * 513),
        ("mlp", {"hidden": [128]}, 101_770),
        ("mlp", {"hidden": [512]}, 407_050),
        ("mlp", {"hidden": []}, 7_850),
        ("mclr", {}, 7_850),
        ("mclr", {"features": 60}, 610),
        ("linear", {"features": 10, "bias": False}, 10),
        ("har", {}, 271_805),
        ("har", {"classes": 3}, 271_203),
    ],
)
def test_the_parameters_are_counted_by_hand(name, settings, parameters) -> None:
    assert count(NETWORKS[name](**settings)) == parameters


@pytest.mark.parametrize("name", [n for n in NETWORKS if n.startswith("cnn")] + ["resnet18"])
@pytest.mark.parametrize("channels", [1, 3])
def test_images_become_one_number_per_class(name, channels) -> None:
    settings = {"channels": channels, "classes": 7} | ({} if name == "resnet18" else {"size": 32})
    assert NETWORKS[name](**settings)(torch.zeros(2, channels, 32, 32)).shape == (2, 7)


def test_pooling_before_relu_is_the_same() -> None:
    x = torch.randn(3, 4, 6, 6, generator=torch.Generator().manual_seed(0))
    pool = torch.nn.functional.max_pool2d
    assert torch.equal(pool(x, 2).relu(), pool(x.relu(), 2))


def test_dropout_trains_to_the_same_bits_and_is_off_when_it_is_judged() -> None:
    model = TorchModel(dropping, shape=(1, 8, 8), device="cpu")
    rng = np.random.default_rng(0)
    learner = model.learner(rng.normal(size=(40, 64)).astype(np.float32), np.arange(40) % 10)
    start = model.start(0)
    with one_thread():
        one, two = (learner.train(start, seed=3, plan=Plan(epochs=2)) for _ in range(2))
        assert np.array_equal(one, two)
        assert not np.array_equal(one, learner.train(start, seed=4, plan=Plan(epochs=2)))
        assert np.array_equal(learner.losses(one), learner.losses(one))


def dropping():
    return cnn_small(size=8)


def test_wrong_sizes_are_named() -> None:
    with pytest.raises(ValueError, match="size = 8 is too small"):
        cnn(size=8)
    with pytest.raises(ValueError, match="size = 11 is too small"):
        cnn_casa(size=11)
    with pytest.raises(ValueError, match="size = 3 is too small"):
        cnn_small(size=3)
    for wrong in (64, [64], [64, 64, 64]):
        with pytest.raises(ValueError, match="widths are two whole numbers"):
            cnn_casa(widths=wrong)
    with pytest.raises(ValueError, match=r"hidden\[1\] is a whole number from 1 on, not 0"):
        mlp(hidden=[3, 0])
    with pytest.raises(ValueError, match="classes is a whole number"):
        har(classes=2.5)
    with pytest.raises(ValueError, match="channels"):
        resnet18(channels=0)


def test_real_digits_are_learnt_by_a_convolutional_network() -> None:
    from sklearn.datasets import load_digits

    bunch = load_digits()
    x, y = np.kron(bunch.images / 16, np.ones((2, 2))).astype(np.float32), bunch.target
    model = TorchModel(small, shape=(1, 16, 16), device="cpu")
    start = model.start(0)
    held = model.learner(x[1200:], y[1200:])
    with one_thread():
        assert held.score([(1.0, start)]) < 0.4
        found = model.learner(x[:1200], y[:1200]).train(start, seed=0, plan=Plan("adam", 0.001, 3, 32))
        assert held.score([(1.0, found)]) > 0.85


def small():
    return cnn(size=16)
