"""Dividing models into groups, against numbers worked out by hand."""

import numpy as np
import pytest

from artesian.algorithms.clustering import (
    blank_table,
    cosines,
    eigengap,
    eigenvalues,
    kmeans_groups,
    left_singular,
    linked_groups,
    refreshed,
    spectral_groups,
)
from artesian.errors import MissingExtra
from artesian.params import Layout


def blocks(p: float, q: float, size: int = 10) -> np.ndarray:
    """Two blocks: p inside, q across, 1 with oneself."""
    inside, across = np.full((size, size), p), np.full((size, size), q)
    found = np.block([[inside, across], [across, inside]])
    np.fill_diagonal(found, 1)
    return found


def test_cosines_of_every_pair() -> None:
    layout = Layout.of({"w": np.zeros(2, np.float32)})
    vectors = [np.array(v, np.float32) for v in ((1, 0), (1, 1), (0, 0))]
    expected = [[1, 0.5**0.5, 0], [0.5**0.5, 1, 0], [0, 0, 1]]
    np.testing.assert_allclose(cosines(layout, vectors), expected, atol=1e-7)


def test_a_table_works_out_only_the_rows_of_new_vectors() -> None:
    layout = Layout.of({"w": np.zeros(2, np.float32)})
    a, b, c, d = (np.array(v, np.float32) for v in ((1, 0), (1, 1), (0, 0), (0, 3)))
    table = refreshed(layout, blank_table(), {"a": a, "b": b})
    table = refreshed(layout, table, {"c": c, "a": d})
    assert (table["clients"], table["vectors"]["a"] is d) == (["a", "b", "c"], True)
    np.testing.assert_allclose(table["norms"], [3, 2**0.5, 0])
    np.testing.assert_allclose(table["cosines"], cosines(layout, [d, b, c]), atol=1e-12)
    kept = {**table, "cosines": np.full((3, 3), 0.5)}  # rows of others are taken as they are
    half = 0.5**0.5
    expected = [[0.5, 0.5, 0], [0.5, 0.5, half], [0, half, 0.5]]
    np.testing.assert_allclose(refreshed(layout, kept, {"c": a})["cosines"], expected, atol=1e-12)


@pytest.mark.parametrize(
    ("p", "q", "values", "from_one", "from_two"),
    [
        (0.9, 0.1, (0, 0.198020, 0.990099), 2, (2, 0.792079)),
        (0.9, 0.5, (0, 0.709220, 0.992908), 1, (2, 0.283688)),
    ],
)
def test_the_laplacian_of_two_blocks(p, q, values, from_one, from_two) -> None:
    found = eigenvalues(blocks(p, q), 10)
    assert len(found) == 10
    np.testing.assert_allclose(found[:3], values, atol=1e-6)
    assert eigengap(found, 1)[0] == from_one
    parts, gap = eigengap(found, 2)
    assert (parts, gap) == (from_two[0], pytest.approx(from_two[1], abs=1e-6))


def test_no_gap_is_left_when_the_search_begins_at_the_end() -> None:
    assert eigengap(np.array([0.0, 1.0]), 2) == (2, 0.0)


def test_a_row_without_similarity_is_no_division_by_zero() -> None:
    affinity = np.zeros((3, 3))
    affinity[:2, :2] = 1
    assert np.isfinite(eigenvalues(affinity, 3)).all()


def test_spectral_groups_find_the_blocks_in_order_of_appearance() -> None:
    mixed = np.array([0, 10, 1, 11, 12, 2])
    affinity = blocks(0.9, 0.1)[np.ix_(mixed, mixed)]
    assert spectral_groups(affinity, 2).tolist() == [0, 1, 0, 1, 1, 0]
    assert spectral_groups(affinity, 1).tolist() == [0] * 6
    assert spectral_groups(affinity[:2, :2], 2).tolist() == [0, 1]
    assert spectral_groups(np.array([[1, -0.5, 0.9], [-0.5, 1, -0.4], [0.9, -0.4, 1]]), 2).tolist() == [0, 1, 0]


def test_complete_linkage_on_distances() -> None:
    points = np.array([0.0, 1.0, 5.0, 6.0])
    distances = np.abs(points[:, None] - points[None, :])
    assert linked_groups(distances, 2).tolist() == [0, 0, 1, 1]
    assert linked_groups(distances, 9).tolist() == [0, 1, 2, 3]


def test_kmeans_leaves_no_group_empty() -> None:
    points = np.array([[0.0, 0], [0, 0], [0, 0], [5, 5]])
    labels = kmeans_groups(points, 3, seed=1)
    assert sorted(set(labels.tolist())) == [0, 1, 2]
    assert labels[3] not in labels[:3]
    apart = kmeans_groups(np.array([[0.0], [0.1], [9.0], [9.1]]), 2, seed=2**40)
    assert apart[0] == apart[1] != apart[2] == apart[3]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_left_singular_vectors_are_those_of_the_whole_decomposition(count) -> None:
    columns = np.array([[1, 0.9, 0], [0, 0.1, 1], [0, 0, 0.2], [0, 0.3, 0.1]])
    whole = np.linalg.svd(columns, full_matrices=False)[0][:, :count]
    np.testing.assert_allclose(np.abs(left_singular(columns, count)), np.abs(whole), atol=1e-9)


def test_a_missing_library_is_named_with_its_extra(monkeypatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "sklearn.cluster", None)
    with pytest.raises(MissingExtra, match="clustering"):
        linked_groups(np.zeros((3, 3)), 2)
