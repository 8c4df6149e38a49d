"""Worlds: where clients' data come from, and how they change. A world hands out arrays, never models."""

from artesian.simulator.world.rotated import Rotated
from artesian.simulator.world.visit import Visit, World

WORLDS: dict[str, type[World]] = {Rotated.name: Rotated}

__all__ = ["WORLDS", "Rotated", "Visit", "World"]
