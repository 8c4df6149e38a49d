"""How clients are answered: replies compared, tasks numbered, with the plan of a training and its seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import isfinite
from typing import Any

from artesian.core import ClientId, Evidence, Reply, State, Task, derive
from artesian.engine.admission import receipt_of
from artesian.engine.drawing import shown
from artesian.engine.transition import Change
from artesian.engine.workbench import Workbench
from artesian.errors import NotFinite


def answer(bench: Workbench, change: Change, clients: Sequence[ClientId], draft: Task | None = None) -> None:
    """Give each of these clients its next task: the `draft`, or what the algorithm wants of it."""
    chosen = set(clients)
    assert len(chosen) == len(clients), f"a pace answers nobody twice: {clients}"
    for client in clients:
        member, state = change.state.members[client], shown(change.state, change.desk)
        wanted = draft or bench.algorithm.reply(state, client, _compare(bench, change, state, client))
        task = _number(bench.plan, state, client, member.number + 1, wanted)
        change.members[client] = replace(member, receipt=receipt_of(task), number=task.number)
        change.tasks[client] = task
        change.replies.append(Reply(client, task))
    waiting = tuple(client for client in change.desk.waiting if client not in chosen)
    desk = change.desk
    change.desk = replace(desk, open=desk.open + len(chosen), waiting=waiting, issued=desk.issued + len(chosen))


def _compare(bench: Workbench, change: Change, state: State, client: ClientId) -> Evidence:
    """How the replies do that a client might be given; in a replay, what was found the first time."""
    if bench.known is not None:
        found = bench.known.compared.get(client, {})
    else:
        with bench.watch("comparing"):
            found = bench.algorithm.compare(state, client, bench.proxies)
    if not all(isfinite(number) for number in found.values()):
        raise NotFinite(f"Comparing replies gave NaN or Inf: {dict(found)}", "Train at a lower rate")
    if found:
        change.compared[client] = found
        change.notes.update({name: number for name, number in found.items() if "/" not in name})
    return found


def _number(plan: Mapping[str, Any], state: State, client: ClientId, number: int, draft: Task) -> Task:
    settings = {**_cooled(plan, number), **draft.settings, "seed": derive(state.seed, client, number)}
    return replace(draft, number=number, base=state.version, settings=settings)


def _cooled(plan: Mapping[str, Any], number: int) -> dict[str, Any]:
    """The plan of a client's training of this number."""
    rest = {name: value for name, value in plan.items() if name != "cooling"}
    cooling = plan.get("cooling", 1.0)
    return rest if cooling == 1 else {**rest, "rate": rest["rate"] * cooling ** (number - 1)}
