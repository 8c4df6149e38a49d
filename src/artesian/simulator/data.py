"""Data sets as arrays, read once per process.

A set is `digits` (bundled with scikit-learn), `fashion-mnist` or `mnist` (four idx files in a folder), an .npz file, or
`module:name` for anything else, a torch `Dataset` included.
"""

from __future__ import annotations

import gzip
import importlib
import os
import sys
import zipfile
import zlib
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from artesian.errors import MissingData, MissingExtra, SettingError

VARIABLE = "ARTESIAN_DATA"  # a folder in which data are looked for
DEBIAN = Path("/usr/share/datasets")
IDX = {  # sets of four idx files: where else they may be, and how to get them
    "fashion-mnist": (DEBIAN / "fashion-mnist", "apt-get install dataset-fashion-mnist (Debian)"),
    "mnist": (DEBIAN / "mnist", "put its four idx files into a folder named mnist"),
}


@dataclass(frozen=True)
class Samples:
    """Inputs, and what is to be said about each."""

    x: np.ndarray
    y: np.ndarray

    def __len__(self) -> int:
        return len(self.x)


@dataclass(frozen=True)
class Images(Samples):
    """Images (images x height x width [x channels]) with labels; the first `tests` of them are the set's own test set.

    Bytes stay bytes until they are drawn: `as_floats` makes numbers from 0 to 1 of them.
    """

    tests: int = 0


def as_floats(x: np.ndarray) -> np.ndarray:
    """Numbers as float32; bytes from 0 to 1."""
    return x.astype(np.float32) / np.float32(255) if x.dtype == np.uint8 else x.astype(np.float32, copy=False)


def shape_of(x: np.ndarray) -> tuple[int, int, int]:
    """Of one image: channels, height, width."""
    height, width, *channels = x.shape[1:]
    return int(channels[0]) if channels else 1, int(height), int(width)


def flattened(x: np.ndarray) -> np.ndarray:
    """Images as rows of numbers, channels first."""
    return (np.moveaxis(x, 3, 1) if x.ndim == 4 else x).reshape(len(x), -1)


def classes_of(name: str) -> int:
    """The number of classes of a set; one alone leaves nothing to learn."""
    y = images(name).y
    if len(np.unique(y)) < 2:
        raise SettingError("data to learn from have two classes at least", f"one in {name}", "choose other data")
    return int(y.max()) + 1


@lru_cache(maxsize=4)
def images(name: str) -> Images:
    """The images of a data set."""
    if name == "digits":
        return _digits()
    if name in IDX:
        return _read_idx(find_folder(name))
    return _imported(name) if ":" in name else _read_npz(find(name))


def available() -> dict[str, str]:
    """Every data set by name, and where it was found; an empty text where it was not."""
    found = {"digits": "inside scikit-learn"}
    for name in IDX:
        try:
            found[name] = str(find_folder(name))
        except MissingData:
            found[name] = ""
    folder = os.environ.get(VARIABLE)
    files = sorted(Path(folder).glob("**/*.npz")) if folder else []
    return found | {str(path.relative_to(str(folder))): str(path) for path in files}


def find(name: str) -> Path:
    """A data file where it was named, or in the folder `ARTESIAN_DATA` points at."""
    places = [Path(name), *([Path(folder) / name] if (folder := os.environ.get(VARIABLE)) else [])]
    for place in places:
        if place.is_file():
            return place
    looked = " and ".join(str(place) for place in places)
    raise MissingData(
        f"world.data is 'digits', {', '.join(map(repr, IDX))}, an .npz file or module:name",
        f"nothing at {looked}",
        "give the path of the file, or set ARTESIAN_DATA to its folder",
    )


def find_folder(name: str) -> Path:
    """The folder with the idx files of a set: below `ARTESIAN_DATA`, or where Debian has it."""
    debian, remedy = IDX[name]
    places = [*([Path(folder) / name] if (folder := os.environ.get(VARIABLE)) else []), debian]
    for place in places:
        if _idx(place, "train-images-idx3-ubyte"):
            return place
    looked = " and ".join(str(place) for place in places)
    raise MissingData(f"{name} is four idx files in a folder", f"none at {looked}", f"{remedy}, or set ARTESIAN_DATA")


def _idx(folder: Path, name: str) -> Path | None:
    return next((path for path in (folder / name, folder / f"{name}.gz") if path.is_file()), None)


def _read_idx(folder: Path) -> Images:
    """The test set first, then the training set."""
    parts = {}
    for part in ("t10k", "train"):
        for kind in ("images-idx3", "labels-idx1"):
            path = _idx(folder, f"{part}-{kind}-ubyte")
            if path is None:
                raise MissingData("an idx set has four files", f"no {part}-{kind}-ubyte in {folder}", "fetch it anew")
            parts[part, kind] = read_idx(path)
    x = np.concatenate([parts["t10k", "images-idx3"], parts["train", "images-idx3"]])
    y = np.concatenate([parts["t10k", "labels-idx1"], parts["train", "labels-idx1"]]).astype(np.int64)
    return _checked(x, y, str(folder), len(parts["t10k", "labels-idx1"]))


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
        raise MissingData("an idx file holds bytes in its shape", f"{error} in {path}", "fetch it anew") from None


def _imported(name: str) -> Images:
    """`module:name`: Images, a pair of arrays, a torch Dataset of (image, label), or a function that makes one."""
    module, _, attribute = name.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found = getattr(importlib.import_module(module), attribute)
        return _taken(found() if callable(found) and not hasattr(found, "__getitem__") else found, name)
    except MissingData:
        raise
    except Exception as error:  # the user's module may fail in any way
        got = f"{name} ({type(error).__name__}: {error})"
        raise MissingData("world.data can be imported", got, "check the path and the module") from None


def _taken(found: Any, name: str) -> Images:
    if isinstance(found, Samples):
        return _checked(found.x, found.y, name, getattr(found, "tests", 0))
    if isinstance(found, tuple) and len(found) == 2 and all(isinstance(part, np.ndarray) for part in found):
        return _checked(*found, name)
    pairs = [found[i] for i in range(len(found))]
    x = np.stack([np.asarray(image) for image, _ in pairs])
    if x.ndim == 4 and x.shape[1] in (1, 3):  # torch has channels first
        x = np.moveaxis(x, 1, 3)
    return _checked(x[..., 0] if x.ndim == 4 and x.shape[3] == 1 else x, np.array([int(y) for _, y in pairs]), name)


def _digits() -> Images:
    """scikit-learn's bundled 1,797 real 8x8 digits, as images from 0 to 1."""
    try:
        from sklearn.datasets import load_digits
    except ModuleNotFoundError:
        raise MissingExtra("scikit-learn", "sim") from None
    bunch = load_digits()
    return Images((bunch.images / 16).astype(np.float32), bunch.target.astype(np.int64))


def _read_npz(path: Path) -> Images:
    """Arrays x and y; or x_test, y_test, x_train and y_train."""
    try:
        with open(path, "rb") as handle, zipfile.ZipFile(handle):  # not an archive: refused here
            handle.seek(0)
            with np.load(handle, allow_pickle=False) as file:
                if "x_train" not in file:
                    return _checked(file["x"], file["y"], str(path))
                x, y = (np.concatenate([file[f"{part}_test"], file[f"{part}_train"]]) for part in "xy")
                return _checked(x, y, str(path), len(file["y_test"]))
    except (OSError, KeyError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise MissingData("a data file is .npz with arrays x and y", f"{error} in {path}", "write it anew") from None


def _checked(x: np.ndarray, y: np.ndarray, path: str, tests: int = 0) -> Images:
    numbers = x.dtype.kind in "fiub" and y.dtype.kind in "iu"
    shaped = numbers and x.ndim in (3, 4) and x.size > 0 and y.shape == (len(x),)
    if not shaped or y.min() < 0 or y.max() >= len(y):
        raise MissingData(
            "x is images x height x width [x channels], y one label for each, from 0 on and fewer than images",
            f"x of {x.dtype} and shape {x.shape}, y of {y.dtype} and shape {y.shape} in {path}",
            "write it anew",
        )
    return Images(x if x.dtype == np.uint8 else x.astype(np.float32), y.astype(np.int64), tests)


def rotate(images: np.ndarray, degrees: float) -> np.ndarray:
    """Images turned counter-clockwise: exactly for multiples of 90, bilinearly otherwise, filled with 0.

    Bytes are rounded to bytes again.
    """
    if degrees % 90 == 0:
        return np.ascontiguousarray(np.rot90(images, int(degrees // 90), axes=(1, 2)))
    try:
        from scipy import ndimage
    except ModuleNotFoundError:
        raise MissingExtra("scipy", "sim") from None
    if images.dtype != np.uint8:
        turned: np.ndarray = ndimage.rotate(images, degrees, axes=(2, 1), reshape=False, order=1)
        return turned.astype(images.dtype)
    result = np.empty_like(images)
    for part in range(0, len(images), 5000):  # in pieces, so that the floats between take little room
        piece = images[part : part + 5000].astype(np.float32)
        result[part : part + 5000] = np.rint(ndimage.rotate(piece, degrees, axes=(2, 1), reshape=False, order=1))
    return result
