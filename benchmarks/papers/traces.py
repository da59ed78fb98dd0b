"""Hit ratios of replacement rules on a known order of samples."""

from __future__ import annotations

import heapq
from collections import OrderedDict

import numpy as np
from numpy.typing import NDArray

Order = NDArray[np.int64]


def epochs_of(samples: int, epochs: int, seed: int = 0) -> Order:
    """Epochs of random order, one after the other."""
    rng = np.random.default_rng(seed)
    return np.concatenate([rng.permutation(samples) for _ in range(epochs)])


def next_uses(order: Order) -> Order:
    """For each access, the place of the next one to the same sample; the length of the order if there is none."""
    following = np.full(len(order), len(order), np.int64)
    by_sample = np.argsort(order, kind="stable")
    again = order[by_sample[:-1]] == order[by_sample[1:]]
    following[by_sample[:-1][again]] = by_sample[1:][again]
    return following


def belady(order: Order, room: int, after: int = 0) -> float:
    """The most hits that any rule can have with so much room, which fetches on demand; accesses from ``after`` count.

    What is needed farthest in the future goes, and a sample that is needed later than all that is cached does not
    come in.
    """
    following = next_uses(order).tolist()
    end = len(order)
    due: dict[int, int] = {}
    farthest: list[tuple[int, int]] = []
    hits = 0
    for place, (sample, coming) in enumerate(zip(order.tolist(), following, strict=True)):
        if sample in due:
            hits += place >= after
            del due[sample]
        if coming == end:
            continue
        due[sample] = coming
        heapq.heappush(farthest, (-coming, sample))
        while len(due) > room:
            when, victim = heapq.heappop(farthest)
            if due.get(victim) == -when:  # otherwise it was used meanwhile
                del due[victim]
    return hits / (end - after)


def least_recent(order: Order, room: int, after: int = 0) -> float:
    """The hits where the sample that was used least recently goes."""
    cached: OrderedDict[int, None] = OrderedDict()
    hits = 0
    for place, sample in enumerate(order.tolist()):
        if sample in cached:
            hits += place >= after
            cached.move_to_end(sample)
        else:
            cached[sample] = None
            if len(cached) > room:
                cached.popitem(last=False)
    return hits / (len(order) - after)


def keep_first(order: Order, room: int, after: int = 0) -> float:
    """The hits where nothing ever goes."""
    cached: set[int] = set()
    hits = 0
    for place, sample in enumerate(order.tolist()):
        if sample in cached:
            hits += place >= after
        elif len(cached) < room:
            cached.add(sample)
    return hits / (len(order) - after)
