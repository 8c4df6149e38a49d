"""What a change is worked out with: the algorithm and its settings, the proxy sets, and who watches and helps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from artesian.core import Algorithm, ClusterId, Event, Learner, Tree
from artesian.engine.defence import Defence
from artesian.engine.judge import Judge

Found = Mapping[str, Tree]
Beside = Callable[[Callable[[], Found]], Callable[[], Found]]  # begins some work; what it returns waits for the result
Watch = Callable[[str], AbstractContextManager[object]]  # goes around a part of the work, given its name


@dataclass(frozen=True)
class Workbench:
    """What is in force at one event."""

    algorithm: Algorithm
    proxies: Mapping[ClusterId, Learner]
    plan: Mapping[str, Any]  # of trainings
    publish_after: int  # how many clients must have changed a cluster before tasks show it
    movers: bool  # does only who moved a cluster count as having changed it?
    defence: Defence | None
    judge: Callable[[], Judge]  # made when it is first asked for
    beside: Beside  # begins a study
    watch: Watch
    known: Event | None  # in a replay: what was found the first time
