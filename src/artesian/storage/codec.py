"""Values as trees, trees as bytes: safetensors for the arrays, JSON for the rest, one format number.

A message is a safetensors file. Its metadata hold one JSON text under the key `artesian`:
`{"format": 1, "kind": "task", "body": {...}}`, where an array is `{"$tensor": "models/k0"}` and the tensor of
that name is in the file. Nothing is ever unpickled.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
import sys
import types
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, fields, is_dataclass, replace
from functools import lru_cache
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np
from safetensors.numpy import save

from artesian.core import BEFORE, Tree
from artesian.errors import BadFormat, UnknownFormat
from artesian.params import Layout, seal
from artesian.storage.older import translated

FORMAT = 1  # of messages, journals, snapshots and run folders
HEADER_LIMIT = 1 << 20  # bytes of JSON before the first tensor
DTYPES = {
    "F64": "f8", "F32": "f4", "F16": "f2", "I64": "i8", "I32": "i4", "I16": "i2", "I8": "i1",
    "U64": "u8", "U32": "u4", "U16": "u2", "U8": "u1", "BOOL": "?",
}  # fmt: skip
NAMES = {text: name for name, text in DTYPES.items()} | {"b1": "BOOL"}
LEAVES = frozenset((str, int, float, bool, type(None)))  # most of any tree, so they are asked about first
DIMENSIONS = 32  # of a tensor, at most
Bytes = bytes | bytearray | memoryview
T = TypeVar("T")


class Elsewhere:
    """Stands in a tree for an array that may not be in memory."""

    __slots__ = ()


def to_tree(value: Any) -> Tree:
    """A value of ours as nested dicts and lists of arrays and JSON values."""
    if type(value) in LEAVES or type(value) is np.ndarray:
        return value
    if isinstance(value, Layout):
        return value.to_json()
    if is_dataclass(value) and not isinstance(value, type):
        return {name: to_tree(getattr(value, name)) for name in _names(type(value))}
    if isinstance(value, Mapping):
        return {key: to_tree(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_tree(item) for item in value]
    return value.item() if isinstance(value, np.generic) else value


def from_tree(kind: type[T], tree: Tree) -> T:
    """The value of type `kind` that `to_tree` took apart; anything else is refused."""
    built: T = _build(kind, tree, kind.__name__.lower())
    return built


def plain_fields(value: Any) -> dict[str, Tree]:
    """The fields of a dataclass that are numbers, texts, and lists and mappings of them."""
    found = {f.name: to_tree(getattr(value, f.name)) for f in fields(value) if f.init}
    return {name: tree for name, tree in found.items() if _is_plain(tree)}


def with_defaults(value: Any, trees: Mapping[str, Tree]) -> dict[str, Tree]:
    """Recorded fields of a dataclass; plain ones newer than the record had their default, or what their field says."""
    unknown = [f for f in fields(value) if f.init and f.name not in trees and f.default is not MISSING]
    newer = {f.name: f.metadata.get(BEFORE, f.default) for f in unknown}
    now = plain_fields(value)
    return {name: to_tree(default) for name, default in newer.items() if name in now} | dict(trees)


def with_fields(value: T, trees: Mapping[str, Tree]) -> T:
    """A dataclass with some of its fields replaced by what these trees stand for."""
    kind: Any = type(value)
    hints, _ = _fields(kind)
    if unknown := sorted(set(trees) - set(hints)):
        raise BadFormat(f"{kind.__name__} has no field {unknown[0]!r}", f"Its fields are {', '.join(hints)}")
    built = {name: _build(hints[name], tree, name) for name, tree in trees.items()}
    return replace(value, **built)  # type: ignore[type-var]


def _is_plain(tree: Tree) -> bool:
    if isinstance(tree, dict):
        return all(isinstance(key, str) and _is_plain(item) for key, item in tree.items())
    if isinstance(tree, list):
        return all(map(_is_plain, tree))
    return tree is None or isinstance(tree, (str, int)) or (isinstance(tree, float) and math.isfinite(tree))


def _build(kind: Any, tree: Tree, path: str) -> Any:
    if kind is Any:
        return tree
    if kind is Layout:
        return _build_layout(tree, path)
    origin, args = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        options = [a for a in args if a is not type(None)]
        return None if tree is None and len(options) < len(args) else _build_one_of(options, tree, path)
    if origin is Literal:
        return _expect(isinstance(tree, str) and tree in args, tree, path, f"one of {', '.join(map(str, args))}")
    if origin is not None and issubclass(origin, Mapping):
        _expect(isinstance(tree, dict), tree, path, "a mapping")
        return {key: _build(args[1], item, f"{path}/{key}") for key, item in tree.items()}
    if origin is tuple:
        _expect(isinstance(tree, list), tree, path, "a list")
        return tuple(_build(args[0], item, f"{path}/{i}") for i, item in enumerate(tree))
    if is_dataclass(kind):
        return _build_dataclass(kind, tree, path)
    if kind is float:
        return _build_float(tree, path)
    sound = type(tree) is kind or (kind is np.ndarray and isinstance(tree, Elsewhere))
    return _expect(sound, tree, path, f"a value of type {kind.__name__}")


def _build_one_of(kinds: Sequence[Any], tree: Tree, path: str) -> Any:
    """The value of the first of these types that the tree fits."""
    for kind in kinds[:-1]:
        with suppress(BadFormat):
            return _build(kind, tree, path)
    return _build(kinds[-1], tree, path)


def _build_float(tree: Tree, path: str) -> float:
    _expect(type(tree) in (int, float), tree, path, "a number")
    return float(_expect(abs(tree) <= sys.float_info.max, tree, path, "a number within float64"))


def _build_layout(tree: Tree, path: str) -> Layout:
    try:
        return Layout.from_json(tree)
    except (KeyError, TypeError, ValueError, AttributeError):
        raise BadFormat(f"{path} is not a layout: {repr(tree)[:80]}", "Send it as GET /v1/federation does") from None


def _build_dataclass(kind: Any, tree: Tree, path: str) -> Any:
    _expect(isinstance(tree, dict), tree, path, "a mapping")
    hints, required = _fields(kind)
    tree = translated(kind, tree)
    if unknown := sorted(set(tree) - set(hints)):
        raise BadFormat(f"{path} has no field {unknown[0][:80]!r}", f"Its fields are {', '.join(hints)}")
    if missing := sorted(required - set(tree)):
        raise BadFormat(f"{path} lacks the field {missing[0]!r}", "Add it")
    return kind(**{name: _build(hints[name], item, f"{path}/{name}") for name, item in tree.items()})


@lru_cache
def _fields(kind: Any) -> tuple[dict[str, Any], set[str]]:
    hints = get_type_hints(kind)
    required = {f.name for f in fields(kind) if f.default is MISSING and f.default_factory is MISSING}
    return {f.name: hints[f.name] for f in fields(kind)}, required


@lru_cache
def _names(kind: Any) -> tuple[str, ...]:
    return tuple(f.name for f in fields(kind))


def _expect(holds: bool, tree: Tree, path: str, wanted: str) -> Any:
    if not holds:
        raise BadFormat(f"{path} must be {wanted}, not {repr(tree)[:80]}", "Fix the message, and send it again")
    return tree


def scatter(tree: Tree, put: Callable[[str, Any], Tree], path: str = "") -> Tree:
    """The same tree with every array replaced by what `put(path, array)` returns.

    Keys that begin with a dollar sign get a second one, so that no mapping looks like a reference.
    """
    if type(tree) in LEAVES:
        return tree
    if isinstance(tree, dict):
        return {_escape(key): scatter(item, put, f"{path}/{key}" if path else key) for key, item in tree.items()}
    if isinstance(tree, list):
        return [scatter(item, put, f"{path}/{i}") for i, item in enumerate(tree)]
    return put(path, tree) if isinstance(tree, (np.ndarray, Elsewhere)) else tree


def gather(tree: Tree, mark: str, get: Callable[[str], Any]) -> Tree:
    """The tree that was scattered, with every `{mark: name}` replaced by the array `get(name)`."""
    if isinstance(tree, dict):
        if set(tree) == {mark}:
            return get(tree[mark])
        return {_unescape(key): gather(item, mark, get) for key, item in tree.items()}
    return [gather(item, mark, get) for item in tree] if isinstance(tree, list) else tree


def _escape(key: str) -> str:
    return f"${key}" if key.startswith("$") else key


def _unescape(key: str) -> str:
    return key[1:] if key.startswith("$$") else key


def to_json(tree: Tree) -> str:
    """Compact JSON of a tree without arrays; NaN and Inf are refused."""
    return json.dumps(tree, allow_nan=False, separators=(",", ":"))


def encode(kind: str, value: Any) -> bytes:
    """A message of this kind."""
    return b"".join(encode_parts(kind, value))


def encode_parts(kind: str, value: Any) -> list[bytes | memoryview]:
    """A message of this kind in pieces: its header, then its arrays as they lie in memory, none of them copied."""
    tensors: dict[str, np.ndarray] = {}

    def put(path: str, array: np.ndarray) -> Tree:
        while path in tensors:
            path += "'"  # keys with a slash can make two paths read alike
        tensors[path] = contiguous(array)
        return {"$tensor": path}

    body = scatter(to_tree(value), put)
    text = to_json({"format": FORMAT, "kind": kind, "body": body})
    return _file(tensors, {"artesian": text})


def _file(tensors: Mapping[str, np.ndarray], metadata: Mapping[str, str]) -> list[bytes | memoryview]:
    """A safetensors file in pieces: the library would copy every array, and block other threads meanwhile."""
    head: dict[str, Any] = {"__metadata__": metadata}
    pieces: list[bytes | memoryview] = []
    end = 0
    for name, array in sorted(tensors.items(), key=lambda item: (-item[1].dtype.itemsize, item[0])):
        little = array.astype(array.dtype.newbyteorder("<"), copy=False)
        begin, end = end, end + little.nbytes
        dtype = NAMES.get(little.dtype.str[1:])
        if dtype is None:
            raise TypeError(f"a tensor of {array.dtype} cannot be put into a message")
        head[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [begin, end]}
        pieces.append(little.reshape(-1).view(np.uint8).data)
    text = json.dumps(head, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return [struct.pack("<Q", len(text)) + text, *pieces]


def decode(kind: str, data: Bytes, into: type[T], limit: int = HEADER_LIMIT, most: int | None = None) -> T:
    """The value of a message of this kind with at most `most` tensors, its header within `limit` bytes.

    Anything else is refused. The arrays lie in `data`, which nobody may change from here on.
    """
    try:
        return _decode(kind, data, into, limit, most)
    except RecursionError:
        raise BadFormat("The message is nested too deeply", "Send fewer levels") from None


def _decode(kind: str, data: Bytes, into: type[T], limit: int, most: int | None) -> T:
    head = _header(data, limit)
    if most is not None and len(head) > most + 1:
        raise BadFormat(
            f"{len(head) - 1} tensors in a message that may hold {most}", "Send only what the task asks for"
        )
    try:
        metadata = head["__metadata__"]
        if not all(isinstance(text, str) for text in metadata.values()):
            raise TypeError("metadata are texts")
        envelope = _loads(metadata["artesian"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadFormat(
            f"The metadata of the message cannot be read ({_short(error)})",
            'Put one JSON text under the key "artesian"',
        ) from None
    if not isinstance(envelope, dict) or type(envelope.get("format")) is not int:
        raise BadFormat(f"The metadata state no format: {repr(envelope)[:80]}", f'Add "format": {FORMAT}')
    check_format(envelope["format"])
    if envelope.get("kind") != kind or "body" not in envelope:
        raise BadFormat(
            f"A message of kind {repr(envelope.get('kind'))[:80]}", f"Send one of kind {kind!r}, with a body"
        )
    tensors = _tensors(head, memoryview(data)[8 + _length(data) :])

    def get(name: str) -> np.ndarray:
        if not isinstance(name, str) or name not in tensors:
            raise BadFormat(
                f"The message holds no tensor {repr(name)[:80]}, or names it twice", "Send each tensor once"
            )
        return tensors.pop(name)

    value = from_tree(into, gather(envelope["body"], "$tensor", get))
    if tensors:
        raise BadFormat(f"Nothing in the message refers to its tensor {sorted(tensors)[0][:80]!r}", "Leave it out")
    return value


def check_format(number: int) -> None:
    """Refuse what a newer version wrote."""
    if number != FORMAT:
        raise UnknownFormat(
            f"Format {number}, but this version of Artesian reads format {FORMAT}", "Use the version that wrote it"
        )


def digest(value: Any) -> str:
    """A name for exactly this value: SHA-256 of its JSON, with the fingerprint of each array in its place."""
    arrays = 0

    def shown(item: Any) -> Tree:
        nonlocal arrays
        if isinstance(item, np.ndarray):
            arrays += 1
            return {"$tensor": fingerprint(item)}
        if is_dataclass(item) and not isinstance(item, (type, Layout)):
            return {name: getattr(item, name) for name in _names(type(item))}
        return to_tree(item)

    text = json.dumps(value, sort_keys=True, default=shown)
    if text.count('"$') > arrays:  # a key or a text with a dollar sign in front: told apart the long way
        text = json.dumps(scatter(to_tree(value), lambda _, array: {"$tensor": fingerprint(array)}), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def fingerprint(array: np.ndarray) -> str:
    """A name for exactly this array: SHA-256 of its dtype, shape and bytes. That of a sealed one is remembered."""
    known = _fingerprints.get(id(array))
    if known is not None and known[0]() is array and not array.flags.writeable:
        return known[1]
    found = hashlib.sha256(_heading(array.dtype.str, array.shape))
    found.update(contiguous(array).data)
    if not array.flags.writeable and array.nbytes >= WORTH_REMEMBERING:
        key = id(array)
        _fingerprints[key] = weakref.ref(array, lambda _: _fingerprints.pop(key, None)), found.hexdigest()
    return found.hexdigest()


@lru_cache(1024)
def _heading(dtype: str, shape: tuple[int, ...]) -> bytes:
    return json.dumps([dtype, list(shape)]).encode()


WORTH_REMEMBERING = 1 << 12  # bytes
_fingerprints: dict[int, tuple[weakref.ref[np.ndarray], str]] = {}


def encode_arrays(arrays: Mapping[str, np.ndarray]) -> bytes:
    """A model under its ordinary parameter names: a plain safetensors file for any tool."""
    return save({name: contiguous(array) for name, array in arrays.items()})


def contiguous(array: np.ndarray) -> np.ndarray:
    """The array in one piece of memory; numpy's own function would give a single number an axis."""
    return np.ascontiguousarray(array).reshape(array.shape)


def _length(data: Bytes) -> int:
    """The length of a safetensors file's header, as its first bytes say."""
    return int.from_bytes(data[:8], "little") if len(data) >= 8 else 0


def _header(data: Bytes, limit: int) -> dict[str, Any]:
    """The JSON header of a safetensors file, checked before any tensor is touched."""
    length = _length(data)
    if not 2 <= length <= min(limit, len(data) - 8):
        raise _unsound(f"no header of 2 to {limit} bytes in a body of {len(data)}")
    try:
        head = _loads(bytes(data[8 : 8 + length]).decode())
    except ValueError as error:
        raise _unsound(f"its header is not JSON ({_short(error)})") from None
    if not isinstance(head, dict):
        raise _unsound(f"its header is not a JSON object but {repr(head)[:80]}")
    return head


def _tensors(head: Mapping[str, Any], data: memoryview) -> dict[str, np.ndarray]:
    """The tensors a header names; together they are the rest of the file, without a gap."""
    places = {name: _place(told) for name, told in head.items() if name != "__metadata__"}
    tensors, at = {}, 0
    for name, (kind, shape, begin, end) in sorted(places.items(), key=lambda item: item[1][2:]):
        if begin != at or end - begin != math.prod(shape) * kind.itemsize or end > len(data):
            raise _unsound(f"{name[:40]} at {begin} to {end}")
        flat = np.frombuffer(data[begin:end], kind)
        flat = flat if flat.flags.aligned else flat.copy()
        tensors[name], at = seal(flat.reshape(shape)), end
    if at != len(data):
        raise _unsound(f"{len(data) - at} bytes that belong to no tensor")
    return tensors


def _place(told: Any) -> tuple[np.dtype[Any], list[int], int, int]:
    """What a header says about one tensor: its dtype, shape, first byte and end."""
    if not isinstance(told, dict) or set(told) != {"dtype", "shape", "data_offsets"}:
        raise _unsound(repr(told)[:80])
    shape, offsets = told["shape"], told["data_offsets"]
    if not _counts(shape) or not _counts(offsets) or len(offsets) != 2 or len(shape) > DIMENSIONS:
        raise _unsound(repr(told)[:80])
    if not isinstance(told["dtype"], str) or told["dtype"] not in DTYPES:
        raise BadFormat(f"A tensor of type {str(told['dtype'])[:80]!r}", f"Convert it to one of {', '.join(DTYPES)}")
    return np.dtype(DTYPES[told["dtype"]]).newbyteorder("<"), shape, *offsets


def _counts(told: Any) -> bool:
    return isinstance(told, list) and all(type(number) is int and 0 <= number < 1 << 53 for number in told)


def _unsound(problem: str) -> BadFormat:
    return BadFormat(f"Not a valid safetensors file: {problem}", "Send it again")


def _loads(text: str) -> Any:
    """Strict JSON: no key twice, no number that is not finite, no lone surrogate."""
    if not isinstance(text, str):
        raise TypeError(f"{text!r} is not a text")
    value = json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant, parse_float=_finite)
    json.dumps(value, ensure_ascii=False).encode()
    return value


def _finite(text: str) -> float:
    number = float(text)
    return number if math.isfinite(number) else _no_constant(text)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("a key occurs twice")
    return result


def _no_constant(text: str) -> float:
    raise ValueError(f"{text} is not a JSON number")


def _short(error: BaseException) -> str:
    return f"{type(error).__name__} {error}"[:120]
