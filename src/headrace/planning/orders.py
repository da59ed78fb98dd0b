"""How a batch is cut into orders, and how many batches are kept ahead at first."""

from __future__ import annotations

import math

_MOST_ROWS = 64
_LEAST_ELSEWHERE = 16
_WORTH = 16e-3
"""Seconds of work that make an order worth what it costs besides, which is about one in fifteen of these."""
_WORTH_ELSEWHERE = 24e-3
"""The same for one that goes to another machine, where samples are asked for order by order, too."""
_ROUNDS, _ROUNDS_BYTES = 4, 32 << 20
"""Batches that are in the hands at once, at most, where orders are large: so many, or as many as have these bytes."""


def rows_per_order(batch_size: int, hands: int, *, shared: bool = False, ranks: int = 1) -> int:
    """Rows of an order: enough of them to be worth a message, few enough that all hands share each batch.

    ``shared``: each order is reported to a host, too, so they are larger; the more so where no other ranks wait for
    each single batch.
    """
    parts = 2 * hands
    if shared:
        parts = max(1, hands // 2) if ranks == 1 else 2 * -(-hands // 2)
    # Very large batches take larger orders: the board has room for so many.
    return max(4, min(_MOST_ROWS, -(-batch_size // parts)), -(-batch_size // 512))


def rows_among(batch_size: int, hands: int, helpers: int, seconds: float = 0.0) -> int:
    """Rows of an order where helpers on other nodes make some, too. They are of another speed than the hands here,
    and a batch waits for the slowest: so each has a small part, but one that is worth a message between machines.
    ``seconds``: CPU time that a row takes helpers; 0: not known."""
    worth = min(_MOST_ROWS, math.ceil(_WORTH_ELSEWHERE / max(seconds, 1e-6))) if seconds else 0
    rows = min(batch_size, max(_LEAST_ELSEWHERE, worth, rows_per_order(batch_size, hands + helpers)))
    return -(-batch_size // max(1, batch_size // rows))


def rows_among_now(batch_size: int, hands: int, helpers: int, seconds: float, rows: int) -> int:
    """The same, where orders have ``rows`` by now: what a row takes is not the same from batch to batch, so they are
    not made smaller but where they are twice as large as they should be."""
    wanted = rows_among(batch_size, hands, helpers, seconds)
    return wanted if wanted > rows or (seconds and 2 * wanted <= rows) else rows


def rows_worth_while(batch_size: int, hands: int, rows: int, seconds: float, nbytes: int = 0) -> int:
    """Rows of an order once it is known how many seconds of work one takes: more than ``rows``, with which it was
    begun, where these are soon done. ``nbytes``: of a batch; 0: not known.

    An order costs about as much as a few small images. At first the batch that is asked for is divided among all
    hands, however small the orders; when batches are ahead, each hand may as well work at another one.
    """
    rounds = max(_ROUNDS, _ROUNDS_BYTES // nbytes if nbytes else 0)
    work = math.ceil(_WORTH / max(seconds, 1e-6))
    wanted = min(batch_size, _MOST_ROWS, work, rounds * batch_size // hands)
    if wanted <= rows:
        return rows
    pieces = max(1, round(batch_size / wanted))
    return max(rows, -(-batch_size // pieces))


def ahead_at_first(batch_size: int, hands: int, rows: int, *, shared: bool = False, ranks: int = 1) -> int:
    """Batches to keep ahead before anything was measured: two orders of ``rows`` for every hand, and one more.

    ``shared``: of the larger ones, one for every hand. What is drawn and not delivered keeps memory that all share.
    """
    each = 1 if shared and ranks == 1 else 2
    return max(2, -(-each * hands * rows // batch_size) + 1)


def most_ahead(processes: int, at_first: int) -> int:
    """Batches that are kept ahead at the most. Where there are many hands, many are from the start."""
    return max(4, 2 * processes, 2 * at_first)
