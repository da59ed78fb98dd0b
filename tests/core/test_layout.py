"""A batch's memory: fields neither overlap nor leave the slot, and start on cache lines."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.layout import ALIGN, BFLOAT16, Field, RowLayout, aligned

DTYPES = [
    "uint8",
    "int8",
    "uint16",
    "int32",
    "int64",
    "float16",
    "float32",
    "float64",
    "bool",
    "complex64",
    BFLOAT16,
]
FIELDS = st.builds(Field, st.lists(st.integers(0, 5), max_size=4).map(tuple), st.sampled_from(DTYPES))
LAYOUTS = st.lists(FIELDS, min_size=1, max_size=5).map(lambda fields: RowLayout(tuple(fields)))


def span(view: np.ndarray) -> range:
    """Addresses that a view covers."""
    start = view.__array_interface__["data"][0]
    return range(start, start + view.nbytes)


@given(st.integers(0, 10**9), st.sampled_from([1, 8, 64, 4096]))
def test_aligned_is_the_next_multiple(size: int, to: int) -> None:
    up = aligned(size, to)
    assert up % to == 0
    assert size <= up < size + to


@given(LAYOUTS, st.integers(1, 9))
def test_fields_lie_apart_inside_the_slot(layout: RowLayout, rows: int) -> None:
    nbytes = layout.nbytes(rows)
    buffer = bytearray(nbytes)
    base = np.frombuffer(buffer, np.uint8).__array_interface__["data"][0] if nbytes else 0
    views = layout.views(buffer, rows)
    end = 0
    for field, offset, view in zip(layout.fields, layout.offsets(rows), views, strict=True):
        assert offset % ALIGN == 0
        assert offset >= end
        assert view.shape == (rows, *field.shape)
        assert view.dtype == field.storage_dtype
        assert view.flags.c_contiguous
        end = offset + field.nbytes * rows
        if view.nbytes:
            assert span(view) == range(base + offset, base + end)
    assert end <= nbytes


@given(LAYOUTS, st.integers(1, 9), st.data())
@settings(deadline=None)
def test_rows_written_apart_make_up_the_whole(layout: RowLayout, rows: int, data: st.DataObject) -> None:
    """Workers write rows through views of their own; the loader sees all of them through one."""
    buffer = bytearray(layout.nbytes(rows))
    cuts = sorted(data.draw(st.sets(st.integers(0, rows), max_size=4)) | {0, rows})
    for start, stop in itertools.pairwise(cuts):
        for view in layout.views(buffer, rows, start, stop):
            assert len(view) == stop - start
            raw = view.reshape(stop - start, -1).view(np.uint8) if view.size else view
            for row in range(stop - start if view.size else 0):
                assert not raw[row].any(), "another order's rows were overwritten"
                raw[row] = start + row + 1
    for view in layout.views(buffer, rows):
        if view.size:
            expected = np.arange(1, rows + 1, dtype=np.uint8)[:, None]
            assert (view.reshape(rows, -1).view(np.uint8) == expected).all()


def test_a_buffer_that_is_too_small_is_refused() -> None:
    layout = RowLayout((Field((3,), "float32"), Field((), "int64")))
    with pytest.raises(ValueError):
        layout.views(bytearray(layout.nbytes(4) - ALIGN), 4)


def test_views_share_the_buffer() -> None:
    layout = RowLayout((Field((2,), "uint8"),))
    buffer = bytearray(layout.nbytes(2))
    layout.views(buffer, 2, 1)[0][:] = 7
    assert bytes(buffer[:4]) == b"\0\0\7\7"


def test_bfloat16_is_stored_in_two_bytes() -> None:
    assert Field((2,), BFLOAT16).nbytes == 4
