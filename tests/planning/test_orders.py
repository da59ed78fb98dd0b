"""How batches are cut into orders, and how many are kept ahead at first."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.planning import (
    ahead_at_first,
    most_ahead,
    rows_among,
    rows_among_now,
    rows_per_order,
    rows_worth_while,
)


@given(st.integers(1, 1 << 20), st.integers(1, 256))
def test_a_job_that_shares_has_larger_orders_and_no_more_ahead(batch: int, hands: int) -> None:
    rows = rows_per_order(batch, hands, shared=True)
    orders = -(-batch // rows)
    assert rows >= rows_per_order(batch, hands) and orders <= 512
    if 8 * hands <= batch <= 32 * hands and batch <= 512 * 64:
        assert orders >= min(hands // 2, 512) / 2  # every other hand has a part in each batch
    ahead = ahead_at_first(batch, hands, rows, shared=True)
    assert ahead >= 2 and (ahead - 1) * batch >= hands * rows


@given(st.integers(1, 1 << 20), st.integers(1, 256))
def test_orders_are_few_enough_for_the_board_and_many_enough_for_the_hands(batch: int, hands: int) -> None:
    rows = rows_per_order(batch, hands)
    orders = -(-batch // rows)
    assert rows >= 4 and orders <= 512
    if 8 * hands <= batch <= 128 * hands and batch <= 512 * 64:
        assert orders >= min(2 * hands, 512) / 2  # every hand has a part in each batch
    ahead = ahead_at_first(batch, hands, rows)
    assert ahead >= 2 and (ahead - 1) * batch >= 2 * hands * rows


@given(
    st.integers(1, 1 << 20),
    st.integers(1, 64),
    st.integers(1, 256),
    st.floats(0.0, 1e6),
)
def test_orders_that_others_make_too_are_small_and_all_but_even(
    batch: int, hands: int, helpers: int, seconds: float
) -> None:
    rows = rows_among(batch, hands, helpers, seconds)
    assert rows >= rows_among(batch, hands, helpers), "what rows take there makes orders larger, if anything"
    orders = -(-batch // rows)
    assert min(batch, 16) <= rows <= max(2 * 64, batch // 256) and orders <= 512
    assert batch - (orders - 1) * rows > rows - orders, "none has only what is left"


def test_orders_that_go_elsewhere_are_larger_where_rows_are_cheap() -> None:
    assert [rows_among(64, 1, 3, seconds) for seconds in (0.0, 4e-3, 0.8e-3, 1e-6)] == [16, 16, 32, 64]
    assert rows_among(256, 1, 3, 0.5e-3) == 52
    assert rows_among(64, 1, 3, 5e-324) == 64, "whatever others say"
    assert rows_among(16, 1, 3, 0.8e-3) == 16


@given(
    st.integers(1, 1 << 20),
    st.integers(1, 64),
    st.integers(1, 256),
    st.floats(0.0, 1e6),
    st.integers(1, 1 << 20),
)
def test_orders_do_not_change_for_little_and_change_back(
    batch: int, hands: int, helpers: int, seconds: float, rows: int
) -> None:
    wanted, now = (
        rows_among(batch, hands, helpers, seconds),
        rows_among_now(batch, hands, helpers, seconds, rows),
    )
    assert now in (wanted, rows) and wanted <= now and (now < 2 * wanted or not seconds)
    assert rows_among_now(batch, hands, helpers, seconds, now) == now, "it stays so"


def test_what_two_processors_do_with_batches_of_64() -> None:
    assert (rows_per_order(64, 2), ahead_at_first(64, 2, 16)) == (16, 2)
    assert (rows_per_order(64, 1), ahead_at_first(64, 2, 32)) == (32, 3)
    assert (rows_per_order(64, 2, shared=True), ahead_at_first(64, 2, 64, shared=True)) == (64, 3)
    ranks = {"shared": True, "ranks": 2}
    assert (rows_per_order(64, 2, **ranks), ahead_at_first(64, 2, 32, **ranks)) == (32, 3)


def test_more_may_be_ahead_than_were_at_first() -> None:
    assert [most_ahead(1, 2), most_ahead(4, 2), most_ahead(1, 9)] == [4, 8, 18]


@given(st.integers(1, 2048), st.integers(1, 256), st.floats(0, 10), st.sampled_from([0, 1 << 20, 100 << 20]))
def test_orders_grow_until_they_are_worth_what_they_cost(batch, hands, seconds, nbytes):
    before = rows_per_order(batch, hands)
    rows = rows_worth_while(batch, hands, before, seconds, nbytes)
    assert before <= rows <= max(before, min(batch, 96))
    if rows > before:
        # Each hand has work, and what is in the making at once is bounded.
        ahead = ahead_at_first(batch, hands, rows)
        assert ahead <= 12 or ahead * nbytes <= 100 << 20
        assert (rows // 2) * seconds <= 16e-3
        pieces = -(-batch // rows)
        assert batch - (pieces - 1) * rows > rows - pieces, "all but even"
    assert rows_worth_while(batch, hands, rows, seconds, nbytes) == rows, "it stays"


def test_small_images_and_large_ones():
    assert rows_worth_while(64, 2, 16, 0.4e-3) == 32
    assert rows_worth_while(32, 1, 16, 0.4e-3) == 32, "more ranks than CPUs: a batch each"
    assert rows_worth_while(64, 16, 4, 0.4e-3) == 16
    assert rows_worth_while(64, 16, 4, 0.1e-3, nbytes=1 << 20) == 64
    assert rows_worth_while(256, 16, 8, 0.4e-3) == 43
    assert rows_worth_while(64, 2, 16, 10e-3) == 16
