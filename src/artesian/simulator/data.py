"""Data sets as arrays, read once per process."""

from __future__ import annotations

import os
import zipfile
import zlib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from artesian.errors import MissingData, MissingExtra


@dataclass(frozen=True)
class Samples:
    """Inputs, and what is to be said about each."""

    x: np.ndarray
    y: np.ndarray

    def __len__(self) -> int:
        return len(self.x)


@lru_cache(maxsize=4)
def images(name: str) -> Samples:
    """The images of a data set: `digits`, or an .npz file with arrays x (images x height x width) and y."""
    return _digits() if name == "digits" else _read_npz(find(name))


def find(name: str) -> Path:
    """A data file where it was named, or in the folder `ARTESIAN_DATA` points at."""
    places = [Path(name)]
    if folder := os.environ.get("ARTESIAN_DATA"):
        places.append(Path(folder) / name)
    for place in places:
        if place.is_file():
            return place
    looked = " and ".join(str(place) for place in places)
    raise MissingData(
        "world.data is 'digits' or an .npz file",
        f"nothing at {looked}",
        "give the path of the file, or set ARTESIAN_DATA to its folder",
    )


def _digits() -> Samples:
    """scikit-learn's bundled 1,797 real 8x8 digits, as images from 0 to 1."""
    try:
        from sklearn.datasets import load_digits
    except ModuleNotFoundError:
        raise MissingExtra("scikit-learn", "sim") from None
    bunch = load_digits()
    return Samples((bunch.images / 16).astype(np.float32), bunch.target.astype(np.int64))


def _read_npz(path: Path) -> Samples:
    try:
        with open(path, "rb") as handle, zipfile.ZipFile(handle):  # not an archive: refused here
            handle.seek(0)
            with np.load(handle, allow_pickle=False) as file:
                x, y = file["x"], file["y"]
    except (OSError, KeyError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise MissingData("a data file is .npz with arrays x and y", f"{error} in {path}", "write it anew") from None
    numbers = x.dtype.kind in "fiub" and y.dtype.kind in "iu"
    shaped = numbers and x.ndim == 3 and x.size > 0 and y.shape == (len(x),)
    if not shaped or y.min() < 0 or y.max() >= len(y):
        raise MissingData(
            "x is images x height x width, y one label for each, from 0 on and fewer than images",
            f"x of {x.dtype} and shape {x.shape}, y of {y.dtype} and shape {y.shape} in {path}",
            "write it anew",
        )
    scale = 255 if x.dtype == np.uint8 else 1
    return Samples((x / scale).astype(np.float32), y.astype(np.int64))


def rotate(images: np.ndarray, degrees: float) -> np.ndarray:
    """Images turned counter-clockwise: exactly for multiples of 90, bilinearly otherwise, filled with 0."""
    if degrees % 90 == 0:
        return np.ascontiguousarray(np.rot90(images, int(degrees // 90), axes=(1, 2)))
    try:
        from scipy import ndimage
    except ModuleNotFoundError:
        raise MissingExtra("scipy", "sim") from None
    turned: np.ndarray = ndimage.rotate(images, degrees, axes=(2, 1), reshape=False, order=1)
    return turned.astype(images.dtype)
