"""How the fetching threads of a node are divided between its ranks (Lobster 4.2 and 4.4, algorithm 1)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

_CLOSE = 1e-3
"""Common times that differ by less than this share are the same."""


def proportional(total: int, queues: Sequence[float]) -> list[int]:
    """``total`` threads in proportion to queue lengths. Who has a queue gets at least one where they suffice."""
    wanting = [rank for rank, queue in enumerate(queues) if queue > 0]
    threads = [0] * len(queues)
    if total <= 0 or not wanting:
        return threads
    if len(wanting) >= total:
        for rank in sorted(wanting, key=lambda rank: (-queues[rank], rank))[:total]:
            threads[rank] = 1
        return threads
    # Whoever is due less than one gets one, and the others divide what is left, so that it stays in proportion.
    open_ranks, left = wanting, total
    while True:
        length = math.fsum(queues[rank] for rank in open_ranks)
        small = [rank for rank in open_ranks if queues[rank] * left < length]
        if not small:
            break
        for rank in small:
            threads[rank] = 1
        left -= len(small)
        open_ranks = [rank for rank in open_ranks if not threads[rank]]
        if not open_ranks:
            return threads
    remainders = []
    for rank in open_ranks:
        due = queues[rank] * left / length
        threads[rank] = max(1, math.floor(due))
        remainders.append((threads[rank] - due, -queues[rank], rank))
    spare = left - sum(threads[rank] for rank in open_ranks)
    for _, _, rank in sorted(remainders)[: max(0, spare)]:
        threads[rank] += 1
    return threads


def least_threads(
    time: Callable[[int], float], target: float, most: int, *, start: int = 1, tau: float = 0.0
) -> int:
    """The least number of threads, 1 to ``most``, with which ``time`` is at most ``target`` + ``tau``.

    Lobster's inner search: halving between two bounds, upwards while it takes too long and downwards while it does
    not. Where no number suffices, the one that comes nearest, and the least of those.
    """
    low, high = 1, max(1, most)
    now = min(max(low, start), high)
    best, nearest = now, math.inf
    while True:
        off = time(now) - target
        if off > tau:
            if (off, now) < (nearest, best):
                best, nearest = now, off
            low = now + 1
        else:
            best, nearest = now, -math.inf
            high = now - 1
        if low > high:
            return best
        now = (low + high) // 2


def least_largest(
    total: int, time: Callable[[int, int], float], ranks: int, floors: Sequence[float]
) -> list[int]:
    """Threads for each rank so that the largest time is least; none is made faster than its floor.

    Bisection on the common time: the smallest for which the least threads that reach it are within ``total``. Each
    rank has one at least, also where that is more than ``total``.
    """
    if ranks >= total:
        return [1] * ranks

    def needed(rank: int, common: float, low: int, high: int) -> int:
        """The least threads between two numbers, the latter of which is taken where none suffices."""
        target = max(common, floors[rank])
        while low < high:
            middle = (low + high) // 2
            if time(rank, middle) <= target:
                high = middle
            else:
                low = middle + 1
        return low

    most = total - ranks + 1
    fewest = [1] * ranks
    slow = max(time(rank, 1) for rank in range(ranks))
    fast = max(max(floors[rank], time(rank, most)) for rank in range(ranks))
    many = [needed(rank, fast, 1, most) for rank in range(ranks)]
    if sum(many) <= total:
        return many
    while slow > fast * (1 + _CLOSE) and fewest != many:
        common = math.sqrt(slow * fast) if fast > 0 else slow / 2
        trial = [needed(rank, common, fewest[rank], many[rank]) for rank in range(ranks)]
        if sum(trial) <= total:
            slow, fewest = common, trial
        else:
            fast, many = common, trial
    return fewest


def straggler_aware(
    total: int,
    queues: Sequence[float],
    time: Callable[[int, int], float],
    train: Sequence[float],
    *,
    tau: float = 0.0,
) -> list[int]:
    """In proportion to queue lengths, unless a rank would then be late: Lobster's algorithm 1.

    ``time(rank, threads)``: predicted seconds of fetching and preparing a batch; more threads never make it longer,
    up to where it saturates. ``train``: seconds that the rank's loop takes for a batch. A rank is late by more than
    ``tau``. Each late rank then gets the least threads with which it is not, and what they take the others spare. If
    that is too much for the node, the largest time is made as small as it can be.
    """
    start = proportional(total, queues)
    ranks = [rank for rank, queue in enumerate(queues) if queue > 0]
    if total < len(ranks) or all(time(rank, start[rank]) - train[rank] <= tau for rank in ranks):
        return start
    least = [
        least_threads(partial(time, rank), train[rank], total, start=start[rank], tau=tau) for rank in ranks
    ]
    if sum(least) > total:
        least = least_largest(
            total, lambda at, count: time(ranks[at], count), len(ranks), [train[rank] + tau for rank in ranks]
        )
    threads = [0] * len(queues)
    for rank, count in zip(ranks, least, strict=True):
        threads[rank] = count
    spare = proportional(total - sum(least), queues)
    return [count + more for count, more in zip(threads, spare, strict=True)]
