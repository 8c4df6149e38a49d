"""Bounded influence: how far one upload, and all uploads of one member together, may move a federation.

All bounds are multiples of what is usual: the median over members, each with its newest upload, so that a member who
floods the server still has one voice. Nothing here has a clock: a budget comes back as others upload.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import ceil, inf, isfinite, sqrt
from typing import Any, Literal

import numpy as np

from artesian.core import BEFORE, ClientId, Ledger, Member, Seen, Task, Upload
from artesian.engine.admission import clip_upload, origins_of
from artesian.errors import TooFar, check
from artesian.params import Layout, Params, distance, norm

REMEMBERED = 101  # members, those with the newest uploads
KNOWN = 5  # members whose rises must be known before a fold is judged by them
WHOLE = 1.0  # usual change: with less than this left of a budget, an upload is set aside
TURN = 2  # uploads by each: after so many it is counted anew how many members are active
UNSEEN = 1.25  # times as many as came: where all upload equally often, a fifth has no upload in a turn
ACTIVE = 1 / 3  # of the members that are present: so many count as active, at the least
BEYOND = 1e6  # of a held-back loss: a rise that is always too far
NEWEST = 0.25  # what the newest upload counts in the mean of a member
BOUNDS = ("clip", "stride", "refuse", "budget", "pace", "samples", "rise", "habit", "newcomer", "harmless")
NO_BUDGET = "its member has spent its budget"


@dataclass(frozen=True)
class Defence:
    """What one member may do to a federation. Every bound is a multiple of what is usual, and 0 turns it off."""

    clip: float = 3.0  # usual changes an upload may bring; longer ones are shortened
    stride: float = field(default=1.5, metadata={BEFORE: 0.0})  # and one member's in the mean; one is always allowed
    refuse: float = 100.0  # times the model, or the usual change, beyond which an upload is refused
    budget: float = 8.0  # usual changes that one member may bring at once
    pace: float = field(default=2.0, metadata={BEFORE: 0.0})  # and in the long run, for each upload of a usual member
    samples: float = 3.0  # usual numbers of samples that one member may claim; more count as so many
    weights: Literal["samples", "equal"] = "samples"  # do members weigh by the samples they claim, or all the same?
    rise: float = 10.0  # usual rises of a held-back proxy loss beyond which an upload is not folded
    habit: float = field(default=2.5, metadata={BEFORE: 0.0})  # and beyond which a member's must not be in the mean
    newcomer: float = field(default=4.0, metadata={BEFORE: 0.0})  # and a member's first, in a fold of several
    harmless: float = field(default=0.05, metadata={BEFORE: 0.02})  # of that loss: a rise that is never too far
    rise_samples: int = 200  # of every proxy set, by which uploads are judged

    def __post_init__(self) -> None:
        told = vars(self)
        rules = {
            **{f"{bound} is finite and at least 0": isfinite(told[bound]) and told[bound] >= 0 for bound in BOUNDS},
            "stride is 0 or at least 1": not 0 < self.stride < 1,
            "weights is samples or equal": self.weights in ("samples", "equal"),
            "rise_samples is at least 1": self.rise_samples >= 1,
        }
        check(self, rules)

    @property
    def tree(self) -> dict[str, Any]:
        """Its fields by name."""
        return asdict(self)

    def counted(self, claimed: int, ledger: Ledger, client: ClientId) -> int:
        """How many samples count of those that a member claims."""
        if self.weights == "equal":
            return min(claimed, 1)
        usual = lower_median([seen.samples for seen in ledger.seen if seen.client != client and seen.samples])
        return claimed if not self.samples or usual is None else min(claimed, max(1, int(self.samples * usual)))

    def most(self, times: float, usual: float | None) -> float:
        """The largest rise that is not too far: so many usual ones, where they are known, and what is harmless."""
        return BEYOND if usual is None else max(self.harmless, times * usual)

    def longest(self, usual: float | None, size: float) -> float:
        """How long a change may be; before any length is known, as long as its model."""
        return inf if not self.clip else size if usual is None else self.clip * usual

    def within_stride(self, member: Member) -> float:
        """How many usual changes the next upload of a member may bring, so that their mean is no more than `stride`."""
        if member.stride is None or not self.stride:
            return inf
        return max(1.0, member.stride + (self.stride - member.stride) / NEWEST)

    def left(self, ledger: Ledger, member: Member, present: int) -> float:
        """What is left of a member's budget, in usual changes; without end where it is alone."""
        if not self.budget or present < 2:
            return inf
        return self.budget - self.outstanding(ledger, member, present)

    def outstanding(self, ledger: Ledger, member: Member, present: int) -> float:
        """What a member has spent and not got back: `pace` comes back while every other active member uploads once.

        Without a pace the whole budget does, and every member counts as active.
        """
        others = max(1, (active_of(ledger, present) if self.pace else present) - 1)
        return max(0.0, member.spent - (ledger.uploads - member.spent_at) * (self.pace or self.budget) / others)

    def turned(self, ledger: Ledger, member: Member, present: int, spent: float) -> Ledger:
        """The ledger after an upload of a member that spent so much.

        An upload of less than a usual change counts as its part, so nobody earns others their budgets back by many
        small ones. How many members are active is counted in turns of a few uploads by each; it falls by a half in one
        turn at the most, however few members begin it.
        """
        if not self.pace:
            return replace(ledger, uploads=ledger.uploads + 1)
        ledger = replace(ledger, uploads=ledger.uploads + min(1.0, spent))
        if spent and member.spent_at <= ledger.turn:
            ledger = replace(ledger, came=ledger.came + 1)
        half = (ledger.active or present) / 2
        if ledger.uploads - ledger.turn < TURN * max(ledger.came, half):
            return ledger
        return replace(ledger, turn=ledger.uploads, came=0, active=ceil(max(UNSEEN * ledger.came, half)))


@dataclass(frozen=True)
class Bounded:
    """An upload as it may be folded."""

    upload: Upload
    length: float = 0.0  # of its longest change
    spent: float = 0.0  # of its member's budget
    aside: str = ""  # why it is not folded, if it is not
    shortened: float = 1.0  # how many times as long it would be without its member's stride


def bounded(
    defence: Defence, layout: Layout, upload: Upload, task: Task, ledger: Ledger, member: Member, present: int
) -> Bounded:
    """An upload whose change is within the bounds; refused where it is absurd, set aside where no budget is left."""
    origins = origins_of(layout, upload, task)
    sent = max(length_of(layout, params, origins[k]) for k, params in upload.models.items())
    size, usual = size_of(layout, task), usual_length(ledger)
    if defence.refuse:
        check_size(layout, upload, task, sent, max(size, usual or 0.0), defence.refuse)
    if not sent:
        return Bounded(upload)
    left = defence.left(ledger, member, present)
    if left < min(WHOLE, defence.budget):
        return Bounded(upload, aside=NO_BUDGET)
    unit = usual or min(sent, size)
    alone = min(sent, left * unit, defence.longest(usual, size))
    length = min(alone, defence.within_stride(member) * unit) if usual else alone
    within = upload if sent <= length else clip_upload(layout, upload, origins, length)
    return Bounded(within, length, length / unit, shortened=alone / length)


def length_of(layout: Layout, params: Params, origin: Params | None) -> float:
    """How far a model is from where it began."""
    return norm(layout, params) if origin is None else distance(layout, params, origin)


def size_of(layout: Layout, task: Task) -> float:
    """The length of the largest model of a task; where all are zero, that of a model whose every entry is 1."""
    return max((norm(layout, params) for params in task.models.values()), default=0.0) or sqrt(layout.trainable)


def active_of(ledger: Ledger, present: int) -> int:
    """How many members upload: as many as in the last turn, or in this one if that is more; at first, all.

    Few that upload may also be many that flood while all others are slow. So never less than a third of all.
    """
    return min(present, max(ledger.came, ledger.active or present, ceil(ACTIVE * present)))


def usual_length(ledger: Ledger) -> float | None:
    """The median length of members' newest changes; None while none is known."""
    return lower_median([seen.length for seen in ledger.seen if seen.length])


def usual_rise(ledger: Ledger) -> float | None:
    """The median size of what members' newest uploads did to a held-back loss; None while few are known."""
    return _median_known([seen.rise for seen in ledger.seen])


def usual_habit(ledger: Ledger) -> float | None:
    """The median of what members' uploads do to it in the mean, or the usual rise if that is more; None if unknown."""
    rise, habit = usual_rise(ledger), _median_known([seen.habit for seen in ledger.seen])
    return None if rise is None or habit is None else max(rise, habit)


def _median_known(numbers: Sequence[float | None]) -> float | None:
    known = [number for number in numbers if number is not None]
    return lower_median(known) if len(known) >= KNOWN else None


def lower_median(numbers: Sequence[float]) -> float | None:
    """The median; of an even number the smaller of the two in the middle, so that one of two cannot raise it."""
    return sorted(numbers)[(len(numbers) - 1) // 2] if numbers else None


def noted(ledger: Ledger, client: ClientId, samples: int, length: float = 0.0) -> Ledger:
    """The ledger with a member's newest numbers; a length of 0 says nothing new."""
    before = next((seen for seen in ledger.seen if seen.client == client), Seen(client, samples))
    entry = replace(before, samples=samples, length=length or before.length)
    others = tuple(seen for seen in ledger.seen if seen.client != client)
    return replace(ledger, seen=(*others, entry)[-REMEMBERED:])


def judged(
    defence: Defence, ledger: Ledger, rises: Mapping[str, tuple[ClientId, float]]
) -> tuple[Ledger, dict[str, str]]:
    """The ledger with what uploads of one fold, each of a member, did to a held-back loss; and why some are not folded.

    All are judged by the state before the fold, and none by what the others do to it: what may pass as bad luck of one
    is ruin if many bring it. So they count in what is usual, and a member's first upload, which all may bring at the
    same time, is allowed less.
    """
    together = len(rises) > 1 and defence.newcomer > 0
    known = _counting(ledger, rises) if together else ledger
    usual, refused = usual_rise(known), dict[str, str]()
    most = defence.most(defence.rise, usual)
    often = defence.most(defence.habit, usual_habit(known)) if defence.habit else BEYOND
    first = min(most, defence.most(defence.newcomer, usual)) if together else most
    sizes, habits = {s.client: s.rise for s in ledger.seen}, {s.client: s.habit for s in ledger.seen}
    bounds = {client: most if sizes.get(client) is not None else first for client, _ in rises.values()}
    for name, (client, rise) in rises.items():
        before = habits.get(client)
        if rise and usual is not None and defence.habit:
            habits[client] = running_mean(before, min(max(rise, 0.0), most))
        if rise > bounds[client]:
            refused[name] = f"it would raise a held-back loss by {rise:.3g} of it, and {bounds[client]:.3g} is the most"
        elif before is not None and min(rise, habits[client] or 0.0) > often:
            refused[name] = (
                f"it would raise a held-back loss by {rise:.3g} of it, and uploads of its member do so by "
                f"{habits[client]:.3g} in the mean, where {often:.3g} is the most"
            )
        sizes[client] = min(abs(rise), most) if rise else sizes.get(client)
    seen = tuple(replace(s, rise=sizes[s.client], habit=habits[s.client]) for s in ledger.seen)
    return replace(ledger, seen=seen), refused


def _counting(ledger: Ledger, rises: Mapping[str, tuple[ClientId, float]]) -> Ledger:
    """The ledger as if these uploads were its members' newest."""
    sizes = {client: abs(rise) for client, rise in rises.values() if rise}
    return replace(ledger, seen=tuple(replace(s, rise=sizes.get(s.client, s.rise)) for s in ledger.seen))


def running_mean(before: float | None, newest: float) -> float:
    """The mean of what a member's uploads did, older ones counting less and less."""
    return newest if before is None else before + NEWEST * (newest - before)


def identity(upload: Upload) -> str:
    """What an upload is called in an event: no client's id has a slash."""
    return f"{upload.client}/{upload.number}"


def check_size(layout: Layout, upload: Upload, task: Task, sent: float, size: float, times: float) -> None:
    """Refuse a change beyond so many times the size of the model, or of what is usual; and so for its statistics."""
    if sent > times * size:
        raise TooFar(
            f"The change is {sent:.3g} long, more than {times:g} times the model and the usual change",
            "Train again at a lower rate, from the model of the task",
        )
    count, old = layout.floats - layout.trainable, next(iter(task.models.values()), None)
    if not count or old is None:
        return
    usual = max(_statistics(layout, old), sqrt(count))
    if any(_statistics(layout, params) > (times + 1) * usual for params in upload.models.values()):
        raise TooFar(
            f"The running statistics of the model are more than {times:g} times their size before",
            "Check the data, then train again",
        )


def _statistics(layout: Layout, params: Params) -> float:
    """The length of the floating entries that are not trained."""
    part = params[layout.trainable : layout.floats].astype(np.float64)
    return sqrt(float(np.square(part, out=part).sum()))
