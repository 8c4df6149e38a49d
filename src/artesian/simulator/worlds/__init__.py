"""Worlds: where clients' data come from, and how they change. A world hands out arrays, never models."""

from artesian.simulator.worlds.digits import DigitWorld
from artesian.simulator.worlds.labels import FewClasses, LabelGroups
from artesian.simulator.worlds.linear import Linear
from artesian.simulator.worlds.natural import Natural
from artesian.simulator.worlds.relabelled import Relabelled
from artesian.simulator.worlds.rotated import Rotated
from artesian.simulator.worlds.synthetic import Synthetic
from artesian.simulator.worlds.visit import Concept, Numbered, Visit, World

KINDS: tuple[type[World], ...] = (Rotated, Relabelled, LabelGroups, FewClasses, Natural, Synthetic, Linear, DigitWorld)
WORLDS: dict[str, type[World]] = {kind.name: kind for kind in KINDS}

__all__ = [
    "WORLDS",
    "Concept",
    "DigitWorld",
    "FewClasses",
    "LabelGroups",
    "Linear",
    "Natural",
    "Numbered",
    "Relabelled",
    "Rotated",
    "Synthetic",
    "Visit",
    "World",
]
