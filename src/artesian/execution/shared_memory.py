"""Data in memory that workers map: made once by the main process, and held once however many use them.

A block is memory without a name. A worker that is started gets its descriptor and maps the same pages, so nothing is
left to clean up, however a process ends. Blocks of data sets are read-only: whoever writes into one gets an error.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable
from functools import update_wrapper
from multiprocessing import context, reduction
from pathlib import Path
from threading import RLock
from typing import Any, Generic, ParamSpec, TypeVar

import numpy as np

from artesian.storage.files import storage
from artesian.storage.nested import swapped

P = ParamSpec("P")
V = TypeVar("V")
LEAST = 1 << 16  # bytes of an array that is worth a block; smaller ones are copied


class SharedArray:
    """One array in memory without a name.

    Sent to a process that is being started, it arrives as an array of the same memory; sent anywhere else, as a copy.
    """

    def __init__(self, array: np.ndarray, own: bool = False) -> None:
        """With `own`, every process may write, and only itself sees it: a page is copied before it changes."""
        self._file = _nameless()
        weakref.finalize(self, os.close, self._file)
        content = np.ascontiguousarray(array)
        rest = memoryview(content.reshape(-1).view(np.uint8).data)
        with storage(Path(tempfile.gettempdir())):
            while rest:
                rest = rest[os.write(self._file, rest) :]
        self._shape, self._dtype, self._own = array.shape, array.dtype, own
        self.array = _mapped(self._file, self._shape, self._dtype, own)

    def __reduce__(self) -> tuple[Any, ...]:
        if context.get_spawning_popen() is None:
            return np.asarray, (self.array,)
        return _received, (reduction.DupFd(self._file), self._shape, self._dtype, self._own)


def _nameless() -> int:
    """Memory as a file: the system's own, or a temporary file that has lost its name."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("artesian")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def _mapped(file: int, shape: tuple[int, ...], dtype: np.dtype[Any], own: bool) -> np.ndarray:
    pages = mmap.mmap(file, 0, access=mmap.ACCESS_COPY if own else mmap.ACCESS_READ)
    return np.frombuffer(pages, dtype).reshape(shape)


def _received(sent: Any, shape: tuple[int, ...], dtype: np.dtype[Any], own: bool) -> np.ndarray:
    file = sent.detach()
    try:
        return _mapped(file, shape, dtype, own)
    finally:
        os.close(file)


def laid_out(value: V, own: bool = False) -> V:
    """The value with blocks in place of its large arrays; the small ones are protected like them."""
    return swapped(value, np.ndarray, lambda array: _laid_out(array, own))


def arrays_of(slip: V) -> V:
    """The value whose arrays these blocks hold."""
    return swapped(slip, SharedArray, lambda block: block.array)


def _laid_out(array: np.ndarray, own: bool) -> SharedArray | np.ndarray:
    if array.nbytes >= LEAST and not array.dtype.hasobject:
        return SharedArray(array, own)
    seen = array.view()
    seen.flags.writeable = own and array.flags.writeable
    return seen


class Once(Generic[P, V]):
    """A function that makes data; what it made last is kept in blocks, and workers need not make it again."""

    def __init__(self, make: Callable[P, V], size: int) -> None:
        self._make, self._size, self._lock = make, size, RLock()
        self._kept: OrderedDict[Hashable, tuple[V, V]] = OrderedDict()  # with blocks, and with their arrays
        update_wrapper(self, make)
        EVERY.append(self)

    def __call__(self, *args: P.args, **named: P.kwargs) -> V:
        assert not named, "arguments are told apart by their places"
        with self._lock:
            if args not in self._kept:
                slip = laid_out(self._make(*args, **named))
                self.keep(args, slip)
            self._kept.move_to_end(args)
            return self._kept[args][1]

    def keep(self, args: Hashable, slip: V) -> None:
        """Have this as what the function makes of these arguments."""
        with self._lock:
            self._kept[args] = slip, arrays_of(slip)
            while len(self._kept) > self._size:
                self._kept.popitem(last=False)

    def kept(self) -> list[tuple[Hashable, V]]:
        """What is kept, by its arguments."""
        with self._lock:
            return [(args, slip) for args, (slip, _) in self._kept.items()]

    def cache_clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._kept.clear()

    def __reduce__(self) -> str:
        return str(self.__qualname__)  # type: ignore[attr-defined]  # found by its name, as functions are


EVERY: list[Once[Any, Any]] = []
Made = list[tuple[Once[Any, Any], Hashable, Any]]  # which function, of what, and what it gave


def once(size: int) -> Callable[[Callable[P, V]], Once[P, V]]:
    """Make a function's data once for all processes of a run, and keep so many of them."""
    return lambda make: Once(make, size)


def made() -> Made:
    """Everything that is kept in this process, to be sent to a worker."""
    return [(function, args, slip) for function in EVERY for args, slip in function.kept()]


def take_over(found: Made) -> None:
    """Have what another process made."""
    for function, args, value in found:
        function.keep(args, value)
