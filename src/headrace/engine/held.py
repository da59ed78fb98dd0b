"""Which samples a device holds: a table in shared memory that the job writes and its workers read.

What is held stays for as long as the session lives, so nobody has to be told of a sample that is gone.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from headrace.cache.arena import Arena

_SIDE = 32
"""Bits of a side."""


class HeldSamples:
    """For each sample the height and width of its image; 0: it is not held. One number each, written at once."""

    def __init__(self, arena: Arena, place: tuple[int, int], samples: int) -> None:
        self._sizes = np.frombuffer(arena.map(*place), np.int64, samples)

    @staticmethod
    def make(arena: Arena, samples: int) -> tuple[int, int]:
        """Room for a table, in which nothing is held."""
        return arena.allocate(8 * samples)

    def add(self, samples: NDArray[np.int64], sides: NDArray[np.int64]) -> None:
        """The device holds samples, images of these heights and widths."""
        self._sizes[samples] = sides[:, 0] << _SIDE | sides[:, 1]

    def sides(self, samples: NDArray[np.int64]) -> NDArray[np.int64]:
        """Heights and widths of samples."""
        found = self._sizes[samples]
        return np.stack([found >> _SIDE, found & ((1 << _SIDE) - 1)], 1)
