"""What to fetch ahead of need: the samples that are needed soonest and are not there, and how many of them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]
Stretch = tuple[NDArray[np.int32], NDArray[np.int32]]
"""Samples in the order of their use, and when each is used."""

_PART = 100
"""One in so many samples of a cache may be there because it was fetched ahead. Each takes the place of one that was
kept from its last use to its next, so more is read: half a per cent, with a cache for a third of the data."""
_STEPS = 2
"""And in any case so many steps."""
_LOOK = 64
"""Uses that are looked at in one go, at least."""


def most_ahead_of_need(cached: int, step: int) -> int:
    """Samples of a cache for ``cached`` that may be there because they were fetched ahead. ``step``: of one step."""
    return min(cached // 2, max(cached // _PART, _STEPS * step))


class Ahead:
    """Chooses what to fetch ahead. Every use is looked at once, so a choice costs as much as it finds.

    What it chooses is needed sooner than all that was not chosen; whether that is sooner than what has to go for it
    is for the cache to say, which takes it in or not (``refused``). What was there when it was looked at is not
    chosen: it is needed so soon that it does not go for anything that is needed later.
    """

    def __init__(self, most: int) -> None:
        """``most``: samples that may have been fetched ahead and not used yet."""
        self.most = most
        self._waiting: set[int] = set()
        self._refused: dict[int, None] = {}
        """Chosen in vain; they are the next to be chosen."""
        self._stretches: list[Stretch] = []
        self._at = 0
        self.looked = 0
        """Uses looked at by now."""

    def extend(self, stretch: Stretch) -> None:
        """More uses are known, after all others."""
        self._stretches.append(stretch)

    def restart(self) -> None:
        """What was known is not true any more."""
        self._stretches.clear()
        self._refused.clear()
        self._at = 0

    def used(self, samples: list[int]) -> None:
        """Samples were used: they are no longer ahead of need."""
        self._waiting.difference_update(samples)
        if self._refused:
            for sample in samples:
                self._refused.pop(sample, None)

    def refused(self, samples: list[int]) -> None:
        """There was no room for these, which had been chosen. They come first the next time."""
        self._waiting.difference_update(samples)
        self._refused.update(dict.fromkeys(samples))

    @property
    def waiting(self) -> int:
        """Samples that were fetched ahead and not used yet."""
        return len(self._waiting)

    def choose(self, wanted: int, now: int, there: Callable[[Ids], NDArray[np.bool_]]) -> Ids:
        """The next samples to fetch, up to ``wanted``; those used at ``now`` and before are past.

        ``there``: which of some samples are cached or on their way.
        """
        wanted = min(wanted, self.most - len(self._waiting))
        waiting, chosen = self._waiting, list(self._refused)[: max(0, wanted)]
        for sample in chosen:
            del self._refused[sample]
        waiting.update(chosen)
        while self._stretches and len(chosen) < wanted:
            samples, whens = self._stretches[0]
            if self._at < len(whens) and whens[self._at] <= now:
                self._at = int(np.searchsorted(whens, now, side="right"))
            if self._at >= len(samples):
                del self._stretches[0]
                self._at = 0
                continue
            some = samples[self._at : self._at + max(_LOOK, 2 * (wanted - len(chosen)))].astype(np.int64)
            seen = len(some)
            for place in np.flatnonzero(~there(some)).tolist():
                sample = int(some[place])
                if sample not in waiting:  # (it may be used twice before long)
                    waiting.add(sample)
                    chosen.append(sample)
                    if len(chosen) == wanted:
                        seen = place + 1
                        break
            self._at += seen
            self.looked += seen
        return np.array(chosen, np.int64)
