"""Every algorithm by name: an explicit table, no discovery."""

from __future__ import annotations

from artesian.algorithms.ca2fl import CA2FL
from artesian.algorithms.casa import CASA, CASAPlus
from artesian.algorithms.cdfl import CDFL
from artesian.algorithms.cfl import CFL, CFLAsync
from artesian.algorithms.fedasync import FedAsync
from artesian.algorithms.fedavg import FedAvg
from artesian.algorithms.fedbuff import FedBuff
from artesian.algorithms.fedem import FedEM
from artesian.algorithms.fedprox import FedProx
from artesian.algorithms.fedsoft import FedSoft
from artesian.algorithms.fedsoft_async import FedSoftAsync
from artesian.algorithms.fesem import FeSEM
from artesian.algorithms.flexcfl import FedGroup, FlexCFL
from artesian.algorithms.icfl import ICFL, ICFLAsync
from artesian.algorithms.ifca import IFCA
from artesian.algorithms.ifca_async import IFCAAsync
from artesian.algorithms.local import Local
from artesian.core import Algorithm

ALGORITHMS: dict[str, type[Algorithm]] = {
    kind.name: kind
    for kind in (
        CA2FL,
        CASA,
        CASAPlus,
        CDFL,
        CFL,
        CFLAsync,
        FedAsync,
        FedAvg,
        FedBuff,
        FedEM,
        FedGroup,
        FedProx,
        FedSoft,
        FedSoftAsync,
        FeSEM,
        FlexCFL,
        ICFL,
        ICFLAsync,
        IFCA,
        IFCAAsync,
        Local,
    )
}

__all__ = [
    "ALGORITHMS",
    "CA2FL",
    "CASA",
    "CDFL",
    "CFL",
    "ICFL",
    "IFCA",
    "CASAPlus",
    "CFLAsync",
    "FeSEM",
    "FedAsync",
    "FedAvg",
    "FedBuff",
    "FedEM",
    "FedGroup",
    "FedProx",
    "FedSoft",
    "FedSoftAsync",
    "FlexCFL",
    "ICFLAsync",
    "IFCAAsync",
    "Local",
]
