"""Trees of version 0.1 in this version's words."""

import numpy as np
import pytest

from artesian.core import Desk, Receipt, Snapshot
from artesian.storage.codec import from_tree, to_tree
from artesian.storage.older import translated, translated_notebook

OLD = {"number": 3, "base": 2, "recipe": "pick", "models": ["k0"], "wanted": ["own"]}


@pytest.mark.parametrize(
    ("recipe", "estimates"),
    [("train", False), ("alone", False), ("soft", True), ("pick", True), ("em", True), ("match", True)],
)
def test_a_receipt_says_whether_a_mixture_comes_as_its_recipe_did(recipe, estimates) -> None:
    receipt = from_tree(Receipt, {**OLD, "recipe": recipe})
    assert (receipt.wanted, receipt.estimates) == (("own",), estimates)


def test_a_receipt_of_this_version_is_left_as_it_is() -> None:
    receipt = Receipt(1, 0, "pick", ("k0",), estimates=False)
    assert from_tree(Receipt, to_tree(receipt)) == receipt


def test_a_desk_counted_the_tasks_given_that_are_now_issued() -> None:
    assert from_tree(Desk, {"open": 2, "given": 7}) == Desk(open=2, issued=7)
    assert translated(Snapshot, {"given": {"c0": 1}, "settings": {}}) == {"open_tasks": {"c0": 1}, "settings": {}}


def test_a_notebook_with_the_fields_of_all_recipes_keeps_what_is_written_in_it() -> None:
    own = np.zeros(2, np.float32)
    old = {"own": own, "mixture": None, "histogram": [], "origin": None, "directions": {}}
    assert translated_notebook(old) == {"own": own}
    assert translated_notebook({**old, "own": None}) == {}
    full = {"own": None, "mixture": {"k0": 1.0}, "histogram": [3], "origin": own, "directions": {"k0": own}}
    assert translated_notebook(full) == {name: entry for name, entry in full.items() if name != "own"}


def test_a_recipes_own_notebook_may_hold_nothing_on_purpose() -> None:
    book = {"seen": [], "best": None}
    assert translated_notebook(book) is book
