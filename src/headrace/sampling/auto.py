"""Hits first; then, of what must be prepared, what is near, and the samples that most jobs still need."""

from __future__ import annotations

import numpy as np

from headrace.core import bits as bitset
from headrace.core import random as rnd
from headrace.core.bits import Bits, Ids, Words
from headrace.sampling.remaining import Remaining
from headrace.sampling.sampler import CacheView

_CANDIDATES = 1.5
"""Hits that are looked at for each one that is taken."""
_ASKED = 4
"""Peers that are asked whether they still need them."""
_PEERS = 16  # more would cost more time than the last of them add to what is shared


class Auto:
    """Takes what is ready, best form first; prepares what serves most jobs; waits for pending samples last.

    A pending sample will be a hit soon, so to draw it now would be to prepare it twice or to wait for it.
    """

    name = "auto"

    def draw(self, remaining: Remaining, job: int, count: int, view: CacheView, key: int) -> Ids:
        """See ``Sampler.draw``."""
        wanted = min(count, remaining.left(job))
        needed = remaining.words(job)
        parts: list[Ids] = []
        for rank, ready in enumerate(view.ready):
            if not wanted:
                break
            hits = needed & ready
            if not hits.any():
                continue
            part = self._nearly_used_up(remaining, hits, wanted, view, rnd.key(key, rank))
            parts.append(part)
            wanted -= len(part)
            if wanted:
                # All hits were taken, so what is needed from here on is what is not ready in this form.
                needed = needed ^ hits
        if wanted:
            parts += self._to_prepare(remaining, needed, wanted, view, key)
        drawn = np.concatenate(parts) if parts else np.empty(0, np.int64)
        remaining.give(job, drawn)
        return drawn

    @staticmethod
    def _nearly_used_up(remaining: Remaining, hits: Words, wanted: int, view: CacheView, key: int) -> Ids:
        """Of random hits those that the fewest others still need: they soon make room for new ones."""
        found = bitset.choose(hits, int(_CANDIDATES * wanted), key)
        if len(found) > wanted and view.peers:
            found = found[np.argsort(remaining.needs(found, view.peers[:_ASKED]), kind="stable")]
        return found[:wanted]

    def _to_prepare(
        self, remaining: Remaining, needed: Words, wanted: int, view: CacheView, key: int
    ) -> list[Ids]:
        """Samples that are not ready. New ones as far as the cache has room for them, so that the others find
        them there; then those that others are preparing; then new ones all the same."""
        pending = needed & view.pending
        fresh = needed & ~view.pending
        if view.later is not None:
            fresh = fresh & ~view.later
        first = min(wanted, view.room)
        new = self._new(remaining, fresh, first, view, rnd.key(key, -1))
        wanted -= len(new)
        if not wanted:
            return [new]
        coming = bitset.choose(pending, wanted, rnd.key(key, -2))
        wanted -= len(coming)
        if not wanted:
            return [new, coming]
        rest = Bits(64 * len(needed), needed.copy())
        rest.discard(np.concatenate([new, coming]))
        left = rest.words if view.later is None else rest.words & ~view.later
        more = self._new(remaining, left, wanted, view, rnd.key(key, -3))
        rest.discard(more)
        wanted -= len(more)
        last = bitset.choose(rest.words, wanted, rnd.key(key, -4)) if wanted else more[:0]
        return [new, more, last, coming]

    def forget(self, job: int) -> None:
        """Nothing was promised."""

    def _new(self, remaining: Remaining, fresh: Words, wanted: int, view: CacheView, key: int) -> Ids:
        """Samples that nobody has prepared: those that are near, then those that must be read from storage."""
        if view.near is None:
            return bitset.choose(self._shared(remaining, fresh, wanted, view), wanted, key)
        near = fresh & view.near
        first = bitset.choose(self._shared(remaining, near, wanted, view), wanted, rnd.key(key, 0))
        wanted -= len(first)
        if not wanted:
            return first
        far = self._shared(remaining, fresh & ~near, wanted, view)
        return np.concatenate([first, bitset.choose(far, wanted, rnd.key(key, 1))])

    @staticmethod
    def _shared(remaining: Remaining, fresh: Words, wanted: int, view: CacheView) -> Words:
        """Of the candidates, those that as many peers as possible need too, as long as enough stay.

        Greedy, from the peer that needs most: it is the likeliest to leave enough, and will draw for longest.
        """
        if not bitset.at_least(fresh, wanted + 1):
            return fresh
        peers = sorted((-remaining.left(peer), peer) for peer in view.peers if remaining.left(peer) >= wanted)
        for _, peer in peers[:_PEERS]:
            both = fresh & remaining.words(peer)
            if bitset.at_least(both, wanted):
                fresh = both
        return fresh
