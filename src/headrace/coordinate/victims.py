"""Victims: the cached samples that are worth least, and so have to go for others."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from headrace.coordinate.parts import Part, Parts
from headrace.coordinate.shelf import Shelf
from headrace.coordinate.worths import Worths
from headrace.core.addresses import Tier, tiers_of, unpack
from headrace.core.forms import Form

Shelves = Mapping[tuple[Form, str], Shelf]

_PATIENCE = 32
"""After a newcomer was refused, so many events pass before the whole cache is looked over again; more of them in a
large one, where a look costs more and each event changes less: a part of what is cached."""
_PART = 16
_QUEUE = 128
"""Victims found in one look."""


class Victims:
    """Finds victims, many in one look, and remembers who was refused for want of any."""

    def __init__(self, shelves: Shelves, parts: Parts, worths: Worths, tier: Tier, *, alone: bool) -> None:
        """``tier``: the one in which they are looked for. ``alone``: there is no other."""
        self._shelves, self._parts, self._worths = shelves, parts, worths
        self._tier, self._alone = tier, alone
        self._found: dict[Part | None, list[tuple[float, Shelf, int]]] = {}
        self._refused: dict[Part | None, tuple[float, int]] = {}

    def changed(self) -> None:
        """Who needs what has changed at large: what was found out is out of date."""
        self._found.clear()
        self._refused.clear()

    def reconsider(self) -> None:
        """There is room again: newcomers that were refused may be worth it now."""
        self._refused.clear()

    def refuses(self, limited: Part | None, worth: float) -> bool:
        """Whether a newcomer was refused not long ago that was worth as much."""
        before = self._refused.get(limited)
        if before is None:
            return False
        bar, since = before
        patience = max(_PATIENCE, sum(map(len, self._shelves.values())) // _PART)
        strict = self._worths.eviction.strict
        return self._worths.now - since < patience and (worth <= bar if strict else True)

    def refuse(self, limited: Part | None, worth: float) -> None:
        """A newcomer of that worth found no room."""
        self._refused[limited] = (worth, self._worths.now)

    def next(self, limited: Part | None, worth: float) -> tuple[Shelf, int] | None:
        """Who goes for a newcomer of that worth. ``limited``: the part of the budget that has no room."""
        queue = self._found.get(limited)
        strict = self._worths.eviction.strict
        while True:
            if not queue:
                queue = self._found[limited] = self.look(limited)
                if not queue:
                    self.refuse(limited, np.inf)
                    return None
            value, shelf, sample = queue[-1]
            if sample not in shelf or shelf.busy.get(sample) or not self._has(shelf, sample):
                queue.pop()
                continue
            # What is more than its form's part of the budget has to go, whatever it is worth.
            due = limited is None and self._parts.limited
            if due and not self._parts.overdrawn(shelf.form):
                queue.clear()
                continue
            if not due and (worth <= value if strict else worth < value):
                self.refuse(limited, value)
                del self._found[limited]
                return None
            queue.pop()
            return shelf, sample

    def _has(self, shelf: Shelf, sample: int) -> bool:
        """Whether a cached sample lies here. (It may have gone, and come again elsewhere.)"""
        return self._alone or unpack(shelf.address_of(sample))[0] == self._tier

    def look(self, limited: Part | None, *, forced: bool = False) -> list[tuple[float, Shelf, int]]:
        """The cached samples that are worth least, the least last. ``forced``: also those that are to stay."""
        found: list[tuple[float, Shelf, int]] = []
        only_overdrawn = limited is None and self._parts.limited and not forced
        for shelf in self._shelves.values():
            if limited is not None and shelf.form not in limited:
                continue
            if only_overdrawn and not self._parts.overdrawn(shelf.form):
                continue
            table = shelf.entries()
            if not self._alone:
                table = table[tiers_of(table[:, 1]) == int(self._tier)]
            if not len(table):
                continue
            worth = self._worths.cached(shelf, self._tier, table)
            least = smallest(worth, _QUEUE)
            if not forced:
                least = least[np.isfinite(worth[least])]
            found += [(float(worth[at]), shelf, int(table[at, 0])) for at in least]
        found.sort(key=lambda item: -item[0])
        return found[-_QUEUE:]


def smallest(values: NDArray[np.float64], count: int) -> NDArray[np.int64]:
    """Where the ``count`` smallest values are, the smallest first; of equal ones, the first."""
    if len(values) <= 2 * count:
        return np.argsort(values, kind="stable")[:count]
    bar = np.partition(values, count - 1)[count - 1]
    below = np.flatnonzero(values < bar)
    equal = np.flatnonzero(values == bar)[: count - len(below)]
    return np.concatenate([below[np.argsort(values[below], kind="stable")], equal])
