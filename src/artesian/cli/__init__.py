"""The command line: simulate and compare, serve a federation, run a client, inspect a store."""

from artesian.cli import league, operation, operator, research  # their commands
from artesian.cli.application import app, main

__all__ = ["app", "league", "main", "operation", "operator", "research"]
