"""What an operator decides about a member: revoked, reset, in quarantine or released."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Literal

from artesian.core import ClientId, Member
from artesian.engine.transition import Change
from artesian.errors import UnknownClient

Standing = Literal["revoke", "reset", "quarantine", "release"]
QUARANTINED = "its member is in quarantine"  # why an upload is not folded
HOLDS: Mapping[Standing, Callable[[Member], bool]] = {
    "revoke": lambda member: member.revoked,
    "reset": lambda member: member.reset and not member.revoked,
    "quarantine": lambda member: member.quarantined,
    "release": lambda member: not member.quarantined,
}


def change_standing(change: Change, kind: Standing, client: ClientId) -> None:
    """Make a decision about a member part of a change."""
    if client not in change.state.members:
        _judge_retired(change, kind, client)
        return
    if kind in ("revoke", "reset"):
        take_out(change, client)
    if kind == "quarantine":
        pending = tuple(m for m in change.desk.pending if m.upload.client != client)
        change.desk = replace(change.desk, pending=pending)
    change.members[client] = _judged(change.state.members[client], kind)


def take_out(change: Change, client: ClientId) -> None:
    """The client is not here any more: its open task is withdrawn, and it waits for none."""
    member, desk = change.state.members[client], change.desk
    waiting = tuple(other for other in desk.waiting if other != client)
    change.desk = replace(desk, open=desk.open - (member.receipt is not None), waiting=waiting)
    change.tasks[client] = None
    change.state = replace(change.state, present=change.state.present - member.present)
    change.members[client] = replace(member, receipt=None, present=False)


def _judged(member: Member, kind: Standing) -> Member:
    match kind:
        case "revoke":
            return replace(member, revoked=True, reset=False)
        case "reset":
            return replace(member, revoked=False, reset=True)
        case _:
            return replace(member, quarantined=kind == "quarantine")


def _judge_retired(change: Change, kind: Standing, client: ClientId) -> None:
    """A forgotten name can be closed and opened again; there is nothing else to it."""
    if kind not in ("revoke", "reset"):
        raise UnknownClient(f"Client {client} was forgotten", "Wait until it joins again")
    retired = {**change.desk.retired, client: _judged(change.desk.retired[client], kind)}
    change.desk = replace(change.desk, retired=retired)
