"""Bodies that no honest client sends: an upload with something wrong in it, and files of other kinds altogether."""

import gzip
import io
import json
import pickle
import random
import struct
import zipfile
from collections.abc import Callable
from functools import cache

import numpy as np

Head = dict


class Bomb:
    """Says, if ever it is unpickled, that somebody ran code from a body."""

    def __reduce__(self) -> tuple:
        return (exec, ("raise SystemExit('code from a body was run')",))


def parted(body: bytes) -> tuple[Head, bytes]:
    """The header and the tensors of a safetensors file."""
    (length,) = struct.unpack("<Q", body[:8])
    return json.loads(body[8 : 8 + length]), body[8 + length :]


def joined(head: Head | bytes, tensors: bytes = b"") -> bytes:
    """A safetensors file of these parts, sound or not."""
    text = head if isinstance(head, bytes) else json.dumps(head).encode()
    return struct.pack("<Q", len(text)) + text + tensors


def told(head: Head) -> dict:
    return json.loads(head["__metadata__"]["artesian"])


def retold(head: Head, envelope: object) -> Head:
    text = envelope if isinstance(envelope, str) else json.dumps(envelope)
    return {**head, "__metadata__": {"artesian": text}}


def flip_bits(body: bytes, rng: random.Random) -> bytes:
    changed = bytearray(body)
    for _ in range(rng.randint(1, 8)):
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def cut(body: bytes, rng: random.Random) -> bytes:
    return body[: rng.randrange(len(body))]


def lengthen(body: bytes, rng: random.Random) -> bytes:
    return body + rng.randbytes(rng.randint(1, 2000))


def splice(body: bytes, rng: random.Random) -> bytes:
    start, stop = sorted((rng.randrange(len(body)), rng.randrange(len(body))))
    return body[:start] + rng.randbytes(rng.randint(0, 40)) + body[stop:]


def lie_about_the_header(body: bytes, rng: random.Random) -> bytes:
    length = rng.choice([0, 1, len(body), len(body) * 2, 1 << 20, (1 << 20) + 1, 1 << 40, (1 << 64) - 1])
    return struct.pack("<Q", length) + body[8:]


ODD = [
    None, True, -1, 0, 1.5, 1e308, 2**31, 2**53, 2**63, 10**30, "", "../../etc", "\x00", "x" * 5000, [], {}, [[]],
    {"$tensor": "models/blend"}, {"$blob": "0" * 64}, {"__class__": "os.system"}, "NaN", "c1",
]  # fmt: skip


def edit_a_field(body: bytes, rng: random.Random) -> bytes:
    head, tensors = parted(body)
    envelope = told(head)
    place = rng.choice([envelope, envelope["body"]])
    key = rng.choice([*place, "other"])
    if rng.random() < 0.3:
        place.pop(key, None)
    else:
        place[key] = rng.choice(ODD)
    return joined(retold(head, envelope), tensors)


def edit_a_tensor(body: bytes, rng: random.Random) -> bytes:
    head, tensors = parted(body)
    name = next(key for key in head if key != "__metadata__")
    about = dict(head[name])
    match rng.randrange(5):
        case 0:
            about["dtype"] = rng.choice(["F64", "F16", "BF16", "I32", "U8", "BOOL", "F8_E4M3", "PICKLE", "", 7, None])
        case 1:
            about["shape"] = rng.choice(
                [[], [0], [-1], [1, 6], [6, 1], [2**62, 4], [2**63], [1] * 65, "6", None, [6.0]]
            )
        case 2:
            about["data_offsets"] = rng.choice([[0, 0], [0, 2**40], [-8, 16], [24, 0], [1, 25], [0], None, "0-24"])
        case 3:
            about[rng.choice(["data", "path", "__reduce__"])] = rng.choice(ODD)
        case 4:
            return joined(
                {**{k: v for k, v in head.items() if k != name}, rng.choice(["k9", "", "../x"]): about}, tensors
            )
    return joined({**head, name: about}, tensors)


def not_finite(body: bytes, rng: random.Random) -> bytes:
    head, tensors = parted(body)
    floats = np.frombuffer(tensors[: len(tensors) // 4 * 4], "<f4").copy()
    floats[rng.randrange(len(floats))] = rng.choice([np.nan, np.inf, -np.inf])
    return joined(head, floats.tobytes())


def a_key_twice(body: bytes, rng: random.Random) -> bytes:
    head, tensors = parted(body)
    text = json.dumps(head)
    if rng.random() < 0.5:
        return joined((text[:-1] + "," + text[1:]).encode(), tensors)
    inner = head["__metadata__"]["artesian"]
    return joined(retold(head, inner[:-1] + "," + inner[1:]), tensors)


def a_number_json_has_not(body: bytes, rng: random.Random) -> bytes:
    head, tensors = parted(body)
    envelope = told(head)
    envelope["body"]["metrics"] = {"loss": 17.25}
    text = json.dumps(envelope).replace("17.25", rng.choice(["NaN", "Infinity", "-Infinity", "1e999", "0x10", "01"]))
    return joined(retold(head, text), tensors)


def a_deep_nesting(body: bytes, rng: random.Random) -> bytes:
    depth = rng.choice([60] * 40 + [500] * 9 + [5_000] * 4 + [100_000])
    opening, closing = rng.choice([("[", "]"), ('{"a":', "}")])
    deep = opening * depth + "1" + closing * depth
    if rng.random() < 0.5:
        return joined(deep.encode())
    head, tensors = parted(body)
    text = head["__metadata__"]["artesian"]
    return joined(retold(head, text[:-1] + f',"more":{deep}}}'), tensors)


def many_tensors(body: bytes, rng: random.Random) -> bytes:
    head, tensors = parted(body)
    count = rng.choice([3] * 400 + [100] * 20 + [5_000, 12_000])
    return joined(
        {**head, **{f"t{i}": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for i in range(count)}}, tensors
    )


def odd_text(body: bytes, rng: random.Random) -> bytes:
    head, tensors = parted(body)
    text = json.dumps(head).encode()
    at = rng.randrange(len(text))
    return joined(
        text[:at] + rng.choice([b"\xff\xfe", b"\\ud800", b"\x00", "\u202e".encode(), b"\xc0\xaf"]) + text[at:], tensors
    )


def foreign(body: bytes, rng: random.Random) -> bytes:
    return rng.choice(CORPUS)  # made once: archives cost more than the rest together


KINDS: list[Callable[[bytes, random.Random], bytes]] = [
    flip_bits, cut, lengthen, splice, lie_about_the_header, edit_a_field, edit_a_tensor, not_finite, a_key_twice,
    a_number_json_has_not, a_deep_nesting, many_tensors, odd_text, foreign,
]  # fmt: skip


def mutated(body: bytes, rng: random.Random) -> bytes:
    """An upload with something wrong in it, or a file of another kind."""
    return rng.choice(KINDS)(body, rng)


def _zipped(**files: bytes) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name.replace("__", "/"), data)
    return out.getvalue()


def _saved(save: Callable, *arrays: np.ndarray) -> bytes:
    out = io.BytesIO()
    save(out, *arrays)
    return out.getvalue()


def _corpus() -> list[bytes]:
    """Files a careless server would open: pickles, archives, numpy's and torch's formats, compressed ones."""
    pickles = [pickle.dumps(thing, protocol) for protocol in range(6) for thing in (Bomb(), {"a": 1}, [Bomb()])]
    objects = np.array([Bomb(), None], dtype=object)
    plain = np.zeros(6, np.float32)
    return [
        *pickles,
        *(joined(data) for data in pickles),
        _zipped(a=b"x" * 100, **{"../../../tmp/evil": b"x"}),
        _zipped(zeros=b"\x00" * 900_000),
        _zipped(archive__data__pkl=pickle.dumps(Bomb(), 2), archive__version=b"3\n", archive__data__0=bytes(24)),
        _saved(np.save, plain),
        _saved(np.save, objects),
        _saved(np.savez, plain, objects),
        _saved(np.savez_compressed, plain),
        gzip.compress(pickles[0]),
        gzip.compress(b"\x00" * 900_000),
        b"\x89HDF\r\n\x1a\n" + bytes(500),
        b"--- !!python/object/apply:os.system ['true']\n",
        b"<?xml version='1.0'?><!DOCTYPE a [<!ENTITY b SYSTEM 'file:///etc/passwd'>]><a>&b;</a>",
        b"#!/bin/sh\ntrue\n",
        b"",
        b"\x00" * 8,
        b"\xff" * 1000,
    ]


CORPUS = _corpus()


@cache
def empty_tensors() -> bytes:
    """A body of very many tensors without a number."""
    return joined({f"t{i}": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for i in range(200_000)})
