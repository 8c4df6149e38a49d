"""Other simulators on workload W1, whole process to whole process, beside Artesian and the bare loop.

Run `python benchmarks/peers.py`. Each peer gets a virtual environment of its own in `benchmarks/.peers`, made on
demand, which sees this one's packages too, so torch is the same. All have the network, the training function and the
images of `w1_work.py`. Those that work in rounds do FedAvg with a cohort of 10; Artesian and `naive`, a loop of our own
writing (one process, one client after the other), do FedAsync. A peer that cannot be installed, fails, or is not done
within its limit is named with the reason.
"""

from __future__ import annotations

import statistics
import subprocess
import sysconfig
import venv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path

from measuring import HERE, Outcome, last_line, machine, run, say, spread, table
from w1 import DATA, SAMPLES, STYLES, Bench, Style, add_plain, conditions, options, prepared, styles, surroundings
from w1_run import Order

FOLDER = HERE / ".peers"
COHORT = 10
LIMIT = 600.0  # seconds, of every run of a peer
INSTALLING = 900.0
QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0", "PYTHONPATH": str(HERE)}
NOTHING = ("-",) * 5
OURS = ("artesian", "bare", "naive")  # in this environment


@dataclass(frozen=True)
class Peer:
    """A simulator of somebody else's."""

    package: str
    requirement: str
    script: str


PEERS = {
    "Flower": Peer("flwr", "flwr[simulation]==1.41.*", "peer_flower.py"),
    "pfl-research": Peer("pfl", "pfl>=0.6,<1", "peer_pfl.py"),
}


class NotInstalled(Exception):
    """A peer's environment could not be made."""


def environment(peer: Peer, folder: Path = FOLDER) -> Path:
    """The Python of the peer's environment, which is made where it is missing."""
    home = folder / peer.package
    python, ready = home / "bin" / "python", home / "ready"
    if ready.exists() and ready.read_text() == peer.requirement:
        return python
    say(f"installing {peer.requirement}")
    venv.create(home, clear=True, with_pip=True)
    paths = sysconfig.get_paths()
    inside = home / "lib" / f"python{sysconfig.get_python_version()}" / "site-packages"
    (inside / "shared.pth").write_text(f"{paths['purelib']}\n{paths['platlib']}\n")
    (home / "constraints.txt").write_text(f"torch=={version('torch').partition('+')[0]}\n")
    pip = [str(python), "-m", "pip", "install", "--quiet", "--constraint", str(home / "constraints.txt")]
    try:
        done = subprocess.run([*pip, peer.requirement], capture_output=True, text=True, timeout=INSTALLING)
    except subprocess.TimeoutExpired:
        raise NotInstalled(f"pip not done after {INSTALLING:.0f} s") from None
    if done.returncode:
        raise NotInstalled(last_line(done.stderr) or f"pip's exit code {done.returncode}")
    ready.write_text(peer.requirement)
    return python


def installed(python: Path, package: str) -> str:
    """The version of a package in an environment."""
    ask = f"from importlib.metadata import version; print(version({package!r}))"
    return subprocess.run([python, "-c", ask], capture_output=True, text=True).stdout.strip()


def rounds(updates: int) -> tuple[int, int]:
    """How many rounds, and of how many clients, make so many updates or a few more."""
    cohort = min(COHORT, updates)
    return -(-updates // cohort), cohort


def measure(bench: Bench, python: Path, peer: Peer, style: str) -> Outcome:
    """One run of a peer."""
    turns, cohort = rounds(bench.updates)
    command = [str(python), str(HERE / peer.script), style, str(turns), str(cohort), str(bench.workers)]
    own = {DATA: str(bench.data), "RAY_TMPDIR": str(bench.data.parent)}  # cleared away with the images
    return run(command, {**surroundings(style), **QUIET, **own}, LIMIT)


def compare(
    bench: Bench, names: Sequence[str], styles: Sequence[Style] = STYLES
) -> tuple[dict[tuple[str, str], list[Outcome]], dict[str, str]]:
    """Artesian and these in turn, again and again; and what could not be installed, with the reason."""
    pythons, missing = _environments([name for name in names if name in PEERS])
    ours = [name for name in OURS if name in names or name == "artesian"]
    found: dict[tuple[str, str], list[Outcome]] = {}
    for repeat in range(bench.repeats):
        for style in styles:
            for name in (*ours, *pythons):
                if any(run.failure for run in found.get((name, style), ())):
                    continue  # once is enough
                say(f"{name}, {style}, run {repeat + 1} of {bench.repeats}")
                if name in OURS:
                    outcome = bench.measure(name, replace(Order(style), workers=bench.workers))
                else:
                    outcome = measure(bench, pythons[name], PEERS[name.rpartition(" ")[0]], style)
                found.setdefault((name, style), []).append(outcome)
    return found, missing


def _environments(names: Sequence[str]) -> tuple[dict[str, Path], dict[str, str]]:
    pythons: dict[str, Path] = {}
    missing: dict[str, str] = {}
    for name in names:
        try:
            python = environment(PEERS[name])
            pythons[f"{name} {installed(python, PEERS[name].package)}"] = python
        except NotInstalled as error:
            missing[name] = str(error)
    return pythons, missing


def describe(bench: Bench, found: Mapping[tuple[str, str], Sequence[Outcome]], missing: Mapping[str, str]) -> str:
    """The table; what failed is in it, with the reason."""
    turns, cohort = rounds(bench.updates)
    rows = []
    for (name, style), runs in sorted(found.items(), key=lambda item: STYLES.index(item[0][1])):
        rows.append(row(f"{name}, {style}", bench.updates if name in OURS else turns * cohort, runs))
    rows += [[f"{name}: not installed, {reason}", *NOTHING] for name, reason in missing.items()]
    whole = table(("whole process", "s", "updates/s", "images/s", "peak MB", "shared pages once"), rows)
    head = ("artesian to", "updates/s", "peak memory", "shared pages once")
    return f"{whole}\n\n{table(head, ratios(bench.updates, found))}"


def ratios(updates: int, found: Mapping[tuple[str, str], Sequence[Outcome]]) -> list[list[str]]:
    """Artesian beside each of the others, neighbour by neighbour."""
    turns, cohort = rounds(updates)
    rows = []
    for (name, style), runs in sorted(found.items(), key=lambda item: STYLES.index(item[0][1])):
        ours = found["artesian", style]
        if name == "artesian" or any(run.failure for run in (*runs, *ours)):
            continue
        more = 1.0 if name in OURS else updates / (turns * cohort)  # a last round may be more than was asked for
        faster = [more * theirs.seconds / mine.seconds for mine, theirs in zip(ours, runs, strict=True)]
        memory = [mine.peak_mb / theirs.peak_mb for mine, theirs in zip(ours, runs, strict=True)]
        once = [mine.proportional_mb / theirs.proportional_mb for mine, theirs in zip(ours, runs, strict=True)]
        rows.append([f"{name}, {style}", spread(faster), spread(memory), spread(once)])
    return rows


def row(name: str, updates: int, runs: Sequence[Outcome]) -> list[str]:
    """The figures of one simulator; dashes, and the reason, where it once gave none."""
    failure = next((run.failure for run in runs if run.failure), "")
    if failure:
        return [f"{name}: {failure}", *NOTHING]
    rates = [updates / run.seconds for run in runs]
    images = f"{statistics.median(rates) * SAMPLES:,.0f}"
    memory = spread([run.peak_mb for run in runs]), spread([run.proportional_mb for run in runs])
    return [name, spread([run.seconds for run in runs]), spread(rates), images, *memory]


def main() -> None:
    parser = options(__doc__)
    others = [*OURS[1:], *PEERS]
    parser.add_argument(
        "--only", action="append", choices=others, help="Artesian beside this one alone; may be given again"
    )
    add_plain(parser)
    given = parser.parse_args()
    with prepared() as (data, kind):
        bench = Bench(data, given.updates, given.repeats, given.workers)
        print(f"{machine('benchmarks/peers.py')}\n\n{conditions(bench, kind)}\n", flush=True)
        found, missing = compare(bench, given.only or others, styles(given))
    print(describe(bench, found, missing))


if __name__ == "__main__":
    main()
