"""The demo: a real server, real clients whose data drift, a kill in the middle, and a check that nothing was lost."""

from __future__ import annotations

from importlib.util import find_spec

from artesian.errors import MissingExtra

PACKAGES = {
    "sklearn": "scikit-learn",
    "threadpoolctl": "threadpoolctl",
    "stamina": "stamina",
    "fastapi": "fastapi",
    "uvicorn": "uvicorn",
    "sqlalchemy": "sqlalchemy",
}  # modules of the extras sim, client and server, and what installs them


def check_extras() -> None:
    """All that the demo needs is there; what is missing comes with one command."""
    for module, package in PACKAGES.items():
        if find_spec(module) is None:
            raise MissingExtra(package, "sim,client,server")
