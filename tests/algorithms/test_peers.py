"""Buffers within a budget, worked out by hand."""

import numpy as np
import pytest

from artesian.algorithms.peers import Peers
from artesian.params import Layout, seal

LAYOUT = Layout.of({"w": np.zeros(2, np.float32)})


def vector(*numbers: float) -> np.ndarray:
    return seal(np.array(numbers, np.float32))


def peers(*clients: str) -> Peers:
    return Peers.of(Peers.nothing(), clients)


def offer(book: Peers, client: str, takers: str, version: int) -> None:
    """Models are (version, 1), so that one sees which is which."""
    book.offer(LAYOUT, client, vector(version, 1), np.array([c in takers for c in book.clients]), version)


def entries(book: Peers) -> set[str]:
    """Owner, peer and version of every entry."""
    return {f"{owner}{peer}{int(model[0])}" for owner in book.clients for peer, model in book.buffer(owner).items()}


def known(book: Peers, *pairs: str) -> None:
    for a, b in pairs:
        i, j = book.place(a), book.place(b)
        book.similarity[i, j] = book.similarity[j, i] = 0.5


def consistent(book: Peers) -> bool:
    counts = np.bincount(book.entries.ravel(), minlength=len(book.held))
    counts[0] = 0
    return book.held.tolist() == counts.tolist() and {int(n) for n in book.models} == set(np.flatnonzero(counts))


def test_strangers_are_seated_by_name_behind_those_who_were_there() -> None:
    book = peers("b", "d")
    offer(book, "b", "d", 1)
    later = Peers.of(book.memory(), ["a", "b", "d", "c"])
    assert later.clients == ["b", "d", "a", "c"]
    assert entries(later) == {"db1"}
    assert np.isnan(later.similarity).sum() == 12  # all pairs but those with oneself
    gone = Peers.of(later.memory(), ["a", "b", "c"])
    assert (gone.clients, entries(gone), gone.models) == (["b", "a", "c"], set(), {})
    assert consistent(gone)


def test_the_memory_is_not_written_to() -> None:
    first = peers("a", "b")
    offer(first, "a", "b", 1)
    memory = first.memory()
    for array in (v for v in memory.values() if isinstance(v, np.ndarray)):
        seal(array)
    book = Peers.of(memory, ["a", "b"])
    assert book.compare(LAYOUT, "b", vector(1, 1)) == 0
    offer(book, "b", "a", 2)
    assert (entries(book), entries(Peers.of(memory, ["a", "b"]))) == ({"ab2"}, {"ba1"})


def test_a_number_is_used_again_once_its_model_is_gone() -> None:
    book = peers("a", "b", "c")
    offer(book, "a", "bc", 1)
    offer(book, "b", "c", 2)
    assert sorted(book.models) == ["1", "2"]
    book.compare(LAYOUT, "b", vector(3, 1))
    assert sorted(book.models) == ["1", "2"]  # c still holds a's
    book.compare(LAYOUT, "c", vector(1, 1))
    assert (book.models, len(book.held)) == ({}, 1)
    offer(book, "c", "ab", 3)
    assert (entries(book), list(book.models), consistent(book)) == ({"ac3", "bc3"}, ["1"], True)


def test_nobody_takes_its_own_model_or_a_second_of_one_peer() -> None:
    book = peers("a", "b")
    offer(book, "a", "ab", 1)
    offer(book, "a", "ab", 2)
    assert (entries(book), len(book.models)) == ({"ba1"}, 1)


def test_unknown_pairs_are_worth_most() -> None:
    book = peers("a", "b", "c", "d")
    offer(book, "a", "d", 1)
    offer(book, "b", "d", 2)
    offer(book, "c", "d", 3)
    known(book, "ad", "bd")
    book.prune(2, "models")
    assert entries(book) == {"dc3", "da1"}  # of two known ones the older stays
    book.prune(1, "models")
    assert (entries(book), consistent(book)) == ({"dc3"}, True)


def test_then_slow_owners() -> None:
    book = peers("a", "b", "c", "d")
    book.rates[:, 1] = (0.3, 0.1, 0.2, 0.3)
    offer(book, "d", "a", 1)
    offer(book, "d", "b", 2)
    offer(book, "a", "c", 3)
    book.prune(2, "models")
    assert entries(book) == {"bd2", "ca3"}
    book.prune(1, "entries")
    assert (entries(book), consistent(book)) == ({"bd2"}, True)


def test_a_model_is_worth_its_best_entry_and_keeps_all_of_them() -> None:
    """Version 1 is known to b, but not to c; 2 is known to both who hold it."""
    book = peers("a", "b", "c", "d")
    offer(book, "a", "bc", 1)
    offer(book, "d", "bc", 2)
    known(book, "ab", "bd", "cd")
    book.prune(1, "models")
    assert (entries(book), consistent(book)) == ({"ba1", "ca1"}, True)


def test_entries_are_counted_one_by_one_and_ties_go_by_age_and_name() -> None:
    book = peers("c", "a", "b", "d")
    offer(book, "d", "abc", 1)
    offer(book, "a", "bc", 2)
    assert len(entries(book)) == 5
    book.prune(4, "entries")
    assert entries(book) == {"ad1", "bd1", "cd1", "ba2"}
    book.prune(2, "entries")
    assert (entries(book), list(book.models), consistent(book)) == ({"ad1", "bd1"}, ["1"], True)


def test_a_budget_that_is_kept_changes_nothing() -> None:
    book = peers("a", "b", "c")
    offer(book, "a", "bc", 1)
    book.prune(1, "models")
    book.prune(2, "entries")
    assert entries(book) == {"ba1", "ca1"}
    book.prune(0, "models")
    assert (entries(book), book.models) == (set(), {})


def test_parting_drops_what_crosses_and_leaves_newcomers_alone() -> None:
    book = peers("a", "b", "c", "d")
    offer(book, "a", "bcd", 1)
    book.part(np.array([0, 0, 1, -1]))
    assert (entries(book), consistent(book)) == ({"ba1", "da1"}, True)


def test_compare_fills_both_halves_and_counts_what_is_undefined() -> None:
    book = peers("a", "b", "c")
    offer(book, "a", "c", 0)  # (0, 1)
    book.offer(LAYOUT, "b", vector(0, 0), np.array([False, False, True]), 1)
    assert book.compare(LAYOUT, "c", vector(4, 3)) == 1
    assert book.similarity[0, 2] == book.similarity[2, 0] == pytest.approx(0.6)
    assert np.isnan(book.similarity[1, 2])
    assert not book.all_known("a", np.array([0, 1]))
    assert book.all_known("a", np.array([0, 2]))
    assert not book.all_known("a", np.array([0, 1, 2]))
