"""A shelf: the cached samples of one form, for all jobs whose recipes agree on that form."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from headrace.coordinate.costs import Costs
from headrace.core.bits import Bits, drop, put
from headrace.core.forms import Form
from headrace.core.sparse import PAGE

Ids = NDArray[np.int64]

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
        self.busy: Counter[int] = Counter()
        """Readers of a cached sample: it cannot go while there are any."""
        self.bytes = 0
        self.costs = Costs()
        """What its jobs were seen to take for a sample."""
        self.measured = self.saves = 0.0
        """What preparing a sample of it took when that was last taken over (``savings``), and what it counts for; 0:
        that was not asked yet."""
        self.body = body
        """Bytes of each extent, where all have the same; 0 where they may differ."""
        self._largest = self._seen = self._total = 0
        self._rows: dict[int, int] = {}
        self._free: list[int] = []
        self._table = np.zeros((_FIRST, 7), np.int64)

    # columns of the table
    _ID, _ADDRESS, _LENGTH, _USES, _ADMITTED, _USED, _LEFT = range(7)

    def grow(self, universe: int) -> None:
        """There are more samples."""
        self.cached.grow(universe)
        self.pending.grow(universe)

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, sample: int) -> bool:
        return sample in self._rows

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
        samples: Sequence[int],
        addresses: Sequence[int],
        sizes: Sequence[int],
        now: int,
        left: Sequence[int] | int = 0,
    ) -> None:
        """Samples are cached. ``left``: jobs that have yet to take each of them."""
        count = len(samples)
        if not count:
            return
        rows = self._free[-count:]
        del self._free[-count:]
        if len(rows) < count:
            used = len(self._rows)
            while used + count > len(self._table):
                self._table = np.concatenate([self._table, np.zeros_like(self._table)])
            rows += range(used + len(rows), used + count)
        self._rows.update(zip(samples, rows, strict=True))
        entries = np.empty((count, 7), np.int64)
        entries[:, 0], entries[:, 1], entries[:, 2] = samples, addresses, sizes
        entries[:, 3], entries[:, 4:6], entries[:, 6] = 0, now, left
        self._table[rows] = entries
        self.bytes += sum(sizes)
        put(self.cached.words, entries[:, 0])

    def remove(self, samples: Sequence[int]) -> list[int]:
        """Samples are cached no more; returns where they were."""
        if not samples:
            return []
        rows = [self._rows.pop(sample) for sample in samples]
        self._free += rows
        gone = self._table[rows]
        self._table[rows, self._ID] = -1
        self.bytes -= int(gone[:, self._LENGTH].sum())
        drop(self.cached.words, gone[:, self._ID])
        addresses: list[int] = gone[:, self._ADDRESS].tolist()
        return addresses

    def find(self, samples: list[int]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Addresses and lengths of cached samples."""
        found = self._table[[self._rows[sample] for sample in samples]]
        return found[:, self._ADDRESS], found[:, self._LENGTH]

    def address_of(self, sample: int) -> int:
        """Where a cached sample lies."""
        return int(self._table[self._rows[sample], self._ADDRESS])

    def rows(self, samples: list[int]) -> NDArray[np.int64]:
        """All about cached samples: rows as of ``entries``."""
        return self._table[[self._rows[sample] for sample in samples]]

    def use(self, samples: list[int], now: int) -> None:
        """Samples were served."""
        rows = np.array([self._rows[sample] for sample in samples])
        self._table[rows, self._USES] += 1
        self._table[rows, self._USED] = now

    def count_down(self, samples: list[int]) -> None:
        """A job takes these."""
        self._table[[self._rows[sample] for sample in samples], self._LEFT] -= 1

    def change_left(self, change: NDArray[np.int64], samples: Ids) -> None:
        """More or fewer jobs have yet to take these cached samples."""
        self._table[[self._rows[sample] for sample in samples.tolist()], self._LEFT] += change

    def used_up(self, samples: list[int]) -> list[int]:
        """Those of ``samples`` that are cached, that no job has yet to take, and that nobody reads."""
        rows, busy = self._rows, self.busy
        there = [sample for sample in samples if sample in rows and sample not in busy]
        if not there:
            return there
        left = self._table[[rows[sample] for sample in there], self._LEFT].tolist()
        return [sample for sample, jobs in zip(there, left, strict=True) if jobs <= 0]

    def entries(self) -> NDArray[np.int64]:
        """All cached samples that nobody reads: rows of (sample, address, bytes, uses, admitted, used, left)."""
        table = self._table[: len(self._rows) + len(self._free)]
        there = table[:, self._ID] >= 0
        if self.busy:
            rows = self._rows
            there[[rows[sample] for sample in self.busy if sample in rows]] = False
        return table[there]

    def read(self, samples: list[int]) -> None:
        """Somebody begins to read these."""
        self.busy.update(samples)

    def release(self, samples: list[int]) -> None:
        """Somebody has read these."""
        busy = self.busy
        for sample in samples:
            left = busy[sample] - 1
            if left > 0:
                busy[sample] = left
            else:
                busy.pop(sample)  # (a counter takes long over ``del``)
