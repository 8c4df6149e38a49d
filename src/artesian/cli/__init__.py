"""The command line: simulate and compare, serve a federation, run a client, inspect a store."""

from artesian.cli import dashboard, league, operation, operator, research  # their commands
from artesian.cli.application import app, main

__all__ = ["app", "dashboard", "league", "main", "operation", "operator", "research"]
