"""How a batch is cut into orders, and how many batches are kept ahead at first."""

from __future__ import annotations


def rows_per_order(batch_size: int, hands: int) -> int:
    """Rows of an order: enough of them to be worth a message, few enough that all hands share each batch."""
    # Very large batches take larger orders: the board has room for so many.
    return max(4, min(64, -(-batch_size // (2 * hands))), -(-batch_size // 512))


def ahead_at_first(batch_size: int, hands: int, rows: int) -> int:
    """Batches to keep ahead before anything was measured: two orders of ``rows`` for every hand, and one more."""
    return max(2, -(-2 * hands * rows // batch_size) + 1)
