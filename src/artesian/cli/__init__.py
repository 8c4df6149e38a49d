"""The command line: simulate and compare, serve a federation, run a client, inspect a store."""

from artesian.cli import operation  # isort: skip  # the commands, in the order in which --help lists them
from artesian.cli import credentials, stores  # isort: skip
from artesian.cli import operator, research  # isort: skip
from artesian.cli import dashboard, league  # isort: skip
from artesian.cli.application import app, main

__all__ = ["app", "credentials", "dashboard", "league", "main", "operation", "operator", "research", "stores"]
