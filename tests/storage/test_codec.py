"""Messages: what is encoded comes back, and whatever else arrives is refused."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from artesian.algorithms import FedBuff
from artesian.core import Event, Measured, Receipt, Snapshot, Task, Upload
from artesian.errors import BadClient, BadFormat, Refused, UnknownFormat
from artesian.params import seal
from artesian.storage.codec import (
    HEADER_LIMIT,
    decode,
    digest,
    encode,
    from_tree,
    gather,
    plain_fields,
    scatter,
    to_tree,
    with_defaults,
    with_fields,
)
from artesian.testing import ToyFederation

unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

F32 = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


def vector(*values: float) -> np.ndarray:
    return seal(np.array(values, np.float32))


def a_task() -> Task:
    return Task(
        {"k0": vector(1, -0.0, 3), "k1": vector(4, 5, 6)},
        settings={"rate": 0.1, "epochs": 2, "delta": True, "nested": {"list": [1, None, "x"]}},
        mixture={"k0": 0.25, "k1": 0.75},
        solo=True,
        memo={"seen": [np.arange(3, dtype=np.int64), 7], "empty": {}},
        number=4,
        base=17,
    )


def an_upload() -> Upload:
    return Upload("c é/☃", 4, 60, {"k0": vector(1, 2)}, {"k0": 1.0}, {"loss": 0.5})


def an_event() -> Event:
    receipt = Receipt(4, 17, "train", ("k0",), {"k0": 1.0}, "ab", False, True, {"memo": vector(9)}, ("k0",))
    return Event("upload", "c1", measured=Measured(an_upload(), receipt, {"distance": 1e-300}), appraisals={"k0": 0.5})


def a_snapshot() -> Snapshot:
    federation = ToyFederation(FedBuff(buffer_size=3, momentum=0.5), clients=4)
    federation.join_all()
    for _ in range(5):
        federation.step()
    return federation.coordinator.snapshot()


MESSAGES = [("task", a_task), ("upload", an_upload), ("event", an_event), ("snapshot", a_snapshot)]


def raw(head: Any, tensors: bytes = b"") -> bytes:
    """A safetensors file written by hand."""
    text = head if isinstance(head, bytes) else json.dumps(head).encode()
    return struct.pack("<Q", len(text)) + text + tensors


def message(body: str, kind: str = "upload", tensors: bytes = b"", **heads: Any) -> bytes:
    """A message with this JSON text as its body."""
    meta = f'{{"format":1,"kind":"{kind}","body":{body}}}'
    return raw({"__metadata__": {"artesian": meta}, **heads}, tensors)


def upload_body(**changes: Any) -> str:
    return json.dumps({"client": "c", "number": 1, "samples": 5} | changes)


def assert_same(a: Any, b: Any) -> None:
    """Equal trees of equal types, arrays bit by bit."""
    assert type(a) is type(b)
    if isinstance(a, dict):
        assert list(a) == list(b)
        for key in a:
            assert_same(a[key], b[key])
    elif isinstance(a, list):
        assert len(a) == len(b)
        for one, other in zip(a, b, strict=True):
            assert_same(one, other)
    elif isinstance(a, np.ndarray):
        assert (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())
    else:
        assert a == b


# there and back


@pytest.mark.parametrize(("kind", "make"), MESSAGES)
def test_a_message_comes_back_as_it_was(kind: str, make: Any) -> None:
    value = make()
    again = decode(kind, encode(kind, value), type(value))
    assert type(again) is type(value)
    assert_same(to_tree(again), to_tree(value))
    assert encode(kind, again) == encode(kind, value)


@pytest.mark.parametrize(("kind", "make"), MESSAGES)
def test_the_same_value_gives_the_same_bytes(kind: str, make: Any) -> None:
    assert encode(kind, make()) == encode(kind, make())


def test_decoded_arrays_cannot_be_written() -> None:
    task = decode("task", encode("task", a_task()), Task)
    with pytest.raises(ValueError, match="read-only"):
        task.models["k0"][0] = 1


def test_tuples_and_numpy_scalars_become_json() -> None:
    tree = to_tree({"a": (1, (2,)), "b": np.float64(0.1), "c": np.int64(2**60), "d": np.bool_(True)})
    assert_same(tree, {"a": [1, [2]], "b": 0.1, "c": 2**60, "d": True})


def test_a_missing_field_takes_its_default() -> None:
    upload = decode("upload", message(upload_body()), Upload)
    assert upload == Upload("c", 1, 5)


def test_a_whole_number_serves_as_a_float() -> None:
    upload = decode("upload", message(upload_body(metrics={"loss": 2})), Upload)
    assert type(upload.metrics["loss"]) is float and upload.metrics["loss"] == 2


def test_a_message_has_no_place_for_nan() -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        encode("upload", replace(an_upload(), metrics={"loss": float("nan")}))


DTYPES = ["f8", "f4", "f2", "i8", "i4", "i2", "i1", "u8", "u4", "u2", "u1", "?"]
SHAPES = hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3)
ARRAYS = st.sampled_from(DTYPES).flatmap(lambda dtype: hnp.arrays(dtype, SHAPES))
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5)
    | ARRAYS
)
KEYS = st.text(st.characters(codec="utf-8"), max_size=3) | st.sampled_from(["", "a", "b", "a/b", "0", "/", "é"])
TREES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3), max_leaves=8
)


@unhurried
@given(TREES)
def test_any_tree_of_arrays_and_json_comes_back(tree: Any) -> None:
    task = decode("task", encode("task", Task({}, memo=tree)), Task)
    assert_same(task.memo, tree)


@unhurried
@given(st.dictionaries(KEYS, TREES, max_size=3))
def test_any_mapping_comes_back(tree: dict[str, Any]) -> None:
    assert_same(decode("any", encode("any", tree), dict[str, Any]), tree)


def test_a_scalar_array_keeps_its_shape() -> None:
    steps = decode("any", encode("any", {"steps": np.array(7)}), dict[str, Any])["steps"]
    assert steps.shape == () and steps == 7


@pytest.mark.parametrize("odd", [np.arange(6, dtype=">i4")[::2], np.asfortranarray(np.eye(2, 3)), np.arange(3)[::-1]])
def test_arrays_in_other_byte_or_memory_order_keep_their_values(odd: np.ndarray) -> None:
    again = decode("any", encode("any", {"odd": odd}), dict[str, Any])["odd"]
    assert again.tolist() == odd.tolist()


def test_two_arrays_whose_paths_read_alike_stay_apart() -> None:
    tree = {"a/b": np.ones(1), "a": {"b": np.zeros(2)}, "": {"c": np.ones(3)}, "c": np.zeros(4)}
    assert_same(decode("any", encode("any", tree), dict[str, Any]), tree)


def test_a_tree_that_looks_like_a_mark_comes_back_or_is_not_encoded() -> None:
    tree = {"memo": {"$tensor": "models/k0"}, "array": np.ones(2)}
    try:
        data = encode("any", tree)
    except (ValueError, Refused):
        return
    assert_same(decode("any", data, dict[str, Any]), tree)


@pytest.mark.parametrize("client", ["$tensor", "$blob", "$", "a/b", "", "\ud800"])
def test_no_name_a_client_may_have_spoils_a_snapshot(client: str) -> None:
    federation = ToyFederation(FedBuff(buffer_size=3, momentum=0.5), clients=4)
    try:
        federation.take(federation.coordinator.join(client, 10))
    except BadClient:
        return
    snapshot = federation.coordinator.snapshot()
    again = decode("snapshot", encode("snapshot", snapshot), Snapshot)
    assert_same(to_tree(again), to_tree(snapshot))
    assert federation.coordinator.digest() == digest(to_tree(again))


# refusals


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0" * 7,
        b"\0" * 8,
        b"hello, this is no message at all",
        struct.pack("<Q", 100) + b"{}",
        struct.pack("<Q", 2**64 - 1) + b"{}",
        raw(b"{]"),
        raw(b"\xff\xfe{}"),
        raw(b"[1]"),
        raw(b'"x"'),
        raw(b"[" * 100_000),
        raw(b'{"a":' * 20_000 + b"1" + b"}" * 20_000),
    ],
)
def test_bytes_that_are_no_safetensors_file_are_refused(data: bytes) -> None:
    with pytest.raises(BadFormat):
        decode("upload", data, Upload)


def test_a_message_cut_anywhere_is_refused() -> None:
    data = encode("upload", an_upload())
    for length in range(len(data)):
        with pytest.raises(BadFormat):
            decode("upload", data[:length], Upload)


def test_a_message_with_bytes_behind_it_is_refused() -> None:
    with pytest.raises(BadFormat):
        decode("upload", encode("upload", an_upload()) + b"x", Upload)


def test_a_header_over_the_limit_is_refused() -> None:
    padding = " " * (HEADER_LIMIT - len(message(upload_body())) + 8)
    longest = raw(message(upload_body())[8:] + padding.encode())
    assert decode("upload", longest, Upload).client == "c"
    with pytest.raises(BadFormat, match="2 to 1048576 bytes"):
        decode("upload", raw(longest[8:] + b" "), Upload)


def test_a_header_with_a_key_twice_is_refused() -> None:
    head = message(upload_body())[8:]
    with pytest.raises(BadFormat, match="a key occurs twice"):
        decode("upload", raw(head[:-1] + b"," + head[1:]), Upload)


@pytest.mark.parametrize(
    "meta",
    [
        '{"format":1,"kind":"upload","kind":"upload","body":%s}',
        '{"format":2,"format":1,"kind":"upload","body":%s}',
    ],
)
def test_metadata_with_a_key_twice_are_refused(meta: str) -> None:
    with pytest.raises(BadFormat):
        decode("upload", raw({"__metadata__": {"artesian": meta % upload_body()}}), Upload)


def test_a_body_with_a_key_twice_is_refused() -> None:
    body = '{"client":"c","number":1,"samples":5,"samples":6}'
    with pytest.raises(BadFormat):
        decode("upload", message(body), Upload)


@pytest.mark.parametrize(
    "head",
    [
        {},
        {"__metadata__": {}},
        {"__metadata__": None},
        {"__metadata__": []},
        {"__metadata__": {"other": "{}"}},
        {"__metadata__": {"artesian": 5}},
        {"__metadata__": {"artesian": ""}},
        {"__metadata__": {"artesian": "5"}},
        {"__metadata__": {"artesian": "[]"}},
        {"__metadata__": {"artesian": "{}"}},
        {"__metadata__": {"artesian": '{"format":"1","kind":"upload","body":{}}'}},
        {"__metadata__": {"artesian": '{"format":true,"kind":"upload","body":{}}'}},
        {"__metadata__": {"artesian": '{"format":1.0,"kind":"upload","body":{}}'}},
        {"__metadata__": {"artesian": '{"format":1,"kind":"upload"}'}},
        {"__metadata__": {"artesian": '{"format":1,"kind":["upload"],"body":{}}'}},
    ],
)
def test_metadata_that_are_not_ours_are_refused(head: dict[str, Any]) -> None:
    with pytest.raises(BadFormat):
        decode("upload", raw(head), Upload)


def test_another_kind_is_refused_by_name() -> None:
    with pytest.raises(BadFormat, match=r"kind 'task'\. Send one of kind 'upload'"):
        decode("upload", encode("task", a_task()), Upload)


@pytest.mark.parametrize("number", [0, 2, 10**30])
def test_another_format_is_refused_as_such(number: int) -> None:
    meta = f'{{"format":{number},"kind":"upload","body":{{}}}}'
    with pytest.raises(UnknownFormat, match=str(number)):
        decode("upload", raw({"__metadata__": {"artesian": meta}}), Upload)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "-1e999"])
def test_a_number_that_is_not_finite_is_refused(number: str) -> None:
    body = f'{{"client":"c","number":1,"samples":5,"metrics":{{"loss":{number}}}}}'
    with pytest.raises(BadFormat):
        decode("upload", message(body), Upload)


def test_a_whole_number_too_large_for_a_float_is_refused() -> None:
    with pytest.raises(BadFormat):
        decode("upload", message(upload_body(metrics={"loss": 10**400})), Upload)


def test_a_number_of_many_digits_is_refused() -> None:
    body = f'{{"client":"c","number":1,"samples":{"9" * 10_000}}}'
    with pytest.raises(BadFormat):
        decode("upload", message(body), Upload)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"more": 1}, "has no field 'more'"),
        ({"number": True}, "upload/number"),
        ({"number": 1.0}, "upload/number"),
        ({"number": "1"}, "upload/number"),
        ({"number": None}, "upload/number"),
        ({"client": 7}, "upload/client"),
        ({"client": None}, "upload/client"),
        ({"models": []}, "upload/models"),
        ({"models": None}, "upload/models"),
        ({"models": {"k0": [1.0]}}, "upload/models/k0"),
        ({"models": {"k0": {"$tensor": "x", "y": 1}}}, "upload/models/k0"),
        ({"mixture": {"k0": "1"}}, "upload/mixture/k0"),
        ({"mixture": {"k0": True}}, "upload/mixture/k0"),
        ({"mixture": [1]}, "upload/mixture"),
        ({"metrics": {"loss": None}}, "upload/metrics/loss"),
    ],
)
def test_a_field_of_another_type_is_refused_by_path(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(BadFormat, match=named):
        decode("upload", message(upload_body(**changes)), Upload)


@pytest.mark.parametrize("body", ["[]", "5", "null", '"x"', "{}"])
def test_a_body_without_its_fields_is_refused(body: str) -> None:
    with pytest.raises(BadFormat):
        decode("upload", message(body), Upload)


def test_a_missing_field_is_refused_by_name() -> None:
    with pytest.raises(BadFormat, match="samples"):
        decode("upload", message('{"client":"c","number":1}'), Upload)


def test_a_choice_is_one_of_those_known() -> None:
    with pytest.raises(BadFormat, match="one of join, upload"):
        decode("event", message('{"kind":"party"}', "event"), Event)


def test_a_list_is_wanted_where_a_tuple_was() -> None:
    receipt = {"number": 1, "base": 0, "recipe": "train", "models": "k0"}
    with pytest.raises(BadFormat, match="receipt/models must be a list"):
        from_tree(Receipt, receipt)


@pytest.mark.parametrize("name", ["x", "", "models", 5, None, ["t"], {"$tensor": "t"}])
def test_a_tensor_named_but_absent_is_refused(name: Any) -> None:
    body = upload_body(models={"k0": {"$tensor": name}})
    with pytest.raises(BadFormat):
        decode("upload", message(body, tensors=b"\0" * 8, t=F32), Upload)


def test_a_tensor_named_twice_is_refused() -> None:
    body = upload_body(models={"k0": {"$tensor": "t"}, "k1": {"$tensor": "t"}})
    with pytest.raises(BadFormat):
        decode("upload", message(body, tensors=b"\0" * 8, t=F32), Upload)


def test_a_tensor_nobody_names_is_refused() -> None:
    with pytest.raises(BadFormat, match="Nothing in the message refers to its tensor"):
        decode("upload", message(upload_body(), tensors=b"\0" * 8, t=F32), Upload)


@pytest.mark.parametrize(
    "tensor",
    [
        F32 | {"shape": [3]},
        F32 | {"shape": [-2]},
        F32 | {"shape": [2**63, 2**63]},
        F32 | {"data_offsets": [0, 80]},
        F32 | {"data_offsets": [8, 0]},
        F32 | {"dtype": "F33"},
        {"dtype": "F32"},
        [],
    ],
)
def test_a_tensor_that_does_not_fit_the_file_is_refused(tensor: Any) -> None:
    body = upload_body(models={"k0": {"$tensor": "t"}})
    with pytest.raises(BadFormat):
        decode("upload", message(body, tensors=b"\0" * 8, t=tensor), Upload)


@pytest.mark.parametrize(("dtype", "shape"), [("BF16", [4]), ("F8_E4M3", [8]), ("F8_E5M2", [8]), ("C64", [1])])
def test_a_dtype_numpy_does_not_have_is_refused_by_name(dtype: str, shape: list[int]) -> None:
    body = upload_body(models={"k0": {"$tensor": "t"}})
    with pytest.raises(BadFormat, match=dtype):
        decode("upload", message(body, tensors=b"\0" * 8, t=F32 | {"dtype": dtype, "shape": shape}), Upload)


@pytest.mark.parametrize("field", ["client", "number", "mixture", "models", "metrics"])
def test_an_array_where_none_belongs_is_refused(field: str) -> None:
    body = upload_body(**{field: {"$tensor": "t"}})
    with pytest.raises(BadFormat, match=f"upload/{field}"):
        decode("upload", message(body, tensors=b"\0" * 8, t=F32), Upload)


def test_an_array_where_a_choice_belongs_is_refused() -> None:
    with pytest.raises(BadFormat, match="event/kind"):
        decode("event", message('{"kind":{"$tensor":"t"}}', "event", b"\0" * 8, t=F32), Event)


@pytest.mark.parametrize("depth", [500, 900, 1000, 10_000, 100_000])
@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}")])
def test_a_deep_nesting_is_refused(depth: int, opening: str, closing: str) -> None:
    memo = opening * depth + "1" + closing * depth
    with pytest.raises(BadFormat):
        decode("upload", message(f'{{"client":"c","number":1,"samples":5,"metrics":{memo}}}'), Upload)


def test_a_snapshot_with_a_broken_layout_is_refused() -> None:
    tree = to_tree(a_snapshot())
    for broken in (None, {}, {"entries": [{}], "ties": {}, "home": []}, {"entries": 5, "ties": {}, "home": []}):
        tree["state"]["layout"] = broken
        with pytest.raises(BadFormat):
            decode("snapshot", encode("snapshot", tree), Snapshot)


# whatever the bytes

VALID = encode("upload", an_upload())


@unhurried
@given(st.data())
def test_altered_bytes_decode_or_are_refused(data: st.DataObject) -> None:
    altered = bytearray(VALID)
    for _ in range(data.draw(st.integers(1, 4))):
        altered[data.draw(st.integers(0, len(altered) - 1))] = data.draw(st.integers(0, 255))
    check_decoding(bytes(altered))


@unhurried
@given(st.integers(0, len(VALID)), st.integers(0, len(VALID)), st.binary(max_size=12))
def test_spliced_bytes_decode_or_are_refused(start: int, stop: int, patch: bytes) -> None:
    check_decoding(VALID[:start] + patch + VALID[stop:])


@unhurried
@given(st.binary(max_size=200))
def test_random_headers_are_refused(junk: bytes) -> None:
    with pytest.raises(Refused):
        decode("upload", raw(junk), Upload)


@unhurried
@given(st.dictionaries(st.sampled_from(["client", "number", "samples", "models", "mixture", "metrics"]), TREES))
@example({"models": {"\ud800": np.zeros(2)}})
def test_any_body_decodes_or_is_refused(tree: dict[str, Any]) -> None:
    base = {"client": "c", "number": 1, "samples": 5}
    tensors: list[np.ndarray] = []

    def put(path: str, array: np.ndarray) -> Mapping[str, str]:
        tensors.append(np.zeros(array.size, "<f4"))
        return {"$tensor": f"t{len(tensors) - 1}"}

    body, end, heads = json.dumps(scatter(base | tree, put)), 0, {}
    for i, array in enumerate(tensors):
        heads[f"t{i}"] = {"dtype": "F32", "shape": list(array.shape), "data_offsets": [end, end + array.nbytes]}
        end += array.nbytes
    check_decoding(message(body, tensors=b"".join(array.tobytes() for array in tensors), **heads))


def check_decoding(data: bytes) -> None:
    """Refused, or a sound value: one that can be named by a digest and encoded again."""
    try:
        upload = decode("upload", data, Upload)
    except Refused:
        return
    assert len(digest(to_tree(upload))) == 64
    assert decode("upload", encode("upload", upload), Upload).client == upload.client


# trees


def test_scatter_replaces_every_array_and_says_where_it_stood() -> None:
    seen = []

    def put(path: str, array: np.ndarray) -> str:
        seen.append((path, array.tolist()))
        return f"<{path}>"

    tree = {"a": np.array([1]), "b": [5, {"c": np.array([2, 3])}], "d": None}
    assert scatter(tree, put) == {"a": "<a>", "b": [5, {"c": "<b/1/c>"}], "d": None}
    assert seen == [("a", [1]), ("b/1/c", [2, 3])]


def test_gather_replaces_every_mark_and_nothing_else() -> None:
    tree = {"a": {"$x": "one"}, "b": [{"$x": "two"}, {"$x": "three", "more": 1}], "c": {"$y": "four"}}
    found = gather(tree, "$x", lambda name: np.array([len(name)]))
    assert found["a"].tolist() == [3] and found["b"][0].tolist() == [3]
    assert found["b"][1] == {"$x": "three", "more": 1} and found["c"] == {"$y": "four"}


@unhurried
@given(TREES, TREES)
@example({"a/b": np.ones(1), "a": {"b": None}}, {"a/b": None, "a": {"b": np.ones(1)}})
@example([np.ones(1), None], [None, np.ones(1)])
@example({"a": np.zeros(2, "f4")}, {"a": np.zeros(1, "f8")})
@example({"a": np.zeros((1, 2))}, {"a": np.zeros((2, 1))})
@example({"a": 1}, {"a": 1.0})
@example({"a": np.zeros(1)}, {"a": None})
def test_two_trees_have_one_digest_only_if_they_are_equal(a: Any, b: Any) -> None:
    assert (digest(a) == digest(b)) == (canonical(a) == canonical(b))


def canonical(tree: Any) -> Any:
    """A tree as nested tuples in which equal means equal."""
    if isinstance(tree, dict):
        return "dict", tuple(sorted((key, canonical(item)) for key, item in tree.items()))
    if isinstance(tree, list):
        return "list", tuple(canonical(item) for item in tree)
    if isinstance(tree, np.ndarray):
        return "array", tree.dtype.str, tree.shape, tree.tobytes()
    return type(tree).__name__, repr(tree)


def test_the_digest_does_not_depend_on_the_order_of_keys() -> None:
    one, two = np.ones(1), np.zeros(1)
    assert digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1})
    assert digest({"a": one, "b": two}) == digest({"b": two, "a": one})


def test_the_digest_sees_every_bit_of_an_array() -> None:
    array = np.zeros(3, np.float32)
    digests = {digest({"a": array})}
    for byte in range(12):
        array.view(np.uint8)[byte] ^= 1
        digests.add(digest({"a": array}))
    assert len(digests) == 13


def test_the_digest_reads_values_not_memory_order() -> None:
    array = np.arange(6.0).reshape(2, 3)
    assert digest({"a": array}) == digest({"a": np.asfortranarray(array)}) == digest({"a": array[::1]})


def test_a_message_is_the_file_the_library_would_write() -> None:
    from safetensors.numpy import load, save

    models = {f"k{i}": np.random.default_rng(i).normal(size=5 + i).astype(np.float32) for i in range(12)}
    message = encode("upload", {"models": models, "name": 'ä"\\\n\x1f'})
    text = json.loads(message[8 : 8 + struct.unpack("<Q", message[:8])[0]])["__metadata__"]["artesian"]
    assert message == save({f"models/{k}": params for k, params in models.items()}, {"artesian": text})
    mixed = {
        "a": np.arange(3, dtype=">i2"),
        "b": np.array([True, False]),
        "c": np.array(1.5),
        "d": np.ones((2, 0)),
    }
    found = load(encode("arrays", mixed))
    assert {k: (a.tolist(), a.shape) for k, a in found.items()} == {k: (a.tolist(), a.shape) for k, a in mixed.items()}


def test_an_array_that_lies_askew_in_a_message_is_straightened() -> None:
    message = encode("arrays", {"a": np.arange(4, dtype=np.float32)})
    (length,) = struct.unpack("<Q", message[:8])
    for spaces in range(1, 4):  # other writers need not pad their header
        head = message[8 : 8 + length].rstrip() + b" " * spaces
        (array,) = decode(
            "arrays", struct.pack("<Q", len(head)) + head + message[8 + length :], dict[str, Any]
        ).values()
        assert array.flags.aligned and array.tolist() == [0, 1, 2, 3]


def test_metadata_are_texts() -> None:
    message = encode("arrays", {"a": 1})
    (length,) = struct.unpack("<Q", message[:8])
    head = json.loads(message[8 : 8 + length])
    head["__metadata__"]["more"] = 3
    text = json.dumps(head).encode()
    with pytest.raises(BadFormat, match="metadata of the message cannot be read"):
        decode("arrays", struct.pack("<Q", len(text)) + text, dict[str, Any])


@dataclass(frozen=True)
class Chosen:
    """A value whose fields may be of several types."""

    bar: float | Literal["min"] | None = None
    passes: float | tuple[float, ...] | None = None
    later: str = "as before"


@pytest.mark.parametrize("value", [Chosen(), Chosen(2.5, 3.0), Chosen("min", (3.0, 4.0)), Chosen(7, ())])
def test_a_field_of_several_types_is_built_as_the_one_that_fits(value) -> None:
    assert from_tree(Chosen, to_tree(value)) == value
    assert with_fields(Chosen(1.0), plain_fields(value)) == value


def test_a_field_that_fits_none_of_its_types_is_refused() -> None:
    with pytest.raises(BadFormat, match="chosen/bar must be one of min, not 'most'"):
        from_tree(Chosen, {"bar": "most"})


def test_a_field_that_is_newer_than_a_record_had_its_default_then() -> None:
    recorded = {"bar": "min", "passes": 3.0}
    assert with_defaults(Chosen(later="now"), recorded) == {**recorded, "later": "as before"}
    assert with_defaults(Chosen(later=len), recorded) == recorded  # what cannot be recorded stays
