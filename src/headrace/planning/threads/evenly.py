"""Whole threads for ranks with known work, so that the rank that takes longest takes as short as it can."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

_PROMISE = 1.1
"""A larger number has to make the slowest so many times as fast."""


def evenly(works: Sequence[float], total: int) -> list[int]:
    """One for each and the others one by one to where there is most work for each: that makes the largest least."""
    counts = [1] * len(works)
    heap = [(-work, at) for at, work in enumerate(works)]
    heapq.heapify(heap)
    for _ in range(total - len(works)):
        at = heap[0][1]
        counts[at] += 1
        heapq.heapreplace(heap, (-works[at] / counts[at], at))
    return counts


def whole(works: Sequence[float], limit: int, most: int) -> int:
    """The limit, or a larger one up to ``most`` where that makes the slowest rank faster: with 15 threads for eight
    ranks alike, one has a single thread, and all wait for it. (Some are idle then, so CPUs are hardly exceeded.)"""
    if not len(works) < limit < most:
        return limit
    best, late = limit, max(1.0, worst(works, evenly(works, limit)))
    for more in range(limit + 1, min(most, limit + len(works)) + 1):
        if late <= _PROMISE:
            break
        then = max(1.0, worst(works, evenly(works, more)))
        if then * _PROMISE <= late:
            best, late = more, then
    return best


def worst(works: Sequence[float], counts: Sequence[int]) -> float:
    """The most work that there is for one thread of a rank."""
    return max(work / count for work, count in zip(works, counts, strict=True))
