"""How batches are cut into orders, and how many are kept ahead at first."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.planning import ahead_at_first, most_ahead, rows_per_order


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


def test_what_two_processors_do_with_batches_of_64() -> None:
    assert (rows_per_order(64, 2), ahead_at_first(64, 2, 16)) == (16, 2)
    assert (rows_per_order(64, 1), ahead_at_first(64, 2, 32)) == (32, 3)
    assert (rows_per_order(64, 2, shared=True), ahead_at_first(64, 2, 64, shared=True)) == (64, 3)
    ranks = {"shared": True, "ranks": 2}
    assert (rows_per_order(64, 2, **ranks), ahead_at_first(64, 2, 32, **ranks)) == (32, 3)


def test_more_may_be_ahead_than_were_at_first() -> None:
    assert [most_ahead(1, 2), most_ahead(4, 2), most_ahead(1, 9)] == [4, 8, 18]
