"""Federated learning on tap: upload when you want to, draw back one model fitted to your data.

The public names are listed in `__init__.pyi`, and the algorithms among them in `algorithms/__init__.py`: a new name is
a new line there. Each is imported when it is first used, so that `import artesian` stays light.
"""

import importlib
import os

__version__ = "0.1.0"


def _homes(*file: str) -> dict[str, str]:
    """Public names and their modules, from the lines `from MODULE import NAME as NAME` of a file of this package."""
    with open(os.path.join(__path__[0], *file), encoding="utf-8") as lines:
        words = [line.split() for line in lines]
    return {line[3]: line[1] for line in words if line[:1] == ["from"] and line[4:] == ["as", line[3]]}


_HOMES = _homes("__init__.pyi") | _homes("algorithms", "__init__.py")
__all__ = ["__version__", *sorted(_HOMES)]


def __getattr__(name: str) -> object:
    """Load a public name when it is first used."""
    if name not in _HOMES:
        raise AttributeError(f"module 'artesian' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    """The public names, for completion."""
    return sorted({*globals(), *__all__})
