"""What an optimiser remembers between two steps, as arrays by name: SGD's velocity, Adam's moments and step count."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np

from artesian.core import OptimizerState, Plan
from artesian.errors import StartedAfresh
from artesian.params import seal


def opening_state(plan: Plan, size: int, kept: OptimizerState) -> dict[str, Any]:
    """What the plan's optimiser begins a training of so many numbers with: a copy of what was kept, or zeros."""
    fresh = _fresh(plan, size)
    if not usable(kept, fresh):
        return fresh
    return {name: np.array(value) if isinstance(value, np.ndarray) else value for name, value in kept.items()}


def closing_state(state: Mapping[str, Any]) -> OptimizerState:
    """What is kept of a state that nobody changes any more."""
    return {name: seal(value) if isinstance(value, np.ndarray) else value for name, value in state.items()}


def usable(kept: OptimizerState, fresh: OptimizerState) -> bool:
    """Can an optimiser whose fresh state is this one go on from the kept one? A warning where it cannot."""
    if not kept:
        return False
    fits = _form(kept) == _form(fresh)
    if not fits:
        problem = "What this client kept of its optimiser belongs to another optimiser or another model"
        warnings.warn(StartedAfresh(f"{problem}; the optimiser starts afresh"), stacklevel=3)
    return fits


def _fresh(plan: Plan, size: int) -> dict[str, Any]:
    if plan.optimizer == "adam":
        return {"steps": 0, "first": np.zeros(size, np.float32), "second": np.zeros(size, np.float32)}
    return {"velocity": np.zeros(size, np.float32)} if plan.momentum else {}


def _form(state: OptimizerState) -> dict[str, Any]:
    """The names of a state with the kinds of their values."""
    return {n: (v.shape, v.dtype) if isinstance(v, np.ndarray) else type(v) for n, v in state.items()}
