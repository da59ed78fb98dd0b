"""Who reads cached samples: how many readers each has. It cannot go while there are any."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from headrace.core.bits import Bits, Ids, hold, let_go, words_for


class Readers(Mapping[int, int]):
    """By sample: its readers, of those that have any. Counted in an array, since they come and go by the batch."""

    def __init__(self, universe: int) -> None:
        self.bits = Bits.empty(universe)
        """Samples that have readers."""
        # (memory of it that is never written to is never there)
        self._counts = np.zeros(64 * words_for(universe), np.int32)
        self._total = 0

    def grow(self, universe: int) -> None:
        """There are more samples."""
        self.bits.grow(universe)
        counts = np.zeros(64 * words_for(universe), np.int32)
        counts[: len(self._counts)] = self._counts
        self._counts = counts

    def come(self, samples: Ids) -> None:
        """Somebody begins to read these."""
        hold(self._counts, self.bits.words, samples)
        self._total += len(samples)

    def leave(self, samples: Ids) -> None:
        """Somebody has read these. Raises ValueError where nobody did."""
        let_go(self._counts, self.bits.words, samples)
        self._total -= len(samples)

    def __getitem__(self, sample: int) -> int:
        count = int(self._counts[sample])
        if not count:
            raise KeyError(sample)
        return count

    def get(self, sample: int, default: int = 0) -> int:  # type: ignore[override]  # (there is none without a count)
        """How many read a sample."""
        return int(self._counts[sample])

    def __contains__(self, sample: object) -> bool:
        return isinstance(sample, int) and bool(self._counts[sample])

    def __iter__(self) -> Iterator[int]:
        return iter(self.bits.ids().tolist())

    def __len__(self) -> int:
        return self.bits.count()

    def __bool__(self) -> bool:
        return self._total > 0
