"""Every algorithm by name: an explicit table, no discovery."""

from __future__ import annotations

from artesian.algorithms.ca2fl import CA2FL
from artesian.algorithms.casa import CASA, CASAPlus
from artesian.algorithms.cdfl import CDFL
from artesian.algorithms.fedasync import FedAsync
from artesian.algorithms.fedavg import FedAvg
from artesian.algorithms.fedbuff import FedBuff
from artesian.algorithms.fedprox import FedProx
from artesian.algorithms.fedsoft_async import FedSoftAsync
from artesian.algorithms.local import Local
from artesian.core import Algorithm

ALGORITHMS: dict[str, type[Algorithm]] = {
    kind.name: kind for kind in (CA2FL, CASA, CASAPlus, CDFL, FedAsync, FedAvg, FedBuff, FedProx, FedSoftAsync, Local)
}

__all__ = [
    "ALGORITHMS",
    "CA2FL",
    "CASA",
    "CDFL",
    "CASAPlus",
    "FedAsync",
    "FedAvg",
    "FedBuff",
    "FedProx",
    "FedSoftAsync",
    "Local",
]
