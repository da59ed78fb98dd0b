"""What a shared cache holds, as a job's coordinator asks for it: all of it came with the draws."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np

from headrace.coordinate.messages import Order, OrderDone
from headrace.core.forms import CACHEABLE, Form
from headrace.planning import Spent
from headrace.sampling import Draw


class Client(Protocol):
    """Who tells the host: ``DrawClient``, or a connection around one."""

    @property
    def give_up(self) -> Callable[[int, int, int, int], None]:
        """Rows will not be prepared (ticket, instance, first row, rows)."""
        ...

    @property
    def done(self) -> Callable[[int, int, int, Spent], None]:
        """Rows are prepared of which no worker tells the host (ticket, instance, rows)."""
        ...


class SharedDirectory:
    """A coordinator's view of the shared cache."""

    def __init__(self, client: Client, budgets: dict[Form, int]) -> None:
        self._client = client
        self._reads: dict[int, tuple[int, int, int, int]] = {}
        """By order, of those that no worker tells the host of: ticket, instance, first row, rows."""
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
        order.instance, order.first = lookup.instance, lookup.first + start
        if lookup.stretch:
            self._reads[order.id] = lookup.ticket, lookup.instance, order.first, stop - start
        else:
            order.ticket = lookup.ticket
        if len(lookup.grants):
            mine = (lookup.grants[:, 0] >= start) & (lookup.grants[:, 0] < stop)
            order.grants = np.ascontiguousarray(lookup.grants[mine, 1:]).tobytes()
        for form, number in enumerate(np.bincount(forms, minlength=len(Form)).tolist()):
            self.hits[Form(form)] += number

    def done(self, order: Order, event: OrderDone) -> None:
        """See ``Catalogue``. Of what is to be kept workers tell the host themselves."""
        ticket, instance, _, count = self._reads.pop(order.id, (-1, 0, 0, 0))
        if ticket >= 0:
            self._client.done(ticket, instance, count, event.spent)

    def lost(self, order: Order) -> None:
        """See ``Catalogue``."""
        rows = order.ticket, order.instance, order.first, len(order.indices) // 8
        self._client.give_up(*self._reads.pop(order.id, rows))
