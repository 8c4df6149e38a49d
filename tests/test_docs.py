"""The documentation keeps up with the code: commands, settings, presets, errors, routes and algorithms are in it."""

import inspect
import json
import re
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
from idx import write_idx
from typer.main import get_command

from artesian import errors
from artesian.algorithms import ALGORITHMS
from artesian.algorithms.fedasync import FedAsync
from artesian.cli import app
from artesian.config import experiments
from artesian.config.experiments import NUMBERS, TABLES, load, outlines, presets, simulate
from artesian.config.models import OPTIONS
from artesian.core import Plan
from artesian.data.datasets import images
from artesian.learners.arrays import MODELS
from artesian.learners.networks import NETWORKS
from artesian.recipes import BUILT_IN
from artesian.server.app import create_app
from artesian.server.statuses import STATUSES
from artesian.simulator.drifting import Drifts
from artesian.simulator.evaluation import ACCEPTED, CLUSTERS, POOL, UPLOADS
from artesian.simulator.fleet import Fleet
from artesian.simulator.folder import RunFolder
from artesian.simulator.pretraining import Start
from artesian.simulator.shifts import Shift
from artesian.simulator.watching import TURNS, Watches
from artesian.simulator.worlds import WORLDS
from artesian.testing import ToyFederation

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])


def page(name: str) -> str:
    return (DOCS / name).read_text()


def mentions(text: str, word: str) -> bool:
    return re.search(rf"(?<![\w-]){re.escape(word)}(?![\w-])", text) is not None


def test_every_command_and_option_is_documented() -> None:
    text = page("reference/commands.md")
    for name, command in get_command(app).commands.items():
        assert f"artesian {name}" in text, name
        for parameter in command.params:
            for option in parameter.opts if parameter.param_type_name == "option" else []:
                assert mentions(text, option), f"{name} {option}"


def read_preset(name: str) -> str:
    return (Path(experiments.__file__).parent / "presets" / f"{name}.toml").read_text()


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_every_algorithm_has_a_page_with_its_settings_and_differences(name) -> None:
    text = page(f"algorithms/{name.replace('+', '-plus')}.md")
    for setting in fields(ALGORITHMS[name]):
        assert f"`{setting.name}`" in text, setting.name
    assert "Differs from the paper" in text


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_every_algorithm_file_reads_the_same_way(name) -> None:
    text = Path(inspect.getfile(ALGORITHMS[name])).read_text()
    for part in ("Paper line -> method:", "Differs from the paper:"):
        assert part in text.split('"""')[1], part


def test_every_setting_is_documented() -> None:
    text = page("reference/settings.md")
    kinds = [Plan, Fleet, Start, Shift, Drifts, Watches, *WORLDS.values(), *MODELS.values()]
    for kind in kinds:
        for setting in fields(kind):
            assert f"`{setting.name}`" in text, f"{kind.__name__}.{setting.name}"
    for name, network in NETWORKS.items():
        for setting in inspect.signature(network).parameters:
            assert f"`{setting}`" in text, f"{name}.{setting}"
    for name in (*OPTIONS, "framework"):
        assert f"`{name}`" in text, name
    for name in (*NUMBERS, *TABLES, *WORLDS, *MODELS, *NETWORKS, "ARTESIAN_DATA"):
        assert mentions(text, name), name


def rows(name: str, title: str) -> list[list[str]]:
    """The cells of the tables below a title, without the heads."""
    below = f"\n{page(name)}".split(f"\n{title}\n")[1].split("\n#")[0].splitlines()
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in below if line.startswith("| `")]


def in_toml(value: object) -> str:
    return "none" if value is None else json.dumps(value)


def test_every_algorithms_settings_and_their_defaults_are_in_one_table() -> None:
    settings = {
        name: ", ".join(f"`{f.name}` {in_toml(f.default)}" for f in fields(kind)) for name, kind in ALGORITHMS.items()
    }
    told = {cells[0].strip("`"): cells for cells in rows("reference/settings.md", "## [algorithm]")}
    assert {name: cells[2] for name, cells in told.items()} == settings
    for name, cells in told.items():
        assert f"(../algorithms/{name.replace('+', '-plus')}.md)" in cells[1], name


def test_the_meaning_of_every_algorithms_setting_is_told_once() -> None:
    told = [
        name
        for cells in rows("reference/settings.md", "### What they mean")
        for name in re.findall(r"`(\w+)`", cells[0])
    ]
    assert sorted(told) == sorted({f.name for kind in ALGORITHMS.values() for f in fields(kind)})


NEEDS = ("needs no torch.", "needs the data.", "needs torch and the data.")


def test_every_preset_is_documented_and_says_what_it_needs() -> None:
    assert len(presets()) == 22
    for name, sentence in presets().items():
        assert mentions(page("reference/settings.md"), name)
        assert sentence.endswith(NEEDS)
        assert not re.search(r"\d clients", sentence)  # how many is told from the file


def test_the_size_of_every_preset_is_documented() -> None:
    told = {cells[0].strip("`"): cells[2:] for cells in rows("reference/settings.md", "## Presets")}
    for preset in outlines():
        unit = next(unit for unit in ("turns", "rounds", "uploads") if preset[unit])
        lasts = f"{preset[unit]:,} {unit}"
        assert told[preset["name"]] == [str(preset["clients"]), lasts], preset["name"]


@pytest.fixture
def small_data(tmp_path, monkeypatch):
    """Every data set a preset needs, with a few samples each."""
    rng = np.random.default_rng(0)
    for name in ("mnist", "fashion-mnist"):
        write_idx(tmp_path / name, side=28)
    for name, side, channels in (("cifar10", 32, 3), ("svhn", 32, 3), ("usps", 16, 0), ("plates", 20, 0)):
        x = rng.integers(0, 255, (60, side, side, channels) if channels else (60, side, side), np.uint8)
        np.savez(tmp_path / f"{name}.npz", x=x, y=np.arange(60) % 10)
    people = {"x": rng.normal(size=(400, 12)).astype(np.float32), "y": np.arange(400) % 5, "user": np.arange(400) % 40}
    np.savez(tmp_path / "har.npz", **people)
    monkeypatch.setenv("ARTESIAN_DATA", str(tmp_path))
    images.cache_clear()
    yield
    images.cache_clear()


@pytest.mark.parametrize("name", presets())
def test_every_preset_loads(small_data, name) -> None:
    if presets()[name].endswith(NEEDS[2]):
        pytest.importorskip("torch", reason="torch is not installed")
    experiment = load(name)
    assert experiment.name == name
    told = next(preset for preset in outlines() if preset["name"] == name)
    assert told["clients"] == len(experiment.world.names)
    assert (told["rounds"], told["uploads"] or experiment.uploads) == (experiment.rounds, experiment.uploads)
    assert told["turns"] == experiment.turns
    assert told["missing"] == []
    if name[-1].isdigit() and name.startswith(("digits", "fashion")):
        assert experiment.world.clusters == int(name[-1])
    if name.startswith("fashion"):
        assert experiment.model.layout.size == 582_026
        assert (experiment.uploads, experiment.world.clients) == (500 * int(name[-1]), 20 * int(name[-1]))


@pytest.mark.parametrize("name", [name for name in presets() if "scales.full" in read_preset(name)])
def test_a_preset_has_the_scale_of_its_paper(small_data, name) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    small, full = load(name), load(name, ["scale=full"])
    assert (full.rounds or full.uploads) > (small.rounds or small.uploads)


def all_errors(kind: type = errors.ArtesianError) -> list[type]:
    return [kind, *(leaf for below in kind.__subclasses__() for leaf in all_errors(below))]


def test_every_error_is_documented_and_stands_in_the_tree() -> None:
    text, tree = page("reference/errors.md"), errors.__doc__ or ""
    for kind in all_errors():
        if kind.__module__ == errors.__name__:
            assert mentions(text, kind.__name__), kind.__name__
            assert mentions(tree, kind.__name__), kind.__name__
    for kind, status in STATUSES.items():
        line = next(line for line in text.splitlines() if mentions(line, kind.__name__) and "|" in line)
        assert str(status) in line, kind.__name__


def test_every_route_and_recipe_is_documented() -> None:
    text = page("reference/wire-format.md")
    for route in create_app(ToyFederation(FedAsync(), 1).coordinator).routes:
        path = getattr(route, "path", "")
        if path.startswith(("/v1", "/healthz")):
            assert path.replace("{client}", "{id}") in text, path
    for name in BUILT_IN:
        assert f"`{name}`" in text


def test_the_run_folder_is_documented() -> None:
    text = page("reference/run-folder.md")
    for name in (
        "config.json",
        "journal.jsonl",
        "snapshots",
        "blobs",
        "final",
        "summary.json",
        *UPLOADS,
        *ACCEPTED,
        *POOL,
        *CLUSTERS,
        *TURNS,
    ):
        assert mentions(text, name), name
    assert RunFolder.__doc__


def test_every_file_of_a_run_is_in_the_table_of_files(tmp_path) -> None:
    simulate("digits-2", changes=["world.clients=4", "start.trunk_epochs=0"], uploads=4, out=tmp_path)
    told = {cells[0].strip("`/") for cells in rows("reference/run-folder.md", "# The run folder")}
    assert told >= {path.name for path in tmp_path.iterdir()}


@pytest.mark.parametrize("path", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(path) -> None:
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", path.read_text()):
        if not target.startswith(("http", "mailto")):
            assert (path.parent / target).exists(), target


@pytest.mark.parametrize("path", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_commands_in_the_pages_are_real(path) -> None:
    commands = get_command(app).commands
    for name in re.findall(r"^\s*(?:\$ )?artesian ([a-z]+)", path.read_text(), re.M):
        assert name in commands, name
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.M)
    for name in re.findall(r"`?make ([a-z]+)`?(?:\s|$)", path.read_text()):
        assert name in targets or name in ("no", "it", "a", "the"), name


def test_every_page_is_in_the_index() -> None:
    index = page("README.md")
    for path in [*DOCS.rglob("*.md"), *DOCS.rglob("*.ipynb")]:
        if path.name != "README.md":
            assert str(path.relative_to(DOCS)) in index, path


def test_the_changelog_knows_this_version() -> None:
    import artesian

    assert f"[{artesian.__version__}]" in (ROOT / "CHANGELOG.md").read_text()
    assert artesian.__version__ in (ROOT / "CITATION.cff").read_text()


def test_tests_that_pages_name_exist() -> None:
    named = {
        match
        for path in DOCS.rglob("*.md")
        for match in re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", path.read_text())
    }
    assert len(named) > 10
    for path, test in sorted(named):
        assert f"def {test}(" in (DOCS.parent / path).read_text(), f"{path}::{test}"


def test_the_comparison_names_every_algorithm() -> None:
    text = page("algorithms/index.md")
    for name in ALGORITHMS:
        assert f"[`{name}`]" in text, name
