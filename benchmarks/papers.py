"""Run the tables of the papers, row by row, and print them beside the printed numbers.

A row is a preset with some settings changed. Every row and seed is a run of its own below --runs, is resumed if it was
interrupted, and adds one line to benchmarks/results/papers.jsonl when it ends; lines that are there are not run again.

    python benchmarks/papers.py --list
    python benchmarks/papers.py casa-mnist --seeds 3 --jobs 2
    python benchmarks/papers.py casa-mnist --show
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "papers.jsonl"
KEPT = (
    "uploads", "rounds", "client_before", "client_after", "cluster", "cluster_final", "cluster_all", "kl", "kl_uniform",
    "clusters", "purity", "rand", "clients", "clients_best", "weighted_best", "time_to_target", "transfers",
    "virtual_time",
)  # fmt: skip


@dataclass(frozen=True)
class Row:
    """One method of a table: what is changed in the preset, and what the paper prints for it, as text."""

    changes: Sequence[str]
    printed: str = ""


@dataclass(frozen=True)
class Paper:
    """One table: a preset, what all its rows change, the figures it shows, and its rows by name."""

    preset: str
    columns: Mapping[str, str]  # heading -> key of a run's summary
    rows: Mapping[str, Row]
    changes: Sequence[str] = ()


def row(name: str, printed: str = "", *changes: str) -> Row:
    return Row((f"algorithm.name={name}", *changes), printed)


CASA = {"accuracy": "clients", "best": "clients_best", "time to 95%": "time_to_target", "clusters": "clusters"}
CASA |= {"purity": "purity", "adjusted Rand": "rand", "time": "virtual_time", "models sent": "transfers"}
FLEX = {"accuracy": "weighted_best", "models sent": "transfers"}
CDFL = {"before": "client_before", "after": "client_after", "cluster": "cluster", "cluster, all": "cluster_all"}
CDFL |= {"KL": "kl", "KL even": "kl_uniform"}
SGD = ("training.optimizer=sgd", "training.rate=0.1", "training.decay=0", "training.batch=32")
FORTY = ("world.clients=40", "uploads=1000", "evaluate_every=100", "proxy_sample=500")

PAPERS = {
    "digits-4": Paper(
        "digits-4",
        CDFL,
        {
            "CDFL": row("cdfl"),
            "FedProx": row("fedprox"),
            "FedAvg": row("fedavg"),
            "FedBuff": row("fedbuff"),
            "FedAsync": row("fedasync"),
            "CA2FL": row("ca2fl"),
            "Local": row("local"),
        },
    ),
    "digits-4-sgd": Paper(
        "digits-4",
        CDFL,
        {"CDFL": row("cdfl"), "FedAvg": row("fedavg"), "FedBuff": row("fedbuff"), "Local": row("local")},
        SGD,
    ),
    "casa-mnist": Paper(
        "casa-mnist",
        CASA,
        {
            "CASA": row("casa", "99.52 / 2.80"),
            "CASA, by changes": row("casa", "", "algorithm.similarity=delta"),
            "CASA+": row("casa+", "99.34 / 4.80"),
            "CFL": row("cfl", "99.42 / 30.63"),
            "CFL-Async": row("cfl-async", "99.23 / 9.54"),
            "IFCA": row("ifca", "99.50 / 12.8"),
            "IFCA-Async": row("ifca-async", "98.88 / 8.83"),
            "ICFL": row("icfl", "98.68 / 12.18"),
            "ICFL-Async": row("icfl-async", "98.82 / 5"),
            "FedAvg": row("fedavg", "97.92 / 80.24"),
            "FedProx": row("fedprox", "97.31 / 104.68"),
            "FedAsync": row("fedasync", "97.46 / 109.53"),
            "FedBuff": row("fedbuff", "99.25 / 53.31"),
            "Local": row("local", "98.26 / 4.9"),
        },
    ),
    "flexcfl-mnist": Paper(
        "flexcfl-mnist",
        FLEX,
        {
            "FedAvg": row("fedavg", "89.4"),
            "FedProx": row("fedprox", "90.9"),
            "IFCA": row("ifca", "94.2"),
            "FeSEM": row("fesem", "84.6"),
            "RCC": row("fedgroup", "93.4", "algorithm.random_centers=true"),
            "RAC": row("fedgroup", "88.2", "algorithm.random_assign=true"),
            "FedGroup": row("fedgroup"),
            "FlexCFL": row("flexcfl", "95.8"),
            "FlexCFL-g": row("flexcfl", "95.2", "algorithm.inter_group_lr=0.1"),
        },
    ),
    "flexcfl-mnist-swap": Paper(
        "flexcfl-mnist",
        FLEX,
        {
            "FedAvg": row("fedavg", "89.9"),
            "IFCA": row("ifca", "64.5"),
            "IFCA-MIG": row("ifca", "", "algorithm.migrate=true"),
            "FeSEM": row("fesem", "84.7"),
            "FedGroup": row("fedgroup", "87.1"),
            "FlexCFL": row("flexcfl", "95.1"),
            "FlexCFL-g": row("flexcfl", "89.1", "algorithm.inter_group_lr=5"),
        },
        ("shift.kind=swap-all",),
    ),
    "fashion-4": Paper(
        "fashion-4",
        CDFL,
        {"CDFL": row("cdfl", ".768 / .800 / .829")},
        ("evaluate_every=100", "proxy_sample=500"),
    ),
    "fashion-4-of-40": Paper(
        "fashion-4",
        CDFL,
        {
            "CDFL": row("cdfl", ".768 / .800 / .829"),
            "FedSoft-Async": row("fedsoft-async", ".763 / .786 / .800"),
            "FedBuff": row("fedbuff", ".758"),
            "CA2FL": row("ca2fl", ".514"),
            "Local": row("local", ".694"),
        },
        FORTY,
    ),
}


def command(table: str, name: str, seed: int, runs: Path) -> list[str]:
    """How to run one row with one seed."""
    paper = PAPERS[table]
    changes = [part for change in (*paper.changes, *paper.rows[name].changes) for part in ("--set", change)]
    folder = runs / table / name.replace(" ", "-").replace(",", "") / f"seed-{seed}"
    options = ["--seed", str(seed), "--resume", "--json", "--out", str(folder)]
    return [sys.executable, "-m", "artesian.cli", "simulate", paper.preset, *changes, *options]


def recorded(results: Path = RESULTS) -> dict[tuple[str, str, int], dict[str, Any]]:
    """What has ended: table, row and seed, with the figures that were kept."""
    lines = results.read_text().splitlines() if results.exists() else []
    found = [json.loads(line) for line in lines]
    return {(entry["table"], entry["row"], entry["seed"]): entry for entry in found}


def run(table: str, name: str, seed: int, runs: Path, results: Path = RESULTS) -> None:
    """Run one row with one seed, and add its line."""
    single = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command(table, name, seed, runs), stdout=subprocess.PIPE, text=True, env=single, check=False)
    if done.returncode:
        print(f"{table}, {name}, seed {seed}: ended with {done.returncode}; its own message is above", file=sys.stderr)
        return
    record(table, name, seed, json.loads(done.stdout.splitlines()[-1]), results)


def record(table: str, name: str, seed: int, summary: Mapping[str, Any], results: Path = RESULTS) -> None:
    """Add the line of a row that ended."""
    figures = {key: summary[key] for key in KEPT if summary.get(key) is not None}
    results.parent.mkdir(parents=True, exist_ok=True)
    with results.open("a") as file:
        file.write(json.dumps({"table": table, "row": name, "seed": seed, **figures}) + "\n")


def shown(table: str, results: Path = RESULTS) -> Iterator[str]:
    """A Markdown table of what has ended: means over seeds, with their standard deviation from two on."""
    paper, known = PAPERS[table], recorded(results)
    yield "| method | " + " | ".join(paper.columns) + " | seeds | printed |"
    yield "|---" * (len(paper.columns) + 3) + "|"
    for name, wanted in paper.rows.items():
        found = [entry for (of, row_name, _), entry in sorted(known.items()) if (of, row_name) == (table, name)]
        cells = [_cell([entry[key] for entry in found if key in entry], len(found)) for key in paper.columns.values()]
        yield f"| {name} | " + " | ".join(cells) + f" | {len(found)} | {wanted.printed} |"


def _cell(numbers: Sequence[float], seeds: int) -> str:
    """The mean of some numbers; how many of the seeds have one, where not all do."""
    if not numbers:
        return "-"
    middle = mean(numbers)
    text = f"{middle:,.0f}" if abs(middle) >= 1000 else f"{middle:.3f}" if abs(middle) < 2 else f"{middle:.1f}"
    if len(numbers) > 1 and stdev(numbers) > 0:
        text += f" ± {stdev(numbers):.3f}" if abs(middle) < 2 else f" ± {stdev(numbers):.1f}"
    return text if len(numbers) == seeds else f"{text} ({len(numbers)} of {seeds})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="*", metavar="TABLE", help="which tables; see --list")
    parser.add_argument("--list", action="store_true", help="list tables and rows")
    parser.add_argument("--show", action="store_true", help="print what has ended, and run nothing")
    parser.add_argument("--rows", nargs="+", help="only these rows")
    parser.add_argument("--seeds", type=int, default=1, help="run seeds 0 to N-1, all rows of a seed before the next")
    parser.add_argument("--jobs", type=int, default=1, help="how many rows run at once, each on one core")
    parser.add_argument("--runs", type=Path, default=Path("runs/papers"), help="where runs are kept")
    wanted = parser.parse_args()
    if unknown := set(wanted.tables) - set(PAPERS):
        parser.error(f"No such table: {', '.join(sorted(unknown))}. There are {', '.join(PAPERS)}.")
    if wanted.list or not wanted.tables:
        print("\n".join(f"{table}: {'; '.join(paper.rows)}" for table, paper in PAPERS.items()))
        return
    if not wanted.show:
        known = recorded()
        jobs = [
            (table, name, seed, wanted.runs)
            for seed in range(wanted.seeds)
            for table in wanted.tables
            for name in PAPERS[table].rows
            if (not wanted.rows or name in wanted.rows) and (table, name, seed) not in known
        ]
        with ThreadPoolExecutor(wanted.jobs) as pool:
            list(pool.map(lambda job: run(*job), jobs))
    for table in wanted.tables:
        print(f"\n{table}\n", *shown(table), sep="\n")


if __name__ == "__main__":
    main()
