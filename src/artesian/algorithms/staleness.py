"""What a late upload is worth: one named function per published rule.

`staleness` counts what happened on the server since the task was given. Each returns a weight in (0, 1].
"""

from __future__ import annotations

from math import sqrt
from typing import Literal

Rule = Literal["constant", "polynomial", "hinge", "cdfl"]


def constant(staleness: float) -> float:
    """FedAsync: lateness does not matter."""
    return 1.0


def polynomial(staleness: float, a: float = 0.5) -> float:
    """FedAsync: (s + 1)^-a; FedBuff's 1/sqrt(1 + s) is a = 0.5."""
    return float((staleness + 1) ** -a)


def hinge(staleness: float, a: float = 10, b: float = 4) -> float:
    """FedAsync: 1 up to and including b, then 1/(a (s - b) + 1)."""
    return 1.0 if staleness <= b else 1 / (a * (staleness - b) + 1)


def cdfl(staleness: float, a: float = 10, b: float = 5) -> float:
    """CCFL and CDFL: 1 strictly below b, then 1/(a s + 1). No "- b": it drops to 1/51 at s = 5."""
    return 1.0 if staleness < b else 1 / (a * staleness + 1)


def casa(staleness: float, patience: float) -> float:
    """CASA's client level: 1 up to and including r_c, then 1/sqrt(s)."""
    return 1.0 if staleness <= patience else 1 / sqrt(staleness)


def weigh(rule: Rule, staleness: float, a: float, b: float) -> float:
    """The weight by the rule of this name, for algorithms that leave the choice to a setting."""
    match rule:
        case "constant":
            return constant(staleness)
        case "polynomial":
            return polynomial(staleness, a)
        case "hinge":
            return hinge(staleness, a, b)
        case "cdfl":
            return cdfl(staleness, a, b)
