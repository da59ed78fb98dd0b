"""What a worker has to do with each row of an order: fetch, copy, decode or run it, and what it publishes. Pure."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from headrace.coordinate.messages import Order
from headrace.core.forms import Form

Rows = NDArray[np.intp]
REST, COPY, DECODE, RUN = range(4)
"""What is done with a row: nothing beyond fetching; copy its augmented form; decode it; run the program."""
_ENCODED, _DECODED, _AUGMENTED = (1 << form for form in (Form.ENCODED, Form.DECODED, Form.AUGMENTED))
# Plain numbers: numpy takes long over enumerations.
_IS_NONE, _IS_ENCODED, _IS_DECODED, _IS_AUGMENTED = (int(form) for form in Form)


class RowWork:
    """What is to be done with the rows of one order."""

    __slots__ = ("_held", "_needed", "forms", "keep", "ways")

    def __init__(self, order: Order, *, makes_rows: bool = True) -> None:
        """``makes_rows``: whether samples can be made as rows of a layout that is known. Where they are collated, the
        augmented form of one is not published."""
        count = len(order.indices) // 8
        forms = np.frombuffer(order.forms, np.uint8).copy() if order.forms else np.zeros(count, np.uint8)
        keep = np.frombuffer(order.keep, np.uint8) if order.keep else np.zeros(count, np.uint8)
        self.forms: NDArray[np.uint8] = forms
        """In which each row enters. An array of its own, to be changed as rows are fetched."""
        self.keep: NDArray[np.uint8] = keep
        ready = forms == _IS_AUGMENTED
        self._held: NDArray[np.bool_] | None = None
        """Rows whose image is on a device."""
        self._needed: NDArray[np.bool_] | None = None
        """Rows that need an input; None: all."""
        if not order.fill:
            if not makes_rows and ready.any():
                raise ValueError(f"order {order.id} has augmented rows, and its samples are collated")
            self.ways = np.full(count, RUN, np.uint8)
            self.ways[ready] = COPY
            return
        ways = self.ways = np.full(count, REST, np.uint8)
        ways[((keep & _DECODED) != 0) & (forms < _IS_DECODED)] = DECODE
        if makes_rows:
            ways[((keep & _AUGMENTED) != 0) & ~ready] = RUN
        self._needed = (ways != REST) | (((keep & _ENCODED) != 0) & (forms == _IS_NONE))

    def cached(self) -> Rows:
        """Rows whose input is in the cache."""
        cached = self.forms != _IS_NONE
        return np.flatnonzero(cached if self._needed is None else cached & self._needed)

    def unreadable(self, row: int) -> None:
        """The cache does not have it after all: it is fetched from the source."""
        self.forms[row] = _IS_NONE
        if self.ways[row] == COPY:
            self.ways[row] = RUN

    def missing(self) -> Rows:
        """Rows that have to be fetched from the source."""
        missing = self.forms == _IS_NONE
        return np.flatnonzero(missing if self._needed is None else missing & self._needed)

    def encoded(self, missing: Rows) -> Rows:
        """Rows whose encoded form is published as soon as they are fetched."""
        rows: Rows = missing[(self.keep[missing] & _ENCODED) != 0]
        return rows

    def augmented(self) -> Rows:
        """Rows whose augmented form is published. One that came from the cache stands there; a second extent of it
        would be served as another."""
        return np.flatnonzero(((self.keep & _AUGMENTED) != 0) & (self.ways == RUN))

    def are_held(self, rows: NDArray[np.bool_]) -> Rows:
        """A device holds the images of these rows. Those of them that are left to it, for which nothing is fetched
        then, are returned: all that are to be run, but for what is published."""
        held = rows & (self.ways == RUN) & ((self.keep & _AUGMENTED) == 0)
        self._held = held
        self._needed = ~held if self._needed is None else self._needed & ~held
        self.forms[held] = _IS_ENCODED
        return np.flatnonzero(held)

    def left(self, count: int, *, holds: bool = False) -> NDArray[np.bool_] | None:
        """Rows that are left to a device, if there are to be so many: those that it holds, and the last of those of
        which nothing is published that it would have to be made here for. None: there are none. ``holds``: their
        images stay there, and so are not published decoded."""
        made_here = _AUGMENTED if holds else _DECODED | _AUGMENTED
        if self._held is not None and self._held.any():
            return self._held | self._chosen(count, made_here, but=self._held)
        chosen = self._chosen(count, made_here, but=None) if count else None
        return chosen if chosen is not None and chosen.any() else None

    def _chosen(self, count: int, made_here: int, but: NDArray[np.bool_] | None) -> NDArray[np.bool_]:
        mask = np.zeros(len(self.ways), np.bool_)
        may = self.is_decoded() & (self.ways == RUN) & ((self.keep & made_here) == 0)
        if but is not None:
            may &= ~but
        if count:
            mask[np.flatnonzero(may)[-count:]] = True
        return mask

    def decoded(self) -> Rows:
        """Rows whose decoded form is published: they are decoded as a whole."""
        return np.flatnonzero(((self.keep & _DECODED) != 0) & self.is_decoded())

    def is_decoded(self) -> NDArray[np.bool_]:
        """Of each row, whether it is decoded from bytes."""
        return (self.ways >= DECODE) & (self.forms < _IS_DECODED)
