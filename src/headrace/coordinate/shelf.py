"""A shelf: the cached samples of one form, for all jobs whose recipes agree on that form."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from headrace.coordinate.costs import Costs
from headrace.coordinate.readers import Readers
from headrace.core.bits import Bits, drop, put, test
from headrace.core.forms import Form
from headrace.core.sparse import PAGE

Ids = NDArray[np.int64]
Samples = Sequence[int] | Ids

_GUESS = 1 << 20
"""What an extent is taken to need before the first one has been seen."""
_FIRST_CAPACITY = 16 * _GUESS
_WIDE = 8
"""Extents of so many times the mean and more may find no room: who is far larger than all others is not cached."""
_ALIKE = 4
"""Sizes are alike where the largest is more than the mean by this part of it at most."""
_ENOUGH = 200
"""Of so many it can be told. (Each is the largest so far with a chance of one in as many as there were: one that is
finds its block too small, and is cached when it comes again.)"""
_FIRST = 256


class Shelf:
    """Where each cached sample of one form lies, what is being prepared for it, and who reads it now."""

    def __init__(self, form: Form, key: str, universe: int, body: int = 0) -> None:
        self.form, self.key = form, key
        self.jobs: set[int] = set()
        self.cached = Bits.empty(universe)
        self.pending = Bits.empty(universe)
        self.owner: dict[int, int] = {}
        """The ticket that prepares a pending sample."""
        self.busy = Readers(universe)
        self.bytes = 0
        self.costs = Costs()
        """What its jobs were seen to take for a sample."""
        self.measured = self.saves = 0.0
        """What preparing a sample of it took when that was last taken over (``savings``), and what it counts for; 0:
        that was not asked yet."""
        self.cheap = False
        """Whether its samples are made so fast that others had better make their own (``passing_on``)."""
        self.body = body
        """Bytes of each extent, where all have the same; 0 where they may differ."""
        self._largest = self._seen = self._total = 0
        self._places = np.zeros(universe, np.int32)
        """By sample: 1 and the column of the table that it has; 0: it is not cached. (As a bare array: a draw looks
        up all its samples in a call or two. Memory of it that is never written to is never there.)"""
        self._count = 0
        self._free: list[int] = []
        self._table = np.zeros((7, _FIRST), np.int64)

    # rows of the table
    _ID, _ADDRESS, _LENGTH, _USES, _ADMITTED, _USED, _LEFT = range(7)

    def grow(self, universe: int) -> None:
        """There are more samples."""
        self.cached.grow(universe)
        self.pending.grow(universe)
        self.busy.grow(universe)
        places = np.zeros(universe, np.int32)
        places[: len(self._places)] = self._places
        self._places = places

    def _columns(self, samples: Samples) -> Ids:
        """Where cached samples are in the table."""
        return self._places[samples] - np.int64(1)

    def __len__(self) -> int:
        return self._count

    def __contains__(self, sample: int) -> bool:
        return bool(self._places[sample])

    @property
    def expected(self) -> int:
        """Bytes that an extent will need, as far as one can tell: all of them have this mean."""
        if self.body:
            return self.body
        return self._total // self._seen if self._seen else self._largest or _GUESS

    @property
    def capacity(self) -> int:
        """Bytes of addresses to set aside for an extent. What it does not fill costs nothing."""
        if self.body:
            return self.body
        if not self._largest:
            return _FIRST_CAPACITY
        # Where sizes differ much, the next one may be the largest so far. Where they differ little, that is rare, and
        # blocks without gaps can be filled in huge pages. (Of those smaller than a page, all would count.)
        enough = self._seen >= _ENOUGH and _ALIKE * self._largest <= (_ALIKE + 1) * self.expected
        alike = enough or self._largest <= self.expected
        likely = self._largest if alike or self.expected < PAGE else 2 * self._largest
        # A power of two, so that it stays the same while the mean moves, and blocks fit where others were.
        return min(likely, 1 << (_WIDE * self.expected - 1).bit_length())

    @property
    def known(self) -> bool:
        """Whether the size of its extents is known."""
        return bool(self.body or self._largest)

    @property
    def unsure(self) -> bool:
        """Whether the first extents are being made, from which their size will be known."""
        return not self.known and bool(self.owner)

    def learn(self, sizes: Sequence[int]) -> None:
        """Extents need so many bytes."""
        self._largest = max(self._largest, *sizes)
        self._total += sum(sizes)
        self._seen += len(sizes)

    def too_small(self, nbytes: int) -> None:
        """The largest of those that found their block too small needed so many bytes."""
        self._largest = max(self._largest, nbytes)

    def put(
        self,
        samples: Samples,
        addresses: Samples,
        sizes: Samples,
        now: int,
        left: Samples | int = 0,
    ) -> None:
        """Samples are cached. ``left``: jobs that have yet to take each of them."""
        count = len(samples)
        if not count:
            return
        columns = self._free[-count:]
        del self._free[-count:]
        if len(columns) < count:
            used = self._count  # (all that was free is taken)
            while used + count > self._table.shape[1]:
                self._table = np.concatenate([self._table, np.zeros_like(self._table)], axis=1)
            columns += range(used + len(columns), used + count)
        at = np.array(columns)
        ids = np.asarray(samples, np.int64)
        nbytes = np.asarray(sizes, np.int64)
        self._places[ids] = at + 1
        self._count += count
        table = self._table
        table[self._ID, at], table[self._ADDRESS, at], table[self._LENGTH, at] = ids, addresses, nbytes
        table[self._USES, at], table[self._ADMITTED, at] = 0, now
        table[self._USED, at], table[self._LEFT, at] = now, left
        self.bytes += int(nbytes.sum())
        put(self.cached.words, ids)

    def remove(self, samples: Samples) -> list[int]:
        """Samples are cached no more; returns where they were."""
        if not len(samples):
            return []
        ids = np.asarray(samples, np.int64)
        columns = self._columns(ids)
        self._free += columns.tolist()
        self._count -= len(ids)
        self._places[ids] = 0
        self._table[self._ID, columns] = -1
        self.bytes -= int(self._table[self._LENGTH].take(columns).sum())
        drop(self.cached.words, ids)
        addresses: list[int] = self._table[self._ADDRESS].take(columns).tolist()
        return addresses

    def find(self, samples: Samples) -> tuple[Ids, Ids]:
        """Addresses and lengths of cached samples."""
        columns = self._columns(samples)
        return self._table[self._ADDRESS].take(columns), self._table[self._LENGTH].take(columns)

    def address_of(self, sample: int) -> int:
        """Where a cached sample lies."""
        return int(self._table[self._ADDRESS, self._places[sample] - 1])

    def extent_of(self, sample: int) -> tuple[int, int]:
        """Address and length of a cached sample."""
        column = self._places[sample] - 1
        return int(self._table[self._ADDRESS, column]), int(self._table[self._LENGTH, column])

    def rows(self, samples: Samples) -> NDArray[np.int64]:
        """All about cached samples: rows as of ``entries``."""
        return self._table[:, self._columns(samples)].T

    def use(self, samples: Samples, now: int) -> None:
        """Samples were served."""
        columns = self._columns(samples)
        self._table[self._USES, columns] += 1
        self._table[self._USED, columns] = now

    def count_down(self, samples: Samples) -> None:
        """A job takes these."""
        self._table[self._LEFT, self._columns(samples)] -= 1

    def change_left(self, change: NDArray[np.int64], samples: Ids) -> None:
        """More or fewer jobs have yet to take these cached samples."""
        self._table[self._LEFT, self._columns(samples)] += change

    def used_up(self, samples: Samples) -> list[int]:
        """Those of ``samples`` that are cached, that no job has yet to take, and that nobody reads; each once."""
        ids = np.asarray(samples, np.int64)
        ids = ids[test(self.cached.words, ids) & ~test(self.busy.bits.words, ids)]
        gone: list[int] = ids[self._table[self._LEFT].take(self._columns(ids)) <= 0].tolist()
        return list(dict.fromkeys(gone))

    def entries(self) -> NDArray[np.int64]:
        """All cached samples that nobody reads: rows of (sample, address, bytes, uses, admitted, used, left)."""
        table = self._table[:, : self._count + len(self._free)]
        there = table[self._ID] >= 0
        if self.busy:
            there[self._columns(self.busy.bits.ids())] = False
        return table[:, there].T

    def read(self, samples: Samples) -> None:
        """Somebody begins to read these."""
        self.busy.come(np.asarray(samples, np.int64))

    def release(self, samples: Samples) -> None:
        """Somebody has read these."""
        self.busy.leave(np.asarray(samples, np.int64))
