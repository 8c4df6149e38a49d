"""The command line: simulate and compare, serve and look after a store, be a client, and look around."""

from artesian.cli import operation, research  # their commands
from artesian.cli.application import app, main

__all__ = ["app", "main", "operation", "research"]
