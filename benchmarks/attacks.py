"""Run the attack table: what hostile clients cost each method, by defence, attack and share of clients.

A cell is digits-4 with some of every twenty clients hostile. Every cell and seed is a run of its own below --runs, is
resumed if it was interrupted, and adds one line to benchmarks/results/attacks.jsonl when it ends; lines that are there
are not run again. The table shows the points of accuracy that honest clients lose against the same run without
attacker, in which all clients are honest; and of that run, how many uploads were set aside all the same.

    python benchmarks/attacks.py --defence nothing --hostile 1 --seeds 0
    python benchmarks/attacks.py --methods confluence,cdfl --attacks x10,flood --hostile 1,2,5 --seeds 0,1,2 --jobs 2
    python benchmarks/attacks.py --show

"defaults" is what a server does unless it is told otherwise; "robust" also weighs all members the same, and trims what
FedBuff and FedAvg average.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, fields
from itertools import product
from pathlib import Path
from statistics import mean
from typing import Any

from artesian.config.experiments import load
from artesian.errors import Refused, Stalled
from artesian.simulator.attacks import ATTACKS
from artesian.simulator.run import run_experiment
from artesian.simulator.saved_runs import open_run

DEFENCES: Mapping[str, Sequence[str]] = {  # by name: what a defence sets, as --set would
    "nothing": [],
    "defaults": ["defence.clip=3.0"],  # the table with this default; all others follow
    "robust": ["defence.clip=3.0", "defence.weights=equal"],
}
AVERAGING = {"robust": {"fedbuff": "trimmed", "fedavg": "trimmed"}}  # by defence and method: how uploads are averaged
METHODS = ("confluence", "cdfl", "fedbuff", "fedasync", "fedavg")
HOSTILE = (1, 2, 5)  # of twenty clients
NOBODY = "none"  # the attack of the run without attacker
PRESET = "digits-4"
RESULTS = Path(__file__).parent / "results" / "attacks.jsonl"
SCORE = "client_after"
KEPT = (
    "uploads", "rounds", "client_before", "client_after", "cluster", "cluster_final", "hostile_uploads",
    "hostile_refused", "refusals", "virtual_time", "ended",
)  # fmt: skip


@dataclass(frozen=True)
class Cell:
    """One run: who attacks whom, how many of twenty clients do, and what is set against it."""

    defence: str
    method: str
    attack: str
    hostile: int
    seed: int

    @property
    def unattacked(self) -> Cell:
        """The run that this one is compared with."""
        return Cell(self.defence, self.method, NOBODY, 0, self.seed)

    @property
    def settings(self) -> list[str]:
        """What is changed in the preset."""
        attack = [f"fleet.hostile_share={self.hostile / 20}", f"fleet.attack={self.attack}"] if self.hostile else []
        rule = AVERAGING.get(self.defence, {}).get(self.method)
        averaging = [f"algorithm.aggregate={rule}"] if rule else []
        return [f"algorithm.name={self.method}", *averaging, *attack, *DEFENCES[self.defence]]

    def folder(self, runs: Path) -> Path:
        """Where the run is kept."""
        return runs / self.defence / self.method / f"{self.attack}-{self.hostile}" / f"seed-{self.seed}"


def cells(
    defences: Sequence[str],
    methods: Sequence[str],
    attacks: Sequence[str],
    hostile: Sequence[int],
    seeds: Sequence[int],
) -> list[Cell]:
    """All runs of a table: a seed after the other, and first those without attacker."""
    found: list[Cell] = []
    for seed in seeds:
        of_seed = product(hostile, attacks, defences, methods)
        attacked = [Cell(defence, method, attack, count, seed) for count, attack, defence, method in of_seed]
        found += dict.fromkeys([*(cell.unattacked for cell in attacked), *attacked])
    return found


def recorded(results: Path = RESULTS) -> dict[Cell, dict[str, Any]]:
    """What has ended, with the figures that were kept."""
    lines = results.read_text().splitlines() if results.exists() else []
    entries = [json.loads(line) for line in lines]
    return {Cell(**{f.name: entry[f.name] for f in fields(Cell)}): entry for entry in entries}


def summary_of(cell: Cell, runs: Path) -> Mapping[str, Any]:
    """Run one cell; of a run that its attackers ended, the error it ended with."""
    folder = cell.folder(runs)
    try:
        run = run_experiment(load(PRESET, cell.settings), seed=cell.seed, out=folder, resume=True)
    except (Refused, Stalled) as error:
        return {"ended": f"{type(error).__name__}: {error}"}
    return (run or open_run(folder)).summary


def record(cell: Cell, summary: Mapping[str, Any], results: Path = RESULTS) -> None:
    """Add the line of a cell that ended."""
    figures = {key: summary[key] for key in KEPT if summary.get(key) is not None}
    if "notes" in summary:
        figures["set_aside"] = summary["notes"].get("set_aside", 0.0)
    results.parent.mkdir(parents=True, exist_ok=True)
    with results.open("a") as file:
        file.write(json.dumps({**asdict(cell), **figures}) + "\n")


def run_all(wanted: Sequence[Cell], jobs: int, runs: Path, results: Path = RESULTS) -> None:
    """Run what has no line yet, so many at once."""
    known = recorded(results)
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        begun = {pool.submit(summary_of, cell, runs): cell for cell in wanted if cell not in known}
        for future in as_completed(begun):
            if error := future.exception():  # it has no line, and runs again next time; the others count all the same
                print(f"{begun[future]}: {type(error).__name__}: {error}", file=sys.stderr)
                continue
            record(begun[future], future.result(), results)
            print(f"{begun[future]}: {future.result().get(SCORE, 'ended')}", file=sys.stderr)


def shown(wanted: Sequence[Cell], results: Path = RESULTS) -> Iterator[str]:
    """Markdown tables of the points lost, one for each defence and number of hostile clients: means over seeds."""
    known = recorded(results)
    for defence, hostile in dict.fromkeys((cell.defence, cell.hostile) for cell in wanted if cell.hostile):
        some = [cell for cell in wanted if (cell.defence, cell.hostile) == (defence, hostile)]
        methods = list(dict.fromkeys(cell.method for cell in some))
        yield f"\ndefence {defence}, {hostile} of twenty hostile: points lost\n"
        yield "| attack | " + " | ".join(methods) + " |"
        yield "|---" * (len(methods) + 1) + "|"
        whole = [[cell.unattacked for cell in some if cell.method == method] for method in methods]
        yield "| none: accuracy | " + " | ".join(_accuracy(of, known) for of in whole) + " |"
        yield "| none: set aside, % | " + " | ".join(_set_aside(of, known) for of in whole) + " |"
        for attack in dict.fromkeys(cell.attack for cell in some):
            rows = [[c for c in some if (c.attack, c.method) == (attack, method)] for method in methods]
            yield f"| {attack} | " + " | ".join(_lost(of, known) for of in rows) + " |"


def _accuracy(some: Sequence[Cell], known: Mapping[Cell, Mapping[str, Any]]) -> str:
    """The mean accuracy of honest clients, in percent."""
    scores = [known[cell][SCORE] for cell in dict.fromkeys(some) if cell in known]
    return f"{100 * mean(scores):.1f}" if scores else "-"


def _set_aside(some: Sequence[Cell], known: Mapping[Cell, Mapping[str, Any]]) -> str:
    """How many of the uploads were set aside though all clients are honest, in percent."""
    shares = [
        known[c]["set_aside"] / known[c]["uploads"] for c in dict.fromkeys(some) if "set_aside" in known.get(c, {})
    ]
    return f"{100 * mean(shares):.1f}" if shares else "-"


def _lost(some: Sequence[Cell], known: Mapping[Cell, Mapping[str, Any]]) -> str:
    """The mean of the points lost; `ended` where attackers ended a run."""
    both = [(known[cell.unattacked], known[cell]) for cell in some if cell in known and cell.unattacked in known]
    if any("ended" in attacked for _, attacked in both):
        return "ended"
    return f"{100 * mean(before[SCORE] - attacked[SCORE] for before, attacked in both):.1f}" if both else "-"


def _names(known: Sequence[str]) -> Any:
    """Reads names, separated by commas, each of which must be known."""

    def read(text: str) -> list[str]:
        names = text.split(",")
        if unknown := [name for name in names if name not in known]:
            raise argparse.ArgumentTypeError(f"{', '.join(unknown)} is unknown. There are {', '.join(known)}.")
        return names

    return read


def _counts(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--defence", type=_names(list(DEFENCES)), default=list(DEFENCES), help="which, as A,B")
    parser.add_argument("--attacks", type=_names(ATTACKS), default=list(ATTACKS), help="which, as A,B")
    parser.add_argument("--methods", type=_names(METHODS), default=list(METHODS), help="which, as A,B")
    parser.add_argument("--hostile", type=_counts, default=list(HOSTILE), help="clients of twenty, as 1,2,5")
    parser.add_argument("--seeds", type=_counts, default=[0], help="which, as 0,1,2")
    parser.add_argument("--jobs", type=int, default=1, help="how many runs at once, each on one core")
    parser.add_argument("--runs", type=Path, default=Path("runs/attacks"), help="where runs are kept")
    parser.add_argument("--show", action="store_true", help="print what has ended, and run nothing")
    asked = parser.parse_args()
    wanted = cells(asked.defence, asked.methods, asked.attacks, asked.hostile, asked.seeds)
    if not asked.show:
        run_all(wanted, asked.jobs, asked.runs)
    print(*shown(wanted), sep="\n")


if __name__ == "__main__":
    main()
