"""What a worker may fill of a cache, and what it tells a shared host of an order that is done. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence

import numpy as np

from headrace.coordinate.messages import Order, OrderDone
from headrace.coordinate.protocol import Finished
from headrace.core.forms import CACHEABLE, Form

_TOGETHER = 1 << 14
"""Rows that one report tells of: those of a whole batch may be millions."""


class Grants:
    """The blocks of a cache that one order may fill (``Order.grants``), each for one extent."""

    def __init__(self, grants: bytes) -> None:
        self._blocks: dict[int, list[tuple[int, int]]] = {}
        for form, address, capacity in np.frombuffer(grants, np.int64).reshape(-1, 3).tolist():
            self._blocks.setdefault(form, []).append((capacity, address))
        for blocks in self._blocks.values():
            blocks.sort()
        self.wanted: dict[Form, int] = {}
        """Of each form, the largest size that found no block."""

    @property
    def largest_wanted(self) -> tuple[int, int, int]:
        """Of each form, the largest size that found no block; 0: all did."""
        encoded, decoded, augmented = (self.wanted.get(form, 0) for form in CACHEABLE)
        return encoded, decoded, augmented

    def take(self, form: Form, sizes: Sequence[int]) -> list[int | None]:
        """For each size the address of the smallest unused block that holds it, or None."""
        blocks = self._blocks.get(form, [])
        if blocks and len(sizes) <= len(blocks) and max(sizes, default=0) <= blocks[0][0]:  # any holds any
            taken = blocks[: len(sizes)]
            del blocks[: len(sizes)]
            return [offset for _, offset in taken]
        out: list[int | None] = []
        for size in sizes:
            at = bisect_left(blocks, (size, -1))
            if at < len(blocks):
                out.append(blocks.pop(at)[1])
            else:
                out.append(None)
                self.wanted[form] = max(size, self.wanted.get(form, 0))
        return out


def reports(order: Order, done: OrderDone) -> Iterator[Finished]:
    """What the shared host is told of an order that is done, in its own numbers of rows."""
    rows = np.frombuffer(done.published, np.int64).reshape(-1, 4).copy()
    rows[:, 0] += order.first
    first, stop = order.first, order.first + len(order.indices) // 8
    while stop - first > _TOGETHER:
        mine = (rows[:, 0] >= first) & (rows[:, 0] < first + _TOGETHER)
        yield Finished(order.ticket, first, _TOGETHER, rows[mine].tobytes())
        rows, first = rows[~mine], first + _TOGETHER
    yield Finished(order.ticket, first, stop - first, rows.tobytes(), done.wanted, done.spent)
