"""Extents: what goes in comes out, exactly, read-only and without a copy; what is damaged raises ValueError."""

from __future__ import annotations

import enum
from collections import OrderedDict, namedtuple
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from headrace.cache import extents
from headrace.core.layout import ALIGN
from tests.strategies import words

DTYPES = st.sampled_from(
    ["?", "i1", "u1", "<i2", ">i2", "<u4", "<i8", "<u8", "<f2", "<f4", ">f4", "<f8", "<c8", "<c16"]
)
ARRAYS = DTYPES.flatmap(
    lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, max_dims=8, min_side=0, max_side=4))
)
PLAIN = st.one_of(
    *(st.none(), st.booleans(), st.integers(-(2**63), 2**64 - 1), st.floats(), words(), ARRAYS),
    *(st.floats(width=32).map(np.float32), st.integers(-5, 5).map(np.int16), st.booleans().map(np.bool_)),
)
VALUES = st.recursive(
    PLAIN,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(words(max_size=4), inner, max_size=4),
    ),
    max_leaves=8,
)


def joined(value: Any) -> memoryview:
    """The extent of a value, in writable memory as an arena's is."""
    pieces = extents.dump(value)
    assert pieces is not None
    return memoryview(bytearray(b"".join(bytes(piece) for piece in pieces)))


def same(one: Any, two: Any) -> bool:
    """Equal in value, type, dtype and shape, at every level."""
    if type(one) is not type(two):
        return False
    if isinstance(one, np.ndarray | np.generic):
        return one.dtype == two.dtype and one.shape == two.shape and one.tobytes() == two.tobytes()
    if isinstance(one, dict):
        return list(one) == list(two) and all(same(one[key], two[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(two) and all(same(a, b) for a, b in zip(one, two, strict=True))
    return bool(one == two) or (one != one and two != two)


def arrays_in(value: Any) -> list[np.ndarray]:
    """All arrays of a nested value."""
    if isinstance(value, np.ndarray):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [array for item in value for array in arrays_in(item)] if isinstance(value, list | tuple) else []


@given(VALUES)
@settings(max_examples=120, deadline=None)
def test_round_trip(value: Any) -> None:
    assert same(extents.load(joined(value)), value)


@given(ARRAYS)
@settings(deadline=None)
def test_round_trip_of_arrays_that_are_not_contiguous(array: np.ndarray) -> None:
    for variant in (array.T, array[..., ::-1] if array.ndim else array, np.asfortranarray(array)):
        assert same(extents.load(joined(variant)), variant)
        assert same(extents.load(joined([variant])), [variant])


@given(VALUES)
@settings(deadline=None)
def test_loaded_arrays_are_read_only_views_without_a_copy(value: Any) -> None:
    buffer = joined(value)
    memory = np.frombuffer(buffer, np.uint8)
    for array in arrays_in(extents.load(buffer)):
        assert not array.flags.writeable
        with pytest.raises(ValueError):
            array.flags.writeable = True
        if array.size:
            assert np.shares_memory(array, memory)
            assert (array.__array_interface__["data"][0] - memory.__array_interface__["data"][0]) % ALIGN == 0


@given(DTYPES, hnp.array_shapes(min_dims=0, max_dims=6, min_side=0, max_side=4))
@settings(deadline=None)
def test_arrays_filled_in_place_are_the_same_extents(dtype: str, shape: tuple[int, ...]) -> None:
    size = extents.array_size(shape, dtype)
    assert size % ALIGN == 0
    buffer = memoryview(bytearray(size))
    array = extents.open_array(buffer, shape, dtype)
    assert array.shape == shape
    assert array.flags.writeable
    array[...] = 1
    assert same(extents.load(buffer), np.ones(shape, dtype))
    pieces = extents.dump(np.ones(shape, dtype))
    assert pieces is not None
    whole = b"".join(bytes(piece) for piece in pieces)
    assert bytes(buffer[: len(whole)]) == whole


class Colour(enum.IntEnum):
    """An int that is more than an int."""

    RED = 1


class Text(str):
    """A str that is more than a str."""


Pair = namedtuple("Pair", "a b")
CYCLE: list[Any] = []
CYCLE.append(CYCLE)


@pytest.mark.parametrize(
    "value",
    [
        *(object(), {1: 2}, {1, 2}, b"bytes", 1j, 2**64, -(2**63) - 1, "\ud800", Colour.RED, Text("x")),
        *(Pair(1, 2), OrderedDict(a=1), [object()], {"a": {"b": lambda: 0}}, CYCLE, {Text("k"): 1}),
        *(np.array(["a"]), np.array([object()]), np.array(["2020-01-01"], "M8[D]"), np.zeros(2, "i4,f4")),
        *(
            np.datetime64("2020-01-01"),
            np.str_("x"),
            np.ma.masked_array([1, 2], [True, False]),
            [np.array([None])],
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_would_not_come_back_the_same_is_not_cached(value: Any) -> None:
    assert extents.dump(value) is None


def test_memory_maps_are_cached_as_arrays(tmp_path: Any) -> None:
    mapped = np.memmap(tmp_path / "a", np.int32, "w+", shape=(3,))
    mapped[:] = 5
    assert same(extents.load(joined(mapped)), np.full(3, 5, np.int32))


# -- damage ----------------------------------------------------------------------------------------------


def check_damaged(buffer: bytes | bytearray) -> None:
    """Loading gives a value whose arrays lie inside the buffer, or raises ValueError; nothing else."""
    memory = np.frombuffer(buffer, np.uint8)
    start = memory.__array_interface__["data"][0]
    try:
        value = extents.load(memoryview(buffer))
    except ValueError:
        return
    for array in arrays_in(value):
        at = array.__array_interface__["data"][0] - start
        assert array.size == 0 or (at >= 0 and at + array.nbytes <= len(buffer))
        assert array.dtype.kind in "biufc"
        array.sum()


@given(VALUES, st.data())
@settings(max_examples=120, deadline=None)
def test_truncated_extents_raise_or_lie_inside(value: Any, data: st.DataObject) -> None:
    whole = bytes(joined(value))
    check_damaged(whole[: data.draw(st.integers(0, len(whole)))])


@given(VALUES, st.data())
@settings(max_examples=150, deadline=None)
def test_flipped_bytes_raise_or_lie_inside(value: Any, data: st.DataObject) -> None:
    whole = bytearray(joined(value))
    for _ in range(data.draw(st.integers(1, 3))):
        whole[data.draw(st.integers(0, min(len(whole) - 1, 120)))] = data.draw(st.integers(0, 255))
    check_damaged(whole)


@given(st.binary(max_size=200), st.sampled_from([b"", b"1ARH", b"1TRH"]))
@settings(max_examples=120, deadline=None)
def test_arbitrary_bytes_raise_or_lie_inside(data: bytes, magic: bytes) -> None:
    check_damaged(magic + data)


ANYTHING = st.recursive(
    st.one_of(
        st.none(), st.integers(-(2**63), 2**64 - 1), words(max_size=3), st.sampled_from(["<f4", "O", "V0"])
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from(["a", "s", "d", "l", "t", "v"]), inner, max_size=2),
    ),
    max_leaves=8,
)


@given(st.one_of(ANYTHING, st.tuples(ANYTHING, st.lists(st.tuples(st.sampled_from(["<f4", "O"]), ANYTHING)))))
@settings(max_examples=150, deadline=None)
def test_well_formed_trees_that_lie_raise_or_lie_inside(tree: Any) -> None:
    described = msgspec.msgpack.encode(tree)
    prefix = b"1TRH" + len(described).to_bytes(8, "little")
    check_damaged(prefix + described + bytes(256))


def header(ndim: int, dtype: bytes, *shape: int) -> bytes:
    """An array's header with any numbers in it."""
    return extents._HEADER.pack(extents._ARRAY, ndim, dtype, *shape, *(0,) * (6 - len(shape))) + bytes(64)


@pytest.mark.parametrize(
    "damaged",
    [
        b"",
        b"1ARH",
        header(1, b"<f4", 16)[:63],
        header(1, b"<f4", 17),
        header(7, b"<f4", 1, 1, 1, 1, 1, 1),
        header(2**32 - 1, b"<f4", 1),
        header(2, b"<f4", 2**63, 2),
        header(2, b"<f4", 2**63, 0),
        header(6, b"<f4", *(2**64 - 1,) * 6),
        header(1, b"|O", 1),
        header(1, b"<U1", 1),
        header(1, b"|V0", 1),
        header(1, b"nonsense", 1),
        header(1, b"\xff\xfe", 1),
        header(1, b"", 1),
        b"1TRH" + (2**64 - 1).to_bytes(8, "little") + bytes(100),
        b"\0" * 100,
    ],
)
def test_damaged_headers(damaged: bytes) -> None:
    with pytest.raises(ValueError):
        extents.load(memoryview(damaged))


def test_negative_lengths_and_indices_are_refused() -> None:
    for tree in ([{"a": 0}, [["<f4", [-1]]]], [{"a": 0}, [["<f4", [-2, -2]]]], [{"a": -1}, [["<f4", [1]]]]):
        described = msgspec.msgpack.encode(tree)
        data = b"1TRH" + len(described).to_bytes(8, "little") + described + bytes(128)
        with pytest.raises(ValueError):
            extents.load(memoryview(data))
