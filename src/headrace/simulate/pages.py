"""A system's page cache: files that were read most recently are in memory."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
from numpy.typing import NDArray


class RecentPages:
    """Keeps so many samples; what was read least recently goes."""

    def __init__(self, room: int) -> None:
        self._room = room
        self._pages: OrderedDict[int, None] = OrderedDict()

    def read(self, samples: NDArray[np.int64]) -> int:
        """How many of these are not there; all are afterwards, as far as so many are kept."""
        if not self._room:
            return len(samples)
        pages, missing = self._pages, 0
        for sample in samples.tolist():
            if sample in pages:
                pages.move_to_end(sample)
            else:
                missing += 1
                pages[sample] = None
                if len(pages) > self._room:
                    pages.popitem(last=False)
        return missing
