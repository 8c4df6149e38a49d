"""Going on from a past state: clusters, mixtures and memory come back; numbers, members and verdicts stay."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping, Sequence
from dataclasses import replace

from artesian.core import ClientId, Desk, Member, Snapshot, Task
from artesian.engine.transition import Change


class NoTasks(MutableMapping[ClientId, Task]):
    """Where tasks are put that nobody will answer: nothing is kept."""

    def __getitem__(self, client: ClientId) -> Task:
        raise KeyError(client)

    def __setitem__(self, client: ClientId, task: Task) -> None:
        pass

    def __delitem__(self, client: ClientId) -> None:
        raise KeyError(client)

    def __iter__(self) -> Iterator[ClientId]:
        return iter(())

    def __len__(self) -> int:
        return 0


def revert(change: Change, past: Snapshot, gone: Sequence[ClientId] = ()) -> list[ClientId]:
    """Put a past state in place of the present one, without those who are `gone`; who needs a task in place of an
    open one is returned."""
    now, desk = dict(change.state.members), change.desk
    then = past.state.members
    members = {client: _reverted(member, then.get(client)) for client, member in now.items() if client not in gone}
    again = [client for client, member in members.items() if member.present and _answers(then.get(client))]
    change.members, change.gone = members, tuple(client for client in gone if client in now)
    change.tasks = dict.fromkeys(now)
    clusters = {k: replace(cluster) for k, cluster in past.state.clusters.items()}  # all of them count as changed
    present = sum(member.present for member in members.values())
    change.state = replace(past.state, clusters=clusters, members=members, present=present)
    change.desk = replace(
        past.desk,
        open=0,
        pending=tuple(m for m in past.desk.pending if _counts(members.get(m.upload.client))),
        waiting=_waiting(past.desk, members, set(again)),
        issued=desk.issued,
        retired={**desk.retired, **{client: past.desk.retired[client] for client in change.gone}},
    )
    return again


def without(snapshot: Snapshot, gone: Sequence[ClientId]) -> Snapshot:
    """A snapshot in which these clients never joined; none of their uploads is in its state."""
    state, desk = snapshot.state, snapshot.desk
    members = {client: member for client, member in state.members.items() if client not in gone}
    left = [state.members[client] for client in gone if client in state.members]
    opened = desk.open - sum(member.receipt is not None for member in left)
    waiting = tuple(client for client in desk.waiting if client not in gone)
    present = state.present - sum(member.present for member in left)
    issued = desk.issued - sum(member.number for member in left)
    ledger = replace(desk.ledger, seen=tuple(seen for seen in desk.ledger.seen if seen.client not in gone))
    new = replace(desk, open=opened, waiting=waiting, issued=issued, ledger=ledger)
    return replace(snapshot, state=replace(state, members=members, present=present), desk=new)


def retired(snapshot: Snapshot, client: ClientId, member: Member) -> Snapshot:
    """A snapshot that knows where the numbers of a forgotten member go on, and whether its name is closed."""
    stone = Member(samples=0, number=member.number, present=False, revoked=member.revoked)
    return replace(snapshot, desk=replace(snapshot.desk, retired={**snapshot.desk.retired, client: stone}))


def _reverted(member: Member, then: Member | None) -> Member:
    """A member whose numbers go on and whose standing stays; all else that it did is as then."""
    past = then or Member(member.samples)
    bounds = {name: getattr(past, name) for name in ("spent", "spent_at", "since", "stride", "set_aside")}
    return replace(member, receipt=None, mixture=past.mixture, samples=past.samples, **bounds)


def _answers(then: Member | None) -> bool:
    """Whether it had a task of a round or a stream: a solo one before a round is not given again."""
    return then is not None and then.receipt is not None and not then.receipt.pause


def _counts(member: Member | None) -> bool:
    """Whether an upload of this member that waits for its fold still counts."""
    return member is not None and not member.quarantined


def _waiting(past: Desk, members: dict[ClientId, Member], again: set[ClientId]) -> tuple[ClientId, ...]:
    """Who waits: as then, and whoever came since."""
    order = dict.fromkeys((*past.waiting, *members))
    return tuple(client for client in order if client in members and members[client].present and client not in again)
