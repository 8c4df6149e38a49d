"""Which cases of one test are ordinary, and which are heavy."""

from collections.abc import Iterable
from typing import Any

import pytest


def some_heavy(cases: Iterable[Any], *ordinary: Any) -> list[Any]:
    """All cases; those not named here are heavy."""
    cases = list(cases)
    assert set(ordinary) <= set(cases), "a case of this name is not there"
    return [case if case in ordinary else pytest.param(case, marks=pytest.mark.heavy) for case in cases]
