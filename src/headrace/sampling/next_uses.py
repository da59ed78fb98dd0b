"""When each sample is used next, by some ranks of a job, as far as their order is known."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from headrace.core.dues import FAR

Ids = NDArray[np.int64]
Whens = NDArray[np.int32]

_DENSE = 2
"""An epoch that uses one in so many samples or more is kept as a table of all of them."""


class _Epoch:
    """The uses of one epoch by sample."""

    def __init__(self, size: int, samples: NDArray[np.int32], whens: Whens) -> None:
        self._table: Whens | None = None
        if _DENSE * len(samples) >= size:
            self.samples = samples
            self._table = np.full(size, FAR, np.int32)
            self._table[samples] = whens
        else:
            sorting = np.argsort(samples, kind="stable")
            self.samples, self._whens = samples[sorting], whens[sorting]

    def of(self, samples: Ids) -> Whens:
        """When each of ``samples`` is used in it; ``FAR``: it is not."""
        if self._table is not None:
            found: Whens = self._table[samples]
            return found
        wanted = samples.astype(
            np.int32
        )  # (of another kind, numpy would convert all that it is looked for in)
        places = np.searchsorted(self.samples, wanted)
        places[places == len(self.samples)] = 0
        there: Whens = np.where(self.samples[places] == wanted, self._whens[places], np.int32(FAR))
        return there


class NextUses:
    """The next use of each sample. Moving on by a batch costs as much as the batch has samples, whatever there is.

    Times are any numbers that grow from step to step. Each sample is used once in an epoch at most. (Where one is
    used twice, as it may be at the very end of an epoch, the second use is as good as missed.)
    """

    def __init__(self, size: int) -> None:
        self.due = np.full(size, FAR, np.int32)
        """When each sample is used next."""
        self._epochs: dict[int, _Epoch] = {}

    def __contains__(self, epoch: int) -> bool:
        return epoch in self._epochs

    def __len__(self) -> int:
        """Epochs whose uses are known."""
        return len(self._epochs)

    def add(self, epoch: int, samples: NDArray[np.int32], whens: Whens) -> Ids:
        """The uses of one more epoch, after all that are known. Returns the samples whose next use is one of them."""
        self._epochs[epoch] = _Epoch(len(self.due), samples, whens)
        fresh = self.due[samples] == FAR
        found = samples[fresh]
        self.due[found] = whens[fresh]
        made: Ids = found.astype(np.int64)
        return made

    def use(self, epoch: int, samples: Ids) -> None:
        """Samples are used in an epoch: the next use of each is in a later one."""
        due = np.full(len(samples), FAR, np.int32)
        left = np.arange(len(samples))
        for number, known in self._epochs.items():
            if number <= epoch:
                continue
            found = known.of(samples[left])
            due[left] = found
            left = left[found == FAR]
            if not len(left):
                break
        self.due[samples] = due

    def forget_before(self, epoch: int) -> Ids:
        """Epochs before this one are over. Returns the samples that they had and that were not used in them."""
        missed = []
        for number in [number for number in self._epochs if number < epoch]:
            over = self._epochs.pop(number)
            when = over.of(over.samples.astype(np.int64))
            late = over.samples[self.due[over.samples] == when].astype(np.int64)
            self.use(number, late)
            missed.append(late)
        return np.concatenate(missed) if missed else np.zeros(0, np.int64)

    def clear(self) -> None:
        """Nothing is known any more."""
        self._epochs.clear()
        self.due.fill(FAR)
