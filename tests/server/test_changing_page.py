"""The how-to about changing a federation, run as it is written: models out of one store, into another."""

import re
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file
from typer.testing import CliRunner

from artesian import cli
from artesian.config.federations import load_federation
from artesian.errors import SettingError
from artesian.learners.arrays import SoftmaxRegression
from artesian.server.federation import Federation
from artesian.server.models_file import start_from
from artesian.server.service import Service
from artesian.storage.store import Store

HOW_TO = Path(__file__).parents[2] / "docs" / "how-to"
GROWN, WIDER = re.findall(r"```python\n(.*?)```", (HOW_TO / "change-a-running-federation.md").read_text(), re.S)
APP = re.findall(r"```python\n(.*?)```", (HOW_TO / "serve-a-federation.md").read_text(), re.S)[0]
EXPORT = re.findall(
    r"^    artesian (models export .*)$", (HOW_TO / "change-a-running-federation.md").read_text(), re.M
)[0]


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder whose modules are imported afresh."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    before = set(sys.modules)
    yield tmp_path
    for name in {"app", "grown", "wider"} & (set(sys.modules) - before):
        del sys.modules[name]


def served(federation: Federation, folder: Path) -> tuple[list[np.ndarray], int]:
    """The clusters of a federation once somebody has joined; and how long its models are."""
    service = Service.open(federation, Store(folder, federation.identity))
    try:
        (reply,) = service.coordinator.join("c0", 100)
        clusters = service.coordinator.state.clusters
        return [cluster.params for cluster in clusters.values()], len(next(iter(reply.task.models.values())))
    finally:
        service.close()


def exported(here: Path, app: str) -> dict[str, np.ndarray]:
    """The models of the page's first federation, exported from its stopped store."""
    (here / "app.py").write_text(app)
    served(load_federation("app:federation"), here / "store")
    told = CliRunner().invoke(cli.app, EXPORT.split())
    assert told.exit_code == 0, told.output
    return load_file(here / "models.safetensors")


def test_a_cluster_is_added(here) -> None:
    known = exported(here, APP)
    (here / "grown.py").write_text(GROWN)
    grown = load_federation("grown:federation")
    clusters, _ = served(grown, here / "store-3")
    assert len(clusters) == 3
    for k, params in zip(("k0", "k1"), clusters, strict=False):
        arrays = grown.model.layout.unpack(params)
        assert all((arrays[name] == known[f"{k}/{name}"]).all() for name in arrays)


def test_the_layout_is_changed(here) -> None:
    app = APP.replace("SoftmaxRegression", "Perceptron")
    known = exported(here, app)
    (here / "wider.py").write_text(WIDER)
    wider = load_federation("wider:federation")
    started = start_from(here / "models.safetensors", wider.model)
    arrays = wider.model.layout.unpack(started[1])
    assert (arrays["hidden.weight"] == known["k1/hidden.weight"]).all()
    assert arrays["output.weight"].shape == (32, 3)
    _, size = served(wider, here / "store-wide")
    assert size == wider.model.layout.size


def test_a_file_that_fits_nowhere_is_refused(here) -> None:
    exported(here, APP)
    with pytest.raises(SettingError, match="Not one parameter of"):
        start_from("models.safetensors", SoftmaxRegression(5, 4))
    (here / "other").write_bytes(b"something else")
    with pytest.raises(SettingError, match="No exported models in other"):
        start_from("other", SoftmaxRegression(2, 2))
