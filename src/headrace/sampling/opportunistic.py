"""Opportunistic sampling, after Seneca's ODS: random samples, with misses replaced by what is cached."""

from __future__ import annotations

import numpy as np

from headrace.core import bits as bitset
from headrace.core import random as rnd
from headrace.core.bits import Ids
from headrace.sampling.remaining import Remaining
from headrace.sampling.sampler import CacheView, arrange


class Opportunistic:
    """Draws random samples that the job needs, and replaces misses by random hits, as many as there are.

    Hits drawn at random together with random other hits are random hits; and misses of which random ones were
    replaced are random misses. So the same comes out if hits are drawn first and misses fill up, in one go. What was
    displaced is what was not drawn: it comes up later in the epoch.
    """

    name = "opportunistic"

    def draw(self, remaining: Remaining, job: int, count: int, view: CacheView, key: int) -> Ids:
        """See ``Sampler.draw``."""
        wanted = min(count, remaining.left(job))
        needed = remaining.words(job)
        drawn = np.empty(0, np.int64)
        if view.ready:
            cached = view.ready[0]
            for ready in view.ready[1:]:
                cached = cached | ready
            hits = needed & cached
            drawn = bitset.choose(hits, wanted, key)
            if len(drawn) < wanted:
                needed = needed ^ hits
        if len(drawn) < wanted:
            misses = bitset.choose(needed, wanted - len(drawn), rnd.key(key, 1))
            drawn = np.concatenate([drawn, misses])
        remaining.give(job, drawn)
        return arrange(drawn, view)

    def forget(self, job: int) -> None:
        """Nothing was promised."""
