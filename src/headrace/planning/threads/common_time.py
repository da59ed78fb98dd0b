"""The pace at which a node can serve all its ranks: the least time for a batch that its capacity allows."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate


def common_time(works: Sequence[float], floors: Sequence[float], capacity: float) -> float:
    """The smallest common time in which all works are done by so many at once; who has a floor above it takes that
    long. 0 where the floors alone leave time enough."""
    order = sorted(zip(floors, works, strict=True))
    left = list(accumulate(work for _, work in order))  # of those with the least floors
    slow = 0.0
    for (floor, work), fast in zip(reversed(order), reversed(left), strict=True):
        room = max(capacity - slow, 1e-12 * capacity)
        if fast >= floor * room:
            return fast / room
        slow += work / floor
    return 0.0
