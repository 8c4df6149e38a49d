"""Keep the better of what a client trained and what it drew, judged on samples that it held back from training.

Which samples are held back depends on the client and on their place alone. So they are the same at every refresh, also
after data were appended, and no model of this client ever saw those that judge it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from math import isfinite, sqrt
from typing import Literal, Self

import numpy as np

from artesian.core import ClientId, Divisible, Ensemble, Learner, derive, generator
from artesian.errors import BadData
from artesian.params import Layout, Params, average, seal

Accept = Literal["better", "always"]  # use the best candidate, or always what was drawn
Candidate = Literal["drawn", "tuned", "midpoint", "trained", "continued", "previous"]
# In the order in which they are tried, and by how many standard errors each must beat the best before it. The middle
# of two models is seldom much worse than either; what was trained is what the client would have without a refresh;
# what was used before was chosen by the same samples, perhaps by luck. Trained on, it is like what was trained.
MARGINS: Mapping[Candidate, float] = {
    "midpoint": 0.0, "drawn": 1.0, "tuned": 1.0, "trained": 0.5, "continued": 0.5, "previous": 2.0
}  # fmt: skip
WORTH_TRAINING = 1.0  # standard errors by which what was used before must beat all others to be trained on
CANDIDATES: tuple[Candidate, ...] = tuple(MARGINS)
SHARE = 0.2  # of the samples
FEWEST = 5  # samples that can judge
DRAWN = 64  # blocks whose held-back rows are drawn at once


@dataclass(frozen=True)
class Voices:
    """An ensemble in the form in which it is stored; without models it is none."""

    weights: tuple[float, ...] = ()
    models: tuple[Params, ...] = ()

    @classmethod
    def of(cls, ensemble: Ensemble) -> Self:
        return cls(tuple(weight for weight, _ in ensemble), tuple(params for _, params in ensemble))

    @property
    def ensemble(self) -> Ensemble:
        return tuple(zip(self.weights, self.models, strict=True))


@dataclass(frozen=True)
class Split:
    """A client's data in two parts: what it trains on, and what it holds back."""

    whole: Learner
    train: Learner
    rows: np.ndarray  # those held back
    why: str = ""  # why none are
    unjudged: Candidate = "midpoint"  # what is used then, where there is one; otherwise what was drawn

    def judge(self) -> Learner:
        """The samples held back, with whatever the learner keeps at home by now."""
        assert isinstance(self.whole, Divisible)
        return self.whole.part(self.rows)


@dataclass(frozen=True)
class Choice:
    """Which candidate a client uses from now on, and how all of them did."""

    won: Candidate
    scores: Mapping[Candidate, float] = field(default_factory=dict)  # on the samples held back
    held_back: int = 0  # how many these are
    share: float = 0.0  # of all samples
    why: str = ""  # why nothing was judged

    @property
    def gain(self) -> dict[Candidate, float]:
        """How much better the winner is than what was trained, and than what was drawn."""
        others: tuple[Candidate, ...] = ("trained", "drawn")
        return {name: self.scores[self.won] - self.scores[name] for name in others if name in self.scores}


def held_back(samples: int, share: float, client: ClientId) -> np.ndarray:
    """The rows that a client holds back: one of every block, none of a last block that is not full.

    None at all where they would be too few to judge by.
    """
    block = round(1 / share)
    blocks = samples // block
    if blocks < FEWEST:
        return seal(np.zeros(0, np.int64))
    inside = np.concatenate([_places(block, client, first) for first in range(0, blocks, DRAWN)])[:blocks]
    return seal(np.arange(blocks) * block + inside)


@lru_cache(maxsize=1024)
def _places(block: int, client: ClientId, first: int) -> np.ndarray:
    """Which row of a block is held back, for as many blocks as are drawn at once."""
    seed = derive(client)
    numbers = range(first, first + DRAWN)
    return np.array([int(generator(seed, "held back", i).integers(block)) for i in numbers], np.int64)


def undivided(learner: Learner, why: str, unjudged: Candidate = "midpoint") -> Split:
    """All data are trained on, for this reason."""
    return Split(learner, learner, np.zeros(0, np.int64), why, unjudged)


def divided(learner: Learner, share: float, client: ClientId) -> Split:
    """Hold back a share of a client's data, where that is possible."""
    if not isinstance(learner, Divisible):
        return undivided(learner, f"A {type(learner).__name__} cannot be divided: it has no method part")
    rows = held_back(learner.samples, share, client)
    if not rows.size:
        return undivided(learner, f"{learner.samples} samples are too few to hold back {FEWEST} of them")
    try:
        rest = learner.part(np.delete(np.arange(learner.samples), rows))
    except BadData as error:
        return undivided(learner, error.problem)
    return Split(learner, rest, rows)


def candidates(
    layout: Layout, drawn: Ensemble, trained: Ensemble, previous: Ensemble = (), tuned: Ensemble = ()
) -> dict[Candidate, Ensemble]:
    """What a client may use, by name: those that there are, and the middle of those drawn and trained."""
    middle: Ensemble = ()
    if len(drawn) == len(trained) == 1 and not np.array_equal(drawn[0][1], trained[0][1]):
        middle = ((1.0, average(layout, [drawn[0][1], trained[0][1]])),)
    found: dict[Candidate, Ensemble] = {"midpoint": middle, "drawn": drawn, "tuned": tuned}
    found |= {"trained": trained, "previous": previous}
    return {name: ensemble for name, ensemble in found.items() if ensemble}


def with_continued(
    among: Mapping[Candidate, Ensemble], split: Split, train: Callable[[Ensemble], Ensemble]
) -> dict[Candidate, Ensemble]:
    """With what was used before, trained on, where it is better than all that this refresh brought.

    Such a client has a model of its own that the federation does not improve. Trained on at every such refresh, it
    becomes what the client would have without a federation. The upload is another one, trained from the task.
    """
    found = dict(among)
    if split.rows.size and choose(among, split, {**MARGINS, "previous": WORTH_TRAINING}).won == "previous":
        found["continued"] = train(among["previous"])
    return found


def choose(among: Mapping[Candidate, Ensemble], split: Split, margins: Mapping[Candidate, float] = MARGINS) -> Choice:
    """The middle of what was drawn and trained, where there is one, unless others are clearly better by their losses.

    Few samples judge, so a better score alone is often luck. Without such samples it is that middle too, or what was
    drawn, tuned where that was asked for.
    """
    if not split.rows.size:
        unjudged: tuple[Candidate, ...] = ("tuned", split.unjudged, "drawn")
        return Choice(next(name for name in unjudged if name in among), why=split.why)
    judge = split.judge()
    tried = {name: _tried(judge, among[name]) for name in CANDIDATES if name in among}
    sound = {name: found for name, found in tried.items() if found.sound} or tried
    won, *others = sound
    for name in others:
        if sound[name].beats(sound[won], margins[name]):
            won = name
    scores = {name: tried[name].score for name in among}
    return Choice(won, scores, split.rows.size, split.rows.size / split.whole.samples)


@dataclass(frozen=True)
class Tried:
    """How one candidate did on the samples held back."""

    score: float
    losses: np.ndarray | None  # of every sample, for a single model; several together have none
    sound: bool  # are its score and the losses of all its models finite?

    def beats(self, other: Tried, margin: float) -> bool:
        """Is its loss lower by more than so many standard errors of the difference, sample by sample?

        Where one of the two is several models, is its score higher?
        """
        if self.losses is None or other.losses is None:
            return self.score > other.score
        gains = other.losses - self.losses
        return float(gains.mean()) > margin * float(gains.std(ddof=1)) / sqrt(len(gains))


def _tried(judge: Learner, ensemble: Ensemble) -> Tried:
    score = float(judge.score(ensemble))
    losses = [np.asarray(judge.losses(params), np.float64) for _, params in ensemble]
    sound = isfinite(score) and all(isfinite(float(np.mean(each))) for each in losses)
    return Tried(score, losses[0] if len(losses) == 1 else None, sound)
