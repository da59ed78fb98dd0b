"""The universe: all samples that a shared host knows, numbered once, in whatever datasets they appear."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from headrace.core.bits import Bits
from headrace.core.errors import ProtocolError

Ids = NDArray[np.int64]


class Dataset:
    """One dataset's samples within the universe."""

    def __init__(self, key: str, label: str, ids: Ids) -> None:
        self.key, self.label = key, label
        self.size = len(ids)
        ordered = bool(
            len(ids) == 0 or (ids[0] == 0 and ids[-1] == len(ids) - 1 and (np.diff(ids) == 1).all())
        )
        # The first dataset, and all that list the same samples, need no tables.
        self._ids: NDArray[np.uint32] | None = None if ordered else ids.astype(np.uint32)
        self._local: NDArray[np.int64] | None = None
        self._bits: Bits | None = None

    def bits(self, universe: int) -> Bits:
        """The dataset's samples as a set over the universe; to be read only."""
        if self._bits is None:
            self._bits = Bits.full(self.size) if self._ids is None else Bits.of(universe, self._ids)
        if self._bits.size < universe:
            self._bits.grow(universe)
        return self._bits

    def to_universe(self, indices: Ids) -> Ids:
        """The universe's numbers of samples that the dataset knows by ``indices``."""
        if len(indices) and not 0 <= int(indices.min()) <= int(indices.max()) < self.size:
            raise ProtocolError(f"indices outside of a dataset of {self.size} samples")
        return indices if self._ids is None else self._ids[indices].astype(np.int64)

    def to_local(self, ids: Ids) -> Ids:
        """The dataset's own indices of samples of the universe; -1 for those that it does not have."""
        if self._ids is None:
            return np.where(ids < self.size, ids, -1)
        if self._local is None:
            self._local = np.full(int(self._ids.max(initial=0)) + 1, -1, np.int64)
            self._local[self._ids] = np.arange(self.size)
        known = ids < len(self._local)
        return np.where(known, self._local[np.where(known, ids, 0)], -1)

    @property
    def nbytes(self) -> int:
        """Memory of the tables."""
        return sum(table.nbytes for table in (self._ids, self._local) if table is not None)


class Universe:
    """Numbers samples by their identity, so that datasets that overlap share what they have in common."""

    def __init__(self) -> None:
        self.size = 0
        self.datasets: dict[str, Dataset] = {}
        self._first = np.zeros(0, np.uint64)
        """First halves of all known identities, sorted; beside them the second halves and the numbers."""
        self._second = np.zeros(0, np.uint64)
        self._numbers = np.zeros(0, np.int64)
        self._free = np.zeros(0, np.int64)
        """Numbers of samples that were forgotten."""

    def add(self, key: str, label: str, identities: NDArray[np.uint8]) -> Dataset:
        """Number the samples of a new dataset; those that are known keep their numbers."""
        words = np.ascontiguousarray(identities).view(np.uint64).reshape(-1, 2)
        first, second = words[:, 0].copy(), words[:, 1].copy()
        ids = np.full(len(first), -1, np.int64)
        if len(self._first) and len(first):
            at = np.minimum(np.searchsorted(self._first, first), len(self._first) - 1)
            known = (self._first[at] == first) & (self._second[at] == second)
            ids[known] = self._numbers[at[known]]
        # A sample that one dataset lists twice is two samples: each has to be delivered.
        order = np.lexsort((np.arange(len(first)), second, first))
        again = np.zeros(len(first), np.bool_)
        same = (first[order][1:] == first[order][:-1]) & (second[order][1:] == second[order][:-1])
        again[order[1:][same]] = True
        ids[again] = -1
        fresh = np.flatnonzero(ids < 0)
        again_used, self._free = self._free[: len(fresh)], self._free[len(fresh) :]
        more = len(fresh) - len(again_used)
        ids[fresh] = np.concatenate([again_used, self.size + np.arange(more)])
        self.size += more
        new = fresh[~again[fresh]]
        self._merge(first[new], second[new], ids[new])
        dataset = self.datasets[key] = Dataset(key, label, ids)
        return dataset

    def only_in(self, dataset: Dataset) -> Bits:
        """The samples of a dataset that are in no other."""
        own = dataset.bits(self.size).copy()
        for other in self.datasets.values():
            if other is not dataset:
                own = own - other.bits(self.size)
        return own

    def forget(self, dataset: Dataset, own: Bits) -> None:
        """A dataset is not known any more; ``own``: see ``only_in``. The numbers of those are given to others."""
        del self.datasets[dataset.key]
        stay = ~own.test(self._numbers)
        self._first, self._second = self._first[stay], self._second[stay]
        self._numbers = self._numbers[stay]
        self._free = np.sort(np.concatenate([self._free, own.ids()]))

    def _merge(self, first: NDArray[np.uint64], second: NDArray[np.uint64], numbers: Ids) -> None:
        all_first = np.concatenate([self._first, first])
        order = np.argsort(all_first, kind="stable")
        self._first = all_first[order]
        self._second = np.concatenate([self._second, second])[order]
        self._numbers = np.concatenate([self._numbers, numbers])[order]
