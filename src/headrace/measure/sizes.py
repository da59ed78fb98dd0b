"""How large samples are in each form."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import msgspec


class Spread(msgspec.Struct, frozen=True):
    """Bytes of a sample: the mean, and how far they lie apart."""

    mean: float
    deviation: float
    least: int
    most: int

    @classmethod
    def of(cls, sizes: Sequence[int]) -> Spread | None:
        """That of some samples; None where there are none."""
        if not sizes:
            return None
        return cls(statistics.fmean(sizes), statistics.pstdev(sizes), min(sizes), max(sizes))


class Sizes(msgspec.Struct, frozen=True):
    """Of each form; None for one that samples do not have, or that cannot be cached."""

    encoded: Spread | None
    decoded: Spread | None
    augmented: Spread | None

    def inflation(self, form: str) -> float | None:
        """How many times as large as an encoded sample one of a form is."""
        of: Spread | None = getattr(self, form)
        if of is None or self.encoded is None or not self.encoded.mean:
            return None
        return of.mean / self.encoded.mean
