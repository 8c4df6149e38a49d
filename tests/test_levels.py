"""The import levels: each file imports only what stands above it, and frameworks stay at the edges."""

import ast
import subprocess
import sys
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import artesian

ROOT = Path(artesian.__file__).parent
LEVELS = [
    {"errors", "params", "core", "plugins"},
    {"storage", "recipes", "engine.pace"}
    | {
        f"algorithms.{rule}"
        for rule in (
            "aggregation",
            "calibration",
            "clustering",
            "directions",
            "estimation",
            "estimators",
            "finding",
            "gates",
            "membership",
            "peers",
            "settings",
            "staleness",
            "starts",
        )
    },
    {"algorithms", "engine"},
    {"learners", "data", "execution", "drift", "dashboard"},
    {"client", "server", "simulator"},
    {"config", "report", "leagues", "testing", "demo", "cli"},
]
HOLDERS = (ast.excepthandler, ast.match_case)  # what is no statement, and holds some
ALONE = 4  # the level whose rooms never import each other
EDGE_ONLY = {"time", "random", "threading", "asyncio", "logging", "multiprocessing", "socket"}
FILES = sorted(
    path.relative_to(ROOT) for path in ROOT.rglob("*.py") if path.name != "__init__.py" or path.parent != ROOT
)


def module(path: Path) -> str:
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")


def level(name: str) -> int:
    """That of a module without `artesian.`: its own, or that of its room."""
    while not any(name in names for names in LEVELS):
        assert "." in name, f"{name} has no level"
        name = name.rpartition(".")[0]
    return next(i for i, names in enumerate(LEVELS) if name in names)


def room(name: str) -> str:
    return name.partition(".")[0]


@cache
def statements(path: Path) -> list[ast.stmt]:
    """Every statement of a file, wherever in it."""
    found, left = [], list(ast.parse((ROOT / path).read_text()).body)
    while left:
        found.append(left.pop(0))
        left += [part for part in ast.iter_child_nodes(found[-1]) if isinstance(part, (ast.stmt, *HOLDERS))]
    return found


@cache
def imports(path: Path) -> set[str]:
    """Every module a file imports, wherever in it."""
    found: set[str] = set()
    for node in statements(path):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            found |= {node.module or ""}
            if node.module == "artesian":
                found |= {f"artesian.{alias.name}" for alias in node.names}
    return found


@pytest.mark.parametrize("path", FILES, ids=str)
def test_a_file_imports_only_what_stands_above_it(path) -> None:
    own = module(path)
    for name in imports(path):
        if not name.startswith("artesian."):
            continue
        other = name.removeprefix("artesian.")
        assert level(other) <= level(own), f"{path} imports {name} from below"
        if level(own) == ALONE and room(other) != room(own):
            assert level(other) < ALONE, f"{path} imports {name}: {room(own)} and {room(other)} do not know each other"


@pytest.mark.parametrize("path", [p for p in FILES if level(module(p)) <= 2], ids=str)
def test_clocks_threads_and_frameworks_stay_out_of_the_core(path) -> None:
    names = {name.split(".")[0] for name in imports(path)}
    assert not names & (EDGE_ONLY | {"torch", "sklearn", "fastapi", "httpx", "typer", "rich"})


@pytest.mark.parametrize("path", [p for p in FILES if room(module(p)) in ("engine", "server", "algorithms")], ids=str)
def test_the_server_needs_no_recipe(path) -> None:
    assert not [name for name in imports(path) if name.startswith("artesian.recipes")]


@pytest.mark.parametrize("path", FILES, ids=str)
def test_nothing_is_unpickled(path) -> None:
    names = {name.split(".")[0] for name in imports(path)}
    assert not names & {"pickle", "cloudpickle", "dill", "joblib", "shelve", "marshal"}
    text = (ROOT / path).read_text()
    assert "allow_pickle=True" not in text
    assert "torch.load" not in text


def test_algorithms_never_import_each_other() -> None:
    for path in (p for p in FILES if room(module(p)) == "algorithms" and p.name != "__init__.py"):
        others = [name.removeprefix("artesian.") for name in imports(path) if name.startswith("artesian.algorithms.")]
        assert all(level(other) < level("algorithms") for other in others), path


def test_the_root_holds_the_words_alone() -> None:
    assert {path.stem for path in ROOT.glob("*.py")} == {"__init__", *LEVELS[0]}


def test_no_class_name_is_used_twice() -> None:
    places: dict[str, list[str]] = {}
    for path in FILES:
        for node in statements(path):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(str(path))
    assert not {name: found for name, found in places.items() if len(found) > 1}


def test_no_modules_import_each_other_in_a_circle() -> None:
    known = {module(path): path for path in FILES}
    graph = {name: top_imports(path, set(known)) for name, path in known.items()}
    TopologicalSorter(graph).prepare()  # raises CycleError, which names them


def top_imports(path: Path, known: set[str]) -> set[str]:
    """The modules of ours that a file imports when it is imported itself."""
    found: set[str] = set()
    for node in ast.parse((ROOT / path).read_text()).body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("artesian."):
            room = str(node.module).removeprefix("artesian.")
            inside = {f"{room}.{alias.name}" for alias in node.names} & known
            found |= inside or {room}
    return found & known


def test_no_room_has_a_name_that_says_nothing() -> None:
    for path in FILES:
        assert path.stem not in {"utils", "common", "base", "helpers", "manager", "handler", "misc"}


def test_importing_the_package_and_its_help_stays_light() -> None:
    heavy = {"torch", "sklearn", "scipy", "fastapi", "numpy"}
    code = f"import sys, artesian, artesian.cli; print(sorted({heavy} & set(sys.modules)))"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "[]"
