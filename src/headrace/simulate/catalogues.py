"""What is cached, as a simulated rank's coordinator asks for it."""

from __future__ import annotations

from bisect import bisect_left

import numpy as np
from numpy.typing import NDArray

from headrace.coordinate.directory import Directory
from headrace.coordinate.messages import Order, OrderDone
from headrace.core.forms import CACHEABLE, Form
from headrace.sampling import Draw
from headrace.simulate.tally import Tally
from headrace.simulate.work import Ids, Sizes

_SPAN = 1 << 50
"""Addresses of a cache: they cost nothing."""
FORMS = ("none", "encoded", "decoded", "augmented")


def count_rows(tally: Tally, forms: NDArray[np.uint8]) -> None:
    """Count rows by the form in which they enter."""
    for name, number in zip(FORMS, np.bincount(forms, minlength=4).tolist(), strict=True):
        if number:
            setattr(tally, name, getattr(tally, name) + number)


class HostCatalogue:
    """The shared cache: everything about a row came with its draw."""

    def __init__(self, tally: Tally) -> None:
        self._tally = tally
        self.budgets = dict.fromkeys(CACHEABLE, 0)
        self.bytes = dict.fromkeys(CACHEABLE, 0)
        self.samples = dict.fromkeys(CACHEABLE, 0)
        self.hits = dict.fromkeys((Form.NONE, *CACHEABLE), 0)

    def dress(self, order: Order, drawn: Draw, *, again: bool = False) -> None:
        """See ``Catalogue``. Grants keep their rows here, as rows of (row of the draw, form, offset, capacity)."""
        lookup = drawn.lookup
        assert lookup is not None
        start, stop = order.start, order.start + len(order.indices) // 8
        forms = lookup.forms[start:stop]
        order.forms, order.keep = forms.tobytes(), lookup.keep[start:stop].tobytes()
        order.ticket, order.first = lookup.ticket, start
        if len(lookup.grants):
            rows = lookup.grants[:, 0]
            order.grants = lookup.grants[(rows >= start) & (rows < stop)].tobytes()
        count_rows(self._tally, forms)

    def done(self, order: Order, event: OrderDone) -> None:
        """See ``Catalogue``. Workers tell the host themselves."""

    def lost(self, order: Order) -> None:
        """See ``Catalogue``."""


class OwnCatalogue(Directory):
    """A job's own cache: the product's directory."""

    def __init__(self, size: int, budgets: dict[Form, int], tally: Tally, sizes: Sizes, first: int) -> None:
        """``first``: the number of the job's first sample."""
        super().__init__(size, budgets, _SPAN)
        self._tally, self._sizes, self._first = tally, sizes, first

    def dress(self, order: Order, drawn: Draw, *, again: bool = False) -> None:
        """See ``Catalogue``."""
        super().dress(order, drawn, again=again)
        if not order.forms:
            order.forms = bytes(len(order.indices) // 8)
        count_rows(self._tally, np.frombuffer(order.forms, np.uint8))

    def publish_all(self, order: Order) -> tuple[bytes, tuple[int, int, int]]:
        """What a worker publishes of an order that is done, and the sizes that found no block large enough."""
        wanted = dict.fromkeys(CACHEABLE, 0)
        rows: list[tuple[int, int, int, int]] = []
        if order.grants:
            blocks = np.frombuffer(order.grants, np.int64).reshape(-1, 3).tolist()
            keep, indices = np.frombuffer(order.keep, np.uint8), order.index_array()
            for form in (Form.ENCODED, Form.DECODED):
                room = sorted((capacity, offset) for kind, offset, capacity in blocks if kind == form)
                kept: Ids = np.flatnonzero(keep & (1 << form))
                sizes = self._sizes.of(np.full(len(kept), int(form), np.int64), self._first + indices[kept])
                for row, size in zip(kept.tolist(), sizes.tolist(), strict=True):
                    at = bisect_left(room, (size, -1))
                    if at < len(room):
                        rows.append((row, int(form), room.pop(at)[1], size))
                    else:
                        wanted[form] = max(size, wanted[form])
        encoded, decoded, augmented = wanted.values()
        return np.array(rows, np.int64).tobytes(), (encoded, decoded, augmented)
