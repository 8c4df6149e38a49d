"""Whether a client refreshes now: detectors and a policy together, without a clock and without files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass, replace

from artesian.core import Tree, described
from artesian.drift import policy_text
from artesian.drift.detector import Batch, Detector, Drift
from artesian.drift.detectors import detector as detector
from artesian.drift.detectors import read_detector
from artesian.drift.policy import Policy, Situation
from artesian.drift.policy_text import policy as policy
from artesian.drift.rules import COUNTED
from artesian.storage.codec import from_tree, to_tree


@dataclass(frozen=True)
class Decision:
    """What a client does after a batch, and why."""

    refresh: bool
    reason: str  # to refresh, or not to
    drifts: tuple[Drift, ...] = ()  # found in this batch


class Watching:
    """Watches a client's batches and decides when it refreshes. Time is what the caller says it is.

    Everything it remembers is small: `state` gives it, and after `restore` every later decision is the same.
    """

    def __init__(self, policy: Policy | str = "drift", detectors: Sequence[Detector | str] = ()) -> None:
        """A policy and detectors; texts are such as `drift or age 7d`, and `ks` or `ks part=logits level=0.001`."""
        self.policy = policy_text.policy(policy) if isinstance(policy, str) else policy
        self.detectors = tuple(read_detector(each) if isinstance(each, str) else each for each in detectors)
        self._known = Situation(0.0)

    @property
    def situation(self) -> Situation:
        """What it knows since the last batch."""
        return self._known

    def decide(self, batch: Batch, now: float) -> Decision:
        """Take in a batch, and say whether to refresh."""
        found = tuple(drift for each in self.detectors if (drift := each.observe(batch)) is not None)
        self._known = _after_batch(self._known, batch.samples, found, now)
        return self._decision(found)

    def refreshed(self, now: float, bytes_: int = 0) -> None:
        """A refresh took place, with so many bytes up and down: what comes next is the new normal."""
        known = self._known
        refreshes, sent = (*known.refreshes, now)[-COUNTED:], (*known.sent, (now, bytes_))
        answers = 1 if known.drift else known.answers + bool(known.answers)
        self._known = Situation(now, refreshed_at=now, refreshes=refreshes, sent=_bounded(sent), answers=answers)
        for each in self.detectors:
            each.reset()

    def request(self) -> None:
        """Call for a refresh: policies with `request` want one from the next batch on."""
        self._known = replace(self._known, asked=True)

    def state(self) -> Tree:
        """All it remembers, as JSON values and arrays."""
        kept = [{"detector": _told(each), "state": each.state()} for each in self.detectors]
        return {"known": to_tree(self._known), "detectors": kept}

    def restore(self, tree: Tree) -> tuple[str, ...]:
        """Go on from what `state` gave; the names of detectors that are new or set otherwise, and begin afresh."""
        known = from_tree(Situation, tree["known"])
        self._known = replace(known, sent=tuple((at, int(count)) for at, count in known.sent))
        kept, fresh = [(each["detector"], each["state"]) for each in tree["detectors"]], []
        for each in self.detectors:
            found = next((i for i, (told, _) in enumerate(kept) if told == _told(each)), None)
            if found is None:
                fresh.append(each.name)
            else:
                each.restore(kept.pop(found)[1])
        return tuple(fresh)

    def _decision(self, found: tuple[Drift, ...]) -> Decision:
        reason = self.policy.wants(self._known)
        return Decision(reason is not None, reason or self.policy.declines(self._known), found)


def _after_batch(known: Situation, samples: int, found: tuple[Drift, ...], now: float) -> Situation:
    batches = known.batches + 1
    alarms = (*known.alarms, batches)[-COUNTED:] if found else known.alarms
    drift = found[0] if found else known.drift
    return replace(known, now=now, drift=drift, samples=known.samples + samples, batches=batches, alarms=alarms)


def _bounded(sent: tuple[tuple[float, int], ...]) -> tuple[tuple[float, int], ...]:
    """At most so many entries: the two oldest become one, as late as the later, so that no budget is overdrawn."""
    if len(sent) <= COUNTED:
        return sent
    (_, first), (at, second), *rest = sent
    return ((at, first + second), *rest)


def _told(each: Detector) -> Tree:
    """A detector by its name and settings; a field that nobody sets is none."""
    kept: list[str] = [f.name for f in fields(each) if not f.init] if is_dataclass(each) else []
    return {name: to_tree(value) for name, value in described(each, each.name).items() if name not in kept}
