"""The hyper-parameters of a federation: what may change from one start of a server to the next, and what it needs."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import is_dataclass
from typing import Any

from artesian.core import Algorithm, ClusterId, Learner, Tree
from artesian.engine.defence import Defence
from artesian.errors import SettingError
from artesian.storage.codec import plain_fields


def check_proxies(algorithm: Algorithm, clusters: Collection[ClusterId], proxies: Mapping[ClusterId, Learner]) -> None:
    """An algorithm that measures clusters on proxy sets needs one for each, and none of them empty."""
    if not algorithm.needs_proxies(len(clusters)):
        return
    for k in clusters:
        if k not in proxies or proxies[k].samples == 0:
            raise SettingError(
                f"{algorithm.name} needs a proxy set for every cluster, and {k} has none",
                "Give proxies for every cluster",
            )


def hyper_parameters(
    algorithm: Algorithm,
    plan: Mapping[str, Any],
    clip: float | None,
    publish_after: int,
    defence: Defence | None = None,
    movers: bool = True,
) -> dict[str, Any]:
    """What may change from one start of a server to the next, as a tree.

    `movers` says who counts for `publish_after`; it is left out where that is 1 and nobody is counted.
    """
    own: dict[str, Tree] = plain_fields(algorithm) if is_dataclass(algorithm) else {}
    found = {"algorithm": own, "plan": dict(plan), "clip": clip, "publish_after": publish_after}
    counting = {"movers": movers} if publish_after > 1 else {}
    return found | counting | {"defence": None if defence is None else defence.tree}
