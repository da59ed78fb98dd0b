"""What a shared cache holds, as a job's coordinator asks for it: all of it came with the draws."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from headrace.coordinate.messages import Order, OrderDone
from headrace.core.forms import CACHEABLE, Form
from headrace.sampling import Draw


class SharedDirectory:
    """A coordinator's view of the shared cache."""

    def __init__(self, give_up: Callable[[int, int, int, int], None], budgets: dict[Form, int]) -> None:
        """``give_up``: says that rows will not be prepared (ticket, instance, first row, rows)."""
        self._give_up = give_up
        self.budgets = dict(budgets)
        self.bytes = dict.fromkeys(CACHEABLE, 0)
        self.samples = dict.fromkeys(CACHEABLE, 0)
        self.hits = dict.fromkeys((Form.NONE, *CACHEABLE), 0)

    def dress(self, order: Order, drawn: Draw, *, again: bool = False) -> None:
        """See ``Catalogue``. An order that takes the place of a lost one does without the cache."""
        if again:
            return
        start, stop = order.start, order.start + len(order.indices) // 8
        lookup = drawn.lookup
        if lookup is None:  # drawn without a host
            self.hits[Form.NONE] += stop - start
            return
        part = slice(start, stop)
        forms = lookup.forms[part]
        order.forms, order.offsets = forms.tobytes(), lookup.offsets[part].tobytes()
        order.lengths, order.keep = lookup.lengths[part].tobytes(), lookup.keep[part].tobytes()
        order.instance, order.ticket, order.first = lookup.instance, lookup.ticket, start
        if len(lookup.grants):
            mine = (lookup.grants[:, 0] >= start) & (lookup.grants[:, 0] < stop)
            order.grants = np.ascontiguousarray(lookup.grants[mine, 1:]).tobytes()
        for form, number in enumerate(np.bincount(forms, minlength=len(Form)).tolist()):
            self.hits[Form(form)] += number

    def done(self, order: Order, event: OrderDone) -> None:
        """See ``Catalogue``. Workers tell the host themselves."""

    def lost(self, order: Order) -> None:
        """See ``Catalogue``."""
        self._give_up(order.ticket, order.instance, order.first, len(order.indices) // 8)
