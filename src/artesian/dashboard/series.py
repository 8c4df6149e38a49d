"""Numbers over time in bounded memory: the longer it goes on, the coarser it gets."""

from __future__ import annotations

from typing import Any

MOST = 240  # steps of a series


class Series:
    """Values by step of time: their mean, or how many there were. When the steps are too many, each two become one."""

    def __init__(self, step: float, most: int = MOST) -> None:
        self.step, self.most = step, most
        self._steps: dict[int, list[float]] = {}  # number of the step: sum, count, mark of the last change
        self._renewed = 0  # mark of the last change of everything

    def add(self, time: float, value: float, mark: int) -> None:
        """Count a value; `mark` numbers the changes of all that is shown, and never goes back."""
        held = self._steps.setdefault(int(time // self.step), [0.0, 0.0, 0.0])
        held[0] += value
        held[1] += 1
        held[2] = mark
        while len(self._steps) > self.most:
            self._merge(mark)

    def since(self, mark: int) -> dict[str, Any] | None:
        """What changed after a mark, as points of (time, mean, count); None where nothing did."""
        whole = mark < self._renewed or not mark
        points = [_point(at * self.step, *held) for at, held in self._steps.items() if whole or held[2] > mark]
        return {"step": self.step, "whole": whole, "points": sorted(points)} if points else None

    def _merge(self, mark: int) -> None:
        before, self._steps = self._steps, {}
        self.step, self._renewed = self.step * 2, mark
        for at, (total, count, _) in before.items():
            held = self._steps.setdefault(at // 2, [0.0, 0.0, mark])
            held[0] += total
            held[1] += count


def _point(time: float, total: float, count: float, _: float) -> list[float]:
    return [time, float(f"{total / count:.5g}"), int(count)]
