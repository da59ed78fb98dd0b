"""Victims where the order of samples is known: what is needed last goes first, without a look at the whole cache."""

from __future__ import annotations

from functools import partial

import numpy as np
from numpy.typing import NDArray

from headrace.coordinate.foreseen import Foreseen, Ids
from headrace.coordinate.parts import Part, Parts
from headrace.coordinate.shelf import Samples, Shelf
from headrace.coordinate.victims import Shelves, Victims
from headrace.coordinate.worths import Worths
from headrace.core.addresses import Tier, tiers_of
from headrace.core.bits import test
from headrace.eviction import FarthestFirst
from headrace.eviction.reuse import size_classes


class ForeseenVictims(Victims):
    """Finds victims one by one, by their next use."""

    def __init__(
        self, shelves: Shelves, parts: Parts, worths: Worths, tier: Tier, foreseen: Foreseen, *, alone: bool
    ) -> None:
        """See ``Victims``."""
        super().__init__(shelves, parts, worths, tier, alone=alone)
        self._foreseen = foreseen
        self._farthest: dict[Shelf, FarthestFirst] = {}

    def may_go(self, shelf: Shelf, samples: Samples) -> None:
        """Samples are cached and nobody reads them, or they are needed at another time than was known."""
        ids = np.asarray(samples, np.int64)
        free = ids[self._free(shelf, ids)]
        if len(free):
            self._order_of(shelf).put(free)

    def _free(self, shelf: Shelf, ids: Ids) -> NDArray[np.bool_]:
        free: NDArray[np.bool_] = test(shelf.cached.words, ids) & ~test(shelf.busy.bits.words, ids)
        if not self._alone:
            there = np.flatnonzero(free)
            free[there] = tiers_of(shelf.find(ids[there])[0]) == int(self._tier)
        return free

    def _order_of(self, shelf: Shelf) -> FarthestFirst:
        order = self._farthest.get(shelf)
        if order is None:
            foreseen = self._foreseen

            def may_go(sample: int) -> bool:
                return sample in shelf and not shelf.busy.get(sample) and self._has(shelf, sample)

            def sizes(samples: Ids) -> Ids:
                return size_classes(shelf.find(samples)[1])

            order = self._farthest[shelf] = FarthestFirst(
                foreseen.dues(shelf),
                may_go,
                foreseen.grain,
                sizes if foreseen.sized else None,
                partial(self._free, shelf),
            )
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
            order = self._order_of(shelf)
            found = order.farthest()
            if found is not None and (best is None or order.turn > best[0]):
                best = order.turn, shelf, found[0]
        if best is None or (not due and worth <= self._foreseen.at(best[0])):
            return None
        _, shelf, sample = best
        self._order_of(shelf).drop()
        return shelf, sample
