"""A draw: the samples of one batch of one rank, whoever chose them, and what is known of them then."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headrace.sampling.known_order import KnownOrder

Ids = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Lookup:
    """What a shared host has of the rows of a draw. Arrays have an element for each row."""

    ticket: int
    """The host's number of the draw."""
    instance: int
    """The host, to which the ticket and all offsets belong."""
    forms: NDArray[np.uint8]
    """In which each row enters."""
    offsets: Ids
    lengths: Ids
    keep: NDArray[np.uint8]
    """Forms that the cache would admit, a bit (1 << form) each."""
    grants: Ids
    """Blocks that may be filled: rows of (row, form, offset, capacity)."""
    waits: int
    """Rows from this one on wait for what others are preparing."""
    copies: int = 0
    """Rows at the front that only have to be copied."""
    first: int = 0
    """The row of the ticket at which the rows of this draw begin."""
    stretch: bool = False
    """The rows are only read, and none of them is reported by a worker. Other draws may have the same ticket."""


@dataclass(frozen=True, eq=False)
class Draw:
    """The samples of one batch of one rank."""

    epoch: int
    step: int
    indices: Ids
    position: int
    """How far the epoch is once every rank has this batch: in samples, or in batches where a user's sampler draws."""
    last: bool = False
    keys: bytes = b""
    """Pickled keys, where samples do not go by an index."""
    words: Ids | None = None
    """What random numbers of each row go by, where that is not its index."""
    randomness: tuple[int, int] | None = None
    """What takes the place of seed and epoch in the key of random numbers."""
    of_all_ranks: Ids | None = None
    """The samples of the whole step, where a shared host draws for all ranks."""
    lookup: Lookup | None = None
    known: KnownOrder | None = None
    """What will be drawn in later epochs, where that is known."""

    @property
    def waits(self) -> int:
        """Rows from this one on have to wait."""
        return len(self.indices) if self.lookup is None else self.lookup.waits

    @property
    def copies(self) -> int:
        """Rows at the front that only have to be copied."""
        return 0 if self.lookup is None else self.lookup.copies

    def is_same(self, other: Draw) -> bool:
        """Whether both are one draw of a shared host, of which one of them says more."""
        if self.lookup is None or other.lookup is None:
            return self is other
        mine, others = self.lookup, other.lookup
        return (mine.instance, mine.ticket, mine.first) == (others.instance, others.ticket, others.first)

    def looked_up(self, lookup: Lookup) -> Draw:
        """The same draw, of which more is known."""
        return dataclasses.replace(self, lookup=lookup)
