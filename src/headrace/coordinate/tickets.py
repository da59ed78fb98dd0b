"""Tickets: draws that are given out and not yet done with, and what they hold of the cache meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from headrace.core.addresses import NOWHERE
from headrace.core.forms import CACHEABLE, Form

Ids = NDArray[np.int64]


@dataclass(eq=False)
class Dress:
    """How rows enter, and what may be kept of them. An array element per row."""

    forms: NDArray[np.uint8]
    offsets: Ids
    """Addresses."""
    lengths: Ids
    keep: NDArray[np.uint8]

    @classmethod
    def plain(cls, count: int) -> Dress:
        """Rows that enter from storage."""
        return cls(
            np.zeros(count, np.uint8),
            np.full(count, NOWHERE, np.int64),
            np.zeros(count, np.int64),
            np.zeros(count, np.uint8),
        )


@dataclass(eq=False)
class Ticket:
    """One rank's batch, or a fill."""

    id: int
    job: int
    member: int
    epoch: int
    ids: Ids
    dress: Dress
    given: float
    """When it was given out."""
    fill: bool = False
    stretch: bool = False
    """All of it is only read, of one batch or several; the rank says when it is over."""
    blocks: dict[int, tuple[int, Form, int]] = field(default_factory=dict)
    """Granted and not filled, by address: row, form, capacity."""
    reads: NDArray[np.bool_] = field(init=False)
    """Rows whose extents are in use: those of ``dress.forms``."""
    open: NDArray[np.bool_] = field(init=False)
    left: int = 0
    waiting: dict[int, list[int]] = field(default_factory=dict)
    """Samples that others are preparing, and the rows here that wait for them."""
    waits: int = 0
    """The first row that waited."""
    hopes: set[int] = field(default_factory=set)
    """Samples that are waited for in their augmented form; any other augmented one the job may have had."""

    def __post_init__(self) -> None:
        self.left = len(self.ids)
        self.open = np.ones(self.left, np.bool_)
        self.reads = np.zeros(self.left, np.bool_)
        self.waits = self.left

    def by_form(self, rows: Ids) -> Iterator[tuple[Form, Ids]]:
        """The samples of rows that enter from the cache, form by form."""
        forms = self.dress.forms[rows]
        if not len(forms):
            return
        low, high = int(forms.min()), int(forms.max())
        if low == high:  # as they mostly are: rows that enter alike come together
            if low:
                yield Form(low), self.ids[rows]
            return
        for form in CACHEABLE:
            chosen = rows[forms == int(form)]  # numpy takes long over enumerations
            if len(chosen):
                yield form, self.ids[chosen]

    def grants(self, first: int = 0) -> bytes:
        """The blocks of rows from ``first`` on, as rows of (row, form, address, capacity)."""
        rows = [
            (row, int(form), offset, size)
            for offset, (row, form, size) in self.blocks.items()
            if row >= first
        ]
        return np.array(rows, np.int64).tobytes() if rows else b""
