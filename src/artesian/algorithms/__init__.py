"""Every algorithm, one line each: a new one is a new line here.

From these lines come `ALGORITHMS`, the table by name, and the names of the package: `artesian.CDFL`.
"""

from inspect import isclass
from typing import Any

from artesian.algorithms.ca2fl import CA2FL as CA2FL
from artesian.algorithms.casa import CASA as CASA
from artesian.algorithms.casa import CASAPlus as CASAPlus
from artesian.algorithms.cdfl import CDFL as CDFL
from artesian.algorithms.cfl import CFL as CFL
from artesian.algorithms.cfl import CFLAsync as CFLAsync
from artesian.algorithms.confluence import Confluence as Confluence
from artesian.algorithms.ditto import Ditto as Ditto
from artesian.algorithms.fedasync import FedAsync as FedAsync
from artesian.algorithms.fedavg import FedAvg as FedAvg
from artesian.algorithms.fedbuff import FedBuff as FedBuff
from artesian.algorithms.fedem import FedEM as FedEM
from artesian.algorithms.fedmerge import FedMerge as FedMerge
from artesian.algorithms.fedmerge import FedMergeAsync as FedMergeAsync
from artesian.algorithms.fedprox import FedProx as FedProx
from artesian.algorithms.fedrep import FedRep as FedRep
from artesian.algorithms.fedsoft import FedSoft as FedSoft
from artesian.algorithms.fedsoft_async import FedSoftAsync as FedSoftAsync
from artesian.algorithms.fesem import FeSEM as FeSEM
from artesian.algorithms.flexcfl import FedGroup as FedGroup
from artesian.algorithms.flexcfl import FlexCFL as FlexCFL
from artesian.algorithms.icfl import ICFL as ICFL
from artesian.algorithms.icfl import ICFLAsync as ICFLAsync
from artesian.algorithms.ifca import IFCA as IFCA
from artesian.algorithms.ifca_async import IFCAAsync as IFCAAsync
from artesian.algorithms.local import Local as Local
from artesian.algorithms.scaffold import SCAFFOLD as SCAFFOLD
from artesian.core import Algorithm

_KINDS: list[Any] = [kind for kind in vars().values() if isclass(kind) and kind.__module__.startswith(__name__)]
ALGORITHMS: dict[str, type[Algorithm]] = {kind.name: kind for kind in _KINDS}
