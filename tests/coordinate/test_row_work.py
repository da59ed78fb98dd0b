"""What is done with each row of an order, told row by row in other words."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.coordinate.messages import Order
from headrace.coordinate.row_work import COPY, DECODE, REST, RUN, RowWork
from headrace.core.forms import Form

ROWS = st.lists(st.tuples(st.sampled_from([0, 1, 2, 3]), st.sampled_from([0, 2, 4, 6, 8, 10, 12, 14])))
"""The form in which each enters, and the forms that the cache would admit."""


def order_of(rows: list[tuple[int, int]], *, fill: bool = False) -> Order:
    indices = np.arange(len(rows)).tobytes()
    forms, keep = (bytes(column) for column in zip(*rows, strict=True)) if rows else (b"", b"")
    return Order(1, 0, 0, len(rows), 0, 0, 0, 0, indices, forms=forms, keep=keep, fill=fill)


def way_of(form: Form, keeps: set[Form], *, fill: bool, makes_rows: bool) -> int:
    """A batch needs every row. A fill needs what is kept, made from the most prepared form there is."""
    if not fill:
        return COPY if form == Form.AUGMENTED else RUN
    if Form.AUGMENTED in keeps and form != Form.AUGMENTED and makes_rows:
        return RUN
    return DECODE if Form.DECODED in keeps and form < Form.DECODED else REST


@given(ROWS, st.booleans(), st.booleans())
def test_each_row_gets_what_it_needs_and_no_more(
    rows: list[tuple[int, int]], fill: bool, makes_rows: bool
) -> None:
    if not fill and not makes_rows:
        rows = [(min(form, 2), keep) for form, keep in rows]
    todo = RowWork(order_of(rows, fill=fill), makes_rows=makes_rows)
    missing, cached = todo.missing().tolist(), todo.cached().tolist()
    published = {
        Form.ENCODED: todo.encoded(todo.missing()).tolist(),
        Form.DECODED: todo.decoded().tolist(),
        Form.AUGMENTED: todo.augmented().tolist(),
    }
    for row, (number, mask) in enumerate(rows):
        form, keeps = Form(number), {kept for kept in Form if mask & (1 << kept)}
        way = way_of(form, keeps, fill=fill, makes_rows=makes_rows)
        assert todo.ways[row] == way
        needed = way != REST or (Form.ENCODED in keeps and form == Form.NONE)
        assert (row in missing) == (needed and form == Form.NONE)
        assert (row in cached) == (needed and form != Form.NONE)
        decoded = way in (DECODE, RUN) and form < Form.DECODED
        assert todo.is_decoded()[row] == decoded
        made = {Form.ENCODED: row in missing, Form.DECODED: decoded, Form.AUGMENTED: way == RUN}
        for kept, is_made in made.items():
            assert (row in published[kept]) == (is_made and kept in keeps)


@given(ROWS.filter(bool), st.data())
def test_what_the_cache_has_not_after_all_is_fetched(
    rows: list[tuple[int, int]], data: st.DataObject
) -> None:
    todo = RowWork(order_of(rows))
    lost = data.draw(st.integers(0, len(rows) - 1))
    todo.unreadable(lost)
    as_if = RowWork(order_of([(0 if row == lost else form, keep) for row, (form, keep) in enumerate(rows)]))
    assert todo.missing().tolist() == as_if.missing().tolist()
    assert todo.ways.tolist() == as_if.ways.tolist()
    assert todo.decoded().tolist() == as_if.decoded().tolist()


def test_an_order_that_says_nothing_of_its_rows_has_them_from_storage() -> None:
    todo = RowWork(Order(1, 0, 0, 3, 0, 0, 0, 0, np.arange(3).tobytes()))
    assert todo.missing().tolist() == [0, 1, 2] and todo.ways.tolist() == [RUN] * 3
    assert not len(todo.cached()) and not len(todo.augmented()) and not len(todo.decoded())


def test_augmented_rows_cannot_be_collated() -> None:
    with pytest.raises(ValueError, match="its samples are collated"):
        RowWork(order_of([(3, 0)]), makes_rows=False)
