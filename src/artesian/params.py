"""One model is one float32 vector. `Layout` names its slices; the arithmetic runs over it in chunks.

A vector holds, in this order: trainable entries, floating buffers (BatchNorm statistics), exact entries
(integer counters, kept bit by bit). So `params[:layout.trainable]` is what norms and cosines see,
`params[:layout.floats]` is what sums run over, and the rest is only ever copied.
"""

from __future__ import annotations

import fnmatch
import hashlib
import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod, sqrt
from typing import Any, Self

import numpy as np

from artesian.errors import LayoutError, NotFinite, WrongShape

Params = np.ndarray  # contiguous float32, read-only once handed over
Share = Sequence[str] | Callable[[str], bool]

CHUNK = 1 << 17  # floats per pass: the scratch space of every operation below
LARGEST = 1e18  # no model needs a larger number, and sums of these stay finite
PREFIXES = ("module.", "_orig_mod.", "_module.")  # what torch's and Opacus's wrappers put before names


@dataclass(frozen=True)
class Entry:
    """One named array inside the vector."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    trainable: bool

    @property
    def exact(self) -> bool:
        """Kept bit by bit: an integer or a boolean."""
        return np.dtype(self.dtype).kind in "iub"

    @property
    def slots(self) -> int:
        """How many float32 places it takes."""
        count = prod(self.shape)
        return -(-count * np.dtype(self.dtype).itemsize // 4) if self.exact else count

    @property
    def rank(self) -> int:
        """Its place in the vector: trainable, floating buffer, exact."""
        return 0 if self.trainable else 2 if self.exact else 1


@dataclass(frozen=True)
class Layout:
    """The names, shapes and dtypes behind a vector."""

    entries: tuple[Entry, ...]
    ties: Mapping[str, str] = field(default_factory=dict)  # alias -> the entry it shares memory with
    home: tuple[str, ...] = ()  # frozen or unshared names, which never travel

    @classmethod
    def of(
        cls,
        arrays: Mapping[str, np.ndarray],
        *,
        trainable: Collection[str] | None = None,
        frozen: Collection[str] = (),
        share: Share = ("*",),
        narrow: bool = False,
    ) -> Self:
        """Lay out a model.

        `trainable` names the parameters (every floating array by default), `frozen` those that stay at
        home, `share` the names or glob patterns (one, or several) that travel. float64 is refused unless
        `narrow` is set.
        """
        arrays = strip(arrays)
        travels = _travelling(share, strip_names(frozen, arrays))
        learns = set(arrays) if trainable is None else strip_names(trainable, arrays)
        ties: dict[str, str] = {}
        seen: dict[Any, str] = {}
        entries: list[Entry] = []
        for name, array in arrays.items():
            if not travels(name):
                continue
            place = _place(array)
            if array.size and place in seen:
                ties[name] = seen[place]
                continue
            seen[place] = name
            kind = _check_dtype(name, array.dtype, narrow)
            if kind != "f" and trainable is not None and name in learns:
                raise LayoutError(
                    f"{name} is {array.dtype}, and only floating entries can be trained", "Leave it out of trainable"
                )
            entries.append(Entry(name, array.shape, array.dtype.name, kind == "f" and name in learns))
        if not any(entry.trainable for entry in entries):
            raise LayoutError(
                f"None of the model's {len(entries)} entries can be trained", "Check trainable, frozen and share"
            )
        ordered = tuple(sorted(entries, key=lambda entry: entry.rank))
        return cls(ordered, ties, tuple(name for name in arrays if not travels(name)))

    @cached_property
    def offsets(self) -> tuple[int, ...]:
        """Where each entry begins."""
        return tuple(np.cumsum([0, *(entry.slots for entry in self.entries)]).tolist()[:-1])

    @cached_property
    def trainable(self) -> int:
        """Length of the part that is trained, and that distances see."""
        return sum(entry.slots for entry in self.entries if entry.trainable)

    @cached_property
    def floats(self) -> int:
        """Length of the part that sums run over: trainable entries and floating buffers."""
        return sum(entry.slots for entry in self.entries if not entry.exact)

    @cached_property
    def size(self) -> int:
        """Length of the whole vector."""
        return sum(entry.slots for entry in self.entries)

    @cached_property
    def digest(self) -> str:
        """A name for exactly this layout."""
        return hashlib.sha256(json.dumps(self.to_json(), sort_keys=True).encode()).hexdigest()

    def pack(self, arrays: Mapping[str, np.ndarray]) -> Params:
        """The vector of a model's arrays."""
        arrays = strip(arrays)
        self._check_names(arrays)
        params = np.zeros(self.size, np.float32)
        for entry, offset in zip(self.entries, self.offsets, strict=True):
            array = np.asarray(arrays[entry.name])
            if array.shape != entry.shape or array.dtype.name != entry.dtype:
                raise LayoutError(
                    f"{entry.name} is {array.dtype} of shape {array.shape}, not {entry.dtype} of shape {entry.shape}",
                    "Pack the model this layout was made from",
                )
            place = params[offset : offset + entry.slots]
            if entry.exact:
                flat = np.ascontiguousarray(array, entry.dtype).reshape(-1).view(np.uint8)
                place.view(np.uint8)[: flat.size] = flat
            else:
                place[:] = array.reshape(-1)
        return seal(params)

    def unpack(self, params: Params) -> dict[str, np.ndarray]:
        """The named arrays of a vector, tied names included, as fresh copies."""
        self.check_shape(params)
        arrays: dict[str, np.ndarray] = {}
        for entry, offset in zip(self.entries, self.offsets, strict=True):
            place = params[offset : offset + entry.slots]
            if entry.exact:
                count = prod(entry.shape) * np.dtype(entry.dtype).itemsize
                flat = np.frombuffer(place.tobytes()[:count], entry.dtype)
            else:
                flat = place.astype(entry.dtype)
            arrays[entry.name] = flat.reshape(entry.shape).copy()
        return arrays | {alias: arrays[name] for alias, name in self.ties.items()}

    def view(self, params: np.ndarray) -> dict[str, np.ndarray]:
        """The floating entries of a vector as shaped views of it: writing into them writes the vector."""
        return {name: params[part].reshape(shape) for name, part, shape in self._floating}

    @cached_property
    def _floating(self) -> tuple[tuple[str, slice, tuple[int, ...]], ...]:
        """Name, place and shape of every floating entry."""
        places = zip(self.entries, self.offsets, strict=True)
        return tuple((e.name, slice(start, start + e.slots), e.shape) for e, start in places if not e.exact)

    def check_shape(self, params: Any) -> None:
        """Refuse anything that is not a vector of this layout."""
        if not (isinstance(params, np.ndarray) and params.dtype == np.float32 and params.shape == (self.size,)):
            got = f"{params.dtype} of shape {params.shape}" if isinstance(params, np.ndarray) else type(params).__name__
            raise WrongShape(
                f"A model of this federation is one float32 vector of length {self.size}, not {got}",
                "Pack it with the federation's layout",
            )

    def check(self, params: Any, largest: float | None = None) -> None:
        """Refuse a vector of another shape, or one that holds NaN, Inf or a number beyond any model's."""
        self.check_shape(params)
        largest = LARGEST if largest is None else largest
        for part in chunks(self.floats):
            sound = np.abs(params[part]) <= largest  # False for NaN, too
            if not sound.all():
                where = part.start + int(np.argmin(sound))
                raise NotFinite(
                    f"The model holds {params[where]} in {self.name_at(where)}",
                    f"Lower the learning rate or check the data, then train again: numbers must be {largest:g} at most",
                )

    def name_at(self, index: int) -> str:
        """The entry that holds this place of the vector."""
        return self.entries[int(np.searchsorted(self.offsets, index, side="right")) - 1].name

    def to_json(self) -> dict[str, Any]:
        """The layout as JSON values."""
        return {
            "entries": [
                {"name": e.name, "shape": list(e.shape), "dtype": e.dtype, "trainable": e.trainable}
                for e in self.entries
            ],
            "ties": dict(self.ties),
            "home": list(self.home),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """The layout that `to_json` wrote."""
        entries = tuple(Entry(e["name"], tuple(e["shape"]), e["dtype"], e["trainable"]) for e in data["entries"])
        return cls(entries, dict(data["ties"]), tuple(data["home"]))

    def _check_names(self, arrays: Mapping[str, np.ndarray]) -> None:
        known = {entry.name for entry in self.entries}
        if missing := sorted(known - set(arrays)):
            raise LayoutError(f"The model lacks the entry {missing[0]}", "Pack the model this layout was made from")
        if extra := sorted(set(arrays) - known - set(self.ties) - set(self.home)):
            raise LayoutError(
                f"The model has an entry too many: {extra[0]}", "Pack the model this layout was made from"
            )


def strip(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The same arrays without the wrappers' prefix that all their names carry."""
    cut = _prefix(arrays)
    return {name[cut:]: array for name, array in arrays.items()}


def strip_names(names: Collection[str], arrays: Mapping[str, np.ndarray]) -> set[str]:
    """The names as `arrays` spells them, once a wrapper's prefix is gone."""
    found = {name if name in arrays else name[_prefix([name]) :] for name in names}
    if unknown := sorted(found - set(arrays)):
        raise LayoutError(f"The model has no entry named {unknown[0]}", "Check the names in trainable and frozen")
    return found


def _prefix(names: Collection[str]) -> int:
    cut = 0
    while names:
        step = next((len(p) for p in PREFIXES if all(name.startswith(p, cut) for name in names)), 0)
        if not step:
            break
        cut += step
    return cut


def _travelling(share: Share, frozen: set[str]) -> Callable[[str], bool]:
    if callable(share):
        chosen: Callable[[str], bool] = share
    else:
        patterns = (share,) if isinstance(share, str) else tuple(share)

        def chosen(name: str) -> bool:
            return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)

    return lambda name: name not in frozen and chosen(name)


def _place(array: np.ndarray) -> tuple[Any, ...]:
    return array.__array_interface__["data"][0], array.shape, array.strides, array.dtype.str


def _check_dtype(name: str, dtype: np.dtype[Any], narrow: bool) -> str:
    if dtype.kind in "iub":
        return dtype.kind
    if dtype in (np.float16, np.float32) or (dtype == np.float64 and narrow):
        return "f"
    if dtype == np.float64:
        raise LayoutError(
            f"{name} is float64, and models travel as float32", "Convert the model, or pass narrow=True to round it"
        )
    raise LayoutError(
        f"{name} has dtype {dtype}, which cannot travel", "Convert it to float16, float32, an integer or a boolean type"
    )


def seal(params: np.ndarray) -> Params:
    """Hand a vector over: from here on nobody may write into it."""
    params.flags.writeable = False
    return params


def chunks(length: int) -> Iterator[slice]:
    """Slices that cover 0 to `length` in pieces of bounded size."""
    for start in range(0, length, CHUNK):
        yield slice(start, min(start + CHUNK, length))


def combine(layout: Layout, vectors: Sequence[Params], factors: Sequence[float], newest: int | None = None) -> Params:
    """The sum of factor times vector, accumulated in float64, with exact entries copied.

    They come from the vector at index `newest`: by default the last with a factor other than 0.
    """
    used = [(v, float(f)) for v, f in zip(vectors, factors, strict=True) if f != 0]
    if len(used) == 1 and used[0][1] == 1.0 and newest is None:
        return used[0][0]
    out = np.empty(layout.size, np.float32)
    scratch = np.empty((2, min(CHUNK, layout.size)), np.float64)
    for part in chunks(layout.floats):
        total, scaled = scratch[:, : part.stop - part.start]
        total[:] = 0.0
        for vector, factor in used:
            scaled[:] = vector[part]  # faster than a product that converts on its way
            if factor != 1.0:
                scaled *= factor
            total += scaled
        out[part] = total
    source = vectors[newest] if newest is not None else used[-1][0] if used else vectors[-1]
    out[layout.floats :] = source[layout.floats :]
    return seal(out)


def average(layout: Layout, vectors: Sequence[Params], weights: Sequence[float] | None = None) -> Params:
    """The weighted mean; the weights need not sum to 1, but not to 0 either."""
    shares = np.ones(len(vectors)) if weights is None else np.asarray(weights, np.float64)
    return combine(layout, vectors, (shares / shares.sum()).tolist())


def toward(layout: Layout, old: Params, new: Params, rate: float) -> Params:
    """(1 - rate) old + rate new: `old` itself at rate 0, `new` itself at rate 1."""
    return old if rate == 0 else new if rate == 1 else combine(layout, (old, new), (1 - rate, rate))


def blended(layout: Layout, models: Mapping[str, Params], shares: Mapping[str, float] | None) -> Params:
    """The models blended by these shares; evenly where there are none."""
    factors = [1 / len(models) if shares is None else shares.get(k, 0.0) for k in models]
    return combine(layout, list(models.values()), factors)


def minus(layout: Layout, new: Params, old: Params) -> Params:
    """What changed from `old` to `new`; exact entries are `new`'s."""
    return combine(layout, (new, old), (1.0, -1.0), newest=0)


def moved(layout: Layout, old: Params, change: Params, rate: float, newest: Params) -> Params:
    """`old` moved by `rate` times `change`; buffers move towards those of `newest`, exact entries are its."""
    out = combine(layout, (old, change), (1.0, rate))
    if layout.trainable == layout.size:
        return out
    near = combine(layout, (old, newest), (1 - rate, rate), newest=1)
    return keep_buffers(layout, near, out)


def clipped(layout: Layout, params: Params, given: Params | None, longest: float) -> Params:
    """`params`, no further than `longest` from `given` (None: from zero); itself where it is near enough."""
    length = norm(layout, params) if given is None else distance(layout, params, given)
    if length <= longest:
        return params
    share = longest / length
    return combine(layout, (params,), (share,)) if given is None else toward(layout, given, params, share)


def keep_buffers(layout: Layout, old: Params, new: Params) -> Params:
    """`new` with the buffers of `old`."""
    if layout.trainable == layout.size:
        return new
    out = new.copy()
    out[layout.trainable :] = old[layout.trainable :]
    return seal(out)


def places_of(layout: Layout, names: Collection[str]) -> np.ndarray:
    """True where a vector holds entries of these names."""
    places = np.zeros(layout.size, bool)
    for entry, offset in zip(layout.entries, layout.offsets, strict=True):
        places[offset : offset + entry.slots] = entry.name in names
    return places


def last_layer(layout: Layout) -> list[str]:
    """The trainable entries of the last layer: those whose names begin as the last one's does."""
    names = [entry.name for entry in layout.entries if entry.trainable]
    return [name for name in names if name.rpartition(".")[0] == names[-1].rpartition(".")[0]]


def kept_by_size(layout: Layout, params: Params, sparsity: float) -> np.ndarray:
    """False for this share of the weights, the smallest by magnitude; of equal ones the first go.

    Only trainable entries of two dimensions or more count: biases and normalisation are kept, and so is all the rest.
    """
    kept = np.ones(layout.size, bool)
    weighty = np.zeros(layout.size, bool)
    for entry, offset in zip(layout.entries, layout.offsets, strict=True):
        weighty[offset : offset + entry.slots] = entry.trainable and len(entry.shape) > 1
    places = np.flatnonzero(weighty)
    sizes = np.abs(params[places])
    count = int(sparsity * len(places))
    if count:
        bar = np.partition(sizes, count - 1)[count - 1]
        below, equal = np.flatnonzero(sizes < bar), np.flatnonzero(sizes == bar)
        kept[places[below]] = False
        kept[places[equal[: count - len(below)]]] = False
    return kept


def distance(layout: Layout, a: Params, b: Params) -> float:
    """The Euclidean distance of the trainable parts."""
    return sqrt(sum(_square(np.subtract(a[p], b[p], dtype=np.float64)) for p in chunks(layout.trainable)))


def norm(layout: Layout, a: Params) -> float:
    """The Euclidean norm of the trainable part."""
    return sqrt(sum(_square(a[p].astype(np.float64)) for p in chunks(layout.trainable)))


def cosine(layout: Layout, a: Params, b: Params) -> float:
    """The cosine of the trainable parts; 0 where one of them is zero."""
    size = norm(layout, a) * norm(layout, b)
    return dot(layout, a, b) / size if size else 0.0


def dot(layout: Layout, a: Params, b: Params) -> float:
    """The inner product of the trainable parts."""
    return sum(float(np.multiply(a[p], b[p], dtype=np.float64).sum()) for p in chunks(layout.trainable))


def _square(x: np.ndarray) -> float:
    """The sum of squares, without BLAS: its bits do not depend on the number of threads."""
    return float(np.square(x, out=x).sum())
