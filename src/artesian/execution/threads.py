"""One thread for linear algebra: as fast where workers run side by side, and the same bits everywhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from artesian.core import Model
from artesian.errors import MissingExtra

ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
}  # environment variables; they count only when a process starts
_for_life = ExitStack()


@contextmanager
def single_threaded(model: Model | None = None) -> Iterator[None]:
    """Use one thread in this process, and in the model's own library too."""
    try:
        from threadpoolctl import threadpool_limits
    except ModuleNotFoundError:
        raise MissingExtra("threadpoolctl", "sim") from None
    with threadpool_limits(1), ExitStack() as own:
        if model is not None:
            own.enter_context(model.one_thread())
        yield


def stay_single_threaded(model: Model) -> None:
    """Use one thread from now on: for workers."""
    _for_life.enter_context(single_threaded(model))
