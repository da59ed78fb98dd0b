"""Victims where the order of samples is known: what is needed last goes first, without a look at the whole cache."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from headrace.coordinate.parts import Part, Parts
from headrace.coordinate.shelf import Shelf
from headrace.coordinate.victims import Shelves, Victims
from headrace.coordinate.worths import Worths
from headrace.core.addresses import Tier
from headrace.eviction import FarthestFirst
from headrace.eviction.reuse import nearness_of


class ForeseenVictims(Victims):
    """Finds victims one by one, by their next use."""

    def __init__(
        self,
        shelves: Shelves,
        parts: Parts,
        worths: Worths,
        tier: Tier,
        due: NDArray[np.int32],
        grain: int,
        *,
        alone: bool,
    ) -> None:
        """``due``: when each sample is needed next. ``grain``: see ``FarthestFirst``; the others: ``Victims``."""
        super().__init__(shelves, parts, worths, tier, alone=alone)
        self._due, self._grain = due, grain
        self._farthest: dict[Shelf, FarthestFirst] = {}

    def may_go(self, shelf: Shelf, samples: Iterable[int]) -> None:
        """Samples are cached and nobody reads them, or they are needed at another time than was known."""
        free = [sample for sample in samples if sample in shelf and not shelf.busy.get(sample)]
        if free:
            self._order_of(shelf).put(free)

    def _order_of(self, shelf: Shelf) -> FarthestFirst:
        order = self._farthest.get(shelf)
        if order is None:

            def may_go(sample: int) -> bool:
                return sample in shelf and not shelf.busy.get(sample) and self._has(shelf, sample)

            order = self._farthest[shelf] = FarthestFirst(self._due, may_go, self._grain)
        return order

    def refuses(self, limited: Part | None, worth: float) -> bool:
        """See ``Victims``. Who would have to go is always known here, so nobody is refused unseen."""
        return False

    def next(self, limited: Part | None, worth: float) -> tuple[Shelf, int] | None:
        """See ``Victims``."""
        # What is more than its form's part of the budget has to go, whatever it is worth.
        due = limited is None and self._parts.limited
        best: tuple[int, Shelf, int] | None = None
        for shelf in self._shelves.values():
            if limited is not None and shelf.form not in limited:
                continue
            if due and not self._parts.overdrawn(shelf.form):
                continue
            found = self._order_of(shelf).farthest()
            if found is not None and (best is None or found[1] > best[0]):
                best = found[1], shelf, found[0]
        if best is None or (not due and worth <= nearness_of(best[0], self._grain)):
            return None
        _, shelf, sample = best
        self._order_of(shelf).drop()
        return shelf, sample
