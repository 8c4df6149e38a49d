"""Worlds of label skew: who is dealt what. Images that carry their own number show which went where."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from artesian.config.experiments import build
from artesian.errors import SettingError
from artesian.simulator.worlds import WORLDS, FewClasses, LabelGroups, World
from artesian.simulator.worlds.dealing import topped_up, train_and_test

EACH, LABELS = 40, 10  # images of each label


@pytest.fixture(scope="module")
def numbered(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Images whose only pixels are their number, ten labels in turn."""
    count = EACH * LABELS
    x = np.repeat(np.arange(count, dtype=np.float32), 4).reshape(count, 2, 2)
    path = tmp_path_factory.mktemp("data") / "numbered.npz"
    np.savez(path, x=x, y=np.arange(count) % LABELS)
    return str(path)


def rows(samples: Any) -> list[int]:
    return [int(number) for number in samples.x[:, 0]]


def everything(world: World, seed: int = 0) -> tuple[list[int], list[int], list[int]]:
    """The images of all clients, of the proxies, and of the tests."""
    visits = [world.visit(seed, client, 0) for client in world.names]
    clients = [row for visit in visits for part in (visit.train, visit.test) for row in rows(part)]
    proxies, tests = (
        [row for s in parts.values() for row in rows(s)] for parts in (world.proxies(seed), world.tests(seed))
    )
    return clients, proxies, tests


# label-groups


def groups(data: str, **changes: Any) -> LabelGroups:
    return LabelGroups(data, **{"clients": 20, "proxy_images": 3, "test_images": 7, **changes})


def test_groups_have_their_clients_and_labels(numbered: str) -> None:
    here = groups(numbered, shuffled=False)
    expected = [{0, 1}] * 4 + [{2, 3}] * 4 + [{4, 5, 6}] * 6 + [{7, 8, 9}] * 6
    for client, labels in zip(here.names, expected, strict=True):
        visit = here.visit(0, client, 0)
        assert set(visit.train.y.tolist()) | set(visit.test.y.tolist()) <= labels
        number = [{0, 1}, {2, 3}, {4, 5, 6}, {7, 8, 9}].index(labels)
        assert visit.mixture == {f"k{i}": float(i == number) for i in range(4)}
    assert [set(s.y.tolist()) for s in here.tests(0).values()] == [{0, 1}, {2, 3}, {4, 5, 6}, {7, 8, 9}]
    assert [len(s) for s in here.proxies(0).values()] == [6, 6, 9, 9]
    assert [len(s) for s in here.tests(0).values()] == [14, 14, 21, 21]
    assert (here.features, here.classes, here.shape) == (4, 10, (1, 2, 2))


def test_every_image_is_dealt_once(numbered: str) -> None:
    clients, proxies, tests = everything(groups(numbered))
    assert sorted(clients + proxies + tests) == list(range(EACH * LABELS))


def test_a_client_keeps_a_quarter_for_tests_and_an_image_its_label(numbered: str) -> None:
    here = groups(numbered)
    for client in here.names:
        visit = here.visit(0, client, 0)
        total = len(visit.train) + len(visit.test)
        assert total >= 4 and len(visit.test) == max(1, total // 4)
        for part in (visit.train, visit.test):
            assert [row % LABELS for row in rows(part)] == part.y.tolist()


def test_data_do_not_change_with_the_cycle_and_do_with_the_seed(numbered: str) -> None:
    here = groups(numbered)
    assert rows(here.visit(0, "c003", 0).train) == rows(here.visit(0, "c003", 9).train)
    assert rows(here.visit(0, "c003", 0).train) != rows(here.visit(1, "c003", 0).train)
    assert here.held and here.turns == "client"


def test_the_dirichlet_draw_spreads_clients_and_a_large_one_levels_them(numbered: str) -> None:
    def sizes(dirichlet: float) -> list[int]:
        here = groups(numbered, groups=((0, 1, 2, 3),), shares=(), dirichlet=dirichlet, samples_min=2)
        return [len(here.visit(0, c, 0).train) + len(here.visit(0, c, 0).test) for c in here.names]

    assert sizes(1e6) == pytest.approx([6] * 20, abs=2)  # 4 x 30 images for 20 clients
    assert max(sizes(0.1)) > 10 and min(sizes(0.1)) == 2
    assert sum(sizes(0.1)) == 120


def test_iid_deals_everything_evenly(numbered: str) -> None:
    here = groups(numbered, iid=True)
    visits = [here.visit(0, client, 0) for client in here.names]
    assert [len(v.train) + len(v.test) for v in visits] == [15] * 20  # 300 images for 20 clients
    assert all(v.mixture == {"k0": 1.0} for v in visits)
    assert len({label for v in visits for label in v.train.y.tolist()}) == 10
    clients, proxies, tests = everything(here)
    assert sorted(clients + proxies + tests) == list(range(EACH * LABELS))


def test_a_cap_keeps_runs_short(numbered: str) -> None:
    here = groups(numbered, samples_per_client=8)
    visits = [here.visit(0, client, 0) for client in here.names]
    sizes = [len(v.train) + len(v.test) for v in visits]
    assert max(sizes) == 8 and all(len(v.test) == size // 4 for v, size in zip(visits, sizes, strict=True))


def test_a_test_set_of_its_own_is_the_servers(tmp_path: Path) -> None:
    x = np.repeat(np.arange(120, dtype=np.float32), 4).reshape(120, 2, 2)
    y = np.arange(120) % 2
    np.savez(tmp_path / "split.npz", x_train=x[:80], y_train=y[:80], x_test=x[80:], y_test=y[80:])
    here = LabelGroups(str(tmp_path / "split.npz"), 4, ((0,), (1,)), shares=(), proxy_images=5, test_images=15)
    clients, proxies, tests = everything(here)
    assert sorted(clients) == list(range(80)) and sorted(proxies + tests) == list(range(80, 120))
    with pytest.raises(SettingError, match=r"have 20 images, too few for .*label 0 \(21\)"):
        LabelGroups(str(tmp_path / "split.npz"), 4, ((0,), (1,)), (), proxy_images=6, test_images=15).proxies(0)


def test_a_poor_client_takes_from_the_richest() -> None:
    hands = [np.arange(0), np.arange(10, 19), np.arange(20, 22), np.arange(30, 36)]
    topped = topped_up(hands, 4)
    assert [hand.tolist() for hand in topped] == [
        [15, 16, 17, 18],  # four of nine
        [10, 11, 12, 13, 14],
        [20, 21, 34, 35],  # then the last is the largest
        [30, 31, 32, 33],
    ]
    with pytest.raises(SettingError, match="2 clients need 3 samples each, but there are 5"):
        topped_up([np.arange(5), np.arange(0)], 3)


@pytest.mark.parametrize(
    ("count", "share", "most", "expected"),
    [
        (8, 0.25, None, 2),
        (9, 0.25, None, 2),
        (2, 0.25, None, 1),
        (3, 0.9, None, 2),
        (2, 0.9, None, 1),
        (20, 0.2, 10, 2),
    ],
)
def test_both_sides_of_a_division_have_something(count: int, share: float, most: int | None, expected: int) -> None:
    train, test = train_and_test(0, "c000", np.arange(count), share, most)
    assert (len(test), len(train)) == (expected, min(count, most or count) - expected)
    assert not set(train.tolist()) & set(test.tolist())


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"clients": 0}, "clients must be at least 1, not 0"),
        ({"groups": ()}, "groups must hold at least one group"),
        ({"groups": ((0,), ())}, "groups must hold at least one group"),
        ({"groups": ((0, -1),)}, "groups must hold at least one group"),
        ({"groups": ((0, 1), (1, 2)), "shares": ()}, "groups must not share labels"),
        ({"clients": 3}, "no more groups than clients"),
        ({"shares": (0.5, 0.5)}, "shares must be positive, and as many as groups"),
        ({"shares": (0.5, 0.5, 0.0, 0.5)}, "shares must be positive"),
        ({"shares": (0.97, 0.01, 0.01, 0.01)}, "shares must leave every group a client"),
        ({"dirichlet": 0.0}, "dirichlet must be positive"),
        ({"test_share": 1.0}, "test_share"),
        ({"samples_min": 1}, "samples_min"),
        ({"samples_per_client": 3}, "samples_per_client"),
        ({"proxy_images": 0}, "proxy_images"),
    ],
)
def test_groups_that_cannot_be_are_refused(numbered: str, wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        groups(numbered, **wrong)
    with pytest.raises(SettingError, match=words):
        build({"world": {"name": "label-groups", "data": numbered, "clients": 20, **wrong}})


def test_labels_that_the_data_lack_are_named(numbered: str) -> None:
    with pytest.raises(SettingError, match="the label 12, but"):
        groups(numbered, groups=((0, 12), (1,)), shares=()).proxies(0)


def test_one_client_may_be_a_world(numbered: str) -> None:
    here = groups(numbered, clients=1, groups=((0, 1, 2),), shares=())
    visit = here.visit(0, "c000", 0)
    assert len(visit.train) + len(visit.test) == 90


def test_data_of_one_class_are_refused_before_a_run(tmp_path: Path) -> None:
    np.savez(tmp_path / "one.npz", x=np.ones((1200, 2, 2)), y=np.zeros(1200, int))
    for name in ("rotated", "label-groups", "few-classes"):
        with pytest.raises(SettingError, match="one class only"):
            build({"world": {"name": name, "data": str(tmp_path / "one.npz")}})
        with pytest.raises(SettingError, match="one class only"):
            WORLDS[name](data=str(tmp_path / "one.npz")).proxies(0)  # type: ignore[call-arg]


def test_real_digits_are_dealt_to_a_hundred_clients() -> None:
    here = LabelGroups()
    sizes = [len(here.visit(0, c, 0).train) + len(here.visit(0, c, 0).test) for c in here.names]
    assert (len(sizes), sum(sizes), min(sizes)) == (100, 1797 - 400, 4)
    counts = Counter(max(here.visit(0, c, 0).mixture.items(), key=lambda kv: kv[1])[0] for c in here.names)
    assert counts == {"k0": 20, "k1": 20, "k2": 30, "k3": 30}


# few-classes


def few(data: str, **changes: Any) -> FewClasses:
    sizes = {"clients": 20, "samples_min": 4, "proxy_images": 3, "test_images": 7}
    return FewClasses(data, **{**sizes, **changes})


def test_client_i_has_the_labels_from_i_on(numbered: str) -> None:
    here = few(numbered, shuffled=False)
    for i, client in enumerate(here.names):
        visit = here.visit(0, client, 0)
        both = Counter(visit.train.y.tolist() + visit.test.y.tolist())
        assert set(both) == {i % 10, (i + 1) % 10} and min(both.values()) >= 2
        assert visit.mixture[f"k{i % 10}"] == 1.0 and sum(visit.mixture.values()) == 1.0
    clients, proxies, _ = everything(here)
    assert sorted(clients + list(set(proxies))) == sorted({*clients, *proxies}) and len(clients) == 300
    assert list(here.tests(0)) == [f"k{i}" for i in range(10)]
    assert set(here.tests(0)["k9"].y.tolist()) == {9, 0}


def test_sizes_follow_a_power_law_and_no_spread_makes_them_equal(numbered: str) -> None:
    def sizes(spread: float) -> list[int]:
        here = few(numbered, spread=spread)
        return [len(here.visit(0, c, 0).train) + len(here.visit(0, c, 0).test) for c in here.names]

    assert sizes(0.0) == pytest.approx([15] * 20, abs=1)
    assert min(sizes(2.0)) < 6 and max(sizes(2.0)) > 35 and sum(sizes(2.0)) == 300


def test_all_classes_are_one_group_and_few_clients_few_groups(numbered: str) -> None:
    assert few(numbered, classes_per_client=10, samples_min=10).visit(0, "c007", 0).mixture == {"k0": 1.0}
    assert list(few(numbered, clients=3).proxies(0)) == ["k0", "k1", "k2"]
    assert few(numbered, clients=1).visit(0, "c000", 0).mixture == {"k0": 1.0}


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"clients": 0}, "clients must be at least 1, not 0"),
        ({"classes_per_client": 0}, "classes_per_client"),
        ({"classes_per_client": 5}, "samples_min must be at least classes_per_client"),
        ({"spread": -1.0}, "spread"),
        ({"test_share": 0.0}, "test_share"),
    ],
)
def test_few_classes_that_cannot_be_are_refused(numbered: str, wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        few(numbered, **wrong)


def test_few_classes_that_do_not_fit_the_data_are_refused(numbered: str) -> None:
    with pytest.raises(SettingError, match="is 11, but the data have 10 classes"):
        few(numbered, classes_per_client=11, samples_min=11).proxies(0)
    with pytest.raises(SettingError, match="needs 40 images of the label 0, but there are 30"):
        few(numbered, samples_min=20).proxies(0)
