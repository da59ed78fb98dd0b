"""How a batch is cut into orders, and how many batches are kept ahead at first."""

from __future__ import annotations


def rows_per_order(batch_size: int, hands: int, *, shared: bool = False, ranks: int = 1) -> int:
    """Rows of an order: enough of them to be worth a message, few enough that all hands share each batch.

    ``shared``: each order is reported to a host, too, so they are larger; the more so where no other ranks wait for
    each single batch.
    """
    parts = 2 * hands
    if shared:
        parts = max(1, hands // 2) if ranks == 1 else 2 * -(-hands // 2)
    # Very large batches take larger orders: the board has room for so many.
    return max(4, min(64, -(-batch_size // parts)), -(-batch_size // 512))


def ahead_at_first(batch_size: int, hands: int, rows: int, *, shared: bool = False, ranks: int = 1) -> int:
    """Batches to keep ahead before anything was measured: two orders of ``rows`` for every hand, and one more.

    ``shared``: of the larger ones, one for every hand. What is drawn and not delivered keeps memory that all share.
    """
    each = 1 if shared and ranks == 1 else 2
    return max(2, -(-each * hands * rows // batch_size) + 1)


def most_ahead(processes: int, at_first: int) -> int:
    """Batches that are kept ahead at the most. Where there are many hands, many are from the start."""
    return max(4, 2 * processes, 2 * at_first)
