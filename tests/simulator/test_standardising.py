"""Standardised inputs: hand-worked numbers, whose images decide them, and that nothing else changes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from idx import write_idx

from artesian.config.experiments import build, load, simulate
from artesian.data.datasets import Samples, images
from artesian.errors import SettingError
from artesian.execution.shared_memory import made
from artesian.simulator.shifts import Shift, Shifted
from artesian.simulator.worlds import DigitWorld, FewClasses, LabelGroups, Rotated
from artesian.simulator.worlds.imaging import ImageWorld, _scale
from artesian.simulator.worlds.standardising import scale_of

SIZES: dict[str, Any] = {
    "samples_min": 20, "samples_max": 40, "proxy_images": 20, "test_images": 20, "client_test_samples": 10
}  # fmt: skip
WORLDS: dict[str, ImageWorld] = {
    "rotated": Rotated(clients=8, **SIZES),
    "groups": LabelGroups(clients=20),
    "few": FewClasses("digits", clients=20),
    "sources": DigitWorld(("digits", "inverted:digits"), size=8, channels=3, clients=8, **SIZES),
}
EVERY = pytest.mark.parametrize("world", WORLDS.values(), ids=list(WORLDS))


def changed(world: ImageWorld, **changes: Any) -> ImageWorld:
    found: ImageWorld = replace(world, **changes)  # type: ignore[type-var]
    return found


# by hand


def test_every_pixel_by_hand() -> None:
    x = np.array([[0, 255, 51], [255, 255, 102], [9, 9, 9]], np.uint8)  # the third is nobody's
    scale = scale_of([(x, np.array([0, 1]))])
    np.testing.assert_allclose(scale.mean, [0.5, 1, 0.3], rtol=1e-6)
    np.testing.assert_allclose(scale.spread, [0.501, 0.001, 0.101], rtol=1e-5)  # + 0.001
    done = scale.standardised(Samples(np.array([[1, 1, 0.3], [0, 0.9, 0.5]], np.float32), np.array([0, 1])))
    np.testing.assert_allclose(done.x, [[0.5 / 0.501, 0, 0], [-0.5 / 0.501, -100, 0.2 / 0.101]], rtol=1e-4, atol=1e-5)
    assert done.x.dtype == np.float32 and done.y.tolist() == [0, 1]


def test_every_channel_by_hand() -> None:
    x = np.array([[0, 4, 1, 1], [2, 2, 5, 5]], np.float32)  # two pixels of two channels
    scale = scale_of([(x, np.arange(2))], channels=2)
    np.testing.assert_allclose(scale.mean, [2, 2, 3, 3])
    np.testing.assert_allclose(scale.spread, [2**0.5 + 0.001] * 2 + [2.001] * 2, rtol=1e-6)


def test_several_arrays_are_one_set() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(3, 2, (5000, 4)).astype(np.float32)
    whole = scale_of([(x, np.arange(5000))])
    parts = scale_of([(x[:100], np.arange(100)), (x, np.arange(100, 5000))])
    np.testing.assert_allclose(whole.mean, x.mean(axis=0, dtype=np.float64), rtol=1e-6)
    np.testing.assert_allclose(whole.spread, x.std(axis=0, dtype=np.float64) + 0.001, rtol=1e-6)
    np.testing.assert_allclose(parts.mean, whole.mean, rtol=1e-6)
    np.testing.assert_allclose(parts.spread, whole.spread, rtol=1e-6)


# worlds


@EVERY
@pytest.mark.parametrize("kind", ["pixel", "channel"])
def test_all_samples_of_a_world_are_standardised_alike(world: ImageWorld, kind: Any) -> None:
    done, scale = changed(world, standardise=kind), _scale(changed(world, standardise=kind), 0)
    pairs = [*zip(world.proxies(0).values(), done.proxies(0).values(), strict=True)]
    pairs += [*zip(world.tests(0).values(), done.tests(0).values(), strict=True)]
    for client in list(world.names)[:4]:
        one, two = (each.visit(0, client, 1) for each in (world, done))
        assert one.mixture == two.mixture
        pairs += [(one.train, two.train), (one.test, two.test)]
    for plain, samples in pairs:
        np.testing.assert_array_equal(samples.x, (plain.x - scale.mean) / scale.spread)
        assert samples.x.dtype == np.float32 and samples.y.tolist() == plain.y.tolist()


@EVERY
def test_what_clients_train_on_has_mean_0_and_spread_1(world: ImageWorld) -> None:
    pixels, channels = (_scale(changed(world, standardise=kind), 0) for kind in ("pixel", "channel"))
    training = world.division(0).training()
    x = np.concatenate([x[rows] for x, rows in training]).astype(np.float64)
    x = x / 255 if training[0][0].dtype == np.uint8 else x
    np.testing.assert_allclose(pixels.mean, x.mean(axis=0), atol=1e-6)
    np.testing.assert_allclose(pixels.spread, x.std(axis=0) + 0.001, atol=1e-6)
    by_channel = x.reshape(len(x), world.shape[0], -1)
    np.testing.assert_allclose(channels.mean.reshape(world.shape[0], -1).T, [by_channel.mean(axis=(0, 2))] * 64)
    spread = channels.spread.reshape(world.shape[0], -1).T
    np.testing.assert_allclose(spread, [by_channel.std(axis=(0, 2)) + 0.001] * 64, rtol=1e-5)


@pytest.mark.parametrize("world", [Rotated(clients=8, **SIZES), LabelGroups(clients=20)], ids=["rotated", "groups"])
def test_proxies_and_tests_do_not_count(world: ImageWorld, tmp_path: Path) -> None:
    plain = changed(world, standardise="pixel")
    rows = np.concatenate([rows for _, rows in plain.division(0).training()])
    found = images("digits")
    x = found.x + 1
    x[rows] = found.x[rows]  # all images but those to train on are brighter
    np.savez(tmp_path / "brighter.npz", x=x, y=found.y)
    other = changed(plain, data=str(tmp_path / "brighter.npz"))
    assert np.array_equal(_scale(plain, 0).mean, _scale(other, 0).mean)
    assert np.array_equal(_scale(plain, 0).spread, _scale(other, 0).spread)
    assert not np.array_equal(plain.tests(0)["k0"].x, other.tests(0)["k0"].x)


def test_of_a_set_with_its_own_test_set_the_training_images_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_idx(tmp_path / "mnist", side=8)
    monkeypatch.setenv("ARTESIAN_DATA", str(tmp_path))
    images.cache_clear()
    found = images("mnist")
    sizes = {**SIZES, "proxy_images": 2, "test_images": 2, "client_test_samples": 1, "samples_min": 1, "samples_max": 2}
    world = Rotated("mnist", clusters=1, clients=2, standardise="pixel", **sizes)
    expected = found.x[found.tests :].reshape(-1, 64).astype(np.float64) / 255
    np.testing.assert_allclose(_scale(world, 0).mean, expected.mean(axis=0), atol=1e-6)
    images.cache_clear()


# settings, workers, memory


def test_the_setting_is_in_files_and_changes() -> None:
    assert load("digits-2", ["world.standardise=pixel"]).describe()["world"]["standardise"] == "pixel"
    assert load("digits-2").describe()["world"]["standardise"] == "none"
    with pytest.raises(SettingError, match=r"world\.standardise must be 'none', 'pixel' or 'channel', not 'pixels'"):
        build({"world": {"standardise": "pixels"}})
    with pytest.raises(ValueError, match="standardise must be none, pixel or channel, not 'pixels'"):
        Rotated(standardise="pixels")  # type: ignore[arg-type]


def test_bytes_stay_bytes_and_workers_are_given_the_scale(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "b.npz", x=rng.integers(0, 255, (300, 6, 6), np.uint8), y=np.arange(300) % 3)
    world = Rotated(str(tmp_path / "b.npz"), clients=4, standardise="channel", **SIZES)
    assert world.visit(0, "c000", 0).train.x.dtype == np.float32
    assert all(x.dtype == np.uint8 for x, _ in world.division(0).training())
    assert (_scale, (world, 0)) in [(function, args) for function, args, _ in made()]


def test_shifted_data_are_standardised_once() -> None:
    world = LabelGroups(clients=20, standardise="pixel")
    swapped = Shifted(world, Shift("swap-all", p=1.0))
    moved = [client for client in world.names if swapped.changed(0, client, 0, 1)]
    own = {world.visit(0, client, 0).train.x.tobytes() for client in world.names}
    assert moved and all(swapped.visit(0, client, 1).train.x.tobytes() in own for client in moved)


@pytest.mark.heavy
def test_workers_come_to_the_same_bits() -> None:
    chosen = load("digits-2", ["world.standardise=pixel", "world.clients=8", "uploads=40"])
    one, two = (simulate(chosen, workers=workers) for workers in (0, 2))
    assert all(np.array_equal(one.params[k], two.params[k]) for k in one.params)
    assert one.metrics["after"].tolist() == two.metrics["after"].tolist()


def test_nine_of_ten_samples_are_trained_on() -> None:
    world = FewClasses("digits", clients=20, test_share=0.1)
    for client in world.names:
        visit = world.visit(0, client, 0)
        assert len(visit.test) == max(1, (len(visit.train) + len(visit.test)) // 10)
