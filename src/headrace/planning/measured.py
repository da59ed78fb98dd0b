"""What a job measures of itself, and what it has to work with."""

from __future__ import annotations

import operator
from dataclasses import dataclass, fields


@dataclass(frozen=True)
class Measured:
    """Sums over a time. Seconds of stages are summed over all hands. Counts that have faded are no whole numbers."""

    seconds: float = 0.0
    """That passed."""
    delivered: float = 0
    waited: float = 0.0
    """Seconds for which the loop waited for a batch."""
    loop_cpu: float = 0.0
    """CPU seconds of the loop's own process."""
    fetched: float = 0
    fetched_bytes: float = 0
    fetch: float = 0.0
    fetch_cpu: float = 0.0
    reading: float = 0.0
    """Seconds of single reads, of which several may run at once."""
    starved: float = 0.0
    """Seconds for which hands that prepare waited for bytes."""
    decoded: float = 0
    decode: float = 0.0
    prepared: float = 0
    """Samples that were augmented, from whatever form."""
    augment: float = 0.0
    cpu: float = 0.0
    """CPU seconds of decoding and augmenting."""
    user: float = 0.0
    """Seconds of decoding and augmenting that were spent in callables of the user's."""
    user_cpu: float = 0.0
    pixels: float = 0
    """Of the images that were decoded, as they lie in storage."""
    room: float = 0.0
    """Seconds for which fetched bytes waited for hands."""
    idle: float = 0.0
    """Seconds for which hands had no order."""

    def __sub__(self, other: Measured) -> Measured:
        return Measured(*map(operator.sub, _sums(self), _sums(other)))

    def faded(self, by: float, plus: Measured) -> Measured:
        """These sums, faded, and new ones."""
        return Measured(*(by * old + new for old, new in zip(_sums(self), _sums(plus), strict=True)))


_sums = operator.attrgetter(*(field.name for field in fields(Measured)))
"""All of them: taken with every ``stats()``, so in one call."""


@dataclass(frozen=True)
class Means:
    """What there is to work with."""

    cpus: float
    hands: int
    """Threads that prepare."""
    fetchers: int
    """Threads that fetch."""
