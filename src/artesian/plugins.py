"""A user's own code by name: `module:name`, found on Python's path or in the present folder."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping
from typing import Any

from artesian.errors import SettingError, nearest


def imported(name: str, known: Mapping[str, Any], what: str) -> Any:
    """What `module:name` stands for; modules are found from the present folder too."""
    module, colon, attribute = name.partition(":")
    if not colon and known:
        raise SettingError(f"{what}.name is {name!r}, which is unknown", nearest(name, known))
    if not colon:
        raise SettingError(f"{name!r} does not say where the {what} is", f"Write it as MODULE:NAME, such as app:{what}")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        return getattr(importlib.import_module(module), attribute)
    except Exception as error:  # the user's module may fail in any way
        problem = f"The {what} {name!r} could not be imported ({type(error).__name__}: {error})"
        raise SettingError(problem, "Check the path and the module") from None
