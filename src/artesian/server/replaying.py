"""Events done again: a start goes on only from what was answered, or says which event differs."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from artesian.core import Event
from artesian.engine.coordinator import Coordinator
from artesian.engine.outcomes import different, receipt_digests
from artesian.errors import Refused, ReplayDiffers


def replay(
    coordinator: Coordinator,
    event: Event,
    number: int,
    writer: Mapping[str, str],
    accept: Callable[[str], None] | None = None,
) -> None:
    """Do an event again; what comes out must be what `writer` recorded, unless `accept` takes the difference."""
    names = _another_task(coordinator, event)
    try:
        coordinator.replay(event)
    except Refused as error:
        raise _differs(event, number, writer, f"is refused now ({error.problem})") from error
    if names := names or different(event.outcome, coordinator.outcome):
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        complaint = _differs(event, number, writer, f"now gives another {', another '.join(names[:3])}{more}")
        if accept is None:
            raise complaint
        accept(complaint.problem)


def _another_task(coordinator: Coordinator, event: Event) -> list[str]:
    """What an upload answers here other than what it answered; of older events, only this is known.

    A coordinator that keeps no tasks knows nothing of it.
    """
    if event.outcome or event.measured is None:
        return []
    given = [reply.task for reply in coordinator.recorded(event.client)]
    same = not given or any(event.measured.receipt.digest in receipt_digests(task) for task in given)
    return [] if same else [f"task of {event.client} before it"]


def _differs(event: Event, number: int, writer: Mapping[str, str], how: str) -> ReplayDiffers:
    code = ", ".join(f"{name} {version}" for name, version in writer.items()) or "an earlier version"
    by = f" of {event.client}" if event.client else ""
    return ReplayDiffers(
        f"Event {number} ({event.kind}{by}) {how}; it was written by {code}",
        "Serve the store with the version that wrote it, or accept other answers with --accept-replay",
    )
