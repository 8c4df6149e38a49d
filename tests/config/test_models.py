"""Models by name in an experiment: numpy's, the papers' networks, own ones; and torch stays out until asked for."""

import subprocess
import sys

import numpy as np
import pytest

from artesian.config.experiments import load, simulate
from artesian.errors import SettingError
from artesian.learners.arrays import LinearRegression, Perceptron

OWN = """
from torch import nn
import torch

class Small(nn.Module):
    def __init__(self, classes, width=3):
        super().__init__()
        self.conv = nn.Conv2d(1, width, 3)
        self.output = nn.Linear(width * 36, classes)

    def forward(self, x):
        return self.output(self.conv(x).relu().flatten(1))

def flat(features, classes):
    return nn.Linear(features, classes)

def absolute(output, y):
    return (output[:, 0] - y).abs()
"""


def fresh(code: str, cwd) -> str:
    """What a new interpreter says."""
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=cwd, check=False)
    assert told.returncode == 0, told.stderr
    return told.stdout.strip().splitlines()[-1]


# without torch


@pytest.mark.heavy
def test_the_presets_run_without_torch(tmp_path) -> None:
    code = """
import sys, artesian
artesian.simulate("digits-2", uploads=3)
artesian.simulate("digits-4", uploads=3)
print([name for name in sys.modules if name.partition(".")[0] == "torch"])
"""
    assert fresh(code, tmp_path) == "[]"


@pytest.mark.heavy
def test_serving_a_numpy_federation_and_the_help_do_without_torch(tmp_path) -> None:
    (tmp_path / "app.py").write_text("""
from artesian import FedAsync
from artesian.learners.arrays import SoftmaxRegression
from artesian.server.federation import Federation
federation = Federation(SoftmaxRegression(2, 2), FedAsync())
""")
    code = """
import sys
from pathlib import Path
from artesian.config.federations import load_federation
from artesian.server.app import create_app
from artesian.server.service import Service
from artesian.storage.store import Store
federation = load_federation("app:federation")
service = Service.open(federation, Store(Path("store"), federation.identity))
create_app(service)
service.close()
from artesian.cli import app
try:
    app(["--help"])
except SystemExit:
    pass
print([name for name in sys.modules if name.partition(".")[0] == "torch"])
"""
    assert fresh(code, tmp_path) == "[]"


@pytest.mark.heavy
@pytest.mark.parametrize("name", ["mclr", "cnn", "artesian.learners.networks:mclr"])
def test_a_missing_torch_is_answered_with_its_pip_command(tmp_path, name) -> None:
    code = f"""
import sys
class NoTorch:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, NoTorch())
from artesian.errors import MissingExtra
from artesian.config.experiments import load
try:
    load("digits-2", ["model.name={name}"])
except MissingExtra as error:
    print(error)
"""
    assert fresh(code, tmp_path) == "This needs the package torch. Install it: pip install 'artesian[torch]'"


def test_names_of_both_kinds_are_known_without_torch() -> None:
    assert isinstance(load("digits-2").model, Perceptron)
    assert isinstance(load("digits-2", ["model.name=linear"]).model, LinearRegression)
    assert isinstance(load("digits-2", ["model.framework=numpy"]).model, Perceptron)
    for changes, words in {
        ("model.name=resnet81",): "Did you mean 'resnet18'",
        ("model.name=cnn", "model.framework=numpy"): "Choose one of: linear, mlp, softmax",
        ("model.framework=jax",): "model.framework must be numpy or torch, not 'jax'",
        ("model.name=3",): "model.name must be a text",
        ("model.device=cpu",): r"\[model\] has no setting 'device'",
    }.items():
        with pytest.raises(SettingError, match=words):
            load("digits-2", list(changes))


# with torch


@pytest.fixture
def torch():
    return pytest.importorskip("torch", reason="torch is not installed")


@pytest.fixture
def own(torch, tmp_path, monkeypatch):
    (tmp_path / "own_networks.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("own_networks", None)


def model(*changes: str):
    return load("digits-2", [f"model.{change}" for change in changes]).model


def test_a_network_takes_its_sizes_from_the_data(torch, tmp_path) -> None:
    found = model("name=resnet18")
    assert (found.shape, found.task, found.device) == ((1, 8, 8), "classification", "auto")
    entries = {entry.name: entry.shape for entry in found.layout.entries}
    assert entries["conv.weight"] == (64, 1, 3, 3)
    assert entries["output.weight"] == (10, 512)
    x = np.zeros((900, 28, 28), np.uint8)
    np.savez(tmp_path / "mine.npz", x=x, y=np.arange(900) % 10)
    large = load("digits-2", [f"world.data={tmp_path / 'mine.npz'}", "model.name=cnn"]).model
    assert large.layout.trainable == 582_026
    assert model("name=mlp", "framework=torch", "hidden=[20, 5]").layout.trainable == 65 * 20 + 21 * 5 + 60
    assert model("name=linear", "framework=torch").task == "regression"
    assert model("name=mclr", "frozen=['dense.bias']").layout.trainable == 640


def test_mistakes_about_networks_are_named(torch) -> None:
    for changes, words in {
        ("name=cnn",): "size = 8 is too small",
        ("name=mclr", "classes=3"): "model.classes is 3, but the data have 10",
        ("name=mclr", "deviec='cpu'"): "Did you mean 'device'",
        ("name=mclr", "device=gpu"): "device is one of auto, cpu, cuda, mps, not 'gpu'",
        ("name=mclr", "loss=torch.nn.functional:no"): "The model.loss .* could not be imported",
        ("name=mlp", "framework=torch", "hidden=[0]"): r"hidden\[0\] is a whole number from 1 on",
        ("name=mclr", "share=3"): "share",
    }.items():
        with pytest.raises(SettingError, match=words):
            model(*changes)


@pytest.mark.heavy
def test_a_network_runs_by_its_name_with_the_same_bits_anywhere(torch) -> None:
    changes = ["model.name=mclr", "uploads=12", "world.clients=4", "start.trunk_epochs=1"]
    one, two = (simulate("digits-2", changes=changes, workers=workers) for workers in (0, 1))
    assert one.params["k0"].tobytes() == two.params["k0"].tobytes()
    assert one.summary["client_after"] > 0.3


def test_a_network_of_ones_own(own) -> None:
    found = model("name=own_networks:Small", "width=5", "device=cpu", "loss=torch.nn:CrossEntropyLoss")
    assert found.make.keywords == {"classes": 10, "width": 5}
    assert (found.device, found.shape, found.loss.reduction) == ("cpu", (1, 8, 8), "none")
    x, y = np.zeros((3, 64), np.float32), np.zeros(3, np.int64)
    assert found.learner(x, y).losses(found.start(0)).shape == (3,)
    flat = model("name=own_networks:flat", "shape=[64]", "task=regression", "loss=own_networks:absolute")
    assert flat.make.keywords == {"features": 64, "classes": 10}
    assert flat.learner(x, y).losses(flat.start(0)).shape == (3,)
    with pytest.raises(SettingError, match="unexpected keyword argument 'depth'"):
        model("name=own_networks:Small", "depth=2")


def test_a_world_without_a_shape_is_guessed_at(torch) -> None:
    from artesian.config import models as modelling

    class World:
        features, classes, shape = 27, 2, None

    assert modelling._image(World()) == (3, 3, 3)
    World.features = 16
    assert modelling._image(World()) == (1, 4, 4)
    World.features = 20
    with pytest.raises(SettingError, match="a sample of this world is 20 numbers"):
        modelling._image(World())
    World.shape = (1, 4, 5)
    with pytest.raises(SettingError, match="square images, not 4 x 5"):
        modelling._of_data("size", World())
