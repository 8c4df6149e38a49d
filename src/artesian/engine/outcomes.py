"""What came of an event, as digests small enough to record: a replay that gives other ones is not the same."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any

from artesian.core import State, Task
from artesian.engine.transition import Change
from artesian.storage.codec import digest, fingerprint

TASK_0 = ("models", "recipe", "settings", "mixture", "solo", "pause", "memo", "number", "base")  # its fields at first
TASK_1 = (*TASK_0, "returns", "estimates")  # and when outcomes began to be recorded
Outcome = Mapping[str, str]  # what was given or changed, and the digest of it


def outcome_of(before: State, change: Change) -> dict[str, str]:
    """The tasks an event gives and the clusters it changes, each by its digest."""
    changed = {k: c for k, c in change.state.clusters.items() if c is not before.clusters.get(k)}
    tasks = {f"task of {reply.client}": task_digest(reply.task) for reply in change.replies}
    return tasks | {f"cluster {k}": fingerprint(cluster.params) for k, cluster in changed.items()}


def task_digest(task: Task) -> str:
    """A name for exactly this task. Fields at their default are left out: a later version may have more of them."""
    told = {f.name: value for f in fields(task) if not _is_default(value := getattr(task, f.name), f.default)}
    return digest(told)


def receipt_digests(task: Task) -> set[str]:
    """The digests that receipts of this task have, or had when tasks had fewer fields: all that old events hold."""
    return {digest({name: getattr(task, name) for name in names}) for names in (TASK_0, TASK_1)}


def different(recorded: Outcome, found: Outcome) -> list[str]:
    """What is not as it was recorded; nothing where nothing was recorded."""
    names = sorted({*recorded, *found}) if recorded else []
    return [name for name in names if recorded.get(name) != found.get(name)]


def _is_default(value: Any, default: Any) -> bool:
    return default is not MISSING and type(value) is type(default) and bool(value == default)
