"""Draws between uploads: what a client may take without answering its task, and how far that moved since its task.

A draw is no event. It reads the state and changes nothing: the client's next training still begins at its task's model.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import sqrt
from typing import Self

from artesian.core import Algorithm, ClientId, Desk, Member, State, Task
from artesian.engine.admission import check_welcome
from artesian.errors import NothingToDraw, UnknownClient
from artesian.params import Layout, Params, distance, norm

HEADER = "artesian-moved"
PART = re.compile(r"(distance|versions)=([0-9][0-9.e+-]{0,30})")


@dataclass(frozen=True)
class Moved:
    """How far a client's model moved on the server since the client was given one."""

    versions: int | None = None  # folds since; None: not known
    distance: float | None = None  # over the larger norm of the two models, so 0 to 2; None: they cannot be compared
    changed: bool = True  # does the server have another model for this client than the client holds?

    @property
    def header(self) -> str:
        """As an answer carries it; empty where nothing is known."""
        distance = None if self.distance is None else f"{self.distance:.6g}"
        told = {"distance": distance, "versions": self.versions}
        return ", ".join(f"{name}={value}" for name, value in told.items() if value is not None)

    @classmethod
    def of(cls, header: str) -> Self:
        """What an answer says; unknown words are skipped, as a later version may add some."""
        told = {match[1]: match[2] for part in header.split(",") if (match := PART.fullmatch(part.strip()))}
        try:
            versions = int(told["versions"]) if "versions" in told else None
            distance = float(told["distance"]) if "distance" in told else None
        except ValueError:  # not ours: nothing is known
            return cls()
        return cls(versions, distance, distance != 0)


def shown(state: State, desk: Desk) -> State:
    """The state as tasks and draws may show it: clusters that too few clients changed are as they were before."""
    if not desk.published:
        return state
    return replace(state, clusters={k: desk.published.get(k, c) for k, c in state.clusters.items()})


def check_draw(algorithm: Algorithm, client: ClientId, member: Member | None) -> None:
    """Refuse a draw of somebody who is not here, and of a method that has nothing to draw."""
    check_welcome(client, member)
    if member is None or not member.present:
        raise UnknownClient(f"Client {client} is not in the federation", "Join first")
    if algorithm.no_draw:
        problem = f"There is nothing to draw between uploads from {algorithm.name}: {algorithm.no_draw}"
        raise NothingToDraw(problem, "Use held(), and refresh() to train")


def fresh_task(algorithm: Algorithm, state: State, desk: Desk, client: ClientId) -> Task:
    """What a client may use now, as a task whose recipe says how. It has no number: nothing is asked of the client."""
    check_draw(algorithm, client, state.members.get(client))
    task = algorithm.fresh(shown(state, desk), client)
    if not task.models:
        raise NothingToDraw(f"{algorithm.name} has no model for client {client} now", "Try again later, or refresh")
    return replace(task, number=0, base=0, memo=None, solo=False, pause=False, returns=None, estimates=False)


def moved_between(layout: Layout, given: Task, now: Task, versions: int) -> Moved:
    """How far the models of `now` are from those that were given so many versions before."""
    far = _distance(layout, given, now)
    return Moved(versions, far, far != 0)


def _distance(layout: Layout, given: Task, now: Task) -> float | None:
    """The distance over the larger norm, where there are several models each by its share; None without a pair."""
    pairs = list(_pairs(given, now))
    if not pairs:
        return None
    far = sqrt(sum(share * distance(layout, old, new) ** 2 for share, old, new in pairs))
    before = sqrt(sum(share * norm(layout, old) ** 2 for share, old, _ in pairs))
    after = sqrt(sum(share * norm(layout, new) ** 2 for share, _, new in pairs))
    return far / max(before, after) if far else 0.0


def _pairs(given: Task, now: Task) -> Iterator[tuple[float, Params, Params]]:
    """Models to compare, with their shares: the only ones, or those of the same name."""
    if len(given.models) == len(now.models) == 1:
        yield 1.0, next(iter(given.models.values())), next(iter(now.models.values()))
        return
    names = [name for name in now.models if name in given.models]
    known = now.mixture or {}
    shares = {name: known.get(name, 0.0) for name in names}
    if not any(shares.values()):
        shares = dict.fromkeys(names, 1.0)
    for name, share in shares.items():
        if share:
            yield share, given.models[name], now.models[name]
