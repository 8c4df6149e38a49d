"""How the simulator's costs grow: with workers, clusters, the size of the model, clients, and the journal.

Run `python benchmarks/scaling.py`. Every figure comes from a process of its own and is a median with the smallest and
largest. The tables are:

* `workers`: W1 with one worker and with more, beside the bare loop's own growth. Tuned, the bare loop has the tricks
  that the simulator has, so both ask the same of the machine.
* `ray`: W1 on Ray, one node, beside processes; Ray has an environment of its own, as peers have.
* `clusters`: what folding and distances are of one upload of CDFL, K from 2 to 16, at 582,026 parameters: training on
  1,250 images and estimating on K proxy sets of 1,000, each on one core.
* `sizes`: the same for K = 4 at 0.58 and 11.2 million parameters.
* `clients`: cost per upload and memory per client with a model of three weights, so that only the framework is seen.
* `journal`: appending to a journal, opening it, and resuming a run, by the number of events.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from measuring import HERE, Outcome, machine, number, rate, run, say, spread, table
from peers import NotInstalled, Peer, environment, installed
from w1 import SIDES, STYLES, Bench, Style, add_plain, at_least, options, prepared, styles, surroundings
from w1_run import Order

LIMIT = 1200.0
RAY = Peer("ray", "ray>=2.60,<3", "")
CLUSTERS = (2, 4, 8, 16)
CLIENTS = (100, 1000, 10_000)
EVENTS = (1000, 10_000)
SIZES: dict[str, dict[str, int]] = {
    "cnn": {"samples": 1250, "proxy": 1000},
    "resnet18": {"samples": 256, "proxy": 100},
}
Found = Mapping[str, float]


@dataclass(frozen=True)
class Plan:
    """How much to measure."""

    updates: int = 100
    repeats: int = 3
    workers: int = 2
    uploads: int = 2000  # of a simulation with many clients
    trainings: int = 3  # timed in one process
    styles: Sequence[Style] = STYLES  # of W1, by the number of workers

    def ask(self, way: str, **order: Any) -> list[Found]:
        """The same measurement in as many processes as there are repeats."""
        say(f"{way} {order}")
        command = [sys.executable, str(HERE / "scaling_run.py"), way, json.dumps(order)]
        return [self._told(run(command, surroundings("tuned"), LIMIT), command) for _ in range(self.repeats)]

    def _told(self, found: Outcome, command: Sequence[str]) -> Found:
        if found.failure:
            raise SystemExit(f"a measurement failed: {' '.join(command[1:])}: {found.failure}")
        return found.told


def workers(plan: Plan, data: Path) -> str:
    """W1 with one worker and with all."""
    counts = sorted({1, plan.workers})
    head = (
        "style, workers",
        "artesian, warm updates/s",
        "times one worker",
        "bare, warm updates/s",
        "times one process",
        "artesian to bare",
        "growth to the bare loop's",
    )
    rows = []
    for style in plan.styles:
        warm = _warm(Bench(data, plan.updates, plan.repeats, plan.workers), style, counts)
        for count in counts:
            grown = growth_row(*(warm[side, count] for side in SIDES), *(warm[side, 1] for side in SIDES))
            rows.append([f"{style}, {count}", *grown])
    return table(head, rows)


def _warm(bench: Bench, style: Style, counts: Sequence[int]) -> dict[tuple[str, int], list[float]]:
    """Updates a second of each side with so many workers, measured in turn."""
    warm: dict[tuple[str, int], list[float]] = {(side, count): [] for side in SIDES for count in counts}
    for repeat in range(bench.repeats):
        for count in counts:
            for side in SIDES:
                say(f"{style}, {side} with {count} worker(s), run {repeat + 1} of {bench.repeats}")
                found = bench.measure(side, replace(Order(style), workers=count))
                warm[side, count].append(rate(found.told["stamps"]))
    return warm


def growth_row(
    ours: Sequence[float], bare: Sequence[float], ours_alone: Sequence[float], bare_alone: Sequence[float]
) -> list[str]:
    """Both sides with so many workers, what they are of one worker, and what ours is of the other."""
    grown, bare_grown = (
        [a / b for a, b in zip(*pair, strict=True)] for pair in ((ours, ours_alone), (bare, bare_alone))
    )
    ratios = [a / b for a, b in zip(ours, bare, strict=True)]
    beside = [a / b for a, b in zip(grown, bare_grown, strict=True)]
    return [spread(values) for values in (ours, grown, bare, bare_grown, ratios, beside)]


def ray(plan: Plan, data: Path) -> str:
    """W1, plain, on Ray and in processes."""
    try:
        python = environment(RAY)
    except NotInstalled as error:
        return f"Ray is not installed: {error}"
    bench = Bench(data, plan.updates, plan.repeats, plan.workers)
    runs: dict[str, list[Outcome]] = {"ray": [], "processes": []}
    for repeat in range(plan.repeats):
        for name, found in runs.items():
            say(f"{name}, run {repeat + 1} of {plan.repeats}")
            order = replace(Order("plain"), workers=plan.workers, executor=name)
            found.append(bench.measure("artesian", order, python))
    warm = {name: [rate(one.told["stamps"]) for one in found] for name, found in runs.items()}
    rows = [
        [
            name,
            spread(warm[name]),
            spread([a / b for a, b in zip(warm[name], warm["processes"], strict=True)]),
            spread([one.seconds for one in found]),
            spread([one.peak_mb for one in found]),
        ]
        for name, found in runs.items()
    ]
    told = table(("executor", "warm updates/s", "to processes", "whole s", "peak MB"), rows)
    return f"Ray {installed(python, RAY.package)}, {plan.workers} workers on one node, started by the run.\n\n{told}"


def clusters(plan: Plan, data: Path) -> str:
    """An upload's parts by the number of clusters."""
    rows = []
    for count in CLUSTERS:
        order = {"network": "cnn", "clusters": count, **SIZES["cnn"]}
        rows.append([str(count), *parts_row(plan.ask("folding", **order, uploads=100, trainings=plan.trainings))])
    return table(("K", *PARTS), rows)


def sizes(plan: Plan, data: Path) -> str:
    """An upload's parts by the size of the model."""
    rows = []
    for name, size in SIZES.items():
        order = {"network": name, "clusters": 4, **size}
        found = plan.ask("folding", **order, uploads=30, trainings=1)
        label = f"{name}: {found[0]['parameters']:,.0f}; {size['samples']:,} images, proxies of {size['proxy']:,}"
        rows.append([label, *parts_row(found)])
    return table(("parameters", *PARTS), rows)


PARTS = (
    "training ms", "estimating ms", "folding ms", "distances ms", "clusters changed", "folding, % of an upload"
)  # fmt: skip


def parts_row(runs: Sequence[Found]) -> list[str]:
    """The parts of an upload; distances are a part of folding."""
    estimating = [run["measuring"] + run["appraising"] for run in runs]
    shares = [
        100 * run["folding"] / (run["folding"] + run["training"] + e) for run, e in zip(runs, estimating, strict=True)
    ]
    middle = [spread([run[part] for run in runs]) for part in ("folding", "distances", "changed")]
    return [spread([run["training"] for run in runs]), spread(estimating), *middle, spread(shares)]


def clients(plan: Plan, data: Path) -> str:
    """What the framework costs per upload and client."""
    rows = []
    for name in ("fedasync", "cdfl"):
        least: float | None = None
        for count in CLIENTS:
            found = plan.ask("clients", name=name, count=count, uploads=plan.uploads)
            memory = statistics.median(run["mb"] for run in found)
            least = memory if least is None else least
            rows.append([f"{name}, {count:,}", *clients_row(found), _each(memory - least, count - CLIENTS[0])])
    head = (
        "algorithm, clients",
        "ms per join",
        "ms per upload",
        "whole s",
        "peak MB",
        f"kB per client beyond {CLIENTS[0]}",
    )
    return table(head, rows)


def clients_row(runs: Sequence[Found]) -> list[str]:
    joining = [spread_small([run["joining"] for run in runs]), spread_small([run["upload"] for run in runs])]
    return [*joining, *(spread([run[part] for run in runs]) for part in ("whole", "mb"))]


def _each(megabytes: float, count: int) -> str:
    return number(megabytes * 1000 / count) if count else ""


def spread_small(values: Sequence[float]) -> str:
    """The same as `spread`, for figures far below 1."""
    low, high, middle = min(values), max(values), statistics.median(values)
    return f"{middle:.3f}" if len(values) == 1 else f"{middle:.3f} ({low:.3f}..{high:.3f})"


def journal(plan: Plan, data: Path) -> str:
    """What a journal costs by its length."""
    rows = []
    for events in EVENTS:
        found = plan.ask("journal", events=events)
        small = [spread_small([run[part] for run in found]) for part in ("append", "append_synced")]
        rows.append(
            [f"{events:,}", *small, *(spread([run[part] for run in found]) for part in ("opening", "resuming", "mb"))]
        )
    head = ("events", "append ms", "append ms, synced", "open ms", "resume a run ms", "MB")
    return table(head, rows)


SECTIONS: dict[str, Callable[[Plan, Path], str]] = {
    "workers": workers,
    "ray": ray,
    "clusters": clusters,
    "sizes": sizes,
    "clients": clients,
    "journal": journal,
}
TITLES = {
    "workers": "Workers",
    "ray": "Ray on one node",
    "clusters": "Clusters: the parts of one upload of CDFL, one core",
    "sizes": "The size of the model, four clusters",
    "clients": "Clients, with a model of three weights",
    "journal": "The length of the journal",
}


def sections(plan: Plan, names: Sequence[str], data: Path) -> list[str]:
    """The tables of these names with their titles, printed as they come."""
    found = []
    for name in names:
        found.append(f"## {TITLES[name]}\n\n{SECTIONS[name](plan, data)}")
        print(f"{found[-1]}\n", flush=True)
    return found


def main() -> None:
    parser = options(__doc__)
    parser.add_argument(
        "--uploads", type=at_least(2), default=2000, help="of simulations with many clients (default 2000)"
    )
    parser.add_argument("--only", action="append", choices=list(SECTIONS), help="this table; may be given again")
    add_plain(parser)
    given = parser.parse_args()
    names = given.only or list(SECTIONS)
    print(f"{machine('benchmarks/scaling.py')}\n", flush=True)
    with ExitStack() as stack:
        data = stack.enter_context(prepared())[0] if {"workers", "ray"} & set(names) else Path()
        sections(Plan(given.updates, given.repeats, given.workers, given.uploads, styles=styles(given)), names, data)


if __name__ == "__main__":
    main()
