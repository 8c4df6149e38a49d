"""Small data sets in idx form, for tests."""

import gzip
from pathlib import Path

import numpy as np


def write_idx(folder: Path, train: int = 60, tests: int = 30, packed: bool = True, side: int = 4) -> None:
    """An idx set whose images say where they are from: a first pixel of 200 for tests, 100 for training."""
    folder.mkdir(parents=True)
    for part, count, mark in (("train", train, 100), ("t10k", tests, 200)):
        x = (np.arange(count * side * side) % 90).astype(np.uint8).reshape(count, side, side)
        x[:, 0, 0] = mark
        y = (np.arange(count) % 10).astype(np.uint8)
        for kind, array in (("images-idx3", x), ("labels-idx1", y)):
            head = bytes([0, 0, 8, array.ndim]) + b"".join(n.to_bytes(4, "big") for n in array.shape)
            data = head + array.tobytes()
            path = folder / f"{part}-{kind}-ubyte{'.gz' if packed else ''}"
            path.write_bytes(gzip.compress(data) if packed else data)
