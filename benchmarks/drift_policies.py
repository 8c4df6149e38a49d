"""Measure when refreshing pays: policies and detectors in worlds that drift, beside refreshing always and an oracle.

A cell is a world with one policy. Every cell and seed is a run of its own below --runs, is resumed if it was
interrupted, and adds one line to benchmarks/results/drift-policies.jsonl when it ends; lines that are there are not run
again. The tables show means over seeds: the accuracy of what clients use, on their data of the moment, over all turns;
the same and all bytes as a share of those with `always`; what is lost against the oracle; and the detector's delay in
turns, missed drifts and false alarms for each batch.

    python benchmarks/drift_policies.py --worlds drift-sudden,drift-none --seeds 0
    python benchmarks/drift_policies.py --worlds har-sudden --policies always,never,oracle,ks --seeds 0,1,2
    python benchmarks/drift_policies.py --show
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import product
from pathlib import Path
from statistics import mean
from typing import Any

from artesian.config.experiments import load
from artesian.simulator.run import run_experiment
from artesian.simulator.saved_runs import open_run

ROWS = ["watch.settings.reference=100", "watch.settings.window=50"]  # of detectors that compare two samples
NONE = ["watch.detector=", "watch.settings="]
STREAM = ["watch.settings="]  # those that look at one number after the other have other settings
PEOPLE = [
    "turns=600", "drift.every=10", "evaluate=clusters", "target=", "accept=better", "drift.kind=sudden",
    "watch.batch=50", "watch.settings.reference=100", "watch.settings.window=50", "watch.detector=ks",
    "fleet.slow_share=0.0",
]  # fmt: skip
FASHION = [
    "turns=200", "accept=better", "world.clients=20", "world.samples_min=200", "world.samples_max=300",
    "world.main_share_min=0.9", "world.main_share_max=1.0", "world.redraw=samples", "drift.kind=sudden",
    "drift.every=6", "watch.batch=50", "watch.settings.reference=100", "watch.settings.window=50",
    "watch.detector=ks", "start.trunk_epochs=2", "start.epochs=1", "world.client_test_samples=200",
]  # fmt: skip
WORLDS: Mapping[str, tuple[str, Sequence[str]]] = {  # by name: a preset, and what is changed in it
    **{name: (name, ()) for name in ("drift-none", "drift-sudden", "drift-gradual", "drift-recurring")},
    "relabelled-sudden": ("drift-sudden", ["world.name=relabelled"]),
    "har-none": ("har-people", [*PEOPLE, "drift.kind=none"]),
    "har-sudden": ("har-people", [*PEOPLE, "drift.what=covariate"]),
    "har-long": ("har-people", [*PEOPLE, "drift.what=covariate", "turns=2400", "drift.every=40"]),
    "har-labels": ("har-people", [*PEOPLE, "drift.what=labels"]),
    "har-person": ("har-people", [*PEOPLE, "drift.what=mixture"]),
    "fashion-sudden": ("fashion-4", [*FASHION]),
}
POLICIES: Mapping[str, Sequence[str]] = {  # by name: what is set
    "always": ["watch.when=always", *NONE],
    "never": ["watch.when=never", *NONE],
    "oracle": ["watch.when=oracle", *NONE],
    "every 4": ["watch.when=every 4", *NONE],
    "every 5": ["watch.when=every 5", *NONE],
    "every 10": ["watch.when=every 10", *NONE],
    "adwin": ["watch.detector=adwin", *STREAM],
    "page-hinkley": ["watch.detector=page-hinkley", *STREAM],
    "kswin": ["watch.detector=kswin", *STREAM],
    "ks": ["watch.detector=ks", *ROWS],
    "ks on logits": ["watch.detector=ks", *ROWS, "watch.settings.part=logits"],
    "mmd": ["watch.detector=mmd", *ROWS],
    "labels": ["watch.detector=labels", *ROWS],
    "never 3 times": ["watch.when=never", "watch.again=3", *NONE],
    "oracle 3 times": ["watch.when=oracle", "watch.again=3", *NONE],
    "ks 3 times": ["watch.detector=ks", *ROWS, "watch.again=3"],
    "mmd 3 times": ["watch.detector=mmd", *ROWS, "watch.again=3"],
    "mmd 5 times": ["watch.detector=mmd", *ROWS, "watch.again=5"],
    "mmd or every 4": ["watch.when=drift or every 4", "watch.detector=mmd", *ROWS],
    "ks or every 5": ["watch.when=drift or every 5", "watch.detector=ks", *ROWS],
}
LEVELS = {"adwin": 0.002, "kswin": 0.0001, "ks": 0.01, "ks on logits": 0.01, "mmd": 0.01, "labels": 0.01}
LEVELS |= {"ks 3 times": 0.01, "mmd 3 times": 0.01, "mmd 5 times": 0.01}
RESULTS = Path(__file__).parent / "results" / "drift-policies.jsonl"
KEPT = (
    "turns", "refreshes", "in_use", "client_after", "client_accepted", "drifts", "alarms", "detection_delay",
    "missed_drifts", "false_alarms", "false_alarm_rate", "bytes_up", "bytes_down", "wall_seconds",
)  # fmt: skip
Results = Mapping["Cell", Mapping[str, Any]]


@dataclass(frozen=True)
class Cell:
    """One run: a policy in a world."""

    world: str
    policy: str
    seed: int

    def beside(self, policy: str) -> Cell:
        """The run of another policy that this one is compared with."""
        return Cell(self.world, policy, self.seed)

    @property
    def source(self) -> tuple[str, list[str]]:
        """The preset, and what is changed in it."""
        preset, changes = WORLDS[self.world]
        return preset, [*changes, *POLICIES[self.policy]]

    def folder(self, runs: Path) -> Path:
        """Where the run is kept."""
        return runs / self.world / self.policy.replace(" ", "-") / f"seed-{self.seed}"


def cells(worlds: Sequence[str], policies: Sequence[str], seeds: Sequence[int]) -> list[Cell]:
    """All runs of the tables, a seed after the other."""
    return [Cell(world, policy, seed) for seed, world, policy in product(seeds, worlds, policies)]


def recorded(results: Path = RESULTS) -> dict[Cell, dict[str, Any]]:
    """What has ended, with the figures that were kept."""
    lines = results.read_text().splitlines() if results.exists() else []
    entries = [json.loads(line) for line in lines]
    return {Cell(**{f.name: entry[f.name] for f in fields(Cell)}): entry for entry in entries}


def summary_of(cell: Cell, runs: Path) -> Mapping[str, Any]:
    """Run one cell, or go on with it."""
    folder = cell.folder(runs)
    preset, changes = cell.source
    run = run_experiment(load(preset, changes), seed=cell.seed, out=folder, resume=True)
    return (run or open_run(folder)).summary


def record(cell: Cell, summary: Mapping[str, Any], results: Path = RESULTS) -> None:
    """Add the line of a cell that ended."""
    figures = {key: summary[key] for key in KEPT if summary.get(key) is not None}
    results.parent.mkdir(parents=True, exist_ok=True)
    with results.open("a") as file:
        file.write(json.dumps({**asdict(cell), **figures}) + "\n")


def run_all(wanted: Sequence[Cell], runs: Path, results: Path = RESULTS) -> None:
    """Run what has no line yet, one after the other."""
    known = recorded(results)
    for cell in (cell for cell in wanted if cell not in known):
        summary = summary_of(cell, runs)
        record(cell, summary, results)
        print(f"{cell}: {summary['in_use']:.3f}, {summary['wall_seconds']} s", file=sys.stderr)


def shown(wanted: Sequence[Cell], results: Path = RESULTS) -> Iterator[str]:
    """A Markdown table for each world: means over the seeds that have ended."""
    known = recorded(results)
    for world in dict.fromkeys(cell.world for cell in wanted):
        seeds = len({cell.seed for cell in wanted if cell.world == world and cell in known})
        yield f"\n{world}, {seeds} seed{'s' if seeds != 1 else ''}\n"
        yield "| " + " | ".join(["policy", *COLUMNS]) + " |"
        yield "|---" * (len(COLUMNS) + 1) + "|"
        for policy in dict.fromkeys(cell.policy for cell in wanted):
            of = [cell for cell in wanted if (cell.world, cell.policy) == (world, policy) and cell in known]
            if of:
                yield f"| {policy} | " + " | ".join(column(of, known) for column in COLUMNS.values()) + " |"


def _figure(key: str, pattern: str) -> Callable[[Sequence[Cell], Results], str]:
    """The mean of a figure, where there is one."""

    def read(of: Sequence[Cell], known: Results) -> str:
        found = [known[cell][key] for cell in of if key in known[cell]]
        return pattern.format(mean(found)) if found else "-"

    return read


def _compared(
    other: str, compare: Callable[[Any, Any], float], pattern: str
) -> Callable[[Sequence[Cell], Results], str]:
    """The mean of a comparison with another policy, seed by seed."""

    def read(of: Sequence[Cell], known: Results) -> str:
        pairs = [(known[cell], known[cell.beside(other)]) for cell in of if cell.beside(other) in known]
        return pattern.format(mean(compare(*pair) for pair in pairs)) if pairs else "-"

    return read


def _bytes(entry: Mapping[str, Any]) -> int:
    return int(entry["bytes_up"] + entry["bytes_down"])


def _level(of: Sequence[Cell], known: Results) -> str:
    return str(LEVELS.get(of[0].policy, "-"))


COLUMNS: Mapping[str, Callable[[Sequence[Cell], Results], str]] = {
    "in use": _figure("in_use", "{:.3f}"),
    "of always": _compared("always", lambda one, all_: one["in_use"] / all_["in_use"], "{:.1%}"),
    "bytes of always": _compared("always", lambda one, all_: _bytes(one) / _bytes(all_), "{:.1%}"),
    "regret": _compared("oracle", lambda one, best: best["in_use"] - one["in_use"], "{:.3f}"),
    "refreshes": _figure("refreshes", "{:.0f}"),
    "drifts": _figure("drifts", "{:.0f}"),
    "delay": _figure("detection_delay", "{:.1f}"),
    "missed": _figure("missed_drifts", "{:.0f}"),
    "false alarms a batch": _figure("false_alarm_rate", "{:.4f}"),
    "level": _level,
}


def _names(known: Mapping[str, Any]) -> Callable[[str], list[str]]:
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
    digits = [name for name in WORLDS if name.startswith("drift-")]
    parser.add_argument("--worlds", type=_names(WORLDS), default=digits, help=f"of {', '.join(WORLDS)}, as A,B")
    parser.add_argument("--policies", type=_names(POLICIES), default=list(POLICIES), help="which, as A,B")
    parser.add_argument("--seeds", type=_counts, default=[0], help="which, as 0,1,2")
    parser.add_argument("--runs", type=Path, default=Path("runs/drift"), help="where runs are kept")
    parser.add_argument("--show", action="store_true", help="print what has ended, and run nothing")
    asked = parser.parse_args()
    wanted = cells(asked.worlds, asked.policies, asked.seeds)
    if not asked.show:
        run_all(wanted, asked.runs)
    print(*shown(wanted), sep="\n")


if __name__ == "__main__":
    main()
