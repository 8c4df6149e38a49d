"""One model as one vector: what goes where, and the arithmetic against float64 numpy."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from artesian import params as params_module
from artesian.errors import LayoutError, NotFinite, WrongShape
from artesian.params import (
    Layout,
    average,
    chunks,
    combine,
    cosine,
    distance,
    keep_buffers,
    kept_by_size,
    minus,
    norm,
    seal,
    toward,
)

unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

Arrays = dict[str, np.ndarray]


def floats(*values: float, dtype: Any = np.float32) -> np.ndarray:
    return np.array(values, dtype)


def mixed() -> Arrays:
    """A counter, a buffer and two weights, in an order that is not the vector's."""
    return {
        "steps": np.array(2**53 + 1, np.int64),
        "mean": floats(0.5, 0.25),
        "weight": np.arange(6, dtype=np.float32).reshape(2, 3),
        "bias": floats(7, 8, 9),
    }


def mixed_layout() -> Layout:
    return Layout.of(mixed(), trainable=["weight", "bias"])


def flat_layout(size: int) -> Layout:
    return Layout.of({"w": np.zeros(size, np.float32)})


def vector(values: Any) -> np.ndarray:
    return seal(np.array(values, np.float32))


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(params_module, "CHUNK", 3)


# what goes where


def test_a_vector_holds_trainable_entries_then_buffers_then_counters() -> None:
    layout = mixed_layout()
    assert [entry.name for entry in layout.entries] == ["weight", "bias", "mean", "steps"]
    assert layout.offsets == (0, 6, 9, 11)
    assert (layout.trainable, layout.floats, layout.size) == (9, 11, 13)


def test_pack_writes_the_floats_in_that_order() -> None:
    assert mixed_layout().pack(mixed())[:11].tolist() == [0, 1, 2, 3, 4, 5, 7, 8, 9, 0.5, 0.25]


def test_every_floating_array_is_trainable_unless_told_otherwise() -> None:
    layout = Layout.of(mixed())
    assert [entry.name for entry in layout.entries if entry.trainable] == ["mean", "weight", "bias"]
    assert (layout.trainable, layout.floats, layout.size) == (11, 11, 13)


def test_a_scalar_and_an_empty_array_take_one_place_and_none() -> None:
    arrays = {"scale": np.array(3.5, np.float32), "nothing": np.zeros((0, 4), np.float32), "w": floats(1, 2)}
    layout = Layout.of(arrays)
    assert layout.offsets == (0, 1, 1)
    back = layout.unpack(layout.pack(arrays))
    assert back["scale"].shape == () and back["scale"] == 3.5
    assert back["nothing"].shape == (0, 4)
    assert layout.name_at(1) == "w"


@pytest.mark.parametrize(
    ("dtype", "count", "slots"),
    [("int64", 3, 6), ("int32", 3, 3), ("uint8", 5, 2), ("uint8", 4, 1), ("bool", 1, 1), ("int16", 3, 2)],
)
def test_counters_are_padded_to_four_bytes(dtype: str, count: int, slots: int) -> None:
    layout = Layout.of({"w": floats(1), "n": np.zeros(count, dtype)})
    assert layout.size == 1 + slots


@pytest.mark.parametrize(
    "counter",
    [
        np.array([2**53 + 1, -(2**63), 2**63 - 1], np.int64),
        np.array([2**64 - 1], np.uint64),
        np.array([2**31 - 1, -(2**31)], np.int32),
        np.array([0, 1, 127, 128, 255], np.uint8),
        np.array([True, False, True], np.bool_),
        np.array(2**53 + 1, np.int64),
        np.array([[1, -2], [3, -4]], np.int16)[:, ::-1],
    ],
)
def test_a_counter_comes_back_exactly(counter: np.ndarray) -> None:
    arrays = {"w": floats(1), "n": counter}
    layout = Layout.of(arrays)
    back = layout.unpack(layout.pack(arrays))["n"]
    assert back.dtype == counter.dtype and back.shape == counter.shape
    assert back.tolist() == counter.tolist()


def test_a_counter_in_another_byte_order_never_changes_its_value() -> None:
    arrays = {"w": floats(1), "n": np.array([1, 2], ">i8")}
    with suppress(LayoutError):  # to refuse it, as a big-endian float is, would do as well
        layout = Layout.of(arrays)
        assert layout.unpack(layout.pack(arrays))["n"].tolist() == [1, 2]


def test_every_float16_widens_and_comes_back_bit_by_bit() -> None:
    every = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    every = every[np.isfinite(every)]
    layout = Layout.of({"w": every})
    packed = layout.pack({"w": every})
    assert packed.dtype == np.float32 and packed[1] == 2.0**-24
    back = layout.unpack(packed)["w"]
    assert back.dtype == np.float16
    assert (back.view(np.uint16) == every.view(np.uint16)).all()


def test_float64_is_refused_unless_it_may_be_narrowed() -> None:
    arrays = {"w": floats(0.1, 3.0, dtype=np.float64)}
    with pytest.raises(LayoutError, match=r"w is float64.*narrow=True"):
        Layout.of(arrays)
    layout = Layout.of(arrays, narrow=True)
    back = layout.unpack(layout.pack(arrays))["w"]
    assert back.dtype == np.float64
    assert back.tolist() == [0.10000000149011612, 3.0]


@pytest.mark.parametrize("dtype", ["complex64", "object", "U3", "datetime64[s]", "longdouble", ">f4"])
def test_other_dtypes_are_refused_by_name(dtype: str) -> None:
    with pytest.raises(LayoutError, match="odd has dtype"):
        Layout.of({"w": floats(1), "odd": np.zeros(2, dtype)})


def test_a_layout_needs_something_to_train() -> None:
    for arrays, options in (
        ({}, {}),
        ({"n": np.zeros(1, np.int64)}, {}),
        ({"w": floats(1)}, {"frozen": ["w"]}),
        ({"w": floats(1)}, {"share": ["other*"]}),
        ({"w": floats(1)}, {"trainable": []}),
    ):
        with pytest.raises(LayoutError, match="entries can be trained"):
            Layout.of(arrays, **options)  # type: ignore[arg-type]


def test_a_counter_cannot_be_trained() -> None:
    with pytest.raises(LayoutError, match="steps is int64"):
        Layout.of(mixed(), trainable=["weight", "steps"])


# ties, and what stays at home


def test_tied_weights_travel_once_and_come_back_under_both_names() -> None:
    shared = np.arange(4, dtype=np.float32).reshape(2, 2)
    arrays = {"encoder": shared, "bias": floats(9), "decoder": shared}
    layout = Layout.of(arrays)
    assert layout.size == 5 and dict(layout.ties) == {"decoder": "encoder"}
    back = layout.unpack(layout.pack(arrays))
    assert set(back) == {"encoder", "bias", "decoder"}
    assert back["decoder"].tolist() == back["encoder"].tolist() == [[0, 1], [2, 3]]


def test_a_view_of_other_shape_or_place_is_not_a_tie() -> None:
    base = np.arange(4, dtype=np.float32)
    layout = Layout.of({"all": base, "head": base[:2], "tail": base[2:], "square": base.reshape(2, 2)})
    assert not layout.ties and layout.size == 4 + 2 + 2 + 4


def test_equal_values_in_other_memory_are_not_a_tie() -> None:
    assert Layout.of({"a": floats(1, 2), "b": floats(1, 2)}).size == 4


def test_a_tie_with_a_frozen_name_travels_under_the_other() -> None:
    shared = floats(1, 2)
    layout = Layout.of({"first": shared, "second": shared}, frozen=["first"])
    assert [entry.name for entry in layout.entries] == ["second"]
    assert layout.home == ("first",)


def test_frozen_entries_stay_at_home() -> None:
    layout = Layout.of(mixed(), frozen=["bias", "steps"])
    assert [entry.name for entry in layout.entries] == ["mean", "weight"]
    assert layout.home == ("steps", "bias")
    packed = layout.pack(mixed())
    assert packed.tolist() == [0.5, 0.25, 0, 1, 2, 3, 4, 5]
    assert set(layout.unpack(packed)) == {"mean", "weight"}


def test_pack_does_without_what_stays_at_home() -> None:
    layout = Layout.of(mixed(), frozen=["bias"])
    assert layout.pack({name: array for name, array in mixed().items() if name != "bias"}).size == layout.size


@pytest.mark.parametrize("share", ["body.*", ["body.*"], ["body.w", "body.?"], lambda name: name.startswith("body")])
def test_share_chooses_by_glob_or_by_function(share: Any) -> None:
    arrays = {"body.w": floats(1), "body.b": floats(2), "head.w": floats(3), "Body.w": floats(4)}
    layout = Layout.of(arrays, share=share)
    assert [entry.name for entry in layout.entries] == ["body.w", "body.b"]
    assert layout.home == ("head.w", "Body.w")


def test_a_shared_name_may_still_be_frozen() -> None:
    layout = Layout.of({"a.w": floats(1), "a.b": floats(2)}, share=["a.*"], frozen=["a.b"])
    assert layout.home == ("a.b",)


# wrappers' prefixes


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "_module.", "_orig_mod.module.", "module._module.module."])
def test_a_wrapped_model_has_the_layout_of_the_bare_one(prefix: str) -> None:
    wrapped = {prefix + name: array for name, array in mixed().items()}
    names = [prefix + "weight", prefix + "bias"]
    layout = Layout.of(wrapped, trainable=names)
    assert layout.digest == mixed_layout().digest
    assert layout.pack(wrapped).tobytes() == mixed_layout().pack(mixed()).tobytes()
    assert layout.pack(mixed()).tobytes() == layout.pack(wrapped).tobytes()


def test_trainable_and_frozen_may_leave_the_prefix_out() -> None:
    wrapped = {"module." + name: array for name, array in mixed().items()}
    layout = Layout.of(wrapped, trainable=["weight"], frozen=["module.bias"])
    assert [entry.name for entry in layout.entries if entry.trainable] == ["weight"]
    assert layout.home == ("bias",)


def test_a_prefix_that_only_some_names_carry_stays() -> None:
    layout = Layout.of({"module.w": floats(1), "head": floats(2)})
    assert [entry.name for entry in layout.entries] == ["module.w", "head"]


@pytest.mark.parametrize("option", ["trainable", "frozen"])
def test_an_unknown_name_is_refused(option: str) -> None:
    with pytest.raises(LayoutError, match="wieght"):
        Layout.of(mixed(), **{option: ["weight", "wieght"]})  # type: ignore[arg-type]


# pack and unpack


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda a: a.pop("bias"), "lacks the entry bias"),
        (lambda a: a.update(more=floats(1)), "too many: more"),
        (lambda a: a.update(bias=floats(1, 2)), r"bias is float32 of shape \(2,\), not float32 of shape \(3,\)"),
        (lambda a: a.update(weight=a["weight"].T), r"weight is .*not float32 of shape \(2, 3\)"),
        (lambda a: a.update(bias=a["bias"].astype(np.float64)), "bias is float64.*not float32"),
        (lambda a: a.update(steps=np.array(1, np.int32)), "steps is int32.*not int64"),
    ],
)
def test_pack_refuses_another_model(change: Callable[[Arrays], Any], named: str) -> None:
    arrays = mixed()
    change(arrays)
    with pytest.raises(LayoutError, match=named):
        mixed_layout().pack(arrays)


def test_pack_copies_and_seals() -> None:
    arrays = mixed()
    packed = mixed_layout().pack(arrays)
    arrays["weight"][:] = 99
    assert packed[1] == 1
    with pytest.raises(ValueError, match="read-only"):
        packed[0] = 1


def test_pack_reads_arrays_in_any_memory_order() -> None:
    arrays = mixed() | {"weight": np.asfortranarray(mixed()["weight"])}
    assert mixed_layout().pack(arrays)[:6].tolist() == [0, 1, 2, 3, 4, 5]


def test_unpack_gives_copies_that_can_be_written() -> None:
    layout = mixed_layout()
    packed = layout.pack(mixed())
    for array in layout.unpack(packed).values():
        array[...] = 1
    assert packed.tobytes() == layout.pack(mixed()).tobytes()


def test_a_view_writes_into_the_vector() -> None:
    own = mixed_layout().pack(mixed()).copy()
    views = mixed_layout().view(own)
    assert set(views) == {"weight", "bias", "mean"}
    views["weight"][1, 2] = 50
    assert own[5] == 50


@pytest.mark.parametrize(
    "bad", [np.zeros(12, np.float32), np.zeros(13, np.float64), np.zeros((1, 13), np.float32), [0.0] * 13, None]
)
def test_a_vector_of_another_shape_is_refused(bad: Any) -> None:
    for verb in (mixed_layout().check, mixed_layout().unpack):
        with pytest.raises(WrongShape, match="length 13"):
            verb(bad)


@st.composite
def models(draw: st.DrawFn) -> Arrays:
    kinds = st.sampled_from(["float16", "float32", "int64", "int32", "uint8", "bool", "int16", "uint64"])
    arrays: Arrays = {"w": draw(hnp.arrays(np.float32, hnp.array_shapes(max_dims=2, max_side=4)))}
    for i in range(draw(st.integers(0, 5))):
        shape = draw(hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))
        arrays[f"e{i}"] = draw(hnp.arrays(draw(kinds), shape))
    return arrays


@unhurried
@given(models())
def test_whatever_is_packed_comes_back_bit_by_bit(arrays: Arrays) -> None:
    layout = Layout.from_json(Layout.of(arrays).to_json())
    back = layout.unpack(layout.pack(arrays))
    assert set(back) == set(arrays)
    for name, array in arrays.items():
        assert back[name].dtype == array.dtype and back[name].shape == array.shape
        same = back[name].tobytes() == array.tobytes()
        assert same or (np.isnan(array.astype(float)) == np.isnan(back[name].astype(float))).all()


# the layout as JSON


def test_json_and_back_is_the_same_layout() -> None:
    shared = floats(1, 2)
    layout = Layout.of({"a": shared, "b": shared, "c": np.zeros((2, 0, 3), np.float16), "d": floats(3)}, frozen=["d"])
    again = Layout.from_json(layout.to_json())
    assert again == layout and again.digest == layout.digest
    assert again.entries[1].shape == (2, 0, 3)


def test_the_digest_sees_names_shapes_dtypes_order_roles_ties_and_home() -> None:
    shared, w, v = floats(1, 2), floats(1, 2), floats(1, 2)
    layouts = [
        Layout.of({"w": w}),
        Layout.of({"v": w}),
        Layout.of({"w": w.reshape(1, 2)}),
        Layout.of({"w": w.astype(np.float16)}),
        Layout.of({"w": w, "v": v}),
        Layout.of({"v": v, "w": w}),
        Layout.of({"w": w, "v": v}, trainable=["w"]),
        Layout.of({"w": shared, "v": shared}),
        Layout.of({"w": w, "v": v}, frozen=["v"]),
    ]
    assert len({layout.digest for layout in layouts}) == len(layouts)
    assert Layout.of({"w": floats(8, 9)}).digest == layouts[0].digest


# finite or not


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(("place", "name"), [(0, "weight"), (5, "weight"), (6, "bias"), (9, "mean"), (10, "mean")])
def test_a_number_that_is_not_finite_is_refused_by_entry(
    value: float, place: int, name: str, small_chunks: None
) -> None:
    bad = mixed_layout().pack(mixed()).copy()
    bad[place] = value
    with pytest.raises(NotFinite, match=f"{value} in {name}"):
        mixed_layout().check(bad)


NAN_BITS = 0x7F800001_FFC00000  # two float32 NaNs, one of them signalling


def test_a_counter_may_look_like_nan_and_every_sum_keeps_its_bits() -> None:
    arrays = {"w": floats(1), "n": np.array(NAN_BITS, np.int64)}
    layout = Layout.of(arrays)
    odd = layout.pack(arrays)
    assert np.isnan(odd[1:]).all()
    layout.check(odd)
    plain = layout.pack({"w": floats(3), "n": np.array(5, np.int64)})
    for result in (
        combine(layout, (plain, odd), (0.5, 0.5)),
        toward(layout, plain, odd, 0.25),
        minus(layout, odd, plain),
        keep_buffers(layout, odd, plain),
    ):
        assert layout.unpack(result)["n"] == NAN_BITS


# arithmetic


def test_chunks_cover_everything_once(small_chunks: None) -> None:
    assert [(part.start, part.stop) for part in chunks(7)] == [(0, 3), (3, 6), (6, 7)]
    assert [(part.start, part.stop) for part in chunks(6)] == [(0, 3), (3, 6)]
    assert list(chunks(0)) == []


def some_vectors(layout: Layout, count: int, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [
        layout.pack({e.name: (rng.normal(size=e.shape) * 100).astype(e.dtype).reshape(e.shape) for e in layout.entries})
        for _ in range(count)
    ]


def test_combine_agrees_with_float64_across_chunks(small_chunks: None) -> None:
    layout = mixed_layout()
    vectors, factors = some_vectors(layout, 4), [0.3, -1.7, 1e-3, 2.0]
    expected = sum(f * v[:11].astype(np.float64) for f, v in zip(factors, vectors, strict=True))
    result = combine(layout, vectors, factors)
    assert result[:11].tolist() == expected.astype(np.float32).tolist()
    assert result[11:].tobytes() == vectors[3][11:].tobytes()
    assert not result.flags.writeable


@unhurried
@given(st.data())
def test_combine_equals_float64_for_any_numbers(data: st.DataObject) -> None:
    size, count = data.draw(st.integers(1, 9)), data.draw(st.integers(1, 5))
    numbers = st.floats(-1e6, 1e6, width=32)
    vectors = [vector(data.draw(st.lists(numbers, min_size=size, max_size=size))) for _ in range(count)]
    factors = data.draw(st.lists(st.floats(-10, 10), min_size=count, max_size=count))
    expected = np.zeros(size)
    for factor, one in zip(factors, vectors, strict=True):
        expected = expected + factor * one.astype(np.float64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(params_module, "CHUNK", data.draw(st.integers(1, 10)))
        result = combine(flat_layout(size), vectors, factors)
    assert result.tolist() == expected.astype(np.float32).tolist()


def test_sums_are_accumulated_in_float64() -> None:
    layout = flat_layout(1)
    big, one = vector([1e8]), vector([1])
    assert combine(layout, (big, one, big), (1.0, 1.0, -1.0)).tolist() == [1.0]
    tenth = vector([0.1])
    assert average(layout, [tenth] * 100).tolist() == tenth.tolist()


def test_counters_come_from_the_last_vector_that_counts_or_the_one_asked_for() -> None:
    layout = Layout.of({"w": floats(1), "n": np.array(0, np.int64)})
    one, two, three = (layout.pack({"w": floats(i), "n": np.array(i, np.int64)}) for i in (1, 2, 3))

    def counter(factors: list[float], newest: int | None = None) -> int:
        return int(layout.unpack(combine(layout, (one, two, three), factors, newest))["n"])

    assert counter([0.5, 0.5, 0.5]) == 3
    assert counter([0.5, 0.5, 0.0]) == 2
    assert counter([0.0, 0.0, 0.0]) == 3
    assert counter([0.5, 0.5, 0.5], newest=0) == 1


def test_combine_needs_one_factor_for_each_vector() -> None:
    with pytest.raises(ValueError, match="zip"):
        combine(flat_layout(1), [vector([1]), vector([2])], [1.0])


def test_average_is_the_mean_by_weight() -> None:
    layout = flat_layout(2)
    vectors = [vector([1, 10]), vector([3, 20]), vector([8, 60])]
    assert average(layout, vectors).tolist() == [4, 30]
    assert average(layout, vectors, [1, 3, 0]).tolist() == [2.5, 17.5]


def test_toward_goes_a_part_of_the_way(small_chunks: None) -> None:
    layout = flat_layout(5)
    old, new = vector([0, 4, 8, -4, 1]), vector([4, 8, 0, 4, 1])
    assert toward(layout, old, new, 0.25).tolist() == [1, 5, 6, -2, 1]
    assert toward(layout, old, new, 0) is old
    assert toward(layout, old, new, 1) is new


def test_minus_subtracts_floats_and_keeps_the_new_counter() -> None:
    layout = mixed_layout()
    old = layout.pack(mixed())
    new = layout.pack(mixed() | {"bias": floats(8, 8, 8), "steps": np.array(2**53 + 3, np.int64)})
    change = layout.unpack(minus(layout, new, old))
    assert change["bias"].tolist() == [1, 0, -1]
    assert not change["weight"].any() and not change["mean"].any()
    assert change["steps"] == 2**53 + 3


def test_minus_of_equal_vectors_is_zero_and_new() -> None:
    one = vector([1, 2])
    change = minus(flat_layout(2), one, one)
    assert change.tolist() == [0, 0] and not change.flags.writeable
    assert one.tolist() == [1, 2]


def test_keep_buffers_takes_buffers_and_counters_of_the_old() -> None:
    layout = mixed_layout()
    old, new = some_vectors(layout, 2)
    kept = keep_buffers(layout, old, new)
    assert kept[:9].tobytes() == new[:9].tobytes() and kept[9:].tobytes() == old[9:].tobytes()
    assert not kept.flags.writeable
    assert keep_buffers(flat_layout(1), vector([1]), vector([2])).tolist() == [2]


def test_distance_norm_and_cosine_see_the_trainable_part_alone(small_chunks: None) -> None:
    layout = mixed_layout()
    a, b = some_vectors(layout, 2)
    x, y = a[:9].astype(np.float64), b[:9].astype(np.float64)
    assert distance(layout, a, b) == pytest.approx(np.linalg.norm(x - y), rel=1e-14)
    assert norm(layout, a) == pytest.approx(np.linalg.norm(x), rel=1e-14)
    assert cosine(layout, a, b) == pytest.approx(x @ y / np.linalg.norm(x) / np.linalg.norm(y), rel=1e-13)


def test_distance_norm_and_cosine_by_hand() -> None:
    layout = flat_layout(2)
    assert distance(layout, vector([1, 2]), vector([4, 6])) == 5
    assert norm(layout, vector([3, 4])) == 5
    assert cosine(layout, vector([3, 4]), vector([4, 3])) == pytest.approx(24 / 25)
    assert cosine(layout, vector([1, 0]), vector([-2, 0])) == -1


def test_squares_do_not_overflow_float32() -> None:
    assert norm(flat_layout(2), vector([3e30, 4e30])) == pytest.approx(5e30, rel=1e-6)
    assert distance(flat_layout(1), vector([3e38]), vector([-3e38])) == pytest.approx(6e38, rel=1e-6)


def test_the_cosine_with_nothing_is_zero() -> None:
    layout = flat_layout(2)
    assert cosine(layout, vector([0, 0]), vector([1, 2])) == 0
    assert cosine(layout, vector([0, 0]), vector([0, 0])) == 0


def test_arithmetic_leaves_its_inputs_alone(small_chunks: None) -> None:
    layout = mixed_layout()
    a, b = some_vectors(layout, 2)
    before = a.tobytes(), b.tobytes()
    for work in (minus, distance, cosine, keep_buffers):
        work(layout, a, b)
    norm(layout, a)
    average(layout, [a, b])
    assert (a.tobytes(), b.tobytes()) == before


# the larger weights


def test_the_smallest_share_of_the_weights_is_left_out() -> None:
    """One bar over all matrices; the bias, the mean and the counter are kept however small they are."""
    arrays = {
        "one": np.array([[5, -1], [0.5, 3]], np.float32),
        "bias": floats(0, 0.1),
        "two": np.array([[-2, 4]], np.float32),
        "mean": floats(0),
        "steps": np.array(1, np.int64),
    }
    layout = Layout.of(arrays, trainable=["one", "bias", "two"])
    params = layout.pack(arrays)
    rest = [True] * (layout.size - 8)
    for share, one, two in (
        (0.0, (1, 1, 1, 1), (1, 1)),
        (0.16, (1, 1, 1, 1), (1, 1)),  # less than one of six
        (0.17, (1, 1, 0, 1), (1, 1)),
        (0.5, (1, 0, 0, 1), (0, 1)),
        (0.99, (1, 0, 0, 0), (0, 0)),
    ):
        assert kept_by_size(layout, params, share).tolist() == [*map(bool, one), True, True, *map(bool, two), *rest]


def test_of_equal_weights_the_first_are_left_out() -> None:
    layout = Layout.of({"w": np.zeros((2, 3), np.float32)})
    assert kept_by_size(layout, vector([1, -1, 1, 0, 1, 2]), 0.5).tolist() == [False, False, True, False, True, True]
    assert kept_by_size(layout, vector([0] * 6), 0.5).tolist() == [False] * 3 + [True] * 3
