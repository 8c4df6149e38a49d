"""Which tests are ordinary, and which are heavy; and which files need not be read for one tier alone."""

import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

MARKERS = ("heavy", "ray")
ORDINARY = "not heavy and not ray"
QUICK = "heavy and not ray and not thorough"
ALONE = {ORDINARY: None, "heavy and not ray": "heavy", QUICK: "heavy", "ray": "ray"}  # asked for: the tier's marker
HEAVY, THOROUGH = pytest.mark.heavy, pytest.mark.thorough


def some_heavy(cases: Iterable[Any], *ordinary: Any) -> list[Any]:
    """All cases; those not named here are heavy, and repeat what the others show."""
    return _some(cases, ordinary, HEAVY, THOROUGH)


def some_thorough(cases: Iterable[Any], *quick: Any) -> list[Any]:
    """All cases of a heavy test; those not named here repeat what the others show."""
    return _some(cases, quick, THOROUGH)


def _some(cases: Iterable[Any], others: tuple[Any, ...], *marks: pytest.MarkDecorator) -> list[Any]:
    cases = list(cases)
    assert all(other in cases for other in others), "a case of this name is not there"
    return [case if case in others else _param(case, marks) for case in cases]


def _param(case: Any, marks: tuple[pytest.MarkDecorator, ...]) -> Any:
    return pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=marks)


@cache
def markers(path: Path) -> frozenset[str]:
    """The markers of tiers that a file names anywhere."""
    return frozenset(re.findall(r"(?:\b|_)(heavy|ray)\b", path.read_text()))


@cache
def is_whole(path: Path) -> bool:
    """Whether all tests of a file are of the tier that it names."""
    return re.search(r"^pytestmark = \[?pytest\.mark\.(heavy|ray)\b", path.read_text(), re.M) is not None


def is_elsewhere(path: Path, asked: str) -> bool:
    """Whether a file has no test of the tier asked for: every process of a run would import it for nothing."""
    if asked not in ALONE or not (path.name.startswith("test_") and path.suffix == ".py"):
        return False
    return is_whole(path) if asked == ORDINARY else ALONE[asked] not in markers(path)


def check_named(items: Iterable[pytest.Item]) -> None:
    """A file in which a test has the marker of a tier says its name, or that tier would not find it."""
    for item in items:
        for marker in MARKERS:
            if item.get_closest_marker(marker) and marker not in markers(item.path):
                raise pytest.UsageError(f"{item.nodeid} is marked {marker}, but its file never says so")
