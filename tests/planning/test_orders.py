"""How batches are cut into orders, and how many are kept ahead at first."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.planning import ahead_at_first, rows_per_order


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
