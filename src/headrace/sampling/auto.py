"""Hits first; then, of what must be prepared, the samples that most jobs still need."""

from __future__ import annotations

import numpy as np

from headrace.core import bits as bitset
from headrace.core import random as rnd
from headrace.core.bits import Ids, Words
from headrace.sampling.remaining import Remaining
from headrace.sampling.sampler import View

_PEERS = 16  # more would cost more time than the last of them add to what is shared


class Auto:
    """Takes what is ready, best form first; prepares what serves most jobs; waits for pending samples last.

    A pending sample will be a hit soon, so to draw it now would be to prepare it twice or to wait for it.
    """

    name = "auto"

    def draw(self, remaining: Remaining, job: int, count: int, view: View, key: int) -> Ids:
        """See ``Sampler.draw``."""
        wanted = min(count, remaining.left(job))
        needed = remaining.words(job)
        parts: list[Ids] = []
        for rank, ready in enumerate(view.ready):
            if not wanted:
                break
            hits = needed & ready
            part = bitset.choose(hits, wanted, rnd.key(key, rank))
            parts.append(part)
            wanted -= len(part)
            if wanted:
                # All hits were taken, so what is needed from here on is what is not ready in this form.
                needed = needed & ~hits
        if wanted:
            fresh = needed & ~view.pending
            part = bitset.choose(self._shared(remaining, fresh, wanted, view), wanted, rnd.key(key, -1))
            parts.append(part)
            wanted -= len(part)
        if wanted:
            parts.append(bitset.choose(needed & view.pending, wanted, rnd.key(key, -2)))
        drawn = np.concatenate(parts) if parts else np.empty(0, np.int64)
        remaining.take(job, drawn)
        return drawn

    def forget(self, job: int) -> None:
        """Nothing was promised."""

    @staticmethod
    def _shared(remaining: Remaining, fresh: Words, wanted: int, view: View) -> Words:
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
