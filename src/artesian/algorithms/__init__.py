"""Every algorithm by name: an explicit table, no discovery."""

from __future__ import annotations

from artesian.algorithms.ca2fl import CA2FL
from artesian.algorithms.cdfl import CDFL
from artesian.algorithms.fedasync import FedAsync
from artesian.algorithms.fedavg import FedAvg
from artesian.algorithms.fedbuff import FedBuff
from artesian.algorithms.fedprox import FedProx
from artesian.algorithms.fedsoft_async import FedSoftAsync
from artesian.algorithms.flexcfl import FedGroup, FlexCFL
from artesian.algorithms.local import Local
from artesian.core import Algorithm

ALGORITHMS: dict[str, type[Algorithm]] = {
    kind.name: kind
    for kind in (CA2FL, CDFL, FedAsync, FedAvg, FedBuff, FedGroup, FedProx, FedSoftAsync, FlexCFL, Local)
}

__all__ = [
    "ALGORITHMS",
    "CA2FL",
    "CDFL",
    "FedAsync",
    "FedAvg",
    "FedBuff",
    "FedGroup",
    "FedProx",
    "FedSoftAsync",
    "FlexCFL",
    "Local",
]
