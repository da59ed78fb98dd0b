"""The directory: which sample is cached in which form, and where."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from headrace.coordinate.messages import Order, OrderDone
from headrace.core.forms import CACHEABLE, Form

Published = NDArray[np.int64]
"""Rows of (row, form, offset, bytes)."""


class Catalogue(Protocol):
    """What a coordinator asks about cached samples, whoever keeps them."""

    budgets: dict[Form, int]
    bytes: dict[Form, int]
    samples: dict[Form, int]
    hits: dict[Form, int]

    def dress(self, order: Order, drawn: Any, *, again: bool = False) -> None:
        """Say how each row of an order enters and what is kept of it. ``again``: another order with these rows
        was lost."""
        ...

    def done(self, order: Order, event: OrderDone) -> None:
        """An order is finished."""
        ...

    def lost(self, order: Order) -> None:
        """An order will not be finished."""
        ...

    def full(self, form: Form) -> None:
        """A form's budget is used up."""
        ...


class Directory:
    """Where each cached sample lies. Budgets are kept where space is taken; here it is only looked up."""

    def __init__(self, size: int, budgets: Mapping[Form, int]) -> None:
        self.size = size
        self.budgets = {form: budgets.get(form, 0) for form in CACHEABLE}
        used = [form for form in CACHEABLE if self.budgets[form] > 0]
        self._offsets = {form: np.full(size, -1, np.int64) for form in used}
        self._lengths = {form: np.zeros(size, np.int64) for form in used}
        self._pending = np.zeros(size if used else 0, np.uint8)
        self._full: set[Form] = set()
        self.bytes = dict.fromkeys(CACHEABLE, 0)
        self.samples = dict.fromkeys(CACHEABLE, 0)
        self.hits = dict.fromkeys((Form.NONE, *CACHEABLE), 0)

    @property
    def caches(self) -> bool:
        """Whether anything can be cached at all."""
        return bool(self._offsets)

    def dress(self, order: Order, drawn: Any, *, again: bool = False) -> None:
        """See ``Catalogue``."""
        if self.caches:
            forms, offsets, lengths, keep = self.enter(order.index_array(), again=again)
            order.forms, order.offsets = forms.tobytes(), offsets.tobytes()
            order.lengths, order.keep = lengths.tobytes(), keep.tobytes()

    def done(self, order: Order, event: OrderDone) -> None:
        """See ``Catalogue``."""
        if self.caches:
            if event.published:
                published = np.frombuffer(event.published, np.int64).reshape(-1, 4)
                self.publish(order.index_array(), published)
            self.lost(order)

    def lost(self, order: Order) -> None:
        """See ``Catalogue``."""
        if self.caches:
            self.settle(order.index_array(), np.frombuffer(order.keep, np.uint8))

    def enter(
        self, indices: NDArray[np.int64], *, again: bool = False
    ) -> tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.int64], NDArray[np.uint8]]:
        """For each sample of an order: the form it enters in, its extent, and the forms to keep of it.

        Enter each sample at the most prepared form there is. A sample that is already being cached by another
        order is not cached a second time. ``again``: these samples were entered before, for an order that was
        lost, and are already counted.
        """
        count = len(indices)
        forms = np.zeros(count, np.uint8)
        offsets = np.full(count, -1, np.int64)
        lengths = np.zeros(count, np.int64)
        keep = np.zeros(count, np.uint8)
        for form, where in self._offsets.items():
            at = where[indices]
            here = at >= 0
            forms[here] = form
            offsets[here] = at[here]
            lengths[here] = self._lengths[form][indices][here]
        for form in (Form.ENCODED, Form.DECODED):
            if form in self._offsets and form not in self._full:
                bit = np.uint8(1 << form)
                wanted = (forms < form) & ((self._pending[indices] & bit) == 0)
                keep[wanted] |= bit
        if keep.any():
            # A sample may come twice in one order; only its first row keeps it.
            first = np.zeros(count, np.bool_)
            first[np.unique(indices, return_index=True)[1]] = True
            keep[~first] = 0
            np.bitwise_or.at(self._pending, indices, keep)
        if not again:
            for value, number in enumerate(np.bincount(forms, minlength=len(self.hits)).tolist()):
                self.hits[Form(value)] += number
        return forms, offsets, lengths, keep

    def publish(self, indices: NDArray[np.int64], published: Published) -> None:
        """Extents that an order wrote."""
        for row, form_, offset, nbytes in published.tolist():
            form = Form(form_)
            sample = indices[row]
            if self._offsets[form][sample] < 0:
                self._offsets[form][sample] = offset
                self._lengths[form][sample] = nbytes
                self.bytes[form] += nbytes
                self.samples[form] += 1

    def settle(self, indices: NDArray[np.int64], keep: NDArray[np.uint8]) -> None:
        """An order over these samples is over: what it was to keep is kept, or may be tried again."""
        if keep.any():
            np.bitwise_and.at(self._pending, indices, ~keep)

    def full(self, form: Form) -> None:
        """A form's budget is used up: ask workers no longer to keep it."""
        self._full.add(form)
