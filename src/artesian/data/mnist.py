"""MNIST and FashionMNIST: four idx files in a folder, packed or not."""

from __future__ import annotations

import gzip
import os
import zlib
from math import prod
from pathlib import Path

import numpy as np

from artesian.errors import MissingData

VARIABLE = "ARTESIAN_DATA"  # a folder in which data are looked for
DEBIAN = Path("/usr/share/datasets")
MNIST = {  # sets of four idx files: where else they may be, and how to get them
    "fashion-mnist": (DEBIAN / "fashion-mnist", "Install them: apt-get install dataset-fashion-mnist (Debian)"),
    "mnist": (DEBIAN / "mnist", "Put the four idx files into a folder named mnist"),
}
MNIST_FILES = [f"{part}-{kind}-ubyte" for part in ("t10k", "train") for kind in ("images-idx3", "labels-idx1")]
FIRST_FILE = "train-images-idx3-ubyte"  # or the same with .gz; a folder with it has the other three


def find_folder(name: str) -> Path:
    """The folder with the idx files of a set: below `ARTESIAN_DATA`, or where Debian has it."""
    debian, remedy = MNIST[name]
    places = [*([Path(folder) / name] if (folder := os.environ.get(VARIABLE)) else []), debian]
    for place in places:
        if idx_file(place, FIRST_FILE):
            return place
    looked = " and ".join(str(place) for place in places)
    raise MissingData(f"The data {name} are missing: no idx files at {looked}", f"{remedy}, or set {VARIABLE}")


def idx_file(folder: Path, name: str) -> Path | None:
    return next((path for path in (folder / name, folder / f"{name}.gz") if path.is_file()), None)


def read_mnist(folder: Path) -> tuple[np.ndarray, np.ndarray, int]:
    """Images and labels, the test set first; and how many the test set has."""
    parts = {}
    for part in ("t10k", "train"):
        for kind in ("images-idx3", "labels-idx1"):
            path = idx_file(folder, f"{part}-{kind}-ubyte")
            if path is None:
                raise MissingData(
                    f"{folder} has no {part}-{kind}-ubyte", "Download it again: an idx set has four files"
                )
            parts[part, kind] = read_idx(path)
    x = np.concatenate([parts["t10k", "images-idx3"], parts["train", "images-idx3"]])
    y = np.concatenate([parts["t10k", "labels-idx1"], parts["train", "labels-idx1"]]).astype(np.int64)
    return x, y, len(parts["t10k", "labels-idx1"])


def read_idx(path: Path) -> np.ndarray:
    """The bytes of an idx file, packed or not, in their shape."""
    try:
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        kind, dimensions = data[2], data[3]
        shape = np.frombuffer(data, ">u4", dimensions, 4).astype(int).tolist()
        found = np.frombuffer(data, np.uint8, offset=4 + 4 * dimensions)
        if data[:2] != b"\0\0" or kind != 8 or len(found) != prod(shape):
            raise ValueError(f"{len(found)} bytes for the shape {shape}")
        return found.reshape(shape)
    except (OSError, EOFError, ValueError, IndexError, zlib.error) as error:
        raise MissingData(f"{path} is not a sound idx file ({error})", "Download it again") from None
