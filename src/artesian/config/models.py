"""The model an experiment names, shaped to fit the data of its world: ours in numpy or torch, or the user's own."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from functools import partial
from math import isqrt
from typing import Any, cast

from artesian.config.tables import checked, known_keys, named, value_of, verified
from artesian.core import Model
from artesian.errors import SettingError
from artesian.learners.arrays import MODELS
from artesian.learners.networks import NETWORKS, REGRESSIONS
from artesian.plugins import imported
from artesian.simulator.worlds import World

OPTIONS = (
    "device",
    "loss",
    "task",
    "share",
    "frozen",
    "shape",
    "scale",
    "precision",
    "compile",
)  # of a torch model, beside its network's own


def model_of(settings: Mapping[str, Any], world: World) -> Model:
    """The model of a table, shaped to fit the world's data."""
    name = settings.get("name", "mlp")
    framework = settings.get("framework", "numpy" if name in MODELS else "torch")
    rest = {key: value for key, value in settings.items() if key not in ("name", "framework")}
    if framework not in ("numpy", "torch"):
        raise SettingError(f"model.framework must be numpy or torch, not {framework!r}")
    if isinstance(name, str) and ":" in name:
        return _own_model(name, rest, world)
    if framework == "torch" and name in NETWORKS:
        task = "regression" if name in REGRESSIONS else "classification"
        return _network(NETWORKS[name], _fitted(NETWORKS[name], rest, world), {"task": task, **rest}, world)
    known = MODELS if framework == "numpy" and "framework" in settings else {**NETWORKS, **MODELS}
    return _array_model(name, rest, world, known)


def _array_model(name: Any, rest: dict[str, Any], world: World, known: Mapping[str, Any]) -> Model:
    kind = MODELS.get(name)
    sizes = {"features": world.features, "classes": world.classes}
    shape = {f.name: sizes[f.name] for f in fields(kind) if f.name in sizes} if kind else {}
    _check_fit(rest, shape)
    model: Model = named({"name": name, **rest, **shape}, known, "model", "mlp")
    return model


def _own_model(name: str, rest: dict[str, Any], world: World) -> Model:
    """A model of the user's, or a network of theirs: a class or function that gives an nn.Module."""
    kind = imported(name, {**NETWORKS, **MODELS}, "model")
    if is_dataclass(kind) or not callable(kind):
        return cast(Model, verified(value_of(kind, rest, "model"), name, "model"))
    named = _parameters(kind)
    own = {key: value for key, value in rest.items() if key not in OPTIONS or key in named}
    missing = [key for key, parameter in named.items() if parameter.default is parameter.empty and key not in own]
    own |= {key: _of_data(key, world) for key in missing if key in ("features", "classes", "channels", "size")}
    made = checked("model", lambda: kind(**own))
    if not _is_module(made):
        known_keys(set(rest) - set(own), named, "model")
        return cast(Model, verified(made, name, "model"))
    shape = {} if world.shape is None else {"shape": world.shape}
    return _network(kind, own, {**shape, **{k: v for k, v in rest.items() if k not in own}}, world)


def _network(make: Callable[..., Any], own: dict[str, Any], settings: Mapping[str, Any], world: World) -> Model:
    """A torch model: `own` are the settings of the network, the options among `settings` the rest."""
    from artesian.learners.torch import TorchModel

    options = {key: settings[key] for key in OPTIONS if key in settings}
    if isinstance(loss := options.get("loss"), str):
        options["loss"] = imported(loss, {}, "model.loss")
        if inspect.isclass(options["loss"]):
            options["loss"] = checked("model.loss", lambda: options["loss"](reduction="none"))
    if "channels" in _parameters(make) and "shape" not in options:
        options["shape"] = _image(world)
    checked("model", lambda: make(**own))
    return checked("model", lambda: TorchModel(partial(make, **own), **options))


def _fitted(make: Callable[..., Any], rest: Mapping[str, Any], world: World) -> dict[str, Any]:
    """The settings of a network of ours, its sizes taken from the data."""
    named = _parameters(make)
    own = {key: value for key, value in rest.items() if key not in OPTIONS}
    known_keys(own, [*named, *OPTIONS], "model")
    sizes = {key: _of_data(key, world) for key in ("features", "classes", "channels", "size") if key in named}
    _check_fit(own, sizes)
    return {**own, **sizes}


def _check_fit(settings: Mapping[str, Any], sizes: Mapping[str, int]) -> None:
    for key, value in sizes.items():
        if settings.get(key, value) != value:
            raise SettingError(f"model.{key} is {settings[key]!r}, but the data have {value}", "Leave it out")


def _of_data(key: str, world: World) -> int:
    """A size that a network wants to know."""
    if key == "features":
        return world.features
    if key == "classes":
        return world.classes
    channels, height, width = _image(world)
    if key == "size" and height != width:
        raise SettingError(f"The network takes square images, not {height} x {width}", "Crop them")
    return channels if key == "channels" else height


def _image(world: World) -> tuple[int, int, int]:
    """Channels, height and width: the world's `shape`, or what its number of features suggests."""
    if world.shape is not None:
        return world.shape
    for channels in (1, 3):
        side = isqrt(world.features // channels)
        if channels * side * side == world.features:
            return channels, side, side
    raise SettingError(
        f"The network takes images, but a sample of this world is {world.features} numbers",
        "Give the world a shape: channels, height, width",
    )


def _parameters(make: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(make).parameters
    except (TypeError, ValueError):
        return {}


def _is_module(value: Any) -> bool:
    """Whether a value is an nn.Module; without torch loaded, nothing is."""
    if "torch" not in sys.modules:
        return False
    from artesian.learners.torch import is_network

    return is_network(value)
