"""What is counted while a scenario runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields


@dataclass
class Tally:
    """Counts of one rank since its start."""

    images: float = 0
    """Delivered."""
    waited: float = 0.0
    """Seconds for which it waited for a batch."""
    straggled: float = 0.0
    """Seconds for which it waited for other ranks of its job."""
    none: float = 0
    """Rows that entered from storage; then those from the cache, by form."""
    encoded: float = 0
    decoded: float = 0
    augmented: float = 0
    decodes: float = 0
    """Samples that its workers decoded, whoever they were for."""
    fetched: float = 0
    """Samples that were read, of which the page cache had some."""
    filled: float = 0
    """Samples that its idle workers prepared for the cache."""
    late: float = 0
    """Steps for which it was the rank whose data came last."""

    def since(self, earlier: Tally) -> Tally:
        """What was added since an earlier state."""
        return self._with(earlier, -1)

    def __add__(self, other: Tally) -> Tally:
        return self._with(other, 1)

    def _with(self, other: Tally, sign: int) -> Tally:
        return Tally(*(getattr(self, item.name) + sign * getattr(other, item.name) for item in fields(Tally)))

    @property
    def rows(self) -> float:
        """Rows that entered."""
        return self.none + self.encoded + self.decoded + self.augmented


@dataclass
class Use:
    """How much of a machine was used since the start; in units of each resource, but for the last ones."""

    cpu: float = 0.0
    host: float = 0.0
    network: float = 0.0
    storage: float = 0.0
    evictions: float = 0

    def since(self, earlier: Use) -> Use:
        """What was added since an earlier state."""
        return Use(*(getattr(self, item.name) - getattr(earlier, item.name) for item in fields(Use)))


def total(tallies: Sequence[Tally]) -> Tally:
    """The sum of counts."""
    return sum(tallies, Tally())
