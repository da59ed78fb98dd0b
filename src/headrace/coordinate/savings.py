"""What one use of a cached sample saves: the time to prepare it from storage, without the time to read it.

Both are measured, from reports alone, so the same reports give the same savings. They are taken over when they have
changed noticeably, and all at once: what samples are worth is compared, and kept for a while.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from headrace.coordinate.costs import Costs, RunningMean, Took
from headrace.coordinate.shelf import Shelf
from headrace.core.addresses import Tier
from headrace.core.forms import Form

PRIOR = {Form.ENCODED: 1.0, Form.DECODED: 8.0, Form.AUGMENTED: 9.0}
"""Until enough was measured, in no unit: fetching alone is the least of it."""
_NOTICEABLE = 1.2
"""By this factor."""
_ENOUGH_BYTES = 1 << 20
"""Bytes that have to be read from a tier before it is known how long that takes."""
_SLOWEST = 1e-5
"""Seconds for a byte, whatever is reported."""
_FAST = 1e-9


class Savings:
    """Learns from reports, and says what a use of a sample of a shelf saves, by the tier in which it lies."""

    def __init__(self, shelves: Mapping[tuple[Form, str], Shelf]) -> None:
        self._shelves = shelves
        self._all = Costs()
        """Of all shelves: what counts for those of which little was seen."""
        self._in_seconds = False
        """Whether enough was measured when savings were last taken over."""
        self._reading: dict[Tier, RunningMean] = {}
        self._read: dict[Tier, float] = {}
        """Seconds for a byte, when savings were last taken over."""

    def saves(self, shelf: Shelf, tier: Tier) -> float:
        """What one use saves, in a unit that is the same for all shelves and tiers; 0: nothing.

        In the arena a form never saves less than one that is less prepared. Elsewhere it may, where it is larger and
        reading takes long.
        """
        if not shelf.saves:
            self._take_over_for(shelf)
        if self._read and tier in self._read:
            return max(0.0, shelf.saves - self._read[tier] * shelf.expected)
        return shelf.saves

    def learn(self, shelves: Iterable[Shelf], took: Took) -> bool:
        """Workers of a job with these shelves took so long; whether savings have changed."""
        self._all.add(took)
        changed = self._all.known != self._in_seconds
        for shelf in shelves:
            shelf.costs.add(took)
            changed |= shelf.saves > 0 and _differs(shelf.measured, self._cost(shelf))
        if changed:
            self._take_over()
        return changed

    def learn_reading(self, tier: Tier, nbytes: int, seconds: float) -> bool:
        """So many bytes were read from a tier; whether savings have changed. (Those of the arena are there.)"""
        if tier == Tier.ARENA:
            return False
        mean = self._reading.get(tier)
        if mean is None:
            mean = self._reading[tier] = RunningMean(_ENOUGH_BYTES, _SLOWEST, _FAST)
        mean.add(seconds, nbytes, _ENOUGH_BYTES)
        if not self._in_seconds or not mean.known or not _differs(self._read.get(tier, 0.0), mean.mean):
            return False
        self._take_over()
        return True

    def _cost(self, shelf: Shelf) -> float:
        """What preparing a sample of a shelf takes, as far as that is known now."""
        if not self._in_seconds:
            return PRIOR[shelf.form]
        return (shelf.costs if shelf.costs.known else self._all).to(shelf.form)

    def _take_over(self) -> None:
        self._in_seconds = self._all.known
        for shelf in sorted(self._shelves.values(), key=lambda shelf: shelf.form):  # the least prepared first
            self._take_over_for(shelf)
        if self._in_seconds:
            self._read = {tier: mean.mean for tier, mean in self._reading.items() if mean.known}

    def _take_over_for(self, shelf: Shelf) -> None:
        less = (
            other.saves
            for other in self._shelves.values()
            if other.form < shelf.form and not shelf.jobs.isdisjoint(other.jobs)
        )
        shelf.measured = self._cost(shelf)
        shelf.saves = max([shelf.measured, *less])


def _differs(before: float, now: float) -> bool:
    return now > _NOTICEABLE * before or before > _NOTICEABLE * now
