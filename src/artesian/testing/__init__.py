"""One conformance suite for every algorithm, ours and yours: `check_algorithm(MyAlgorithm())`.

It drives a toy federation whose models hold trainable entries, a floating buffer and an integer counter, so
that every rule of the engine is met: pure, deterministic, restored from bytes after every event, retries folded once,
strangers and bad uploads refused without a trace, and the same bits simulated and over HTTP.
"""

from __future__ import annotations

from artesian.testing.checks import CHECKS, check_algorithm
from artesian.testing.inprocess import InProcess
from artesian.testing.toy import ToyFederation, ToyLearner, ToyModel, ToyWorld

__all__ = ["CHECKS", "InProcess", "ToyFederation", "ToyLearner", "ToyModel", "ToyWorld", "check_algorithm"]
