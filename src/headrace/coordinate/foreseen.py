"""When cached samples are needed next, as a pool goes by it where the order of samples is known."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from headrace.coordinate.shelf import Shelf
from headrace.eviction.reuse import SIZES, last_turn, size_classes, turns

Ids = NDArray[np.int64]
Dues = Callable[[Shelf], NDArray[np.int32]]
"""Of a shelf: when each sample is needed next by those who use it. The array is kept up to date in place."""


class Foreseen:
    """Says how soon samples are needed: a number that is larger the sooner that is (``Reuse``)."""

    def __init__(self, dues: Dues, grain: int = 1, *, sized: bool = False) -> None:
        """``grain``: times that differ by less count as one. ``sized``: of samples with one time large ones go for
        others, as more of those find room."""
        self.dues, self.grain, self.sized = dues, grain, sized
        self._last = last_turn(grain, sized=sized)

    def nearness(self, shelf: Shelf, samples: Ids) -> Ids:
        """Of samples that are cached."""
        sizes = size_classes(shelf.find(samples)[1]) if self.sized else None
        return self._last - turns(self.dues(shelf)[samples], self.grain, sizes)

    def newcomers(self, shelf: Shelf, samples: Ids, *, ahead: bool = False) -> Ids:
        """Of samples that are about to be: what they will fill is not known. ``ahead``: they are fetched ahead of
        need, so nothing goes for them that is needed at the same time, however large it is."""
        sizes = None
        if self.sized:
            mean = size_classes(np.array([shelf.expected]))[0]
            sizes = np.full(len(samples), SIZES - 1 if ahead else mean, np.int64)
        return self._last - turns(self.dues(shelf)[samples], self.grain, sizes)

    def at(self, turn: int) -> int:
        """Of one whose turn is known."""
        return self._last - turn
