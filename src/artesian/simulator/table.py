"""Tables of a run: rows are written as they come, and read again from the file where there is one."""

from __future__ import annotations

import csv
import io
import math
import os
from array import array
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from artesian.errors import StorageError
from artesian.storage.files import storage

Cell = int | float | str | None
Row = tuple[Cell, ...]
TEXT = ("client", "cluster", "distribution", "won", "reason")  # columns that hold names, whatever they look like
NEWER = ("discrepancy",)  # last columns that tables of the version before lack


class Table:
    """Rows of numbers and names, in a CSV file or, where there is no path, in memory."""

    def __init__(self, columns: Sequence[str], path: Path | None = None, length: int = 0) -> None:
        """Begin a table, or go on with the first `length` bytes of one, in the columns that it has.

        Columns in TEXT hold text.
        """
        self.columns, self.path = tuple(columns), path
        self._kept: list[Row] = []  # where there is no file
        self._written, self._unwritten = length, io.StringIO(newline="")
        if length:
            self._cut(length)
            self.columns = self._found()
            return
        csv.writer(self._unwritten).writerow(self.columns)
        if path is not None:
            with storage(path):
                path.write_bytes(b"")

    def add(self, *cells: Cell) -> None:
        """Add a row; None is an empty cell."""
        if self.path is None:
            self._kept.append(cells)
        else:
            cells = cells[: len(self.columns)]
            csv.writer(self._unwritten).writerow("" if cell is None else cell for cell in cells)

    def flush(self) -> int:
        """Write what is new, durably; return the length of the file."""
        data = self._unwritten.getvalue().encode()
        if self.path is not None and data:
            with storage(self.path), open(self.path, "r+b") as file:
                file.truncate(self._written)
                file.seek(self._written)
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            self._written += len(data)
            self._unwritten = io.StringIO(newline="")
        return self._written

    def __iter__(self) -> Iterator[Row]:
        """Every row; those in a file are read one by one."""
        if self.path is None:
            yield from self._kept
            return
        self.flush()
        with storage(self.path), open(self.path, encoding="utf-8", newline="") as file:
            yield from _rows(self.columns, file)

    def _found(self) -> tuple[str, ...]:
        """The columns that the file has."""
        assert self.path is not None
        with storage(self.path), open(self.path, encoding="utf-8", newline="") as file:
            found = next(csv.reader(file), [])
        return tuple(found) if found == _older(self.columns) else self.columns

    def arrays(self) -> dict[str, np.ndarray]:
        """One array per column; empty cells are NaN."""
        return _arrays(self.columns, self)

    def _cut(self, length: int) -> None:
        """Drop what was written after these bytes, for it will be written again."""
        assert self.path is not None
        with storage(self.path):
            there = self.path.stat().st_size
            if there >= length:
                os.truncate(self.path, length)
        if there < length:
            raise StorageError(f"{self.path.name} has {there} bytes, but had {length} before", "Restore the file")


def read_table(path: Path, columns: Sequence[str], length: int | None = None) -> dict[str, np.ndarray]:
    """The arrays of a table in a file, or of its first `length` bytes, by column."""
    with storage(path):
        data = path.read_bytes()
    if length is not None and len(data) < length:
        raise StorageError(f"{path} has lost its end: {len(data)} of {length} bytes", "Restore the file from a copy")
    try:
        text = io.StringIO(data[:length].decode(), newline="")
        return _arrays(columns, _rows(columns, text))
    except (ValueError, TypeError, csv.Error) as error:
        raise StorageError(f"{path} is damaged: {error}", "Restore the file from a copy") from None


def _rows(columns: Sequence[str], file: Iterable[str]) -> Iterator[Row]:
    """The rows of a CSV file with these columns; where the version before wrote it, the newer ones are empty."""
    rows = csv.reader(file)
    head = next(rows, [])
    if head not in (list(columns), _older(columns)):
        raise ValueError(f"its columns are {', '.join(head) or 'missing'}")
    lacking = (None,) * (len(columns) - len(head))
    for row in rows:
        yield tuple(_cell(*cell) for cell in zip(head, row, strict=True)) + lacking


def _older(columns: Sequence[str]) -> list[str]:
    """The columns as the version before had them."""
    return [name for name in columns if name not in NEWER]


def _arrays(names: Sequence[str], rows: Iterable[Row]) -> dict[str, np.ndarray]:
    """One array per column; empty cells are NaN."""
    columns: list[array[float] | list[Cell]] = [[] if name in TEXT else array("d") for name in names]
    whole = [name not in TEXT for name in names]  # columns without a fraction so far
    for row in rows:
        for i, (column, cell) in enumerate(zip(columns, row, strict=True)):
            column.append(math.nan if cell is None else cell)  # type: ignore[arg-type]
            whole[i] &= isinstance(cell, int)
    return {
        name: np.array(column, np.int64 if number and len(column) else None)
        for name, column, number in zip(names, columns, whole, strict=True)
    }


def _cell(column: str, text: str) -> Cell:
    if not text or column in TEXT:
        return text or None
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text
