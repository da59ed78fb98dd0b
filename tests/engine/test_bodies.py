"""Bodies of rows in extents: copied in C and in numpy alike."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from headrace.core import native
from headrace.core.layout import Field, RowLayout
from headrace.core.tree import flatten
from headrace.engine import bodies
from headrace.engine.bodies import Body


def some_rows(count: int) -> tuple[Body, list[np.ndarray[Any, Any]]]:
    """Rows of an image, a mask and a target, and how their bodies lie."""
    shapes = (((7, 5, 3), "uint8"), ((3,), "float32"), ((), "int64"))
    layout = RowLayout(tuple(Field(shape, dtype) for shape, dtype in shapes), flatten(((0, 1), 2))[1])
    rng = np.random.default_rng(7)
    out = [rng.integers(0, 200, (count, *shape)).astype(dtype) for shape, dtype in shapes]
    return Body.of(layout, targets=True), out


@pytest.mark.parametrize("compiled", [True, False])
def test_a_body_comes_back_as_it_went(monkeypatch: pytest.MonkeyPatch, compiled: bool) -> None:
    if not compiled:
        monkeypatch.setattr(native, "calls", None)
    elif native.calls is None:
        pytest.skip("the C counterparts are not built")
    body, out = some_rows(9)
    assert body.fields == 2
    chosen = [8, 0, 3]
    memory = bytearray(64 * 16)
    extents = [memoryview(memory)[at * 256 : at * 256 + body.nbytes] for at in range(3)]
    bodies.dump(extents, body.blocks(out), chosen)
    again = [np.zeros_like(field) for field in out]
    bodies.load(extents, body.blocks(again), [1, 2, 7])
    for field, copied in zip(out[:2], again[:2], strict=True):
        assert (copied[[1, 2, 7]] == field[chosen]).all()
        copied[[1, 2, 7]] = 0
        assert not copied.any(), "other rows are left alone"
    assert not again[2].any(), "targets are no part of a body"
    bodies.load([], body.blocks(again), [])


@pytest.mark.skipif(native.calls is None, reason="the C counterparts are not built")
def test_what_does_not_fit_is_refused() -> None:
    assert native.calls is not None
    matrix = np.zeros((4, 100), np.uint8)
    extent = memoryview(bytearray(100))
    wrong: list[tuple[Any, ...]] = [
        (matrix, [0], [extent[:99]], 0),
        (matrix, [0], [extent], 1),
        (matrix, [0], [extent], -1),
        (matrix, [0, 1], [extent], 0),
        (matrix, [4], [extent], 0),
        (matrix, [-1], [extent], 0),
        (matrix[:, ::2], [0], [extent], 0),
        (matrix.view(np.uint16), [0], [extent], 0),
        (matrix[0], [0], [extent], 0),
        (matrix, [0], [None], 0),
        (matrix, ["0"], [extent], 0),
        (matrix, (0,), [extent], 0),
    ]
    for arguments in wrong:
        for call in (native.calls.load_rows, native.calls.dump_rows):
            with pytest.raises((ValueError, IndexError, TypeError)):
                call(*arguments)
    read_only = memoryview(bytes(100))
    native.calls.load_rows(matrix, [0], [read_only], 0)
    with pytest.raises((BufferError, TypeError, ValueError)):
        native.calls.dump_rows(matrix, [0], [read_only], 0)
    matrix.flags.writeable = False
    native.calls.dump_rows(matrix, [0], [extent], 0)
    with pytest.raises((BufferError, ValueError)):
        native.calls.load_rows(matrix, [0], [extent], 0)
