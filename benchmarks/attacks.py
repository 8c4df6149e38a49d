"""Run the attack table: what hostile clients cost each method, by defence, attack and share of clients.

A cell is digits-4 with some of every twenty clients hostile. Every cell and seed is a run of its own below --runs, is
resumed if it was interrupted, and adds one line to benchmarks/results/attacks.jsonl when it ends; lines that are there
are not run again. The table shows the points of accuracy that honest clients lose against the same run without
attacker, in which all clients are honest; and of that run, how many uploads were set aside all the same.

    python benchmarks/attacks.py --defence nothing --hostile 1 --seeds 0
    python benchmarks/attacks.py --methods confluence,cdfl --attacks x10,flood --hostile 1,2,5 --seeds 0,1,2 --jobs 2
    python benchmarks/attacks.py --hostile 1,2,5 --seeds 0,1,2 --show

"defaults" is what a server does unless it is told otherwise; "robust" also weighs all members the same, and trims what
FedBuff and FedAvg average. Where uploads are folded one by one there is nothing to weigh or to trim: runs would have
the bits that they have with the defaults, and are not run twice.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, fields, replace
from itertools import product
from operator import attrgetter
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
Known = Mapping["Cell", Mapping[str, Any]]  # the figures of runs that ended
Figure = Callable[[Sequence["Cell"], Known], str]
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
    def run(self) -> Cell:
        """The run with the bits of this one: where nothing is averaged, robust rules have nothing to do."""
        one_by_one = self.defence == "robust" and self.method not in AVERAGING["robust"]
        return replace(self, defence="defaults") if one_by_one else self

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
    missing = dict.fromkeys(cell.run for cell in wanted if cell.run not in known)
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        begun = {pool.submit(summary_of, cell, runs): cell for cell in missing}
        for future in as_completed(begun):
            if error := future.exception():  # it has no line, and runs again next time; the others count all the same
                print(f"{begun[future]}: {type(error).__name__}: {error}", file=sys.stderr)
                continue
            record(begun[future], future.result(), results)
            print(f"{begun[future]}: {future.result().get(SCORE, 'ended')}", file=sys.stderr)


def shown(wanted: Sequence[Cell], results: Path = RESULTS) -> Iterator[str]:
    """Markdown tables of the points lost, one for each number of hostile clients: means over seeds, by defence."""
    lines = recorded(results)
    known = {cell: lines[cell.run] for cell in [*wanted, *_unattacked(wanted)] if cell.run in lines}
    for hostile in dict.fromkeys(cell.hostile for cell in wanted if cell.hostile):
        some = [cell for cell in wanted if cell.hostile == hostile]
        defences, methods = (list(dict.fromkeys(map(attrgetter(name), some))) for name in ("defence", "method"))
        yield f"\n{hostile} of twenty hostile: points lost with {', '.join(defences)}\n"
        yield "| attack | " + " | ".join(methods) + " |"
        yield "|---" * (len(methods) + 1) + "|"
        attacks = {attack: [cell for cell in some if cell.attack == attack] for attack in ATTACKS}
        yield _row("none: accuracy", some, _accuracy, known)
        yield _row("none: set aside, %", some, _set_aside, known)
        yield from (_row(attack, cells, _lost, known) for attack, cells in attacks.items() if cells)
        yield _row("the most in a single run", some, _most, known)


def _row(word: str, some: Sequence[Cell], figure: Figure, known: Known) -> str:
    """A line of a table: for each method, the figure of every defence."""
    of: dict[str, dict[str, list[Cell]]] = {}
    for cell in some:
        of.setdefault(cell.method, {}).setdefault(cell.defence, []).append(cell)
    parts = [", ".join(figure(cells, known) for cells in by_defence.values()) for by_defence in of.values()]
    return f"| {word} | " + " | ".join(parts) + " |"


def _accuracy(some: Sequence[Cell], known: Known) -> str:
    """The mean accuracy of honest clients, in percent."""
    scores = [known[cell][SCORE] for cell in _unattacked(some) if cell in known]
    return f"{100 * mean(scores):.1f}" if scores else "-"


def _set_aside(some: Sequence[Cell], known: Known) -> str:
    """How many of the uploads were set aside though all clients are honest, in percent."""
    shares = [known[c]["set_aside"] / known[c]["uploads"] for c in _unattacked(some) if "set_aside" in known.get(c, {})]
    return f"{100 * mean(shares):.1f}" if shares else "-"


def _lost(some: Sequence[Cell], known: Known) -> str:
    """The mean of the points lost; `ended` where attackers ended a run."""
    lost = _each_lost(some, known)
    return "ended" if None in lost else _points(mean(lost)) if lost else "-"


def _most(some: Sequence[Cell], known: Known) -> str:
    """The most points that a single run lost."""
    lost = _each_lost(some, known)
    return "ended" if None in lost else _points(max(lost)) if lost else "-"


def _each_lost(some: Sequence[Cell], known: Known) -> list[Any]:
    """The points that each run lost against the one without attacker; None where attackers ended it."""
    both = [(known[cell.unattacked], known[cell]) for cell in some if cell in known and cell.unattacked in known]
    return [None if "ended" in attacked else 100 * (before[SCORE] - attacked[SCORE]) for before, attacked in both]


def _unattacked(some: Sequence[Cell]) -> list[Cell]:
    """The runs that these are compared with, each once."""
    return list(dict.fromkeys(cell.unattacked for cell in some))


def _points(lost: float) -> str:
    return f"{round(lost, 1) + 0.0:.1f}"  # never -0.0


def _names(known: Sequence[str]) -> Any:
    """Reads names, separated by commas, each of which must be known."""

    def read(text: str) -> list[str]:
        names = text.split(",")
        if unknown := [name for name in names if name not in known]:
            raise argparse.ArgumentTypeError(f"{', '.join(unknown)} is unknown. There are {', '.join(known)}.")
        return names

    return read


def _counts(text: str) -> list[int]:
    if not all(part.isdecimal() for part in text.split(",")):
        raise argparse.ArgumentTypeError(f"{text} is not a list of whole numbers, such as 0,1,2")
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
