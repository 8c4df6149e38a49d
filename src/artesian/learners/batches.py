"""Where a learner's batches come from: arrays in memory, a dataset read by index, or a stream."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any, Literal, Protocol

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler, SequentialSampler, Subset
from torch.utils.data._utils.collate import default_collate

from artesian.errors import BadData

Rows = np.ndarray | None  # which samples a batch holds; None where nobody knows
Batch = tuple[Rows, torch.Tensor, torch.Tensor]
NUMBERS = 1 << 18  # input numbers of a batch that is only looked at: what it makes stays near the processor
ALIGNMENT = 64  # bytes: linear algebra may round differently elsewhere


@dataclass(frozen=True)
class Shaping:
    """How data become what a network takes."""

    task: Literal["classification", "regression"]
    device: torch.device
    shape: tuple[int, ...] | None = None  # of one sample
    scale: float | None = None  # None: 1/255 for uint8, 1 for all others
    labels: bool = True  # the targets are classes, counted from 0

    def inputs(self, x: torch.Tensor) -> torch.Tensor:
        """A batch as the network takes it: scaled, shaped, on its device, images with their channels last."""
        x = x.to(self.device)
        scale = self.scale if self.scale is not None else 1 / 255 if x.dtype == torch.uint8 else 1.0
        if x.dtype in (torch.uint8, torch.float16, torch.float64):
            x = x.float()
        if scale != 1.0:
            x = x * scale
        if self.shape is not None:
            if prod(self.shape) != prod(x.shape[1:]):
                got = f"{prod(x.shape[1:])} numbers each"
                raise BadData(f"Samples cannot be shaped as {self.shape}: {got}", "Correct the data, or shape")
            x = x.reshape(len(x), *self.shape)
        return _channels_last(_aligned(x)) if x.ndim == 4 else _aligned(x)

    def targets(self, y: torch.Tensor) -> torch.Tensor:
        """Labels as int64, numbers as float32."""
        if self.labels and y.dtype.is_floating_point:
            raise BadData(
                f"Labels are {str(y.dtype).removeprefix('torch.')}, not whole numbers", "Convert y, or set task"
            )
        if self.labels or (self.task == "classification" and not y.dtype.is_floating_point):
            return y.to(self.device, torch.int64)
        return y.to(self.device, torch.float32)


class Source(Protocol):
    """A body of data, in batches."""

    steady: bool  # reading it draws nothing from torch's global generator

    @property
    def samples(self) -> int: ...
    def shuffled(self, rng: np.random.Generator, batch: int, least: int) -> Iterator[Batch]:
        """One epoch in a new order; a last batch of fewer than `least` joins the one before it."""
        ...

    def ordered(self, what: str) -> Iterator[Batch]:
        """All samples in their own order; `what` needs it, and is named where there is none."""
        ...


class Resident:
    """Tensors in memory."""

    steady = True

    def __init__(self, x: torch.Tensor, y: torch.Tensor, shaping: Shaping) -> None:
        if len(x) != len(y):
            raise BadData(f"There are {len(x)} samples and {len(y)} targets", "Give one target for every sample")
        _check_finite("x", x)
        _check_finite("y", y)
        self.shaping, self.x, self.y = shaping, x.to(shaping.device), shaping.targets(y)
        if shaping.labels and len(y) and int(self.y.min()) < 0:
            raise BadData(f"The smallest label is {int(self.y.min())}", "Count labels from 0")

    @classmethod
    def of(cls, x: np.ndarray, y: np.ndarray, shaping: Shaping) -> Resident:
        """Arrays as tensors: of the same memory, unless they are read-only."""
        return cls(_tensor("x", x), _tensor("y", y), shaping)

    @property
    def samples(self) -> int:
        return len(self.x)

    @cached_property
    def largest(self) -> int:
        """The largest label."""
        return int(self.y.max()) if self.shaping.labels and len(self.y) else -1

    def shuffled(self, rng: np.random.Generator, batch: int, least: int) -> Iterator[Batch]:
        for rows in split(rng.permutation(self.samples), batch, least):
            chosen = torch.from_numpy(rows).to(self.x.device)
            yield rows, self.shaping.inputs(self.x[chosen]), self.y[chosen]

    def ordered(self, what: str) -> Iterator[Batch]:
        size = large(self.x.shape[1:])
        for first in range(0, self.samples, size):
            part = slice(first, first + size)
            yield None, self.shaping.inputs(self.x[part]), self.y[part]


class Indexed:
    """A dataset too large to hold, read by index in every epoch."""

    steady = False

    def __init__(
        self, dataset: Dataset[Any], shaping: Shaping, collate: Callable[[list[Any]], Any], workers: int = 0
    ) -> None:
        self.dataset, self.shaping, self.collate, self.workers = dataset, shaping, collate, workers
        self.samples: int = len(dataset)  # type: ignore[arg-type]

    def shuffled(self, rng: np.random.Generator, batch: int, least: int) -> Iterator[Batch]:
        yield from self._read(split(rng.permutation(self.samples), batch, least), int(rng.integers(1 << 62)))

    def ordered(self, what: str) -> Iterator[Batch]:
        if self.samples:
            size = large(np.shape(_pair(self.dataset[0])[0]))
            yield from self._read(split(np.arange(self.samples), size, 1), 0)

    def _read(self, batches: list[np.ndarray], seed: int) -> Iterator[Batch]:
        loader = DataLoader(
            self.dataset,
            batch_sampler=[rows.tolist() for rows in batches],
            collate_fn=self.collate,
            num_workers=self.workers,
            generator=torch.Generator().manual_seed(seed),
        )
        for rows, item in zip(batches, loader, strict=True):
            x, y = _pair(item)
            yield rows, self.shaping.inputs(x), self.shaping.targets(y)


class Flowing:
    """A stream: in its own batches and its own order."""

    steady = False

    def __init__(self, loader: DataLoader[Any], shaping: Shaping, samples: int) -> None:
        self.loader, self.shaping, self.samples = loader, shaping, samples

    def shuffled(self, rng: np.random.Generator, batch: int, least: int) -> Iterator[Batch]:
        for item in self.loader:
            x, y = _pair(item)
            yield None, self.shaping.inputs(x), self.shaping.targets(y)

    def ordered(self, what: str) -> Iterator[Batch]:
        raise unordered(what)


def unordered(what: str) -> BadData:
    """Why a stream cannot do this."""
    what = f"{what[0].upper()}{what[1:]}"
    return BadData(
        f"{what} does not work with an IterableDataset, whose samples may come in another order each time",
        "Pass a map-style Dataset, or arrays",
    )


def source_over(data: Any, shaping: Shaping, room: int, samples: int | None) -> Source:
    """A source from a DataLoader or a Dataset: held in memory where it fits into `room` bytes."""
    loader = data if isinstance(data, DataLoader) else None
    dataset = loader.dataset if loader is not None else data
    if isinstance(dataset, IterableDataset):
        stream = loader if loader is not None else DataLoader(dataset, batch_size=32)
        return Flowing(stream, shaping, _count(dataset, samples))
    if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
        raise BadData(
            f"A {type(data).__name__} is neither a DataLoader nor a Dataset",
            "Pass one of these, or pass arrays to model.learner",
        )
    if loader is not None:
        _check_sampler(loader)
    collate = loader.collate_fn if loader is not None and loader.batch_size is not None else default_collate
    indexed = Indexed(dataset, shaping, collate, loader.num_workers if loader is not None else 0)
    return _held(indexed) if _bytes(dataset) <= room else indexed


def rows_of(source: Source, rows: np.ndarray) -> Source:
    """These samples of a source; in this order."""
    if isinstance(source, Indexed):
        chosen: Dataset[Any] = Subset(source.dataset, np.asarray(rows).tolist())
        return Indexed(chosen, source.shaping, source.collate, source.workers)
    if not isinstance(source, Resident):
        raise unordered("taking data apart")
    where = torch.from_numpy(np.array(rows, np.int64)).to(source.x.device)
    return Resident(source.x[where], source.y[where], source.shaping)


def all_of(sources: Sequence[Source]) -> Resident:
    """The samples of several sources, one after the other, in memory."""
    held = [_held(source) if isinstance(source, Indexed) else source for source in sources]
    resident = [source for source in held if isinstance(source, Resident)]
    if len(resident) < len(held):
        raise unordered("putting data together")
    x, y = torch.cat([source.x for source in resident]), torch.cat([source.y for source in resident])
    return Resident(x, y, resident[0].shaping)


def label_counts(source: Source) -> tuple[int, ...] | None:
    """How many samples have each label; None where samples have not one label each, or come in a stream."""
    if not isinstance(source, (Resident, Indexed)) or not source.shaping.labels:
        return None
    parts = [source.y] if isinstance(source, Resident) else [y for _, _, y in source.ordered("a histogram")]
    if any(part.ndim != 1 for part in parts):
        return None
    return tuple(torch.cat(parts).bincount().tolist()) if parts else ()


def split(order: np.ndarray, batch: int, least: int) -> list[np.ndarray]:
    """The order in batches; a last one of fewer than `least` joins the one before it."""
    parts = [order[first : first + batch] for first in range(0, len(order), batch)]
    if len(parts) > 1 and len(parts[-1]) < least:
        parts[-2:] = [np.concatenate(parts[-2:])]
    return parts


def large(shape: Sequence[int]) -> int:
    """Samples of a batch that is only looked at."""
    return int(np.clip(NUMBERS // max(1, prod(shape)), 64, 4096))


def _held(indexed: Indexed) -> Resident:
    """A dataset read once, into memory."""
    if not indexed.samples:
        return Resident(torch.zeros(0), torch.zeros(0, dtype=torch.int64), indexed.shaping)
    pairs = [_pair(indexed.collate([indexed.dataset[i]])) for i in range(indexed.samples)]
    return Resident(torch.cat([x for x, _ in pairs]), torch.cat([y for _, y in pairs]), indexed.shaping)


def _bytes(dataset: Any) -> int:
    """About how much memory a dataset takes, by its first sample."""
    if not len(dataset):
        return 0
    return len(dataset) * sum(torch.as_tensor(part).nbytes for part in _pair(dataset[0]))


def _pair(item: Any) -> tuple[Any, Any]:
    if not isinstance(item, (tuple, list)) or len(item) != 2:
        raise BadData(
            f"A sample is a {type(item).__name__}, not a pair of input and target",
            "Wrap the dataset so that it gives pairs",
        )
    return item[0], item[1]


def _count(dataset: Any, samples: int | None) -> int:
    if samples is not None:
        return samples
    try:
        return len(dataset)
    except TypeError:
        got = "an IterableDataset without a length"
        raise BadData(f"The number of samples is unknown: {got}", "Pass samples=") from None


def _check_sampler(loader: DataLoader[Any]) -> None:
    """Batches are drawn by the plan; a sampler that chooses samples cannot be honoured."""
    sampler = loader.sampler
    plain = type(sampler) is SequentialSampler or (type(sampler) is RandomSampler and not sampler.replacement)
    batched = loader.batch_sampler is None or type(loader.batch_sampler) is torch.utils.data.BatchSampler
    if not plain or not batched:
        got = type(sampler if not plain else loader.batch_sampler).__name__
        raise BadData(
            f"The loader brings its own order of samples: {got}",
            "Pass the dataset, or a Subset of it: the training plan draws the batches",
        )


def _tensor(name: str, array: Any) -> torch.Tensor:
    array = np.asarray(array)
    if array.dtype.kind not in "fiub" or array.ndim < 1:
        got = f"{array.dtype} of shape {array.shape}"
        raise BadData(f"{name} is not an array of numbers with one row per sample: {got}", "Convert it")
    wide = array.dtype.kind == "f" and array.dtype != np.float32
    wide |= array.dtype.kind == "u" and array.dtype != np.uint8
    array = array.astype(np.float32 if array.dtype.kind == "f" else np.int64) if wide else array
    return torch.from_numpy(array if array.flags.writeable and min(array.strides) >= 0 else array.copy())


def _check_finite(name: str, tensor: torch.Tensor) -> None:
    if tensor.dtype.is_floating_point and not bool(torch.isfinite(tensor).all()):
        sound = torch.isfinite(tensor.reshape(len(tensor), -1)).all(dim=1)
        row = int(torch.argmin(sound.to(torch.uint8)))
        raise BadData(f"{name} holds NaN or Inf in sample {row}", "Clean the data")


def _aligned(x: torch.Tensor) -> torch.Tensor:
    return x.clone() if x.data_ptr() % ALIGNMENT else x


def _channels_last(x: torch.Tensor) -> torch.Tensor:
    """Convolutions are faster so. A single channel needs other strides only, no other order."""
    if x.shape[1] != 1:
        return x.contiguous(memory_format=torch.channels_last)
    _, _, height, width = x.shape
    return x.contiguous().as_strided(x.shape, (height * width, 1, width, 1))
