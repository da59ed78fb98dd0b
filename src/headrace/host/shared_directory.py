"""What the shared cache holds, as a job's coordinator asks for it."""

from __future__ import annotations

import numpy as np

from headrace.coordinate.messages import Order, OrderDone
from headrace.core.forms import CACHEABLE, Form
from headrace.host.client import SharedClient
from headrace.host.shared_draw import SharedDraw


class SharedDirectory:
    """A coordinator's view of the shared cache: everything about a row came with its draw."""

    def __init__(self, client: SharedClient, budgets: dict[Form, int]) -> None:
        self._client = client
        self.budgets = dict(budgets)
        self.bytes = dict.fromkeys(CACHEABLE, 0)
        self.samples = dict.fromkeys(CACHEABLE, 0)
        self.hits = dict.fromkeys((Form.NONE, *CACHEABLE), 0)

    def dress(self, order: Order, drawn: SharedDraw, *, again: bool = False) -> None:
        """See ``Catalogue``. An order that takes the place of a lost one does without the cache."""
        if again:
            return
        start, stop = order.start, order.start + len(order.indices) // 8
        part = slice(start, stop)
        forms = drawn.forms[part]
        order.forms, order.offsets = forms.tobytes(), drawn.offsets[part].tobytes()
        order.lengths, order.keep = drawn.lengths[part].tobytes(), drawn.keep[part].tobytes()
        order.instance, order.ticket, order.first = drawn.instance, drawn.ticket, start
        if len(drawn.grants):
            mine = (drawn.grants[:, 0] >= start) & (drawn.grants[:, 0] < stop)
            order.grants = np.ascontiguousarray(drawn.grants[mine, 1:]).tobytes()
        for form, number in enumerate(np.bincount(forms, minlength=len(Form)).tolist()):
            self.hits[Form(form)] += number

    def done(self, order: Order, event: OrderDone) -> None:
        """See ``Catalogue``. Workers tell the host themselves."""

    def lost(self, order: Order) -> None:
        """See ``Catalogue``."""
        self._client.give_up(order.ticket, order.instance, order.first, len(order.indices) // 8)
