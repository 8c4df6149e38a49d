"""All benchmarks of the simulator: workload W1, the peers, how costs grow. Writes `benchmarks/results/simulator.md`.

Run `python benchmarks/simulator.py` on a machine with nothing else to do; it takes an hour or so. `--quick` tries it
out with few updates and writes nothing. What is measured, and how, is told by `w1.py`, `peers.py` and `scaling.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import peers
import scaling
import w1
from measuring import HERE, machine, say

QUICK = {"updates": 4, "repeats": 1, "uploads": 200}


def report(bench: w1.Bench, kind: str, uploads: int, quick: bool, styles: Sequence[w1.Style]) -> tuple[str, str]:
    """All sections, printed as they come; and the line with the ratio."""
    parts = [f"# The simulator's speed\n\n{machine('benchmarks/simulator.py')}", w1.conditions(bench, kind)]
    print("\n\n".join(parts), flush=True)
    pairs = w1.compare(bench, [name for name, order in w1.COMPARISONS.items() if order.style in styles])
    parts.append(f"## Workload W1\n\n{w1.describe(bench, pairs)}")
    print(f"\n{parts[-1]}\n", flush=True)
    parts.append(f"## Peers\n\n{peers.describe(bench, *peers.compare(bench, [*peers.OURS, *peers.PEERS], styles))}")
    print(f"{parts[-1]}\n", flush=True)
    plan = scaling.Plan(bench.updates, bench.repeats, bench.workers, uploads, 1 if quick else 3, styles)
    names = [name for name in scaling.SECTIONS if not quick or name != "sizes"]
    parts += scaling.sections(plan, names, bench.data)
    return "\n\n".join(parts) + "\n", w1.ratio_line(pairs["plain"])


def main() -> None:
    parser = w1.options(__doc__)
    parser.add_argument(
        "--uploads", type=w1.at_least(2), default=2000, help="of simulations with many clients (default 2000)"
    )
    w1.add_plain(parser)
    parser.add_argument("--quick", action="store_true", help="few updates, once; writes no results")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "simulator.md", help="where results are written")
    given = parser.parse_args()
    if given.quick:
        vars(given).update(QUICK)
    with w1.prepared() as (data, kind):
        bench = w1.Bench(data, given.updates, given.repeats, given.workers)
        text, ratio = report(bench, kind, given.uploads, given.quick, w1.styles(given))
    if not given.quick:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(f"{text}\n`{ratio}`\n")
        say(f"written to {given.out}")
    print(ratio)


if __name__ == "__main__":
    main()
