"""Evict what is needed again farthest in the future, where the order of samples is known (Belady's rule)."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headrace.core.dues import FAR
from headrace.eviction.policy import Entries, Jobs

_BITS = 32
_SPARE = 1024
"""Entries that may be out of date before the order of victims is made anew."""


def nearness_of(due: int, grain: int = 1) -> int:
    """How soon a sample is needed, as ``Reuse`` has it; 0: nobody knows. ``grain``: see ``FarthestFirst``."""
    return FAR // grain - due // grain


def nearness(due: NDArray[np.int32], grain: int = 1) -> NDArray[np.int64]:
    """The same for many."""
    return FAR // grain - due.astype(np.int64) // grain


@dataclass(frozen=True)
class Reuse:
    """Lobster's reuse distance: worth is how soon a sample is needed, which is what ``needs`` says here.

    Its reuse count is the same rule at its end: what has no known use ahead is worth least, and goes for anything
    that has one. Until there is such a thing it may stay, as it costs nothing.
    """

    name: str = "reuse"
    strict: bool = True

    def worth(self, entries: Entries, jobs: Jobs) -> NDArray[np.float64]:
        """How soon each is needed."""
        return entries.needs.astype(np.float64)


class FarthestFirst:
    """Cached samples by their next use, the farthest first. An exchange costs the logarithm of how many there are.

    Samples are put in when they are cached and again whenever their next use has changed. Nothing is taken out: what
    was put in is looked at when its turn comes, and dropped if it is not true any more.
    """

    def __init__(self, due: NDArray[np.int32], may_go: Callable[[int], bool], grain: int = 1) -> None:
        """``due``: when each sample is needed next. ``may_go``: whether a sample is cached and nobody reads it; one
        that is read is put in again when it no longer is. ``grain``: times that differ by less count as one, and of
        samples with one time those with the largest numbers go.

        With a grain of 1 this is Belady's rule to the letter. Of samples that are all used once in the next epoch it
        keeps those that come first: at the beginning of an epoch nothing has to be read, and later everything. With
        the steps of an epoch for a grain, as many are kept, but any: so reads are spread evenly, and what is kept
        need not be exchanged all the time.
        """
        self._due, self._may_go, self._grain = due, may_go, grain
        self._heap: list[int] = []
        self._true = 0
        self.looked = 0
        """Entries looked at by now."""

    def put(self, samples: list[int]) -> None:
        """These may go when their time comes."""
        heap = self._heap
        for sample, due in zip(samples, (self._due[samples] // self._grain).tolist(), strict=True):
            heapq.heappush(heap, -(due << _BITS | sample))
        if len(heap) > 2 * self._true + _SPARE:
            self._tidy()

    def farthest(self) -> tuple[int, int] | None:
        """The sample that is needed last, and when. It stays in; see ``drop``."""
        heap = self._heap
        while heap:
            self.looked += 1
            found = self._read(heap[0])
            if found is not None:
                return found
            heapq.heappop(heap)
        return None

    def drop(self) -> None:
        """The one that ``farthest`` has just named is not named again, unless it is put in once more."""
        heapq.heappop(self._heap)

    def _read(self, entry: int) -> tuple[int, int] | None:
        time, sample = divmod(-entry, 1 << _BITS)
        due = int(self._due[sample])
        return (sample, due) if due // self._grain == time and self._may_go(sample) else None

    def _tidy(self) -> None:
        """Drop what is not true any more. This is done when there is as much of it as of the rest."""
        self.looked += len(self._heap)
        self._heap = [entry for entry in set(self._heap) if self._read(entry) is not None]
        heapq.heapify(self._heap)
        self._true = len(self._heap)
