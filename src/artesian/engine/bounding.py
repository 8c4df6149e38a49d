"""Uploads within the operator's bounds: clipped, counted and entered in the ledger; without bounds, as they are."""

from __future__ import annotations

from dataclasses import replace

from artesian.core import ClientId, Desk, Measured, Member, State, Task, Upload
from artesian.engine.admission import clip_upload, origins_of
from artesian.engine.defence import NO_BUDGET, WHOLE, Bounded, Defence, bounded, noted, running_mean
from artesian.engine.transition import Change


def within_bounds(
    upload: Upload, task: Task, member: Member, state: State, desk: Desk, clip: float | None, defence: Defence | None
) -> Bounded:
    """The upload within the operator's clip and the bounds of the defence."""
    if clip is not None:
        upload = clip_upload(state.layout, upload, origins_of(state.layout, upload, task), clip)
    if defence is None:
        return Bounded(upload)
    return bounded(defence, state.layout, upload, task, desk.ledger, member, state.present)


def counted(defence: Defence | None, desk: Desk, client: ClientId, claimed: int) -> int:
    """How many of the samples count that a client claims."""
    return claimed if defence is None else defence.counted(claimed, desk.ledger, client)


def desk_noting(defence: Defence | None, desk: Desk, client: ClientId, samples: int, length: float = 0.0) -> Desk:
    """The desk, its ledger with a member's newest numbers."""
    return desk if defence is None else replace(desk, ledger=noted(desk.ledger, client, samples, length))


def spend(defence: Defence | None, change: Change, measured: Measured, member: Member, present: int) -> None:
    """Count an upload that is taken, and what it takes from the budget of its member, as that was before.

    What it spends is its length in usual changes, which counts in the mean of that member. One who had uploads set
    aside counts as late until it brought a whole usual change, or its budget came back: else a tiny upload would make
    the next one fresh.
    """
    if defence is None:
        return
    client, ledger = measured.upload.client, change.desk.ledger
    if measured.aside:
        if defence.pace and measured.aside == NO_BUDGET and member.since is None:
            change.members[client] = replace(change.members[client], since=measured.receipt.base)
        return
    outstanding = defence.outstanding(ledger, member, present)
    since = None if measured.spent >= WHOLE or not outstanding else member.since
    ledger = defence.turned(ledger, member, present, measured.spent)
    change.desk = replace(change.desk, ledger=ledger)
    stride = running_mean(member.stride, measured.spent) if defence.stride and measured.spent else member.stride
    change.members[client] = replace(
        change.members[client],
        spent=outstanding + measured.spent,
        spent_at=ledger.uploads,
        stride=stride,
        since=since,
    )


def aged(measured: Measured, member: Member) -> Measured:
    """An upload of a member that had others set aside, as late as if it were the first of them.

    Methods that weigh uploads by lateness would believe a member the more, the more often it uploads.
    """
    if member.since is None:
        return measured
    return replace(measured, receipt=replace(measured.receipt, base=min(member.since, measured.receipt.base)))
