"""What each job has not been given yet in its epoch: one bit per sample and job."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from headrace.core import bits as bitset
from headrace.core.bits import Bits, Ids, Words, drop


class Remaining:
    """The remaining samples of all jobs. Jobs are known by a number; samples by their place in the universe."""

    def __init__(self, size: int = 0) -> None:
        self.size = size
        self._bits: dict[int, Bits] = {}
        self._left: dict[int, int] = {}

    @property
    def jobs(self) -> tuple[int, ...]:
        """All jobs, in the order in which they joined."""
        return tuple(self._bits)

    @property
    def nbytes(self) -> int:
        """Memory that the sets take."""
        return sum(bits.words.nbytes for bits in self._bits.values())

    def grow(self, size: int) -> None:
        """The universe has more samples now; nobody needs the new ones yet."""
        for bits in self._bits.values():
            bits.grow(size)
        self.size = max(size, self.size)

    def join(self, job: int, bits: Bits) -> None:
        """A job that needs these samples. The set is copied, and may be over fewer samples than the universe."""
        if job in self._bits:
            raise ValueError(f"job {job} joined already")
        self._set(job, bits)

    def leave(self, job: int) -> None:
        """The job is gone."""
        del self._bits[job]
        del self._left[job]

    def begin(self, job: int, bits: Bits) -> None:
        """A new epoch of the job: these samples are what it needs now, whatever was left of the last one."""
        if job not in self._bits:
            raise KeyError(job)
        self._set(job, bits)

    def take(self, job: int, ids: Ids) -> None:
        """The job has been given these; those it did not need make no difference."""
        self._left[job] -= self._bits[job].discard(ids)

    def give(self, job: int, ids: Ids) -> None:
        """The job is given these: each once, and all of them needed. (Checked by nobody: draws are many.)"""
        drop(self._bits[job].words, ids)
        self._left[job] -= len(ids)

    def put_back(self, job: int, ids: Ids) -> None:
        """The job needs these again, for what it was given did not reach it."""
        self._left[job] += self._bits[job].add(ids)

    def left(self, job: int) -> int:
        """How many samples the job still needs."""
        return self._left[job]

    def bits(self, job: int) -> Bits:
        """The samples that the job still needs; to be read only."""
        return self._bits[job]

    def words(self, job: int) -> Words:
        """The same as bare words."""
        return self._bits[job].words

    def needs(self, ids: Ids, jobs: Iterable[int]) -> NDArray[np.uint16]:
        """For each of ``ids`` how many of ``jobs`` still need it."""
        return bitset.needs([self._bits[job].words for job in jobs], ids)

    def _set(self, job: int, bits: Bits) -> None:
        if bits.size > self.size:
            raise ValueError(f"a set over {bits.size} samples in a universe of {self.size}")
        bits = bits.copy()
        bits.grow(self.size)
        self._bits[job] = bits
        self._left[job] = bits.count()
