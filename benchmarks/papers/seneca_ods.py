"""Seneca's opportunistic sampling as published (section 5.2), with the part that headrace leaves out.

A sample that has served as many times as there are jobs is evicted, and a background thread puts a random other one
in its place, which nobody asked for. Here that takes no time, so that the cache is always full.
"""

from __future__ import annotations

import numpy as np

BATCH, JOBS = 64, 3


def published_hits(share: float, samples: int, epochs: int = 4, seed: int = 0) -> float:
    """The hit rate of jobs that draw in turn, from the second epoch on."""
    rng = np.random.default_rng(seed)
    cached = np.zeros(samples, bool)
    cached[rng.permutation(samples)[: round(share * samples)]] = True
    served = np.zeros(samples, np.int64)
    seen = np.zeros((JOBS, samples), bool)
    hits = rows = 0
    for step in range(epochs * -(-samples // BATCH)):
        for job in range(JOBS):
            unseen = np.flatnonzero(~seen[job])
            wanted = rng.choice(unseen, min(BATCH, len(unseen)), replace=False)
            found, missed = wanted[cached[wanted]], wanted[~cached[wanted]]
            others = np.setdiff1d(unseen[cached[unseen]], found, assume_unique=True)
            instead = rng.choice(others, min(len(missed), len(others)), replace=False)
            from_cache = np.concatenate([found, instead])
            seen[job, from_cache] = seen[job, missed[len(instead) :]] = True
            if step * BATCH >= samples:
                hits += len(from_cache)
                rows += len(wanted)
            served[from_cache] += 1
            done = from_cache[served[from_cache] >= JOBS]
            cached[done], served[done] = False, 0
            cached[rng.choice(np.flatnonzero(~cached), len(done), replace=False)] = True
            if seen[job].all():
                seen[job] = False
    return hits / rows
