"""What watching for drift was worth, from the table of turns: delays, false alarms, missed drifts, accuracy."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from artesian.core import ClientId
from artesian.simulator.table import Row


@dataclass
class Vigil:
    """One client's drifts and alarms so far."""

    drifts: int = 0  # begun so far
    began: int = 0  # the turn of the newest
    awaited: bool = False  # did nobody raise an alarm since?
    alarmed: tuple[int, float] = (0, 1.0)  # the concept at the last alarm: the first, before there was one


@dataclass
class Tally:
    """The counts of a whole run."""

    turns: int = 0
    refreshes: int = 0
    alarms: int = 0
    false_alarms: int = 0  # at which the data were as at the alarm before, or as at the start
    missed: int = 0  # drifts without alarm until the next, or until the end
    delays: list[int] = field(default_factory=list)  # turns from a drift to its alarm
    score: float = 0.0  # summed over turns
    vigils: dict[ClientId, Vigil] = field(default_factory=dict)

    def add(self, row: Row) -> None:
        """Count one turn."""
        _, _, client, cycle, drifts, share, alarm, refresh, _, score = row
        self.turns += 1
        self.refreshes += int(refresh or 0)
        self.score += float(score or 0)
        vigil = self.vigils.setdefault(str(client), Vigil())
        if int(drifts or 0) > vigil.drifts:
            self.missed += vigil.awaited
            vigil.drifts, vigil.began, vigil.awaited = int(drifts or 0), int(cycle or 0), True
        if alarm:
            self._alarm(vigil, int(cycle or 0), float(share or 0))

    def _alarm(self, vigil: Vigil, cycle: int, share: float) -> None:
        self.alarms += 1
        self.false_alarms += vigil.alarmed == (vigil.drifts, share)
        vigil.alarmed = vigil.drifts, share
        if vigil.awaited:
            self.delays.append(cycle - vigil.began)
            vigil.awaited = False


def detection(rows: Iterable[Row], *, detects: bool) -> dict[str, Any]:
    """The figures of a run whose clients decide, from its table of turns; those of a detector, where there is one."""
    tally = Tally()
    for row in rows:
        tally.add(row)
    turns, drifts = tally.turns or 1, sum(vigil.drifts for vigil in tally.vigils.values())
    found = {"turns": tally.turns, "refreshes": tally.refreshes, "in_use": tally.score / turns, "drifts": drifts}
    return found | (_alarms(tally, turns) if detects else {})


def _alarms(tally: Tally, turns: int) -> dict[str, Any]:
    return {
        "alarms": tally.alarms,
        "detection_delay": float(np.mean(tally.delays)) if tally.delays else None,
        "missed_drifts": tally.missed + sum(vigil.awaited for vigil in tally.vigils.values()),
        "false_alarms": tally.false_alarms,
        "false_alarm_rate": tally.false_alarms / turns,
    }
