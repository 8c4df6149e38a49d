"""What a run exports on request: clusters on every distribution, mixtures at every upload, matrices of the algorithm.

The matrices are written at the first evaluation after each tenth of the run, so their size does not grow with its
length. Each file is written whole, under the number of uploads: a resumed run writes the same files again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from artesian.core import Algorithm, Matrix, State
from artesian.errors import StorageError
from artesian.simulator.table import Table
from artesian.storage.codec import contiguous
from artesian.storage.files import storage, write_file

DISTRIBUTIONS = ("upload", "time", "cluster", "distribution", "accuracy")
SHARES = ("upload", "time", "client", "cluster", "true", "estimated")
MOMENTS = 10  # of a run, at which matrices are written
Matrices = Mapping[str, Matrix]


@dataclass
class Export:
    """The tables and matrices that a run exports."""

    distributions: Table
    shares: Table
    folder: Path | None = None  # of the matrices; None: they are kept in memory
    kept: dict[int, Matrices] = field(default_factory=dict)

    @property
    def tables(self) -> dict[str, Table]:
        """The tables by the name of their file."""
        return {"distributions": self.distributions, "shares": self.shares}

    def keep(self, algorithm: Algorithm, state: State, upload: int) -> None:
        """Write down the matrices of this moment, where the algorithm has any."""
        found = {name: _plain(matrix) for name, matrix in algorithm.matrices(state).items() if matrix.values.size}
        if found and self.folder is None:
            self.kept[upload] = found
        elif found:
            write_matrices(self._file(upload), found)

    def matrices(self) -> dict[int, Matrices]:
        """All matrices by the number of uploads at which they were taken."""
        return dict(self.kept) if self.folder is None else read_all_matrices(self.folder)

    def _file(self, upload: int) -> Path:
        assert self.folder is not None
        with storage(self.folder):
            self.folder.mkdir(exist_ok=True)
        return self.folder / f"{upload:09d}.safetensors"


def is_moment(before: int, now: int, planned: int) -> bool:
    """Whether a tenth of the run has passed since the evaluation before."""
    return MOMENTS * now // planned > MOMENTS * before // planned


def write_matrices(path: Path, matrices: Matrices) -> None:
    """A safetensors file: the values by name, and the names of rows and columns as JSON in its metadata."""
    names = {name: [list(matrix.rows), list(matrix.columns)] for name, matrix in sorted(matrices.items())}
    values = {name: contiguous(matrix.values) for name, matrix in matrices.items()}
    write_file(path, save(values, {"names": json.dumps(names)}))


def read_matrices(path: Path) -> dict[str, Matrix]:
    """The matrices of one file."""
    try:
        with storage(path), safe_open(path, framework="numpy") as file:
            names = json.loads((file.metadata() or {})["names"])
            return {
                name: Matrix(tuple(rows), tuple(columns), file.get_tensor(name))
                for name, (rows, columns) in names.items()
            }
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise StorageError(f"{path} is damaged: {error!r}", "Restore the file from a copy") from None


def read_all_matrices(folder: Path, uploads: int | None = None) -> dict[int, Matrices]:
    """The matrices in a folder by the number of uploads, up to that many; none where there is no folder."""
    paths = {int(path.stem): path for path in sorted(folder.glob("*.safetensors")) if path.stem.isdecimal()}
    return {upload: read_matrices(path) for upload, path in paths.items() if uploads is None or upload <= uploads}


def _plain(matrix: Matrix) -> Matrix:
    """A copy in float32, whatever the algorithm works with."""
    return Matrix(tuple(matrix.rows), tuple(matrix.columns), np.array(matrix.values, np.float32))
