"""What is cached, as a simulated rank's coordinator asks for it."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.coordinate.directory import Directory
from headrace.coordinate.messages import Order, OrderDone
from headrace.core.forms import CACHEABLE, Form
from headrace.simulate.draws import Draw
from headrace.simulate.tally import Tally
from headrace.simulate.work import Ids, Sizes

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
        assert drawn.forms is not None and drawn.keep is not None and drawn.grants is not None
        start, stop = order.start, order.start + len(order.indices) // 8
        forms = drawn.forms[start:stop]
        order.forms, order.keep = forms.tobytes(), drawn.keep[start:stop].tobytes()
        order.ticket, order.first = drawn.ticket, start
        if len(drawn.grants):
            rows = drawn.grants[:, 0]
            order.grants = drawn.grants[(rows >= start) & (rows < stop)].tobytes()
        count_rows(self._tally, forms)

    def done(self, order: Order, event: OrderDone) -> None:
        """See ``Catalogue``. Workers tell the host themselves."""

    def lost(self, order: Order) -> None:
        """See ``Catalogue``."""

    def full(self, form: Form) -> None:
        """See ``Catalogue``."""


class OwnCatalogue(Directory):
    """A job's own cache: the product's directory, and the limits that the workers' board keeps in the product."""

    def __init__(self, size: int, budgets: dict[Form, int], tally: Tally, sizes: Sizes, first: int) -> None:
        """``first``: the number of the job's first sample."""
        super().__init__(size, budgets)
        self._tally, self._sizes, self._first = tally, sizes, first
        self._offsets_given = itertools.count()

    def dress(self, order: Order, drawn: Any, *, again: bool = False) -> None:
        """See ``Catalogue``."""
        super().dress(order, drawn, again=again)
        if not order.forms:
            order.forms = bytes(len(order.indices) // 8)
        count_rows(self._tally, np.frombuffer(order.forms, np.uint8))

    def publish_all(self, order: Order) -> bytes:
        """What a worker publishes of an order that is done, as far as there is room for it."""
        if not order.keep or not any(order.keep):
            return b""
        keep, indices = np.frombuffer(order.keep, np.uint8), order.index_array()
        rows: list[tuple[int, int, int, int]] = []
        taken = dict.fromkeys(CACHEABLE, 0)
        for form in (Form.ENCODED, Form.DECODED):
            kept: Ids = np.flatnonzero(keep & (1 << form))
            nbytes = self._sizes.of(np.full(len(kept), int(form), np.int64), self._first + indices[kept])
            for row, size in zip(kept.tolist(), nbytes.tolist(), strict=True):
                if self.bytes[form] + taken[form] + size > self.budgets[form]:
                    self.full(form)
                    break
                taken[form] += size
                rows.append((row, int(form), next(self._offsets_given), size))
        return np.array(rows, np.int64).tobytes() if rows else b""
