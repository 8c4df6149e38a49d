"""Peak memory and time of a blend of four large vectors, beside plain numpy and a bare copy.

Run `python benchmarks/blend.py [megabytes per vector]`. Each way runs in a process of its own, three times; the
figure of interest is the memory above the four vectors and the result, which no way can do without.
"""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys
import time

import numpy as np

from artesian.params import Layout, combine

SHARES = (0.4, 0.3, 0.2, 0.1)
WAYS = ("artesian", "numpy", "copy")


def measure(way: str, megabytes: int) -> dict[str, float]:
    """One blend in this process: seconds, and peak memory above inputs and result."""
    size = megabytes * 1_000_000 // 4
    layout = Layout.of({"w": np.broadcast_to(np.float32(0), (size,))})
    vectors = [np.full(size, i + 1, np.float32) for i in range(4)]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.perf_counter()
    if way == "artesian":
        result = combine(layout, vectors, SHARES)
    elif way == "numpy":
        parts = [np.float64(share) * vector for share, vector in zip(SHARES, vectors, strict=True)]
        result = np.asarray(np.sum(parts, axis=0)).astype(np.float32)
    else:
        result = vectors[0].copy()
    seconds = time.perf_counter() - began
    peak = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1000
    assert way == "copy" or abs(float(result[-1]) - 2.0) < 1e-6
    return {"seconds": seconds, "extra_mb": peak - megabytes}


def main(megabytes: int = 500, repeats: int = 3) -> None:
    print(f"a blend of four vectors of {megabytes} MB, median of {repeats} processes")
    print(f"{'way':10} {'seconds':>8} {'MB above inputs and result':>28}")
    for way in WAYS:
        runs = [
            json.loads(
                subprocess.run(
                    [sys.executable, __file__, way, str(megabytes)], capture_output=True, text=True, check=True
                ).stdout
            )
            for _ in range(repeats)
        ]
        seconds, extra = (statistics.median(run[key] for run in runs) for key in ("seconds", "extra_mb"))
        print(f"{way:10} {seconds:8.2f} {extra:28.0f}")


if __name__ == "__main__":
    if len(sys.argv) == 3:
        print(json.dumps(measure(sys.argv[1], int(sys.argv[2]))))
    else:
        main(*(int(argument) for argument in sys.argv[1:2]))
