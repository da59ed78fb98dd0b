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
_MANY = 4
"""More entries than one in so many of those that are there are put in all at once."""
SIZES = 64
"""Classes of sizes, for those that go by them."""
LAST = (1 << 24) - 1
"""Grains of time that those are told apart by, at most: all of it fits a number of 64 bits."""

Ids = NDArray[np.int64]


def turns(due: NDArray[np.int32], grain: int = 1, sizes: Ids | None = None) -> Ids:
    """When samples have to go: the largest number first. ``sizes``: their classes, which tell those of one time
    apart; the largest go first. ``grain``: see ``FarthestFirst``."""
    times = due.astype(np.int64) // grain
    return times if sizes is None else np.minimum(times, LAST) * SIZES + sizes


def last_turn(grain: int = 1, *, sized: bool = False) -> int:
    """The turn of a sample of which no further use is known, and which is as large as can be."""
    return min(FAR // grain, LAST) * SIZES + SIZES - 1 if sized else FAR // grain


def size_classes(nbytes: Ids) -> Ids:
    """Sizes as ``turns`` has them: each class is larger than the one before by a factor of the root of two."""
    classes = np.floor(2 * np.log2(np.maximum(nbytes, 1))).astype(np.int64)
    found: Ids = np.minimum(classes, SIZES - 1)
    return found


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

    def __init__(
        self,
        due: NDArray[np.int32],
        may_go: Callable[[int], bool],
        grain: int = 1,
        sizes: Callable[[Ids], Ids] | None = None,
        may_go_of: Callable[[Ids], NDArray[np.bool_]] | None = None,
    ) -> None:
        """``due``: when each sample is needed next. ``may_go``: whether a sample is cached and nobody reads it; one
        that is read is put in again when it no longer is. ``grain``: times that differ by less count as one, and of
        samples with one time those with the largest numbers go; or, with ``sizes``, the largest samples.
        ``may_go_of``: ``may_go`` for many at once.

        With a grain of 1 this is Belady's rule to the letter. Of samples that are all used once in the next epoch it
        keeps those that come first: at the beginning of an epoch nothing has to be read, and later everything. With
        the steps of an epoch for a grain, as many are kept, but any: so reads are spread evenly, and what is kept
        need not be exchanged all the time.
        """
        self._due, self._may_go, self._grain, self._sizes = due, may_go, grain, sizes
        self._may_go_of = may_go_of
        self._heap: list[int] = []
        self._true = 0
        self.looked = 0
        """Entries looked at by now."""

    def put(self, samples: list[int] | Ids) -> None:
        """These may go when their time comes."""
        heap, ids = self._heap, np.asarray(samples, np.int64)
        classes = None if self._sizes is None else self._sizes(ids)
        entries = (-(turns(self._due[ids], self._grain, classes) << _BITS | ids)).tolist()
        if _MANY * len(entries) > len(heap):
            heap += entries
            heapq.heapify(heap)
            self._true = max(self._true, len(entries))
        else:
            for entry in entries:
                heapq.heappush(heap, entry)
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

    @property
    def turn(self) -> int:
        """That of the one that ``farthest`` has just named."""
        return -self._heap[0] >> _BITS

    def drop(self) -> None:
        """The one that ``farthest`` has just named is not named again, unless it is put in once more."""
        heapq.heappop(self._heap)

    def _read(self, entry: int) -> tuple[int, int] | None:
        time, sample = divmod(-entry, 1 << _BITS)
        due = int(self._due[sample])
        now = due // self._grain
        if self._sizes is not None:
            time, now = time // SIZES, min(now, LAST)
        return (sample, due) if now == time and self._may_go(sample) else None

    def _tidy(self) -> None:
        """Drop what is not true any more. This is done when there is as much of it as of the rest."""
        self.looked += len(self._heap)
        if self._may_go_of is None:
            self._heap = [entry for entry in set(self._heap) if self._read(entry) is not None]
        else:
            entries = -np.unique(np.array(self._heap, np.int64))
            samples = entries & ((1 << _BITS) - 1)
            times = entries >> _BITS
            if self._sizes is not None:
                times //= SIZES
            now = turns(self._due[samples], self._grain)
            now = now if self._sizes is None else np.minimum(now, LAST)
            self._heap = (-entries[(now == times) & self._may_go_of(samples)]).tolist()
        heapq.heapify(self._heap)
        self._true = len(self._heap)
