"""The pace at which a node can serve all its ranks: the least time for a batch that its capacity allows."""

from __future__ import annotations

from collections.abc import Sequence


def common_time(works: Sequence[float], floors: Sequence[float], capacity: float) -> float:
    """The smallest common time in which all works are done by so many at once; who has a floor above it takes that
    long. 0 where the floors alone leave time enough."""
    slow = fast = 0.0
    for work, floor in zip(works, floors, strict=True):
        if floor > 0:
            slow += work / floor
        else:
            fast += work
    if fast <= 0 and slow <= capacity:
        return 0.0
    # Those with the least floors are the first to be slowed down to the common time.
    for floor, work in sorted(zip(floors, works, strict=True)):
        if floor <= 0:
            continue
        if capacity > slow and fast <= floor * (capacity - slow):
            return fast / (capacity - slow)
        slow -= work / floor
        fast += work
    return fast / capacity
