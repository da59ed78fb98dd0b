"""Joader's sampling tree: which samples are shared by the jobs from one on, jobs ordered by what they have left.

With the sets sorted by size, D_1 <= ... <= D_n, a round of dependent sampling only ever asks for the
intersections of suffixes, S_i = D_i & ... & D_n, which contain each other: S_1 in S_2 in ... in S_n = D_n. So
the tree is a path. Its i-th **vertex** is V_i = S_i - S_{i-1}, the samples that are in all sets from D_i on but
not in D_{i-1}; the **leaf** beside it is L_i = D_i - S_i, what job i shares with not all of those behind it.
(Vertices are disjoint, leaves are not.) Places are counted from 0 here.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import pairwise

from headrace.core import bits as bitset
from headrace.core.bits import Bits, Words


class Tree:
    """The path over the sets of any number of jobs. Sets may be equal, empty or disjoint.

    Intersections are computed when they are asked for and kept until a set in their suffix comes or goes. The tree
    does not copy the sets: they must not change while they are in it.
    """

    def __init__(self) -> None:
        self._jobs: list[int] = []
        self._sets: list[Words] = []
        self._sizes: list[int] = []
        self._shared: list[tuple[Words, int]] = []
        """The intersections of the suffixes and their sizes, those known, from the last backwards."""

    @property
    def jobs(self) -> tuple[int, ...]:
        """The jobs, from the smallest set to the largest; those of equal size in the order they came."""
        return tuple(self._jobs)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The sizes of their sets."""
        return tuple(self._sizes)

    def insert(self, job: int, bits: Bits) -> None:
        """Put a job with its set into the tree."""
        if job in self._jobs:
            raise ValueError(f"job {job} is in the tree already")
        if self._sets and len(self._sets[0]) != len(bits.words):
            raise ValueError("the sets of a tree must be over one universe")
        size = bits.count()
        place = bisect_right(self._sizes, size)
        self._jobs.insert(place, job)
        self._sets.insert(place, bits.words)
        self._sizes.insert(place, size)
        # Known are the suffixes behind the new set, now as before; the others have to be intersected with it.
        del self._shared[len(self._sets) - 1 - place :]

    def remove(self, job: int) -> None:
        """Take a job out of the tree. Raises ValueError if it is not in it."""
        place = self._jobs.index(job)
        del self._shared[len(self._sets) - 1 - place :]
        del self._jobs[place], self._sets[place], self._sizes[place]

    def shared(self) -> list[int]:
        """How many samples each suffix shares: the sizes of S_1 .. S_n."""
        return [self._suffix(place)[1] for place in range(len(self._sets))]

    def vertex_sizes(self) -> list[int]:
        """How many samples are in each vertex."""
        shared = [0, *self.shared()]
        return [after - before for before, after in pairwise(shared)]

    def leaf_sizes(self) -> list[int]:
        """How many samples are in each leaf."""
        return [size - shared for size, shared in zip(self._sizes, self.shared(), strict=True)]

    def vertex(self, place: int) -> Words:
        """The samples of a vertex."""
        words = self._suffix(place)[0]
        # The suffixes contain each other, so one operation takes the smaller from the larger.
        return words ^ self._suffix(place - 1)[0] if place else words

    def leaf(self, place: int) -> Words:
        """The samples of a leaf."""
        return self._sets[place] ^ self._suffix(place)[0]

    def _suffix(self, place: int) -> tuple[Words, int]:
        last = len(self._sets) - 1
        while len(self._shared) <= last - place:
            at = last - len(self._shared)
            if at == last:
                self._shared.append((self._sets[at], self._sizes[at]))
                continue
            words, size = self._shared[-1]
            if size:
                words = words & self._sets[at]
                size = bitset.count(words)
            self._shared.append((words, size))
        return self._shared[last - place]
