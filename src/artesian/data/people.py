"""Data that say whose they are: people, writers, devices."""

from __future__ import annotations

import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from artesian.data.datasets import NPZ, Samples, find, find_named
from artesian.errors import MissingData
from artesian.execution.shared_memory import once


@dataclass(frozen=True)
class People(Samples):
    """Samples (rows of numbers, or images) with the person each is of, and the true group of each, where known."""

    user: np.ndarray
    group: np.ndarray


@once(2)
def people(name: str) -> People:
    """The samples of a set that says whose they are: by name, or in an .npz file."""
    return _read_people(*people_files(name))


def people_files(name: str) -> list[Path]:
    """The file such a set is read from."""
    return [find_named(name) if name in NPZ else find(name)]


def _read_people(path: Path) -> People:
    """Arrays x, y and user, perhaps group; or x_train, y_train, client_train and the same for test, put together."""
    try:
        with open(path, "rb") as handle, zipfile.ZipFile(handle):
            handle.seek(0)
            with np.load(handle, allow_pickle=False) as file:
                if "x_train" in file:
                    parts = ("x", "y", "client")
                    x, y, user = (np.concatenate([file[f"{n}_train"], file[f"{n}_test"]]) for n in parts)
                else:
                    x, y, user = file["x"], file["y"], file["user"]
                group = file["group"] if "group" in file else np.zeros(len(y), np.int64)
    except (OSError, KeyError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise MissingData(
            f"{path} is not an .npz file with the arrays x, y and user ({error})", "Write it again"
        ) from None
    labels = y.dtype.kind in "iu" and group.dtype.kind in "iu" and user.dtype.kind in "iuU"
    one_each = all(part.shape == (len(x),) for part in (y, user, group))
    if not (labels and one_each and x.dtype.kind in "fiub" and x.ndim in (2, 3, 4) and x.size and y.min() >= 0):
        raise MissingData(
            f"{path} does not hold samples of users: x, y, user and group are "
            + ", ".join(f"{a.dtype} of shape {a.shape}" for a in (x, y, user, group)),
            "Write it again: x is rows of numbers or images; y (a label from 0 on), user and group one for each",
        )
    found = x if x.dtype == np.uint8 else x.astype(np.float32)
    return People(found, y.astype(np.int64), user.astype(str), group.astype(np.int64))
