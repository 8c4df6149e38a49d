"""Print the tables of the league that the study shows, from its results file: what clients use, ranks, points behind.

A method's rank in a world is by the mean over the seeds of what clients use; ties share the mean of their ranks. Of
several lines of Confluence only the default takes part. A method has a mean rank if it ran in seven worlds or more.

    python benchmarks/league_tables.py --seeds 3,4,5
    python benchmarks/league_tables.py --seeds 4,5 --waiting none
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import mean

RESULTS = Path(__file__).parent / "results" / "league.jsonl"
WORLDS = (
    "digits-1", "digits-2", "digits-4", "digits-6", "digits-relabelled", "casa-mnist", "har-people",
    "flexcfl-mnist, swapped", "synthetic",
)  # fmt: skip
VARIANTS = ("Confluence, calibrated", "Confluence, found")
STREAMS = (
    "Confluence", "FedBuff", "FedBuff + tune", "FedAsync", "CA2FL", "CDFL", "FedSoft-Async", "FedMerge-Async",
    "IFCA-Async", "CFL-Async", "CASA", "CASA+", "Local",
)  # fmt: skip
FEWEST = 7  # worlds
Known = Mapping[tuple[str, str, int], Mapping[str, float]]  # summaries by world, method and seed


def read(path: Path) -> Known:
    """Every line of a results file."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return {(line["world"], line["method"], line["seed"]): line["summary"] for line in lines}


def figure(known: Known, name: str, world: str, method: str, seeds: Sequence[int]) -> float | None:
    """The mean over these seeds; None where one is missing."""
    runs = [known.get((world, method, seed), {}) for seed in seeds]
    found = [run[name] for run in runs if run.get(name) is not None]
    return mean(found) if len(found) == len(seeds) else None


def used_table(known: Known, methods: Sequence[str], seeds: Sequence[int]) -> Iterator[str]:
    """What clients use, and in brackets how often a refresh ended worse than what was trained."""
    yield "| used (worse) | " + " | ".join(WORLDS) + " |"
    yield "|---" * (len(WORLDS) + 1) + "|"
    for method in methods:
        cells = []
        for world in WORLDS:
            used = figure(known, "client_accepted", world, method, seeds)
            worse = figure(known, "worse_accepted", world, method, seeds)
            cells.append("-" if used is None or worse is None else f"{used:.3f} ({100 * worse:.1f}%)".lstrip("0"))
        yield f"| {method} | " + " | ".join(cells) + " |"


def rank_table(known: Known, methods: Sequence[str], seeds: Sequence[int]) -> Iterator[str]:
    """Every method's rank in each world, the mean of them, and how many points it is behind the first."""
    yield "| | rank in each world | mean | points behind the first: mean, most |"
    yield "|---|---|---|---|"
    ranks: dict[str, list[float]] = {method: [] for method in methods}
    behind: dict[str, list[float]] = {method: [] for method in methods}
    for world in WORLDS:
        all_scores = {method: figure(known, "client_accepted", world, method, seeds) for method in methods}
        scores = {method: score for method, score in all_scores.items() if score is not None}
        order = sorted(scores.values(), reverse=True)
        for method, score in scores.items():
            ranks[method].append(order.index(score) + 1 + (order.count(score) - 1) / 2)
            behind[method].append(100 * (order[0] - score))
    shown = sorted((m for m in methods if len(ranks[m]) >= FEWEST), key=lambda method: mean(ranks[method]))
    for method in shown:
        each = ", ".join(f"{rank:g}" for rank in ranks[method])
        far = f"{mean(behind[method]):.2f}, {max(behind[method]):.1f}"
        yield f"| {method} | {each} | {mean(ranks[method]):.1f} | {far} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=RESULTS, help="a league's results file")
    parser.add_argument("--seeds", default="3,4,5", help="which, as A,B; a method without one of them is left out")
    parser.add_argument(
        "--waiting", choices=["all", "none"], default="all", help="none: methods that wait for nobody alone"
    )
    asked = parser.parse_args()
    known = read(asked.results)
    ran = {str(seed): seed for *_, seed in known}
    if unknown := [seed for seed in asked.seeds.split(",") if seed not in ran]:
        parser.error(f"{asked.results} has no run of seed {', '.join(unknown)}. Its seeds are {', '.join(sorted(ran))}")
    seeds = [ran[seed] for seed in asked.seeds.split(",")]
    methods = list(dict.fromkeys(method for _, method, _ in known))
    entered = [m for m in (STREAMS if asked.waiting == "none" else methods) if m not in VARIANTS]
    print(*used_table(known, methods, seeds), "", *rank_table(known, entered, seeds), sep="\n")


if __name__ == "__main__":
    main()
