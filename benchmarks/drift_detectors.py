"""How often detectors raise a false alarm, how soon they find a change, and what they cost. One core, some minutes.

The data are scikit-learn's digits: a softmax regression is trained on one half, and streams are drawn from the other
half with replacement, so that without a change all samples of a stream have one distribution.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
import river.drift  # noqa: F401  # importing it is not to be timed
from measuring import table
from scipy.ndimage import rotate
from sklearn.datasets import load_digits

from artesian.core import Plan, generator
from artesian.drift.detector import Batch, Detector, Part
from artesian.drift.detectors import read_detector
from artesian.drift.observing import batch_of
from artesian.learners.arrays import SoftmaxRegression
from artesian.params import Params
from artesian.storage.codec import encode

RESULTS = Path(__file__).parent / "results" / "drift-detectors.md"
MODEL = SoftmaxRegression(64, 10)
BATCH = 50  # samples
QUIET = 700  # samples before a change
LOUD = 600  # samples after it
WINDOWED = (
    "labels",
    "labels distance=total_variation",
    "labels distance=jensen_shannon",
    "labels distance=chi_square",
    "labels distance=g",
    "ks",
    "ks part=logits",
    "ks part=losses",
    "mmd",
    "mmd part=logits",
)
STREAMING = ("adwin", "adwin part=losses", "page-hinkley", "page-hinkley part=errors", "kswin")
WHOLE = ("flexcfl",)
SLOW = ("kswin",)
CHANGES: dict[str, Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]] = {
    "rotation by 30 degrees": lambda x, y: (_rotated(x, 30), y),
    "rotation by 90 degrees": lambda x, y: (_rotated(x, 90), y),
    "labels 0 to 4 alone": lambda x, y: (x[y < 5], y[y < 5]),
    "other labels for the same images": lambda x, y: (x, (y + 1) % 10),
}


@dataclass
class Quiet:
    """What one detector did on streams without a change."""

    alarms: list[int] = field(default_factory=list)  # of every stream
    tests: int = 0  # full windows
    samples: int = 0
    seconds: float = 0.0  # of computing
    batches: int = 0
    state: int = 0  # bytes, at most


class Streams:
    """Batches of digits that the model never saw, with all that detectors look at."""

    def __init__(self) -> None:
        x, y = load_digits(return_X_y=True)
        x, order = (x / 16).astype(np.float32), generator(0, "halves").permutation(len(x))
        train, rest = order[: len(x) // 2], order[len(x) // 2 :]
        self._x, self._y = x[rest], y[rest]
        learner = MODEL.learner(x[train], y[train])
        self.params: Params = learner.train(MODEL.start(0), seed=0, plan=Plan(rate=0.5, epochs=30))
        self.accuracy = MODEL.learner(self._x, self._y).score([(1.0, self.params)])
        self._pools = {"": self._pool(self._x, self._y)}
        self._pools |= {name: self._pool(*change(self._x, self._y)) for name, change in CHANGES.items()}

    def batches(self, stream: int, samples: int, change: str = "", size: int = BATCH) -> Iterator[Batch]:
        """So many samples of one stream, batch by batch."""
        pool, rng = self._pools[change], generator(stream, "stream", change)
        assert pool.labels is not None
        for _ in range(samples // size):
            rows = rng.integers(0, len(pool.labels), size)
            yield Batch(**{name: part[rows] for name, part in vars(pool).items()})

    def _pool(self, x: np.ndarray, y: np.ndarray) -> Batch:
        parts: list[Part] = ["features", "labels", "losses", "errors", "logits"]
        return batch_of(MODEL.learner(x, y), [(1.0, self.params)], parts, most=10**6)


def quiet(streams: Streams, text: str, count: int) -> Quiet:
    """A detector on streams without a change; it begins again after every alarm, as after a refresh."""
    found = Quiet()
    length, size = (500, BATCH) if text in SLOW else (1500, 500 if text in WHOLE else BATCH)
    for stream in range(count):
        made, alarms = _made(text, stream), 0
        for batch in streams.batches(stream, length, size=size):
            began = time.process_time()
            alarm = made.observe(batch)
            found.seconds += time.process_time() - began
            found.batches, found.samples = found.batches + 1, found.samples + batch.samples
            alarms += alarm is not None
            if alarm is not None and text in STREAMING:
                made.reset()
        found.state = max(found.state, len(encode("watch", made.state())))
        found.alarms.append(alarms)
        found.tests += _tests(made, length, size)
    return found


def _tests(made: Detector, length: int, size: int) -> int:
    """How many full windows a stream has: its first samples are the reference."""
    settings = vars(made)
    if "reference" not in settings:
        return length // size - 1
    return (length - settings["reference"]) // settings["window"]


def delays(streams: Streams, text: str, change: str, count: int) -> list[int | None]:
    """After how many samples of the changed data the first alarm came, in every stream; None where none came."""
    found: list[int | None] = []
    size = 500 if text in WHOLE else BATCH
    for stream in range(count):
        made = _made(text, stream)
        for batch in streams.batches(stream, 300 if text in SLOW else QUIET // size * size, size=size):
            if made.observe(batch) is not None and text in STREAMING:
                made.reset()
        seen, alarm = 0, None
        for batch in streams.batches(stream, LOUD // size * size, change, size):
            seen += batch.samples
            alarm = made.observe(batch)
            if alarm is not None:
                break
        found.append(None if alarm is None else seen)
    return found


def _made(text: str, stream: int) -> Detector:
    """A detector whose own randomness, if it has any, is that of the stream."""
    seeded = not text.startswith(("adwin", "page-hinkley", "flexcfl"))
    return read_detector(f"{text} seed={stream}" if seeded else text)


def quiet_row(text: str, found: Quiet) -> list[str]:
    made = read_detector(text)
    level = f"{vars(made)['level']:g}" if "level" in vars(made) else "none"
    alarms = np.array(found.alarms)
    each = found.tests / len(alarms)
    rate, error = alarms.mean() / each, alarms.std(ddof=1) / np.sqrt(len(alarms)) / each
    per_test = f"{rate:.4f} ± {error:.4f}" if text not in STREAMING else "no windows"
    some = f"{(alarms > 0).mean():.3f}"
    thousand = f"{1000 * alarms.sum() / found.samples:.3f}"
    cost = f"{1000 * found.seconds / found.batches:.2f}"
    return [text, level, per_test, thousand, some, cost, f"{found.state:,}"]


def delay_cell(found: list[int | None]) -> str:
    seen = sorted(delay for delay in found if delay is not None)
    if not seen:
        return "never"
    return f"{np.median(seen):.0f} ({len(seen) / len(found):.0%})"


def _rotated(x: np.ndarray, degrees: float) -> np.ndarray:
    images = rotate(x.reshape(-1, 8, 8), degrees, axes=(1, 2), reshape=False, order=1)
    return np.asarray(images, np.float32).reshape(len(x), -1)


def page(streams: Streams, count: int, few: int, say: Callable[[str], None]) -> str:
    names = (*WINDOWED, *STREAMING, *WHOLE)
    calm, lively = [], []
    for text in names:
        began = time.perf_counter()
        calm.append(quiet_row(text, quiet(streams, text, count)))
        say(f"{text}: without a change, {time.perf_counter() - began:.0f} s")
        began = time.perf_counter()
        lively.append([text, *(delay_cell(delays(streams, text, change, few)) for change in CHANGES)])
        say(f"{text}: with changes, {time.perf_counter() - began:.0f} s")
    heads = ("detector", "level", "false alarms per window", "per 1,000 samples", "streams with one")
    return "\n\n".join(
        [
            "# Drift detectors on digits",
            f"{time.strftime('%Y-%m-%d')}, `python benchmarks/drift_detectors.py --streams {count} --changes {few}`, "
            "one core of a shared machine. Softmax regression on scikit-learn's digits, right about "
            f"{streams.accuracy:.1%} of the half that it did not learn from; streams are drawn from that half with "
            "replacement.",
            f"## Without a change\n\n{count} streams of 1,500 samples in batches of {BATCH}; of detectors with windows "
            "the first 500 samples (`mmd`: 200) are the reference. KSWIN has streams of 500 samples, being slow. "
            "FlexCFL's rule has batches of 500, each new. A detector without windows begins again after an alarm. The "
            "level is that of one window; for `adwin` and `kswin` it is their paper's parameter. Errors are standard "
            "errors over streams.",
            table((*heads, "CPU ms per batch", "bytes of state"), calm),
            f"## After a change\n\nSamples until the first alarm, in steps of {BATCH}: the median of those of {few} "
            f"streams that raised one within {LOUD} samples, and their share. The change comes after {QUIET} samples "
            "(after 300 for KSWIN). FlexCFL's rule sees batches of 500.",
            table(("detector", *CHANGES), lively),
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--streams", type=int, default=300, help="streams without a change, for each detector")
    parser.add_argument("--changes", type=int, default=40, help="streams with each change, for each detector")
    parser.add_argument("--quick", action="store_true", help="5 streams of each, and nothing is written")
    chosen = parser.parse_args()
    count, few = (5, 5) if chosen.quick else (chosen.streams, chosen.changes)
    if min(count, few) < 2:
        parser.error("--streams and --changes are at least 2")
    told = page(Streams(), count, few, lambda line: print(line, file=sys.stderr, flush=True))
    print(told)
    if not chosen.quick:
        RESULTS.write_text(told + "\n")


if __name__ == "__main__":
    main()
