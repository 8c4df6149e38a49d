"""Data sets as arrays, read once for all processes of a run, and read-only.

A set is `digits` (bundled with scikit-learn), `fashion-mnist` or `mnist` (four idx files in a folder), one of a few
.npz files by name, any .npz file, a folder of images with one folder for each class, or `module:name` for anything
else, a torch `Dataset` included. `NAME@32` is the same set in images of 32 x 32.
"""

from __future__ import annotations

import importlib
import os
import sys
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from artesian.data.image_arrays import resized
from artesian.data.mnist import FIRST_FILE, MNIST, MNIST_FILES, VARIABLE, find_folder, idx_file, read_mnist
from artesian.errors import MissingData, MissingExtra, SettingError
from artesian.execution.shared_memory import once

NPZ = {  # sets of one .npz file: its places below ARTESIAN_DATA
    "cifar10": ("cifar10/cifar10.npz", "cifar10.npz"),
    "cifar100": ("cifar100/cifar100.npz", "cifar100.npz"),
    "har": ("har_uci/har_uci.npz", "har/har.npz", "har.npz"),
    "plates": ("plate_chars/plate_chars.npz", "plates/plates.npz", "plates.npz"),
    "svhn": ("svhn/svhn.npz", "svhn.npz"),
    "usps": ("usps/usps.npz", "usps.npz"),
}
DIGITS = Path("datasets", "data", "digits.csv.gz")  # in the folder of scikit-learn
PICTURES = (".png", ".jpg", ".jpeg")


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


def classes_of(name: str) -> int:
    """The number of classes of a set; one alone leaves nothing to learn."""
    y = images(name).y
    if len(np.unique(y)) < 2:
        raise SettingError(f"{name} has one class only, so there is nothing to learn", "Choose other data")
    return int(y.max()) + 1


@once(4)
def images(name: str) -> Images:
    """The images of a data set."""
    plain, _, side = name.rpartition("@")
    if plain and side.isdecimal() and int(side) > 0:
        found = _read(plain, int(side))
        return Images(resized(found.x, int(side)), found.y, found.tests)
    return _read(name)


def files_of(name: str) -> list[Path]:
    """The files a set is read from; none for what comes with a package or from a module."""
    plain, _, side = name.rpartition("@")
    name = plain if plain and side.isdecimal() else name
    if name == "digits" or ":" in name:
        return []
    if name in MNIST:
        return [path for stem in MNIST_FILES if (path := idx_file(find_folder(name), stem))]
    if name in NPZ:
        return [find_named(name)]
    folder = _below(name, Path.is_dir)
    return [path for path in sorted(folder.glob("*/*")) if _is_picture(path)] if folder else [find(name)]


def _read(name: str, side: int | None = None) -> Images:
    if name == "digits":
        return _digits()
    if name in MNIST:
        x, y, tests = read_mnist(find_folder(name))
        return _checked(x, y, str(find_folder(name)), tests)
    if name in NPZ:
        return _read_npz(find_named(name), digits=name == "plates")
    if ":" in name:
        return _imported(name)
    folder = _below(name, Path.is_dir)
    return _read_folder(folder, side) if folder else _read_npz(find(name))


def available() -> dict[str, str]:
    """Every data set by name, and every .npz file below `ARTESIAN_DATA`, and where it was found."""
    folder = os.environ.get(VARIABLE)
    files = sorted(Path(folder).glob("**/*.npz")) if folder else []
    return sets_by_name() | {str(path.relative_to(str(folder))): str(path) for path in files}


def sets_by_name() -> dict[str, str]:
    """Every data set by name, and where it was found; an empty text where it was not."""
    found = {"digits": "inside scikit-learn"}
    for name in (*MNIST, *NPZ):
        try:
            found[name] = str(find_folder(name) if name in MNIST else find_named(name))
        except MissingData:
            found[name] = ""
    return found


def wanted(name: str) -> list[str]:
    """The files by which a set of this name is known, any of which will do: all that are looked for."""
    folder = os.environ.get(VARIABLE) or f"${VARIABLE}"
    if name in NPZ:
        return [f"{folder}/{place}" for place in NPZ[name]]
    return [f"{place}/{FIRST_FILE}" for place in (f"{folder}/{name}", MNIST[name][0])]


def _places(name: str) -> list[Path]:
    return [Path(name), *([Path(folder) / name] if (folder := os.environ.get(VARIABLE)) else [])]


def _below(name: str, sound: Callable[[Path], bool]) -> Path | None:
    return next((place for place in _places(name) if sound(place)), None)


def find(name: str) -> Path:
    """A data file where it was named, or in the folder `ARTESIAN_DATA` points at."""
    if place := _below(name, Path.is_file):
        return place
    looked = " and ".join(str(place) for place in _places(name))
    raise MissingData(
        f"No such data: {name} (nothing at {looked})",
        f"Name one of {', '.join(('digits', *MNIST, *NPZ))}, an .npz file, a folder of images or module:name, "
        f"or set {VARIABLE} to the folder of the file",
    )


def find_named(name: str) -> Path:
    """The .npz file of a set by its name, below `ARTESIAN_DATA`."""
    folder = os.environ.get(VARIABLE)
    for place in NPZ[name] if folder else ():
        if (path := Path(str(folder)) / place).is_file():
            return path
    raise MissingData(
        f"The data {name} are missing: no {' or '.join(NPZ[name])} in {folder}"
        if folder
        else f"The data {name} are missing: {VARIABLE} is not set",
        f"Write {NPZ[name][-1]} with the arrays {'x, y and user' if name == 'har' else 'x and y'}, and set {VARIABLE} "
        "to its folder",
    )


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
        problem = f"world.data is {name!r}, which could not be imported ({type(error).__name__}: {error})"
        raise MissingData(problem, "Check the path and the module") from None


def _taken(found: Any, name: str) -> Images:
    if isinstance(found, Samples):
        return _checked(found.x, found.y, name, found.tests if isinstance(found, Images) else 0)
    if isinstance(found, tuple) and len(found) == 2 and all(isinstance(part, np.ndarray) for part in found):
        return _checked(*found, name)
    pairs = [found[i] for i in range(len(found))]
    x = np.stack([np.asarray(image) for image, _ in pairs])
    if x.ndim == 4 and x.shape[1] in (1, 3):  # torch has channels first
        x = np.moveaxis(x, 1, 3)
    return _checked(x[..., 0] if x.ndim == 4 and x.shape[3] == 1 else x, np.array([int(y) for _, y in pairs]), name)


def _digits() -> Images:
    """scikit-learn's bundled 1,797 real 8x8 digits, as images from 0 to 1."""
    table = _digits_table()
    return Images((table[:, :-1].reshape(-1, 8, 8) / 16).astype(np.float32), table[:, -1].astype(np.int64))


def _digits_table() -> np.ndarray:
    """A row of 64 pixels and a label for each digit, from the file itself: to import the library takes seconds."""
    found = find_spec("sklearn")
    if found is None:
        raise MissingExtra("scikit-learn", "sim")
    path = Path(found.origin or "").parent / DIGITS
    return np.loadtxt(path, delimiter=",") if path.is_file() else _loaded_digits()


def _loaded_digits() -> np.ndarray:
    """The same by the library, wherever it keeps its file."""
    try:
        from sklearn.datasets import load_digits
    except ModuleNotFoundError:
        raise MissingExtra("scikit-learn", "sim") from None
    bunch = load_digits()
    return np.column_stack([bunch.data, bunch.target])


def _read_npz(path: Path, digits: bool = False) -> Images:
    """Arrays x and y; or x_test, y_test, x_train and y_train. `digits`: of the characters it has, those alone."""
    try:
        with open(path, "rb") as handle, zipfile.ZipFile(handle):  # not an archive: refused here
            handle.seek(0)
            with np.load(handle, allow_pickle=False) as file:
                if "x_train" not in file:
                    x, y = _digits_of(file) if digits else (file["x"], file["y"])
                    return _checked(x, y, str(path))
                x, y = (np.concatenate([file[f"{part}_test"], file[f"{part}_train"]]) for part in "xy")
                return _checked(x, y, str(path), len(file["y_test"]))
    except (OSError, KeyError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise MissingData(f"{path} is not an .npz file with the arrays x and y ({error})", "Write it again") from None


def _digits_of(file: Any) -> tuple[np.ndarray, np.ndarray]:
    """The digits among characters that the array `classes` names."""
    y = np.array([int(name) if name.isdecimal() else -1 for name in file["classes"].tolist()])[file["y"]]
    return file["x"][y >= 0], y[y >= 0]


def _read_folder(folder: Path, side: int | None = None) -> Images:
    """Pictures in one folder for each class, classes in the order of their names; `side` makes squares of them."""
    kinds = sorted(path for path in folder.iterdir() if path.is_dir())
    files = [(path, i) for i, kind in enumerate(kinds) for path in sorted(kind.iterdir()) if _is_picture(path)]
    if not files:
        raise MissingData(
            f"{folder} holds no images: nothing at {folder}/*/*.png",
            "Name the folder above the classes: it holds one folder for each class, with .png or .jpg files",
        )
    colour = any(_is_colour(path) for path, _ in files[:: max(1, len(files) // 50)])  # some fifty of them tell
    x = [_picture(path, "RGB" if colour else "L", side) for path, _ in files]
    if odd := next((i for i, image in enumerate(x) if image.shape != x[0].shape), None):
        raise MissingData(
            "Images differ in size: "
            f"{x[0].shape[:2]} in {files[0][0].name}, {x[odd].shape[:2]} in {files[odd][0].name}",
            f"Write {folder.name}@84 to make all of them 84 x 84",
        )
    return _checked(np.stack(x), np.array([i for _, i in files]), str(folder))


def _is_picture(path: Path) -> bool:
    return path.suffix.lower() in PICTURES and path.is_file()


def _is_colour(path: Path) -> bool:
    with _open(path) as opened:
        return opened.mode not in ("1", "L")


def _open(path: Path) -> Any:
    try:
        from PIL import Image
    except ModuleNotFoundError:
        raise MissingExtra("pillow", "images") from None
    try:
        return Image.open(path)
    except (OSError, ValueError) as error:
        raise MissingData(f"{path} could not be read ({error})", "Replace it") from None


def _picture(path: Path, mode: str, side: int | None) -> np.ndarray:
    with _open(path) as opened:
        try:
            image = opened.convert(mode)
            return np.asarray(image.resize((side, side)) if side else image, np.uint8)
        except (OSError, ValueError) as error:
            raise MissingData(f"{path} could not be read ({error})", "Replace it") from None


def _checked(x: np.ndarray, y: np.ndarray, path: str, tests: int = 0) -> Images:
    numbers = x.dtype.kind in "fiub" and y.dtype.kind in "iu"
    shaped = numbers and x.ndim in (3, 4) and x.size > 0 and y.shape == (len(x),)
    if not shaped or y.min() < 0 or y.max() >= len(y):
        raise MissingData(
            f"{path} does not hold images with labels: "
            f"x is {x.dtype} of shape {x.shape}, y is {y.dtype} of shape {y.shape}",
            "Write it again: x is images x height x width [x channels], y one label for each, from 0 on",
        )
    return Images(x if x.dtype == np.uint8 else x.astype(np.float32), y.astype(np.int64), tests)
