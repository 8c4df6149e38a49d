"""Compare rules by which clients choose what they use after a refresh, all of them on the same runs.

A choice does not change what is trained next, so one run shows every rule. A rule is how many standard errors of lower
loss it asks of each candidate (artesian/recipes/accepting.py); under each, what a client used before is what that rule
chose. The table shows the accuracy of what clients use on their own test data, and the share of refreshes after which
they use a model more than a point worse than the one they trained, on the whole evaluation pool: both of the second
half of a run.

    python benchmarks/choices.py digits-4 --seeds 100,101
    python benchmarks/choices.py casa-mnist --methods confluence,fedbuff --set uploads=1500
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from statistics import fmean
from typing import Any

from artesian.config.experiments import load
from artesian.core import ClientId, Ensemble
from artesian.errors import ArtesianError
from artesian.recipes.accepting import MARGINS, Candidate, candidates, choose
from artesian.simulator.jobs import Judged, Judging, Place
from artesian.simulator.metrics import is_worse
from artesian.simulator.profiling import Stopwatch
from artesian.simulator.run import run_experiment

ALWAYS = -1e9  # standard errors that every candidate has to show


def rule(drawn: float, trained: float, previous: float) -> dict[Candidate, float]:
    """What each candidate after the middle must show; the middle is tried first."""
    return {**MARGINS, "drawn": drawn, "trained": trained, "previous": previous}


RULES: Mapping[str, Mapping[Candidate, float]] = {
    "always drawn": rule(ALWAYS, inf, inf),
    "always trained": rule(inf, ALWAYS, inf),
    "always the middle": rule(inf, inf, inf),
    "1, 1, 2": rule(1.0, 1.0, 2.0),
    "1, 0.5, 2": rule(1.0, 0.5, 2.0),
    "1, 0, 2": rule(1.0, 0.0, 2.0),
    "2, 2, 2": rule(2.0, 2.0, 2.0),
    "1, 0.5, never": rule(1.0, 0.5, inf),
}


@dataclass
class Tally:
    """What one rule led to, refresh by refresh."""

    uses: dict[ClientId, Ensemble] = field(default_factory=dict)  # by client, from the last refresh on
    scores: list[float] = field(default_factory=list)  # of what is used, on the client's own test data
    worse: list[bool] = field(default_factory=list)

    def of_second_half(self) -> dict[str, float]:
        scores, worse = (values[len(values) // 2 :] for values in (self.scores, self.worse))
        return {"used": fmean(scores), "worse": fmean(worse)}


class Watched:
    """Stands in for `Place.judge`, and lets every rule choose beside it."""

    def __init__(self) -> None:
        self.judge = Place.judge
        self.tallies: dict[str, Tally] = defaultdict(Tally)

    def __call__(self, place: Place, judging: Judging, spent: Stopwatch) -> Judged:
        for name, margins in RULES.items():
            self.see(self.tallies[name], margins, place, judging)
        return self.judge(place, judging, spent)

    def see(self, tally: Tally, margins: Mapping[Candidate, float], place: Place, judging: Judging) -> None:
        visit = place.visit(judging.client, judging.cycle)
        test = place.model.learner(visit.test.x, visit.test.y)
        previous = tally.uses.get(judging.client, ())
        among = candidates(place.model.layout, judging.drawn, judging.trained, previous)
        used = among[choose(among, place._split(judging.client, visit.train), margins).won]
        tally.uses[judging.client] = used
        tally.scores.append(test.score(used))
        if judging.pool:
            before, after = place._pool(judging, test, used)
            tally.worse.append(is_worse(before, after, errors=place.world.classes is None))


def compared(preset: str, changes: list[str], seed: int) -> dict[str, dict[str, float]]:
    """What every rule leads to in one run."""
    watched = Watched()
    Place.judge = lambda *words: watched(*words)  # type: ignore[method-assign]
    try:
        run_experiment(load(preset, [*changes, "accept=better"]), seed=seed)
    finally:
        Place.judge = watched.judge  # type: ignore[method-assign]
    return {name: tally.of_second_half() for name, tally in watched.tallies.items()}


def _seeds(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("preset", help="an experiment, such as digits-4")
    parser.add_argument("--methods", default="confluence,fedbuff", help="algorithms, with commas between them")
    parser.add_argument("--seeds", type=_seeds, default=[100], help="seeds, with commas between them")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="change a setting")
    parser.add_argument("--json", action="store_true", help="print a line of JSON for every run and rule")
    asked = parser.parse_args()
    for method in asked.methods.split(","):
        for seed in asked.seeds:
            changes = [f"algorithm.name={method}", "pool_every=3", *asked.set]
            try:
                rules = compared(asked.preset, changes, seed)
            except ArtesianError as error:
                parser.error(str(error))
            for name, found in rules.items():
                line: dict[str, Any] = {"preset": asked.preset, "method": method, "seed": seed, "rule": name, **found}
                words = f"{asked.preset}, {method}, {seed}: {name:20} {found['used']:.3f} / {found['worse']:.3f}"
                print(json.dumps(line) if asked.json else words, flush=True)


if __name__ == "__main__":
    main()
