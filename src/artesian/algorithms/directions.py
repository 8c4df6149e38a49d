"""The directions in which FedGroup's and FlexCFL's groups set out, as server and clients both name them."""

from __future__ import annotations

from collections.abc import Mapping

from artesian.core import ClusterId
from artesian.params import Params
from artesian.storage.codec import digest

ORIGIN = "origin"  # the model from which all directions begin
DISTANCES = ("changed", "mean_abs", "sorted_w1")  # between two histograms of labels


def directions_digest(origin: Params, directions: Mapping[ClusterId, Params]) -> str:
    """A name for exactly these directions and their origin."""
    return digest({ORIGIN: origin, "directions": dict(directions)})
