"""A client that refreshes when its data turn by 90 degrees, and not before.

Serve a federation first, and give this its address and token:

    artesian serve digits-2 --store store --show-token
    ARTESIAN_TOKEN=... python when_to_refresh.py http://127.0.0.1:8440
"""

import os
import sys
from collections.abc import Iterator

import numpy as np
from sklearn.datasets import load_digits

import artesian


def newest_data() -> Iterator[artesian.Learner]:
    """Ten times 100 digits that were not seen before; from the sixth time on they are turned by 90 degrees."""
    model = artesian.load("digits-2").model
    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(x))
    images, labels = (x[order] / 16).astype(np.float32).reshape(-1, 8, 8), y[order]
    for turn in range(10):
        rows = slice(100 * turn, 100 * turn + 100)
        seen = np.rot90(images[rows], axes=(1, 2)) if turn >= 5 else images[rows]
        yield model.learner(np.ascontiguousarray(seen).reshape(100, 64), labels[rows])


def main(url: str, home: str = "homes/watcher") -> None:
    token = os.environ["ARTESIAN_TOKEN"]
    with artesian.connect(url, token=token, home=home, client="watcher") as client:
        watch = client.watch("(drift or age 7d) and budget 10/day", ["ks window=100 reference=100", "labels"])
        for learner in newest_data():
            if watch.wants_refresh(learner):
                record = watch.refreshed(client.refresh(learner, changed=watch.changed))
                print(f"refreshed: {watch.decision.reason}; {record}")
            else:
                print(f"waits: {watch.decision.reason}")


if __name__ == "__main__":
    main(*sys.argv[1:])
