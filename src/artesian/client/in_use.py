"""What a client uses: chosen at every refresh, kept at home beside its task, with what it used before that.

Two files, `used` and `used-before`. A new choice moves the one to the other and then writes itself. A client that was
killed in between has only `used-before`, uses that, and chooses again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from artesian.core import ClientId, Ensemble, Learner
from artesian.engine.drawing import Moved
from artesian.errors import SettingError
from artesian.params import Params
from artesian.recipes.accepting import Accept, Candidate, Choice, Split, Voices, divided, undivided
from artesian.storage.codec import decode, encode
from artesian.storage.files import storage, sync_folder, write_file

NOTHING_YET = Choice("drawn", why="Nothing was judged")
NOT_JUDGED = Choice("drawn", why="There were no data to judge by")


class Refreshed(tuple[tuple[float, Params], ...]):
    """What a client uses after a refresh: models with their weights, and how they were chosen."""

    choice: Choice
    moved: Moved | None  # how far the answer is from the task that was answered; None: not known

    def __new__(cls, ensemble: Ensemble = (), choice: Choice = NOTHING_YET, moved: Moved | None = None) -> Self:
        made = super().__new__(cls, ensemble)
        made.choice, made.moved = choice, moved
        return made

    @property
    def won(self) -> Candidate:
        """Which candidate it is: `drawn`, `tuned`, `midpoint`, `trained`, `continued` or `previous`."""
        return self.choice.won

    @property
    def scores(self) -> Mapping[Candidate, float]:
        """The score of every candidate on the samples held back; empty where none were."""
        return self.choice.scores

    @property
    def held_back(self) -> int:
        """How many samples were held back to judge by."""
        return self.choice.held_back

    @property
    def share(self) -> float:
        """The share of all samples that these are."""
        return self.choice.share

    @property
    def gain(self) -> Mapping[Candidate, float]:
        """How much better it is than what was `trained`, and than what was `drawn`."""
        return self.choice.gain

    @property
    def why(self) -> str:
        """Why nothing was judged; empty where it was."""
        return self.choice.why


@dataclass(frozen=True)
class Used:
    """What a client uses since one of its uploads."""

    number: int  # of that upload; 0: since before the first
    models: Voices  # none: nothing before the first upload, and afterwards whatever was drawn last


class InUse:
    """The two files of a home."""

    def __init__(self, home: Path) -> None:
        self._now, self._before = home / "used", home / "used-before"

    def begin(self, drawn: Callable[[], Ensemble]) -> None:
        """Write down what is in use before a choice, where that is whatever was drawn last: another may come first."""
        now = _read(self._now) or _read(self._before)
        if now is None or (now.number and not now.models.models):
            self.use(now.number if now is not None else 0, drawn())

    def now(self) -> Ensemble:
        """What is in use; nothing where it is whatever was drawn last."""
        return _ensemble(_read(self._now) or _read(self._before))

    def before(self, number: int | None = None) -> Ensemble:
        """What was in use before the last choice; with a number, before the choice after that upload."""
        now = _read(self._now)
        if now is None:
            return () if number is None else _ensemble(_read(self._before))
        return _ensemble(now) if number is not None and now.number != number else _ensemble(_read(self._before))

    def use(self, number: int, ensemble: Ensemble) -> None:
        """Use these models from now on, since this upload; a choice made again takes the place of the first."""
        now = _read(self._now)
        if now is not None and now.number != number:
            self._set_aside()
        write_file(self._now, encode("used", Used(number, Voices.of(ensemble))))

    def renew(self, ensemble: Ensemble) -> None:
        """Use these models from now on, between two uploads; `go_back` brings back what was in use until now."""
        now = _read(self._now)
        if now is not None and _same(now.models.ensemble, ensemble):
            return
        known = now or _read(self._before)
        if now is not None:
            self._set_aside()
        write_file(self._now, encode("used", Used(known.number if known else 0, Voices.of(ensemble))))

    def _set_aside(self) -> None:
        with storage(self._now):
            os.replace(self._now, self._before)
            sync_folder(self._now.parent)

    def go_back(self) -> Ensemble:
        """Use again what was in use before the last choice."""
        if not self.before():
            raise SettingError(
                "This client has nothing to go back to: it used no other model before its last refresh",
                "Go on with held(), or refresh again",
            )
        with storage(self._now):
            os.replace(self._before, self._now)
            sync_folder(self._now.parent)
        return self.now()


def split_for(learner: Learner, accept: Accept, hold_back: float, client: ClientId) -> Split:
    """What a client trains on, and what it holds back where it judges what it uses."""
    if accept not in ("better", "always"):
        raise SettingError(f"accept must be better or always, not {accept!r}")
    if type(hold_back) not in (int, float) or not 0 < hold_back <= 0.5:
        raise SettingError(f"hold_back must be above 0 and at most 0.5, not {hold_back!r}")
    if accept == "always":
        return undivided(learner, "What was drawn is always used: accept is always", "drawn")
    return divided(learner, hold_back, client)


def _read(path: Path) -> Used | None:
    if not path.exists():
        return None
    with storage(path):
        return decode("used", path.read_bytes(), Used)


def _same(one: Ensemble, other: Ensemble) -> bool:
    """Whether two ensembles are the same, bit by bit."""
    if [weight for weight, _ in one] != [weight for weight, _ in other]:
        return False
    return all(mine.tobytes() == theirs.tobytes() for (_, mine), (_, theirs) in zip(one, other, strict=True))


def _ensemble(used: Used | None) -> Ensemble:
    return () if used is None else used.models.ensemble
