"""Worlds: where clients' data come from, and how they change. A world hands out arrays, never models."""

from artesian.simulator.world.digits import DigitWorld
from artesian.simulator.world.labels import FewClasses, LabelGroups
from artesian.simulator.world.linear import Linear
from artesian.simulator.world.natural import Natural
from artesian.simulator.world.rotated import Rotated
from artesian.simulator.world.synthetic import Synthetic
from artesian.simulator.world.visit import Visit, World

KINDS: tuple[type[World], ...] = (Rotated, LabelGroups, FewClasses, Natural, Synthetic, Linear, DigitWorld)
WORLDS: dict[str, type[World]] = {kind.name: kind for kind in KINDS}

__all__ = [
    "WORLDS",
    "DigitWorld",
    "FewClasses",
    "LabelGroups",
    "Linear",
    "Natural",
    "Rotated",
    "Synthetic",
    "Visit",
    "World",
]
