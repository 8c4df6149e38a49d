"""Relabelled images: the same in every group, with different labels. Images that carry their label show which."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from artesian.config.experiments import load, simulate
from artesian.data.datasets import Samples
from artesian.errors import SettingError
from artesian.simulator.worlds import Relabelled, Rotated
from artesian.simulator.worlds.relabelled import label_permutations

COUNT, CLASSES = 120, 6
SIZES = {"clients": 8, "samples_min": 20, "samples_max": 40, "proxy_images": 30, "test_images": 40}


@pytest.fixture(scope="module")
def numbered(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Images whose first pixel is their number and whose second is their label in the data."""
    x = np.zeros((COUNT, 2, 2))
    x[:, 0, 0], x[:, 0, 1] = np.arange(COUNT), np.arange(COUNT) % CLASSES
    path = tmp_path_factory.mktemp("data") / "numbered.npz"
    np.savez(path, x=x, y=np.arange(COUNT) % CLASSES)
    return str(path)


def world(data: str, **changes: Any) -> Relabelled:
    return Relabelled(data, **{**SIZES, "client_test_samples": 20, **changes})


def numbers(samples: Samples) -> list[int]:
    return samples.x[:, 0].astype(int).tolist()


def names_in(samples: Samples) -> dict[int, set[int]]:
    """What every label of the data is called in these samples."""
    pairs = zip(samples.x[:, 1].astype(int).tolist(), samples.y.tolist(), strict=True)
    found: dict[int, set[int]] = {}
    for label, name in pairs:
        found.setdefault(label, set()).add(name)
    return found


def test_every_group_has_the_same_images_with_other_labels(numbered: str) -> None:
    here = world(numbered)
    for parts in (here.proxies(0), here.tests(0)):
        assert list(parts) == ["k0", "k1", "k2", "k3"]
        assert all(part.x.tobytes() == parts["k0"].x.tobytes() for part in parts.values())
        told = [tuple(part.y.tolist()) for part in parts.values()]
        assert len(set(told)) == 4
        assert names_in(parts["k0"]) == {label: {label} for label in range(CLASSES)}
    for k, proxy in here.proxies(0).items():
        names = names_in(proxy)
        assert all(len(called) == 1 for called in names.values()) and names == names_in(here.tests(0)[k])
        assert set.union(*names.values()) == set(range(CLASSES))


def test_images_are_divided_as_rotated_ones_are(numbered: str) -> None:
    here, turned = world(numbered), Rotated(numbered, **SIZES, client_test_samples=20, clusters=1)
    assert here.proxies(3)["k0"].x.tobytes() == turned.proxies(3)["k0"].x.tobytes()
    assert here.tests(3)["k0"].x.tobytes() == turned.tests(3)["k0"].x.tobytes()
    proxy, tested = set(numbers(here.proxies(0)["k0"])), set(numbers(here.tests(0)["k0"]))
    visits = [here.visit(0, client, cycle) for client in here.names for cycle in range(8)]
    trained = {number for visit in visits for number in numbers(visit.train)}
    assert trained == set(range(COUNT)) - proxy - tested
    assert all(set(numbers(visit.test)) <= tested for visit in visits)


def test_a_client_is_of_one_group_and_has_new_samples_in_every_cycle(numbered: str) -> None:
    here = world(numbered, shuffled=False)
    names = [names_in(proxy) for proxy in here.proxies(0).values()]
    for i, client in enumerate(here.names):
        one, two = here.visit(0, client, 0), here.visit(0, client, 1)
        assert one.mixture == two.mixture == {f"k{j}": float(j == i % 4) for j in range(4)}
        for part in (one.train, one.test, two.train):
            assert all(called == names[i % 4][label] for label, called in names_in(part).items())
        assert numbers(one.train) != numbers(two.train)


def test_a_smaller_main_share_mixes_groups(numbered: str) -> None:
    mixed = world(numbered, main_share_min=0.5, main_share_max=0.5, samples_min=40, shuffled=False)
    assert mixed.visit(0, "c002", 0).mixture["k2"] == 0.5
    assert world(numbered, redraw=False).held and not mixed.held


def test_permutations_are_the_seeds_and_no_two_the_same() -> None:
    first, second = (label_permutations(3, 6, seed) for seed in (0, 1))
    assert first[0].tolist() == second[0].tolist() == [0, 1, 2]
    assert {tuple(one.tolist()) for one in first} == {(0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)}
    assert [one.tolist() for one in first] != [one.tolist() for one in second]
    assert [one.tolist() for one in label_permutations(3, 4, 0)] == [one.tolist() for one in first[:4]]


def test_more_groups_than_orders_of_the_labels_are_refused() -> None:
    with pytest.raises(SettingError, match=r"2 labels have 2 orders, too few for 3 groups\. Lower clusters"):
        label_permutations(2, 3, 0)


@pytest.mark.parametrize("wrong", [{"clusters": 0}, {"clusters": 9}, {"main_share_max": 0.5}, {"standardise": "all"}])
def test_settings_out_of_range_are_refused(numbered: str, wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r", (not|but) \S"):
        world(numbered, **wrong)


def test_all_groups_are_standardised_alike(numbered: str) -> None:
    parts = world(numbered, standardise="pixel").tests(0)
    assert all(part.x.tobytes() == parts["k0"].x.tobytes() for part in parts.values())
    assert abs(parts["k0"].x.mean()) < 0.5


def test_the_preset_differs_from_rotated_digits_in_its_world_alone() -> None:
    preset, rotated = load("digits-relabelled"), load("digits-4")
    assert preset.world == Relabelled()
    assert (preset.uploads, preset.training, preset.start) == (rotated.uploads, rotated.training, rotated.start)
    assert (preset.model, preset.algorithm) == (rotated.model, rotated.algorithm)


def test_cdfl_tells_groups_apart_whose_inputs_are_the_same() -> None:
    changes = ["world.clients=8", "training.epochs=2"]
    summary = simulate("digits-relabelled", changes=changes, uploads=40).summary
    assert summary["purity"] == 1.0 and summary["kl"] < summary["kl_uniform"]
