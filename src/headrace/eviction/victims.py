"""From worths to victims: what has to go so that there is room."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from headrace.eviction.policy import Entries, Eviction, Jobs

_AT_FIRST = 64
"""Victims that are looked for before it is known how many it takes; finding these costs hardly more than one."""


def rank_victims(
    policy: Eviction, entries: Entries, jobs: Jobs, room_needed: int
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The entries that go first, in order, and their worth: just enough for ``room_needed`` bytes.

    Where all that may go is not enough, all of that. Among equals the one that was used least recently goes first.
    For many newcomers at once, rank for all of them together and hand the victims out from the front.
    """
    if room_needed <= 0:
        return np.empty(0, np.int64), np.empty(0, np.float64)
    worth = policy.worth(entries, jobs)
    able = int(np.count_nonzero(worth < np.inf))
    count = min(_AT_FIRST, able)
    while True:
        order = _least(worth, entries.used, count)
        room = np.cumsum(entries.nbytes[order])
        if count == able or (count and room[-1] >= room_needed):
            break
        # As many as it would take if the others were as large as these, and some more; at least twice as many.
        share = room_needed / max(1, int(room[-1]))
        count = min(able, count * 2 if share < 2 else int(count * share * 1.1) + 1)
    order = order[: int(np.searchsorted(room, room_needed)) + 1]
    return order, worth[order]


def choose_victims(
    policy: Eviction,
    entries: Entries,
    newcomer: Entries,
    jobs: Jobs,
    newcomer_jobs: int,
    room_needed: int,
) -> NDArray[np.int64]:
    """Indexes into ``entries``, in the order in which they should go for ``newcomer``, an entry of one.

    They make at least ``room_needed`` bytes free. None at all if the newcomer must be refused: because there is
    not enough that may go, or, with a strict policy, because it is not worth more than each one that would.
    """
    order, worth = rank_victims(policy, entries, jobs, room_needed)
    if not len(order) or int(entries.nbytes[order].sum()) < room_needed:
        return np.empty(0, np.int64)
    if policy.strict and not policy.worth(newcomer, newcomer_jobs)[0] > worth[-1]:
        return np.empty(0, np.int64)
    return order


def _least(worth: NDArray[np.float64], used: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """The ``count`` entries of least worth, sorted by (worth, used, index), without sorting all."""
    if count == 0:
        return np.empty(0, np.int64)
    least = np.partition(worth, count - 1)[count - 1]
    chosen = np.flatnonzero(worth < least)
    tied = np.flatnonzero(worth == least)
    lack = count - len(chosen)
    if lack < len(tied):
        # Worths are often small counts, so there may be very many that are equal.
        times = used[tied]
        tied = tied[times <= np.partition(times, lack - 1)[lack - 1]]
    chosen = np.concatenate([chosen, tied])
    return chosen[np.lexsort((chosen, used[chosen], worth[chosen]))][:count].astype(np.int64)
