"""Federated learning on tap: upload when you want to, draw back one model fitted to your data."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from artesian.algorithms import CA2FL as CA2FL
    from artesian.algorithms import CASA as CASA
    from artesian.algorithms import CDFL as CDFL
    from artesian.algorithms import CFL as CFL
    from artesian.algorithms import ICFL as ICFL
    from artesian.algorithms import IFCA as IFCA
    from artesian.algorithms import CASAPlus as CASAPlus
    from artesian.algorithms import CFLAsync as CFLAsync
    from artesian.algorithms import FedAsync as FedAsync
    from artesian.algorithms import FedAvg as FedAvg
    from artesian.algorithms import FedBuff as FedBuff
    from artesian.algorithms import FedEM as FedEM
    from artesian.algorithms import FedGroup as FedGroup
    from artesian.algorithms import FedProx as FedProx
    from artesian.algorithms import FedSoft as FedSoft
    from artesian.algorithms import FedSoftAsync as FedSoftAsync
    from artesian.algorithms import FeSEM as FeSEM
    from artesian.algorithms import FlexCFL as FlexCFL
    from artesian.algorithms import ICFLAsync as ICFLAsync
    from artesian.algorithms import IFCAAsync as IFCAAsync
    from artesian.algorithms import Local as Local
    from artesian.client.connect import connect as connect
    from artesian.client.connect import connect_async as connect_async
    from artesian.config.experiments import load as load
    from artesian.config.experiments import presets as presets
    from artesian.config.experiments import simulate as simulate
    from artesian.core import Plan as Plan
    from artesian.engine.coordinator import Coordinator as Coordinator
    from artesian.errors import ArtesianError as ArtesianError
    from artesian.params import Layout as Layout
    from artesian.simulator.experiment import Experiment as Experiment
    from artesian.simulator.fleet import Fleet as Fleet
    from artesian.simulator.pretraining import Start as Start
    from artesian.simulator.result import Run as Run
    from artesian.simulator.worlds import Rotated as Rotated

__version__ = "0.1.0"

_HOMES = {
    "CA2FL": "algorithms",
    "CASA": "algorithms",
    "CDFL": "algorithms",
    "CFL": "algorithms",
    "ICFL": "algorithms",
    "IFCA": "algorithms",
    "CASAPlus": "algorithms",
    "CFLAsync": "algorithms",
    "FeSEM": "algorithms",
    "FedAsync": "algorithms",
    "FedAvg": "algorithms",
    "FedBuff": "algorithms",
    "FedEM": "algorithms",
    "FedGroup": "algorithms",
    "FedProx": "algorithms",
    "FedSoft": "algorithms",
    "FedSoftAsync": "algorithms",
    "FlexCFL": "algorithms",
    "ICFLAsync": "algorithms",
    "IFCAAsync": "algorithms",
    "Local": "algorithms",
    "ArtesianError": "errors",
    "Coordinator": "engine.coordinator",
    "Rotated": "simulator.worlds",
    "Experiment": "simulator.experiment",
    "Fleet": "simulator.fleet",
    "Layout": "params",
    "Plan": "core",
    "Run": "simulator.result",
    "Start": "simulator.pretraining",
    "connect": "client.connect",
    "connect_async": "client.connect",
    "load": "config.experiments",
    "presets": "config.experiments",
    "simulate": "config.experiments",
}

__all__ = ["__version__", *sorted(_HOMES)]


def __getattr__(name: str) -> Any:
    """Load a public name when it is first used: `import artesian` stays light."""
    if name not in _HOMES:
        raise AttributeError(f"module 'artesian' has no attribute {name!r}")
    return getattr(importlib.import_module(f"artesian.{_HOMES[name]}"), name)
