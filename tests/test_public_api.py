"""The public names: listed once, loaded when used, typed, and enough for everything the documentation shows."""

import doctest
import re
import subprocess
import sys
from pathlib import Path

import pytest

import artesian
from artesian.algorithms import ALGORITHMS
from artesian.config import experiments
from artesian.errors import MissingExtra

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "artesian"
LIST = SOURCE / "__init__.pyi"
IMPORTS = [line for line in LIST.read_text().splitlines() if line.startswith("from ")]


@pytest.mark.parametrize("name", artesian.__all__)
def test_every_public_name_is_there(name) -> None:
    try:
        assert getattr(artesian, name) is not None
    except MissingExtra as error:  # torch and other optional packages
        pytest.skip(str(error))
    assert name in dir(artesian)


def test_other_names_are_not() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = artesian.nothing


def test_every_line_of_the_list_is_one_name() -> None:
    *names, algorithms = IMPORTS
    assert algorithms == "from artesian.algorithms import *"
    listed = [re.fullmatch(r"from artesian\.[\w.]+ import (\w+) as \1", line) for line in names]
    assert all(listed)
    assert len({match[1] for match in listed if match}) == len(names)


def test_every_algorithm_is_public_and_its_name_is_listed_once() -> None:
    lists = [path.read_text().splitlines() for path in [LIST, *SOURCE.rglob("__init__.py")]]
    for kind in ALGORITHMS.values():
        assert getattr(artesian, kind.__name__) is kind
        lines = [line for file in lists for line in file if re.search(rf"import.*\b{kind.__name__}\b", line)]
        assert len(lines) == 1, lines


def test_the_list_of_algorithms_is_the_table() -> None:
    text = (SOURCE / "algorithms" / "__init__.py").read_text()
    listed = re.findall(r"^from artesian\.algorithms\.\w+ import (\w+)", text, re.M)
    assert [kind.__name__ for kind in ALGORITHMS.values()] == listed


@pytest.mark.heavy
def test_the_examples_in_docstrings_run() -> None:
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    ran = doctest.testmod(experiments)
    assert ran.attempted >= 3 and not ran.failed


def test_no_public_name_hides_a_room() -> None:
    rooms = {path.stem for path in SOURCE.iterdir()}
    assert not rooms & set(artesian.__all__)


@pytest.mark.heavy  # torch, once more
def test_a_star_import_gives_the_same_names() -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    code = "from artesian import *; import artesian; print(set(artesian.__all__) - set(globals()))"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "set()"


def test_a_user_who_checks_types_sees_the_real_ones() -> None:
    import typed_user  # `make check` reads it as mypy does, here it runs

    assert typed_user.settings()["rho"] == 0.2


PAGES = [
    *ROOT.glob("examples/*.py"),
    ROOT / "README.md",
    *ROOT.glob("docs/tutorials/*"),
    *ROOT.glob("docs/how-to/*.md"),
]


@pytest.mark.parametrize("path", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_what_users_copy_imports_from_the_package_alone(path) -> None:
    deep = re.findall(r"^\W*(?:from|import) (artesian\.[\w.]+)", path.read_text(), re.M)
    assert deep == []
