"""What a job measures of itself, and what it has to work with."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec

Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e9)]
Number = Annotated[int, msgspec.Meta(ge=0, le=1 << 60)] | Annotated[float, msgspec.Meta(ge=0, le=1e18)]
"""A count. Those that have faded are no whole numbers."""


class Spent(msgspec.Struct, array_like=True):
    """Where the time and the bytes of an order went."""

    fetch: Seconds = 0.0
    """In which the order was fetched, pauses included. Of several at a time, each has its part: the sum of a worker's
    orders is the time in which it fetched any."""
    decode: Seconds = 0.0
    augment: Seconds = 0.0
    wait_order: Seconds = 0.0
    """Preparing had no order: the loader had enough prepared."""
    wait_fetch: Seconds = 0.0
    """Preparing waited for fetched bytes: storage is the short stage."""
    wait_room: Seconds = 0.0
    """Fetching waited for preparing: the CPU is the short stage."""
    fetched: Number = 0
    """Samples read from the source."""
    fetched_bytes: Number = 0
    gil_held: Annotated[float, msgspec.Meta(ge=-1, le=1e9)] = -1.0
    """Share of the time in which user code held the interpreter lock; negative: not measured."""
    decoded: Number = 0
    """Rows that were decoded from encoded bytes."""
    prepared: Number = 0
    """Rows that were augmented, from whatever form."""
    cpu: Seconds = 0.0
    """CPU seconds of decoding and augmenting; waits for a CPU, a lock or a disk are not in them."""
    fetch_cpu: Seconds = 0.0
    """CPU seconds of fetching, without those of threads that only read."""
    reading: Seconds = 0.0
    """Seconds of single reads, of which several may run at once: of those that gave an answer, and without pauses."""
    user: Seconds = 0.0
    """Seconds of decoding and augmenting that were spent in callables of the user's."""
    user_cpu: Seconds = 0.0
    pixels: Number = 0
    """Of the images that were decoded, as they lie in storage."""
    wait_turn: Seconds = 0.0
    """Preparing waited until it was its turn on a machine that others use, too."""
    from_disk: Number = 0
    """Samples that the disk tier had."""
    disk_bytes: Number = 0
    disk: Seconds = 0.0
    """Of fetching, spent on looking for samples there and reading them."""
    pooled: Number = 0
    """Of the samples that were fetched, those that came from other nodes' memory, or were read from storage there."""
    pooled_bytes: Number = 0
    pooled_kept: Number = 0
    """Of these, those that were in memory there."""
    helped: Number = 0
    """Rows that were prepared on other nodes."""
    helped_cpu: Seconds = 0.0
    """CPU seconds that these took there, with asking for their samples."""

    def add(self, other: Spent) -> None:
        """Count another order, too."""
        held = other.gil_held if other.gil_held >= 0 else self.gil_held  # the latest counts
        for name, one, two in zip(_SPENT, _spent(self), _spent(other), strict=True):
            setattr(self, name, one + two)
        self.gil_held = held

    def measured(self, *, seconds: float, delivered: float, waited: float, loop_cpu: float = 0.0) -> Measured:
        """The same for a planner, with what is known of the loop."""
        values: list[Any] = [*_spent(self), seconds, delivered, waited, loop_cpu]
        return Measured(*values)


class Measured(Spent, array_like=False):
    """What all orders of a time spent, summed over all hands, and what the loop did meanwhile.

    Nobody changes it once it is made.
    """

    seconds: float = 0.0
    """That passed."""
    delivered: float = 0
    waited: float = 0.0
    """Seconds for which the loop waited for a batch."""
    loop_cpu: float = 0.0
    """CPU seconds of the loop's own process."""

    def __sub__(self, other: Measured) -> Measured:
        return self._with(map(operator.sub, _sums(self), _sums(other)))

    def faded(self, by: float, plus: Measured) -> Measured:
        """These sums, faded, and new ones."""
        return self._with(by * old + new for old, new in zip(_sums(self), _sums(plus), strict=True))

    def _with(self, sums: Iterable[float]) -> Measured:
        """Other sums. The share of the interpreter lock is none."""
        values: list[Any] = list(sums)
        values[_HELD] = self.gil_held
        return Measured(*values)


_SPENT = Spent.__struct_fields__
_HELD = _SPENT.index("gil_held")
# All of them in one call: they are taken with every order and every ``stats()``.
_spent = operator.attrgetter(*_SPENT)
_sums = operator.attrgetter(*Measured.__struct_fields__)


@dataclass(frozen=True)
class Means:
    """What there is to work with."""

    cpus: float
    hands: int
    """Threads that prepare."""
    fetchers: int
    """Threads that fetch."""
