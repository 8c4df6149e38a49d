"""What a run was made from is recorded: the user's modules and data files."""

import hashlib
import importlib
import json
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

from artesian.config.experiments import build, simulate
from artesian.data.datasets import files_of, images
from artesian.errors import ChangedSince
from artesian.simulator.provenance import commit_of, provenance
from artesian.simulator.shifts import Shift, Shifted
from artesian.simulator.worlds import DigitWorld, Natural, Synthetic

OWN = """
from dataclasses import dataclass
from typing import ClassVar
from artesian.algorithms import FedAsync

@dataclass(frozen=True)
class Mine(FedAsync):
    name: ClassVar[str] = "mine"
"""


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module with an algorithm, one with images, and a data file, in a folder of their own."""
    (tmp_path / "own_rule.py").write_text(textwrap.dedent(OWN))
    (tmp_path / "own_images.py").write_text(
        "import numpy\nready = numpy.eye(4)[None].repeat(60, 0), numpy.arange(60) % 2"
    )
    np.savez(tmp_path / "own.npz", x=np.zeros((60, 4, 4), np.uint8), y=np.arange(60) % 2)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    images.cache_clear()
    yield tmp_path
    for name in ("own_rule", "own_images"):
        sys.modules.pop(name, None)


def settings(data: str) -> dict[str, object]:
    sizes = {"proxy_images": 10, "test_images": 10, "client_test_samples": 5, "samples_min": 5, "samples_max": 9}
    world = {"name": "rotated", "data": data, "clusters": 2, "clients": 3, **sizes}
    return {"world": world, "algorithm": {"name": "own_rule:Mine"}, "uploads": 6}


def test_the_users_modules_and_files_are_named_by_their_hashes(own: Path) -> None:
    told = provenance(build(settings("own.npz")))
    assert told["code"] == {"own_rule": {"sha256": digest(own / "own_rule.py"), "commit": None}}
    assert told["data"] == {"own.npz": digest(own / "own.npz")}


def test_a_module_that_a_setting_names_counts_too(own: Path) -> None:
    told = provenance(build(settings("own_images:ready")))
    assert set(told["code"]) == {"own_rule", "own_images"} and told["data"] == {}


def test_what_comes_with_artesian_is_nobodys_own() -> None:
    assert provenance(build({})) == {"code": {}, "data": {}}


def test_every_world_names_its_files(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARTESIAN_DATA", str(own))
    for name in ("usps", "svhn", "har"):
        (own / f"{name}.npz").touch()
    (own / "mnist").mkdir()
    for name in ("train-images-idx3-ubyte", "train-labels-idx1-ubyte.gz"):
        (own / "mnist" / name).touch()
    two = [own / "mnist" / "train-images-idx3-ubyte", own / "mnist" / "train-labels-idx1-ubyte.gz"]
    assert files_of("mnist@32") == two and files_of("digits") == []
    here = DigitWorld(("mnist+usps", "svhn", "inverted:mnist"))
    assert here.files() == [*two, own / "usps.npz", own / "svhn.npz"]
    assert Natural("har").files() == [own / "har.npz"]
    assert Shifted(Synthetic(clients=2), Shift("none")).files() == ()
    (own / "pictures" / "a").mkdir(parents=True)
    (own / "pictures" / "a" / "1.png").touch()
    assert files_of("pictures") == [Path("pictures/a/1.png")]


def test_a_run_says_what_it_was_made_from_and_warns_when_that_changed(own: Path) -> None:
    def stop(progress) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        simulate(build(settings("own.npz")), out="run", progress=stop)
    config = json.loads((own / "run" / "config.json").read_text())
    assert config["code"]["own_rule"]["sha256"] == digest(own / "own_rule.py")
    assert config["data"] == {"own.npz": digest(own / "own.npz")}
    (own / "own_rule.py").write_text(OWN + "# changed\n")
    importlib.reload(sys.modules["own_rule"])
    with pytest.warns(ChangedSince, match="The module own_rule has changed since this run began"):
        simulate(build(settings("own.npz")), out="run", resume=True)


def test_the_commit_of_a_file_is_that_of_its_tree(tmp_path: Path) -> None:
    def git(*words: str) -> str:
        who = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        return subprocess.run(["git", *who, *words], cwd=tmp_path, check=True, capture_output=True, text=True).stdout

    (tmp_path / "mine.py").write_text("x = 1")
    assert commit_of(tmp_path / "mine.py") is None
    git("init", "-q")
    git("add", "mine.py")
    git("commit", "-qm", "first")
    commit = git("rev-parse", "HEAD").strip()
    assert commit_of(tmp_path / "mine.py") == commit
    (tmp_path / "mine.py").write_text("x = 2")
    assert commit_of(tmp_path / "mine.py") == f"{commit}-dirty"
    (tmp_path / "other.py").touch()
    assert commit_of(tmp_path / "other.py") is None
