"""The simulator's speed on workload W1, beside a bare loop that trains the same and does nothing else.

Run `python benchmarks/w1.py`. W1 is 100 updates of clients with 1,250 images each (80 clients, FashionMNIST, a network
of 582,026 parameters, batch 128, Adam, one epoch) with FedAsync on as many workers as there are cores. The bare loop
runs the same network and training in as many processes, one torch thread each. The comparisons are:

* `plain`: the network and the training function as people write them. What the simulator does better by itself counts.
* `tuned`: every trick known to pay on both sides: fused Adam, channels last, pooling before ReLU, memory kept.
* `evaluating`: `plain`, the simulator looking at test images as a preset does; elsewhere it looks at one image.
* `cdfl`: CDFL with four clusters and proxy sets of 1,000 images, against training plus nothing but the forward passes
  that CDFL cannot do without: every upload on four proxy sets, every changed cluster on its own.

Each measurement is a process of its own. `warm` counts from the first update to the last, `whole` from the start of the
process to its end. The two sides run in turn, again and again; figures are medians with the smallest and largest, and a
ratio is the median of the ratios of neighbours. The last line is the ratio of `plain`, warm.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Literal

import numpy as np
from measuring import HERE, Outcome, cores, machine, rate, run, say, spread, table
from w1_run import Order

import artesian
from artesian.data.datasets import images
from artesian.errors import MissingData
from artesian.execution.threads import ONE_THREAD

DATA = "W1_DATA"
SAMPLES = 1250
LIMIT = 1200.0  # seconds no single measurement goes beyond
SIDES = ("artesian", "bare")
Style = Literal["plain", "tuned"]
STYLES: tuple[Style, ...] = ("plain", "tuned")
COMPARISONS = {
    "plain": Order("plain"),
    "tuned": Order("tuned"),
    "evaluating": Order("plain", evaluating=True),
    "cdfl plain": Order("plain", clusters=4),
    "cdfl tuned": Order("tuned", clusters=4),
}
HEAD = ("way", "warm updates/s", "images/s", "whole s", "whole updates/s", "peak MB")


MALLOC = {
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30),  # glibc keeps the memory of a batch for the next one
    "MALLOC_TRIM_THRESHOLD_": str(4 << 30),
    "MALLOC_TOP_PAD_": str(1 << 28),
}


def surroundings(style: str) -> dict[str, str]:
    """The environment of a measurement: one thread a process; memory kept only where all is tuned."""
    others = {name: value for name, value in os.environ.items() if name not in MALLOC}
    return others | ONE_THREAD | (MALLOC if style == "tuned" else {})


@dataclass(frozen=True)
class Bench:
    """How to measure, and with which images."""

    data: Path
    updates: int = 100
    repeats: int = 3
    workers: int = 2

    def measure(self, way: str, order: Order, python: Path = Path(sys.executable)) -> Outcome:
        """One process from beginning to end."""
        order = replace(order, updates=self.updates)
        command = [str(python), str(HERE / "w1_run.py"), way, json.dumps(asdict(order))]
        env = {**surroundings(order.style), DATA: str(self.data), "RAY_TMPDIR": str(self.data.parent)}
        if python != Path(sys.executable):
            env["PYTHONPATH"] = str(Path(artesian.__file__).parents[1])  # an installation in place is not seen there
        if way == "naive":
            env.pop("OMP_NUM_THREADS")  # one process has all cores
        found = run(command, env, LIMIT)
        if found.failure:
            raise SystemExit(f"a measurement failed: {way} {order}: {found.failure}")
        return found


@dataclass
class Pair:
    """The two sides of a comparison, measured in turn."""

    runs: dict[str, list[Outcome]] = field(default_factory=lambda: {side: [] for side in SIDES})

    def warm(self, side: str) -> list[float]:
        return [rate(found.told["stamps"]) for found in self.runs[side]]

    def ratios(self) -> list[float]:
        """Warm, neighbour by neighbour."""
        return [ours / bare for ours, bare in zip(*(self.warm(side) for side in SIDES), strict=True)]

    def whole_ratios(self) -> list[float]:
        """Of whole processes; above 1, ours is the faster."""
        ours, bare = (self.runs[side] for side in SIDES)
        return [b.seconds / a.seconds for a, b in zip(ours, bare, strict=True)]


def compare(bench: Bench, names: Sequence[str]) -> dict[str, Pair]:
    """All comparisons in turn, again and again."""
    pairs = {name: Pair() for name in names}
    for repeat in range(bench.repeats):
        for name, pair in pairs.items():
            order = replace(COMPARISONS[name], workers=bench.workers)
            for side in SIDES:
                say(f"{name}, {side}, run {repeat + 1} of {bench.repeats}")
                found = bench.measure(side, order)
                order = replace(order, changed=found.told["changed"] if order.clusters else 0.0)
                pair.runs[side].append(found)
    return pairs


def describe(bench: Bench, pairs: Mapping[str, Pair]) -> str:
    """Both tables."""
    rows = [row(f"{name}, {side}", bench.updates, pair.runs[side]) for name, pair in pairs.items() for side in SIDES]
    ratios = [[name, spread(pair.ratios()), spread(pair.whole_ratios())] for name, pair in pairs.items()]
    parts = [table(HEAD, rows), table(("artesian to bare", "warm", "whole process"), ratios)]
    return "\n\n".join([*parts, *_changed(pairs)])


def row(name: str, updates: int, runs: Sequence[Outcome]) -> list[str]:
    """The figures of one way."""
    warm = [rate(found.told["stamps"]) for found in runs]
    whole = [found.seconds for found in runs]
    return [
        name,
        spread(warm),
        f"{statistics.median(warm) * SAMPLES:,.0f}",
        spread(whole),
        spread([updates / seconds for seconds in whole]),
        spread([found.peak_mb for found in runs]),
    ]


def _changed(pairs: Mapping[str, Pair]) -> list[str]:
    found = [run.told["changed"] for name, pair in pairs.items() if "cdfl" in name for run in pair.runs["artesian"]]
    return [f"An upload changed {spread(found)} of CDFL's four clusters, each looked at anew."] if found else []


def ratio_line(pair: Pair) -> str:
    """What a script may read."""
    return f"ratio_to_bare={statistics.median(pair.ratios()):.2f}"


# the images


@contextmanager
def prepared() -> Iterator[tuple[Path, str]]:
    """A file with the images that every side reads, and what they are."""
    with tempfile.TemporaryDirectory(prefix="artesian-w1-") as folder:
        path = Path(folder) / "images.npz"
        yield path, write_images(path)


def write_images(path: Path) -> str:
    """FashionMNIST, or random images of the same shape where it is missing."""
    try:
        found = images("fashion-mnist")
        x, y, kind = found.x, found.y, "FashionMNIST"
    except MissingData:
        rng = np.random.default_rng(0)
        x, y = rng.integers(0, 256, (70_000, 28, 28), np.uint8), rng.integers(0, 10, 70_000)
        kind = "random images in the shape of FashionMNIST, which is missing here"
    np.savez(path, x=x, y=y.astype(np.uint8))
    return kind


def conditions(bench: Bench, kind: str) -> str:
    """How it was measured."""
    return (
        f"{bench.updates} updates on {kind}; {bench.workers} workers, and as many processes in the bare loop. "
        f"{bench.repeats} run(s) of each side in turn; medians, with the smallest and largest in brackets. Memory is "
        "the sum over all processes of what each holds, shared pages in each unless said otherwise."
    )


def at_least(least: int) -> Callable[[str], int]:
    """A number from `least` on, as an option."""

    def number(text: str) -> int:
        if int(text) < least:
            raise argparse.ArgumentTypeError(f"{text} is less than {least}")
        return int(text)

    return number


def options(text: str | None) -> argparse.ArgumentParser:
    """The options that all benchmarks of the simulator have."""
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--updates", type=at_least(2), default=100, help="of clients, in every run (default 100; 2 at least)"
    )
    parser.add_argument("--repeats", type=at_least(1), default=3, help="runs of everything (default 3)")
    parser.add_argument("--workers", type=at_least(1), default=cores(), help="processes (default: the cores there are)")
    return parser


def add_plain(parser: argparse.ArgumentParser) -> None:
    """The option that leaves a part of the work out."""
    parser.add_argument("--plain", action="store_true", help="only what people write: no tuned sides")


def styles(given: argparse.Namespace) -> Sequence[Style]:
    """The styles that were asked for."""
    return STYLES[:1] if given.plain else STYLES


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--only", action="append", choices=list(COMPARISONS), help="this one; may be given again")
    given = parser.parse_args()
    names = [name for name in COMPARISONS if name in (given.only or COMPARISONS)]
    with prepared() as (data, kind):
        bench = Bench(data, given.updates, given.repeats, given.workers)
        print(f"{machine('benchmarks/w1.py')}\n\n{conditions(bench, kind)}\n", flush=True)
        pairs = compare(bench, names)
    print(describe(bench, pairs))
    if "plain" in pairs:
        print(ratio_line(pairs["plain"]))


if __name__ == "__main__":
    main()
