"""What a job measures of itself, and what it has to work with."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True)
class Measured:
    """Sums over a time. Seconds of stages are summed over all hands."""

    seconds: float = 0.0
    """That passed."""
    delivered: int = 0
    waited: float = 0.0
    """Seconds for which the loop waited for a batch."""
    loop_cpu: float = 0.0
    """CPU seconds of the loop's own process."""
    fetched: int = 0
    fetched_bytes: int = 0
    fetch: float = 0.0
    fetch_cpu: float = 0.0
    reading: float = 0.0
    """Seconds of single reads, of which several may run at once."""
    starved: float = 0.0
    """Seconds for which hands that prepare waited for bytes."""
    decoded: int = 0
    decode: float = 0.0
    prepared: int = 0
    """Samples that were augmented, from whatever form."""
    augment: float = 0.0
    cpu: float = 0.0
    """CPU seconds of decoding and augmenting."""

    def __sub__(self, other: Measured) -> Measured:
        return Measured(
            *(getattr(self, field.name) - getattr(other, field.name) for field in fields(Measured))
        )

    def faded(self, by: float, plus: Measured) -> Measured:
        """These sums, faded, and new ones."""
        return Measured(
            *(by * getattr(self, field.name) + getattr(plus, field.name) for field in fields(Measured))
        )


@dataclass(frozen=True)
class Means:
    """What there is to work with."""

    cpus: float
    hands: int
    """Threads that prepare."""
    fetchers: int
    """Threads that fetch."""
