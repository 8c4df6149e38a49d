"""Which code turns events into states: the versions that a store records of whoever writes it."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

import numpy as np

import artesian
from artesian.core import Algorithm

FOLDING = ("core.py", "params.py", "engine", "algorithms")  # of the package: everything a fold may run
OTHERS = ("builtins", "typing")  # classes of Python itself


def versions_of(algorithm: Algorithm) -> dict[str, str]:
    """The versions of artesian and numpy, and a digest of the source of the algorithm and of all that folds with it."""
    return {"artesian": artesian.__version__, "numpy": np.__version__, "algorithm": _source(algorithm)}


def _source(algorithm: Algorithm) -> str:
    root = Path(artesian.__file__).parent
    files = {path for name in FOLDING for path in [root / name, *(root / name).rglob("*.py")] if path.suffix == ".py"}
    digests = sorted(hashlib.sha256(path.read_bytes()).hexdigest() for path in files | _own(algorithm))
    return hashlib.sha256(" ".join(digests).encode()).hexdigest()[:16]


def _own(algorithm: Algorithm) -> set[Path]:
    """The files that define the algorithm and what it inherits; one made at a prompt has none."""
    modules = [vars(sys.modules[kind.__module__]) for kind in type(algorithm).__mro__ if kind.__module__ not in OTHERS]
    return {Path(module["__file__"]) for module in modules if module.get("__file__")}
